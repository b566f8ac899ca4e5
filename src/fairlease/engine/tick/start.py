"""Start: cover, pack and bind one waiting run, with what it may preempt; or why not, and until when it waits (SEMANTICS §3–§7)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlease.engine.place.bind import bind
from fairlease.engine.place.plan import Planner, widths
from fairlease.engine.preempt.resolve import resolve
from fairlease.engine.refusal import Refusal
from fairlease.engine.reserve import reservation
from fairlease.engine.reserve.release_times import too_late
from fairlease.engine.tick import coverage, lifecycle, scavenging
from fairlease.engine.tick.leaving import leaves_by
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
    from fairlease.engine.place.plan import Plan
    from fairlease.engine.preempt.resolve import Resolution
    from fairlease.ledger.state import events as ev
    from fairlease.ledger.state.runs import RunState


def start(engine: Engine, run: RunState) -> Refusal | None:
    """Cover, pack and bind, or say why not. Too late is too late, even where the timer that says so comes after us."""
    latest = run.spec.runtime.latest_start
    if latest is not None and latest < engine.now and run.attempt == 1:
        lifecycle.end_run(engine, run, Reason.LatestStartPassed)
        return None
    planner = Planner(engine.state, engine.family, run, engine.now)
    refusal = planner.unfunded(told=not engine.rehearses)
    if refusal is not None:
        return refusal
    plan = planner.widest()
    asked = widths(run.spec)[-1]
    if plan is None or plan.width < asked:
        if engine.state.leaving and _waits_for_leaving(engine, run, plan):
            return _wait_for_room(engine, run, planner)
        resolution = _resolve(engine, run, 0 if plan is None else plan.width)
        if resolution is not None:
            lifecycle.cut(engine, resolution)
            if engine.state.overdrawn:  # The money of those who were preempted covers others again: they are not next.
                coverage.settle(engine)
            plan = resolution.plan
            if plan is not None and engine.state.leaving and reservation.wait_for_leaving(engine, run, plan):
                return _wait_for_room(engine, run, planner)
    opened = None if plan is None else bind(run, plan, Reason.Start)
    if run.spec.opportunistic and engine.state.hosts and (plan is None or plan.width < asked):
        opened = scavenging.start_on_spares(engine, run, 0 if plan is None else plan.width) or opened
    if opened is None:
        return _wait_for_room(engine, run, planner)
    _open(engine, run, opened)
    return None


def _resolve(engine: Engine, run: RunState, width: int) -> Resolution | None:
    """Whose work is preempted so that a run starts, or starts wider; funded work only where a reservation is due."""
    due = width == 0 and reservation.may_cut(run, engine.now)
    if run.spec.opportunistic or not (due or engine.state.opportunistic or engine.state.overdrawn):
        return None
    with engine.state.trial() if engine.state.leaving else nullcontext():
        if engine.state.leaving:
            engine.state.pretend_left()
        found = resolve(engine.state, engine.family, run, engine.now, width, due=due, beacon=engine.beacon)
    return found if found is None or _in_time(engine, run, found) else None


def _in_time(engine: Engine, run: RunState, found: Resolution) -> bool:
    """Whether a run surely starts in time if these are preempted: where they may take longer to leave, nobody is touched."""
    return not too_late(run, max(leaves_by(engine, engine.state.runs[each.run]) for each in found.victims))


def _waits_for_leaving(engine: Engine, run: RunState, plan: Plan | None) -> bool:
    """Whether a run waits for GPUs that others are leaving: they count as coming free, and nobody else is preempted for them."""
    if run.spec.opportunistic:
        return False
    if reservation.is_coming(engine, run):
        return True
    with engine.state.trial():
        engine.state.pretend_left()
        then = Planner(engine.state, engine.family, run, engine.now).widest() if plan is None else None
    if then is not None and reservation.may_cut(run, engine.now):
        reservation.wait_for_leaving(engine, run, then)
    return then is not None


def _open(engine: Engine, run: RunState, opened: ev.LeasesOpened) -> None:
    reservation.settle(engine, run, ReservationState.RELEASED, Reason.Start)
    engine.emit(replace(opened, starting=True) if engine.observes_starts else opened)
    for other in reservation.displaced(engine, opened) if engine.state.holds and not engine.rehearses else ():
        reservation.make(
            engine, other, Planner(engine.state, engine.family, other, engine.now), Reason.SliceTaken, f"by {run.key}"
        )


def _wait_for_room(engine: Engine, run: RunState, planner: Planner) -> Refusal:
    """Why a funded run waits, and until when."""
    refusal = planner.roomless()
    if refusal.reason is not Reason.NoRoom or run.spec.opportunistic:
        return refusal
    if reservation.await_room(engine, run, planner) and engine.state.config.reservations:
        return Refusal(Reason.Reserved, refusal.message, refusal.tally)
    return refusal
