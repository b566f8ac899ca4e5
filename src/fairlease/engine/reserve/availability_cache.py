"""Horizon: when pods could be placed, as the newest claim sees it, kept from tick to tick.

Only where no cuts count, whose dates move with the clock. All else is a time that stands until its node changes, or until a guess
is proved wrong; so what is remembered is what would be computed anew, and a look costs what changed since the last one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from fairlease.engine.reserve.availability import GUESSED, NEVER

if TYPE_CHECKING:
    from fairlease.engine.reserve.availability import Availability, DatedPod, Rank, Slot
    from fairlease.ledger.state.capacity import Domain, NodeState

REMEMBERED_MAX = 65_536
"""Nodes that a horizon remembers."""


class DomainTimeline:
    """Room for pods of one size in one domain: `pods` in the order in which they come free, and by node the same.

    `wrong` are the times at which guesses will have proved wrong, the earliest first; what `wrong_at` no longer says is skipped.
    """

    __slots__ = ("by_node", "layout", "pods", "version", "wrong", "wrong_at")

    def __init__(self) -> None:
        self.version = self.layout = -1
        self.pods: list[DatedPod] = []
        self.by_node: dict[NodeState, list[DatedPod]] = {}
        self.wrong: list[tuple[int, Rank, NodeState]] = []
        self.wrong_at: dict[NodeState, int] = {}

    def put(self, node: NodeState, pods: list[DatedPod], wrong_at: int) -> None:
        """A node has other pods, until `wrong_at` at the most."""
        for pod in self.by_node.get(node, ()):
            del self.pods[bisect_left(self.pods, pod)]
        for pod in pods:
            insort(self.pods, pod)
        self.by_node[node] = pods
        self.wrong_at[node] = wrong_at
        if wrong_at < NEVER:
            heappush(self.wrong, (wrong_at, node.rank, node))

    def fill(self, found: dict[NodeState, tuple[list[DatedPod], int]]) -> None:
        """All nodes at once."""
        self.by_node = {node: pods for node, (pods, _) in found.items()}
        self.pods = sorted(pod for pods in self.by_node.values() for pod in pods)
        self.wrong_at = {node: wrong_at for node, (_, wrong_at) in found.items()}
        self.wrong = [(wrong_at, node.rank, node) for node, wrong_at in self.wrong_at.items() if wrong_at < NEVER]
        heapify(self.wrong)

    def disproved(self, now: int) -> set[NodeState]:
        """Nodes of which something was guessed that has not come true by `now`."""
        found = set()
        while self.wrong and self.wrong[0][0] <= now:
            wrong_at, _, node = heappop(self.wrong)
            if self.wrong_at.get(node) == wrong_at:
                found.add(node)
        return found


class AvailabilityCache:
    """Shelves by domain, size of a pod, and with guesses or not; the slots of nodes, which those of all sizes share."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[Domain, int, bool], DomainTimeline] = {}
        self._slots: dict[tuple[NodeState, bool], tuple[int, int, list[Slot]]] = {}
        self._budgets = 0

    def pods(self, outlook: Availability, domain: Domain, size: int) -> list[DatedPod]:
        """Room for pods of `size` GPUs in a domain, the earliest first; not to be changed."""
        if self._budgets != outlook.state.budgets_version or len(self._slots) > REMEMBERED_MAX:
            self._shelves.clear()
            self._slots.clear()
            self._budgets = outlook.state.budgets_version
        key = (domain, size, outlook.terms.guess)
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = DomainTimeline()
        if shelf.layout != domain.layout:
            shelf.fill({node: self._of(outlook, node, size) for node in domain.nodes.values()})
        else:
            for node in {*domain.changed_since(shelf.version), *shelf.disproved(outlook.now)}:
                shelf.put(node, *self._of(outlook, node, size))
        shelf.version, shelf.layout = domain.version, domain.layout
        return shelf.pods

    def _of(self, outlook: Availability, node: NodeState, size: int) -> tuple[list[DatedPod], int]:
        """The pods of a node, and when that may be wrong."""
        key = (node, outlook.terms.guess)
        version, wrong_at, slots = self._slots.get(key, (-1, 0, []))
        if version != node.version or wrong_at <= outlook.now:
            held = outlook.held(node)
            slots = sorted(outlook.behind(held, node))
            wrong_at = min((when for when, how, _ in held if how == GUESSED), default=NEVER)
            self._slots[key] = (node.version, wrong_at, slots)
        return list(outlook.cut(node, slots, size)), wrong_at
