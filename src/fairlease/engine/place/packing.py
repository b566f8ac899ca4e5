"""Pack: where (SEMANTICS §5).

What a run needs, in groups of whole pods, and what room there is for it: on which nodes of which domains, and in which order they
are preferred. `engine.place.search` chooses among them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.place.lien_rights import LienRights
    from fairlease.ledger.state.capacity import Domain, NodeState, Pool
    from fairlease.model.run import RunSpec

REMEMBERED_MAX = 4_096
"""Answers a pool remembers: more than there are kinds of requests in a queue, fewer than would be a burden."""


class Block(NamedTuple):
    """`groups` alike: so many active and spare pods each."""

    groups: int
    active: int
    spares: int

    @property
    def pods(self) -> int:
        """Pods of one group."""
        return self.active + self.spares


class Need(NamedTuple):
    """What must be placed: pods of `size` GPUs in groups, `pods` in all."""

    size: int
    blocks: tuple[Block, ...]
    together: bool
    pods: int


class Spot(NamedTuple):
    """One pod's place."""

    group: int
    spare: bool
    node: NodeState


def need_of(spec: RunSpec, width: int) -> Need:
    """The groups of a run that is `width` GPUs wide; the last group may be smaller."""
    size, locality = spec.pod_gpus, spec.locality
    spares = 0 if spec.opportunistic else spec.spares_per_group // size
    return _need(size, locality.group_gpus or size, width, spares, together=not locality.allow_cross_group_spread)


@lru_cache(maxsize=4_096)
def _need(size: int, group: int, width: int, spares: int, *, together: bool) -> Need:
    full, rest = divmod(width, group)
    blocks = [Block(full, group // size, spares)] if full else []
    if rest:
        blocks.append(Block(1, rest // size, spares))
    return Need(size, tuple(blocks), together, sum(block.groups * block.pods for block in blocks))


class Rooms:
    """What a run may use of a pool now: the nodes of `mask`, on slots under no lien, or with a `passage` also under some.

    It alone turns a node into whole pods, so whatever else a pod comes to need is asked for here. Where no lien is passed and a
    domain lies wholly inside the mask, the indexes of the state answer.
    """

    __slots__ = ("mask", "passage", "pool", "size")

    def __init__(self, pool: Pool, mask: int, size: int, passage: LienRights | None = None) -> None:
        self.pool = pool
        self.mask = mask & pool.mask
        self.size = size
        self.passage = passage

    def gpus(self, node: NodeState) -> int:
        """GPUs of a node that it may use."""
        return node.room if self.passage is None or not node.lien else self.passage.room(node)

    def indexed(self, domain: Domain) -> bool:
        """Whether the indexes of a domain tell what may be used of it."""
        return domain.mask & self.mask == domain.mask and (self.passage is None or not domain.liened)

    def pods(self, domain: Domain) -> int:
        """Pods that fit into a domain."""
        if self.indexed(domain):
            return domain.pods(self.size)
        return sum(gpus // self.size for gpus, _ in self.nodes(domain))

    def free(self, domain: Domain) -> int:
        """GPUs of a domain that it may use: the size of the hole."""
        return domain.free if self.indexed(domain) else sum(gpus for gpus, _ in self.nodes(domain))

    def nodes(self, domain: Domain) -> list[tuple[int, NodeState]]:
        """Nodes with room for a pod, and how many GPUs, the smallest hole first."""
        found = []
        for node in domain.nodes.values():
            if node.bit & self.mask:
                gpus = self.gpus(node)
                if gpus >= self.size:
                    found.append((gpus, node))
        found.sort(key=lambda item: (item[0], item[1].rank))
        return found

    def seats(self, domain: Domain) -> Iterator[NodeState]:
        """One node per pod that fits, best fit first: a node that was begun is filled up before the next."""
        if self.indexed(domain):
            return domain.seats(self.size)
        return (node for gpus, node in self.nodes(domain) for _ in range(gpus // self.size))

    def domains(self, pods: int) -> Iterator[Domain]:
        """Domains, the smallest hole first; those with fewer GPUs than so many pods take need not be among them."""
        if self.mask == self.pool.mask and self.passage is None:
            return self.pool.by_hole(pods * self.size)
        inside = [domain for domain in self.pool.domains.values() if domain.mask & self.mask]
        return iter(sorted(inside, key=lambda domain: (self.free(domain), domain.order)))


class EmptyRooms(Rooms):
    """The same if nothing ran, and no node were barred."""

    __slots__ = ()

    def gpus(self, node: NodeState) -> int:
        """All GPUs of a node."""
        return node.node.gpus

    def indexed(self, domain: Domain) -> bool:  # noqa: ARG002 - whichever it is
        """Never: indexes are of what is free."""
        return False

    def domains(self, pods: int) -> Iterator[Domain]:  # noqa: ARG002 - all of them, whatever is asked
        """All domains in their order."""
        return iter(sorted(self.pool.domains.values(), key=lambda domain: domain.order))


def scattered(pool: Pool, mask: int, need: Need) -> str:
    """What stands against a need on some nodes though as many GPUs of the pool are free, under no lien, as it takes."""
    rooms, size, groups = Rooms(pool, mask, need.size), need.size, need.blocks[0]
    domains = [domain for domain in pool.domains.values() if domain.mask & mask]
    reached = sum(_room(domain, mask) for domain in domains)
    if reached < need.pods * size:
        return f"only {reached} of them where its money may be spent"
    counts = [rooms.pods(domain) for domain in domains]
    if sum(counts) < need.pods:
        return f"on too many nodes: there is room for {sum(counts)} of {need.pods} pods of {size} GPUs"
    if need.together:
        return f"in too many domains: one has room for {max(counts)} of {need.pods} pods of {size} GPUs at the most"
    room, whole = sum(count // groups.pods for count in counts), groups.pods * size
    if room < groups.groups:
        return f"in too many domains: there is room for {room} of {groups.groups} groups of {whole} GPUs"
    return "in too many domains: there is no room for the last group" if not all_fit(counts, need) else ""


def _room(domain: Domain, mask: int) -> int:
    """Free GPUs, under no lien, on some nodes of a domain."""
    if domain.mask & ~mask == 0:
        return domain.free
    return sum(state.room for state in domain.nodes.values() if state.bit & mask)


def could_fit(pool: Pool, need: Need, way: LienRights | None) -> bool:
    """Whether there is room in the pool, whoever pays, for one who may pass liens by `way`: where it says no, no plan says yes."""
    size, pods = need.size, need.pods if need.together else need.blocks[0].pods
    if need.pods * size > pool.idle:
        return False
    groups, wanted = 0, 1 if need.together else need.blocks[0].groups
    for domain in pool.by_hole(pods * size):
        groups += domain.pods(size) // pods
        if groups >= wanted:
            return True
    return way is not None and groups + _groups_under_liens(pool, size, pods, way) >= wanted


def _groups_under_liens(pool: Pool, size: int, pods: int, way: LienRights) -> int:
    """How many more groups fit where the slots under liens count that may be used: only nodes that have such can tell."""
    more: dict[Domain, int] = {}
    for state in pool.tense:
        domain = state.domain
        assert domain is not None, "a node of a pool lies in a domain"
        gain = way.room(state) // size - state.room // size
        if gain:
            more[domain] = more.get(domain, 0) + gain
    return sum((domain.pods(size) + gain) // pods - domain.pods(size) // pods for domain, gain in more.items())


def fits_empty(pool: Pool, mask: int, need: Need) -> bool:
    """Whether the run would fit if nothing else ran; the pool remembers the answer until nodes come or go."""
    known = pool.ever_fits.get((mask, need))
    if known is None:
        if len(pool.ever_fits) >= REMEMBERED_MAX:
            pool.ever_fits.clear()
        known = pool.ever_fits[mask, need] = _fits_empty(pool, mask, need)
    return known


def _fits_empty(pool: Pool, mask: int, need: Need) -> bool:
    """Arithmetic only, so that a huge request costs nothing."""
    counts = []
    for domain in pool.domains.values():
        if domain.mask & mask == domain.mask:
            counts.append(domain.pods_when_empty(need.size))
        elif domain.mask & mask:
            inside = (state.node.gpus for state in domain.nodes.values() if state.bit & mask)
            counts.append(sum(gpus // need.size for gpus in inside))
    return all_fit(counts, need)


def all_fit(counts: list[int], need: Need) -> bool:
    """Whether all groups fit where so many pods fit into each of some domains."""
    if need.together:
        return max(counts, default=0) >= need.pods
    first = need.blocks[0]
    groups = sum(count // first.pods for count in counts)
    if len(need.blocks) == 1:
        return groups >= first.groups
    last = need.blocks[1].pods
    return groups > first.groups or (groups == first.groups and any(count % first.pods >= last for count in counts))
