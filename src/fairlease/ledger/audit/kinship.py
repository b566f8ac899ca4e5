"""The audit's own reading of SEMANTICS §3: whose money a run may be paid with, in which order, and what that money is to it.

It knows the Budgets as they stood at the entry that is being played, and nothing of the engine. A run's order of cover is

    own         envelopes of its owner                                                        owned
    family      of its parents, then its siblings under a parent that has a Budget, then its
                children; an envelope with `sharing: none` has no place here                  shared
    lenders     only where the run may borrow and names sponsors: those, as it names them,
                then ancestors beyond the parents, nearest first, then children of the
                parents' siblings                                                             borrowed

and within a place by Budget, then by envelope. An envelope stands once, in its first place. Where a run's location splits a place
in two, both halves have the same order, and no node lies in both: for one node, and all questions here are about one, this is it.

An owner's parents are those that its Budgets name, or its path without the last segment. An edge on a cycle counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlease.ledger.audit.accounts import BORROWED, OWNED, SHARED, AuditAccount
from fairlease.model.budget import BudgetSpec, Sharing

Find = Callable[[str, str], AuditAccount]
"""The account of an envelope, by budget and name."""


class CoverOrder:
    """Every envelope that may pay for runs of one kind: its place, and its fund there."""

    __slots__ = ("funds", "places", "row")

    def __init__(self) -> None:
        self.row: list[AuditAccount] = []
        self.places: dict[AuditAccount, int] = {}
        self.funds: dict[AuditAccount, int] = {}

    def add(self, account: AuditAccount, fund: int) -> None:
        """Give an envelope the next place, unless it has one."""
        if account not in self.places:
            self.places[account] = len(self.row)
            self.funds[account] = fund
            self.row.append(account)


class Kinship:
    """Who is related to whom. Orders are worked out when they are first asked for, and kept until a Budget changes them."""

    def __init__(self, find: Find) -> None:
        self.orders: dict[tuple[str, str, tuple[str, ...]], CoverOrder] = {}
        self._find = find
        self._budgets: dict[str, BudgetSpec] = {}
        self._owned: dict[str, list[str]] = {}
        self._parents: dict[str, set[str]] = {}
        self._children: dict[str, set[str]] = {}
        self._stale = False

    def put(self, budget: str, spec: BudgetSpec | None) -> None:
        """A Budget was written, or removed. Amounts, windows and caps are edited often, and are no part of kinship."""
        before = self._budgets.pop(budget, None)
        if spec is not None:
            self._budgets[budget] = spec
        if before is None or spec is None or _kinship_of(before) != _kinship_of(spec):
            self._stale = True
            self.orders.clear()

    def order(self, owner: str, flavor: str, sponsors: tuple[str, ...]) -> CoverOrder:
        """The order of cover for runs of an owner that ask for a flavor, and may borrow if they name sponsors."""
        asked = (owner, flavor, sponsors)
        if asked not in self.orders:
            self._refresh()
            self.orders[asked] = self._walk(*asked)
        return self.orders[asked]

    def kin(self, owner: str) -> set[str]:
        """An owner's family: parents, siblings, children."""
        self._refresh()
        return self._above(owner) | self._siblings(owner) | self._children.get(owner, set())

    def _walk(self, owner: str, flavor: str, sponsors: tuple[str, ...]) -> CoverOrder:
        order, parents = CoverOrder(), self._above(owner)
        self._enter(order, flavor, OWNED, {owner})
        for family in (parents, self._siblings(owner), self._children.get(owner, set())):
            self._enter(order, flavor, SHARED, family)
        if not sponsors:
            return order
        for sponsor in sponsors:
            self._enter(order, flavor, BORROWED, {sponsor})
        met = level = parents
        while level := {up for each in level for up in self._above(each)} - met:
            met = met | level
            self._enter(order, flavor, BORROWED, level)
        uncles = {uncle for parent in parents for uncle in self._siblings(parent)}
        cousins = {child for uncle in uncles for child in self._children.get(uncle, set())}
        self._enter(order, flavor, BORROWED, cousins)
        return order

    def _enter(self, order: CoverOrder, flavor: str, fund: int, owners: Iterable[str]) -> None:
        """All envelopes of these owners that share one place, by Budget (namespace, then name), then by name."""
        budgets = [budget for owner in owners for budget in self._owned.get(owner, ())]
        for budget in sorted(budgets, key=lambda each: each.partition("/")):
            for terms in sorted(self._budgets[budget].envelopes, key=lambda each: each.name):
                if terms.flavor == flavor and not (fund == SHARED and terms.sharing is Sharing.NONE):
                    order.add(self._find(budget, terms.name), fund)

    def _above(self, owner: str) -> set[str]:
        """The parents that count: not those above which the owner itself stands."""
        if owner not in self._parents:
            self._parents[owner] = {up for up in self._named(owner) if owner not in self._reach(up)}
        return self._parents[owner]

    def _named(self, owner: str) -> set[str]:
        """The parents that an owner's Budgets name, or its path: that also where it has no Budget."""
        specs = [self._budgets[budget] for budget in self._owned.get(owner, ())]
        if not specs:
            return _path(owner)
        return {parent for spec in specs for parent in (_path(owner) if spec.parents is None else spec.parents)}

    def _reach(self, owner: str) -> set[str]:
        """An owner and all that stand above it, cycles included."""
        found, todo = {owner}, [owner]
        while todo:
            more = self._named(todo.pop()) - found
            found |= more
            todo += more
        return found

    def _siblings(self, owner: str) -> set[str]:
        heads = [parent for parent in self._above(owner) if parent in self._owned]
        return {child for head in heads for child in self._children.get(head, ())} - {owner}

    def _refresh(self) -> None:
        if not self._stale:
            return
        self._stale = False
        self._owned, self._parents, self._children = {}, {}, {}
        for budget, spec in self._budgets.items():
            self._owned.setdefault(spec.owner, []).append(budget)
        for owner in self._owned:
            for parent in self._above(owner):
                self._children.setdefault(parent, set()).add(owner)


def _kinship_of(spec: BudgetSpec) -> tuple[object, ...]:
    """All of a Budget that decides who is asked, and in which order."""
    return spec.owner, spec.parents, [(each.name, each.flavor, each.sharing) for each in spec.envelopes]


def _path(owner: str) -> set[str]:
    """The parent that a path names, by whole segments; a path of one has none."""
    head, colon, tail = owner.rpartition(":")
    return {head} if colon and head and tail else set()
