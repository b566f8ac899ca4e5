"""The quick half of the index check: whether the tables of a file hold exactly the rows that its entries give.

The rows are made once more, as the writer makes them but without asking the file anything, and compared with the stored
ones a few hundred entries at a time, list against list: equal lists are compared by the interpreter in one go. Nothing is
summed up or sampled, every row is looked at. Numbers of names and payers are given in the order in which entries name
them, so they can be foretold as well.

The answer is yes or no. A no needs not be a forgery (another writer may number its names in another way); what is wrong,
and in which entry, is found by `ledger.index_check`, which takes its time and compares what the numbers stand for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import reduce
from operator import itemgetter, or_
from typing import Any, TypeVar, get_args

import msgspec

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.derived_rows import runs_of
from fairlease.ledger.store.sqlite_index import pack_slots
from fairlease.model.record import Key, api_name, split

_CHUNK = 512
"""Entries that are compared at once: enough to make a comparison cheap, few enough to lie in the processor's cache."""

_ENTRIES = "SELECT seq, at, body FROM entry ORDER BY seq"
_NAMES = "SELECT id, text FROM name ORDER BY id"
_PAYERS = "SELECT id, budget, envelope, owner, fund FROM payer ORDER BY id"
_LEASES = (
    "SELECT serial, run, owner, opportunistic, attempt, number, grp, rank, node, gpus, slots, role, start, payer, reason"
    " FROM lease_opened ORDER BY serial"
)
_ENDS = "SELECT serial, at, closure FROM lease_closed WHERE serial BETWEEN ? AND ?"
_ENDS_COUNTED = "SELECT count(*) FROM lease_closed NOT INDEXED"
_OPEN = "SELECT serial FROM lease_open ORDER BY serial"
_STORIES = "SELECT seq, run, first, last FROM story ORDER BY seq, run"
_ENDINGS = "SELECT id, run, seq FROM ended ORDER BY id"

_SERIAL = itemgetter(0)
_T = TypeVar("_T")
Story = tuple[int, int, int | None, int | None]


class Differs(Exception):  # noqa: N818 - it is an answer, and ends the comparison from wherever it is found
    """The tables are not what these entries give, or the entries are such as no writer accepts."""


# --- what the tables keep of the four kinds of events that are nearly all; the rest is skipped, not decoded ---------------


class _Line(msgspec.Struct, frozen=True, kw_only=True, rename=api_name, tag_field="event", gc=False):
    run: Key


class _Owner(msgspec.Struct, frozen=True, gc=False):
    owner: str
    opportunistic: bool = False


class _Payer(msgspec.Struct, frozen=True, gc=False):
    budget: str
    envelope: str
    owner: str
    fund: str


class _Submitted(_Line, frozen=True, kw_only=True, tag="RunSubmitted"):
    spec: _Owner


class _Opened(_Line, frozen=True, kw_only=True, tag="LeasesOpened"):
    attempt: int
    reason: str
    payers: tuple[_Payer, ...]
    cells: tuple[tuple[int, int, int, str, tuple[int, ...], int, str], ...]


class _Closed(_Line, frozen=True, kw_only=True, tag="LeasesClosed"):
    reason: str
    names: tuple[str, ...] = ()
    seed: str | None = None


class _Ended(_Line, frozen=True, kw_only=True, tag="RunEnded"):
    pass


_SHORT = (_Submitted, _Opened, _Closed, _Ended)
_TAGS = {each.__struct_config__.tag for each in _SHORT}
_WHOLE = tuple(kind for kind in get_args(ev.AnyEvent) if kind.__name__ not in _TAGS)
_Events: Any = tuple[reduce(or_, _SHORT + _WHOLE), ...]  # type: ignore[misc]  # a type that is made at run time
_decoder: msgspec.json.Decoder[tuple[Any, ...]] = msgspec.json.Decoder(_Events)


class _Numbers(dict[_T, int]):
    """Things that are numbered in the order in which they are first asked for; `new` are those since the last look."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[tuple[int, _T]] = []

    def __missing__(self, wanted: _T) -> int:
        number = self[wanted] = len(self)
        self.new.append((number, wanted))
        return number


class _ProofRun(msgspec.Struct, gc=False):
    """A run that lives, with the serials of its open leases by attempt and number.

    `seq` is the last entry that names it, and `place` where the story of that entry lies among those that are due.
    """

    number: int
    owner: int
    opportunistic: int
    seq: int = -1
    place: int = -1
    open: dict[tuple[int, int], int] = {}


def proven(db: sqlite3.Connection, keep_on: Callable[[], None] | None = None) -> bool:
    """Whether every table holds what the entries give, no row more or less; asks `keep_on` now and then, which may raise."""
    try:
        proof = _Proof(db)
        entries = db.execute(_ENTRIES)
        while chunk := entries.fetchmany(_CHUNK):
            proof.play(chunk)
            proof.compare()
            if keep_on is not None:
                keep_on()
        proof.finish()
    except (Differs, sqlite3.Error, msgspec.DecodeError, LookupError, ValueError, TypeError):
        return (
            False  # also where bytes make no sense, a lease is closed that nobody opened, or a run is submitted twice
        )
    return True


class _Proof:
    """The rows that are due and not compared yet, and what must be remembered to make more of them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._execute = execute = db.execute
        self._names = _Numbers[str]()
        self._payers = _Numbers[tuple[str, ...]]()
        self._runs: dict[str, _ProofRun] = {}
        self._serial = self._endings = self._closings = 0
        self._opened: list[tuple[Any, ...]] = []
        self._closed: list[tuple[int, int, str]] = []
        self._stories: list[Story] = []
        self._passing: dict[Story, int] = {}  # the stories of runs that do not live, and where they lie
        self._ended: list[tuple[int, int, int]] = []
        self._ends: dict[int, tuple[int, int, str]] = {}  # of leases that are open at this point of the story
        self._stored: list[tuple[sqlite3.Cursor, list[Any]]] = [
            (execute(_NAMES), self._names.new), (execute(_LEASES), self._opened), (execute(_STORIES), self._stories),
            (execute(_ENDINGS), self._ended),
        ]  # fmt: skip

    def play(self, entries: list[tuple[int, int, bytes]]) -> None:
        """Make the rows of some entries. This is gone through a million times, so that it calls as little as it can."""
        names, runs, stories, passing, decode = self._names, self._runs, self._stories, self._passing, _decoder.decode
        over: list[Key] = []
        for seq, at, body in entries:
            for event in decode(body):
                kind = type(event)
                if kind is _Submitted:
                    spec, key = event.spec, event.run
                    number = names.get(key)
                    if number is None:  # as it is for every run: `names[key]`, without the call
                        number = names[key] = len(names)
                        names.new.append((number, key))
                    run = runs[key] = _ProofRun(number, names[spec.owner], 1 if spec.opportunistic else 0)
                    if passing and (place := passing.get((seq, run.number, None, None))) is not None:
                        run.seq, run.place = seq, place  # the entry named it before it was submitted
                elif kind is _Opened or kind is _Closed:
                    run = runs[event.run]
                elif kind is _Ended:
                    run = runs[event.run]
                    over.append(event.run)
                else:
                    self._tell(seq, runs_of(event))
                    continue
                if run.seq != seq:
                    run.seq, run.place = seq, len(stories)
                    stories.append((seq, run.number, None, None))
                if kind is _Opened:
                    self._open(event, run, at)
                elif kind is _Closed:
                    self._close(event, run, at)
            if over:
                self._end(seq, over)

    def _tell(self, seq: int, keys: Iterable[Key]) -> None:
        """An entry names runs in passing, also such as do not live."""
        for key in keys:
            run = self._runs.get(key)
            if run is None:
                row = (seq, self._names[key], None, None)
                if row not in self._passing:
                    self._passing[row] = len(self._stories)
                    self._stories.append(row)
            elif run.seq != seq:
                run.seq, run.place = seq, len(self._stories)
                self._stories.append((seq, run.number, None, None))

    def _end(self, seq: int, over: list[Key]) -> None:
        for key in over:
            run = self._runs.pop(key)
            if run.open:
                raise Differs
            self._ended.append((self._endings, run.number, seq))
            self._endings += 1
        over.clear()

    def _open(self, event: _Opened, run: _ProofRun, at: int) -> None:
        numbers, names, opened, held = self._payers, self._names, self._opened, run.open
        payers = []
        for each in event.payers:
            payers.append(numbers[each.budget, each.envelope, each.owner, each.fund])  # noqa: PERF401 - in Python 3.11 a comprehension is one call more
        name, owner, opportunistic, attempt, reason = (
            run.number,
            run.owner,
            run.opportunistic,
            event.attempt,
            event.reason,
        )
        first = serial = self._serial
        for number, group, rank, node, slots, payer, role in event.cells:
            if payer < 0 or (attempt, number) in held:
                raise Differs
            opened.append((
                serial, name, owner, opportunistic, attempt, number, group, rank, names[node], len(slots), pack_slots(slots),
                role, at, payers[payer], reason,
            ))  # fmt: skip
            held[attempt, number] = serial
            serial += 1
        self._serial = serial
        before = self._stories[run.place]
        self._stories[run.place] = (before[0], name, first if before[2] is None else before[2], serial - 1)

    def _close(self, event: _Closed, run: _ProofRun, at: int) -> None:
        closed, held = self._closed, run.open
        closure = event.reason if event.seed is None else f"{event.reason}({event.seed})"
        if event.names:
            for name in event.names:
                closed.append((held.pop(_place(event.run, name)), at, closure))
        else:
            for serial in held.values():
                closed.append((serial, at, closure))
            held.clear()

    def compare(self) -> None:
        """Compare what was made with what is stored, and forget it."""
        opened, closed, ends = self._opened, self._closed, self._ends
        if opened:
            rows = self._execute(_ENDS, (opened[0][0], opened[-1][0])).fetchall()
            ends.update(zip(map(_SERIAL, rows), rows, strict=True))
        self._stories.sort()
        self._passing.clear()
        for stored, due in self._stored:
            # `fetchmany(0)` would fetch all.
            if due and stored.fetchmany(len(due)) != due:
                raise Differs
            due.clear()
        if list(map(ends.pop, map(_SERIAL, closed))) != closed:
            raise Differs
        self._closings += len(closed)
        closed.clear()

    def finish(self) -> None:
        """There are no more entries: no table may have anything left, and what is open must have no end."""
        execute = self._execute
        if self._ends or any(stored.fetchone() is not None for stored, _ in self._stored):
            raise Differs
        if execute(_ENDS_COUNTED).fetchone() != (self._closings,):
            raise Differs
        held = sorted(serial for run in self._runs.values() for serial in run.open.values())
        if execute(_OPEN).fetchall() != [(serial,) for serial in held]:
            raise Differs
        if execute(_PAYERS).fetchall() != [(number, *payer) for number, payer in self._payers.new]:
            raise Differs


def _place(run: Key, name: str) -> tuple[int, int]:
    """Attempt and number of a lease of a run, by its name."""
    _, attempt, number = name.rsplit("-", 2)
    place = int(attempt), int(number)
    if name != f"{split(run)[1]}-{place[0]}-{place[1]}":
        raise Differs
    return place
