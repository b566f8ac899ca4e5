"""Diagnose: why a run that is paid for cannot start (SEMANTICS §3, §6).

Either no set of nodes could hold it, empty or not: then it is told what is too large for what. Or money reaches different nodes,
and not where the room is: then no GPU that comes free would help, and a date would be a promise that nobody can keep; the search
of `engine.place.search` on empty nodes tells. Or GPUs are lacking now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.packing import REMEMBERED_MAX, EmptyRooms, fits_empty
from fairlease.engine.place.payers import Demand, Payers
from fairlease.engine.place.search import Search
from fairlease.model.run import LocationPolicy
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.cover.envelopes import Offer, Spending
    from fairlease.engine.place.packing import Need
    from fairlease.ledger.state.capacity import Pool
    from fairlease.model.run import RunSpec


def stopped(pool: Pool, need: Need, offers: list[Offer], spending: Spending) -> tuple[str, list[Reason]] | None:
    """What stops money from paying for all pods on empty nodes, in words and by its causes; None where it would pay.

    It never says no where there is a way: where the search gives up it says nothing.
    """
    paying = [offer for offer in offers if spending.room(offer)[0] > 0]
    reach = 0
    for offer in paying:
        reach |= offer.mask
    if not fits_empty(pool, reach, need):
        return f"{need.pods * need.size} GPUs would fit only where its money is used up", empty(spending, offers)
    rooms = tuple((offer.mask, spending.room(offer)[0]) for offer in paying)
    if all(mask == reach for mask, _ in rooms) or any(
        pods >= need.pods and fits_empty(pool, mask, need) for mask, pods in rooms
    ):
        return None
    payers = Payers(spending, paying, need.pods)
    known = (need, rooms, payers.shared)
    if known not in pool.ever_fits:
        if len(pool.ever_fits) >= REMEMBERED_MAX:
            pool.ever_fits.clear()
        search = Search(EmptyRooms(pool, reach, need.size), need, payers)
        pool.ever_fits[known] = search.possible() or not search.tries or not payers.complete
    return None if pool.ever_fits[known] else _nearest(pool, need, payers, spending)


def _nearest(pool: Pool, need: Need, payers: Payers, spending: Spending) -> tuple[str, list[Reason]]:
    """What stops the domain in which most pods of a group would be paid for, or, where one has enough, all of them together."""
    group, most, nearest = need.pods if need.together else need.blocks[0].pods, -1, list[Reason]()
    everywhere: dict[int, int] = {}
    for domain in sorted(pool.domains.values(), key=lambda each: each.order):
        kinds: dict[int, int] = {}
        for node in domain.nodes.values():
            kind = payers.kind(node.bit)
            kinds[kind] = kinds.get(kind, 0) + node.node.gpus // need.size
            everywhere[kind] = everywhere.get(kind, 0) + node.node.gpus // need.size
        paid = payers.most(Demand(group, kinds))
        if sum(paid) > most:
            most, nearest = sum(paid), _stops(spending, payers.offers, paid)
    if most < group:
        return f"no domain has money for a whole group of {group * need.size} GPUs", nearest
    paid = payers.most(Demand(need.pods, everywhere))
    return f"money for {need.pods * need.size} GPUs does not reach where they would lie", _stops(
        spending, payers.offers, paid
    )


def _stops(spending: Spending, offers: list[Offer], paid: tuple[int, ...]) -> list[Reason]:
    """What stops those that have no money left for one pod more, when so much is paid."""
    for offer, pods in zip(offers, paid, strict=True):
        spending.take(offer, pods)
    found = empty(spending, offers)
    for offer, pods in zip(offers, paid, strict=True):
        spending.take(offer, -pods)
    return found


def empty(spending: Spending, offers: list[Offer]) -> list[Reason]:
    """What stops those of some envelopes that would not pay for one pod."""
    return [why for pods, why in map(spending.room, offers) if pods == 0]


def nowhere(pool: Pool | None, mask: int, need: Need, spec: RunSpec) -> str:
    """Why some nodes, all of them empty, would not hold a run, and what would have to change; nothing where they would."""
    if pool is None:
        return f"there is no node of flavor {spec.resources.gpu_type}: ask for another flavor"
    if mask and fits_empty(pool, mask, need):
        return ""
    return f"{_too_large(pool, mask, need)}: {Reason.NeverFits.remedy}"


def _too_large(pool: Pool, mask: int, need: Need) -> str:
    gpus, group = need.pods * need.size, need.pods if need.together else need.blocks[0].pods
    nodes = [state for domain in pool.domains.values() for state in domain.nodes.values() if state.bit & mask]
    if max((state.node.gpus for state in nodes), default=0) < need.size:
        return f"no node could hold a pod of {need.size} GPUs"
    rooms: dict[int, int] = {}
    for state in nodes:
        rooms[id(state.domain)] = rooms.get(id(state.domain), 0) + state.node.gpus // need.size
    if 1 < group < need.pods and max(rooms.values()) < group:
        return f"no fabric domain could hold a group of {group * need.size} GPUs"
    return f"no set of nodes could hold {gpus} GPUs in groups as asked"


def in_location(pool: Pool | None, spec: RunSpec) -> int:
    """The nodes that a run's location leaves it, whoever pays."""
    locality = spec.locality
    if pool is None:
        return 0
    if not locality.location or locality.location_policy is LocationPolicy.PREFER:
        return pool.mask
    return pool.nodes_matching(locality.location)
