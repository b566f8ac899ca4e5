"""A ledger in memory, for tests and simulation: the same chain and answers as on disk, and nothing to clean up.

The simulator appends thousands of entries a second and mostly asks nothing, so an append only seals and keeps the
entry. The indexes catch up with the entries when the first question is asked, and go on from there at the next one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from operator import attrgetter

from fairlease.ledger.state import events as ev
from fairlease.ledger.state.lease_names import leases_of
from fairlease.ledger.store.chain import Row, row_of, seal
from fairlease.ledger.store.derived_rows import closure_of, runs_of
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
from fairlease.ledger.store.snapshot import thaw
from fairlease.model.lease import Lease
from fairlease.model.owner import at_or_below
from fairlease.model.record import Key
from fairlease.model.run import RunSpec

SNAPSHOTS_KEPT = 2
"""The newest snapshot, and the one to fall back on where the newest proves damaged."""

_start = attrgetter("start")


class MemoryStore:
    """The `Store` of tests, simulations, and of those who ask about a ledger that lies elsewhere.

    `first` is the number of the entry behind which it begins: 0, unless the older ones could not be had.
    """

    def __init__(self) -> None:
        self.first = 0
        self._entries: list[Entry] = []
        self._head = Head()
        self._snapshots: list[Snapshot] = []
        self._index = _Index()

    @classmethod
    def of(cls, entries: Iterable[Entry], base: Snapshot | None = None) -> MemoryStore:
        """A ledger that was sealed elsewhere, to be asked about: whole, or from a snapshot on.

        Behind a snapshot the past begins with what lived then: runs, as if submitted in its entry, and their open leases.
        """
        store = cls()
        if base is not None:
            store.first = base.seq
            store._head = Head(seq=base.seq, hash=base.hash, at=base.at)
            store._snapshots = [base]
            store._index.begin(base)
        store._entries += entries
        if store._entries:
            last = store._entries[-1]
            store._head = Head(seq=last.seq, hash=last.hash, at=last.at)
        return store

    def head(self) -> Head:
        """The last entry."""
        return self._head

    def append(self, expected_seq: int, at: int, events: tuple[ev.AnyEvent, ...]) -> Entry:
        """Make `events` the entry after `expected_seq`; raises `Conflict` where the head is another."""
        head = self._head
        if expected_seq != head.seq:
            raise Conflict(f"the ledger's head is entry {head.seq}, not {expected_seq}")
        entry, _ = seal(head, at, events)
        self._entries.append(entry)
        self._head = Head(seq=entry.seq, hash=entry.hash, at=at)
        return entry

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """The entries behind number `after`, in order; entry n lies at place n − first − 1."""
        if after < self.first:
            raise ValueError(f"entries up to {self.first} are not here, only the snapshot of what they came to")
        return islice(self._entries, after - self.first, None)

    def entries_with(self, kind: type[ev.AnyEvent], limit: int, name: str = "") -> list[Entry]:
        """The last `limit` entries that hold an event of this kind, in order; `name` is for stores that search bytes."""
        del name
        found = [entry for entry in self._entries if any(isinstance(event, kind) for event in entry.events)]
        return found if limit < 0 else found[-limit:]

    def rows(self, after: int = 0) -> Iterator[Row]:
        """The same as an audit wants them."""
        return map(row_of, self.entries(after))

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, and the one before it."""
        if not self._in_chain(snapshot):
            raise ValueError(f"the snapshot of entry {snapshot.seq} does not belong to this ledger")
        others = [each for each in self._snapshots if each.seq != snapshot.seq]
        self._snapshots = sorted([*others, snapshot], key=attrgetter("seq"))[-SNAPSHOTS_KEPT:]

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot whose digest is right and whose entry is in the chain, or None."""
        sound = (each for each in reversed(self._snapshots) if sha256(each.body).hexdigest() == each.digest)
        return next((each for each in sound if self._in_chain(each)), None)

    def _in_chain(self, snapshot: Snapshot) -> bool:
        if not self.first <= snapshot.seq <= self._head.seq:
            return False
        place = snapshot.seq - self.first - 1
        if place < 0:
            return snapshot.hash == (GENESIS if snapshot.seq == 0 else self._snapshots[0].hash)
        return snapshot.hash == self._entries[place].hash

    def story(self, run: Key) -> list[Moment]:
        """Every event that names a run, in order."""
        return list(self._indexed().stories.get(run, ()))

    def leases(self, query: LeaseQuery) -> Iterator[LeaseRow]:
        """Leases in opening order."""
        return self._indexed().find(query)

    def endings(self, limit: int | None = None) -> list[Ending]:
        """Runs that ended, the latest first."""
        return list(islice(reversed(self._indexed().endings), limit))

    def _indexed(self) -> _Index:
        for entry in islice(self._entries, max(0, self._index.seq - self.first), None):
            self._index.add(entry)
        return self._index


class _Index:
    """What can be asked of the past. Leases are known by their place in the order of opening."""

    def __init__(self) -> None:
        self.seq = 0
        self.serial = 0
        self.stories: dict[Key, list[Moment]] = defaultdict(list)
        self.endings: list[Ending] = []
        self.leases: list[Lease] = []
        self.ends: dict[int, tuple[int, str]] = {}
        self.closed_at: list[int] = []
        self.closed: list[int] = []
        self.open: dict[Key, dict[str, int]] = {}
        self.specs: dict[Key, RunSpec] = {}
        self.by: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def begin(self, base: Snapshot) -> None:
        """Take in what lived at a snapshot."""
        state = thaw(base.body)
        for run in sorted(state.runs.values(), key=attrgetter("order")):
            self.specs[run.key] = run.spec
            told = ev.RunSubmitted(run=run.key, spec=run.spec, by=run.by)
            self.stories[run.key].append(Moment(seq=base.seq, at=run.submitted_at, event=told))
        held = (lease for run in state.runs.values() for lease in run.leases.values())
        self._take(sorted(held, key=attrgetter("serial")))
        self.seq, self.serial = base.seq, state.serial

    def add(self, entry: Entry) -> None:
        """Take in one entry."""
        for event in entry.events:
            moment = Moment(seq=entry.seq, at=entry.at, event=event)
            for run in runs_of(event):
                self.stories[run].append(moment)
            if isinstance(event, ev.LeasesOpened):
                self._opened(event, entry.at)
            elif isinstance(event, ev.LeasesClosed):
                self._closed(event, entry.at)
            elif isinstance(event, ev.RunSubmitted):
                self.specs[event.run] = event.spec
            elif isinstance(event, ev.RunEnded):
                self.endings.append(Ending(seq=entry.seq, at=entry.at, ended=event))
        self.seq = entry.seq

    def _opened(self, event: ev.LeasesOpened, at: int) -> None:
        opened = leases_of(event, self.specs[event.run], at, self.serial)
        self.serial += len(opened)
        self._take(opened)

    def _take(self, opened: Sequence[Lease]) -> None:
        for place, lease in enumerate(opened, len(self.leases)):
            payer = lease.payer
            self.open.setdefault(lease.run, {})[lease.name] = place
            self.by["run", lease.run].append(place)
            self.by["node", lease.node].append(place)
            self.by["budget", payer.budget].append(place)
            self.by["envelope", payer.envelope].append(place)
            self.by["budget, envelope", payer.budget, payer.envelope].append(place)
        self.leases.extend(opened)

    def _closed(self, event: ev.LeasesClosed, at: int) -> None:
        mine, closure = self.open.get(event.run, {}), closure_of(event)
        for name in event.names or tuple(mine):
            serial = mine.pop(name)
            self.ends[serial] = (at, closure)
            self.closed_at.append(at)
            self.closed.append(serial)
        if not mine:
            self.open.pop(event.run, None)

    def find(self, query: LeaseQuery) -> Iterator[LeaseRow]:
        """The rows that match: the shortest list that an index offers is gone through, the rest is filtered."""
        chosen = min(self._candidates(query), key=len)
        found = (self._row(serial) for serial in chosen if _matches(query, self.leases[serial], self.ends.get(serial)))
        return islice(found, query.limit)

    def _row(self, serial: int) -> LeaseRow:
        end, closure = self.ends.get(serial, (None, None))
        return LeaseRow(lease=self.leases[serial], end=end, closure=closure)

    def _candidates(self, query: LeaseQuery) -> Iterator[Sequence[int]]:
        """For each part of a query the serials that can match, in order; openings and closings lie in order of time."""
        began = len(self.leases) if query.until is None else bisect_left(self.leases, query.until, key=_start)
        yield range(began)
        if query.budget is not None and query.envelope is not None:
            yield self.by.get(("budget, envelope", query.budget, query.envelope), ())
        for part in ("run", "node", "budget", "envelope"):
            wanted = getattr(query, part)
            if wanted is not None:
                yield self.by.get((part, wanted), ())
        if query.open:
            yield self._still_open()
        elif query.since is not None:
            later = sorted(self.closed[bisect_right(self.closed_at, query.since) :])
            yield later if query.open is False else list(heapq.merge(later, self._still_open()))

    def _still_open(self) -> list[int]:
        return sorted(_flat(mine.values() for mine in self.open.values()))


def _flat(groups: Iterable[Iterable[int]]) -> Iterator[int]:
    return (each for group in groups for each in group)


def _matches(query: LeaseQuery, lease: Lease, ended: tuple[int, str] | None) -> bool:
    wanted_and_had = (
        (query.run, lease.run),
        (query.node, lease.node),
        (query.budget, lease.payer.budget),
        (query.envelope, lease.payer.envelope),
        (query.open, ended is None),
    )
    if any(wanted is not None and wanted != had for wanted, had in wanted_and_had):
        return False
    if not (_below(lease.owner, query.owner) and _below(lease.payer.owner, query.payer)):
        return False
    if query.since is None and query.until is None:
        return True
    first = lease.start if query.since is None else max(lease.start, query.since)
    lasts = [last for last in (query.until, ended[0] if ended else None) if last is not None]
    return not lasts or first < min(lasts)


def _below(owner: str, top: str | None) -> bool:
    return top is None or at_or_below(owner, top)
