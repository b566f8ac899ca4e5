"""Plan: cover and pack at once (SEMANTICS §3, §5); `engine.bind` makes true what both agree on.

Money may be spent only where its selector matches, so who pays and where it lies are one question. Mostly all money that is asked
reaches all nodes in question; then paying is counting and packing is free. Where it is not so, groups are placed one by one, each
on nodes that the earliest money in the order of cover reaches, and each pod only where somebody pays for it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover import envelopes
from fairlease.engine.place import diagnose_money
from fairlease.engine.place.assignment import Payment
from fairlease.engine.place.diagnose import in_location, nowhere
from fairlease.engine.place.lien_rights import LienRights, passage
from fairlease.engine.place.packing import Batch, Need, Packer, Spot, fits_empty, need_of, scattered
from fairlease.engine.place.search import Search
from fairlease.engine.refusal import Refusal
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fairlease.engine.cover.envelopes import Offer
    from fairlease.engine.cover.family import Family
    from fairlease.ledger.state.accounts import AccountId
    from fairlease.ledger.state.capacity import Capacity
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.run import RunSpec

TRIED_IN_TURN = 32
"""Widths below the bound that are tried one by one, widest first."""


class Plan(NamedTuple):
    """Every pod's place and payer, for a run `width` GPUs wide."""

    width: int
    spots: list[Spot]
    payers: list[Offer]
    passage: LienRights | None = None


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
    return nowhere(pool, in_location(pool, spec), need_of(spec, least_width(spec)), spec)


class Planner:
    """Cover and pack for one run against the state as it is now; `withheld` is money that is not to be counted on."""

    def __init__(
        self,
        state: State,
        family: Family,
        run: RunState,
        now: int,
        withheld: Mapping[AccountId, envelopes.Withheld] | None = None,
    ) -> None:
        self.state = state
        self.run = run
        self.now = now
        self.offers = envelopes.offers(state, family, run, now)
        self.pool = state.capacity.pools.get(run.spec.resources.gpu_type)
        self.passage: LienRights | None = None
        self.way = passage(state, self.pool, run, now)
        self.least = need_of(run.spec, least_width(run.spec))
        self._withheld = withheld
        self._funding: dict[int, tuple[int, list[Reason]]] = {}
        self._usable: list[Offer] | None = None

    def funding(self, pods: int) -> tuple[int, list[Reason]]:
        """How many of `pods` pods somebody would pay for, wherever they may lie, and what stopped each envelope asked."""
        if pods not in self._funding:
            self._funding[pods] = self._paid(pods)
        return self._funding[pods]

    def _paid(self, pods: int, *, idle: bool = False) -> tuple[int, list[Reason]]:
        shares, stops = envelopes.spend(self._purse(idle=idle), self.offers, pods)
        paid = sum(count for _, count in shares)
        if paid < pods and self._under_several_caps():
            paid = Payment(self._purse(idle=idle), self.offers).pay_anywhere(shares, pods)
        return paid, stops

    def _purse(self, *, idle: bool = False) -> envelopes.Purse:
        return envelopes.Purse(self.state, self.run, self.now, idle=idle, withheld=self._withheld)

    def _under_several_caps(self) -> bool:
        """Whether an envelope lies under several caps: then who pays first decides how much can be paid in all."""
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
            return Refusal(reason, f"{message}: {reason.remedy}", tally(stops))
        message += f", and {lost.pods * size} would find none if nothing else ran: {lost.cause.alone}"
        return Refusal(reason, message, tally(stops), lost.cause)

    def _nowhere(self) -> str:
        """That money alone would not help, where the run would not fit on the nodes that its payers may ever pay for."""
        closed = (offer for offer in self.offers if offer.refusal is Reason.WindowClosed)
        spec = self.run.spec
        mask = self.payable() | _union(closed) or in_location(self.pool, spec)
        why = nowhere(self.pool, mask, self.least, spec)
        return f"; besides, {why}" if why else ""

    def hopeless(self, pods: int) -> Hopeless | None:
        """How many of `pods` would find no payer if nothing else ran either; None where all would."""
        if self.expects_money():
            return None
        paid, stops = self._paid(pods, idle=True)
        return None if paid >= pods else Hopeless(envelopes.cause(stops), pods - paid)

    def expects_money(self) -> bool:
        """Whether a window that is still to open may bring money: then nobody can say that it does not help to wait."""
        return any(envelopes.opens_later(offer, self.now) for offer in self.offers)

    def roomless(self) -> Refusal:
        """Why a funded run cannot start: it never fits, or not now."""
        need = self.least
        gpus = need.pods * need.size
        if not self.could_ever_fit():
            return Refusal(Reason.NeverFits, nowhere(self.pool, self.payable(), need, self.run.spec), {})
        poor = self._poor_everywhere(need) or self._out_of_reach(need) or self._poor_apart(need)
        if poor is not None:
            return poor
        free, idle = (0, 0) if self.pool is None else (self.pool.free, self.pool.idle)
        reserved = f", {idle - free} more are reserved" if idle > free else ""
        message = f"{gpus} GPUs are needed in groups as asked; {free} of this flavor are free in all{reserved}"
        if self.pool is not None and free >= gpus and (apart_by := scattered(self.pool, self.reach(), need)):
            message += f"; but {apart_by}"
        return Refusal(Reason.NoRoom, message, {})

    def _poor_everywhere(self, need: Need) -> Refusal | None:
        """Why no domain has money for a whole group, where money reaches different nodes: then GPUs that come free do not help.

        A domain counts only where the nodes that its money reaches could hold the group.
        """
        assert self.pool is not None, "what could fit has a pool"
        asked = [offer for offer in self.offers if offer.refusal is None]
        if len({offer.mask for offer in asked}) < 2:  # noqa: PLR2004 - all money reaches the same nodes, and it is enough
            return None
        pods = need.pods if need.together else need.blocks[0].pods
        stops = self._stopped_everywhere(asked, pods)
        if stops is None:
            return None
        vain = None if self.expects_money() else self._stopped_everywhere(asked, pods, idle=True)
        return _poor(f"no domain has money for a whole group of {pods * need.size} GPUs", stops, vain)

    def _stopped_everywhere(self, asked: list[Offer], pods: int, *, idle: bool = False) -> list[Reason] | None:
        """What stops the domain whose money comes nearest to a group of `pods`; None where one has enough."""
        assert self.pool is not None, "what could fit has a pool"
        size, most, stopped = self.run.spec.pod_gpus, -1, list[Reason]()
        for domain in sorted(self.pool.domains.values(), key=lambda each: each.order):
            local = [offer for offer in asked if offer.mask & domain.mask]
            shares, stops = envelopes.spend(self._purse(idle=idle), local, pods)
            paid = sum(count for _, count in shares)
            if paid >= pods:
                reached = _union(self._paying(local, idle=idle))
                paid = sum(node.node.gpus // size for node in domain.nodes.values() if node.bit & reached)
                stops = self._empty(local, idle=idle)
            if paid >= pods:
                return None
            if paid > most and stops:
                most, stopped = paid, stops
        return stopped

    def _out_of_reach(self, need: Need) -> Refusal | None:
        """Why the run would not fit on the nodes that are left to it, though it would on others, whose money is used up."""
        assert self.pool is not None, "what could fit has a pool"
        if fits_empty(self.pool, self.reach(), need):
            return None
        stops, vain = self._empty(self.offers), None
        if not self.expects_money() and not fits_empty(self.pool, _union(self._paying(self.offers, idle=True)), need):
            vain = self._empty(self.offers, idle=True)
        return _poor(f"{need.pods * need.size} GPUs would fit only where its money is used up", stops, vain)

    def _poor_apart(self, need: Need) -> Refusal | None:
        """Why money that reaches different nodes would not do, each where it may be spent, though in all it is enough."""
        stops = self.stopped_apart()
        if stops is None:
            return None
        vain = None if self.expects_money() else self.stopped_apart(idle=True)
        return _poor(f"money for {need.pods * need.size} GPUs does not reach where they would lie", stops, vain)

    def stopped_apart(self, *, idle: bool = False) -> list[Reason] | None:
        """What stops money that reaches different nodes from paying for all pods if nothing else ran; None where it could."""
        paying = self._paying(self.offers, idle=True) if idle else self.usable()
        if self.pool is None or len({offer.mask for offer in paying}) < 2:  # noqa: PLR2004 - all of it reaches the same nodes
            return None
        return diagnose_money.stopped(self.pool, self.least, paying, lambda: self._purse(idle=idle))

    def _empty(self, offers: list[Offer], *, idle: bool = False) -> list[Reason]:
        """What stops those of some envelopes that would not pay for one pod."""
        purse = self._purse(idle=idle)
        return [why for pods, why in map(purse.room, offers) if pods == 0]

    def _paying(self, offers: list[Offer], *, idle: bool = False) -> list[Offer]:
        """Those of some envelopes that would pay for a pod or more."""
        purse = self._purse(idle=idle)
        return [offer for offer in offers if purse.room(offer)[0] > 0]

    def unpaid(self, mask: int) -> Reason:
        """Why nobody pays for a pod on some nodes: what stops those that might, or that they are out of everybody's reach."""
        stops = self._empty([offer for offer in self.offers if offer.mask & mask])
        return envelopes.cause(stops) if stops else Reason.OutOfScope

    def could_ever_fit(self) -> bool:
        """Whether the run would fit on the nodes that money of its payers may be spent on, if nothing else ran."""
        mask = self.payable()
        return self.pool is not None and mask != 0 and fits_empty(self.pool, mask, self.least)

    def payable(self) -> int:
        """The nodes that money of its payers may be spent on, whether there is any left or not."""
        return _union(offer for offer in self.offers if offer.refusal is None)

    def usable(self) -> list[Offer]:
        """The envelopes that would pay for a pod or more."""
        if self._usable is None:
            self._usable = self._paying(self.offers)
        return self._usable

    def reach(self) -> int:
        """The nodes that any of its payers would pay for now."""
        return _union(self.usable())

    def counts_alone(self) -> bool:
        """Whether to count GPUs tells all: there is money for the narrowest width, and all of it reaches the same nodes."""
        alike = len({offer.mask for offer in self.usable()}) == 1 and not self._under_several_caps()
        return alike and self.funding(self.least.pods)[0] >= self.least.pods

    def affordable(self) -> int:
        """Pods that somebody would pay for, up to the widest width."""
        spec = self.run.spec
        widest = self.least if spec.malleable is None else need_of(spec, widths(spec)[-1])
        return self.funding(widest.pods)[0]

    def starts(self) -> bool:
        """Whether the run would start, at some width, with nobody cut for it."""
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
        """The plan for one width, if there is one: on slots under no lien, else on those the run may use all the same."""
        self.passage = None
        plan = self._at(width, need)
        if plan is None and self.way is not None:
            self.passage = self.way
            plan = self._at(width, need)
        return plan

    def _at(self, width: int, need: Need) -> Plan | None:
        if self.pool is None:
            return None
        usable = self.usable()
        if not usable:
            return None
        count, reach = next(_levels(usable))
        first = usable[:count]
        if all(offer.mask == reach for offer in first):
            plan = self._level(width, need, reach, first)
            if plan is not None or (count == len(usable) and not self._under_several_caps()):
                return plan
        if not self._packer(self.reach(), need).place(need):
            return None
        return self._stepwise(width, need, usable) or self._search(width, need, usable)

    def _level(self, width: int, need: Need, reach: int, payers: list[Offer]) -> Plan | None:
        """All money reaches all nodes: count, then pack."""
        assert self.pool is not None, "asked only where there is a pool"
        row = self._row(payers, need.pods)
        if row is None:
            return None
        packer = self._packer(reach, need)
        if not packer.place(need):
            return None
        if not any(block.spares for block in need.blocks):
            return Plan(width, packer.spots, row, self.passage)
        active = iter(row)
        spare = iter(row[sum(not spot.spare for spot in packer.spots) :])
        payers = [next(spare if spot.spare else active) for spot in packer.spots]
        return Plan(width, packer.spots, payers, self.passage)

    def _packer(self, reach: int, need: Need) -> Packer:
        assert self.pool is not None, "asked only where there is a pool"
        return Packer(self.pool, reach, need.size, self.passage)

    def _row(self, payers: list[Offer], pods: int) -> list[Offer] | None:
        """The payer of each pod in turn, where money is all that counts; mostly the first has enough for all of them."""
        first = payers[0]
        if first.room is not None and first.room[0] >= pods:
            return [first] * pods
        shares, _ = envelopes.spend(self._purse(), payers, pods)
        row = [offer for offer, count in shares for _ in range(count)]
        return row if len(row) == pods else None

    def _stepwise(self, width: int, need: Need, usable: list[Offer]) -> Plan | None:
        """Money reaches different nodes: place group by group, each as early in the order of cover as it can be."""
        assert self.pool is not None, "asked only where there is a pool"
        payment = Payment(self._purse(), usable)
        levels = list(_levels(usable))
        packer = self._packer(levels[-1][1], need)
        for batch in _batches(need):
            pods, most = sum(active + spares for _, (active, spares) in batch), payment.at_most()
            rich = (level for level in levels if most[level[0]] >= pods)
            if not any(self._settle_batch(packer, payment, batch, count, reach) for count, reach in rich):
                return None
        return Plan(width, packer.spots, payment.payers(packer.spots), self.passage)

    def _search(self, width: int, need: Need, usable: list[Offer]) -> Plan | None:
        """In order of preference it did not work out: try more, if there is money for that many pods on the nodes it reaches."""
        assert self.pool is not None, "asked only where there is a pool"
        packer = self._packer(self.reach(), need)
        domains = sorted(self.pool.domains.values(), key=lambda each: each.order)
        seats = (node for domain in domains for node in packer.seats(domain))
        payment = Payment(self._purse(), usable)
        if payment.reached(seats, need.pods) < need.pods:
            return None
        payment = Payment(self._purse(), usable)
        if not Search(packer, payment, _batches(need)).find():
            return None
        return Plan(width, packer.spots, payment.payers(packer.spots), self.passage)

    def _settle_batch(self, packer: Packer, payment: Payment, batch: Batch, count: int, reach: int) -> bool:
        """Place groups that must lie in one domain, on nodes that the first `count` payers reach."""
        pods = sum(active + spares for _, (active, spares) in batch)
        packer.narrow(reach)
        for domain in packer.domains(pods):
            if packer.pods(domain) < pods:
                continue
            saved, length = payment.save(), len(packer.spots)
            if packer.seat_paid(domain, batch, lambda node: payment.pay(node, count)):
                return True
            if len(packer.spots) > length:
                payment.restore(saved)
                packer.drop(length)
        return False


def _batches(need: Need) -> list[Batch]:
    """The groups one by one, or all at once where they must lie in one domain."""
    sizes = [(block.active, block.spares) for block in need.blocks for _ in range(block.groups)]
    return [list(enumerate(sizes))] if need.together else [[each] for each in enumerate(sizes)]


def _levels(usable: list[Offer]) -> Iterator[tuple[int, int]]:
    """How many payers in the order of cover reach which nodes, each time the reach grows."""
    reach = 0
    for index, offer in enumerate(usable):
        reach |= offer.mask
        last = index + 1 == len(usable)
        if last or usable[index + 1].mask & ~reach:
            yield index + 1, reach


def _union(offers: Iterable[Offer]) -> int:
    """The nodes that any of some envelopes may pay for."""
    mask = 0
    for offer in offers:
        mask |= offer.mask
    return mask


def _poor(message: str, stops: list[Reason], vain: list[Reason] | None) -> Refusal:
    """A lack of money where the room is: what stops it, and what would if nothing else ran, where that would not help."""
    reason, lost = envelopes.cause(stops), None if vain is None else envelopes.cause(vain)
    if lost is None or lost.alone == reason.remedy:
        return Refusal(reason, f"{message}: {reason.remedy}", tally(stops))
    return Refusal(reason, f"{message}, nor would have if nothing else ran: {lost.alone}", tally(stops), lost)


def tally(stops: list[Reason]) -> dict[str, int]:
    """How many were stopped by which reason."""
    counts: dict[str, int] = {}
    for reason in stops:
        counts[reason.value] = counts.get(reason.value, 0) + 1
    return counts
