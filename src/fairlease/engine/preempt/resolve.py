"""Resolve: whose work is preempted for a funded claim, verified by a plan before anybody is touched (SEMANTICS §7).

Work without a claim to its GPUs goes at once, for the widest width that it serves. Only where the claim's reservation is due does
funded work go, for the claim's narrowest width. A selection counts GPUs (`selection`); then the claim is planned on a trial of the
state without the victims, with the money that there is. Where money reaches some nodes only and the plan fails, victims are
selected again with a plan at each step that counting allows. The plan that was verified is the plan that is bound; if there is
none, nobody is touched.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover.envelopes import Withheld
from fairlease.engine.place.fit_count import FitCount
from fairlease.engine.place.packing import all_fit, need_of
from fairlease.engine.place.plan import Planner, least_width, widths
from fairlease.engine.preempt import lottery
from fairlease.engine.preempt.lottery import LotteryPools
from fairlease.engine.preempt.selection import Choice, Selection, lacking
from fairlease.engine.preempt.victims import of_unclaimed, unclaimed
from fairlease.ledger.state.events import LeasesClosed, OutcomeRecorded
from fairlease.model.record import Key
from fairlease.model.reservation import Cut, OutcomeSpec, RunRef, Scope, Shortage
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlease.engine.cover.family import Family
    from fairlease.engine.place.packing import Need
    from fairlease.engine.place.plan import Plan
    from fairlease.engine.preempt.selection import Order
    from fairlease.engine.preempt.victims import Victim
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.reservation import ByHand, Token

EFFORT_OF_A_PLAN = 50
"""Questions to a count that cost about as much as to plan a claim."""


class Resolution(NamedTuple):
    """Who is preempted, the record of it, and the plan by which the claim then starts (None where it was asked for by hand)."""

    record: OutcomeRecorded
    victims: list[Victim]
    plan: Plan | None


def resolve(
    state: State,
    family: Family,
    claim: RunState,
    now: int,
    width: int,
    *,
    due: bool,
    beacon: str = "",
    pools: LotteryPools | None = None,
) -> Resolution | None:
    """Who must be preempted so that the claim starts wider than `width` (0: at all); None where preemption does not help.

    Only where its reservation is `due` is funded work preempted. Who asks several times over one state hands in the same `pools`.
    """
    planner = Planner(state, family, claim, now)
    if planner.pool is None:
        return None
    resolver = Resolver(planner, family, pools or LotteryPools(state), width, due=due)
    settled = resolver.settle(lambda pool: lottery.draws(pool.seed(state, claim, now, beacon), pool.tokens))
    return None if settled is None else resolution(state, claim, settled[0], now, beacon, settled[1])


def deficit(planner: Planner, family: Family) -> int:
    """GPUs that a claim lacks as of a planner's date, as the record of its resolution would say; 0 where nobody is preempted."""
    if planner.pool is None:
        return 0
    resolver = Resolver(planner, family, LotteryPools(planner.state), 0, due=True)
    short = lacking(resolver.fit(planner.least))
    if not short:  # It fits somewhere; perhaps not where its money reaches.
        found = resolver.choose(lambda pool: pool.tokens)
        return 0 if found is None or not found.victims else resolver.deficit_gpus(found)
    return sum(each.gpus for each in short)


class Resolver:
    """One claim, and everybody who may be preempted for it. It may be asked for as many orders of draws as one likes."""

    def __init__(self, planner: Planner, family: Family, pools: LotteryPools, width: int, *, due: bool) -> None:
        self.planner = planner
        self._family = family
        self._pools = pools
        self._width = width
        self._due = due
        self._plans: dict[frozenset[int], Plan | None] = {}
        self._selections: dict[tuple[bool, bool], Selection] = {}

    def settle(self, order: Order) -> tuple[Choice, Plan] | None:
        """Who goes if they are drawn in this order, and how the claim then starts; None where nobody is touched."""
        found = self.choose(order)
        plan = None if found is None else self._plan_without(found.victims)
        if found is None or plan is None or plan.width <= self._width:
            return None
        return found._replace(short=found.short or self._in_place(plan)), self._bound(found.victims, plan)

    def choose(self, order: Order) -> Choice | None:
        """Who goes if they are drawn in this order; None where nobody is touched."""
        if self._at_once is None and self._due:
            return self._select(least_width(self.planner.run.spec), order, due=True)
        return self._at_once

    @cached_property
    def _at_once(self) -> Choice | None:
        """Who goes whether the claim is due or not: work that has no claim to its GPUs."""
        state = self.planner.state
        width = self._served_at_once() if state.opportunistic or state.overdrawn else 0
        found = self._select(width, lambda pool: pool.tokens, due=False) if width > self._width else None
        return found if found is not None and found.victims else None

    def _served_at_once(self) -> int:
        """The widest width for which it may be enough that all work without a claim goes; 0 where it is for none."""
        planner, spec = self.planner, self.planner.run.spec
        if spec.malleable is None:
            return spec.resources.total_gpus
        fit, grid = self.fit(planner.least), widths(spec)
        for run in unclaimed(planner.state, fit):
            for victim in of_unclaimed(run, fit.usable):
                fit.take(lease for lease in victim.leases if lease.serial not in fit.away)
        if not self._counts_alone:
            plan = self.plan(fit.away.values()) if fit.away and fit.fits() else None
            return 0 if plan is None else plan.width
        pods, most = list(fit.pods.values()), planner.affordable()
        paid = bisect_right(grid, most, key=lambda width: need_of(spec, width).pods)
        count = bisect_right(grid[:paid], 0, key=lambda width: int(not all_fit(pods, need_of(spec, width))))
        return grid[count - 1] if count else 0

    def _select(self, width: int, order: Order, *, due: bool) -> Choice | None:
        """Counted; where what was counted cannot be paid for, selected again with the money tried at each step."""
        for paid in (False, True):
            selection = self._selections.get((due, paid))
            if selection is None:
                fit = self.fit(need_of(self.planner.run.spec, width))
                if paid:
                    fit = PaidFit(fit, lambda gone: self._serves(self.plan(gone), width), self.planner.state)
                selection = Selection(self._pools, self.planner.run, fit, self.planner.now, due=due)
                self._selections[due, paid] = selection
            found = selection.choose(order)
            if found is None or self._counts_alone or self._serves(self._plan_without(found.victims), width):
                return found
        return None

    @staticmethod
    def _serves(plan: Plan | None, width: int) -> bool:
        return plan is not None and plan.width >= width

    @cached_property
    def _counts_alone(self) -> bool:
        return self.planner.counts_alone()

    def fit(self, need: Need) -> FitCount:
        """The room for a need where the claim's money reaches."""
        planner = self.planner
        assert planner.pool is not None, "asked only where there is a pool"
        return FitCount(planner.state, planner.pool, planner.reach(), need, planner.way)

    def _plan_without(self, victims: list[Victim]) -> Plan | None:
        return self.plan([lease for victim in victims for lease in victim.leases])

    def plan(self, leases: Iterable[Lease]) -> Plan | None:
        """How the claim would start without some leases, tried once for the same ones; None where it could not.

        It is paid with the money that there was while all of them were there: a lack of money is no reason to preempt anybody.
        """
        gone = {lease.serial: lease for lease in leases}
        key = frozenset(gone)
        if key not in self._plans:
            state, now = self.planner.state, self.planner.now
            payers = {(lease.payer.budget, lease.payer.envelope) for lease in gone.values()}
            accounts = [state.account(*payer) for payer in payers]
            withheld = {each.id: Withheld.of(each, now, state.config.commit_quantum) for each in accounts}
            with self._without(gone.values()):
                planner = Planner(state, self._family, self.planner.run, now, withheld)
                self._plans[key] = planner.widest(self.planner.affordable())
        return self._plans[key]

    def _bound(self, victims: list[Victim], verified: Plan) -> Plan:
        """The plan that is bound: as wide as the verified one, and nobody pays in whose stead money that came free would."""
        state, run = self.planner.state, self.planner.run
        leases = [lease for victim in victims for lease in victim.leases]
        payers = {(lease.payer.budget, lease.payer.envelope) for lease in leases}
        if not any(offer.account.id in payers for offer in self.planner.offers):
            return verified
        with self._without(leases):
            planner = Planner(state, self._family, run, self.planner.now)
            return planner.at(verified.width, need_of(run.spec, verified.width)) or verified

    @contextmanager
    def _without(self, leases: Iterable[Lease]) -> Iterator[None]:
        """A trial in which some leases are closed."""
        state, by_run = self.planner.state, dict[Key, list[str]]()
        for lease in leases:
            by_run.setdefault(lease.run, []).append(lease.name)
        with state.trial():
            for run, names in by_run.items():
                state.apply(self.planner.now, LeasesClosed(run=run, names=tuple(names), reason=Reason.Shrink))
            yield

    def deficit_gpus(self, found: Choice) -> int:
        """GPUs that are lacking where these have to go."""
        plan = None if found.short else self._plan_without(found.victims)
        return sum(each.gpus for each in (found.short if plan is None else self._in_place(plan)))

    def _in_place(self, plan: Plan) -> tuple[Shortage, ...]:
        """What each group lacks on the nodes where it would run: it would fit somewhere, only not where its money reaches."""
        fit, rooms, short = self.fit(self.planner.least), dict[str, int](), dict[int, int]()
        size = fit.need.size
        for spot in plan.spots:
            name = spot.node.node.name
            room = rooms.setdefault(name, fit.room(spot.node))
            rooms[name] = room - size
            if room < size:
                short[spot.group] = short.get(spot.group, 0) + size
        return tuple(Shortage(group=group, gpus=gpus) for group, gpus in sorted(short.items()))

    @property
    def tokens(self) -> list[Token]:
        """Who could be drawn in what was asked so far."""
        return list(dict.fromkeys(token for each in self._selections.values() for token in each.tokens))

    @property
    def effort(self) -> int:
        """What it has cost so far, in questions to counts and changes of them."""
        return sum(each.fit.effort for each in self._selections.values()) + EFFORT_OF_A_PLAN * len(self._plans)


class PaidFit(FitCount):
    """A need fits only where somebody pays for all of it: counted, and then planned."""

    looks_max = 50

    def __init__(self, counted: FitCount, planned: Callable[[Iterable[Lease]], bool], state: State) -> None:
        super().__init__(state, counted.pool, counted.mask, counted.need, counted.passage)
        self._planned = planned

    def fits(self) -> bool:
        """Whether the need would fit and be paid for."""
        return super().fits() and self._planned(self.away.values())


def resolution(
    state: State,
    claim: RunState,
    found: Choice,
    now: int,
    beacon: str,
    plan: Plan | None,
    by_hand: ByHand | None = None,
) -> Resolution:
    """What was selected, with its record; where it was asked for by hand there is no run that claims."""
    victims, held = found.victims, None
    if found.pool is not None:
        seed = found.pool.seed(state, claim, now, beacon)
        victims = [each._replace(seed=seed) if each.reason is Reason.RandomPreempt else each for each in victims]
        held = found.pool.proof(found.drawn, seed, beacon, {each.run for each in victims if each.whole})
    outcome = OutcomeSpec(
        claim=RunRef.of(claim.key) if by_hand is None else None,
        by_hand=by_hand,
        reservation=claim.reservation,
        at=now,
        scope=Scope.of(claim.spec),
        deficit_gpus=sum(each.gpus for each in found.short),
        deficits=found.short,
        conflict_set=tuple(dict.fromkeys(found.conflict)),
        lottery=held,
        actions=tuple(Cut(run=each.run, leases=each.names, reason=each.reason, gpus=each.gpus) for each in victims),
        previous=state.last_outcome,
    )
    return Resolution(OutcomeRecorded(name=f"outcome-{state.outcomes + 1}", outcome=outcome), victims, plan)
