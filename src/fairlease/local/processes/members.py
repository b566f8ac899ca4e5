"""Who is in a gang: one small file for each attempt, at $FAIRLEASE_MEMBERS, replaced whole whenever a rank comes, goes or moves."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fairlease.local.processes.environment import LOOPBACK, attempt_id, host_of, pod_id
from fairlease.model.lease import Lease
from fairlease.model.record import short
from fairlease.runtime.processes import shim
from fairlease.runtime.processes.members import Gang, Meeting, Member

ENDING = ".json"


class Members:
    """The files of all attempts that have pods."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "members"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o711)
        self._there = {path.name for path in self._folder.iterdir()}
        self._told: dict[str, tuple[list[int], Gang]] = {}

    def path_of(self, lease: Lease) -> Path:
        """Where the members of a lease's attempt are written."""
        return self._folder / f"{attempt_id(lease)}{ENDING}"

    def tell(self, gang: list[Lease], port: int) -> frozenset[str]:
        """Write who is in, where that changed; give the pods that were in before, and so should look again.

        A daemon that comes back tells them once more: the one before it may have died between the file and the signal.
        """
        path, serials = self.path_of(gang[0]), [lease.serial for lease in gang]
        known, told = self._told.get(path.name, ([], None))
        if serials == known:
            return frozenset()
        standing = self._read(path) if told is None else told
        now = _gang(gang, port).after(standing)
        if now != standing:
            self._publish(path, now)
        self._told[path.name] = serials, now
        return frozenset() if standing is None else standing.pods & now.pods

    def keep(self, paths: set[str]) -> None:
        """Remove the files of attempts that have neither leases nor processes any more."""
        for name in self._there - {Path(path).name for path in paths}:
            (self._folder / name).unlink(missing_ok=True)
            self._there.discard(name)
            self._told.pop(name, None)

    def _read(self, path: Path) -> Gang | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Gang)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _publish(self, path: Path, gang: Gang) -> None:
        """There whole or not at all. Everybody may read it: it holds nothing that `leases` would not tell."""
        self._there |= {path.name, f"{path.name}.new"}
        new = path.with_name(f"{path.name}.new")
        with new.open("wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(msgspec.json.encode(gang))
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        self._there.discard(new.name)
        shim.sync_dir(str(self._folder))


def _gang(leases: list[Lease], port: int) -> Gang:
    first = leases[0]
    return Gang(
        run=short(first.run),
        attempt=first.attempt,
        generation=0,
        world_size=len(leases),
        master=Meeting(address=LOOPBACK, port=port),
        members=tuple(
            Member(rank=lease.rank, host=host_of(lease), node=lease.node, address=LOOPBACK, pod=pod_id(lease))
            for lease in sorted(leases, key=lambda lease: lease.rank)
        ),
    )
