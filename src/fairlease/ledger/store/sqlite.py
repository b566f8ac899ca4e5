"""The ledger of one machine: a SQLite file that a crash cannot tear and that no program can rewrite unnoticed.

An append is one transaction: the entry and every index row that follows from it, or nothing. It returns when the disk
has it. Entries lie as the exact bytes that were hashed. Readers may come at any time, from any process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self

from fairlease.ledger.state.events import AnyEvent, decode
from fairlease.ledger.store.anchor import Anchor
from fairlease.ledger.store.chain import Row, seal
from fairlease.ledger.store.protocol import (
    GENESIS,
    Conflict,
    Ending,
    Entry,
    Head,
    LeaseQuery,
    LeaseRow,
    Moment,
    Snapshot,
)
from fairlease.ledger.store.sqlite_file import (
    CannotOpen,
    Damaged,
    LedgerLost,
    Lock,
    open_reader,
    open_writer,
    opening,
    reading,
    writing,
)
from fairlease.ledger.store.sqlite_index import IndexWriter
from fairlease.ledger.store.sqlite_query import IndexReader
from fairlease.model.lease import Lease
from fairlease.model.record import Key

SNAPSHOTS_KEPT = 2
"""The newest snapshot, and the one to fall back on where the newest proves damaged."""

_CHUNK = 256
"""Entries that are read at once: they still lie in the processor's cache when it is their turn."""

_LAST = (1 << 63) - 1
"""No entry has a higher number than SQLite can hold."""

_ROWS = "SELECT seq, at, prev, hash, body FROM entry WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
_WITH = "SELECT seq, at, prev, hash, body FROM entry WHERE instr(body, ?) AND instr(body, ?) ORDER BY seq DESC LIMIT ?"
_HEAD = "SELECT seq, lower(hex(hash)), at FROM entry ORDER BY seq DESC LIMIT 1"
_OPEN = LeaseQuery(open=True)
_PUT_ENTRY = "INSERT INTO entry (seq, at, prev, hash, body) VALUES (?, ?, ?, ?, ?)"
_PUT_SNAPSHOT = "INSERT OR REPLACE INTO snapshot (seq, hash, at, digest, body) VALUES (?, ?, ?, ?, ?)"
_CUT_SNAPSHOTS = "DELETE FROM snapshot WHERE seq NOT IN (SELECT seq FROM snapshot ORDER BY seq DESC LIMIT ?)"
_SNAPSHOTS = "SELECT seq, lower(hex(hash)), at, lower(hex(digest)), body FROM snapshot ORDER BY seq DESC"


class SqliteStore:
    """The `Store` of one machine. Use it from the thread that opened it, and close it."""

    def __init__(self, path: str | Path, *, readonly: bool = False, restored: bool = False) -> None:
        """`restored`: take the file as it is, though it may be older than what was written here."""
        self.path = Path(path)
        self.damage: str | None = None
        self._lock = None if readonly else Lock(self.path)
        try:
            self._anchor = Anchor(self.path)
            noted = None if readonly or restored else self._noted()
            self._db = open_reader(self.path) if readonly else open_writer(self.path, noted)
            with opening(self.path):
                self._reader = IndexReader(self._db)
                self._index = None if readonly else IndexWriter(self._db)
                self._head = None if readonly else self._stored_head()
        except CannotOpen:
            if self._lock is not None:
                self._lock.release()
            raise
        if self._head is not None:
            self._anchor.note(self._head)

    def _noted(self) -> Head | None:
        try:
            return self._anchor.noted()
        except (ValueError, OSError) as error:
            raise LedgerLost(f"it cannot be told whether {self.path} is whole: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file, and of the lock if this was the writer."""
        self._db.close()
        self._anchor.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def head(self) -> Head:
        """The last entry; a reader looks it up, because a writer may be at work."""
        if self._head is not None:
            return self._head
        with self._guarded(reading):
            return self._stored_head()

    def _stored_head(self) -> Head:
        row = self._db.execute(_HEAD).fetchone()
        return Head() if row is None else Head(seq=row[0], hash=row[1], at=row[2])

    def append(self, expected_seq: int, at: int, events: tuple[AnyEvent, ...]) -> Entry:
        """Make `events` the entry after `expected_seq`, durably and atomically; raises `Conflict` on another head."""
        head = self._head
        if head is None or self._index is None:
            raise PermissionError(f"{self.path} was opened for reading only")
        if expected_seq != head.seq:
            raise Conflict(f"the ledger's head is entry {head.seq}, not {expected_seq}")
        entry, body = seal(head, at, events)
        with self._guarded(writing):
            self._check_undamaged()
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._put(entry, body)
                self._index.add(entry)
                self._db.execute("COMMIT")
            except BaseException:
                self._undo()
                raise
        self._head = Head(seq=entry.seq, hash=entry.hash, at=at)
        self._anchor.note(self._head)
        return entry

    @contextmanager
    def _guarded(self, how: Callable[[Path], AbstractContextManager[None]]) -> Iterator[None]:
        """Note the first sign of damage: nothing is written after it."""
        try:
            with how(self.path):
                yield
        except Damaged as error:
            self.damage = str(error)
            raise

    def _check_undamaged(self) -> None:
        if self.damage is not None:
            raise Damaged(self.damage)

    def _put(self, entry: Entry, body: bytes) -> None:
        row: Row = (entry.seq, entry.at, bytes.fromhex(entry.prev), bytes.fromhex(entry.hash), body)
        try:
            self._db.execute(_PUT_ENTRY, row)
        except sqlite3.IntegrityError as error:
            raise Conflict(f"another writer got past the lock and wrote entry {entry.seq}") from error

    def _undo(self) -> None:
        """Leave nothing half-written, and believe nothing that may have been rolled back."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        assert self._index is not None, "only a writer begins a transaction"
        self._index.forget()
        self._head = self._stored_head()

    def rows(self, after: int = 0, upto: int = _LAST) -> Iterator[Row]:
        """The entries behind number `after` as they lie on the disk, for an audit: read in chunks, not decoded."""
        with self._guarded(reading):
            while rows := self._db.execute(_ROWS, (after, upto, _CHUNK)).fetchall():
                yield from rows
                after = rows[-1][0]

    @contextmanager
    def unchanging(self) -> Iterator[sqlite3.Connection]:
        """The file as of one moment, for an audit of all its tables: what is written meanwhile is not seen."""
        with self._guarded(writing):
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                if self._db.in_transaction:  # SQLite itself ends it where it meets damage
                    self._db.execute("ROLLBACK")

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """The entries behind number `after`, in order, each decoded when it is its turn."""
        with self._guarded(reading):
            for seq, at, prev, sealed, body in self.rows(after):
                yield Entry(seq=seq, at=at, prev=prev.hex(), hash=sealed.hex(), events=decode(body))

    def entries_with(self, kind: type[AnyEvent], limit: int, name: str = "") -> list[Entry]:
        """The last `limit` entries that hold an event of this kind (and this text), in order.

        There is no index of them: they are few, and asked for rarely. The bytes of every entry are looked through, none is decoded
        that does not hold it; that is some hundred megabytes in a second, so ask from beside whatever must not wait.
        """
        wanted = f'"event":"{kind.__name__}"'.encode(), name.encode(), limit
        with self._guarded(reading):
            rows = self._db.execute(_WITH, wanted).fetchall()
            return [
                Entry(seq=seq, at=at, prev=prev.hex(), hash=sealed.hex(), events=decode(body))
                for seq, at, prev, sealed, body in reversed(rows)
            ]

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, and the one before it."""
        if not self._in_chain(snapshot):
            raise ValueError(f"the snapshot of entry {snapshot.seq} does not belong to this ledger")
        digests = bytes.fromhex(snapshot.hash), bytes.fromhex(snapshot.digest)
        with self._guarded(writing):
            self._check_undamaged()
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute(_PUT_SNAPSHOT, (snapshot.seq, digests[0], snapshot.at, digests[1], snapshot.body))
                self._db.execute(_CUT_SNAPSHOTS, (SNAPSHOTS_KEPT,))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot whose digest is right and whose entry is in the chain, or None."""
        with self._guarded(reading):
            for seq, sealed, at, digest, body in self._db.execute(_SNAPSHOTS):
                snapshot = Snapshot(seq=seq, hash=sealed, at=at, digest=digest, body=body)
                if sha256(body).hexdigest() == digest and self._in_chain(snapshot):
                    return snapshot
        return None

    def _in_chain(self, snapshot: Snapshot) -> bool:
        if snapshot.seq == 0:
            return snapshot.hash == GENESIS
        row = self._db.execute("SELECT lower(hex(hash)), at FROM entry WHERE seq = ?", (snapshot.seq,)).fetchone()
        return row is not None and row == (snapshot.hash, snapshot.at)

    def story(self, run: Key) -> list[Moment]:
        """Every event that names a run, in order."""
        with self._guarded(reading):
            return self._reader.story(run)

    def leases(self, query: LeaseQuery) -> Iterator[LeaseRow]:
        """Leases in opening order, streamed."""
        with self._guarded(reading):
            yield from self._reader.leases(query)

    def check_open(self, known: Iterable[Lease]) -> None:
        """Raise `Damaged` unless the index lists these leases as open, and no other: the next closures are written by it."""
        index = {(row.lease.run, row.lease.name, row.lease.node, row.lease.slots) for row in self.leases(_OPEN)}
        state = {(lease.run, lease.name, lease.node, lease.slots) for lease in known}
        if index != state:
            run, name, *_ = min(index ^ state)
            raise Damaged(
                f"{self.path} is damaged: lease {name} of {run} is open in the entries or in the index, not in both"
            )

    def endings(self, limit: int | None = None) -> list[Ending]:
        """Runs that ended, the latest first."""
        with self._guarded(reading):
            return self._reader.endings(limit)
