"""Resolve: whose work gives way to a funded claim (SEMANTICS §7).

Work without a claim to its GPUs goes first and at once: opportunistic runs, then what is overdrawn. (Spares, elastic width and
the lottery follow in that order when a reservation falls due; they join `candidates` behind these two.) Victims are tried on a
trial of the state, the claim is packed again and verified, and every victim that proves unneeded is given back, before anybody
is touched. If the claim still does not fit, nobody is.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.elastic import shed
from fairlease.engine.pack import need_of
from fairlease.engine.plan import Planner
from fairlease.ledger.event import LeasesClosed, OutcomeRecorded
from fairlease.model.record import Key
from fairlease.model.reservation import Cut, OutcomeSpec, Scope
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.family import Family
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State


class Victim(NamedTuple):
    """Leases that go together, and whether that ends the attempt."""

    run: Key
    names: tuple[str, ...]
    reason: Reason
    gpus: int
    whole: bool


class Resolution(NamedTuple):
    """Who gives way, the record of it, and how many pods the claim may start with: those it could pay before."""

    record: OutcomeRecorded
    victims: list[Victim]
    pods_max: int


def resolve(state: State, family: Family, claim: RunState, now: int, width: int) -> Resolution | None:
    """Who must give way so that the claim starts wider than `width` (0: at all); None where cutting does not help."""
    planner = Planner(state, family, claim, now)
    reach, funded = planner.reach(), planner.affordable()
    standing = [victim for victim in candidates(state, claim) if _touches(state, victim, reach)]
    if not standing:
        return None
    width_without = partial(_width, state, family, claim, now, funded)
    target = width_without(_together(standing))
    if target <= width:
        return None
    wanted = range(1, len(standing) + 1)
    count = wanted[bisect_left(wanted, target, key=lambda first: width_without(_together(standing[:first])))]
    chosen = _together(standing[:count])
    need = need_of(claim.spec, target)
    spare_gpus = state.capacity.pools[claim.spec.resources.gpu_type].free - need.pods * need.size
    for victim in reversed(chosen[:-1]):
        rest = [each for each in chosen if each is not victim]
        enough = sum(each.gpus for each in rest) + spare_gpus >= 0
        if enough and width_without(rest) >= target:
            chosen = rest
    return Resolution(_record(state, claim, now, target, standing, chosen), chosen, funded)


def candidates(state: State, claim: RunState) -> list[Victim]:
    """Work that has no claim to its GPUs, in the order in which it goes; within a class the youngest first."""
    flavor = claim.spec.resources.gpu_type
    free_riders = [run for run in state.opportunistic.values() if run.spec.resources.gpu_type == flavor]
    found = [_whole(run, Reason.ReclaimOpportunistic) for run in _youngest_first(free_riders)]
    owing = {Key(unit[0]): state.runs[Key(unit[0])] for unit in state.overdrawn}
    for run in _youngest_first(list(owing.values())):
        if run.spec.resources.gpu_type == flavor and run.key not in state.opportunistic:
            found.extend(_overdrawn(run))
    return found


def _youngest_first(runs: list[RunState]) -> list[RunState]:
    return sorted(runs, key=lambda run: (-(run.started_at or 0), -run.order))


def _whole(run: RunState, reason: Reason) -> Victim:
    return Victim(
        run.key,
        tuple(lease.name for lease in run.held),
        reason,
        sum(lease.gpus for lease in run.leases.values()),
        whole=True,
    )


def _overdrawn(run: RunState) -> list[Victim]:
    """A rigid run goes whole; an elastic one by overdrawn groups, the highest first, and whole where that is not enough."""
    found: list[Victim] = []
    gone: frozenset[int] = frozenset()
    for group in sorted({unit[3] for unit in run.overdrawn}, reverse=True):
        if group in gone:
            continue
        going = shed(run, group, gone)
        if going is None:
            return [*found, _whole(run, Reason.ReclaimOverdrawn)]
        gone |= going
        leases = [lease for lease in run.held if lease.group in going]
        gpus, names = sum(lease.gpus for lease in leases), tuple(lease.name for lease in leases)
        found.append(Victim(run.key, names, Reason.ReclaimOverdrawn, gpus, whole=False))
    return found


def _together(victims: list[Victim]) -> list[Victim]:
    """Victims that can go at once: a run that goes whole goes once."""
    whole = {victim.run for victim in victims if victim.whole}
    return [victim for victim in victims if victim.whole or victim.run not in whole]


def _touches(state: State, victim: Victim, reach: int) -> bool:
    leases = state.runs[victim.run].leases
    return any(state.capacity.nodes[leases[name].node].bit & reach for name in victim.names)


def _width(state: State, family: Family, claim: RunState, now: int, funded: int, victims: list[Victim]) -> int:
    """How wide the claim could start if `victims` were gone; 0 where it could not.

    No wider than it was `funded` with all of them there: a lack of money is no reason to cut anybody.
    """
    mark = state.mark()
    for victim in victims:
        state.apply(now, LeasesClosed(run=victim.run, names=victim.names, reason=victim.reason))
    plan = Planner(state, family, claim, now).widest(funded)
    state.rollback(mark)
    return 0 if plan is None else plan.width


def _record(
    state: State, claim: RunState, now: int, width: int, standing: list[Victim], chosen: list[Victim]
) -> OutcomeRecorded:
    pool = state.capacity.pools[claim.spec.resources.gpu_type]
    outcome = OutcomeSpec(
        claim=claim.key,
        at=now,
        scope=Scope(flavor=pool.flavor, location=claim.spec.locality.location),
        deficit_gpus=max(0, width - pool.free),
        conflict_set=tuple(dict.fromkeys(victim.run for victim in standing)),
        actions=tuple(Cut(run=each.run, leases=each.names, reason=each.reason, gpus=each.gpus) for each in chosen),
        previous=state.last_outcome,
    )
    return OutcomeRecorded(name=f"outcome-{state.outcomes + 1}", outcome=outcome)
