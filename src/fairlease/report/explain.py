"""Explain: every envelope and every domain that a run asked, each with its answer. The same cover and pack as the decision's.

`explain` looks at the state as it is; it is asked for a waiting run, or inside a trial for one that was not submitted yet.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover import envelopes
from fairlease.engine.cover.family import CoverPlace
from fairlease.engine.place.packing import Rooms, need_of
from fairlease.engine.place.plan import Planner, least_width
from fairlease.engine.refusal import Refusal
from fairlease.engine.reserve.release_times import too_late
from fairlease.model.record import Key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.cover.family import Family
    from fairlease.engine.place.plan import Plan
    from fairlease.ledger.state.capacity import Domain
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State


class Visit(NamedTuple):
    """One envelope asked: in which place, for nodes inside the run's location or elsewhere, what it pays, and what stopped it."""

    place: str
    budget: Key
    envelope: str
    owner: str
    inside: bool
    pays_gpus: int
    room_gpus: int | None
    reason: Reason
    remedy: str


class DomainVisit(NamedTuple):
    """One fabric domain asked: what is free in it, how many of the run's groups would fit, and its answer."""

    domain: str
    cluster: str
    region: str
    free_gpus: int
    groups_fit: int
    reason: Reason


class Explanation(NamedTuple):
    """Why a run starts or waits, from the money to the slots. `gpus`: all it would hold at that width, spares included."""

    verdict: Reason
    message: str
    remedy: str
    visits: list[Visit]
    domains: list[DomainVisit]
    width: int
    gpus: int

    def of(self, run: RunState) -> tuple[str, str]:
        """Why a run waits, and what would change it: as things stand, where it is still what the run was told, else as it was told.

        Who is reserved waits for its date, whatever the lack of room, unless that comes too late for it.
        """
        if self.verdict is run.reason:
            return self.message, self.remedy
        if self.verdict is Reason.NoRoom and run.reason is Reason.Reserved:
            late = run.hold is not None and too_late(run, run.hold.earliest_start)
            return self.message, (Reason.LatestStartPassed if late else run.reason).remedy
        return run.message or self.message, run.reason.plain_remedy


def explain(state: State, family: Family, run: RunState, now: int) -> Explanation:
    """Ask everything again and write the answers down."""
    planner = Planner(state, family, run, now)
    refusal = planner.unfunded()
    plan = None if refusal else planner.widest()
    if refusal is None and plan is None:
        refusal = planner.roomless()
    width = least_width(run.spec) if plan is None else plan.width
    better = "" if plan is None or plan.complete else "; the search for a better placement gave up"
    told = refusal or Refusal(Reason.Start, f"can start {width} GPUs wide{better}", {})
    need = need_of(run.spec, width)
    return Explanation(
        verdict=told.reason,
        message=told.message,
        remedy=told.remedy,
        visits=visits(state, family, run, now, width, plan),
        domains=_domains(planner, width, plan),
        width=width,
        gpus=need.pods * need.size,
    )


def words(state: State, family: Family, run: RunState, now: int) -> str:
    """Why a waiting run waits, said anew; as it was recorded where the cause would be another, which is not ours to decide."""
    planner = Planner(state, family, run, now)
    refusal = planner.unfunded() or planner.roomless()
    return refusal.message if refusal.reason is run.reason else run.message


def visits(state: State, family: Family, run: RunState, now: int, width: int, plan: Plan | None = None) -> list[Visit]:
    """Every envelope in the order of cover; then those that do not share, and sponsors named in vain.

    What each pays is what the plan takes from it; without one, what it would pay if its money reached every node.
    """
    offers = envelopes.offers(state, family, run, now)
    spending, alone = envelopes.Spending(state, run, now), envelopes.Spending(state, run, now, idle=True)
    left = need_of(run.spec, width).pods
    planned = None if plan is None else Counter((offer.account.id, offer.inside) for offer in plan.payers)
    vain = Planner(state, family, run, now).hopeless(left) is not None
    size = run.spec.pod_gpus
    found = []
    for offer in offers:
        room, why = spending.room(offer)
        waits = alone.room(offer)[0] > room or envelopes.opens_later(offer, now)
        pods = min(room, left) if planned is None else planned[offer.account.id, offer.inside]
        spending.take(offer, pods)
        alone.take(offer, pods)
        left -= pods
        used_up = pods == room and left
        unused = Reason.NotNeeded if not left or planned is None else Reason.NoRoom
        reason = why if used_up or room == 0 else Reason.Chosen if pods else unused
        budget, name = offer.account.id
        seen = None if room >= envelopes.PLENTY // 2 else room * size
        remedy = reason.remedy if waits and not vain else reason.alone
        place, owner = offer.place.value, offer.account.owner
        found.append(Visit(place, Key(budget), name, owner, offer.inside, pods * size, seen, reason, remedy))
    for entry in family.order(run.signature):
        if entry.withheld:
            budget, name = entry.account.id
            owner, inside = entry.account.owner, True
            why = Reason.NotShared
            found.append(Visit(entry.place.value, Key(budget), name, owner, inside, 0, 0, why, why.remedy))
    return [*found, *_unasked(family, run, {(visit.budget, visit.envelope) for visit in found})]


def _unasked(family: Family, run: RunState, asked: set[tuple[Key, str]]) -> Iterator[Visit]:
    """Sponsors whom a run names in vain: it may not borrow, or they have no Budget at all."""
    spec = run.spec
    entries = family.order((spec.owner, True, spec.funding.sponsors))
    owners = {entry.account.owner for entry in entries}
    for entry in () if spec.funding.allow_borrow else entries:
        budget, name = entry.account.id
        if entry.place is CoverPlace.SPONSOR and (Key(budget), name) not in asked:
            owner, why, remedy = entry.account.owner, Reason.BorrowLimit, "set funding.allowBorrow: true"
            yield Visit(entry.place.value, Key(budget), name, owner, True, 0, 0, why, remedy)  # noqa: FBT003 - a row of a table
    for owner in spec.funding.sponsors:
        if owner not in owners:
            why, remedy = Reason.NoEnvelope, "name an owner that has a Budget with an envelope of this flavor"
            yield Visit(CoverPlace.SPONSOR.value, Key(""), "", owner, True, 0, 0, why, remedy)  # noqa: FBT003 - as above


def _domains(planner: Planner, width: int, plan: Plan | None) -> list[DomainVisit]:
    pool = planner.pool
    if pool is None:
        return []
    need = need_of(planner.run.spec, width)
    per_group = need.pods if need.together else need.blocks[0].pods
    reach = planner.reach()
    rooms = Rooms(pool, reach, need.size)
    chosen = {id(spot.node.domain) for spot in plan.spots} if plan else set()
    found = []
    for domain in sorted(pool.domains.values(), key=lambda each: (each.free, each.order)):
        pods = rooms.pods(domain) if domain.mask & reach else 0
        if domain.mask & reach:
            chosen_here = id(domain) in chosen
            reason = _domain_answer(domain, pods, per_group, need.size, chosen=chosen_here, started=plan is not None)
        else:
            reason = planner.unpaid(domain.mask)
        region, cluster, name = domain.key
        found.append(DomainVisit(name, cluster, region, domain.free, pods // per_group, reason))
    return found


def _domain_answer(domain: Domain, pods: int, per_group: int, size: int, *, chosen: bool, started: bool) -> Reason:
    if chosen:
        return Reason.Chosen
    if pods >= per_group:
        return Reason.NotNeeded if started else Reason.Fits
    return Reason.Fragmented if domain.free >= per_group * size else Reason.NoRoom
