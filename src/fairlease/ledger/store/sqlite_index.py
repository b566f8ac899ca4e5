"""The index of a SQLite ledger: rows that are derived from each entry as it is written, inside the same transaction.

Rows are only ever inserted, and per entry all rows of a table at once. What the writer needs to know of the past (which
leases of a run are open, which number a name has) it remembers for runs that live, and looks up for others; after a
failed transaction it forgets it all.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.derived_rows import closure_of, runs_of
from fairlease.ledger.store.protocol import Entry
from fairlease.model.lease import Payer
from fairlease.model.record import Key, split

_ONE_BYTE = 0x80

Span = tuple[int | None, int | None]
"""The first and last serial of the leases that an entry opened for a run; None where it opened none."""

_NOTHING: Span = (None, None)

_PUT_STORY = "INSERT INTO story (run, seq, first, last) VALUES (?, ?, ?, ?)"
_PUT_OPENED = (
    "INSERT INTO lease_opened (serial, run, owner, opportunistic, attempt, number, grp, rank, node, gpus, slots, role,"
    " start, payer, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_PUT_OPEN = "INSERT INTO lease_open (serial) VALUES (?)"
_CUT_OPEN = "DELETE FROM lease_open WHERE serial = ?"
_PUT_CLOSED = "INSERT INTO lease_closed (serial, at, closure) VALUES (?, ?, ?)"
_PUT_ENDED = "INSERT INTO ended (id, run, seq) VALUES (?, ?, ?)"
_OPEN_OF_RUN = (
    "SELECT o.attempt, o.number, o.serial FROM story s CROSS JOIN lease_opened o ON o.serial BETWEEN s.first AND s.last"
    " WHERE s.run = ?1 AND o.run = ?1 AND EXISTS (SELECT 1 FROM lease_open q WHERE q.serial = o.serial)"
    " ORDER BY o.serial"
)
_BODIES_OF_RUN = "SELECT e.body FROM story s JOIN entry e ON e.seq = s.seq WHERE s.run = ? ORDER BY s.seq DESC"


class _Run:
    """What must be known of a run to write its leases."""

    __slots__ = ("id", "open", "opportunistic", "owner")

    def __init__(self, number: int, owner: int, opportunistic: int) -> None:
        self.id = number
        self.owner = owner
        self.opportunistic = opportunistic
        self.open: dict[str, int] = {}


class IndexWriter:
    """Writes the index rows of entries, in the transaction that its caller has begun."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.forget()

    def forget(self) -> None:
        """Know nothing: what was remembered may stem from a transaction that was rolled back."""
        self._runs: dict[Key, _Run] = {}
        self._names: dict[str, int] = {}
        self._payers: dict[Payer, int] = {}
        self._opening: list[tuple[object, ...]] = []
        self._closing: list[tuple[int, int, str]] = []
        self._next = {
            table: self._db.execute(f"SELECT ifnull(max({column}), -1) + 1 FROM {table}").fetchone()[0]  # noqa: S608 - from the line below
            for table, column in (("name", "id"), ("payer", "id"), ("lease_opened", "serial"), ("ended", "id"))
        }

    def add(self, entry: Entry) -> None:
        """Write what follows from one entry."""
        told: dict[int, Span] = {}
        over: dict[Key, int] = {}
        for event in entry.events:
            if isinstance(event, ev.LeasesOpened):
                run, first, last = self._opened(event, entry.at)
                before, _ = told.get(run, _NOTHING)
                told[run] = (first if before is None else before, last)
                continue
            if isinstance(event, ev.RunSubmitted):
                told.setdefault(self._submitted(event), _NOTHING)
                continue
            for key in runs_of(event):
                told.setdefault(self._run_id(key), _NOTHING)
            if isinstance(event, ev.LeasesClosed):
                self._closed(event, entry.at)
            elif isinstance(event, ev.RunEnded):
                over[event.run] = self._run_id(event.run)
        self._write(entry.seq, told, over)
        for key in over:
            self._runs.pop(key, None)

    def _write(self, seq: int, told: dict[int, Span], over: dict[Key, int]) -> None:
        many = self._db.executemany
        if self._opening:
            many(_PUT_OPENED, self._opening)
            many(_PUT_OPEN, [row[:1] for row in self._opening])
            self._opening.clear()
        if self._closing:
            many(_PUT_CLOSED, self._closing)
            many(_CUT_OPEN, [row[:1] for row in self._closing])
            self._closing.clear()
        if told:
            many(_PUT_STORY, [(run, seq, *span) for run, span in told.items()])
        if over:
            many(_PUT_ENDED, [(self._number("ended"), run, seq) for run in over.values()])

    def _submitted(self, event: ev.RunSubmitted) -> int:
        spec = event.spec
        run = _Run(self._name(event.run), self._known(spec.owner), int(spec.opportunistic))
        self._runs[event.run] = run
        return run.id

    def _opened(self, event: ev.LeasesOpened, at: int) -> tuple[int, int, int]:
        run = self._run(event.run)
        payers = [self._payer(payer) for payer in event.payers]
        count = len(event.cells)
        first = self._number("lease_opened", count)
        head, tail = (run.id, run.owner, run.opportunistic, event.attempt), event.reason.value
        known, pack = self._known, pack_slots
        self._opening += [
            (
                serial, *head, cell.number, cell.group, cell.rank, known(cell.node), len(cell.slots), pack(cell.slots),
                cell.role.value, at, payers[cell.payer], tail,
            )
            for serial, cell in enumerate(event.cells, first)
        ]  # fmt: skip
        stem = f"{split(event.run)[1]}-{event.attempt}-"
        run.open.update({f"{stem}{cell.number}": serial for serial, cell in enumerate(event.cells, first)})
        return run.id, first, first + count - 1

    def _closed(self, event: ev.LeasesClosed, at: int) -> None:
        run = self._run(event.run)
        unknown = [name for name in event.names if name not in run.open]
        if unknown:
            raise ValueError(f"lease {unknown[0]} of {event.run} is not open and cannot be closed")
        closure = closure_of(event)
        self._closing += [(run.open.pop(name), at, closure) for name in event.names or tuple(run.open)]

    # --- what is known already ----------------------------------------------------------------------------------

    def _number(self, table: str, count: int = 1) -> int:
        number: int = self._next[table]
        self._next[table] = number + count
        return number

    def _name(self, text: str) -> int:
        """The number of a name, which is given one if it has none."""
        row = self._db.execute("SELECT id FROM name WHERE text = ?", (text,)).fetchone()
        if row is not None:
            return int(row[0])
        number = self._number("name")
        self._db.execute("INSERT INTO name (id, text) VALUES (?, ?)", (number, text))
        return number

    def _known(self, text: str) -> int:
        """The number of a node or an owner: they are few, and remembered."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = self._name(text)
        return number

    def _run_id(self, key: Key) -> int:
        run = self._runs.get(key)
        return self._name(key) if run is None else run.id

    def _run(self, key: Key) -> _Run:
        """A live run, from memory or (after a restart) from the record."""
        run = self._runs.get(key)
        return self._load(key) if run is None else run

    def _load(self, key: Key) -> _Run:
        number = self._name(key)
        for (body,) in self._db.execute(_BODIES_OF_RUN, (number,)):
            for event in reversed(ev.decode(body)):
                if isinstance(event, ev.RunSubmitted) and event.run == key:
                    run = _Run(number, self._known(event.spec.owner), int(event.spec.opportunistic))
                    stem = split(key)[1]
                    for attempt, index, serial in self._db.execute(_OPEN_OF_RUN, (number,)):
                        run.open[f"{stem}-{attempt}-{index}"] = serial
                    self._runs[key] = run
                    return run
        raise ValueError(f"{key} was never submitted and holds no leases")

    def _payer(self, payer: Payer) -> int:
        number = self._payers.get(payer)
        if number is None:
            columns = (payer.budget, payer.envelope, payer.owner, payer.fund.value)
            where = "budget = ? AND envelope = ? AND owner = ? AND fund = ?"
            row = self._db.execute(f"SELECT id FROM payer WHERE {where}", columns).fetchone()  # noqa: S608 - from the line above
            if row is None:
                row = (self._number("payer"),)
                self._db.execute(
                    "INSERT INTO payer (id, budget, envelope, owner, fund) VALUES (?, ?, ?, ?, ?)", row + columns
                )
            number = self._payers[payer] = int(row[0])
        return number


@lru_cache(maxsize=4096)
def pack_slots(slots: tuple[int, ...]) -> bytes:
    """Slot numbers in their order, LEB128: one byte each below 128, which is nearly always."""
    if all(0 <= slot < _ONE_BYTE for slot in slots):
        return bytes(slots)
    out = bytearray()
    for slot in slots:
        if slot < 0:
            raise ValueError(f"slot {slot} is no slot")
        rest = slot
        while rest >= _ONE_BYTE:
            out.append(rest % _ONE_BYTE + _ONE_BYTE)
            rest //= _ONE_BYTE
        out.append(rest)
    return bytes(out)


@lru_cache(maxsize=4096)
def unpack_slots(packed: bytes) -> tuple[int, ...]:
    """What `pack_slots` packed."""
    if packed.isascii():
        return tuple(packed)
    slots, slot, shift = [], 0, 0
    for byte in packed:
        slot += byte % _ONE_BYTE << shift
        shift += 7
        if byte < _ONE_BYTE:
            slots.append(slot)
            slot = shift = 0
    return tuple(slots)
