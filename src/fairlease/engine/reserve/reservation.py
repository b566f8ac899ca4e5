"""Reserve: a date and a lien for a funded run that cannot start yet (SEMANTICS §6).

The date is the latest of the opening of its money's window and the earlier of (a) the time at which the GPUs are free by hard
facts, (b) the end of the notice, where a cut could then serve it; with neither, the prediction. It is given once. It moves only
with a recorded reason, and each move is a new reservation that supersedes the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover import envelopes
from fairlease.engine.forecast import predicted_ends
from fairlease.engine.place.bind import bind
from fairlease.engine.place.packing import all_fit, need_of
from fairlease.engine.place.plan import Planner, least_width
from fairlease.engine.reserve.availability import (
    BY_FACT,
    CUTS,
    FREE,
    GUESSED,
    Availability,
    Between,
    DatedFit,
    Terms,
    first_fit,
    lien_of,
    takes,
)
from fairlease.engine.reserve.release_times import too_late
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.slots import bits_of
from fairlease.model.amount import DAY, MINUTE, format_duration, format_instant
from fairlease.model.record import short
from fairlease.model.reservation import ReservationState, reservation_name
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
    from fairlease.engine.place.plan import Plan
    from fairlease.ledger.state.capacity import Domain
    from fairlease.ledger.state.runs import Hold, Leaving, RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.record import Key

DEPTH, GUESSED_DEPTH = 64, 4
"""How many reservations of one flavor have a slice, and how many of them by guess. Whoever asked after so many has a date, and a
slice when it is nearer: a lien protects GPUs that come free next; behind many guesses it would be on GPUs nobody knows."""

NOT_PLAYED = 365 * DAY
"""When a reservation falls due again that cannot be served in a rehearsal: not in it."""

_BASES = {FREE: Reason.HardFacts, BY_FACT: Reason.HardFacts, GUESSED: Reason.Predicted}


class Draft(NamedTuple):
    """A date, what it rests on, the fit it is for, and the money as it will be then."""

    date: int
    basis: Reason
    fit: DatedFit
    planner: Planner


def opening(engine: Engine, run: RunState, after: int | None = None) -> Planner | None:
    """The money as it will be when a window opens that pays for the run; None where no window that is known will do.

    `after`: windows that open later than that, where it is not now.
    """
    now, state = engine.now, engine.state
    offers = envelopes.offers(state, engine.family, run, now)
    terms = [offer.account.envelope for offer in offers if offer.refusal is Reason.WindowClosed]
    starts = {each.start for each in terms if each is not None and each.start is not None}
    for start in sorted(each for each in starts if each > max(now, after or now)):
        planner = Planner(state, engine.family, run, start)
        for offer in planner.offers:
            envelope = offer.account.envelope
            unopened = envelope is not None and envelope.start is not None and envelope.start > now
            if unopened and envelope is not None and not envelope.pre_activation.allow_reservations:
                offer.refusal = Reason.WindowClosed
        if planner.unfunded(told=False) is None:
            return planner
    return None


def draft(engine: Engine, run: RunState, planner: Planner, *, surely: bool = False) -> Draft | None:
    """The earliest date that can be promised, with money that is open then; None where it would never fit.

    `surely`: or where nothing but a prediction tells when.
    """
    found = _draft(engine, run, planner, surely=surely)
    later = opening(engine, run, planner.now) if planner.expects_money() else None
    if later is not None and (found is None or later.now < found.date):
        then = draft(engine, run, later, surely=surely)
        if then is not None and (found is None or then.date < found.date):
            return then
    return found


def _draft(engine: Engine, run: RunState, planner: Planner, *, surely: bool) -> Draft | None:
    pool = planner.pool
    if pool is None or planner.out_of_reach() is not None:
        return None
    cut_from = _cut_from_of(engine, run.hold)
    cut_at = None if cut_from is None else max(engine.now, cut_from)
    sooner = _between(engine, run, planner, cut_at)
    for guess in (False,) if surely else (False, True):
        outlook = Availability(engine.state, run, engine.now, planner.reach(), Terms(cut_at, guess), engine.horizon)
        fit = first_fit(pool, planner.least, outlook, planner.payers())
        if sooner is not None and (fit is None or sooner.when < fit.when):
            fit = sooner
        if fit is None:
            continue
        later = opening(engine, run, fit.when) if _over_by(engine, run, planner, fit.when) else None
        if later is not None:
            return _draft(engine, run, later, surely=surely)
        if planner.now > max(engine.now, fit.when):
            return Draft(planner.now, Reason.WindowClosed, fit, planner)
        return Draft(fit.when, _BASES.get(fit.how, Reason.Notice), fit, planner)
    return None


def _over_by(engine: Engine, run: RunState, planner: Planner, when: int) -> bool:
    """Whether windows that pay now will have closed by then, and what is left does not pay."""
    ends = (offer.account.envelope.end for offer in planner.offers if offer.account.envelope is not None)
    if not any(end is not None and planner.now < end <= when for end in ends):
        return False
    return Planner(engine.state, engine.family, run, when).unfunded(told=False) is not None


def _between(engine: Engine, run: RunState, planner: Planner, cut_at: int | None) -> DatedFit | None:
    """Where a run would fit by hard facts or after a cut, and surely be over, before those who asked earlier need the slots."""
    limit, near = run.spec.runtime.max_duration, engine.state.standings.near.get(run.spec.resources.gpu_type)
    if limit is None or near is None or planner.pool is None:
        return None
    ahead = (near[order].hold for order in near.irange(maximum=run.order, inclusive=(True, False)))
    if not any(hold is not None and hold.earliest_start > engine.now + limit for hold in ahead):
        return None
    between = Between(engine.state, run, engine.now, planner.reach(), cut_at, limit)
    return between.first_fit(planner.pool, planner.least, planner.payers())


def make(engine: Engine, run: RunState, planner: Planner, why: Reason, message: str = "") -> bool:
    """Give a run its reservation, or move the one it has, for the reason `why`; False where it would never fit.

    Who is cut for it has its notice from the first date on; neither a move nor money that comes back begins it again. So a date
    can be now: what a cut serves falls due at once where the notice is over, unless that has just been tried.
    """
    if engine.rehearses:
        return _sketch(engine, run, why)
    hold, now = run.hold, engine.now
    cut_from = _cut_from_of(engine, hold)
    if far(engine, run):
        _make_far(engine, run, planner, why, cut_from)
        return True
    found = draft(engine, run, planner)
    if found is None:
        return False
    date = found.date
    if date <= now and (why is Reason.NotServed or found.fit.how not in CUTS):
        # It fits by count and yet could not be bound: money reaches other nodes than those that are free.
        date = now + _patience(engine, hold)
    elif why is Reason.NotServed and _too_young(engine, found):
        why = Reason.TooYoung
    domains = {pod.node.domain.name: None for pod in found.fit.pods if pod.node.domain is not None}
    engine.emit(
        ev.ReservationMade(
            run=run.key,
            name=reservation_name(run.key, run.reservations + 1),
            earliest_start=date,
            basis=found.basis,
            reason=why,
            message=_in_time(run, date, message or _told(engine, run, found, date)) + _unpaid(engine, run, found, date),
            domains=tuple(domains),
            lien=lien_of(found.fit.pods),
            envelopes=_payers(found.planner, found.fit),
            cut_from=cut_from,
        )
    )
    return True


def wait_for_leaving(engine: Engine, run: RunState, plan: Plan) -> bool:
    """Hold what a run starts on when all work that is leaving is gone, for it alone; False where its plan needs nothing of that.

    It starts when the last of these GPUs is free, at the latest when the last of that work is killed.
    """
    state = engine.state
    with state.trial():
        state.pretend_left()
        cells = bind(run, plan, Reason.Start).cells
    lien: dict[str, int] = {}
    for cell in cells:
        lien[cell.node] = lien.get(cell.node, 0) | bits_of(cell.slots)
    coming = leaving_on(state, lien)
    if not coming:
        return False
    date = max(engine.now, *(each.until for each in coming))  # what was killed may not be gone yet
    gpus = sum(each.lease.gpus for each in coming)
    told = f"{format_instant(date)}: it starts when the work that is leaving {gpus} of its GPUs is gone, by then at the latest"
    domains = {state.capacity.nodes[name].domain for name in lien}
    engine.emit(
        ev.ReservationMade(
            run=run.key,
            name=reservation_name(run.key, run.reservations + 1),
            earliest_start=date,
            basis=Reason.Leaving,
            reason=Reason.Leaving,
            message=_in_time(run, date, told),
            domains=tuple(sorted(domain.name for domain in domains if domain is not None)),
            lien=dict(sorted(lien.items())),
            envelopes=_payers(Planner(state, engine.family, run, engine.now)),
            cut_from=_cut_from_of(engine, run.hold),
        )
    )
    return True


def leaving_on(state: State, lien: dict[str, int]) -> list[Leaving]:
    """The leases on slots under a lien whose work is leaving."""
    found = []
    for name in lien if state.leaving else ():
        node = state.capacity.nodes.get(name)
        for serial in () if node is None else node.leases:
            each = state.leaving.get(serial)
            if each is not None and takes(lien, name, each.lease.slots):
                found.append(each)
    return found


def is_coming(engine: Engine, run: RunState) -> bool:
    """Whether others are still leaving GPUs that come free for a run alone, and nothing else is in its way."""
    hold = run.hold
    if hold is None or not hold.exclusive or not hold.holds:
        return False
    return bool(leaving_on(engine.state, hold.lien)) and not any(_unusable(engine, name) for name in hold.lien)


def _too_young(engine: Engine, found: Draft) -> bool:
    """Whether a date is when work is old enough to be drawn that lies where the claim means to."""
    state = engine.state
    ripe = found.date - state.config.min_runtime
    return any(
        state.runs[lease.run].started_at == ripe and takes({lease.node: pod.slots}, lease.node, lease.slots)
        for pod in found.fit.pods
        for lease in pod.node.leases.values()
    )


def _cut_from_of(engine: Engine, hold: Hold | None) -> int | None:
    """From when on others have had their notice; None where funded work is never cut."""
    notice = engine.state.config.notice
    if notice is not None and hold is not None and hold.cut_from is not None:
        return hold.cut_from
    return None if notice is None else engine.now + notice


def _patience(engine: Engine, hold: Hold | None) -> int:
    """How long to wait for what counting cannot tell: a notice, and each time that it proved too short twice as long."""
    least = engine.state.config.notice or engine.state.config.commit_quantum
    waited = 0 if hold is None else engine.now - hold.made_at
    return max(least, min(2 * waited, DAY))


def far(engine: Engine, run: RunState) -> bool:
    """Whether so many who asked earlier have a lien, or so many of them by guess, that one more would only be in the way."""
    near = engine.state.standings.near.get(run.spec.resources.gpu_type)
    if near is None or run.order in near:
        return False
    ahead = near.bisect_left(run.order)
    if ahead >= DEPTH:
        return True
    guesses = [other for other in near.values()[:ahead] if other.hold and other.hold.basis is Reason.Predicted]
    return len(guesses) >= GUESSED_DEPTH


def _make_far(engine: Engine, run: RunState, planner: Planner, why: Reason, cut_from: int | None) -> None:
    """A date without a slice: a turn on the pool after whoever asked just before has one."""
    state, flavor = engine.state, run.spec.resources.gpu_type
    near, far = state.standings.near[flavor], state.standings.far.get(flavor)
    ahead = 0 if far is None else far.bisect_left(run.order)
    before = [far.peekitem(ahead - 1)[1]] if far is not None and ahead else list(near.values())
    last = max(other.hold.earliest_start for other in before if other.hold is not None)
    gpus = 1 if planner.pool is None else max(1, planner.pool.gpus)
    date = max(last, engine.now, cut_from or 0) + _turn(engine, run) // gpus + 1
    if run.hold is not None and run.hold.state is ReservationState.ACTIVE:  # proved wrong: give it as long again
        date = max(date, 2 * engine.now - run.hold.made_at)
    engine.emit(
        ev.ReservationMade(
            run=run.key,
            name=reservation_name(run.key, run.reservations + 1),
            earliest_start=date,
            basis=Reason.Predicted,
            reason=why,
            message=_in_time(
                run, date, f"{format_instant(date)}: {len(near) + ahead} runs that asked earlier come first"
            ),
            domains=(),
            lien={},
            envelopes=_payers(planner),
            cut_from=cut_from,
        )
    )


def _turn(engine: Engine, run: RunState) -> int:
    """GPU-milliseconds of a run's turn: what is expected of it, or, where funded work is cut, the time for which it is safe."""
    config, gpus = engine.state.config, run.spec.resources.total_gpus
    expected = engine.state.expectation(run) if run.hold is None else run.hold.expected
    return gpus * (expected if config.notice is None else min(expected, config.min_runtime))


def _sketch(engine: Engine, run: RunState, why: Reason) -> bool:
    """In a rehearsal a reservation keeps the slots it means to use, and nobody gets a new one: to look for slots is what costs.

    One that was due and not served is tried again after another notice, or as long again as cuts have been in vain, up to a day.
    """
    hold, notice = run.hold, engine.state.config.notice
    if hold is not None and why is Reason.NotServed:
        vain = 0 if hold.cut_from is None else engine.now - hold.cut_from
        again = NOT_PLAYED if notice is None else max(notice, MINUTE, min(vain, DAY))
        engine.emit(
            ev.ReservationMade(
                run=run.key,
                name=hold.name,
                earliest_start=engine.now + again,
                basis=hold.basis,
                reason=why,
                message="",
                domains=hold.domains,
                lien=hold.lien,
                envelopes=hold.envelopes,
                cut_from=hold.cut_from,
            )
        )
    return True


def _told(engine: Engine, run: RunState, found: Draft, date: int) -> str:
    """What a date rests on, in words."""
    words = {
        Reason.HardFacts: "by then enough GPUs are free by deadlines and windows",
        Reason.Notice: "the notice after which others give way",
        Reason.WindowClosed: "its money's window opens",
        Reason.Predicted: "by then enough work will have ended, nine times in ten",
    }
    told, over = words[found.basis], _cut_from_of(engine, run.hold)
    if found.basis is Reason.Notice and over is not None and max(engine.now, over) < found.date:
        told = _after_the_notice(engine, run, found)
    if found.basis is Reason.HardFacts and (last := _last_free(found.fit)):
        told += f", the last those of {', '.join(map(short, last))}"
    return f"{format_instant(date)}: {told}"


def _last_free(fit: DatedFit) -> list[Key]:
    """The runs whose GPUs come free last of those that a date rests on."""
    last = [pod for pod in fit.pods if pod.ready[0] == fit.when]
    leases = ((pod, lease) for pod in last for lease in pod.node.leases.values())
    return sorted({lease.run for pod, lease in leases if takes({lease.node: pod.slots}, lease.node, lease.slots)})


def _after_the_notice(engine: Engine, run: RunState, found: Draft) -> str:
    """What a date waits for that lies behind the notice."""
    state = engine.state
    safe = f"may not be drawn before it has run for minRuntime ({format_duration(state.config.min_runtime)})"
    if _too_young(engine, found):
        return f"others give way when the notice is over, but work in its way {safe}"
    begins = found.date - state.config.min_runtime
    for pod in found.fit.pods:
        for key, slots in pod.node.liens.items():
            other = state.holds[key]
            ahead = other.hold is not None and other.order < run.order and slots & pod.slots
            if ahead and other.hold is not None and other.hold.earliest_start == begins:
                return f"{short(key)}, which asked earlier, starts there first, and {safe}"
    return "others give way when the notice is over, and the last of the other GPUs come free then by deadlines and windows"


def _in_time(run: RunState, date: int, told: str) -> str:
    """The same, and that a run cannot start in time as things stand, where its date is behind its `latestStart`."""
    latest = run.spec.runtime.latest_start
    if latest is None or not too_late(run, date):
        return told
    return f"{told}; that is after its latestStart ({format_instant(latest)}): as things stand it cannot start in time"


def _unpaid(engine: Engine, run: RunState, found: Draft, date: int) -> str:
    """That nobody pays any more by its date, as windows stand, where that is so."""
    if not _over_by(engine, run, found.planner, date):
        return ""
    return "; its money's window closes before, and nobody else pays then: as things stand it starts only if GPUs come free sooner"


def _payers(planner: Planner, fit: DatedFit | None = None) -> tuple[str, ...]:
    """Who would pay for it: each where it may, as its slice tells, else in the order of cover."""
    offers = [offer for offer, _ in planner.spending.spend(planner.offers, planner.least.pods)[0]]
    if fit is not None and fit.paid:
        offers = [offer for offer, pods in zip(planner.usable(), fit.paid, strict=True) if pods]
    return tuple(dict.fromkeys(f"{short(offer.payer.budget)}/{offer.payer.envelope}" for offer in offers))


def settle(engine: Engine, run: RunState, state: ReservationState, reason: Reason, message: str = "") -> None:
    """The reservation in force, if there is one, turns."""
    if run.hold is not None and run.hold.state is not state:
        engine.emit(ev.ReservationTurned(run=run.key, state=state, reason=reason, message=message))


def may_cut(run: RunState, now: int) -> bool:
    """Whether funded work has to give way to a run: its reservation is due, and others have had their notice."""
    hold = run.hold
    due = hold is not None and hold.state is ReservationState.ACTIVE
    return due and hold is not None and hold.cut_from is not None and hold.cut_from <= now


def await_money(engine: Engine, run: RunState, cause: Reason, *, closed: bool) -> None:
    """A run cannot be paid now: if a window that is `closed` will pay (the rest) it has a date, else what it had holds nothing."""
    planner = opening(engine, run) if closed and engine.state.config.reservations else None
    if planner is None:
        settle(engine, run, ReservationState.BLOCKED, cause, cause.remedy)
        return
    hold = run.hold
    sooner = hold is None or not hold.holds or hold.earliest_start < planner.now
    if sooner and not make(
        engine, run, planner, Reason.WindowClosed
    ):  # That money reaches no nodes that could hold it.
        settle(engine, run, ReservationState.BLOCKED, cause, cause.remedy)


def await_room(engine: Engine, run: RunState, planner: Planner) -> bool:
    """A funded run finds no room: it has a reservation, or gets one; one that was due and not served moves."""
    hold = run.hold
    if is_coming(engine, run):
        return True
    if not engine.state.config.reservations:
        if hold is not None and hold.exclusive:  # that of a claim for which others were leaving
            settle(engine, run, ReservationState.CANCELED, Reason.NotServed)
        return False
    if hold is None:
        return make(engine, run, planner, Reason.NoRoom)
    if not hold.holds:  # It was blocked for lack of nodes or of money; that is over.
        return make(engine, run, planner, Reason.SliceLost if hold.reason is Reason.SliceLost else Reason.MoneyBack)
    if hold.state is ReservationState.ACTIVE:
        return make(engine, run, planner, Reason.NotServed)
    gone = [name for name in hold.lien if _unusable(engine, name)]
    if not gone and _keeps(engine, run, hold):
        return True
    told = f"{', '.join(gone)} cannot be used" if gone else "its nodes no longer lie in one domain"
    if make(engine, run, planner, Reason.SliceLost, told):
        return True
    settle(engine, run, ReservationState.BLOCKED, Reason.SliceLost, Reason.SliceLost.remedy)
    return False


def _unusable(engine: Engine, name: str) -> bool:
    node = engine.state.capacity.nodes.get(name)
    return node is None or node.barred is not None


def _keeps(engine: Engine, run: RunState, hold: Hold) -> bool:
    """Whether a slice still holds all groups: nodes that were given other labels may lie in other domains now."""
    need = need_of(run.spec, least_width(run.spec))
    pods: dict[Domain, int] = {}
    for name, slots in hold.lien.items():
        domain = engine.state.capacity.nodes[name].domain
        if domain is not None and domain.pool.flavor == run.spec.resources.gpu_type:
            pods[domain] = pods.get(domain, 0) + slots.bit_count() // need.size
    return not hold.lien or all_fit(list(pods.values()), need)


def displaced(engine: Engine, opened: ev.LeasesOpened) -> list[RunState]:
    """Runs whose liens lie under work that has just started and cannot be expected to be out of their way by their date.

    It is out of the way where it will have ended, or where it may then be cut: the date of who waited behind it counts on that.
    """
    state = engine.state
    run = state.runs[opened.run]
    found: dict[str, RunState] = {}
    for cell in opened.cells:
        for other in state.capacity.nodes[cell.node].liens:
            hold = state.holds[other].hold
            taken = hold is not None and other not in found and takes(hold.lien, cell.node, cell.slots)
            if taken and hold is not None and not run.spec.opportunistic and _in_the_way(engine, run, hold):
                found[other] = state.holds[other]
    return sorted(found.values(), key=lambda each: each.order)


def _in_the_way(engine: Engine, run: RunState, hold: Hold) -> bool:
    date = hold.earliest_start
    if run.deadline is not None and run.deadline <= date:
        return False
    if hold.basis is Reason.Predicted:
        return predicted_ends.end_of(run, engine.now) > date
    return hold.cut_from is None or hold.cut_from > date or engine.now + engine.state.config.min_runtime > date
