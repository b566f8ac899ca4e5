"""Where GPUs are free: pools of one flavor, fabric domains in them, nodes in those, slots on those.

Kept up to date slot by slot; packing asks it, and never scans the cluster. Sets are integers with a bit for each member, combined
with `&` and `|`: the nodes of a pool that a selector matches, or those of a domain that have so many free GPUs.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from fairlease.ledger.state.slots import bits_of, missing_label, natural
from fairlease.model.lease import Role
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlease.model.lease import Lease
    from fairlease.model.node import LabelKeys, Node
    from fairlease.model.record import Key


# In Python 3.11 a member of an enum is found far more slowly through its class than as a global.
ACTIVE, SPARE = Role.ACTIVE, Role.SPARE


class NodeState:
    """One node: which slots are free, which of them reservations have a lien on, and whether new work may use it.

    `version` changes with each of these, here and in its domain, and is not used again: what was computed for it still holds.
    `stamp` is its domain's version when it last changed.
    `spare` and `tenant` are the slots that Spare and Borrowed leases hold: the only ones that two leases may hold at once.
    """

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
        "peak",
        "rank",
        "seat",
        "spare",
        "stamp",
        "tenant",
        "version",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rank = (natural(node.name), node.name)
        self.peak = node.gpus
        self.free = (1 << node.gpus) - 1
        self.spare = self.tenant = 0
        self.barred: Reason | None = None
        self.failed = False
        self.not_ready_since: int | None = None
        self.domain: Domain | None = None
        self.bit = 0
        self.seat = 0
        self.leases: dict[int, Lease] = {}
        self.lien = 0
        self.liens: dict[Key, int] = {}
        self.version = self.stamp = 0

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

    def hold(self, lease: Lease, free: int) -> int:
        """A lease takes its slots; returns those that are then free. A snapshot may bring a tenant before its spare."""
        bits = bits_of(lease.slots)
        if lease.role is ACTIVE:
            assert free & bits == bits, "a slot is held by one lease at a time"
            return free ^ bits
        if lease.role is SPARE:
            assert (free | self.tenant) & ~self.spare & bits == bits, "a spare lies where nobody is"
            self.spare |= bits
        else:
            assert (free | self.spare) & ~self.tenant & bits == bits, "opportunistic work borrows a spare's slots"
            self.tenant |= bits
        return free & ~bits

    def drop(self, lease: Lease, free: int) -> int:
        """A lease gives its slots back; returns those that are then free. A tenant and its spare outlive each other."""
        bits = bits_of(lease.slots)
        assert free & bits == 0, "a slot that is held is not free"
        if lease.role is ACTIVE:
            return free | bits
        if lease.role is SPARE:
            self.spare &= ~bits
            return free | bits & ~self.tenant
        self.tenant &= ~bits
        return free | bits & ~self.spare


class Domain:
    """Nodes of one flavor on one fast fabric; `rooms[f]` are those with `f` free GPUs under no lien, a bit each in name order.

    So the best fit is the lowest bit, and giving and taking slots compares no names. Nodes mostly come in order and get the next
    bit (`seat`); when one comes out of order, or goes, all are seated anew at the next question. `changed` are nodes in the order
    in which they last did, `layout` counts comings and goings.
    """

    __slots__ = (
        "_rooms", "_seated", "changed", "free", "key", "layout", "liened", "mask", "name", "nodes", "order", "pool", "seat",
        "sizes", "version",
    )  # fmt: skip

    def __init__(self, key: tuple[str, str, str], pool: Pool) -> None:
        self.key = key
        self.name = key[2]
        self.order = (tuple(natural(part) for part in (key[2], key[1], key[0])), key)  # d1 and d01 are two
        self.pool = pool
        self.nodes: dict[str, NodeState] = {}
        self.mask = 0
        self.free = 0
        self.liened = 0
        self.seat = 0
        self.version = self.layout = 0
        self.changed: dict[NodeState, None] = {}
        self.sizes: dict[int, int] = {}
        self._seated: list[NodeState] = []
        self._rooms: dict[int, int] | None = {}

    @property
    def rooms(self) -> dict[int, int]:
        """By the number of free GPUs: the nodes that have so many."""
        rooms = self._rooms
        if rooms is None:
            rooms = self._rooms = {}
            self._seated = sorted(self.nodes.values(), key=lambda state: state.rank)
            for place, state in enumerate(self._seated):
                state.seat = 1 << place
                rooms[state.room] = rooms.get(state.room, 0) | state.seat
        return rooms

    def pods(self, size: int) -> int:
        """How many pods of `size` GPUs fit on its free slots, each whole on one node."""
        pods, rooms = 0, self.rooms if self._rooms is None else self._rooms
        for free, nodes in rooms.items():
            if free >= size:
                pods += nodes.bit_count() * (free // size)
        return pods

    def pods_when_empty(self, size: int) -> int:
        """How many would fit if nothing ran here."""
        return sum(count * (gpus // size) for gpus, count in self.sizes.items() if gpus >= size)

    def seats(self, size: int) -> Iterator[NodeState]:
        """One node per pod of `size` that fits, the smallest hole first: a node that was begun is filled up before the next."""
        rooms, seated = self.rooms, self._seated
        for free in sorted(rooms):
            if free >= size:
                nodes, pods = rooms[free], free // size
                while nodes:
                    lowest_bit = nodes & -nodes
                    nodes ^= lowest_bit
                    state = seated[lowest_bit.bit_length() - 1]
                    for _ in range(pods):
                        yield state

    def enter(self, state: NodeState) -> None:
        """A node joins."""
        self.nodes[state.node.name] = state
        self.layout += 1
        self.touch(state)
        self.mask |= state.bit
        self.sizes[state.node.gpus] = self.sizes.get(state.node.gpus, 0) + 1
        self.free += state.room
        if self._rooms is None or (self._seated and self._seated[-1].rank > state.rank):
            self._rooms = None
            return
        state.seat = 1 << len(self._seated)
        self._seated.append(state)
        self._rooms[state.room] = self._rooms.get(state.room, 0) | state.seat

    def leave(self, state: NodeState) -> None:
        """A node leaves."""
        del self.nodes[state.node.name]
        self.layout += 1
        self.version += 1
        self.changed.pop(state, None)
        self.pool.tense.pop(state, None)
        self.mask &= ~state.bit
        self.sizes[state.node.gpus] -= 1
        self.free -= state.room
        self._rooms = None

    def touch(self, state: NodeState) -> None:
        """Other slots of a node are free, or under a lien."""
        state.version += 1
        self.version += 1
        state.stamp = self.version
        self.changed.pop(state, None)
        self.changed[state] = None
        if state.free & state.lien and not state.barred:
            self.pool.tense[state] = None
        else:
            self.pool.tense.pop(state, None)

    def changed_since(self, version: int) -> Iterator[NodeState]:
        """Nodes that changed after the domain had this version."""
        return takewhile(lambda state: state.stamp > version, reversed(self.changed))

    def shift(self, state: NodeState, before: int, after: int) -> None:
        """A node that had room for `before` GPUs has room for `after`."""
        pool = self.pool
        if pool.stale is not None and self not in pool.stale:  # `note`, without the call: this is done for every pod
            pool.stale[self] = self.free
        pool.free += after - before
        self.free += after - before
        rooms = self._rooms
        if rooms is not None:
            rooms[before] ^= state.seat
            rooms[after] = rooms.get(after, 0) | state.seat


class Pool:
    """All nodes of one flavor; `free` counts GPUs under no lien, `idle` all that nobody uses, `liened` nodes with a lien.

    `tense` are nodes with free slots that are under a lien: where a run could start that may pass it.
    `_holes[f]` are the domains with `f` free GPUs, `_levels` has a bit for each such `f`. Domains have bits in their order, as
    nodes have theirs in a domain. `stale` are those whose bit must move before the next question, with the hole they were last
    seen with.
    """

    __slots__ = (
        "_holes", "_labels", "_levels", "_next_bit", "_seated", "domains", "ever_fits", "flavor", "free", "idle", "liened",
        "mask", "stale", "tense",
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
        self._seated: list[Domain] = []
        self._holes: dict[int, int] = {}
        self._levels = 0
        self.stale: dict[Domain, int] | None = None
        self.tense: dict[NodeState, None] = {}

    def nodes_matching(self, labels: dict[str, str]) -> int:
        """The nodes a selector matches, as bits."""
        found = self.mask
        for label in labels.items():
            found &= self._labels.get(label, 0)
        return found

    @property
    def gpus(self) -> int:
        """GPUs of all its nodes."""
        return sum(gpus * count for domain in self.domains.values() for gpus, count in domain.sizes.items())

    def by_hole(self, least: int) -> Iterator[Domain]:
        """Domains with at least `least` free GPUs, the smallest hole first."""
        self._refresh()
        levels = self._levels >> least << least
        while levels:
            level = levels & -levels
            levels ^= level
            domains = self._holes[level.bit_length() - 1]
            while domains:
                seat = domains & -domains
                domains ^= seat
                yield self._seated[seat.bit_length() - 1]

    def add(self, state: NodeState, domain_key: tuple[str, str, str]) -> None:
        """A node joins."""
        domain = self.domains.get(domain_key)
        if domain is None:
            domain = self.domains[domain_key] = Domain(domain_key, self)
            self.stale = None
        state.domain = domain
        state.bit = 1 << self._next_bit
        self._next_bit += 1
        self.mask |= state.bit
        for label in _with_any(state.node.labels):
            self._labels[label] = self._labels.get(label, 0) | state.bit
        self.note(domain)
        domain.enter(state)
        self._count(domain, state, 1)
        self.ever_fits.clear()

    def remove(self, state: NodeState) -> None:
        """A node leaves."""
        domain = state.domain
        assert domain is not None, "only a node of the pool can leave it"
        self.note(domain)
        domain.leave(state)
        self._count(domain, state, -1)
        self.mask &= ~state.bit
        for label in _with_any(state.node.labels):
            self._labels[label] &= ~state.bit
            if not self._labels[label]:
                del self._labels[label]
        if not domain.nodes:
            del self.domains[domain.key]
            self.stale = None
        state.domain = None
        self.ever_fits.clear()

    def _count(self, domain: Domain, state: NodeState, sign: int) -> None:
        self.free += sign * state.room
        self.idle += sign * state.idle
        domain.liened += sign * (state.lien != 0)
        self.liened += sign * (state.lien != 0)

    def note(self, domain: Domain) -> None:
        """A domain is about to have more or fewer free GPUs."""
        if self.stale is not None and domain not in self.stale:
            self.stale[domain] = domain.free

    def _refresh(self) -> None:
        """Move the bits of domains that changed; where domains came or went, seat all of them anew."""
        if self.stale is None:
            self._seated = sorted(self.domains.values(), key=lambda domain: domain.order)
            self._holes, self._levels = {}, 0
            for place, domain in enumerate(self._seated):
                domain.seat = 1 << place
                self._enter_hole(domain)
        else:
            for domain, before in self.stale.items():
                self._holes[before] ^= domain.seat
                if not self._holes[before]:
                    self._levels ^= 1 << before
                self._enter_hole(domain)
        self.stale = {}

    def _enter_hole(self, domain: Domain) -> None:
        self._holes[domain.free] = self._holes.get(domain.free, 0) | domain.seat
        self._levels |= 1 << domain.free


def _with_any(labels: dict[str, str]) -> set[tuple[str, str]]:
    """What a selector can say of these labels: each with its value, and with `*` for any."""
    return {(label, value) for label, actual in labels.items() for value in (actual, "*")}


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
        """Other slots are free on a node, or it is (no longer) barred; outside every pool it only keeps its own books."""
        before, idle = state.room, state.idle
        state.free, state.barred = free, barred
        after = state.room
        if state.domain is not None:
            state.domain.touch(state)
            state.domain.pool.idle += state.idle - idle
            if before != after:
                state.domain.shift(state, before, after)

    def set_lien(self, state: NodeState, run: Key, slots: int) -> None:
        """Some slots of a node (0: none) are under the lien of a run's reservation; several may lie on one slot."""
        if slots:
            state.liens[run] = slots
        else:
            state.liens.pop(run, None)
        lien = 0
        for each in state.liens.values():
            lien |= each
        before, step = state.room, (lien != 0) - (state.lien != 0)
        state.lien = lien
        after = state.room
        if state.domain is not None:
            state.domain.touch(state)
            state.domain.liened += step
            state.domain.pool.liened += step
            if before != after:
                state.domain.shift(state, before, after)

    def occupy(self, leases: Sequence[Lease], *, held: bool) -> None:
        """Take the slots of leases (`held`), or give them back: each is the other's inverse. Each node is looked at once."""
        nodes, frees = self.nodes, dict[NodeState, int]()
        for lease in leases:
            state = nodes[lease.node]
            free = frees.get(state, state.free)
            if held:
                frees[state] = state.hold(lease, free)
                state.leases[lease.serial] = lease
            else:
                frees[state] = state.drop(lease, free)
                del state.leases[lease.serial]
        for state, after in frees.items():
            before, domain = state.free, state.domain
            state.free = after
            if domain is None:
                continue
            domain.touch(state)
            if state.barred is None and before != after:
                was, left = before.bit_count(), after.bit_count()
                domain.pool.idle += left - was
                if state.lien:
                    was, left = (before & ~state.lien).bit_count(), (after & ~state.lien).bit_count()
                domain.shift(state, was, left)
