"""Plan: cover and pack at once (SEMANTICS §3, §5); `engine.place.bind` makes true what both agree on.

Money may be spent only where its selector matches, so who pays and where it lies are one question, which `engine.place.search`
answers. Here it is asked: with which money, on which nodes, for which width. Mostly the payers that come first have money enough
and reach the same nodes; then to pay in order is the most that any placement pays from them, and nothing is left to weigh.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover import envelopes
from fairlease.engine.place import diagnose
from fairlease.engine.place.lien_rights import LienRights, passage
from fairlease.engine.place.packing import Need, Rooms, Spot, fits_empty, need_of, scattered
from fairlease.engine.place.payers import Payers
from fairlease.engine.place.search import Search
from fairlease.engine.refusal import Refusal
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlease.engine.cover.envelopes import Offer
    from fairlease.engine.cover.family import Family
    from fairlease.engine.place.search import Seating
    from fairlease.ledger.state.accounts import AccountId
    from fairlease.ledger.state.capacity import Capacity, Domain
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.run import RunSpec

TRIED_IN_TURN = 32
"""Widths below the bound that are tried one by one, widest first."""


GAVE_UP = "SearchGaveUp"
"""Among the counts of a refusal: a placement may exist that was not found in so many tries."""


class Plan(NamedTuple):
    """Every pod's place and payer, for a run `width` GPUs wide.

    `money`: pods by payer in the order of cover. `beside`: spares on a node of their group's active pods. `complete`: no better
    plan was left out for want of tries.
    """

    width: int
    spots: list[Spot]
    payers: list[Offer]
    passage: LienRights | None
    money: tuple[int, ...]
    beside: int = 0
    complete: bool = True

    @property
    def worth(self) -> tuple[tuple[int, ...], int]:
        """By which plans for one width are compared before best fit: the greater the better."""
        return self.money, -self.beside


class Hopeless(NamedTuple):
    """Pods that nobody would pay for if nothing else ran either, and what would stop them."""

    cause: Reason
    pods: int


def widths(spec: RunSpec) -> range:
    """Widths at which a run may start, the narrowest first: its total, or the step grid from the minimum to total or desired."""
    elastic = spec.malleable
    total = spec.resources.total_gpus
    if elastic is None:
        return range(total, total + 1)
    return range(elastic.min_total_gpus, min(total, elastic.desired) + 1, elastic.step_gpus)


def least_width(spec: RunSpec) -> int:
    """The narrowest width at which a run may start."""
    return spec.resources.total_gpus if spec.malleable is None else spec.malleable.min_total_gpus


def never_fits(capacity: Capacity, spec: RunSpec) -> str:
    """Why no nodes there are would hold a run, whoever pays and were they all empty; nothing where some would."""
    pool = capacity.pools.get(spec.resources.gpu_type)
    return diagnose.nowhere(pool, diagnose.in_location(pool, spec), need_of(spec, least_width(spec)), spec)


class Planner:
    """Cover and pack for one run against the state as it is now.

    `withheld` is money that is not to be counted on, `eligible` the nodes on which its pods may run, `home` its own domains.
    """

    def __init__(
        self,
        state: State,
        family: Family,
        run: RunState,
        now: int,
        withheld: Mapping[AccountId, envelopes.Withheld] | None = None,
        *,
        eligible: int = -1,
        home: Iterable[Domain] = (),
    ) -> None:
        self.state = state
        self.run = run
        self.now = now
        self.offers = envelopes.offers(state, family, run, now, eligible)
        self.pool = state.capacity.pools.get(run.spec.resources.gpu_type)
        self.way = passage(state, self.pool, run, now)
        self.least = need_of(run.spec, least_width(run.spec))
        self.spending = envelopes.Spending(state, run, now, withheld=withheld)
        self.gave_up = False
        self._home = home
        self._withheld = withheld
        self._funding: dict[int, tuple[int, list[Reason]]] = {}
        self._usable: list[Offer] | None = None
        self._idle: envelopes.Spending | None = None

    # --- is there money ----------------------------------------------------------------------------------------------------

    def funding(self, pods: int) -> tuple[int, list[Reason]]:
        """How many of `pods` pods somebody would pay for, wherever they may lie, and what stopped each envelope asked."""
        if pods not in self._funding:
            self._funding[pods] = self._paid(self.spending, pods)
        return self._funding[pods]

    def _paid(self, spending: envelopes.Spending, pods: int) -> tuple[int, list[Reason]]:
        shares, stops = spending.spend(self.offers, pods)
        paid = sum(count for _, count in shares)
        if paid < pods and self._under_several_caps():
            paid = Payers(spending, self._paying(spending), pods).affordable(pods)
        return paid, stops

    @property
    def idle(self) -> envelopes.Spending:
        """What it could spend if nothing else ran."""
        if self._idle is None:
            self._idle = envelopes.Spending(self.state, self.run, self.now, idle=True, withheld=self._withheld)
        return self._idle

    def _under_several_caps(self) -> bool:
        """Whether an envelope is under several caps: then who pays first decides how much can be paid in all."""
        return any(len(self.state.caps_over(offer.account)) > 1 for offer in self.offers)

    def unfunded(self, *, told: bool = True) -> Refusal | None:
        """Why the run cannot be paid for even at its narrowest; None where it can. `told`: somebody will read it."""
        need = self.least
        refusal = self.unpaid_for(need.pods, f"of {need.pods * need.size} GPUs", told=told)
        return refusal if refusal is None or not told else refusal._replace(message=refusal.message + self._nowhere())

    def unpaid_for(self, pods: int, of: str, *, told: bool = True) -> Refusal | None:
        """Why `pods` find no payer, so many `of` them; None where they do."""
        paid, stops = self.funding(pods)
        if paid >= pods:
            return None
        reason, size = envelopes.cause(stops), self.run.spec.pod_gpus
        lost = self.hopeless(pods) if told else None
        message = f"{(pods - paid) * size} {of} find no payer"
        if lost is None or lost.cause.alone == reason.remedy:
            return Refusal(reason, f"{message}: {reason.remedy}", envelopes.counts(stops))
        message += f", and {lost.pods * size} would find none if nothing else ran: {lost.cause.alone}"
        return Refusal(reason, message, envelopes.counts(stops), lost.cause)

    def hopeless(self, pods: int) -> Hopeless | None:
        """How many of `pods` would find no payer if nothing else ran either; None where all would."""
        if self.expects_money():
            return None
        paid, stops = self._paid(self.idle, pods)
        return None if paid >= pods else Hopeless(envelopes.cause(stops), pods - paid)

    def expects_money(self) -> bool:
        """Whether a window that is still to open may bring money: then nobody can say that it does not help to wait."""
        return any(envelopes.opens_later(offer, self.now) for offer in self.offers)

    def _paying(self, spending: envelopes.Spending) -> list[Offer]:
        """The envelopes that would pay for a pod or more."""
        return [offer for offer in self.offers if spending.room(offer)[0] > 0]

    def unpaid(self, mask: int) -> Reason:
        """Why nobody pays for a pod on some nodes: what stops those that might, or that they are out of everybody's reach."""
        stops = diagnose.empty(self.spending, [offer for offer in self.offers if offer.mask & mask])
        return envelopes.cause(stops) if stops else Reason.OutOfScope

    def payable(self) -> int:
        """The nodes that money of its payers may be spent on, whether there is any left or not."""
        return union(offer for offer in self.offers if offer.refusal is None)

    def usable(self) -> list[Offer]:
        """The envelopes that would pay for a pod or more."""
        if self._usable is None:
            self._usable = self._paying(self.spending)
        return self._usable

    def reach(self) -> int:
        """The nodes that any of its payers would pay for now."""
        return union(self.usable())

    def payers(self) -> Payers | None:
        """Those who would pay for its narrowest width, where they reach different nodes; None where it does not matter who pays."""
        usable = self.usable()
        alike = all(offer.mask == usable[0].mask for offer in usable)
        return None if alike else Payers(self.spending, usable, self.least.pods)

    def counts_alone(self) -> bool:
        """Whether to count GPUs tells all: there is money for the narrowest width, and all of it reaches the same nodes."""
        alike = len({offer.mask for offer in self.usable()}) == 1 and not self._under_several_caps()
        return alike and self.funding(self.least.pods)[0] >= self.least.pods

    def affordable(self) -> int:
        """Pods that somebody would pay for, up to the widest width."""
        spec = self.run.spec
        widest = self.least if spec.malleable is None else need_of(spec, widths(spec)[-1])
        return self.funding(widest.pods)[0]

    # --- where it lies, and who pays -----------------------------------------------------------------------------------------

    def could_ever_fit(self) -> bool:
        """Whether the run would fit on the nodes that money of its payers may be spent on, if nothing else ran."""
        mask = self.payable()
        return self.pool is not None and mask != 0 and fits_empty(self.pool, mask, self.least)

    def _nowhere(self) -> str:
        """That money alone would not help, where the run would not fit on the nodes that its payers may ever pay for."""
        closed = (offer for offer in self.offers if offer.refusal is Reason.WindowClosed)
        spec = self.run.spec
        mask = self.payable() | union(closed) or diagnose.in_location(self.pool, spec)
        why = diagnose.nowhere(self.pool, mask, self.least, spec)
        return f"; besides, {why}" if why else ""

    def roomless(self) -> Refusal:
        """Why a funded run cannot start: it never fits, its money does not reach the room, or there is no room now."""
        need, pool = self.least, self.pool
        if pool is None or not self.could_ever_fit():
            return Refusal(Reason.NeverFits, diagnose.nowhere(pool, self.payable(), need, self.run.spec), {})
        poor = self.out_of_reach()
        if poor is not None:
            return poor
        gpus, free, idle = need.pods * need.size, pool.free, pool.idle
        reserved = f", {idle - free} more are reserved" if idle > free else ""
        message = f"{gpus} GPUs are needed in groups as asked; {free} of this flavor are free in all{reserved}"
        if free >= gpus and (apart_by := scattered(pool, self.reach(), need)):
            message += f"; but {apart_by}"
        if self.gave_up:
            return Refusal(Reason.NoRoom, f"{message}; the search for a placement gave up", {GAVE_UP: 1})
        return Refusal(Reason.NoRoom, message, {})

    def out_of_reach(self) -> Refusal | None:
        """Why GPUs that come free would not help: money would not pay for all pods even on empty nodes, each where it may."""
        need, pool = self.least, self.pool
        stops = None if pool is None else diagnose.stopped(pool, need, self.offers, self.spending)
        if stops is None or pool is None:
            return None
        vain = None if self.expects_money() else diagnose.stopped(pool, need, self.offers, self.idle)
        (message, causes), lost = stops, None if vain is None else envelopes.cause(vain[1])
        reason = envelopes.cause(causes)
        if lost is None or lost.alone == reason.remedy:
            return Refusal(reason, f"{message}: {reason.remedy}", envelopes.counts(causes))
        message = f"{message}, nor would have if nothing else ran: {lost.alone}"
        return Refusal(reason, message, envelopes.counts(causes), lost)

    def starts(self) -> bool:
        """Whether the run would start, at some width, with nobody preempted for it."""
        return self.unfunded(told=False) is None and self.widest() is not None

    def widest(self, pods_max: int = envelopes.PLENTY) -> Plan | None:
        """The plan for the widest feasible width of at most `pods_max` pods; assumes the run is funded at its narrowest.

        Money and free GPUs bound it without a try. Below that the next few widths are tried one by one; a request with a long
        grid is then halved, as what fits wide fits narrow, so that no request is asked more than a few dozen times.
        """
        if self.pool is None:
            return None
        spec = self.run.spec
        free = self.pool.free if self.way is None else self.pool.idle
        most = min(self.affordable(), pods_max, free // spec.pod_gpus)
        if spec.malleable is None:
            return self.at(spec.resources.total_gpus, self.least) if self.least.pods <= most else None
        grid = widths(spec)
        top = bisect_right(grid, most, key=lambda width: need_of(spec, width).pods)
        for width in reversed(grid[max(0, top - TRIED_IN_TURN) : top]):
            plan = self.at(width, need_of(spec, width))
            if plan is not None:
                return plan
        found, low, high = None, 0, top - TRIED_IN_TURN
        while low < high:
            middle = (low + high) // 2
            plan = self.at(grid[middle], need_of(spec, grid[middle]))
            found, low, high = (plan, middle + 1, high) if plan is not None else (found, low, middle)
        return found

    def at(self, width: int, need: Need) -> Plan | None:
        """The plan for one width, if there is one: on slots under no lien, unless more is to be had where it may pass liens."""
        plan, best = self._at(width, need, None)
        if self.way is not None and not best:
            other, _ = self._at(width, need, self.way)
            if other is not None and (plan is None or other.worth > plan.worth):
                return other
        return plan

    def _at(self, width: int, need: Need, way: LienRights | None) -> tuple[Plan | None, bool]:
        """The plan for one width, and whether no other can be better: it pays in order, wherever it might lie."""
        usable, pool = self.usable(), self.pool
        if not usable or pool is None:
            return None, False
        first = usable[0]
        shares = [(first, need.pods)]
        if self.spending.room(first)[0] < need.pods:
            shares, _ = self.spending.spend(usable, need.pods)
        paid, mask = sum(count for _, count in shares), first.mask
        if paid == need.pods and all(offer.mask == mask for offer, _ in shares):
            found = Search(Rooms(pool, mask, need.size, way), need, None, self._home).find()
            if found is not None:
                self.gave_up |= not found.complete
                return _paid_in_order(width, found, shares, usable, way), not found.beside
        if not self._under_several_caps() and (paid < need.pods or all(offer.mask == mask for offer in usable)):
            return None, False
        rooms = Rooms(pool, self.reach(), need.size, way)
        if not Search(rooms, need).possible():
            return None, False
        payers = Payers(self.spending, usable, need.pods)
        search = Search(rooms, need, payers, self._home)
        seating = search.find()
        self.gave_up |= not search.complete
        return (None if seating is None else _plan(width, seating, payers, way)), False


def _plan(width: int, seating: Seating, payers: Payers, way: LienRights | None) -> Plan:
    """A plan with the payers that a search found: active pods before spares, and in rank order the earliest payers first."""
    assert seating.payment is not None, "asked only where it matters who pays"
    rows, spots = seating.payment.payers(), seating.spots
    chosen: dict[int, Offer] = {}
    for place in sorted(range(len(spots)), key=lambda place: (spots[place].spare, place)):
        chosen[place] = payers.offers[rows[payers.kind(spots[place].node.bit)].pop()]
    row = [chosen[place] for place in range(len(spots))]
    return Plan(width, spots, row, way, seating.payment.pods, seating.beside, seating.complete)


def _paid_in_order(
    width: int, seating: Seating, shares: list[tuple[Offer, int]], usable: list[Offer], way: LienRights | None
) -> Plan:
    """A plan in which who pays is a matter of counting: in order, for active pods first, then for spares."""
    spots, row = seating.spots, [offer for offer, count in shares for _ in range(count)]
    if spots[-1].spare:  # every group has spares, after its active pods
        active = iter(row)
        spare = iter(row[sum(not spot.spare for spot in spots) :])
        row = [next(spare if spot.spare else active) for spot in spots]
    counts = dict(shares)
    money = tuple(counts.get(offer, 0) for offer in usable)
    return Plan(width, spots, row, way, money, seating.beside, seating.complete)


def union(offers: Iterable[Offer]) -> int:
    """The nodes that any of some envelopes may pay for."""
    mask = 0
    for offer in offers:
        mask |= offer.mask
    return mask
