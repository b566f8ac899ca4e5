"""Payment: which payer pays which pod, where not every payer may pay for every node.

Pods on nodes that the same payers reach are alike, so only counts per kind of node are kept. A pod goes to the first payer in the
order of cover that has money left; where none has, a pod that was paid before is moved to another payer, if that frees money.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlease.engine.cover import Offer, Purse
    from fairlease.engine.pack import Spot
    from fairlease.ledger.capacity import NodeState

Kind = tuple[int, ...]
"""The payers that reach a node, by their place in the order of cover."""


class Payment:
    """Who pays how many pods on which kind of node."""

    def __init__(self, purse: Purse, payers_in_order: list[Offer]) -> None:
        self.purse = purse
        self.offers = payers_in_order
        self.paid: dict[Kind, dict[int, int]] = {}
        self._kinds: dict[int, Kind] = {}

    def pay(self, node: NodeState, count: int) -> bool:
        """Find a payer among the first `count` for one more pod on a node."""
        kind = self._kind(node)
        payer = self._find(kind, count, set())
        if payer is None:
            return False
        self._book(kind, payer, 1)
        return True

    def payers(self, spots: list[Spot]) -> list[Offer]:
        """The payer of each spot: active pods before spares, and in rank order the earliest payers first."""
        queues = {
            kind: sorted((index for index, count in shares.items() for _ in range(count)), reverse=True)
            for kind, shares in self.paid.items()
        }
        chosen: dict[int, Offer] = {}
        order = sorted(range(len(spots)), key=lambda place: (spots[place].spare, place))
        for place in order:
            chosen[place] = self.offers[queues[self._kind(spots[place].node)].pop()]
        return [chosen[place] for place in range(len(spots))]

    def save(self) -> tuple[object, ...]:
        """To go back to when a domain does not work out."""
        return self.purse.save(), {kind: dict(shares) for kind, shares in self.paid.items()}

    def restore(self, saved: tuple[object, ...]) -> None:
        """Go back."""
        self.purse.restore(saved[0])  # type: ignore[arg-type]  # what `save` put there
        self.paid = saved[1]  # type: ignore[assignment]  # what `save` put there

    def _kind(self, node: NodeState) -> Kind:
        if node.bit not in self._kinds:
            self._kinds[node.bit] = tuple(index for index, offer in enumerate(self.offers) if offer.mask & node.bit)
        return self._kinds[node.bit]

    def _book(self, kind: Kind, payer: int, pods: int) -> None:
        shares = self.paid.setdefault(kind, {})
        shares[payer] = shares.get(payer, 0) + pods
        self.purse.take(self.offers[payer], pods)

    def _find(self, kind: Kind, count: int, tried: set[int]) -> int | None:
        """A payer of this kind, among the first `count`, with money left; made so by moving others if need be."""
        for payer in kind:
            if payer < count and payer not in tried and self._has_room(payer):
                return payer
        for payer in kind:
            if payer < count and payer not in tried:
                tried.add(payer)
                if any(self._move(other, payer, count, tried) for other in list(self.paid)):
                    return payer
        return None

    def _move(self, kind: Kind, payer: int, count: int, tried: set[int]) -> bool:
        """Have another pay for one pod that `payer` pays now, if that leaves `payer` with money for one more."""
        if self.paid[kind].get(payer, 0) == 0:
            return False
        other = self._find(kind, count, tried)
        if other is None:
            return False
        self._book(kind, payer, -1)
        self._book(kind, other, 1)
        if self._has_room(payer):
            return True
        self._book(kind, other, -1)
        self._book(kind, payer, 1)
        return False

    def _has_room(self, payer: int) -> bool:
        return self.purse.room(self.offers[payer])[0] > 0
