"""Names of runs that ended: for how long each is taken, and whether its run completed, for those who follow it.

A name is kept for `nameRetention`, and a tenth of that longer at the most; then it may be used again. Of each name a digest of 64
bits is kept: the latest in a dictionary, with the time of each end, the others in sorted arrays, one to a tenth of the retention.
So a million runs a month take eight megabytes, and nothing grows with history.

Each time that names are forgotten begins a new *life* of all names. A run's leases and reservations are numbered from its life on,
so those of two runs of one name never have the same name: between them lies a time at which the first was forgotten.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fairlease.ledger.state.undo import UndoLog
    from fairlease.model.record import Key

NUMBERS_PER_LIFE = 1_000_000
"""No attempt opens as many leases, and no run moves its reservation as often."""

_BLOCKS = 10
"""Blocks to one retention."""

_BLOCK_MAX = 1 << 18
"""Names in a block: to sort more at once would hold up a decision."""


class NameBlock(NamedTuple):
    """Names of which none ended after `until`: their digests in order, the last bit of which says whether the run completed."""

    until: int
    digests: array[int]

    def completed(self, digest: int) -> bool | None:
        """Whether the run of a name completed; None where the name is not here."""
        place = bisect_left(self.digests, digest)
        found = place < len(self.digests) and self.digests[place] & ~1 == digest
        return bool(self.digests[place] & 1) if found else None


KeptNames = tuple[int, int, tuple[tuple[int, bytes], ...], bytes, bytes]
"""As a snapshot holds them: the life, when the latest block began, the others, and the latest: digests and times."""


class EndedNames:
    """Runs that ended lately. `life` is how often names were forgotten."""

    def __init__(self) -> None:
        self.life = 0
        self._began = 0
        self._blocks: tuple[NameBlock, ...] = ()
        self._latest: dict[int, tuple[bool, int]] = {}

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._latest) + sum(len(block.digests) for block in self._blocks)

    def __contains__(self, run: Key) -> bool:
        """Whether a name is kept."""
        return self.completed(run) is not None

    def completed(self, run: Key) -> bool | None:
        """Whether a run completed, or failed; None where it lives, never was, or is forgotten."""
        return self._find(_digest(run))[0]

    def taken(self, run: Key, now: int, retention: int) -> bool:
        """Whether a name must not be used again yet: never in the instant in which its run ended."""
        completed, until = self._find(_digest(run))
        return completed is not None and now < until + max(1, retention)

    def _find(self, digest: int) -> tuple[bool | None, int]:
        found = self._latest.get(digest)
        if found is not None:
            return found
        for block in reversed(self._blocks):
            completed = block.completed(digest)
            if completed is not None:
                return completed, block.until
        return None, 0

    def add(self, undo: UndoLog, run: Key, now: int, *, completed: bool) -> None:
        """A run ended."""
        if not self._latest:
            undo.later(setattr, self, "_began", self._began)
            self._began = now
        undo.put(self._latest, _digest(run), (completed, now))
        if len(self._latest) >= _BLOCK_MAX:
            self._seal(undo)

    def forget(self, undo: UndoLog, now: int, retention: int, *, used: Key | None = None) -> None:
        """Forget what ended a retention ago, if there is a block of it; and a name, for good, that is used again."""
        if self._latest and now - self._began >= max(1, retention // _BLOCKS):
            self._seal(undo)
        digest = None if used is None else _digest(used)
        again, since = digest in self._latest, now - max(1, retention)
        if not again and (not self._blocks or self._blocks[0].until > since):
            return
        undo.later(_put_back, self, self.life, self._blocks)
        self.life, self._blocks = self.life + 1, tuple(block for block in self._blocks if block.until > since)
        if digest in self._latest:
            undo.pop(self._latest, digest)

    def _seal(self, undo: UndoLog) -> None:
        """Put the latest names into a block."""
        undo.later(setattr, self, "_latest", self._latest)
        undo.later(setattr, self, "_blocks", self._blocks)
        until = max(at for _, at in self._latest.values())
        digests = sorted(digest | completed for digest, (completed, _) in self._latest.items())
        self._blocks, self._latest = (*self._blocks, NameBlock(until, array("Q", digests))), {}

    def freeze(self) -> KeptNames:
        """For a snapshot."""
        latest = sorted((at, digest | completed) for digest, (completed, at) in self._latest.items())
        times, digests = array("q", [at for at, _ in latest]), array("Q", [digest for _, digest in latest])
        blocks = tuple((block.until, block.digests.tobytes()) for block in self._blocks)
        return self.life, self._began, blocks, digests.tobytes(), times.tobytes()

    def thaw(self, kept: KeptNames) -> None:
        """From a snapshot."""
        self.life, self._began, blocks, latest, times = kept
        self._blocks = tuple(NameBlock(until, array("Q", digests)) for until, digests in blocks)
        ends = zip(array("Q", latest), array("q", times), strict=True)
        self._latest = {digest & ~1: (bool(digest & 1), at) for digest, at in ends}


def _put_back(names: EndedNames, life: int, blocks: tuple[NameBlock, ...]) -> None:
    names.life, names._blocks = life, blocks  # noqa: SLF001 - the inverse of what the class itself did


def _digest(run: Key) -> int:
    """63 bits of a name's hash, and a last bit that is 0."""
    return int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "big") & ~1
