"""Rehearsal: one forward play of the real engine, from the state as it is, over facts and predicted ends; then it never was.

Timers fall due as they will: deadlines, windows, hours that run out, reservations. Work ends when it is predicted to, in the middle
of what is believed of it. What then starts, and by what, is what is wanted; nothing is written, and nothing is learned from it.
Later arrivals, failures and cancellations are not played: how far that leads astray is learned from what comes of forecasts
(`ledger.learning.waits`).

Who stands near the front of its line is played; whose turn lies far behind is told by `fluid_queue`, and if nobody else is asked
about, nothing is played at all.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, nsmallest
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.command import PodsGone, TimePassed, WorkEnded
from fairlease.engine.forecast import predicted_ends
from fairlease.engine.forecast.fluid_queue import Turns, places
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.timers import Due
from fairlease.model.amount import DAY, SECOND
from fairlease.model.record import Key
from fairlease.model.reservation import RunRef
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Collection

    from fairlease.engine.context import Decision, Engine
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State

HORIZON = 120 * DAY
STEPS_MAX = 4_000
"""Where a rehearsal ends though somebody still waits."""

NEAR = 128
"""Who has fewer than so many before it in its line is played, or fewer than runs are asked about; as many starts at the most."""

CROWD = 512
"""From so many runs on the machine on, ends are moved to a grid that widens with their distance (1/32 of it at most), so that the
number of steps depends on the distance looked at, and no more on how much runs."""
_GRID_BITS = 5

HOLDS_MAX = 16
"""Reservations that are played with all that follows from them."""

_FUNDED = (Reason.DropSpare, Reason.Shrink, Reason.RandomPreempt)
"""Why work gives way that has a claim to its GPUs, and therefore its notice."""


class Start(NamedTuple):
    """When a run starts in the rehearsal, and what lets it; `far`: not played, but told by the fluid queue."""

    at: int
    source: Reason
    after: Key | None = None
    far: bool = False


def leaving(state: State) -> tuple[PodsGone, ...]:
    """Reports that all work is gone that is leaving: a rehearsal counts it as free from the beginning."""
    names: dict[Key, list[str]] = {}
    for _, each in sorted(state.leaving.items()):
        names.setdefault(each.lease.run, []).append(each.lease.name)
    return tuple(PodsGone(run, tuple(leases)) for run, leases in names.items())


class Rehearsal:
    """One play, until all that are wanted have started. `baseline`: with the mean of the last two durations instead of our own."""

    def __init__(self, engine: Engine, wanted: Collection[Key], *, baseline: bool = False) -> None:
        self.state = engine.state
        self.now = engine.now
        self.starts: dict[Key, Start] = {}
        self.steps = 0
        self.played = 0
        self._engine = engine.twin()
        self._baseline = baseline
        self._wanted = {run for run in wanted if self.state.runs[run].reason.transient}
        self._waiting = set(self._wanted)
        self._ends: list[tuple[int, int, Key, int]] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._crowd = False
        self._promised: dict[Key, int] = {}
        self._left: tuple[PodsGone, ...] = ()

    def play(self) -> dict[Key, Start]:
        """Until all that are wanted have started, or nothing more happens, or it is far enough."""
        near = self._near()
        goes_on, reached = True, self.now
        if near:
            goes_on, reached = self._play(near)
        if goes_on:
            self._by_flow(reached)
        self._keep_promises(reached)
        return self.starts

    def _near(self) -> set[Key]:
        """Those who are wanted and stand near the front of their line."""
        state, front = self.state, max(NEAR, len(self._wanted))
        if sum(len(shape.runs) for shape in state.queue.shapes.values()) <= front:
            return self._wanted
        place = places(state)
        return {key for key in self._wanted if place(state.runs[key]) < front}

    def _play(self, near: set[Key]) -> tuple[bool, int]:
        """Until these have started; whether more would happen after that, and when that was. Everything is undone."""
        state, most = self.state, max(NEAR, len(near))
        with state.trial():
            state.stop_teaching()
            running = state.running()
            self._crowd = len(running) > CROWD
            self._ends = [self._end_of(run) for run in running]
            heapify(self._ends)
            self._simplify()
            self._left = leaving(state)
            while not near.isdisjoint(self._waiting):
                if self.steps >= STEPS_MAX or self.played >= most:
                    break
                if not self._step():
                    return False, state.at
                self.steps += 1
            return True, state.at

    def _step(self) -> bool:
        """The next instant at which something happens; False where nothing more does."""
        timer = self.state.timers.next()
        now = min(
            self._ends[0][0] if self._ends else HORIZON + self.now, HORIZON + self.now if timer is None else timer
        )
        if self._left:
            now = self.now
        if now >= HORIZON + self.now:
            return False
        ended = self._due(now)
        bases = {} if ended else self._bases(now)
        decision = self._engine.decide(now, (*self._left, *ended) or (TimePassed(),))
        self._left = ()
        for run in _begun(decision):
            found = self.state.runs.get(run)
            if found is None or found.phase is not Phase.RUNNING:
                continue  # It gave way in the same decision, as opportunistic work does to who asked after it.
            if run in self._waiting:
                self._waiting.discard(run)
                self.starts[run] = self._after(ended, now) or self._by_fact(run, now, decision, bases)
            self.played += 1
            heappush(self._ends, self._end_of(found))
        self._waiting.difference_update(event.run for event in decision.events if isinstance(event, ev.RunEnded))
        return True

    def _bases(self, now: int) -> dict[Key, Reason]:
        """What the dates of reservations rest on that fall due now."""
        found: dict[Key, Reason] = {}
        for due, subject in self.state.timers.due(now):
            hold = self.state.runs[Key(subject[0])].hold if due is Due.RESERVATION else None
            if hold is not None:
                found[Key(subject[0])] = Reason.Window if hold.basis is Reason.WindowClosed else hold.basis
        return found

    def _simplify(self) -> None:
        """Play only the first reservations with their liens and cuts, which are dear to think through.

        The others are in the queue like everybody; if the notice is over before their turn comes, that is when they start.
        """
        holds = self.state.holds
        if len(holds) <= HOLDS_MAX:
            return
        held = [(hold, key, run.order) for key, run in holds.items() if (hold := run.hold) is not None]
        dates = [(hold.earliest_start, order, key) for hold, key, order in held]
        first = [key for _, _, key in nsmallest(HOLDS_MAX, dates)]
        cut_for = [(hold, key) for hold, key, _ in held if hold.cut_from is not None and key not in first]
        self._promised = {key: max(self.now, hold.earliest_start) for hold, key in cut_for}
        self.state.pretend_reserved(first)

    def _keep_promises(self, reached: int) -> None:
        """Who may have others cut when its notice is over starts then at the latest, unless that was played and did not help."""
        for run in self._waiting:
            hold = self.state.runs[run].hold
            if hold is not None and hold.cut_from is not None and hold.earliest_start >= reached:
                self._promised.setdefault(run, max(self.now, hold.earliest_start))
        for run, date in self._promised.items():
            start = self.starts.get(run)
            if start.at > date if start is not None else run in self._waiting:
                self.starts[run] = Start(date, Reason.Notice)

    def _due(self, now: int) -> list[WorkEnded]:
        found = []
        while self._ends and self._ends[0][0] <= now:
            _, _, key, attempt = heappop(self._ends)
            run = self.state.runs.get(key)
            if run is not None and run.phase is Phase.RUNNING and run.attempt == attempt:
                found.append(WorkEnded(key, attempt, 0))
        return found

    def _end_of(self, run: RunState) -> tuple[int, int, Key, int]:
        start, now = run.started_at, max(self.state.at, self.now)
        assert start is not None, "what runs has started"
        end = start + self._lasts(run, now - start)
        if self._crowd:
            ahead = end - self.now
            grain = max(SECOND, 1 << max(0, ahead.bit_length() - _GRID_BITS - 1))
            end = self.now - (-ahead // grain) * grain
        return end, run.order, run.key, run.attempt

    def _lasts(self, run: RunState, elapsed: int) -> int:
        """How long an attempt lasts in all that has lasted for `elapsed`; alike for all of one kind that begin anew.

        In a crowd also for those that have lasted about as long, to an eighth: else each that runs would have to be thought about.
        """
        if elapsed and not self._crowd:
            return self._predicted(run, elapsed)
        kind = predicted_ends.alike(run, elapsed)
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = self._predicted(run, elapsed)
        return max(found, elapsed + 1)

    def _predicted(self, run: RunState, elapsed: int) -> int:
        predicted = predicted_ends.last_two if self._baseline else predicted_ends.middle
        return predicted(self.state, run, elapsed)

    def _by_flow(self, reached: int) -> None:
        """Those whose turn was not played: it comes after all that was."""
        if not self._waiting:
            return
        turns = Turns(self.state, self.now, self._lasts, expected=not self._baseline)
        for key in self._waiting:
            turn = turns.of(self.state.runs[key])
            if turn is not None:
                self.starts[key] = Start(max(self.now + turn, reached), Reason.Predicted, far=True)

    def _after(self, ended: list[WorkEnded], at: int) -> Start | None:
        """What was let start by the end of work; None where no work ended."""
        return Start(at, Reason.Predicted, ended[-1].run) if ended else None

    def _by_fact(self, key: Key, at: int, decision: Decision, bases: dict[Key, Reason]) -> Start:
        source, after = bases.get(key, Reason.HardFacts), None
        for event in decision.events:
            if isinstance(event, ev.OutcomeRecorded) and event.outcome.claim == RunRef.of(key):
                if any(cut.reason in _FUNDED for cut in event.outcome.actions):
                    source = Reason.Notice
            elif isinstance(event, ev.EnvelopeTurned) and event.turn is ev.Turn.OPENED and key not in bases:
                source = Reason.Window
            elif isinstance(event, ev.LeasesClosed) and event.reason is Reason.TimeLimit:
                after = event.run
        return Start(at, source, after)


def _begun(decision: Decision) -> dict[Key, None]:
    """The runs that started in a decision, each once."""
    opened = (event for event in decision.events if isinstance(event, ev.LeasesOpened))
    return {event.run: None for event in opened if event.reason is Reason.Start}
