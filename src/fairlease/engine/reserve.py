"""Reserve: a date and a lien for a funded run that cannot start yet (SEMANTICS §6).

The date is the latest of the opening of its money's window and the earlier of (a) the time at which the GPUs are free by hard
facts, (b) the end of the notice, where a cut could then serve it; with neither, the prediction. It is given once. It moves only
with a recorded reason, and each move is a new reservation that supersedes the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine import cover
from fairlease.engine.outlook import BY_FACT, FREE, GUESSED, WHOLE, Fit, Outlook, Terms, first_fit, lien_of, takes
from fairlease.engine.pack import need_of
from fairlease.engine.plan import Planner, least_width
from fairlease.ledger import event as ev
from fairlease.model.amount import format_instant
from fairlease.model.record import short, split
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.decide import Engine
    from fairlease.ledger.live import RunState

_BASES = {FREE: Reason.HardFacts, BY_FACT: Reason.HardFacts, GUESSED: Reason.Predicted}


class Draft(NamedTuple):
    """A date, what it rests on, and the fit it is for."""

    date: int
    basis: Reason
    fit: Fit
    planner: Planner


def opening(engine: Engine, run: RunState) -> Planner | None:
    """The money as it will be when a window opens that pays for the run; None where no window that is known will do."""
    now, state = engine.now, engine.state
    offers = cover.offers(state, engine.family, run, now)
    terms = [offer.account.envelope for offer in offers if offer.refusal is Reason.WindowClosed]
    early = {each.start for each in terms if each is not None and each.start is not None and each.start > now}
    for start in sorted(early):
        planner = Planner(state, engine.family, run, start)
        for offer in planner.offers:
            envelope = offer.account.envelope
            unopened = envelope is not None and envelope.start is not None and envelope.start > now
            if unopened and envelope is not None and not envelope.pre_activation.allow_reservations:
                offer.refusal = Reason.WindowClosed
        if planner.unfunded() is None:
            return planner
    return None


def draft(engine: Engine, run: RunState, planner: Planner, cut_at: int | None) -> Draft | None:
    """The earliest date that can be promised, cuts being possible from `cut_at` on; None where it would never fit."""
    pool, need = planner.pool, need_of(run.spec, least_width(run.spec))
    if pool is None:
        return None
    for guess in (False, True):
        outlook = Outlook(engine.state, run, engine.now, Terms(cut_at, guess), engine.horizon)
        fit = first_fit(pool, planner.reach(), need, outlook)
        if fit is not None:
            basis = _BASES.get(fit.how, Reason.Notice)
            if planner.now > max(engine.now, fit.when):
                return Draft(planner.now, Reason.WindowClosed, fit, planner)
            return Draft(fit.when, basis, fit, planner)
    return None


def make(engine: Engine, run: RunState, planner: Planner, why: Reason, message: str = "") -> bool:
    """Give a run its reservation, or move the one it has, for the reason `why`; False where it would never fit.

    Who is cut for it has its notice from the first date on; a move does not begin it again.
    """
    notice, hold, now = engine.state.config.notice, run.hold, engine.now
    cut_from = None if notice is None else now + notice
    if notice is not None and hold is not None and hold.holds and hold.cut_from is not None:
        cut_from = hold.cut_from
    found = draft(engine, run, planner, None if cut_from is None else max(now, cut_from))
    if found is None:
        return False
    date = found.date
    if date <= now:  # It fits by count and yet could not be bound: money reaches other nodes than those that are free.
        date = now + (notice or engine.state.config.commit_quantum)
    if why is Reason.NotServed and found.fit.how == WHOLE:
        why = Reason.TooYoung
    name = split(run.key)[1] + "-reservation" + (f"-{run.reservations + 1}" if run.reservations else "")
    domains = {pod.node.domain.name: None for pod in found.fit.pods if pod.node.domain is not None}
    engine.emit(
        ev.ReservationMade(
            run=run.key,
            name=name,
            earliest_start=date,
            basis=found.basis,
            reason=why,
            message=message or _told(found.basis, date),
            domains=tuple(domains),
            lien=lien_of(found.fit.pods),
            envelopes=_payers(found.planner, run),
            cut_from=cut_from,
        )
    )
    return True


def _told(basis: Reason, date: int) -> str:
    words = {
        Reason.HardFacts: "by then enough GPUs are free by deadlines and windows",
        Reason.Notice: "the notice after which others give way",
        Reason.WindowClosed: "its money's window opens",
        Reason.Predicted: "by then enough work will have ended, nine times in ten",
    }
    return f"{format_instant(date)}: {words[basis]}"


def _payers(planner: Planner, run: RunState) -> tuple[str, ...]:
    purse = cover.Purse(planner.state, run, planner.now)
    shares, _ = cover.spend(purse, planner.offers, need_of(run.spec, least_width(run.spec)).pods)
    return tuple(f"{short(offer.payer.budget)}/{offer.payer.envelope}" for offer, _ in shares)


def settle(engine: Engine, run: RunState, state: ReservationState, reason: Reason, message: str = "") -> None:
    """The reservation in force, if there is one, turns."""
    if run.hold is not None and run.hold.state is not state:
        engine.emit(ev.ReservationTurned(run=run.key, state=state, reason=reason, message=message))


def may_cut(run: RunState, now: int) -> bool:
    """Whether funded work has to give way to a run: its reservation is due, and others have had their notice."""
    hold = run.hold
    due = hold is not None and hold.state is ReservationState.ACTIVE
    return due and hold is not None and hold.cut_from is not None and hold.cut_from <= now


def await_money(engine: Engine, run: RunState, cause: Reason) -> None:
    """A run cannot be paid now: if a window will pay it has a date, else what it had holds nothing."""
    planner = opening(engine, run) if cause is Reason.WindowClosed else None
    if planner is None:
        settle(engine, run, ReservationState.BLOCKED, cause, cause.remedy)
        return
    hold = run.hold
    if hold is None or not hold.holds or hold.earliest_start < planner.now:
        make(engine, run, planner, Reason.WindowClosed)


def await_room(engine: Engine, run: RunState, planner: Planner) -> bool:
    """A funded run finds no room: it has a reservation, or gets one; one that was due and not served moves."""
    hold = run.hold
    if hold is None:
        return make(engine, run, planner, Reason.NoRoom)
    if not hold.holds:
        return make(engine, run, planner, Reason.MoneyBack)
    if hold.state is ReservationState.ACTIVE:
        return make(engine, run, planner, Reason.NotServed)
    gone = [name for name in hold.lien if _unusable(engine, name)]
    if not gone or make(engine, run, planner, Reason.SliceLost, f"{', '.join(gone)} cannot be used"):
        return True
    settle(engine, run, ReservationState.BLOCKED, Reason.SliceLost, Reason.SliceLost.remedy)
    return False


def _unusable(engine: Engine, name: str) -> bool:
    node = engine.state.capacity.nodes.get(name)
    return node is None or node.barred is not None


def displaced(engine: Engine, opened: ev.LeasesOpened) -> list[RunState]:
    """Runs whose liens lie under work that has just started and need not have ended by their date."""
    state = engine.state
    run = state.runs[opened.run]
    found: dict[str, RunState] = {}
    for cell in opened.cells:
        for other in state.capacity.nodes[cell.node].liens:
            hold = state.holds[other].hold
            if hold is not None and other not in found and takes(hold.lien, cell.node, cell.slots):
                surely = run.deadline is not None and run.deadline <= hold.earliest_start
                if not surely and not run.spec.opportunistic:
                    found[other] = state.holds[other]
    return sorted(found.values(), key=lambda each: each.order)
