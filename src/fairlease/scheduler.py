"""One tick: decide, append, then keep what was decided, or undo it.

The thin shell around the engine that every theatre shares. The append is the commit: what the store did not take never happened,
and the state is put back. A restart folds the store into a state, from the last snapshot on; after that nothing differs from
before, because the engine remembers nothing that the ledger does not tell.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.decide import Decision, Engine
from fairlease.ledger import snapshot
from fairlease.ledger.state import State
from fairlease.ledger.store import Entry, Head, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.command import AnyCommand

SNAPSHOT_EVERY = 8_000
"""Entries after which a snapshot saves a later start from replaying them: about a second of replay."""


class Tick(NamedTuple):
    """What came of one tick; `entry` is None where nothing changed."""

    entry: Entry | None
    decision: Decision


class Scheduler:
    """A store, the state it folds to, and the engine that decides over it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state, self._snapshot_seq = fold(store)
        self.engine = Engine(self.state)
        self.head: Head = store.head()

    def tick(self, now: int, *commands: AnyCommand) -> Tick:
        """Decide, append, keep; on any failure to append nothing has happened."""
        mark = self.state.mark()
        try:
            decision = self.engine.decide(now, commands)
            entry = self._append(decision)
        except BaseException:
            self.state.rollback(mark)
            raise
        self.state.keep()
        return Tick(entry, decision)

    @contextmanager
    def what_if(self, now: int, *commands: AnyCommand) -> Iterator[Decision]:
        """Decide, look, and undo: nothing is written."""
        mark = self.state.mark()
        try:
            yield self.engine.decide(now, commands)
        finally:
            self.state.rollback(mark)

    def next_timer(self) -> int | None:
        """When something falls due."""
        return self.state.timers.next()

    def save_snapshot(self, *, force: bool = False) -> bool:
        """Keep a snapshot where enough has happened since the last one, so that a start need not replay it all."""
        if self.head.seq == self._snapshot_seq or not (force or self.head.seq - self._snapshot_seq >= SNAPSHOT_EVERY):
            return False
        self.store.save_snapshot(snapshot.take(self.state, self.head))
        self._snapshot_seq = self.head.seq
        return True

    def _append(self, decision: Decision) -> Entry | None:
        if not decision.events:
            return None
        entry = self.store.append(self.head.seq, self.engine.now, decision.events)
        self.head = Head(seq=entry.seq, hash=entry.hash, at=entry.at)
        return entry


def calm_collector() -> None:
    """Have Python's collector walk the heap rarely; a process that schedules calls it once, at its start.

    Decisions leave hardly any cycles behind, and a ledger in memory is all live: with the usual thresholds a fifth of the time goes
    into looking for garbage that is not there, and more as history grows (bench/loop.py).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def fold(store: Store) -> tuple[State, int]:
    """The state that a store's entries tell, and the number of the entry whose snapshot it began from."""
    kept = store.latest_snapshot()
    state = State() if kept is None else snapshot.open_up(kept)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for entry in store.entries(after=0 if kept is None else kept.seq):
            for event in entry.events:
                state.apply(entry.at, event)
    finally:
        if enabled:
            gc.enable()
    state.settled()
    return state, 0 if kept is None else kept.seq
