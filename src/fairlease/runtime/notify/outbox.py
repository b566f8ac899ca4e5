"""Outbox: every notice that was raised, and what became of its deliveries, in a small database beside the ledger.

It is no part of the ledger: nothing is decided by it, and a lost one costs a notice told twice. It remembers three things over any
crash. Up to which entry of the ledger notices were raised (so that one that was appended just before a crash is told by the next
daemon), the keys that were told (so that nothing is told twice), and deliveries that are not done yet (so that they are tried
again). Notices and the mark of their entry are written in one transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairlease.model.amount import DAY
from fairlease.report.notices import Notice, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.model.record import Key

KEPT_MS = 400 * DAY
"""How long a key is remembered: longer than any budget's year."""
KEPT_MAX = 20_000
"""Notices that are remembered at the most, besides those that hold for long; deliveries of older ones are given up."""
LASTING = tuple(
    f"{kind.value}/*" for kind in (NoticeKind.HOURS_LOW, NoticeKind.WINDOW_ENDING, NoticeKind.LENDING_CAP_NEAR)
)
"""Keys of what is raised again and again for as long as it holds: forgotten too soon, it would be told again."""
PRUNE_EVERY = 1_000
LOCKED_S = 0.1
"""How long somebody who looks at the file may hold us up: the loop waits meanwhile."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS mark (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notice (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, at INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS delivery (
    number INTEGER PRIMARY KEY, notice INTEGER NOT NULL, channel TEXT NOT NULL, run TEXT NOT NULL, state TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, due INTEGER NOT NULL, error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS delivery_due ON delivery (due) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS delivery_of ON delivery (notice);
"""

_encode, _decoder = msgspec.json.encode, msgspec.json.Decoder(Notice)


class Address(NamedTuple):
    """Where one notice is to go: over which channel, and to which run, where it is for one."""

    channel: str
    run: str = ""


class Delivery(NamedTuple):
    """One notice on its way."""

    number: int
    address: Address
    tries: int
    due: int
    notice: Notice


class Sums(NamedTuple):
    """How deliveries stand."""

    pending: int
    failed: int
    error: str


class Outbox:
    """The database. Its methods raise sqlite3.Error where the disk does not take or give."""

    def __init__(self, path: Path | str) -> None:
        """A file, or `:memory:` where the backend remembers by other means."""
        self._path = path
        self._db = self._open()
        self._since_prune = 0

    def _open(self) -> sqlite3.Connection:
        """A file that is no database is put aside: what it knew is lost, which costs notices told twice."""
        with contextlib.suppress(sqlite3.DatabaseError):
            return self._connect()
        assert isinstance(self._path, Path), "what is in memory is sound"
        self._path.replace(self._path.with_name(f"{self._path.name}.broken"))
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, timeout=LOCKED_S)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def mark(self) -> int | None:
        """The last entry from which notices were raised; None where that never happened."""
        row = self._db.execute("SELECT value FROM mark WHERE name = 'entry'").fetchone()
        return None if row is None else int(row[0])

    def put(self, raised: Iterable[tuple[Notice, list[Address]]], now: int, mark: int | None = None) -> list[Notice]:
        """Keep notices that were not told before, each with where it is to go; gives those."""
        fresh = []
        with self._transaction():
            for notice, addresses in raised:
                row = (notice.key, notice.at, _encode(notice))
                done = self._db.execute("INSERT OR IGNORE INTO notice (key, at, body) VALUES (?, ?, ?)", row)
                if done.rowcount == 0:
                    continue
                fresh.append(notice)
                self._db.executemany(
                    "INSERT INTO delivery (notice, channel, run, state, due) VALUES (?, ?, ?, 'pending', ?)",
                    [(done.lastrowid, address.channel, address.run, now) for address in addresses],
                )
            if mark is not None:
                self._db.execute("INSERT OR REPLACE INTO mark VALUES ('entry', ?)", (mark,))
        self._since_prune += len(fresh)
        if self._since_prune >= PRUNE_EVERY:
            self._since_prune = 0
            self._prune(now)
        return fresh

    def told(self, key: str) -> bool:
        """Whether a notice with this key was raised."""
        return self._db.execute("SELECT 1 FROM notice WHERE key = ?", (key,)).fetchone() is not None

    def pending(self, channel: str, limit: int) -> list[Delivery]:
        """Deliveries over one channel that are not done, the one due first at the head."""
        rows = self._db.execute(
            "SELECT d.number, d.channel, d.run, d.tries, d.due, n.body FROM delivery d JOIN notice n ON n.number = d.notice"
            " WHERE d.state = 'pending' AND d.channel = ? ORDER BY d.due, d.number LIMIT ?",
            (channel, limit),
        )
        return [Delivery(row[0], Address(row[1], row[2]), row[3], row[4], _decoder.decode(row[5])) for row in rows]

    def settle(self, delivery: Delivery, state: str, error: str = "", at: int = 0) -> None:
        """A delivery is over, one way or another, since `at`."""
        self._db.execute(
            "UPDATE delivery SET state = ?, error = ?, due = MAX(due, ?), tries = tries + 1 WHERE number = ?",
            (state, error, at, delivery.number),
        )

    def postpone(self, delivery: Delivery, due: int, error: str) -> None:
        """A delivery failed and is tried again later."""
        self._db.execute(
            "UPDATE delivery SET due = ?, error = ?, tries = tries + 1 WHERE number = ?", (due, error, delivery.number)
        )

    def sums(self, since: int) -> Sums:
        """How deliveries stand, of those given up the notices raised since then, and what went wrong last among them."""
        (pending,) = self._db.execute("SELECT COUNT(*) FROM delivery WHERE state = 'pending'").fetchone()
        given_up = "FROM delivery d JOIN notice n ON n.number = d.notice WHERE d.state = 'failed' AND n.at >= ?"
        (failed,) = self._db.execute(f"SELECT COUNT(*) {given_up}", (since,)).fetchone()
        row = self._db.execute(
            "SELECT error FROM delivery WHERE state = 'pending' AND error != '' ORDER BY due LIMIT 1"
        ).fetchone()
        if row is None:
            latest = f"SELECT d.error {given_up} ORDER BY d.due DESC, d.number DESC LIMIT 1"
            row = self._db.execute(latest, (since,)).fetchone()
        return Sums(pending, failed, "" if row is None else row[0])

    def last(self, limit: int, run: Key | None = None) -> list[tuple[Notice, list[tuple[str, str, str]]]]:
        """The latest notices, the latest first, each with (channel, run, state) of its deliveries."""
        found: list[tuple[Notice, list[tuple[str, str, str]]]] = []
        named = "" if run is None else _encode(run).decode()
        rows = self._db.execute(
            "SELECT number, body FROM notice WHERE instr(CAST(body AS TEXT), ?) ORDER BY number DESC", (named,)
        )
        for number, body in rows:
            if len(found) >= limit:
                break
            notice = _decoder.decode(body)
            if run is None or run in (*notice.concerns, notice.claim):
                sent = self._db.execute("SELECT channel, run, state FROM delivery WHERE notice = ?", (number,))
                found.append((notice, [(row[0], row[1], row[2]) for row in sent]))
        return found

    def _prune(self, now: int) -> None:
        with self._transaction():
            row = self._db.execute(
                "SELECT number FROM notice ORDER BY number DESC LIMIT 1 OFFSET ?", (KEPT_MAX,)
            ).fetchone()
            first = 0 if row is None else row[0]
            brief = " AND ".join(["key NOT GLOB ?"] * len(LASTING))
            self._db.execute(
                f"DELETE FROM notice WHERE at < ? OR (number <= ? AND {brief})",  # noqa: S608 - question marks
                (now - KEPT_MS, first, *LASTING),
            )
            self._db.execute("DELETE FROM delivery WHERE notice NOT IN (SELECT number FROM notice)")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
