"""Remedies: what a reservation lacks, and what could give way for it when it is due, from a dry run of the resolver."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.pack import need_of
from fairlease.engine.plan import Planner, least_width
from fairlease.engine.resolve import resolve
from fairlease.engine.seats import Seats
from fairlease.engine.sortition import Rolls
from fairlease.ledger.live import footprint_of
from fairlease.model.record import short
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.decide import Engine
    from fairlease.engine.resolve import Resolution
    from fairlease.ledger.live import Footprint, Hold, RunState

LOOKED_INTO = 8
"""Dry runs for one round of forecasts: those who asked first. Who is asked about by name is looked into in any case; of the others
it is counted what they lack."""

NAMED = 4
"""Runs that a remedy names; the others are counted."""


class Lack(NamedTuple):
    """GPUs that are missing, where they are looked for, and what could give way."""

    deficit_gpus: int = 0
    scope: str = ""
    remedies: tuple[str, ...] = ()


class Remedies:
    """One round: runs of one shape are looked into once, what is lacking is counted once for all that need the same room."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rolls = Rolls(engine.state)
        self._known: dict[bytes, Lack] = {}
        self._counts: dict[tuple[str, Footprint, int], int] = {}
        self._looks = 0

    def of(self, run: RunState) -> Lack:
        """What a run lacks, as of the date of its reservation; nothing where it has none."""
        hold = run.hold
        if hold is None:
            return Lack()
        found = self._known.get(run.shape)
        if found is None:
            near = hold.holds and self._looks < LOOKED_INTO
            self._looks += near
            found = self._known[run.shape] = self._look(run, hold, near=near)
        return found

    def _look(self, run: RunState, hold: Hold, *, near: bool) -> Lack:
        engine, spec = self._engine, run.spec
        when = max(engine.now, hold.earliest_start)
        place = ",".join(f"{name}={value}" for name, value in sorted(spec.locality.location.items()))
        scope = spec.resources.gpu_type + (f" in {place}" if place else "")
        if near:
            due = hold.cut_from is not None
            state, family = engine.state, engine.family
            found = resolve(state, family, run, when, 0, due=due, beacon=engine.beacon, rolls=self._rolls)
            if found is not None:
                return Lack(found.record.outcome.deficit_gpus, scope, tuple(_told(found)))
        lacking = self._lacking(run, when)
        wait = "no cut that is allowed would make room" if near else "those who asked earlier come first"
        if not hold.holds:
            wait = hold.reason.remedy
        return Lack(lacking, scope, (f"wait: {wait}",) if lacking or not hold.holds else ())

    def _lacking(self, run: RunState, when: int) -> int:
        state = self._engine.state
        planner = Planner(state, self._engine.family, run, when)
        if planner.pool is None:
            return run.spec.resources.total_gpus
        reach = planner.reach()
        room = (planner.pool.flavor, footprint_of(run.spec), reach)
        found = self._counts.get(room) if planner.way is None else None
        if found is None:
            seats = Seats(state, planner.pool, reach, need_of(run.spec, least_width(run.spec)), planner.way)
            found = sum(gpus for _, gpus in seats.deficits())
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
            lines.append(f"end {len(gpus)} of {standing} runs by lot ({gpus.total()} GPUs)")
            continue
        names = ", ".join(list(gpus)[:NAMED]) + (f" and {len(gpus) - NAMED} more" if len(gpus) > NAMED else "")
        lines.append(f"{words[reason]} {names} ({gpus.total()} GPUs)")
    return lines
