"""Forecast: when a waiting run will start: P10, P50 and P90 (SEMANTICS §6).

Two rehearsals of the engine are played, one with durations as history has them in the middle, one with the mean of the last two
like each. What is foreseen lies between, in the logarithm of time. The interval around it is what forecasts of the same horizon
have taught (`intervals`), so that four fifths of all starts come to lie between P10 and P90 whatever the cluster is like. What is
certain bounds all of it: nothing starts in the past, a date by hard facts is kept.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.forecast.intervals import interval
from fairlease.engine.forecast.rehearsal import NEAR, Rehearsal, Start
from fairlease.engine.forecast.remedies import Remedies
from fairlease.ledger.learning.waits import CERTAIN, SHARES
from fairlease.ledger.state import events as ev
from fairlease.model.amount import MINUTE, SECOND, format_duration
from fairlease.model.record import short
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Collection

    from fairlease.engine.context import Engine
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.record import Key

MOVED_MIN = MINUTE
MOVED_SHARE = 4
"""A forecast has moved where P50 differs by a quarter of the time that is left, and a minute at least, or its source changed."""

COMPARED = NEAR
"""Runs forecast at one instant for which both rehearsals are played; the others rest on the first alone."""

CONFIDENT = 10
"""The share that is aimed at counts as much as so many starts, so that the first ones do not say too much."""


class WaitForecast(NamedTuple):
    """What is foreseen of one run: P10, P50 and P90, the start in the rehearsal, and in the one with the last two durations."""

    p10: int
    p50: int
    p90: int
    start: Start
    baseline: Start | None


def outlooks(engine: Engine, wanted: Collection[Key]) -> dict[Key, WaitForecast]:
    """For every run named that would start if things went as predicted."""
    starts = Rehearsal(engine, wanted).play()
    compared = [run for run in wanted if run in starts][:COMPARED]
    baseline = Rehearsal(engine, compared, baseline=True).play() if compared else {}
    return {run: _outlook(engine, run, starts[run], baseline.get(run)) for run in wanted if run in starts}


def waiting(state: State) -> list[Key]:
    """All runs that wait, in order of asking."""
    found = [run for run in state.runs.values() if run.phase is Phase.PENDING]
    return [run.key for run in sorted(found, key=lambda run: run.order)]


def confidence(state: State) -> int:
    """Of a hundred starts that had been forecast lately, how many came between P10 and P90."""
    scored = state.waits.scored
    aimed_at = SHARES[-1] - SHARES[0]
    inside = 1000 * sum(row.inside for row in scored) + CONFIDENT * aimed_at
    return round(inside / (len(scored) + CONFIDENT) / 10)


def record(engine: Engine, runs: tuple[Key, ...] = ()) -> None:
    """Forecast the runs named, or all that wait, and write down what was not known yet."""
    state = engine.state
    wanted = (
        [run for run in runs if run in state.runs and state.runs[run].phase is Phase.PENDING]
        if runs
        else waiting(state)
    )
    if not wanted:
        return
    found = outlooks(engine, wanted)
    told = [run for run in wanted if run in found and _moved(state.runs[run], found[run], engine.now)]
    if told:
        remedies = Remedies(engine)
        rows = tuple(_row(engine, state.runs[run], found[run], remedies) for run in told)
        engine.emit(ev.Forecasted(runs=rows))


def foreseen(engine: Engine, run: RunState, found: WaitForecast) -> ev.Foreseen:
    """A forecast as it would be written down now."""
    return _row(engine, run, found, Remedies(engine))


def _row(engine: Engine, run: RunState, found: WaitForecast, remedies: Remedies) -> ev.Foreseen:
    lack = remedies.of(run)
    return ev.Foreseen(
        run=run.key,
        p10=found.p10,
        p50=found.p50,
        p90=found.p90,
        source=found.start.source,
        why=_why(run, found, engine.now),
        play=found.start.at - engine.now,
        baseline=None if found.baseline is None else found.baseline.at - engine.now,
        confidence=confidence(engine.state),
        deficit_gpus=lack.deficit_gpus,
        scope=lack.scope,
        remedies=lack.remedies,
    )


def _outlook(engine: Engine, key: Key, start: Start, baseline: Start | None) -> WaitForecast:
    now, run = engine.now, engine.state.runs[key]
    wait = start.at - now
    foreseen = wait if baseline is None or start.far or baseline.far else isqrt(wait * (baseline.at - now))
    p10, p50, p90 = (_bounded(run, now + each, start, now) for each in interval(engine.state.waits, foreseen))
    return WaitForecast(p10, p50, p90, start, baseline)


def _bounded(run: RunState, when: int, start: Start, now: int) -> int:
    """No date in the past, none before the money's window opens, none after a date that hard facts or rules give.

    Unless the play says otherwise: other money may come free before the window, and others may be served before that date.
    """
    hold = run.hold
    if start.source in CERTAIN:
        when = min(when, start.at)
    if hold is not None and hold.holds:
        if hold.basis is Reason.HardFacts:
            when = min(when, max(start.at, hold.earliest_start))
        elif hold.basis is Reason.WindowClosed:
            when = max(when, min(start.at, hold.earliest_start))
    return max(when, now)


def unheard(run: RunState) -> bool:
    """Whether a run that waits has no forecast yet, or none since its reservation was made."""
    return run.foreseen is None or (run.hold is not None and run.hold.made_at > run.foreseen[0])


def _moved(run: RunState, found: WaitForecast, now: int) -> bool:
    if run.foreseen is None or unheard(run):
        return True
    before = run.foreseen[1]
    enough = max(MOVED_MIN, (found.p50 - now) // MOVED_SHARE)
    return abs(found.p50 - before.p50) > enough or found.start.source is not before.source


def _why(run: RunState, found: WaitForecast, now: int) -> str:
    """What a run waits for, and what changed since it was told before."""
    start = found.start
    ahead = {
        Reason.Predicted: f"when {short(start.after)} has ended" if start.after else "when enough work has ended",
        Reason.HardFacts: f"when {short(start.after)} reaches its limit"
        if start.after
        else "at a date that is certain",
        Reason.Notice: "when the notice is over, and others give way",
        Reason.Window: "when its money's window opens",
    }[start.source]
    if run.foreseen is None:
        return ahead
    at, before = run.foreseen
    hold = run.hold
    moved = found.p50 - before.p50
    told = f"{format_duration(abs(moved) // SECOND * SECOND)} {'later' if moved > 0 else 'sooner'}"
    if abs(moved) < SECOND:
        told = "as before"
    if hold is not None and hold.made_at > at:
        return f"{told}: the reservation moved ({hold.reason.value}); {ahead}"
    if start.source is not before.source:
        return f"{told}: it rests on {start.source.value}, no more on {before.source.value}; {ahead}"
    if now > before.p50:
        return f"{told}: P50 passed and it still waits; {ahead}"
    if abs(moved) < SECOND:
        return ahead
    cause = "work ahead of it runs longer than predicted" if moved > 0 else "work ahead of it ended, or will, sooner"
    return f"{told}: {cause}; {ahead}"
