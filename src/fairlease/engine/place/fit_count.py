"""Seats: whether a need would fit if some leases were gone, by counting alone.

A resolver asks this for every victim that it takes and that it gives back, thousands of times; a plan is made only once, to verify
the answer. Counts are kept per node and per domain, so that each question costs what changed.
"""

from __future__ import annotations

from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from fairlease.ledger.state.slots import bits_of
from fairlease.model.lease import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.engine.place.lien_rights import LienRights
    from fairlease.engine.place.packing import Need
    from fairlease.ledger.state.capacity import Domain, NodeState, Pool
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key


_barred = attrgetter("barred")


class Taken(NamedTuple):
    """What has been taken away so far, as `Seats` count it."""

    rooms: dict[str, int]
    pods: dict[tuple[str, str, str], int]
    groups: int
    gone: dict[tuple[str, Role], int]
    away: dict[Key, frozenset[str]] = {}


class FitCount:
    """Room for a need on the nodes of `mask`, as leases are taken away and put back.

    `looks_max`: how often it may be asked in search of a choice that serves; `effort`: how often it was asked or changed in all.
    """

    looks_max = 1_000

    def __init__(self, state: State, pool: Pool, mask: int, need: Need, passage: LienRights | None) -> None:
        self.nodes = state.capacity.nodes
        self.pool = pool
        self.need = need
        self.mask = mask
        self.rooms: dict[str, int] = {}
        self.effort = 0
        self.passage = passage
        self._gone: dict[tuple[str, Role], int] = {}
        self.first = need.pods if need.together else need.blocks[0].pods
        self.wanted = 1 if need.together else need.blocks[0].groups
        self.rest = need.blocks[1].pods if len(need.blocks) > 1 and not need.together else 0
        self._least = min(self.first, self.rest or self.first)
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
        return node.domain in self.wholly or (node.domain in self._domains and self._open(node))

    @property
    def usable_by(self) -> tuple[object, ...]:
        """All that decides which leases are usable in one state of the world."""
        return type(self), self.mask, self.need.size, self._least

    def _open(self, node: NodeState) -> bool:
        """Whether a pod could lie on a node if nothing ran there."""
        return node.bit & self.mask != 0 and node.node.gpus >= self.need.size and self._works(node)

    def _works(self, node: NodeState) -> bool:
        """Whether a node may be used at all."""
        return not node.barred

    @cached_property
    def wholly(self) -> set[Domain]:
        """Those of `_domains` that have no node on which a pod could not lie.

        Mostly that is all of them, and then a lease is judged by its domain.
        """
        size, mask = self.need.size, self.mask
        inside = (each for each in self._domains if each.mask & mask == each.mask)
        large = (each for each in inside if all(gpus >= size or not count for gpus, count in each.sizes.items()))
        return {domain for domain in large if not any(map(_barred, domain.nodes.values()))}

    @cached_property
    def _domains(self) -> set[Domain]:
        """The domains that could hold one of its groups if nothing ran there."""
        inside = (domain for domain in self.pool.domains.values() if domain.mask & self.mask)
        return {domain for domain in inside if self._holds_a_group(domain)}

    def _holds_a_group(self, domain: Domain) -> bool:
        pods = 0
        for node in domain.nodes.values():
            if self._open(node):
                pods += node.node.gpus // self.need.size
                if pods >= self._least:
                    return True
        return False

    def change(self, leases: Iterable[Lease], sign: int) -> None:
        """Take leases away (1), or put them back (−1)."""
        size, first = self.need.size, self.first
        self.effort += 1
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
        self.effort += 1
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
