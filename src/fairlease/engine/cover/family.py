"""Who is related to whom, and in which order their envelopes are asked (SEMANTICS §3).

Owners form a graph: an owner's parents are those its Budgets name, or its path without the last segment. A cycle's edges count
for nothing and the cycle is reported. Built once per change of Budgets; asking it for an order is a dictionary look-up.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.budget import Sharing
from fairlease.model.lease import Fund, Payer
from fairlease.model.owner import default_parents
from fairlease.model.record import Key, split

if TYPE_CHECKING:
    from fairlease.ledger.state.accounts import Account
    from fairlease.ledger.state.runs import Signature
    from fairlease.ledger.state.state import State


class CoverPlace(enum.Enum):
    """Where in the order of cover an envelope stands."""

    OWN = "own"
    PARENT = "parent"
    SIBLING = "sibling"
    CHILD = "child"
    SPONSOR = "sponsor"
    ANCESTOR = "ancestor"
    COUSIN = "cousin"


class CoverEntry(NamedTuple):
    """One envelope in its first place. `withheld`: it does not share, so it is shown but never asked."""

    place: CoverPlace
    fund: Fund
    account: Account
    withheld: bool
    payer: Payer


class Family:
    """The graph of owners as of one version of the Budgets."""

    def __init__(self, state: State) -> None:
        self.version = state.budgets_version
        self._accounts = state.accounts
        self._budgets: dict[str, list[Key]] = {}
        self._envelopes = {budget: [each.name for each in spec.envelopes] for budget, spec in state.budgets.items()}
        raw: dict[str, set[str]] = {}
        for budget, spec in state.budgets.items():
            self._budgets.setdefault(spec.owner, []).append(budget)
            raw.setdefault(spec.owner, set()).update(spec.parent_owners())
        todo = [parent for parents in raw.values() for parent in parents]
        while todo:
            owner = todo.pop()
            if owner not in raw:
                raw[owner] = set(default_parents(owner))
                todo.extend(raw[owner])
        rings = _rings(raw)
        self.cycles = {owner for owner, ring in rings.items() if len(ring) > 1 or owner in raw[owner]}
        self._parents = {
            owner: {parent for parent in parents if rings.get(parent) is not rings[owner]}
            for owner, parents in raw.items()
        }
        self._children: dict[str, set[str]] = {}
        for owner in self._budgets:
            for parent in self._parents[owner]:
                self._children.setdefault(parent, set()).add(owner)
        self._orders: dict[Signature, list[CoverEntry]] = {}
        self._asked: dict[Signature, frozenset[tuple[str, str]]] = {}
        self._turns: dict[Signature, tuple[list[CoverEntry], list[CoverEntry]]] = {}

    def parents(self, owner: str) -> set[str]:
        """An owner's parents; one without a Budget has those its path names."""
        found = self._parents.get(owner)
        return set(default_parents(owner)) if found is None else found

    def siblings(self, owner: str) -> set[str]:
        """Other children of a parent that has a Budget: a family has a head."""
        heads = [parent for parent in self.parents(owner) if parent in self._budgets]
        return {child for head in heads for child in self._children.get(head, ())} - {owner}

    def children(self, owner: str) -> set[str]:
        """Owners of Budgets whose parent it is."""
        return self._children.get(owner, set())

    def asked(self, signature: Signature) -> frozenset[tuple[str, str]]:
        """The envelopes that runs of this signature ask, so that a change of others need not wake them."""
        if signature not in self._asked:
            self._asked[signature] = frozenset(entry.account.id for entry in self.order(signature))
        return self._asked[signature]

    def order(self, signature: Signature) -> list[CoverEntry]:
        """Envelopes in the order in which they are asked to pay."""
        if signature not in self._orders:
            self._orders[signature] = self._walk(signature)
        return self._orders[signature]

    def turns(self, signature: Signature) -> tuple[list[CoverEntry], list[CoverEntry]]:
        """Those of `order` that may pay: the family, and those that lend."""
        found = self._turns.get(signature)
        if found is None:
            open_handed = [entry for entry in self.order(signature) if not entry.withheld]
            kin = [entry for entry in open_handed if entry.fund is not Fund.BORROWED]
            found = self._turns[signature] = kin, [entry for entry in open_handed if entry.fund is Fund.BORROWED]
        return found

    def _walk(self, signature: Signature) -> list[CoverEntry]:
        owner, may_borrow, sponsors = signature
        parents = self.parents(owner)
        steps: list[tuple[CoverPlace, Fund, set[str]]] = [
            (CoverPlace.OWN, Fund.OWNED, {owner}),
            (CoverPlace.PARENT, Fund.SHARED, parents),
            (CoverPlace.SIBLING, Fund.SHARED, self.siblings(owner)),
            (CoverPlace.CHILD, Fund.SHARED, self.children(owner)),
        ]
        if may_borrow and sponsors:
            steps += [(CoverPlace.SPONSOR, Fund.BORROWED, {sponsor}) for sponsor in sponsors]
            steps += [(CoverPlace.ANCESTOR, Fund.BORROWED, level) for level in self._beyond(parents)]
            uncles = {uncle for parent in parents for uncle in self.siblings(parent)}
            steps.append(
                (CoverPlace.COUSIN, Fund.BORROWED, {child for uncle in uncles for child in self.children(uncle)})
            )
        entries: list[CoverEntry] = []
        seen: set[tuple[str, str]] = set()
        for place, fund, owners in steps:
            budgets = sorted((budget for each in owners for budget in self._budgets.get(each, ())), key=split)
            for budget in budgets:
                for name in sorted(self._envelopes[budget]):
                    account = self._accounts[budget, name]
                    assert account.envelope is not None, "an envelope of a Budget has its terms on its books"
                    withheld = fund is Fund.SHARED and account.envelope.sharing is Sharing.NONE
                    if account.id not in seen:
                        payer = Payer(budget=budget, envelope=name, owner=account.owner, fund=fund)
                        entries.append(CoverEntry(place, fund, account, withheld, payer))
                        if not withheld:
                            seen.add(account.id)
        return entries

    def _beyond(self, parents: set[str]) -> list[set[str]]:
        """Ancestors beyond the parents, one set per distance, nearest first."""
        seen, level, levels = set(parents), parents, []
        while level:
            level = {up for owner in level for up in self.parents(owner)} - seen
            seen |= level
            if level:
                levels.append(level)
        return levels


def _rings(graph: dict[str, set[str]]) -> dict[str, frozenset[str]]:
    """The strongly connected set of each owner (Tarjan, without recursion: a path may be long)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: dict[str, frozenset[str]] = {}
    for root in sorted(graph):
        work = [] if root in index else [(root, iter(sorted(graph[root])))]
        if work:
            index[root] = low[root] = len(index)
            stack.append(root)
        while work:
            owner, rest = work[-1]
            child = next(rest, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[owner])
                if low[owner] == index[owner]:
                    cut = stack.index(owner)
                    ring = frozenset(stack[cut:])
                    del stack[cut:]
                    found.update(dict.fromkeys(ring, ring))
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                work.append((child, iter(sorted(graph[child]))))
            elif child not in found:
                low[owner] = min(low[owner], index[child])
    return found
