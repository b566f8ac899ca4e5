"""What the controller is told: one YAML file, and nothing in it is required.

The policy of decisions (`notice`, `commitQuantum`, `labels`, …) becomes part of the ledger; the rest is this cluster's own
business and does not.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fairlease.engine.notice import Kind
from fairlease.kube.policy import NAMESPACE
from fairlease.model import rules
from fairlease.model.amount import HOUR, MINUTE, SECOND
from fairlease.model.config import Config
from fairlease.model.document import Findings, load, read_file
from fairlease.model.reading import Reader
from fairlease.model.record import Duration, Record
from fairlease.scheduler import SNAPSHOT_EVERY
from fairlease.theatre.backoff import a_backoff
from fairlease.theatre.webhook import web_address

PORT_MAX = 65_535
GRACE_MAX = HOUR


class Notify(Record, frozen=True, kw_only=True):
    """Where notices go besides Events."""

    webhook: str | None = None
    """An http or https address to which every notice is posted as JSON."""
    webhook_file: str | None = None
    """A file that holds the address, such as one of a Secret that is mounted."""
    kinds: tuple[Kind, ...] = ()
    """Which kinds the webhook gets; left out: all."""


class Cluster(Record, frozen=True, kw_only=True):
    """The file's keys besides the policy."""

    pause_image: str = "pause:3.10"
    """The image of the pods that hold the GPUs of spares: the one that your nodes use for every pod will do. One that cannot be
    pulled holds them too."""
    master_port: int = 29_500
    """Where the first rank of every gang listens."""
    max_grace: Duration = 10 * MINUTE
    """The longest that a pod gets to end, whatever its template or checkpoint asks for: its lease is closed by then, and somebody
    else waits for its GPUs."""
    opportunistic_grace: Duration = 2 * SECOND
    """The same for work that runs on GPUs to which it has no claim."""
    snapshot_every: int = SNAPSHOT_EVERY
    """Entries of the ledger after which a snapshot is kept, and older ones go to the archive."""
    retry_backoff: Duration = 10 * SECOND
    """How long a run rests after its own work failed; twice as long each time, five minutes at most."""
    notify: Notify = Notify()
    """Where notices go besides Events."""


class Settings(Record, frozen=True, kw_only=True):
    """All that a controller is told."""

    policy: Config = Config()
    cluster: Cluster = Cluster()
    namespace: str = NAMESPACE
    identity: str = ""
    archive: Path | None = None
    metrics_port: int = 0
    hold: bool = False


def _port(value: int) -> str | None:
    return None if 0 < value <= PORT_MAX else f"expected a port from 1 to {PORT_MAX}"


def _grace(value: int) -> str | None:
    return None if value <= GRACE_MAX else "expected at most 1h: nobody gets the GPUs before it is over"


_POLICY = Reader(rules.CHECKS, rules.RULES)
_CLUSTER = Reader(
    {
        Cluster: {
            "pause_image": rules.not_empty,
            "master_port": _port,
            "max_grace": _grace,
            "opportunistic_grace": _grace,
            "snapshot_every": rules.more_than_nothing,
            "retry_backoff": a_backoff,
        },
        Notify: {"webhook": web_address, "webhook_file": rules.not_empty},
    },
    {},
)


def read_settings(path: str | Path | None) -> tuple[Config, Cluster]:
    """Both parts of a configuration file, or the defaults. Raises `Invalid` with all that is wrong."""
    if path is None:
        return Config(), Cluster()
    text, source = read_file(path)
    findings = Findings(text, source)
    documents = load(text, source)
    for extra in documents[1:]:
        findings.add(extra.trail, "a configuration is one document; remove the others")
    raw, trail = (documents[0].value, documents[0].trail) if documents else ({}, ((), 0))
    policy_keys = _keys(Config)
    policy = _POLICY.read(Config, {key: raw[key] for key in raw if key in policy_keys}, trail, findings)
    cluster = _CLUSTER.read(Cluster, raw, trail, findings, beside=policy_keys)
    findings.settle()
    assert policy is not None, "what is wrong was found"
    assert cluster is not None, "what is wrong was found"
    return policy, cluster


def _keys(kind: type[Record]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))
