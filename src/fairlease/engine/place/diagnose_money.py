"""Apart: whether money that reaches different nodes could pay for all pods of a run, if nothing else ran (SEMANTICS §3, §6).

Nodes enough and money enough are not enough where each envelope reaches some nodes only: what one has left may be of no use where
another has none. Then no GPU that comes free would help, and a date would be a promise that nobody can keep. It is counted, not
searched, so it may say yes where only a search could tell that groups do not come out even; it never says no where there is a way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.assignment import Payment
from fairlease.engine.place.packing import REMEMBERED_MAX, fits_empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlease.engine.cover.envelopes import Offer, Purse
    from fairlease.engine.place.packing import Need
    from fairlease.ledger.state.capacity import Domain, NodeState, Pool
    from fairlease.reason import Reason


def stopped(pool: Pool, need: Need, offers: list[Offer], purse_of: Callable[[], Purse]) -> list[Reason] | None:
    """What stops the money of some envelopes that pay for a pod or more; None where it could pay for all of `need`."""
    purse = purse_of()
    room = tuple((offer.mask, purse.room(offer)[0]) for offer in offers)
    if any(pods >= need.pods and fits_empty(pool, mask, need) for mask, pods in room):
        return None
    payment = Payment(purse, offers)
    known = None if payment.entangled else (need, room)
    if known is not None and known in pool.ever_fits:
        return None
    found = _stopped(pool, need, payment, lambda: Payment(purse_of(), offers))
    if known is not None and found is None:  # a no has its reasons, which are not kept
        if len(pool.ever_fits) >= REMEMBERED_MAX:
            pool.ever_fits.clear()
        pool.ever_fits[known] = True
    return found


def _stopped(pool: Pool, need: Need, payment: Payment, another: Callable[[], Payment]) -> list[Reason] | None:
    """First domain by domain, as a group lies in one; then all that have money for a group, at once."""
    group = need.pods if need.together else need.blocks[0].pods
    domains = sorted(pool.domains.values(), key=lambda each: each.order)
    if group > 1:
        alone = [(domain, another()) for domain in domains]
        paid = [(domain, each, each.reached(_seats(domain, need), need.pods)) for domain, each in alone]
        if any(each.gave_up for _, each in alone):
            return None
        least = group if need.together else need.blocks[-1].pods
        domains = [domain for domain, _, pods in paid if pods >= least]
        whole = sum(_whole(need, group, pods) for _, _, pods in paid)
        if whole < need.pods:
            return [why for _, each, _ in paid for why in each.dry()]
        if need.together:
            return None
    seats = (node for domain in domains for node in _seats(domain, need))
    if payment.reached(seats, need.pods) >= need.pods or payment.gave_up:
        return None
    return payment.dry()


def _whole(need: Need, group: int, pods: int) -> int:
    """How many of `pods` pods that a domain has money for are of use: those of whole groups, or of the smaller last one."""
    full, rest = divmod(pods, group)
    last = need.blocks[-1].pods
    return full * group + (last if not need.together and last < group and rest >= last else 0)


def _seats(domain: Domain, need: Need) -> Iterator[NodeState]:
    """A node for each pod that it holds when it is empty."""
    nodes = sorted(domain.nodes.values(), key=lambda node: node.rank)
    return (node for node in nodes for _ in range(node.node.gpus // need.size))
