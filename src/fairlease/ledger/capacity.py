"""Where GPUs are free: pools of one flavor, fabric domains in them, nodes in those, slots on those.

Kept up to date slot by slot; packing asks it, and never scans the cluster. Nodes of a pool have a bit each, so that "the nodes
this selector matches" is one integer, kept as nodes come and go, and sets of nodes are combined with `&` and `|`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from functools import lru_cache
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from fairlease.model.node import LabelKeys, Node
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.model.lease import Lease
    from fairlease.model.record import Key

_DIGITS = re.compile(r"(\d+)")
Order = tuple[str | int, ...]


@lru_cache(maxsize=65_536)
def natural(name: str) -> Order:
    """An order in which a2 comes before a10."""
    return tuple(int(part) if part.isdecimal() else part for part in _DIGITS.split(name))


@lru_cache(maxsize=65_536)
def bits_of(slots: tuple[int, ...]) -> int:
    """Slots as bits of one integer."""
    return sum(1 << slot for slot in slots)


@lru_cache(maxsize=65_536)
def lowest(free: int, count: int) -> tuple[int, ...]:
    """The `count` lowest of some free slots."""
    slots = [slot for slot in range(free.bit_length()) if free >> slot & 1]
    assert len(slots) >= count, "a plan gives a pod only slots that are free"
    return tuple(slots[:count])


def missing_label(node: Node, keys: LabelKeys) -> str | None:
    """The label a node lacks, without which nobody knows where it stands."""
    return next(
        (each for each in (keys.region, keys.cluster, keys.domain, keys.flavor) if not node.labels.get(each)), None
    )


def usable_gpus(node: Node) -> int:
    """GPUs of a node that work."""
    return node.gpus if node.healthy_gpus is None else min(node.gpus, node.healthy_gpus)


def bar(node: Node, keys: LabelKeys, peak: int, *, failed: bool) -> Reason | None:
    """What keeps new work off a node that once showed `peak` GPUs; None where nothing does."""
    bars = (
        (failed or node.fenced, Reason.NodeFailed),
        (missing_label(node, keys) is not None, Reason.MissingLabel),
        (usable_gpus(node) < peak, Reason.LostGPUs),
        (not node.ready, Reason.NotReady),
        (node.cordoned, Reason.Cordoned),
    )
    return next((reason for holds, reason in bars if holds), None)


class NodeState:
    """One node: which slots are free, which of them reservations have a lien on, and whether new work may use it."""

    __slots__ = (
        "barred",
        "bit",
        "domain",
        "failed",
        "free",
        "leases",
        "lien",
        "liens",
        "node",
        "not_ready_since",
        "order",
        "peak",
        "rank",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.order = natural(node.name)
        self.rank = (self.order, node.name)
        self.peak = node.gpus
        self.free = (1 << node.gpus) - 1
        self.barred: Reason | None = None
        self.failed = False
        self.not_ready_since: int | None = None
        self.domain: Domain | None = None
        self.bit = 0
        self.leases: dict[int, Lease] = {}
        self.lien = 0
        self.liens: dict[Key, int] = {}

    @property
    def room(self) -> int:
        """GPUs that any new work could take here: free, and under no lien."""
        return 0 if self.barred else (self.free & ~self.lien).bit_count()

    @property
    def idle(self) -> int:
        """GPUs that somebody could take here, be it the holder of a lien."""
        return 0 if self.barred else self.free.bit_count()

    def save(self) -> tuple[object, ...]:
        """For the undo log."""
        return self.node, self.peak, self.failed, self.not_ready_since

    def restore(self, saved: tuple[Node, int, bool, int | None]) -> None:
        """For the undo log."""
        self.node, self.peak, self.failed, self.not_ready_since = saved


class Domain:
    """Nodes of one flavor on one fast fabric; `rooms[f]` ranks the nodes with `f` free GPUs under no lien.

    `version` changes with every change of its nodes and is never used twice; `liened` counts its nodes with a lien.

    The ranks are plain sorted lists: up to some ten thousand nodes of a domain, moving the rest costs less than any tree.
    """

    __slots__ = ("free", "key", "liened", "mask", "name", "nodes", "order", "pool", "rooms", "sizes", "version")

    def __init__(self, key: tuple[str, str, str], pool: Pool) -> None:
        self.key = key
        self.name = key[2]
        self.order = tuple(natural(part) for part in (key[2], key[1], key[0]))
        self.pool = pool
        self.nodes: dict[str, NodeState] = {}
        self.mask = 0
        self.free = 0
        self.liened = 0
        self.version = 0
        self.sizes: dict[int, int] = {}
        self.rooms: dict[int, list[tuple[Order, str]]] = {}

    def pods(self, size: int) -> int:
        """How many pods of `size` GPUs fit on its free slots, each whole on one node."""
        pods = 0
        for free, ranks in self.rooms.items():
            pods += len(ranks) * (free // size)
        return pods

    def pods_when_empty(self, size: int) -> int:
        """How many would fit if nothing ran here."""
        return sum(count * (gpus // size) for gpus, count in self.sizes.items() if gpus >= size)

    def by_fit(self, size: int) -> Iterator[NodeState]:
        """Nodes with room for a pod of `size`, the smallest hole first."""
        for free in sorted(self.rooms):
            if free >= size:
                for _, name in self.rooms[free]:
                    yield self.nodes[name]

    def enter(self, state: NodeState, room: int) -> None:
        """A node now has `room` free GPUs."""
        self.free += room
        insort(self.rooms.setdefault(room, []), state.rank)

    def leave(self, state: NodeState, room: int) -> None:
        """A node no longer has `room` free GPUs."""
        self.free -= room
        ranks = self.rooms[room]
        del ranks[bisect_left(ranks, state.rank)]


class Pool:
    """All nodes of one flavor; `free` counts GPUs under no lien, `idle` all that nobody uses, `liened` nodes with a lien."""

    __slots__ = (
        "_by_free", "_labels", "_next_bit", "_stale", "domains", "ever_fits", "flavor", "free", "idle", "liened", "mask",
    )  # fmt: skip

    def __init__(self, flavor: str) -> None:
        self.flavor = flavor
        self.domains: dict[tuple[str, str, str], Domain] = {}
        self.mask = 0
        self.free = 0
        self.idle = 0
        self.liened = 0
        self.ever_fits: dict[object, bool] = {}
        self._next_bit = 0
        self._labels: dict[tuple[str, str], int] = {}
        self._by_free: SortedList = SortedList()
        self._stale: dict[tuple[str, str, str], int] = {}

    def nodes_matching(self, labels: dict[str, str]) -> int:
        """The nodes a selector matches, as bits."""
        found = self.mask
        for label in labels.items():
            found &= self._labels.get(label, 0)
        return found

    def by_hole(self, least: int) -> Iterator[Domain]:
        """Domains with at least `least` free GPUs, the smallest hole first."""
        self._refresh()
        for _, _, key in self._by_free.irange((least,)):
            yield self.domains[key]

    def add(self, state: NodeState, domain_key: tuple[str, str, str]) -> None:
        """A node joins."""
        domain = self.domains.get(domain_key)
        if domain is None:
            domain = self.domains[domain_key] = Domain(domain_key, self)
        state.domain = domain
        state.bit = 1 << self._next_bit
        self._next_bit += 1
        domain.nodes[state.node.name] = state
        domain.mask |= state.bit
        self.mask |= state.bit
        domain.sizes[state.node.gpus] = domain.sizes.get(state.node.gpus, 0) + 1
        for label in _with_any(state.node.labels):
            self._labels[label] = self._labels.get(label, 0) | state.bit
        self._note(domain)
        domain.enter(state, state.room)
        self._count(domain, state, 1)
        self.ever_fits.clear()

    def remove(self, state: NodeState) -> None:
        """A node leaves."""
        domain = state.domain
        assert domain is not None, "only a node of the pool can leave it"
        self._note(domain)
        domain.leave(state, state.room)
        self._count(domain, state, -1)
        del domain.nodes[state.node.name]
        domain.sizes[state.node.gpus] -= 1
        domain.mask &= ~state.bit
        self.mask &= ~state.bit
        for label in _with_any(state.node.labels):
            self._labels[label] &= ~state.bit
            if not self._labels[label]:
                del self._labels[label]
        if not domain.nodes:
            del self.domains[domain.key]
        state.domain = None
        self.ever_fits.clear()

    def set_slots(self, state: NodeState, free: int, barred: Reason | None) -> None:
        """Other slots are free on a node, or it is (no longer) barred."""
        domain = state.domain
        assert domain is not None, "only a node of the pool has slots in it"
        before, idle = state.room, state.idle
        state.free = free
        state.barred = barred
        self.idle += state.idle - idle
        self._move(domain, state, before)

    def set_lien(self, state: NodeState, lien: int) -> None:
        """Other slots of a node are under a lien."""
        domain = state.domain
        assert domain is not None, "only a node of the pool has slots in it"
        before, step = state.room, (lien != 0) - (state.lien != 0)
        state.lien = lien
        domain.liened += step
        self.liened += step
        self._move(domain, state, before)

    def _count(self, domain: Domain, state: NodeState, sign: int) -> None:
        self.free += sign * state.room
        self.idle += sign * state.idle
        domain.liened += sign * (state.lien != 0)
        self.liened += sign * (state.lien != 0)
        domain.version += 1

    def _move(self, domain: Domain, state: NodeState, before: int) -> None:
        domain.version += 1
        after = state.room
        if before != after:
            self._note(domain)
            domain.leave(state, before)
            domain.enter(state, after)
            self.free += after - before

    def _note(self, domain: Domain) -> None:
        if domain.key not in self._stale:
            self._stale[domain.key] = domain.free

    def _refresh(self) -> None:
        for key, before in self._stale.items():
            self._by_free.discard((before, _domain_order(key), key))
            domain = self.domains.get(key)
            if domain is not None:
                self._by_free.add((domain.free, domain.order, key))
        self._stale.clear()


def _with_any(labels: dict[str, str]) -> set[tuple[str, str]]:
    """What a selector can say of these labels: each with its value, and with `*` for any."""
    return {(label, value) for label, actual in labels.items() for value in (actual, "*")}


@lru_cache(maxsize=16_384)
def _domain_order(key: tuple[str, str, str]) -> tuple[Order, ...]:
    return tuple(natural(part) for part in (key[2], key[1], key[0]))


class Capacity:
    """All pools, and every node by name, also those that are skipped for want of a label."""

    def __init__(self, labels: LabelKeys) -> None:
        self.labels = labels
        self.nodes: dict[str, NodeState] = {}
        self.pools: dict[str, Pool] = {}

    def flavor(self, node: Node) -> str:
        """The flavor a node's labels tell."""
        return node.labels.get(self.labels.flavor, "")

    def join(self, state: NodeState) -> None:
        """Put a node into its pool, if its labels say which."""
        self.nodes[state.node.name] = state
        if missing_label(state.node, self.labels) is not None:
            return
        labels, keys = state.node.labels, self.labels
        flavor = labels[keys.flavor]
        if flavor not in self.pools:
            self.pools[flavor] = Pool(flavor)
        self.pools[flavor].add(state, (labels[keys.region], labels[keys.cluster], labels[keys.domain]))

    def part(self, state: NodeState) -> None:
        """Take a node out of its pool."""
        del self.nodes[state.node.name]
        if state.domain is not None:
            state.domain.pool.remove(state)

    def set_slots(self, state: NodeState, free: int, barred: Reason | None) -> None:
        """See `Pool.set_slots`; a node outside every pool only keeps its own books."""
        if state.domain is None:
            state.free, state.barred = free, barred
        else:
            state.domain.pool.set_slots(state, free, barred)

    def set_lien(self, state: NodeState, run: Key, slots: int) -> None:
        """Some slots of a node (0: none) are under the lien of a run's reservation; several may lie on one slot."""
        if slots:
            state.liens[run] = slots
        else:
            state.liens.pop(run, None)
        lien = 0
        for each in state.liens.values():
            lien |= each
        if state.domain is None:
            state.lien = lien
        elif lien != state.lien:
            state.domain.pool.set_lien(state, lien)
        else:
            state.domain.version += 1
