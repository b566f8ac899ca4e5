"""Remedies: what a reservation lacks, and what could give way for it when it is due, from a dry run of the resolver."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.place.fit_count import FitCount
from fairlease.engine.place.plan import Planner
from fairlease.engine.preempt.lottery import LotteryPools
from fairlease.engine.preempt.resolve import resolve
from fairlease.engine.preempt.selection import lacking
from fairlease.engine.reserve.release_times import due_date, noticed
from fairlease.ledger.state.runs import footprint_of
from fairlease.model.record import short
from fairlease.model.reservation import Scope
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
    from fairlease.engine.preempt.resolve import Resolution
    from fairlease.ledger.state.events import AnyEvent
    from fairlease.ledger.state.runs import Footprint, Hold, RunState

LOOKED_INTO = 8
"""Dry runs for one round of forecasts, for those of a flavor who asked first. Who is asked about by name is looked into in any
case; of the others it is counted what they lack."""

NAMED = 4
"""Runs that a remedy names; the others are counted."""


class Lack(NamedTuple):
    """GPUs that are missing, where they are looked for, and what could give way."""

    deficit_gpus: int = 0
    scope: str = ""
    remedies: tuple[str, ...] = ()


class Remedies:
    """One round. What is told of a run is its own: its width, its money, its date, and who stands before it.

    Only what is lacking is counted once for all who need the same room on the same nodes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pools: dict[tuple[AnyEvent, ...], LotteryPools] = {}
        self._counts: dict[tuple[str, Footprint, int], int] = {}
        self._looks = Counter[str]()

    def of(self, run: RunState) -> Lack:
        """What a run lacks, as of the date of its reservation; nothing where it has none."""
        hold = run.hold
        if hold is None:
            return Lack()
        scope = Scope.of(run.spec).words
        planner = Planner(self._engine.state, self._engine.family, run, max(self._engine.now, hold.earliest_start))
        unfunded = planner.unfunded()
        if unfunded is not None or not hold.holds:
            remedy = hold.reason.remedy if unfunded is None else unfunded.remedy
            return Lack(self._lacking(planner, planner.payable()), scope, (remedy,))
        found = self._look(run) if hold.lien else None
        if found is not None:
            return Lack(found.record.outcome.deficit_gpus, scope, tuple(_told(found)))
        lacking = self._lacking(planner, planner.reach())
        return Lack(lacking, scope, (f"wait: {self._waits_for(run, hold)}",) if lacking else ())

    def _look(self, run: RunState) -> Resolution | None:
        """Who would give way on the day; None where nobody may, need or can, and for those who asked too late to be looked into."""
        engine, flavor = self._engine, run.spec.resources.gpu_type
        if self._looks[flavor] >= LOOKED_INTO or run.hold is None or not noticed(run, run.hold.earliest_start):
            return None
        with due_date(engine.state, run, engine.now) as day:
            if day is None or Planner(engine.state, engine.family, run, day.at).starts():
                return None
            self._looks[flavor] += 1
            pools = self._pools.setdefault(day.gone, LotteryPools(engine.state))
            found = resolve(engine.state, engine.family, run, day.at, 0, due=True, beacon=engine.beacon, pools=pools)
        return found if found is not None and found.victims else None

    def _waits_for(self, run: RunState, hold: Hold) -> str:
        """What a run waits for to which nobody would give way."""
        if hold.basis is Reason.HardFacts:
            return "enough GPUs come free by deadlines and windows"
        if hold.basis is Reason.WindowClosed:
            return "its money's window opens then"
        near = self._engine.state.standings.near.get(run.spec.resources.gpu_type)
        if near is not None and near.bisect_left(run.order):
            return "those who asked earlier come first"
        return "no cut that is allowed would make room"

    def _lacking(self, planner: Planner, reach: int) -> int:
        """GPUs that are missing on some nodes."""
        state, run = self._engine.state, planner.run
        if planner.pool is None:
            return run.spec.resources.total_gpus
        room = (planner.pool.flavor, footprint_of(run.spec), reach)
        found = self._counts.get(room) if planner.way is None else None
        if found is None:
            seats = FitCount(state, planner.pool, reach, planner.least, planner.way)
            found = sum(each.gpus for each in lacking(seats))
            if planner.way is None:  # Else it is one run's own, who may pass liens.
                self._counts[room] = found
        return found


def _told(found: Resolution) -> list[str]:
    """What would give way, class by class. Who is drawn is not known before the draw: it is told how many stand in it."""
    runs: dict[Reason, Counter[str]] = {}
    for victim in found.victims:
        runs.setdefault(victim.reason, Counter())[short(victim.run)] += victim.gpus
    words = {
        Reason.ReclaimOpportunistic: "reclaim from opportunistic",
        Reason.ReclaimOverdrawn: "reclaim from overdrawn",
        Reason.DropSpare: "drop spares of",
        Reason.Shrink: "shrink",
    }
    lines = []
    for reason, gpus in runs.items():
        if reason is Reason.RandomPreempt:
            lottery = found.record.outcome.lottery
            standing = len(lottery.tokens) if lottery is not None else 0
            many = "the one run that is in question" if standing == 1 else f"{len(gpus)} of {standing} runs by lot"
            lines.append(f"end {many} ({gpus.total()} GPUs)")
            continue
        names = ", ".join(list(gpus)[:NAMED]) + (f" and {len(gpus) - NAMED} more" if len(gpus) > NAMED else "")
        lines.append(f"{words[reason]} {names} ({gpus.total()} GPUs)")
    return lines
