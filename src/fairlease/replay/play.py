"""The replay of a trace: its jobs are asked for at their times, on the real engine, in virtual time.

At one instant: ends of work, then timers, then changes of Budgets, then new runs. Each is a tick of the scheduler, as in life;
between them nothing happens, so a quiet night costs nothing. Work ends after the time on the machine that the trace tells; an
attempt that is cut begins anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine import command as cmd
from fairlease.engine.forecast.calibration import Calibration
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Entry
from fairlease.model.amount import MINUTE
from fairlease.model.config import Config
from fairlease.replay.recorder import Watch
from fairlease.replay.trace import run_key
from fairlease.scheduler import Scheduler

if TYPE_CHECKING:
    from fairlease.ledger.state import events as ev
    from fairlease.ledger.store.protocol import Snapshot, Store
    from fairlease.model.record import Key
    from fairlease.replay.cluster import ClusterPlan, Money
    from fairlease.replay.trace import Asker, Trace, TraceJob

BUCKETS = 480
"""Into how many stretches of time the trace is divided, at most, for pictures."""

POLICY = Config(notice=None)
"""Under which traces are replayed unless another is given: funded work is not cut. Nothing that a trace tells of was, and where
money is ample each cut would begin long work anew."""

FORECASTS = 4_000
"""At most about so many forecasts, unless it is told otherwise; far fewer where few jobs must wait."""
THOUGHT_MAX = 80_000_000
"""Forecasts × jobs of a replay, about, unless it is told otherwise: who waits behind many costs more thought."""

IDLE_TICKS_MAX = 10_000
"""So many timers may fire in a row, with nothing running and nothing to come, before those who wait are given up."""

CUTS_MAX = 1_000
CUTS_EACH_MAX = 10
"""So many cuts, and so many more for each run that waits, may follow one another with no run's end between them, when nothing is to
come, before the replay is given up: runs that are longer than they are left in peace displace one another for ever."""

_REPORT_EVERY = 200

Progress = Callable[[int], None]
"""Told how many milliseconds of the trace have passed."""


class ReplayStage(NamedTuple):
    """Where a trace is replayed: the cluster, the money, how jobs become runs, and the policy.

    Of runs that must wait, every `forecasts`-th is forecast when it is asked for (0: none); what comes of that is scored.
    """

    plan: ClusterPlan
    money: Money
    asker: Asker
    config: Config
    forecasts: int = 0


class PassingStore(MemoryStore):
    """A ledger that is sealed, entry by entry, and not kept: a replay needs its head, and of the past only what it saw itself."""

    def append(self, expected_seq: int, at: int, events: tuple[ev.AnyEvent, ...]) -> Entry:
        """Seal the entry, and let it go."""
        entry = super().append(expected_seq, at, events)
        self._entries.clear()
        return entry

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Nobody will start from it."""


class TracePlay:
    """One replay, from the first job to the last end."""

    def __init__(self, trace: Trace, stage: ReplayStage, store: Store | None = None) -> None:
        self.trace = trace
        self.stage = stage
        self.scheduler = Scheduler(PassingStore() if store is None else store)
        self.watch = Watch(trace.begin, bucket_width(trace))
        self._jobs: dict[Key, TraceJob] = {}
        self._coming = 0
        self._changes = 1
        self._ends: list[tuple[int, int, Key, int]] = []
        self._ticks = 0
        self._idle = 0
        self._waited = 0
        self.calibration = Calibration()

    def play(self, progress: Progress) -> None:
        """Until nothing is left that could happen."""
        money = self.stage.money
        self._tick(self.trace.begin, cmd.Configure(self.stage.config), *self.stage.plan.commands(), *money[0][1])
        while (now := self._next()) is not None:
            self._end_work(now)
            self._fire_timers(now)
            while self._changes < len(money) and money[self._changes][0] <= now:
                self._tick(now, *money[self._changes][1])
                self._changes += 1
            self._ask(now)
            if self._ticks >= _REPORT_EVERY:
                self._ticks = 0
                progress(min(now, self.trace.end) - self.trace.begin)
        progress(self.trace.end - self.trace.begin)

    def _next(self) -> int | None:
        """When something happens next; None when all is over, or those who are left would wait or be cut for ever."""
        if self.stuck:
            return None
        jobs, money = self.trace.jobs, self.stage.money
        asked = jobs[self._coming].asked if self._coming < len(jobs) else sys.maxsize
        changed = money[self._changes][0] if self._changes < len(money) and self._lives() else sys.maxsize
        ended = self._ends[0][0] if self._ends else sys.maxsize
        timer = self.scheduler.next_timer()
        sure = min(asked, changed, ended)
        if sure == sys.maxsize:
            self._idle += 1
            return timer if self.watch.waiting_runs and self._idle <= IDLE_TICKS_MAX else None
        self._idle = 0
        return sure if timer is None else min(sure, timer)

    @property
    def stuck(self) -> bool:
        """Whether those who are left only displace one another."""
        most = CUTS_MAX + CUTS_EACH_MAX * self.watch.waiting_runs
        return self._coming == len(self.trace.jobs) and self.watch.cuts_since_end >= most

    def _lives(self) -> bool:
        """Whether there is anybody left to whom money could matter."""
        return self._coming < len(self.trace.jobs) or bool(self._ends) or self.watch.waiting_runs > 0

    def _end_work(self, now: int) -> None:
        ends = []
        while self._ends and self._ends[0][0] <= now:
            _, _, run, attempt = heappop(self._ends)
            live = self.scheduler.state.runs.get(run)
            if live is not None and live.leases and live.attempt == attempt:
                ends.append(cmd.WorkEnded(run, attempt, self._jobs[run].exit_code))
        if ends:
            self._tick(now, *ends)

    def _fire_timers(self, now: int) -> None:
        while (timer := self.scheduler.next_timer()) is not None and timer <= now:
            self._tick(now, cmd.TimePassed())

    def _ask(self, now: int) -> None:
        """Every job is a tick of its own, as it would be in life."""
        jobs = self.trace.jobs
        while self._coming < len(jobs) and jobs[self._coming].asked <= now:
            job = jobs[self._coming]
            self._coming += 1
            self._jobs[run_key(job)] = job
            self._tick(now, self.stage.asker.submit(job))
            self._forecast(now, run_key(job))

    def _forecast(self, now: int, run: Key) -> None:
        live = self.scheduler.state.runs.get(run)
        if self.stage.forecasts and live is not None and not live.leases:
            self._waited += 1
            if self._waited % self.stage.forecasts == 0:
                self._tick(now, cmd.Forecast((run,)))

    def _tick(self, now: int, *commands: cmd.AnyCommand) -> None:
        tick = self.scheduler.tick(now, *commands)
        self._ticks += 1
        if self.stage.forecasts:
            self.calibration.take(now, tick.decision.events)
        for opened in self.watch.take(now, tick.decision.events):
            job = self._jobs[opened.run]
            heappush(self._ends, (now + job.duration, self.watch.runs[opened.run].number, opened.run, opened.attempt))


def usual_forecasts(trace: Trace) -> int:
    """Which of those that wait are forecast unless it is told otherwise: every nth."""
    jobs = len(trace.jobs)
    return max(1, jobs // FORECASTS, jobs**2 // THOUGHT_MAX)


def bucket_width(trace: Trace) -> int:
    """A stretch of time such that a trace has at most so many: whole minutes."""
    return max(1, -(-(trace.end - trace.begin) // (BUCKETS * MINUTE))) * MINUTE
