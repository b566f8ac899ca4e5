"""Fit count: whether a need would fit if some leases were gone, by counting alone.

The selection of victims asks this for every one that it takes and gives back, thousands of times; a plan is made only once, to
verify the answer. Counts are kept per node and per domain, so that each question costs what changed. They follow from which leases
are away, whatever the order in which these were taken.
"""

from __future__ import annotations

from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from fairlease.ledger.state.slots import bits_of
from fairlease.model.lease import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.engine.place.lien_rights import LienRights
    from fairlease.engine.place.packing import Need
    from fairlease.ledger.state.capacity import Domain, NodeState, Pool
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease


_barred = attrgetter("barred")


class NodeCount:
    """The room on one node and the pods it gained; of its spares and their tenants what is away."""

    __slots__ = ("away", "blocked", "domain", "gained", "node", "room")

    def __init__(self, node: NodeState, room: int, blocked: int) -> None:
        assert node.domain is not None, "only nodes in a domain are counted"
        self.node = node
        self.domain = node.domain.key
        self.room = room
        self.gained = 0
        self.blocked = blocked
        self.away: dict[Role, int] = {}

    def freed(self, lease: Lease, *, away: bool) -> int:
        """GPUs that come free with a lease: a spare and its tenant share slots, which are free when both are gone."""
        if lease.role is Role.ACTIVE:
            return (bits_of(lease.slots) & ~self.blocked).bit_count() if self.blocked else len(lease.slots)
        bits = bits_of(lease.slots)
        before, spare = self.away.get(lease.role, 0), lease.role is Role.SPARE
        self.away[lease.role] = before | bits if away else before & ~bits
        other, held = (Role.BORROWED, self.node.tenant) if spare else (Role.SPARE, self.node.spare)
        return (bits & ~self.blocked & ~(held & ~self.away.get(other, 0))).bit_count()


class FitCount:
    """Room for a need on the nodes of `mask`, while the leases in `away` (by serial) are thought away.

    `looks_max`: how often it may be asked in search of a choice that serves; `effort`: how often it was asked or changed in all.
    """

    looks_max = 1_000

    def __init__(self, state: State, pool: Pool, mask: int, need: Need, passage: LienRights | None) -> None:
        self.nodes = state.capacity.nodes
        self.pool = pool
        self.need = need
        self.mask = mask
        self.effort = 0
        self.passage = passage
        self.away: dict[int, Lease] = {}
        self._nodes: dict[str, NodeCount | None] = {}
        self._first = need.pods if need.together else need.blocks[0].pods
        self._wanted = 1 if need.together else need.blocks[0].groups
        self._rest = need.blocks[1].pods if len(need.blocks) > 1 and not need.together else 0
        self._least = min(self._first, self._rest or self._first)
        self.pods = self._counted()
        self._groups = sum(pods // self._first for pods in self.pods.values())

    def _counted(self) -> dict[tuple[str, str, str], int]:
        """Pods that fit now, by domain; a domain without room for any may be left out.

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
        count = self._nodes.get(node.node.name)
        return self._room(node) if count is None else count.room

    def _room(self, node: NodeState) -> int:
        return node.room if self.passage is None or not node.lien else self.passage.room(node)

    # --- which leases are in scope -------------------------------------------------------------------------------------

    @cached_property
    def domains(self) -> dict[Domain | None, bool]:
        """The domains that could hold one of its groups if nothing ran there, and whether every node of them could run a pod.

        Mostly every node could, and then a lease is judged by its domain.
        """
        size, mask, found = self.need.size, self.mask, dict["Domain | None", bool]()
        for domain in self.pool.domains.values():
            if not domain.mask & mask:
                continue
            pods = domain.pods_when_empty(size)
            large = domain.mask & mask == domain.mask and all(
                gpus >= size or not count for gpus, count in domain.sizes.items()
            )
            whole = large and not any(map(_barred, domain.nodes.values()))
            if not whole:
                pods = sum(node.node.gpus // size for node in domain.nodes.values() if self._open(node))
            if pods >= self._least:
                found[domain] = whole
        return found

    def _open(self, node: NodeState) -> bool:
        """Whether a pod could run on a node if nothing else did."""
        return node.bit & self.mask != 0 and node.node.gpus >= self.need.size and self._works(node)

    def _works(self, node: NodeState) -> bool:
        """Whether a node may be used at all."""
        return not node.barred

    def usable(self, lease: Lease) -> bool:
        """Whether the need could use the GPUs of a lease (a node that was relabelled may be in another pool now)."""
        return self._serves(self.nodes[lease.node])

    def _serves(self, node: NodeState) -> bool:
        whole = self.domains.get(node.domain)
        return whole is True or (whole is False and self._open(node))

    def nodes_in_scope(self) -> Iterator[NodeState]:
        """The nodes whose leases are usable."""
        return (node for domain in self.domains if domain for node in domain.nodes.values() if self._serves(node))

    @property
    def scope(self) -> tuple[object, ...]:
        """All that decides which leases are usable in one state of the world."""
        return type(self), self.pool.flavor, self.mask, self.need.size, self._least

    # --- leases that are taken away and put back -----------------------------------------------------------------------

    def take(self, leases: Iterable[Lease]) -> bool:
        """Think leases away that are there; whether more pods fit then."""
        self.effort += 1
        away, nodes, gained = self.away, self._nodes, 0
        for lease in leases:
            away[lease.serial] = lease
            try:
                count = nodes[lease.node]
            except KeyError:
                count = self._look_at(lease.node)
            if count is not None:
                gained += self._change(count, count.freed(lease, away=True))
        return gained > 0

    def put_back(self, leases: Iterable[Lease]) -> None:
        """Put leases back that are away."""
        self.effort += 1
        for lease in leases:
            del self.away[lease.serial]
            count = self._nodes[lease.node]
            if count is not None:
                self._change(count, -count.freed(lease, away=False))

    def _look_at(self, name: str) -> NodeCount | None:
        """Begin to count a node; None where its GPUs are of no use to the need."""
        node = self.nodes[name]
        count = NodeCount(node, self._room(node), self._blocked(node)) if self._serves(node) else None
        self._nodes[name] = count
        return count

    def _change(self, count: NodeCount, gpus: int) -> int:
        """So many GPUs more (or fewer) are free on a node; how many more pods fit then."""
        room, size = count.room, self.need.size
        count.room = after = room + gpus
        gained = after // size - room // size
        if gained:
            count.gained += gained
            pods, first = self.pods.get(count.domain, 0), self._first
            self.pods[count.domain] = pods + gained
            self._groups += (pods + gained) // first - pods // first
        return gained

    def in_vain(self, leases: Iterable[Lease]) -> bool:
        """Whether these are away on nodes where no pod more fits although they, and others, are."""
        nodes = self._nodes
        for lease in leases:
            count = nodes[lease.node]
            if count is not None and count.gained:
                return False
        return True

    def _blocked(self, node: NodeState) -> int:
        """The slots of a node that are under liens which the need may not pass: they are of no use to it, free or not."""
        return node.lien if self.passage is None or not node.lien else self.passage.blocked(node)

    def fits(self) -> bool:
        """Whether the need would fit now."""
        self.effort += 1
        if self._groups != self._wanted or not self._rest:
            return self._groups >= self._wanted
        return any(pods % self._first >= self._rest for pods in self.pods.values())

    def deficits(self) -> list[tuple[int, int]]:
        """(group, GPUs) of every group that does not fit, each against what is left in the domain that comes nearest."""
        need, size = self.need, self.need.size
        left = sorted((pods % self._first for pods in self.pods.values()), reverse=True)
        sizes = [self._first] * self._wanted + ([self._rest] if self._rest else [])
        short = sizes[min(self._groups, self._wanted) :]
        begin = len(sizes) - len(short)
        found = []
        for place, pods in enumerate(short):
            near = left[place] if place < len(left) else 0
            if pods > near:
                found.append((0 if need.together else begin + place, (pods - near) * size))
        return found
