"""What the controller is told: one YAML file, and nothing in it is required.

The policy of decisions (`notice`, `commitQuantum`, `labels`, …) becomes part of the ledger; the rest is this cluster's own
business and does not.
"""

from __future__ import annotations

from pathlib import Path

from fairlease.kube.api.names import NAMESPACE
from fairlease.model import rules
from fairlease.model.amount import SECOND
from fairlease.model.config import Config
from fairlease.model.document import read_file
from fairlease.model.reading import Reader
from fairlease.model.record import Duration, Record
from fairlease.report.notices import NoticeKind
from fairlease.runtime.clock import a_backoff
from fairlease.runtime.notify.webhook import web_address
from fairlease.runtime.settings import (
    PORT_MAX,
    BeaconSource,
    a_beacon_has_one_source,
    a_path,
    commands_are_commands,
    read_both,
)
from fairlease.scheduler import SNAPSHOT_EVERY


class ClusterNotify(Record, frozen=True, kw_only=True):
    """Where notices go besides Events."""

    webhook: str | None = None
    """An http or https address to which every notice is posted as JSON."""
    webhook_file: str | None = None
    """A file that holds the address, such as one of a Secret that is mounted."""
    kinds: tuple[NoticeKind, ...] = ()
    """Which kinds the webhook gets; left out: all."""


class Cluster(Record, frozen=True, kw_only=True):
    """The file's keys besides the policy."""

    pause_image: str = "pause:3.10"
    """The image of the pods that hold the GPUs of spares: the one that your nodes use for every pod will do. One that cannot be
    pulled holds them too."""
    master_port: int = 29_500
    """Where the first rank of every gang listens."""
    snapshot_every: int = SNAPSHOT_EVERY
    """Entries of the ledger after which a snapshot is kept, and older ones go to the archive."""
    retry_backoff: Duration = 10 * SECOND
    """How long a run rests after its own work failed; twice as long each time, five minutes at most."""
    notify: ClusterNotify = ClusterNotify()
    """Where notices go besides Events."""
    beacon: BeaconSource | None = None
    """A public random value for the lottery's seed: a file that is mounted, or what a command prints."""


class ClusterSettings(Record, frozen=True, kw_only=True):
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


_CLUSTER = Reader(
    {
        Cluster: {
            "pause_image": rules.not_empty,
            "master_port": _port,
            "snapshot_every": rules.more_than_nothing,
            "retry_backoff": a_backoff,
        },
        ClusterNotify: {"webhook": web_address, "webhook_file": rules.not_empty},
        BeaconSource: {"file": a_path},
    },
    {BeaconSource: (commands_are_commands, a_beacon_has_one_source)},
)


def read_settings(path: str | Path | None) -> tuple[Config, Cluster]:
    """Both parts of a configuration file, or the defaults. Raises `Invalid` with all that is wrong."""
    if path is None:
        return Config(), Cluster()
    text, source = read_file(path)
    return read_both(text, source, Cluster, _CLUSTER)
