"""Payment: which payer pays which pod, where not every payer may pay for every node.

Pods on nodes that the same payers reach are alike, so only counts per kind of node are kept. A pod goes to the first payer in the
order of cover that has money left; where none has, a pod that was paid before is moved to another payer, if that frees money.

Whether any move can help is asked first, and that costs no more than a look at each payer: where all payers that a pod can come to,
at once or by moves, have spent what their own terms allow, nobody will ever pay for it (`_vain`). Only what several payers share,
such as an aggregate cap, must be searched.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from fairlease.model.lease import Fund

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.engine.cover.envelopes import Offer, Purse
    from fairlease.engine.place.packing import Spot
    from fairlease.ledger.state.accounts import AccountId
    from fairlease.ledger.state.capacity import NodeState
    from fairlease.reason import Reason

Tried = set[int] | frozenset[int]

PATIENCE = 400
"""Moves that are tried for one pod, so that no request can hold up the others."""

IN_VAIN_MAX = 50 * PATIENCE
"""Moves that are tried in vain in all: after that a pod is only paid from money that is left."""

Kind = tuple[int, ...]
"""The payers that reach a node, by their place in the order of cover."""


class Payment:
    """Who pays how many pods on which kind of node."""

    def __init__(self, purse: Purse, payers_in_order: list[Offer]) -> None:
        self.purse = purse
        self.offers = payers_in_order
        self.paid: dict[Kind, dict[int, int]] = {}
        self.gave_up = False
        self._kinds: dict[int, Kind] = {}
        self._patience = PATIENCE
        self._in_vain = 0
        self._rivals: dict[int, frozenset[int]] = {}
        self._own: list[int | None] = [None] * len(payers_in_order)
        self._solvent: list[bool | None] = [None] * len(payers_in_order)
        self._places: dict[Kind, int] = {}
        self._pays: list[set[Kind]] = [set() for _ in payers_in_order]
        self._dry: tuple[int, frozenset[Kind]] = (0, frozenset())

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
        return self.purse.save(), {kind: dict(shares) for kind, shares in self.paid.items()}, self._dry

    def restore(self, saved: tuple[object, ...]) -> None:
        """Go back."""
        purse, paid, self._dry = saved  # type: ignore[assignment]  # what `save` put there
        self.purse.restore(purse)  # type: ignore[arg-type]  # what `save` put there
        self.paid = {kind: dict(shares) for kind, shares in paid.items()}  # type: ignore[attr-defined]  # what `save` put there
        self._own = [None] * len(self.offers)
        self._solvent = [None] * len(self.offers)
        self._places = {kind: place for place, kind in enumerate(self.paid)}
        self._pays = [set() for _ in self.offers]
        for kind, shares in self.paid.items():
            for payer, pods in shares.items():
                if pods:
                    self._pays[payer].add(kind)

    def at_most(self) -> list[int]:
        """For how many pods more the first so many payers have money at the most: by their own terms, wherever it reaches."""
        return list(accumulate(map(self._own_room, range(len(self.offers))), initial=0))

    def _pay(self, kind: Kind, count: int) -> bool:
        """Once with a common memory of who was tried, which is quick and enough where no bound is shared; then by all ways."""
        if self._vain(kind, count):
            return False
        self._patience = most = min(PATIENCE, IN_VAIN_MAX - self._in_vain)
        payer = next(self._options(kind, count, set()), None)
        if payer is None and self.entangled:
            payer = next(self._options(kind, count, frozenset()), None)
        if payer is None:
            self._in_vain += most - self._patience
            self.gave_up = self.gave_up or self._patience <= 0
            return False
        self._book(kind, payer, 1)
        return True

    def _vain(self, kind: Kind, count: int) -> bool:
        """Whether all whom a pod can come to among the first `count`, at once or by moves, are at the end of their own terms.

        Then none of what they pay for can go elsewhere, and no later pod changes that: it is remembered for all these kinds.
        """
        dry = self._dry[1] if self._dry[0] == count else frozenset()
        if kind in dry:
            return True
        met, ahead, asked = {kind}, [kind], set[int]()
        while ahead:
            for payer in ahead.pop():
                if payer >= count or payer in asked:
                    continue
                if self._own_room(payer):
                    return False
                asked.add(payer)
                for twin in self._twins[payer]:
                    more = self._pays[twin] - met - dry
                    met |= more
                    ahead += more
        self._dry = count, dry | met
        return True

    def _own_room(self, payer: int) -> int:
        room = self._own[payer]
        if room is None:
            room = self._own[payer] = self.purse.own_room(self.offers[payer])
        return room

    @cached_property
    def _twins(self) -> list[list[int]]:
        """For each payer, those that are the same envelope, asked for other nodes; itself among them."""
        same: dict[AccountId, list[int]] = {}
        for payer, offer in enumerate(self.offers):
            same.setdefault(offer.account.id, []).append(payer)
        return [same[offer.account.id] for offer in self.offers]

    def _book(self, kind: Kind, payer: int, pods: int) -> None:
        shares = self.paid.setdefault(kind, {})
        self._places.setdefault(kind, len(self._places))
        shares[payer] = shares.get(payer, 0) + pods
        if shares[payer]:
            self._pays[payer].add(kind)
        else:
            self._pays[payer].discard(kind)
        self.purse.take(self.offers[payer], pods)
        for twin in self._twins[payer]:
            self._own[twin] = None
            for rival in self._rivals_of(twin):
                self._solvent[rival] = None

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
        for kind, rival in self._movable(payer):
            if rival != payer and rival in tried:
                continue
            if self._patience <= 0:
                return
            self._patience -= 1
            shares = self.paid[kind]
            known = len(shares)
            self._book(kind, rival, -1)
            for other in self._options(kind, count, _with(tried, rival)):
                self._book(kind, other, 1)
                if self._has_room(payer):
                    yield
                self._book(kind, other, -1)
            self._book(kind, rival, 1)
            while len(shares) > known:
                shares.popitem()

    def _movable(self, payer: int) -> Iterator[tuple[Kind, int]]:
        """Who pays a pod of which kind that would leave `payer` more money if another paid it, in the order of paying."""
        rivals = self._rivals_of(payer)
        for kind in sorted(set[Kind]().union(*(self._pays[rival] for rival in rivals)), key=self._places.__getitem__):
            for rival in [index for index, pods in self.paid[kind].items() if pods and index in rivals]:
                yield kind, rival

    def _rivals_of(self, payer: int) -> frozenset[int]:
        """Those who share a bound with a payer; itself among them."""
        rivals = self._rivals.get(payer)
        if rivals is None:
            others = (each for each in range(len(self.offers)) if each == payer or self._share_a_bound(payer, each))
            rivals = self._rivals[payer] = frozenset(others)
        return rivals

    def _share_a_bound(self, one: int, other: int) -> bool:
        """Whether what one payer pays can leave less for the other: one envelope, an aggregate cap, or the run's borrow limit."""
        first, second = self.offers[one], self.offers[other]
        if first.account.id == second.account.id or (first.fund is Fund.BORROWED and second.fund is Fund.BORROWED):
            return True
        (budget, _), (home, name) = first.account.id, second.account.id
        return budget == home and any(name in cap.envelopes for cap in self.purse.state.caps_over(first.account))

    @cached_property
    def entangled(self) -> bool:
        """Whether payers share bounds, so that moving one pod can help or hinder several."""
        shared = any(offer.fund is Fund.BORROWED or self.purse.state.caps_over(offer.account) for offer in self.offers)
        return shared or any(len(twins) > 1 for twins in self._twins)

    def _has_room(self, payer: int) -> bool:
        solvent = self._solvent[payer]
        if solvent is None:
            solvent = self._solvent[payer] = self.purse.room(self.offers[payer])[0] > 0
        return solvent


def _with(tried: Tried, payer: int) -> Tried:
    """One more that was tried: in the common memory, or only on the way at hand."""
    if isinstance(tried, frozenset):
        return tried | {payer}
    tried.add(payer)
    return tried
