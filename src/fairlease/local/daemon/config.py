"""What the machine's owner decides: which GPUs there are, who may spend whose money, how long work has to end.

One YAML file, and nothing in it is required. Every mistake in it is told with its line, its field and what would be right. The
policy of decisions (`notice`, `commitQuantum`, …) stands in the same file and becomes part of the ledger; the rest is this
machine's own business and does not.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairlease.model import rules
from fairlease.model.amount import SECOND
from fairlease.model.config import Config
from fairlease.model.document import Findings, read_file
from fairlease.model.node import LabelKeys, Node
from fairlease.model.partial import as_far, column, readable
from fairlease.model.reading import Reader, Wrong
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

METRICS_PORT = 9464
"""Where OpenTelemetry's exporters offer metrics too: the port that people already scrape."""

GPUS_MAX = 1_024
PLACE = "local"
"""Region and cluster of a machine that was told nothing else, and the name of its only node."""

_USER = re.compile(r"@?[^\s:@/,][^\s:@/,]*")


class NodeEntry(Record, frozen=True, kw_only=True):
    """One node that is declared, with the labels that tell where it stands."""

    name: str
    gpus: int
    flavor: str | None = None
    domain: str | None = None
    region: str | None = None
    cluster: str | None = None
    rack: str | None = None
    labels: dict[str, str] = {}


class Notify(Record, frozen=True, kw_only=True):
    """Where notices go. `kinds` empty: all kinds; a signal goes only to processes that catch it, as others would die of it."""

    webhook: str | None = None
    command: tuple[str, ...] = ()
    signal: str | None = None
    kinds: tuple[NoticeKind, ...] = ()


class Machine(Record, frozen=True, kw_only=True):
    """The file's keys besides the policy."""

    gpus: int | None = None
    flavor: str | None = None
    nodes: tuple[NodeEntry, ...] = ()
    users: dict[str, tuple[str, ...]] = {}
    admins: tuple[str, ...] = ()
    grace: Duration = 10 * SECOND
    retry_backoff: Duration = 10 * SECOND
    bind_deadline: Duration = 60 * SECOND
    metrics_port: int | None = None
    home: str | None = None
    notify: Notify = Notify()
    beacon: BeaconSource | None = None


class Settings(Record, frozen=True, kw_only=True):
    """All that a daemon is told."""

    home: Path
    policy: Config = Config()
    machine: Machine = Machine()
    restored: bool = False
    """Whether the ledger may be older than what was written here: somebody put a backup in its place."""
    new_ledger: bool = False
    """Whether a ledger that is lost or damaged is to be begun anew."""

    @property
    def socket(self) -> Path:
        """Where the daemon listens."""
        return self.home / "fairlease.sock"

    @property
    def ledger(self) -> Path:
        """Where the ledger lies."""
        return self.home / "ledger.db"

    @property
    def outbox(self) -> Path:
        """Where notices are kept until they are delivered."""
        return self.home / "notices.db"

    @property
    def log(self) -> Path:
        """Where the daemon logs, unless it stays in the foreground."""
        return self.home / "daemon.log"


def default_home() -> Path:
    """Where a daemon lives that was told nothing: the environment's place, the system's for root, else one's own."""
    if told := os.environ.get("FAIRLEASE_HOME"):
        return Path(told)
    return Path("/var/lib/fairlease") if os.geteuid() == 0 else Path.home() / ".local/state/fairlease"


def load_settings(
    path: str | Path | None = None,
    *,
    home: str | Path | None = None,
    gpus: int | None = None,
    flavor: str | None = None,
    metrics_port: int | None = None,
) -> Settings:
    """The settings of a file, or the defaults, with what the command line said on top. Raises `Invalid`."""
    policy, machine = (Config(), Machine()) if path is None else read_settings(*read_file(path))
    told = {"gpus": gpus, "flavor": flavor, "metrics_port": metrics_port}
    machine = msgspec.structs.replace(machine, **{name: value for name, value in told.items() if value is not None})
    if gpus is not None:
        machine = msgspec.structs.replace(machine, nodes=())
    _judge_flags(machine)
    place = Path(home or machine.home or default_home()).expanduser().absolute()
    return Settings(home=place, policy=policy, machine=machine)


def read_settings(text: str, source: str) -> tuple[Config, Machine]:
    """Both parts of a configuration. Raises `Invalid` with all that is wrong with it."""
    return read_both(text, source, Machine, _MACHINE)


# --- what is right -----------------------------------------------------------------------------------------------------


def _port(value: int) -> str | None:
    return None if 0 <= value <= PORT_MAX else f"expected a port up to {PORT_MAX}, or 0 for no metrics"


def _a_bind_deadline(value: int) -> str | None:
    return rules.a_grace(value) if value else "expected more than 0s: processes need some time to start"


def _gpu_count(value: int) -> str | None:
    return None if 0 < value <= GPUS_MAX else f"expected 1 to {GPUS_MAX} GPUs"


def _users_have_names_and_owners(machine: Machine) -> Iterator[Wrong]:
    for _, name in readable(machine.users):
        if not _USER.fullmatch(name):
            yield Wrong(("users", name), name, "expected a user's name, or @ and a group's")
        yield from as_far(_owners_are_paths(machine, name))


def _owners_are_paths(machine: Machine, user: str) -> Iterator[Wrong]:
    for index, owner in readable(machine.users[user]):
        if (message := rules.an_owner(owner)) is not None:
            yield Wrong(("users", user, index), owner, message)


def _admins_have_names(machine: Machine) -> Iterator[Wrong]:
    for index, name in readable(machine.admins):
        if not _USER.fullmatch(name):
            yield Wrong(("admins", index), name, "expected a user's name, or @ and a group's")


def _nodes_are_named_apart(machine: Machine) -> Iterator[Wrong]:
    seen = set()
    for index, name in column(machine.nodes, "name"):
        if name in seen:
            yield Wrong(("nodes", index, "name"), name, "another node has this name")
        seen.add(name)


def _gpus_are_said_once(machine: Machine) -> Iterator[Wrong]:
    if machine.nodes and machine.gpus is not None:
        yield Wrong(("gpus",), machine.gpus, "the nodes say how many GPUs they have; remove one of the two")


def _nodes_have_a_flavor(machine: Machine) -> Iterator[Wrong]:
    if machine.flavor is None:
        for index, flavor in column(machine.nodes, "flavor"):
            if flavor is None:
                message = "missing; give the node a flavor, or all of them one at the top"
                yield Wrong(("nodes", index, "flavor"), None, message)


def _a_signal(value: str) -> str | None:
    good = value.startswith("SIG") and value in signal.Signals.__members__ and value not in ("SIGKILL", "SIGSTOP")
    return None if good else "expected a signal that can be caught, such as SIGUSR1"


_MACHINE = Reader(
    {
        Machine: {
            "gpus": _gpu_count,
            "flavor": rules.not_empty,
            "metrics_port": _port,
            "home": rules.not_empty,
            "grace": rules.a_grace,
            "retry_backoff": a_backoff,
            "bind_deadline": _a_bind_deadline,
        },
        Notify: {"webhook": web_address, "signal": _a_signal},
        BeaconSource: {"file": a_path},
        NodeEntry: {
            "name": rules.a_node_name,
            "gpus": _gpu_count,
            "flavor": rules.not_empty,
            "domain": rules.not_empty,
        },
    },
    {
        Machine: (
            _users_have_names_and_owners,
            _admins_have_names,
            _nodes_are_named_apart,
            _gpus_are_said_once,
            _nodes_have_a_flavor,
        ),
        Notify: (commands_are_commands,),
        BeaconSource: (commands_are_commands, a_beacon_has_one_source),
    },
)


def _judge_flags(machine: Machine) -> None:
    """The command line's numbers obey the file's rules."""
    findings = Findings("", "the command line")
    raw = {"gpus": machine.gpus, "metricsPort": machine.metrics_port}
    _MACHINE.read(Machine, raw, ((), 0), findings)
    findings.settle()


# --- nodes -------------------------------------------------------------------------------------------------------------


def declared_nodes(settings: Settings) -> tuple[Node, ...]:
    """The nodes that the settings name, with all labels a node needs; none where the driver is to be asked."""
    machine = settings.machine
    entries = machine.nodes
    if not entries and machine.gpus is not None:
        entries = (NodeEntry(name=PLACE, gpus=machine.gpus),)
    return tuple(node_of(entry, machine.flavor or "GPU", settings.policy.labels) for entry in entries)


def node_of(entry: NodeEntry, flavor: str, keys: LabelKeys) -> Node:
    """A declared node as the engine knows nodes; one that names no fabric domain is one of its own."""
    labels = {
        **entry.labels,
        keys.region: entry.region or PLACE,
        keys.cluster: entry.cluster or PLACE,
        keys.domain: entry.domain or entry.name,
        keys.flavor: entry.flavor or flavor,
    }
    if entry.rack is not None:
        labels[keys.rack] = entry.rack
    return Node(name=entry.name, labels=labels, gpus=entry.gpus)
