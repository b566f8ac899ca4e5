"""Payment: which payer pays which pod, where not every payer may pay for every node.

Pods on nodes that the same payers reach are alike, so only counts per kind of node are kept. A pod goes to the first payer in the
order of cover that has money left; where none has, a pod that was paid before is moved to another payer, if that frees money.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.model.lease import Fund

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.engine.cover import Offer, Purse
    from fairlease.engine.pack import Spot
    from fairlease.ledger.node import NodeState
    from fairlease.reason import Reason

Tried = set[int] | frozenset[int]

PATIENCE = 400
"""Moves that are tried for one pod, so that no request can hold up the others."""

Kind = tuple[int, ...]
"""The payers that reach a node, by their place in the order of cover."""


class Payment:
    """Who pays how many pods on which kind of node."""

    def __init__(self, purse: Purse, payers_in_order: list[Offer]) -> None:
        self.purse = purse
        self.offers = payers_in_order
        self.paid: dict[Kind, dict[int, int]] = {}
        self._kinds: dict[int, Kind] = {}
        self._patience = PATIENCE
        self.gave_up = False

    def pay(self, node: NodeState, count: int) -> bool:
        """Find a payer among the first `count` for one more pod on a node."""
        return self._pay(self.kind(node), count)

    def pay_anywhere(self, shares: list[tuple[Offer, int]], pods: int) -> int:
        """For how many of `pods` pods there are payers, wherever they may lie, where `shares` of them are paid for already."""
        kind = tuple(range(len(self.offers)))
        paid = 0
        for offer, count in shares:
            self._book(kind, self.offers.index(offer), count)
            paid += count
        while paid < pods and self._pay(kind, len(self.offers)):
            paid += 1
        return paid

    def reached(self, nodes: Iterable[NodeState], pods: int) -> int:
        """For how many of `pods` pods there are payers, each on one of `nodes`; what stops one of a kind stops its like."""
        dry: set[Kind] = set()
        paid = 0
        for node in nodes:
            kind = self.kind(node)
            if kind in dry:
                continue
            if not self._pay(kind, len(self.offers)):
                dry.add(kind)
                continue
            paid += 1
            if paid == pods:
                break
        return paid

    def dry(self) -> list[Reason]:
        """What stops those that have no money left for one pod more."""
        return [why for pods, why in map(self.purse.room, self.offers) if pods == 0]

    def payers(self, spots: list[Spot]) -> list[Offer]:
        """The payer of each spot: active pods before spares, and in rank order the earliest payers first."""
        queues = {
            kind: sorted((index for index, count in shares.items() for _ in range(count)), reverse=True)
            for kind, shares in self.paid.items()
        }
        chosen: dict[int, Offer] = {}
        order = sorted(range(len(spots)), key=lambda place: (spots[place].spare, place))
        for place in order:
            chosen[place] = self.offers[queues[self.kind(spots[place].node)].pop()]
        return [chosen[place] for place in range(len(spots))]

    def kind(self, node: NodeState) -> Kind:
        """Which payers reach a node."""
        if node.bit not in self._kinds:
            self._kinds[node.bit] = tuple(index for index, offer in enumerate(self.offers) if offer.mask & node.bit)
        return self._kinds[node.bit]

    def save(self) -> tuple[object, ...]:
        """To go back to when a domain does not work out."""
        return self.purse.save(), {kind: dict(shares) for kind, shares in self.paid.items()}

    def restore(self, saved: tuple[object, ...]) -> None:
        """Go back."""
        self.purse.restore(saved[0])  # type: ignore[arg-type]  # what `save` put there
        self.paid = {kind: dict(shares) for kind, shares in saved[1].items()}  # type: ignore[attr-defined]  # what `save` put there

    def _pay(self, kind: Kind, count: int) -> bool:
        """Once with a common memory of who was tried, which is quick and enough where no bound is shared; then by all ways."""
        self._patience = PATIENCE
        payer = next(self._options(kind, count, set()), None)
        if payer is None and self.entangled():
            payer = next(self._options(kind, count, frozenset()), None)
        if payer is None:
            self.gave_up = self.gave_up or self._patience <= 0
            return False
        self._book(kind, payer, 1)
        return True

    def _book(self, kind: Kind, payer: int, pods: int) -> None:
        shares = self.paid.setdefault(kind, {})
        shares[payer] = shares.get(payer, 0) + pods
        self.purse.take(self.offers[payer], pods)

    def _options(self, kind: Kind, count: int, tried: Tried) -> Iterator[int]:
        """Payers of this kind, among the first `count`, each at a moment when it has money left; others are moved if need be."""
        for payer in kind:
            if payer < count and payer not in tried and self._has_room(payer):
                yield payer
        for payer in kind:
            if self._patience <= 0:
                return
            if payer < count and payer not in tried and not self._has_room(payer):
                for _ in self._relieved(payer, count, _with(tried, payer)):
                    yield payer

    def _relieved(self, payer: int, count: int, tried: Tried) -> Iterator[None]:
        """Each way to have another pay for one pod that `payer` pays now, or one that shares a bound with it, and so free money."""
        for kind, shares in list(self.paid.items()):
            for rival in [index for index, pods in shares.items() if pods]:
                if rival != payer and (rival in tried or not self._share_a_bound(payer, rival)):
                    continue
                if self._patience <= 0:
                    return
                self._patience -= 1
                saved = self.save()
                self._book(kind, rival, -1)
                for other in self._options(kind, count, _with(tried, rival)):
                    self._book(kind, other, 1)
                    if self._has_room(payer):
                        yield
                    self._book(kind, other, -1)
                self.restore(saved)

    def _share_a_bound(self, one: int, other: int) -> bool:
        """Whether what one payer pays can leave less for the other: an aggregate cap, or the run's borrow limit."""
        first, second = self.offers[one], self.offers[other]
        if first.fund is Fund.BORROWED and second.fund is Fund.BORROWED:
            return True
        (budget, _), (home, name) = first.account.id, second.account.id
        return budget == home and any(name in cap.envelopes for cap in self.purse.state.caps_over(first.account))

    def entangled(self) -> bool:
        """Whether payers share bounds, so that moving one pod can help or hinder several."""
        return any(offer.fund is Fund.BORROWED or self.purse.state.caps_over(offer.account) for offer in self.offers)

    def _has_room(self, payer: int) -> bool:
        return self.purse.room(self.offers[payer])[0] > 0


def _with(tried: Tried, payer: int) -> Tried:
    """One more that was tried: in the common memory, or only on the way at hand."""
    if isinstance(tried, frozenset):
        return tried | {payer}
    tried.add(payer)
    return tried
