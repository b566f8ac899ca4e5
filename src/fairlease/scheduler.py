"""One tick: decide, append, then keep what was decided, or undo it.

The thin shell around the engine that every backend shares. The append is the commit: what the store did not take never happened,
and the state is put back. A restart folds the store into a state, from the last snapshot on; after that nothing differs from
before, because the engine remembers nothing that the ledger does not tell.
"""

from __future__ import annotations

import gc
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.context import Decision, Engine, RunFault
from fairlease.engine.tick.decide import decide
from fairlease.ledger.state.state import State
from fairlease.ledger.state.undo import Trial
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.protocol import Entry, Head, Ledger, Snapshot, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.command import AnyCommand
    from fairlease.model.record import Key

SNAPSHOT_EVERY = 8_000
"""Entries after which a snapshot saves a later start from replaying them: about a second of replay."""


class Tick(NamedTuple):
    """What came of one tick; `entry` is None where nothing changed."""

    entry: Entry | None
    decision: Decision


class Proposal(NamedTuple):
    """A decision that the state shows already, while the store does not have it: to be kept, or undone."""

    trial: Trial
    at: int
    decision: Decision


class Decider:
    """A state, and the engine that decides over it.

    Who appends what it proposes is left open: `Scheduler` does it at once, a backend that has to wait for its ledger does it
    between `propose` and `keep`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.state, self._snapshot_seq = fold(ledger)
        self.engine = Engine(self.state, decide)
        self.head: Head = ledger.head()
        self._proposed: Proposal | None = None

    def propose(self, now: int, *commands: AnyCommand) -> Proposal:
        """Decide, and leave it open: one proposal at a time, and `keep` or `undo` it."""
        assert self._proposed is None, "a proposal is kept or undone before the next"
        trial, decision = self._decide(now, commands)
        self._proposed = Proposal(trial, self.engine.now, decision)
        return self._proposed

    def _decide(self, now: int, commands: tuple[AnyCommand, ...]) -> tuple[Trial, Decision]:
        """One decision, inside a trial. A fault while a run was handled is that run's: all is undone and decided without it."""
        faults: dict[Key, RunFault] = {}
        while True:
            trial = self.state.trial()
            try:
                return trial, self.engine.decide(now, commands, faults)
            except BaseException as error:
                subject, requested = self.engine.subject, self.engine.requested
                trial.undo()
                if not isinstance(error, Exception) or subject is None or subject in faults:
                    raise
                message = f"the scheduler failed to handle it ({type(error).__name__})"
                faults[subject] = RunFault(message, requested, "".join(traceback.format_exception(error)))

    def keep(self, proposal: Proposal, entry: Entry | None) -> Tick:
        """It is in the ledger, as `entry`; or it changed nothing, and there is none."""
        assert proposal is self._proposed, "what is kept was proposed last"
        assert (entry is None) == (not proposal.decision.events), "an entry holds what was decided"
        self._proposed = None
        proposal.trial.keep()
        if entry is not None:
            self.head = Head(seq=entry.seq, hash=entry.hash, at=entry.at)
        return Tick(entry, proposal.decision)

    def undo(self, proposal: Proposal) -> None:
        """It did not get into the ledger: it never happened."""
        assert proposal is self._proposed, "what is undone was proposed last"
        self._proposed = None
        proposal.trial.undo()

    @contextmanager
    def what_if(self, now: int, *commands: AnyCommand) -> Iterator[Decision]:
        """Decide, look, and undo: nothing is written."""
        trial, decision = self._decide(now, commands)
        with trial:
            yield decision

    def next_timer(self) -> int | None:
        """When something falls due."""
        return self.state.timers.next()

    def due_snapshot(self, *, force: bool = False) -> Snapshot | None:
        """A snapshot, where enough has happened since the last one that a start should not have to replay it all."""
        assert self._proposed is None, "a snapshot holds what is in the ledger"
        if self.head.seq == self._snapshot_seq or not (force or self.head.seq - self._snapshot_seq >= SNAPSHOT_EVERY):
            return None
        return snapshot.take(self.state, self.head)

    def saved(self, kept: Snapshot) -> None:
        """The ledger has this snapshot."""
        self._snapshot_seq = kept.seq


class Scheduler(Decider):
    """A store, the state it folds to, and the engine that decides over it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store

    def tick(self, now: int, *commands: AnyCommand) -> Tick:
        """Decide, append, keep; on any failure to append nothing has happened."""
        proposal = self.propose(now, *commands)
        try:
            events = proposal.decision.events
            entry = self.store.append(self.head.seq, proposal.at, events) if events else None
        except BaseException:
            self.undo(proposal)
            raise
        return self.keep(proposal, entry)

    def save_snapshot(self, *, force: bool = False) -> bool:
        """Keep a snapshot where one is due."""
        due = self.due_snapshot(force=force)
        if due is None:
            return False
        self.store.save_snapshot(due)
        self.saved(due)
        return True


def calm_collector() -> None:
    """Have Python's collector walk the heap rarely; a process that schedules calls it once, at its start.

    Decisions leave hardly any cycles behind, and a ledger in memory is all live: with the usual thresholds a fifth of the time goes
    into looking for garbage that is not there, and more as history grows (bench/loop.py).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def beginning(ledger: Ledger) -> tuple[State, int]:
    """The state from which a ledger's entries are folded, and the number of the last entry in it.

    A snapshot that another version took may have another shape. It saves time and proves nothing, so it is passed over then.
    """
    kept = ledger.latest_snapshot()
    state = None if kept is None else snapshot.open_up(kept)
    return (State(), 0) if kept is None or state is None else (state, kept.seq)


def fold(ledger: Ledger) -> tuple[State, int]:
    """The state that a ledger's entries tell, and the number of the entry whose snapshot it began from."""
    state, since = beginning(ledger)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for entry in ledger.entries(after=since):
            for event in entry.events:
                state.apply(entry.at, event)
    finally:
        if enabled:
            gc.enable()
    state.settled()
    return state, since
