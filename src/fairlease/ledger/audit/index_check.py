"""Whether a file's index says what its entries say: the part of the audit that is about the other tables.

`leases`, `who-pays` and `export` read the index, and not the entries. Who drops the triggers can rewrite it, and the hash
chain would not know. So every row of it is compared with what the entries give; what may not be there is found as
well as what is missing, and so are rows that stem from entries behind the last one: a ledger that was cut short.

Mostly all is well, and `ledger.index_proof` shows that at once. Only where it does not are the rows compared one by one,
to say what is wrong and in which entry. Every table is read once, in the order of the entries. A lease is read together
with its end, which is held until the entry that closes it: memory follows what is open. Numbers of names and payers are
the file's own affair; what they stand for is compared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from fairlease.ledger.audit.audit import Finding, collector_asleep
from fairlease.ledger.audit.index_proof import proven
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.chain import Row as EntryRow
from fairlease.ledger.store.derived_rows import closure_of, runs_of
from fairlease.ledger.store.protocol import GENESIS
from fairlease.ledger.store.sqlite_file import blueprint, made_of
from fairlease.ledger.store.sqlite_index import pack_slots
from fairlease.model.lease import Payer
from fairlease.model.record import Key, Record, split

INDEXES_AGREE = "indexesAgree"
FINDINGS_KEPT = 50
"""After so many the rest is not compared: one row too many shifts all that follow, and tells nothing new."""

OPENED = (
    "serial", "run", "owner", "opportunistic", "attempt", "number", "group", "rank", "node", "gpus", "slots", "role", "start",
    "payer", "reason",
)  # fmt: skip
"""What is compared of a lease, in the words of people and in the order of `lease_opened`."""

_LEASES = (
    "SELECT o.serial, o.run, o.owner, o.opportunistic, o.attempt, o.number, o.grp, o.rank, o.node, o.gpus, o.slots,"
    " o.role, o.start, o.payer, o.reason, c.at, c.closure, q.serial"
    " FROM lease_opened o LEFT JOIN lease_closed c ON c.serial = o.serial LEFT JOIN lease_open q ON q.serial = o.serial"
    " ORDER BY o.serial"
)
_STORY = "SELECT seq, run, first, last FROM story ORDER BY seq"
_ENDED = "SELECT id, run, seq FROM ended ORDER BY id"
_ORPHANS = "SELECT serial FROM {table} WHERE serial NOT IN (SELECT serial FROM lease_opened) ORDER BY serial LIMIT 50"
_SNAPSHOTS = (
    "SELECT s.seq, s.hash, s.at, s.digest, s.body, e.hash, e.at FROM snapshot s LEFT JOIN entry e ON e.seq = s.seq"
    " ORDER BY s.seq"
)

Row = tuple[Any, ...]
End = tuple[int, int | None, str | None]
"""The serial of an open lease, and the end that the index gives it."""

_ASK_EVERY = 1_024
_NOTHING: tuple[int | None, int | None] = (None, None)
_T = TypeVar("_T")


class Found(Record, frozen=True, kw_only=True):
    """What an index check found: how many things are wrong, and the first of them."""

    total: int = 0
    findings: tuple[Finding, ...] = ()


def check_indexes(
    db: sqlite3.Connection, rows: Callable[[], Iterable[EntryRow]], keep_on: Callable[[], None] | None = None
) -> Found:
    """Compare a file's tables with its entries (`rows` reads them). `keep_on` is asked now and then, and may raise."""
    check = _IndexCheck(db)
    with collector_asleep():
        check.guarded(check.schema)
        if not proven(db, keep_on):
            check.compare(rows(), keep_on)
        check.guarded(check.snapshots)
    return Found(total=check.total, findings=tuple(check.findings))


class _Ids(dict[_T, int]):
    """The numbers that the file gave to names or payers, each asked for by what it stands for."""

    def __init__(self, stored: list[tuple[_T, int]], missing: Callable[[_T], None]) -> None:
        super().__init__()
        self.unused = dict(stored)
        self.twice = len(stored) - len(self.unused)
        self._missing = missing
        self._invented = 0

    def __missing__(self, wanted: _T) -> int:
        number = self.unused.pop(wanted, None)
        if number is None:
            self._missing(wanted)
            self._invented -= 1
            number = self._invented
        self[wanted] = number
        return number


class _CheckRun:
    """What must be known of a run to tell what its leases look like."""

    __slots__ = ("open", "opportunistic", "owner")

    def __init__(self, owner: int, opportunistic: int) -> None:
        self.owner = owner
        self.opportunistic = opportunistic
        self.open: dict[str, End] = {}


class _IndexCheck:
    """The comparison, row by row. It stops when it has found enough."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.findings: list[Finding] = []
        self.total = 0
        self._db = db
        self._seq = 0
        self._serial = 0
        self._endings = 0
        self._runs: dict[Key, _CheckRun] = {}
        self._silent = False

    def compare(self, rows: Iterable[EntryRow], keep_on: Callable[[], None] | None) -> None:
        """Compare the rows that follow from each entry, and find what is left over."""
        self.guarded(self._begin)
        self.guarded(lambda: self._play_all(rows, keep_on))
        for step in (self._left_over, self._unused, self._orphans):
            self.guarded(step)

    def _play_all(self, rows: Iterable[EntryRow], keep_on: Callable[[], None] | None) -> None:
        for seq, at, _, _, body in rows:
            self._seq = seq
            if self._silent:
                continue  # What is left over is told of the last entry.
            self._play(at, _events(body))
            if keep_on is not None and seq % _ASK_EVERY == 0:
                keep_on()

    def guarded(self, work: Callable[[], None]) -> None:
        """Do one step, unless enough was found."""
        if self._silent:
            return
        try:
            work()
        except sqlite3.Error as error:
            self._unreadable(error)

    def _unreadable(self, error: sqlite3.Error) -> None:
        """A table that cannot be read is a finding, not the end of the audit."""
        self._found(f"the index cannot be read: {error}")
        self._silent = True

    def _found(self, message: str, *objects: str, seq: int | None = None) -> None:
        self.total += 1
        if len(self.findings) < FINDINGS_KEPT:
            where = self._seq if seq is None else seq
            self.findings.append(Finding(seq=where, claim=INDEXES_AGREE, objects=objects, message=message))
        else:
            self._silent = True

    # --- the tables themselves -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        execute = self._db.execute
        names = execute("SELECT text, id FROM name").fetchall()
        payers = execute("SELECT budget, envelope, owner, fund, id FROM payer").fetchall()
        self._names = _Ids[str](names, lambda text: self._found(f"the name {text} is missing in table name", text))
        self._payers = _Ids[tuple[str, ...]](
            [(row[:4], row[4]) for row in payers],
            lambda payer: self._found(f"the payer {' '.join(payer)} is missing in table payer", *payer[:2]),
        )
        self._payer_ids: dict[Payer, int] = {}
        self._leases: Iterator[Row] = execute(_LEASES)
        self._lease: Row | None = next(self._leases, None)
        self._stories: Iterator[Row] = execute(_STORY)
        self._story: Row | None = next(self._stories, None)
        self._ended: Iterator[Row] = execute(_ENDED)

    def schema(self) -> None:
        """Tables and triggers must be those that Fairlease made, to the letter, and no trigger may stand beside them."""
        due, found = blueprint(), made_of(self._db)
        for (kind, name), text in due.items():
            if (kind, name) not in found:
                self._found(f"the {kind} {name} is missing", name)
            elif found[kind, name] != text:
                self._found(f"the {kind} {name} is not as Fairlease makes it", name)
        for kind, name in found.keys() - due.keys():
            if kind == "trigger":
                self._found(f"the trigger {name} is not Fairlease's", name)

    # --- one entry -------------------------------------------------------------------------------------------------

    def _play(self, at: int, events: tuple[ev.AnyEvent, ...]) -> None:
        told: dict[int, tuple[int | None, int | None]] = {}
        over: dict[Key, int] = {}
        names = self._names
        for event in events:  # The four kinds that are nearly all come first.
            if isinstance(event, ev.LeasesOpened):
                run, first = names[event.run], self._serial
                self._opened(event, run, at)
                before = told.get(run, _NOTHING)[0]
                told[run] = (first if before is None else before, self._serial - 1)
            elif isinstance(event, ev.LeasesClosed):
                told.setdefault(names[event.run], _NOTHING)
                self._closed(event, at)
            elif isinstance(event, ev.RunSubmitted):
                told.setdefault(names[event.run], _NOTHING)
                self._runs[event.run] = _CheckRun(names[event.spec.owner], int(event.spec.opportunistic))
            elif isinstance(event, ev.RunEnded):
                run = over[event.run] = names[event.run]
                told.setdefault(run, _NOTHING)
            else:
                for key in runs_of(event):
                    told.setdefault(names[key], _NOTHING)
        self._compare_stories(told)
        for key, run in over.items():
            self._compare_ending(key, run)
            self._still_open(self._runs.pop(key, None))

    def _opened(self, event: ev.LeasesOpened, run: int, at: int) -> None:
        holder = self._runs.get(event.run) or _CheckRun(-1, -1)  # The replay has found a run that does not live.
        ids, names, stored = [self._payer(payer) for payer in event.payers], self._names, self._stored
        owner, opportunistic, attempt, reason = holder.owner, holder.opportunistic, event.attempt, event.reason.value
        stem = f"{split(event.run)[1]}-{attempt}-"
        serial = self._serial
        for cell in event.cells:
            number, slots = cell.number, cell.slots
            name = f"{stem}{number}"
            due = (
                serial, run, owner, opportunistic, attempt, number, cell.group, cell.rank, names[cell.node], len(slots),
                _packed(slots), cell.role.value, at, ids[cell.payer] if 0 <= cell.payer < len(ids) else -1, reason,
            )  # fmt: skip
            row = stored(serial)
            if row is None:
                self._found(f"lease {name} (serial {serial}) is missing in table lease_opened", name)
                holder.open[name] = (serial, *self._end_of(serial))
            else:
                if row[:15] != due:
                    self._differs(name, row, due)
                end = row[15]
                if (end is None) != (row[17] is not None):
                    self._found(f"lease {name} is listed as open and as closed, or as neither", name)
                holder.open[name] = (serial, end, row[16])
            serial += 1
        self._serial = serial

    def _stored(self, serial: int) -> Row | None:
        """The row of a lease; those before it that no entry opened are told."""
        row = self._lease
        while row is not None and row[0] < serial:
            self._found(f"table lease_opened has a lease of serial {row[0]} that no entry opened", f"serial {row[0]}")
            row = next(self._leases, None)
        if row is None or row[0] > serial:
            self._lease = row
            return None
        self._lease = next(self._leases, None)
        return row

    def _end_of(self, serial: int) -> tuple[int | None, str | None]:
        row = self._db.execute("SELECT at, closure FROM lease_closed WHERE serial = ?", (serial,)).fetchone()
        return (None, None) if row is None else (row[0], row[1])

    def _differs(self, name: str, row: Row, due: Row) -> None:
        wrong = [what for what, stored, right in zip(OPENED, row, due, strict=False) if stored != right]
        self._found(f"lease {name} has another {', '.join(wrong)} in the index than in its entry", name)

    def _payer(self, payer: Payer) -> int:
        number = self._payer_ids.get(payer)
        if number is None:
            number = self._payers[payer.budget, payer.envelope, payer.owner, payer.fund.value]
            self._payer_ids[payer] = number
        return number

    def _closed(self, event: ev.LeasesClosed, at: int) -> None:
        run = self._runs.get(event.run)
        if run is None:
            return
        closure = closure_of(event)
        for name in event.names or tuple(run.open):
            lease = run.open.pop(name, None)
            if lease is None:
                continue  # The replay has found it: closed twice, or never opened.
            _, end, why = lease
            if end is None:
                self._found(f"lease {name} was closed, but table lease_closed does not say so", name)
            elif end != at or why != closure:
                stated, right = f"{why} at {end}", f"{closure} at {at}"
                self._found(f"lease {name} ended with {right}, but table lease_closed says {stated}", name)

    def _still_open(self, run: _CheckRun | None) -> None:
        """Leases that no entry has closed must have no end."""
        for name, (_, end, why) in () if run is None else run.open.items():
            if end is not None:
                self._found(f"table lease_closed says that lease {name} ended with {why}; no entry closed it", name)

    def _compare_stories(self, told: dict[int, tuple[int | None, int | None]]) -> None:
        row, seq = self._story, self._seq
        while row is not None and row[0] <= seq:
            if row[0] < seq or row[1] not in told:
                run = self._text(row[1])
                self._found(f"table story lets entry {row[0]} name {run}, which it does not", run, seq=row[0])
            elif told.pop(row[1]) != row[2:]:
                run = self._text(row[1])
                self._found(f"table story gives {run} other leases in entry {seq} than the entry does", run)
            row = next(self._stories, None)
        self._story = row
        for run in map(self._text, told) if told else ():
            self._found(f"entry {seq} names {run}, but table story does not say so", run)

    def _text(self, number: int) -> str:
        """What a number of the file stands for."""
        return next((text for text, known in self._names.items() if known == number), f"name {number}")

    def _compare_ending(self, key: Key, run: int) -> None:
        row, due = next(self._ended, None), (self._endings, run, self._seq)
        self._endings += 1
        if row is None:
            self._found(f"{key} ended, but table ended does not say so", key)
        elif row != due:
            self._found(f"table ended has another row for the end of {key} than its entry", key)

    # --- what is left over -----------------------------------------------------------------------------------------

    def _left_over(self) -> None:
        """Rows that no entry accounts for: put in, or left of entries that were cut off."""
        for run in self._runs.values():
            self._still_open(run)
        while self._lease is not None and not self._silent:
            self._stored(self._lease[0] + 1)
        if self._story is not None:
            for seq, *_ in (self._story, *self._stories):
                self._found(f"table story knows entry {seq}, which is not there: was the ledger cut short?", seq=seq)
                if self._silent:
                    return
        for _, _, seq in self._ended:
            self._found(f"table ended has an end in entry {seq} that no entry tells of", seq=seq)
            if self._silent:
                return

    def _unused(self) -> None:
        for table, ids in (("name", self._names), ("payer", self._payers)):
            if ids.twice:
                self._found(f"table {table} has {ids.twice} rows twice")
            for each in ids.unused:
                text = each if isinstance(each, str) else " ".join(each)
                self._found(f"table {table} has {text}, which no entry names", text)
                if self._silent:
                    return

    def _orphans(self) -> None:
        for table in ("lease_closed", "lease_open"):
            for (serial,) in self._db.execute(_ORPHANS.format(table=table)):
                self._found(f"table {table} has serial {serial}, which no lease has", f"serial {serial}")

    def snapshots(self) -> None:
        """A daemon starts from a snapshot: it must be of an entry that is there, and be whole."""
        for seq, sealed, at, digest, body, entry_hash, entry_at in self._db.execute(_SNAPSHOTS):
            due = (bytes.fromhex(GENESIS), at) if seq == 0 else (entry_hash, entry_at)
            if due[0] is None:
                self._found(f"a snapshot is of entry {seq}, which is not there: was the ledger cut short?", seq=seq)
            elif (sealed, at) != due:
                self._found(f"the snapshot of entry {seq} has another hash or time than the entry", seq=seq)
            elif sha256(body).digest() != digest:
                self._found(f"the snapshot of entry {seq} does not have the bytes that its digest states", seq=seq)


def _events(body: bytes) -> tuple[ev.AnyEvent, ...]:
    """The events of an entry; none of one that cannot be read, which the replay tells."""
    try:
        return ev.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def _packed(slots: tuple[int, ...]) -> bytes | None:
    """Slots as the file keeps them; None for such as no file can hold."""
    try:
        return pack_slots(slots)
    except ValueError:
        return None
