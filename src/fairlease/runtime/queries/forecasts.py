"""Foresight: what is foreseen of runs, for those who ask; and whether what was foreseen came true."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from fairlease.engine.forecast import forecast
from fairlease.engine.forecast.calibration import Calibration, calibrate
from fairlease.engine.preempt.odds import odds
from fairlease.engine.reserve.release_times import cuts_on
from fairlease.model.amount import format_instant
from fairlease.model.record import short
from fairlease.model.run import Phase
from fairlease.report.explain import explain
from fairlease.report.reservation_history import forecast_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlease.engine.context import Engine
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.store.protocol import Entry
    from fairlease.runtime.queries.facts import Facts
    from fairlease.runtime.queries.history import SubmittedRun

View = dict[str, Any]

CLAIMS_MAX = 8
"""Coming reservations, the next first, for which the odds of a run are told."""


def eta_of(facts: Facts, asked: SubmittedRun) -> View:
    """One run: when it starts, thought through as of now; what runs learns its odds of being cut, what is over how it ended."""
    run = facts.state.runs.get(asked.run)
    if run is None:
        assert asked.ending is not None, "what does not live has ended"
        ended = asked.ending.ended
        how = {"at": format_instant(asked.ending.at), "reason": ended.reason.value, "message": ended.message}
        return {"name": short(asked.run), "owner": asked.spec.owner, "phase": ended.phase.value, "ended": how}
    engine = facts.engine_now()
    if run.phase is Phase.RUNNING:
        return _told(facts, run) | {"odds": odds_of_cuts(engine, run)}
    found = foreseen(engine, run)
    if found is not None:
        return _who(run) | {"forecast": found}
    view = _told(facts, run)
    if "reason" in view:
        view["message"], view["remedy"] = explain(engine.state, engine.family, run, engine.now).of(run)
    return view


def etas(facts: Facts, whose: Callable[[str], bool], limit: int) -> list[View]:
    """All runs that wait, of those owners, in order of asking, as it was last written down."""
    runs = (facts.state.runs[run] for run in forecast.waiting(facts.state))
    return [_told(facts, run) for run in islice((run for run in runs if whose(run.spec.owner)), limit)]


def _told(facts: Facts, run: RunState) -> View:
    """One run, with the forecast that was last written down; the reason why it has none.

    What was foreseen before its reservation was blocked has nothing to rest on any more.
    """
    view = _who(run)
    if run.phase is Phase.RUNNING:
        view["startedAt"] = format_instant(run.started_at or 0)
    elif run.foreseen is None or (run.hold is not None and not run.hold.holds):
        view |= {"reason": run.reason.value, "message": run.message, "remedy": run.reason.plain_remedy}
    else:
        view["forecast"] = tested(facts.scheduler.engine, forecast_view(*run.foreseen))
    return view


def foreseen(engine: Engine, run: RunState) -> View | None:
    """When a run that waits would start, how sure that is, and what could give way; None where nobody can tell."""
    found = forecast.outlooks(engine, [run.key]).get(run.key)
    return None if found is None else tested(engine, forecast_view(engine.now, forecast.foreseen(engine, run, found)))


def tested(engine: Engine, told: View) -> View:
    """A forecast with how often such words were kept; nothing where nobody who was forecast has started yet."""
    return told if engine.state.waits.scored else told | {"confidence": None}


def _who(run: RunState) -> View:
    """A run and its date; of one that is blocked, why it has none."""
    view: View = {"name": short(run.key), "owner": run.spec.owner, "phase": run.phase.value}
    hold = run.hold
    if hold is not None:
        view["reservation"] = {
            "name": hold.name,
            "state": hold.state.value,
            "earliestStart": format_instant(hold.earliest_start) if hold.holds else None,
            "basis": hold.basis.value if hold.holds else hold.reason.value,
        }
        if not hold.holds:
            view["reservation"]["message"] = hold.message
    return view


def odds_of_cuts(engine: Engine, run: RunState) -> list[View]:
    """The odds of a running run to be cut for each of the next reservations that may cut."""
    flavor = run.spec.resources.gpu_type
    alike = (each for each in engine.state.holds.values() if each.spec.resources.gpu_type == flavor)
    claims = sorted((when, each.order, each) for each in alike if (when := cuts_on(each, engine.now)) is not None)
    found = []
    for _, _, claim in claims[:CLAIMS_MAX]:
        chances = odds(engine, claim)
        if chances is not None and run.key in chances.chances:
            found.append(
                {
                    "claim": short(claim.key),
                    "at": format_instant(chances.at),
                    "chance": round(chances.chances[run.key], 4),
                    "exact": chances.draws == 0,
                    "draws": chances.draws,
                }
            )
    return found


def forecast_report(entries: Iterable[Entry], whose: Callable[[str], bool], since: int | None) -> View:
    """Shares and errors of all forecasts in a ledger's past that came to a start, by owner and horizon."""
    fold = Calibration()
    for entry in entries:
        fold.take(entry.at, entry.events)
    return calibrate([each for each in fold.samples if whose(each.owner) and (since is None or each.asked >= since)])
