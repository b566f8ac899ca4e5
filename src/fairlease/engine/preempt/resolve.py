"""Resolve: whose work gives way to a funded claim (SEMANTICS §7).

Work without a claim to its GPUs goes first and at once: opportunistic runs, then what is overdrawn. When a reservation is due,
spares follow, then the groups of malleable runs above their minimum, then whole runs by lot. Victims are taken in that order until
the claim would fit; then, last first, every one that proves unneeded is given back; then the claim is packed on a trial of the
state (`engine.contest`). Only what passed that is acted on: if the claim still does not fit, nobody is touched.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.place.fit_count import FitCount
from fairlease.engine.place.packing import need_of
from fairlease.engine.place.plan import Planner
from fairlease.engine.preempt.lottery_pool import LotteryPools, drawn, proof, seed_of
from fairlease.engine.preempt.selected import together
from fairlease.engine.preempt.selection import Choice, Gone, Selection, lacking, plan_without
from fairlease.engine.preempt.shrink_search import lessened
from fairlease.engine.preempt.victims import Victim, free_riders
from fairlease.ledger.state.events import OutcomeRecorded
from fairlease.model.reservation import Cut, OutcomeSpec, RunRef, Scope
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.engine.cover.family import Family
    from fairlease.ledger.state.capacity import Pool
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.reservation import ByHand


class Resolution(NamedTuple):
    """Who gives way, the record of it, and how many pods the claim may start with: those it could pay before."""

    record: OutcomeRecorded
    victims: list[Victim]
    pods_max: int


def resolve(
    state: State,
    family: Family,
    claim: RunState,
    now: int,
    width: int,
    *,
    due: bool,
    beacon: str = "",
    rolls: LotteryPools | None = None,
) -> Resolution | None:
    """Who must give way so that the claim starts wider than `width` (0: at all); None where cutting does not help.

    Only where its reservation is `due` does funded work give way, and then only for the claim's narrowest width. Who asks
    several times over one state hands in the same `rolls`.
    """
    planner = Planner(state, family, claim, now)
    found = at_once(planner, family, width)
    if found is None and due and planner.pool is not None:
        found = _by_right(Selection(planner, family, rolls or LotteryPools(state)), beacon)
    return found


# --- work that has no claim to its GPUs ------------------------------------------------------------------------------------


def at_once(planner: Planner, family: Family, width: int) -> Resolution | None:
    """Who gives way to a funded claim whether it is due or not; None where that does not make it wider than `width`."""
    state, claim, reach = planner.state, planner.run, planner.reach()
    helps = partial(_lies_in, state, planner.pool, reach)
    standing = [
        victim
        for victim in free_riders(state, claim, helps)
        if any(helps(state.runs[victim.run].leases[name]) for name in victim.names)
    ]
    if not standing or not _could_serve(planner, standing):
        return None
    width_without = partial(_width, planner, family)
    target = width_without(together(standing))
    if target <= width:
        return None
    wanted = range(1, len(standing) + 1)
    count = wanted[bisect_left(wanted, target, key=lambda first: width_without(together(standing[:first])))]
    chosen = together(standing[:count])
    need = need_of(claim.spec, target)
    spare_gpus = state.capacity.pools[claim.spec.resources.gpu_type].idle - need.pods * need.size
    for victim in reversed(chosen[:-1]):
        rest = [each for each in chosen if each is not victim]
        enough = sum(each.gpus for each in rest) + spare_gpus >= 0
        if enough and width_without(rest) >= target:
            chosen = rest
    trial = ResolveTrial(width_without, target)
    trial.change((state.runs[each.run].leases[name] for each in chosen for name in each.names), 1)
    chosen = lessened(chosen, state.runs, trial, helps)
    assert planner.pool is not None, "whoever gives way lies in it"
    short = lacking(FitCount(state, planner.pool, reach, need, planner.way))
    found = Choice(short, [each.run for each in standing], chosen)
    return resolution(state, claim, found, planner.now, "", planner.affordable())


def _could_serve(planner: Planner, standing: list[Victim]) -> bool:
    """Whether the claim's narrowest width would fit if all of them were gone, by counting: where it says no, no plan says yes.

    While work without a claim runs, all who wait are tried again and again, mostly in vain: a trial for each would be dear.
    """
    if planner.pool is None:
        return False
    runs = planner.state.runs
    seats = FitCount(planner.state, planner.pool, planner.payable(), planner.least, planner.way)
    seats.change((runs[each.run].leases[name] for each in together(standing) for name in each.names), 1)
    return seats.fits()


def _lies_in(state: State, pool: Pool | None, reach: int, lease: Lease) -> bool:
    """Whether a lease lies in a pool, on nodes that the claim's money reaches."""
    node = state.capacity.nodes[lease.node]
    return node.bit & reach != 0 and node.domain is not None and node.domain.pool is pool


def _width(planner: Planner, family: Family, victims: list[Victim]) -> int:
    """How wide the claim could start if `victims` were gone; 0 where it could not."""
    plan = plan_without(planner, family, victims)
    return 0 if plan is None else plan.width


class ResolveTrial(Gone):
    """Whether a claim would start as wide as it should: tried, not counted."""

    looks_max = 50

    def __init__(self, width_without: Callable[[list[Victim]], int], target: int) -> None:
        super().__init__()
        self._width_without = width_without
        self._target = target

    def fits(self) -> bool:
        """Whether it would if these were gone."""
        return self._width_without(self.victims()) >= self._target


# --- funded work, when a reservation is due --------------------------------------------------------------------------------


def _by_right(contest: Selection, beacon: str) -> Resolution | None:
    planner, state, claim = contest.planner, contest.planner.state, contest.planner.run
    settled = contest.settle(lambda roll: drawn(seed_of(state, claim, roll, planner.now, beacon), roll))
    if settled is None:
        return None
    return resolution(state, claim, settled[0], planner.now, beacon, planner.affordable())


def resolution(
    state: State, claim: RunState, found: Choice, now: int, beacon: str, pods_max: int, by_hand: ByHand | None = None
) -> Resolution:
    """What was chosen, with its record; where it was asked for by hand there is no run that claims."""
    victims, lottery = found.victims, None
    if found.roll is not None:
        seed = seed_of(state, claim, found.roll, now, beacon)
        victims = [each._replace(seed=seed) if each.reason is Reason.RandomPreempt else each for each in victims]
        lottery = proof(found.roll, found.drawn, seed, beacon, {each.run for each in victims if each.whole})
    outcome = OutcomeSpec(
        claim=RunRef.of(claim.key) if by_hand is None else None,
        by_hand=by_hand,
        reservation=claim.reservation,
        at=now,
        scope=Scope.of(claim.spec),
        deficit_gpus=sum(each.gpus for each in found.short),
        deficits=found.short,
        conflict_set=tuple(dict.fromkeys(found.conflict)),
        lottery=lottery,
        actions=tuple(Cut(run=each.run, leases=each.names, reason=each.reason, gpus=each.gpus) for each in victims),
        previous=state.last_outcome,
    )
    return Resolution(OutcomeRecorded(name=f"outcome-{state.outcomes + 1}", outcome=outcome), victims, pods_max)
