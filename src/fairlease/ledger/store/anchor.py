"""The anchor: the number and hash of the last entry that was acknowledged, in a file of its own beside the ledger.

A ledger cannot tell by itself that its end is missing: that its file was moved away, replaced by an older copy, or lost the `-wal`
file in which SQLite keeps its latest pages. The anchor can. It is written after the commit of each entry, so it may lag behind the
ledger (by what a power cut took), and never leads it: a ledger that ends before its anchor is not the one that was written.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fairlease.ledger.store.protocol import Head

SYNC_EVERY = 256
"""Entries after which the anchor is forced to the disk. A sync costs as much as a commit; in between, the kernel writes it soon."""

_FORMAT = "{seq:020d} {hash}\n"
_HASH_CHARS = 64


class Anchor:
    """The anchor of one ledger, for its one writer."""

    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_name(ledger.name + ".anchor")
        self._file: int | None = None
        self._unsynced = 0

    def noted(self) -> Head | None:
        """What was noted last; None where nothing was. Raises ValueError where the file says nothing that makes sense."""
        try:
            text = self.path.read_bytes().decode("ascii")
        except FileNotFoundError:
            return None
        seq, _, sealed = text.strip().partition(" ")
        if not text:
            return None  # made, and not written before the power went
        if not (seq.isdecimal() and len(sealed) == _HASH_CHARS and bytes.fromhex(sealed)):
            raise ValueError(f"{self.path} names no entry")
        return Head(seq=int(seq), hash=sealed)

    def note(self, head: Head) -> None:
        """Remember the last entry. What cannot be written is noted with the next entry: the commit stands."""
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._unsynced = SYNC_EVERY
            os.pwrite(self._file, _FORMAT.format(seq=head.seq, hash=head.hash).encode("ascii"), 0)
            self._unsynced += 1
            if self._unsynced >= SYNC_EVERY:
                self._sync()

    def close(self) -> None:
        """Have it on the disk, and let go of it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._sync()
            os.close(self._file)
            self._file = None

    def _sync(self) -> None:
        assert self._file is not None, "only what is open is synced"
        os.fdatasync(self._file)
        self._unsynced = 0
