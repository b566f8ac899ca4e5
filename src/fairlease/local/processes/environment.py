"""What each rank of a gang finds in its environment: who it is, where the others meet, which GPUs are its own.

Apart from `pick_port` and `user_of`, which ask the machine, all is pure: a daemon that comes back computes the same again.
"""

from __future__ import annotations

import hashlib
import pwd
import socket
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import quote

from fairlease.ledger.state.names import NUMBERS_PER_LIFE
from fairlease.model.amount import format_instant
from fairlease.model.lease import Lease
from fairlease.model.record import Key, short, split
from fairlease.report.notices import Notice
from fairlease.runtime.processes.login import User
from fairlease.runtime.processes.rendezvous import identity, is_ours, places

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below the ports that Linux gives to outgoing connections, one of which might take the gang's before it listens."""

ID_CHARS_MAX = 200
"""A file name has 255 bytes; the log's adds an ending."""


def user_of(uid: int) -> User:
    """The account behind a uid; KeyError where there is none."""
    entry = pwd.getpwuid(uid)
    return User(uid=entry.pw_uid, gid=entry.pw_gid, name=entry.pw_name, home=entry.pw_dir, shell=entry.pw_shell)


def pod_id(lease: Lease) -> str:
    """The name of a lease's pod: one directory name, never used twice, however ranks swap, shrink and grow again.

    `+` cannot stand in a quoted part, so that two keys never meet in one name; one too long for a directory is told
    apart from its likes by its digest.
    """
    return _file_name(*split(lease.run), lease.attempt, lease.rank, lease.serial)


def log_id(lease: Lease) -> str:
    """The name of a rank's log: it goes on where the rank does, whichever pod the rank is."""
    return _file_name(*split(lease.run), lease.attempt, lease.rank, *_life(lease))


def _life(lease: Lease) -> tuple[int, ...]:
    """What tells a run from an earlier one of its name: nothing, as long as no name was forgotten (`ledger.state.names`)."""
    life = int(lease.name.rpartition("-")[2]) // NUMBERS_PER_LIFE
    return (life,) if life else ()


def attempt_id(lease: Lease) -> str:
    """The name of an attempt."""
    return _file_name(*split(lease.run), lease.attempt, *_life(lease))


def host_of(lease: Lease) -> str:
    """What a rank is called among its gang, wherever it lies: a pod's hostname elsewhere, a name of its own on one machine."""
    return f"{split(lease.run)[1]}-{lease.attempt}-{lease.rank}"


def _file_name(*parts: object) -> str:
    name = "+".join(quote(str(part), safe="") for part in parts)
    return name if len(name) <= ID_CHARS_MAX else f"{name[:120]}+{hashlib.sha256(name.encode()).hexdigest()}"


def rendezvous(
    leases: Sequence[Lease],
    *,
    port: int,
    base: Mapping[str, str],
    env: Mapping[str, str],
    members: str,
    devices: Mapping[str, Mapping[int, str]] | None = None,
) -> dict[str, dict[str, str]]:
    """The environment of every pod of one attempt, by pod id, from all of its open leases (spares wait, and get none).

    `devices` has the GPU uuids of a node by slot, where they are known; `members` is the file that tells who is in the
    gang as it changes. Ranks are the ledger's: a swap keeps them, and two leases with one rank would be two copies of it.
    """
    own = {name: value for name, value in env.items() if not is_ours(name)}
    meeting = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    place_of = places(leases)
    found = {}
    for lease in leases:
        place = place_of.get(lease.name)
        if place is not None:
            gpus = visible(lease.slots, (devices or {}).get(lease.node, {}))
            pod = pod_id(lease)
            who = identity(lease, pod) | {"FAIRLEASE_HOST": host_of(lease), "FAIRLEASE_MEMBERS": members}
            found[pod] = {**base, **own, **meeting, **place, **gpus, **who}
    return found


def visible(slots: Sequence[int], uuids: Mapping[int, str]) -> dict[str, str]:
    """Which GPUs CUDA shows. A uuid means the same GPU whatever the order; numbers mean it only in the bus's order."""
    known = all(slot in uuids for slot in slots)  # CUDA takes numbers or uuids, not both
    names = [uuids[slot] if known else str(slot) for slot in slots]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def notice_environment(notice: Notice, run: Key) -> dict[str, str]:
    """What the operator's command finds in its environment of a notice; the whole of it stands on its standard input."""
    told = {"FAIRLEASE_NOTICE": notice.kind.value, "FAIRLEASE_NOTICE_KEY": notice.key}
    if run:
        told["FAIRLEASE_RUN"] = short(run)
    if notice.due is not None:
        told["FAIRLEASE_DUE"] = format_instant(notice.due)
    return told


def pick_port(seed: str, taken: Collection[int] = ()) -> int:
    """A free port for an attempt's MASTER_PORT: the same for the same seed (run and attempt), unless it is taken.

    Once the attempt's first process listens, its port is taken: who prepares more of its pods later (a swap, growth, a
    crash in between) asks the pods that are there (`Pods.spec_of`), not this function.
    """
    first = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8])
    for step in range(len(PORTS)):
        port = PORTS[(first + step) % len(PORTS)]
        if port not in taken and _is_free(port):
            return port
    raise OSError("every port for a rendezvous is taken")


def _is_free(port: int) -> bool:
    """Whether a rank could listen there, as it does itself: on all addresses, past connections that linger."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
