"""Remedies: what a reservation lacks, and what could give way for it when it is due, from a dry run of the resolver."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.pack import need_of
from fairlease.engine.plan import Planner, least_width
from fairlease.engine.resolve import resolve
from fairlease.engine.seats import Seats
from fairlease.model.record import short
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.decide import Engine
    from fairlease.engine.resolve import Resolution
    from fairlease.ledger.live import RunState

LOOKED_INTO = 20
"""Dry runs for one round of forecasts: those who asked first. Who is asked about by name is looked into in any case."""

NAMED = 4
"""Runs that a remedy names; the others are counted."""


class Lack(NamedTuple):
    """GPUs that are missing, where they are looked for, and what could give way."""

    deficit_gpus: int = 0
    scope: str = ""
    remedies: tuple[str, ...] = ()


class Remedies:
    """One round: runs of one shape are looked into once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[bytes, Lack] = {}

    def of(self, run: RunState) -> Lack:
        """What a run lacks, as of the date of its reservation; nothing where it has none."""
        hold = run.hold
        if hold is None or not hold.holds:
            return Lack()
        found = self._known.get(run.shape)
        if found is None and len(self._known) < LOOKED_INTO:
            found = self._known[run.shape] = self._look(run, max(self._engine.now, hold.earliest_start))
        return Lack() if found is None else found

    def _look(self, run: RunState, when: int) -> Lack:
        engine, spec = self._engine, run.spec
        place = ",".join(f"{name}={value}" for name, value in sorted(spec.locality.location.items()))
        scope = spec.resources.gpu_type + (f" in {place}" if place else "")
        may_cut = run.hold is not None and run.hold.cut_from is not None
        found = resolve(engine.state, engine.family, run, when, 0, due=may_cut, beacon=engine.beacon)
        if found is not None:
            return Lack(found.record.outcome.deficit_gpus, scope, tuple(_told(found)))
        planner = Planner(engine.state, engine.family, run, when)
        if planner.pool is None:
            return Lack(spec.resources.total_gpus, scope)
        need = need_of(spec, least_width(spec))
        seats = Seats(engine.state, planner.pool, planner.reach(), need, planner.way)
        short = sum(gpus for _, gpus in seats.deficits())
        return Lack(short, scope, ("wait: no cut that is allowed would make room",) if short else ())


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
