"""The ledger's file: its tables, its format number, and who may write to it.

Record and index. `entry` is the ledger; `lease_opened`, `lease_closed`, `story`, `ended`, `name` and `payer` follow
from it and are written with it, so that questions about the past need no replay. Triggers forbid to change or delete
a row of any of them, with whatever program the file is opened. Two tables may shrink, because nothing is proved by
them: `snapshot` keeps the last two, and `lease_open` lists the leases without a row in `lease_closed`.

One writer. SQLite lets writers take turns; a ledger must not: a second one would decide on a state it did not write. So
the writer holds a lock on a file beside the database for as long as it lives, and the kernel frees it when it dies.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec

from fairlease.ledger.store.chain import verify
from fairlease.ledger.store.protocol import Head

FORMAT = 1
"""The number of the format that is written; a file with a higher one was written by a newer Fairlease."""

APPLICATION_ID = 0x464C5331
"""`FLS1`: by which `file` and we recognise a ledger."""

RECORD = {
    "entry": "seq = NEW.seq",
    "name": "id = NEW.id OR text = NEW.text",
    "payer": "id = NEW.id",
    "lease_opened": "serial = NEW.serial",
    "lease_closed": "serial = NEW.serial",
    "story": "run = NEW.run AND seq = NEW.seq",
    "ended": "id = NEW.id",
}
"""The tables that only ever grow, and what would make a new row the replacement of an old one."""

_TABLES = """
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL, body BLOB NOT NULL
) STRICT;
-- Runs, nodes and owners, each spelled once.
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE payer (
    id INTEGER PRIMARY KEY, budget TEXT NOT NULL, envelope TEXT NOT NULL, owner TEXT NOT NULL, fund TEXT NOT NULL,
    UNIQUE (budget, envelope, owner, fund)
) STRICT;
-- `serial` is the order of opening, and so of `start`; `slots` is one byte per slot below 128, LEB128 above.
CREATE TABLE lease_opened (
    serial INTEGER PRIMARY KEY, run INTEGER NOT NULL, owner INTEGER NOT NULL, opportunistic INTEGER NOT NULL,
    attempt INTEGER NOT NULL, number INTEGER NOT NULL, grp INTEGER NOT NULL, rank INTEGER NOT NULL,
    node INTEGER NOT NULL, gpus INTEGER NOT NULL, slots BLOB NOT NULL, role TEXT NOT NULL, start INTEGER NOT NULL,
    payer INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX lease_by_node ON lease_opened (node);
CREATE INDEX lease_by_owner ON lease_opened (owner);
CREATE INDEX lease_by_payer ON lease_opened (payer);
CREATE TABLE lease_closed (serial INTEGER PRIMARY KEY, at INTEGER NOT NULL, closure TEXT NOT NULL) STRICT;
CREATE INDEX lease_by_end ON lease_closed (at);
CREATE TABLE lease_open (serial INTEGER PRIMARY KEY) STRICT;
-- Which entries name a run; where one opened leases of it, these lie from serial `first` to `last`.
CREATE TABLE story (
    run INTEGER NOT NULL, seq INTEGER NOT NULL, first INTEGER, last INTEGER, PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE ended (id INTEGER PRIMARY KEY, run INTEGER NOT NULL, seq INTEGER NOT NULL) STRICT;
CREATE TABLE snapshot (
    seq INTEGER PRIMARY KEY, hash BLOB NOT NULL, at INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE VIEW lease AS
    SELECT o.serial, r.text AS run, w.text AS owner, o.attempt, o.number, o.grp, o.rank, n.text AS node,
           o.gpus, hex(o.slots) AS slots, o.role, o.start, p.budget, p.envelope, p.owner AS payer, p.fund,
           o.reason, o.opportunistic, c.at AS end, c.closure
    FROM lease_opened o JOIN name r ON r.id = o.run JOIN name w ON w.id = o.owner JOIN name n ON n.id = o.node
         JOIN payer p ON p.id = o.payer LEFT JOIN lease_closed c ON c.serial = o.serial;
CREATE TRIGGER entry_follows BEFORE INSERT ON entry
    WHEN NEW.seq > 1 AND NEW.prev IS NOT (SELECT hash FROM entry WHERE seq = NEW.seq - 1)
    BEGIN SELECT RAISE(ABORT, 'an entry follows the one before it'); END;
"""

_GUARDS = """
CREATE TRIGGER {table}_kept BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, '{table} is never rewritten'); END;
CREATE TRIGGER {table}_stays BEFORE DELETE ON {table} BEGIN SELECT RAISE(ABORT, '{table} is never deleted from'); END;
CREATE TRIGGER {table}_once BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})
    BEGIN SELECT RAISE(ABORT, '{table} is never rewritten'); END;
"""


CHECKED_BYTES = 32 << 20
"""Files up to this size are checked whole when they are opened for writing: a fraction of a second."""

CHECKED_ENTRIES = 10_000
"""The last entries, whose chain is checked whenever a file is opened for writing: more than a start replays behind a snapshot."""

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF
"""SQLite's extended result codes hold the primary one in their lowest byte."""


class CannotOpen(Exception):  # noqa: N818 - it says what happened, as `Conflict` does
    """A ledger's file cannot be used: it is missing, held by another writer, of a newer format, or no ledger at all."""


class LedgerLost(CannotOpen):
    """The ledger that was written here is not here: its file is gone, an older copy, or another ledger's."""


class Damaged(CannotOpen):
    """The file's bytes are not as they were written. Nothing more may be written to it."""


class Lock:
    """The writer's lock: held while the file is open, whatever becomes of the process; the file names its holder."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CannotOpen(f"{database} cannot be written: {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise CannotOpen(f"{database} is being written by process {holder}; a ledger has one writer") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Let another process write. The file stays: deleting it would let two processes lock two files of one name."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def open_writer(path: Path, noted: Head | None) -> sqlite3.Connection:
    """The connection of the one writer, to a file that is made if it is not there. The lock must be held.

    `noted`: what the ledger's anchor says. A ledger that does not hold that entry raises `LedgerLost`, and is left as it is.
    """
    if noted is not None and not path.exists():
        raise LedgerLost(f"{path} is gone: its last entry was number {noted.seq}")
    with opening(path), ExitStack() as stack:
        db = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None, cached_statements=256)))
        if not db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            if noted is not None:
                raise LedgerLost(f"{path} is empty: its last entry was number {noted.seq}")
            _make(db)
        _check_format(db, path)
        _check_anchored(db, path, noted)
        _check_bytes(db, path)
        # The commit is the decision: it must be on the disk before anybody acts on it.
        db.execute("PRAGMA synchronous = FULL")
        # A log that is written over again needs no new blocks; one that a long reader let grow is cut back afterwards.
        db.execute("PRAGMA wal_autocheckpoint = 2000")
        db.execute("PRAGMA journal_size_limit = 67108864")
        db.execute("PRAGMA cache_size = -65536")
        stack.pop_all()
    return db


def _check_anchored(db: sqlite3.Connection, path: Path, noted: Head | None) -> None:
    """Whether the entry that was acknowledged last is in the ledger."""
    if noted is None or noted.seq == 0:
        return
    row = db.execute("SELECT lower(hex(hash)) FROM entry WHERE seq = ?", (noted.seq,)).fetchone()
    if row is None:
        (last,) = db.execute("SELECT ifnull(max(seq), 0) FROM entry").fetchone()
        raise LedgerLost(
            f"{path} is older than what was written: it ends with entry {last}, and the last was number {noted.seq}"
        )
    if row[0] != noted.hash:
        raise LedgerLost(f"{path} is not the ledger that was written here: its entry {noted.seq} is another")


def _check_bytes(db: sqlite3.Connection, path: Path) -> None:
    """What a start and the next entries depend on, in bounded time: the latest entries' chain, and a small file whole."""
    if path.stat().st_size <= CHECKED_BYTES:
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Damaged(f"{path} is damaged: {' '.join(found.split())}")
    (last,) = db.execute("SELECT ifnull(max(seq), 0) FROM entry").fetchone()
    since = max(0, last - CHECKED_ENTRIES)
    rows = db.execute("SELECT seq, at, prev, hash, body FROM entry WHERE seq >= ? ORDER BY seq", (since,))
    head = Head()
    if since:
        seq, at, _, sealed, _ = rows.fetchone()
        head = Head(seq=seq, hash=sealed.hex(), at=at)
    if (broken := verify(rows, head)) is not None:
        raise Damaged(f"{path} is damaged: {broken}")


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Say which file it was that SQLite could not open."""
    try:
        with reading(path):
            yield
    except sqlite3.DatabaseError as error:
        raise CannotOpen(f"{path} cannot be opened: {error}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell damage from what else may go wrong: SQLite finds no way to a row, or a row makes no sense."""
    try:
        with writing(path):
            yield
    except (AttributeError, LookupError, MemoryError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Damaged(f"{path} is damaged: a row makes no sense ({error!r})") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell damage from what else SQLite may report, such as a full disk."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        # Python's own module raises this one, without a code, for text that is no UTF-8.
        undecoded = code is None and isinstance(error, sqlite3.OperationalError)
        if undecoded or (code is not None and code & _PRIMARY in _DAMAGE):
            raise Damaged(f"{path} is damaged: {error}") from error
        raise


def _script() -> str:
    """Every table, view and trigger of a ledger."""
    return _TABLES + "".join(_GUARDS.format(table=table, same=same) for table, same in RECORD.items())


def made_of(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """What a file consists of: kind and name of each part, and the words that made it."""
    found = db.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
    return {(kind, name): text for kind, name, text in found}


def blueprint() -> dict[tuple[str, str], str]:
    """What a file must consist of, as SQLite would tell it."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_script())
        return made_of(db)


def _make(db: sqlite3.Connection) -> None:
    """Write the format of an empty file, whole or not at all."""
    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
    # A commit writes every page it touches to the log: with pages of 2 KiB that is half of what it is with the usual 4.
    db.execute("PRAGMA page_size = 2048")
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(f"BEGIN IMMEDIATE; {_script()} {marks} COMMIT;")


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; a writer may be at work, and the file system may be read-only.

    A reader of a file in WAL mode needs the `-shm` file beside it. Where it is not there and cannot be made, nobody is
    writing either, and the file may be read as one that does not change, unless a log with content was left behind.
    """
    if not path.is_file():
        raise CannotOpen(f"there is no ledger at {path}")
    log = path.with_name(path.name + "-wal")
    with opening(path):
        try:
            return _read(path, "mode=ro")
        except sqlite3.OperationalError:
            if log.exists() and log.stat().st_size:
                raise
            return _read(path, "mode=ro&immutable=1")


def _read(path: Path, mode: str) -> sqlite3.Connection:
    with ExitStack() as stack:
        uri = f"{path.absolute().as_uri()}?{mode}"
        db = stack.enter_context(closing(sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=256)))
        _check_format(db, path)
        stack.pop_all()
    return db


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise CannotOpen(f"{path} is no ledger of Fairlease")
    if version > FORMAT:
        raise CannotOpen(f"{path} has format {version}; this Fairlease reads up to {FORMAT}: it needs a newer one")
