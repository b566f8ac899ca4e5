"""Seats: whether a need would fit if some leases were gone, by counting alone.

A resolver asks this for every victim that it takes and that it gives back, thousands of times; a plan is made only once, to verify
the answer. Counts are kept per node and per domain, so that each question costs what changed.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fairlease.ledger.slots import bits_of
from fairlease.model.lease import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.engine.pack import Need
    from fairlease.engine.passage import Passage
    from fairlease.ledger.capacity import Domain, Pool
    from fairlease.ledger.node import NodeState
    from fairlease.ledger.state import State
    from fairlease.model.lease import Lease


class Taken(NamedTuple):
    """What has been taken away so far, as `Seats` count it."""

    rooms: dict[str, int]
    pods: dict[tuple[str, str, str], int]
    groups: int
    gone: dict[tuple[str, Role], int]


class Seats:
    """Room for a need on the nodes of `mask`, as leases are taken away and put back.

    `looks_max`: how often it may be asked in search of a choice that serves.
    """

    looks_max = 1_000

    def __init__(self, state: State, pool: Pool, mask: int, need: Need, passage: Passage | None) -> None:
        self.nodes = state.capacity.nodes
        self.pool = pool
        self.need = need
        self.mask = mask
        self.rooms: dict[str, int] = {}
        self.passage = passage
        self._gone: dict[tuple[str, Role], int] = {}
        self.first = need.pods if need.together else need.blocks[0].pods
        self.wanted = 1 if need.together else need.blocks[0].groups
        self.rest = need.blocks[1].pods if len(need.blocks) > 1 and not need.together else 0
        self.pods = self._counted()
        self.groups = sum(pods // self.first for pods in self.pods.values())

    def _counted(self) -> dict[tuple[str, str, str], int]:
        """Pods that fit now, by domain; where there is no room for any, it need not say so.

        Domains are found by their holes, and what a passage opens by the nodes that have free slots under a lien: on a full
        cluster that is next to nothing, however large it is.
        """
        pool, mask, size, found = self.pool, self.mask, self.need.size, dict[tuple[str, str, str], int]()
        for domain in pool.by_hole(size):
            inside = domain.mask & mask
            if inside == domain.mask:
                found[domain.key] = domain.pods(size)
            elif inside:
                found[domain.key] = sum(node.room // size for node in domain.nodes.values() if node.bit & mask)
        for node in pool.tense if self.passage is not None else ():
            if node.bit & mask and node.domain is not None:
                gain = self._room(node) // size - node.room // size
                found[node.domain.key] = found.get(node.domain.key, 0) + gain
        return found

    def room(self, node: NodeState) -> int:
        """GPUs that the need could use on a node now."""
        changed = self.rooms.get(node.node.name)
        return self._room(node) if changed is None else changed

    def _room(self, node: NodeState) -> int:
        return node.room if self.passage is None or not node.lien else self.passage.room(node)

    def usable(self, lease: Lease) -> bool:
        """Whether a lease lies where the need could use its GPUs (a node that was relabelled may be in another pool now)."""
        node = self.nodes[lease.node]
        return not node.barred and self.hopeful(node)

    def hopeful(self, node: NodeState) -> bool:
        """Whether a pod could ever lie on a node, with a whole group around it."""
        large = node.node.gpus >= self.need.size and node.bit & self.mask != 0
        return large and node.domain is not None and node.domain.key in self.domains

    @cached_property
    def domains(self) -> dict[tuple[str, str, str], Domain]:
        """The domains that could hold one of its groups if nothing ran there."""
        size, least = self.need.size, min(self.first, self.rest or self.first)
        inside = (domain for domain in self.pool.domains.values() if domain.mask & self.mask)
        return {domain.key: domain for domain in inside if domain.pods_when_empty(size) >= least}

    def change(self, leases: Iterable[Lease], sign: int) -> None:
        """Take leases away (1), or put them back (−1)."""
        size, first = self.need.size, self.first
        for lease in leases:
            node = self.nodes[lease.node]
            if not self.usable(lease) or node.domain is None:
                continue
            key = node.domain.key
            room = self.room(node)
            after = room + sign * self._freed(node, lease, sign)
            self.rooms[lease.node] = after
            gained = after // size - room // size
            if gained:
                pods = self.pods.get(key, 0)
                self.pods[key] = pods + gained
                self.groups += (pods + gained) // first - pods // first

    def save(self) -> Taken:
        """What has been taken away, to come back to."""
        return Taken(dict(self.rooms), dict(self.pods), self.groups, dict(self._gone))

    def restore(self, saved: Taken) -> None:
        """As it was then."""
        self.rooms, self.pods, self.groups = dict(saved.rooms), dict(saved.pods), saved.groups
        self._gone = dict(saved.gone)

    def _blocked(self, node: NodeState) -> int:
        """The slots of a node that are under liens which the need may not pass: they are of no use to it, free or not."""
        return node.lien if self.passage is None or not node.lien else self.passage.blocked(node)

    def _freed(self, node: NodeState, lease: Lease, sign: int) -> int:
        """GPUs that come free with a lease: a spare and its tenant share slots, which are free when both are gone."""
        blocked = self._blocked(node)
        if lease.role is Role.ACTIVE:
            return (bits_of(lease.slots) & ~blocked).bit_count() if blocked else len(lease.slots)
        bits = bits_of(lease.slots)
        tenant = lease.role is Role.BORROWED
        other, held = (Role.SPARE, node.spare) if tenant else (Role.BORROWED, node.tenant)
        mine = (lease.node, lease.role)
        self._gone[mine] = self._gone.get(mine, 0) | bits if sign > 0 else self._gone.get(mine, 0) & ~bits
        return (bits & ~blocked & ~(held & ~self._gone.get((lease.node, other), 0))).bit_count()

    def fits(self) -> bool:
        """Whether the need would fit now."""
        if self.groups != self.wanted or not self.rest:
            return self.groups >= self.wanted
        return any(pods % self.first >= self.rest for pods in self.pods.values())

    def deficits(self) -> list[tuple[int, int]]:
        """(group, GPUs) of every group that does not fit, each against what is left in the domain that comes nearest."""
        need, size = self.need, self.need.size
        left = sorted((pods % self.first for pods in self.pods.values()), reverse=True)
        sizes = [self.first] * self.wanted + ([self.rest] if self.rest else [])
        short = sizes[min(self.groups, self.wanted) :]
        begin = len(sizes) - len(short)
        found = []
        for place, pods in enumerate(short):
            near = left[place] if place < len(left) else 0
            if pods > near:
                found.append((0 if need.together else begin + place, (pods - near) * size))
        return found
