"""Start: cover, pack and bind one waiting run, with what it may preempt; or why not, and until when it waits (SEMANTICS §3–§7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlease.engine.place.bind import bind
from fairlease.engine.place.plan import Planner, widths
from fairlease.engine.preempt.resolve import resolve
from fairlease.engine.refusal import Refusal
from fairlease.engine.reserve import reservation
from fairlease.engine.tick import coverage, lifecycle, scavenging
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
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
        resolution = _resolve(engine, run, 0 if plan is None else plan.width)
        if resolution is not None:
            lifecycle.cut(engine, resolution)
            if engine.state.overdrawn:  # The money of those who were preempted covers others again: they are not next.
                coverage.settle(engine)
            plan = resolution.plan
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
    return resolve(engine.state, engine.family, run, engine.now, width, due=due, beacon=engine.beacon)


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
    if refusal.reason is Reason.NoRoom and not run.spec.opportunistic and reservation.await_room(engine, run, planner):
        return Refusal(Reason.Reserved, refusal.message, refusal.tally)
    return refusal
