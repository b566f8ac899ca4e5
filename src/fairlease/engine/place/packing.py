"""Pack: where (SEMANTICS §5).

Each group lies in one fabric domain. A group goes to one of the run's own domains if it fits there, else into the smallest hole
that fits, so that large holes survive; pods go to nodes by the same rule, each whole on one node. Spares lie in their group's
domain, off the nodes of its active pods where they can. Deterministic: ties fall to the natural order of names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlease.engine.place.lien_rights import LienRights
    from fairlease.ledger.state.capacity import Domain, NodeState, Pool
    from fairlease.model.run import RunSpec

Batch = list[tuple[int, tuple[int, int]]]
"""Groups that must lie in one domain: (index, (active pods, spare pods))."""


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


class Packer:
    """One attempt at placing a run on the nodes of `mask`; nothing is taken for real.

    Without a `passage` only slots under no lien are used, for which the indexes answer.
    """

    __slots__ = ("_holes", "mask", "own", "passage", "pool", "size", "spots", "taken", "taken_in", "whole")

    def __init__(self, pool: Pool, mask: int, size: int, passage: LienRights | None = None) -> None:
        self.pool = pool
        self.mask = mask
        self.size = size
        self.passage = passage
        self.whole = mask & pool.mask == pool.mask
        self.taken: dict[str, int] = {}
        self.taken_in: dict[tuple[str, str, str], int] = {}
        self.own: dict[tuple[str, str, str], Domain] = {}
        self.spots: list[Spot] = []
        self._holes: list[tuple[int, Domain]] | None = None

    def place(self, need: Need) -> bool:
        """Find a spot for every pod; False, and no promise about `spots`, where that cannot be."""
        if need.together:
            chosen = self._choose(need.pods)
            if chosen is None:
                return False
            self._fill_together(chosen[0], need)
            return True
        group = 0
        for block in need.blocks:
            left = block.groups
            while left:
                chosen = self._choose(block.pods)
                if chosen is None:
                    return False
                domain, pods = chosen
                count = min(left, pods // block.pods)
                self._fill(domain, block, group, count)
                group += count
                left -= count
        return True

    def pods(self, domain: Domain) -> int:
        """Pods that still fit into a domain, on the nodes this attempt may use."""
        plain = self.whole and self.passage is None and not self.own  # mostly, and then for all domains
        if plain or self._untouched(domain):
            return domain.pods(self.size)
        return sum(room // self.size for room, _ in self.rooms(domain))

    def domains(self, pods: int) -> Iterator[Domain]:
        """Domains in order of preference: the run's own, then the smallest hole; not all of them have room."""
        least = pods * self.size
        if self.own:
            own = [domain for domain in self.own.values() if self._at_most(domain) >= least]
            yield from sorted(own, key=lambda domain: (self._free(domain), domain.order))
        if self.whole and self.passage is None:
            for domain in self.pool.by_hole(least):
                if domain.key not in self.own:
                    yield domain
            return
        if self._holes is None:
            inside = (domain for domain in self.pool.domains.values() if domain.mask & self.mask)
            self._holes = sorted(
                ((self._free(each), each) for each in inside), key=lambda hole: (hole[0], hole[1].order)
            )
        yield from (domain for free, domain in self._holes if free >= least and domain.key not in self.own)

    def _choose(self, pods: int) -> tuple[Domain, int] | None:
        """The first domain with room for `pods` pods, and for how many it has."""
        for domain in self.domains(pods):
            room = self.pods(domain)
            if room >= pods:
                return domain, room
        return None

    def _untouched(self, domain: Domain) -> bool:
        """Whether the indexes of a domain tell what this attempt finds in it."""
        if domain.key in self.own or (domain.liened and self.passage is not None):
            return False
        return self.whole or domain.mask & self.mask == domain.mask

    def room(self, state: NodeState) -> int:
        """GPUs of a node that this attempt may use."""
        return state.room if self.passage is None or not state.lien else self.passage.room(state)

    def _at_most(self, domain: Domain) -> int:
        """A bound on what is left in a domain that was begun: for the most part it needs no look at the nodes."""
        return self._free(domain) if self.passage else domain.free - self.taken_in.get(domain.key, 0)

    def _free(self, domain: Domain) -> int:
        if self._untouched(domain):
            return domain.free
        return sum(room for room, _ in self.rooms(domain))

    def rooms(self, domain: Domain) -> list[tuple[int, NodeState]]:
        """Nodes of a domain with what is left on each, those with room for a pod, the smallest hole first."""
        found = []
        for name, state in domain.nodes.items():
            if state.free and state.bit & self.mask:
                room = self.room(state) - self.taken.get(name, 0)
                if room >= self.size:
                    found.append((room, state))
        found.sort(key=lambda item: (item[0], item[1].rank))
        return found

    def seats(self, domain: Domain) -> Iterator[NodeState]:
        """One node per pod that fits, best fit first: a node that was begun is filled up before the next."""
        if self._untouched(domain):
            return domain.seats(self.size)
        return (state for room, state in self.rooms(domain) for _ in range(room // self.size))

    def take(self, group: int, node: NodeState, *, spare: bool) -> None:
        """Put one pod on a node."""
        self.spots.append(Spot(group, spare, node))
        self._count(node, self.size)

    def _count(self, node: NodeState, gpus: int) -> None:
        name, domain = node.node.name, node.domain
        assert domain is not None, "a node that is packed lies in a domain"
        self.taken[name] = self.taken.get(name, 0) + gpus
        self.taken_in[domain.key] = self.taken_in.get(domain.key, 0) + gpus

    def narrow(self, mask: int) -> None:
        """From here on, use only the nodes of `mask`."""
        if mask != self.mask:
            self.mask = mask
            self.whole = mask & self.pool.mask == self.pool.mask
            self._holes = None

    def drop(self, length: int) -> None:
        """Take back all spots but the first `length`."""
        for spot in self.spots[length:]:
            self._count(spot.node, -self.size)
        del self.spots[length:]

    def seat_paid(self, domain: Domain, batch: Batch, pay: Callable[[NodeState], bool]) -> bool:
        """Seat groups pod by pod, each on the best-fitting node that somebody pays for."""
        fresh = domain.key not in self.own
        self.own[domain.key] = domain
        for group, (active, spares) in batch:
            used: set[str] = set()
            for index in range(active + spares):
                spare = index >= active
                rooms = [state for _, state in self.rooms(domain)]
                if spare:
                    rooms.sort(key=lambda state: state.node.name in used)
                node = next((state for state in rooms if pay(state)), None)
                if node is None:
                    if fresh:
                        del self.own[domain.key]
                    return False
                self.take(group, node, spare=spare)
                if not spare:
                    used.add(node.node.name)
        return True

    def _fill(self, domain: Domain, block: Block, group: int, count: int) -> None:
        if block.spares:
            for index in range(group, group + count):
                self._fill_with_spares(domain, block, index)
            return
        seats = self.seats(domain)
        size, taken, spots = self.size, self.taken, self.spots
        for index in range(group, group + count):
            for _ in range(block.active):
                node = next(seats)
                spots.append(Spot(index, False, node))  # noqa: FBT003 - by place, as it is done for every pod
                name = node.node.name
                taken[name] = taken.get(name, 0) + size
        self.own[domain.key] = domain
        self.taken_in[domain.key] = self.taken_in.get(domain.key, 0) + count * block.active * size

    def _fill_together(self, domain: Domain, need: Need) -> None:
        group = 0
        for block in need.blocks:
            self._fill(domain, block, group, block.groups)
            group += block.groups

    def _fill_with_spares(self, domain: Domain, block: Block, group: int) -> None:
        self.own[domain.key] = domain
        rooms = self.rooms(domain)
        ways = [arrange(rooms, block, self.size), arrange(rooms[::-1], block, self.size)]
        if max(apart for _, _, apart in ways) < block.spares:
            ways.append(arrange(snug(rooms, block.active, self.size), block, self.size))
        active, spares, _ = max(ways, key=lambda way: way[2])
        for node in active:
            self.take(group, node, spare=False)
        for node in spares:
            self.take(group, node, spare=True)


def arrange(
    rooms: list[tuple[int, NodeState]], block: Block, size: int
) -> tuple[list[NodeState], list[NodeState], int]:
    """Seats for a group's active pods in the order of `rooms`, then its spares, and how many of those lie off its active nodes."""
    seats = [state for room, state in rooms for _ in range(room // size)]
    active, rest = seats[: block.active], seats[block.active :]
    used = {state.node.name for state in active}
    by_fit = sorted(rest, key=lambda state: (state.room, state.rank))
    apart = [state for state in by_fit if state.node.name not in used]
    beside = [state for state in by_fit if state.node.name in used]
    spares = (apart + beside)[: block.spares]
    return active, spares, min(len(apart), block.spares)


def snug(rooms: list[tuple[int, NodeState]], pods: int, size: int) -> list[tuple[int, NodeState]]:
    """The same nodes, begun with a set of them that holds `pods` pods and has the fewest seats left over."""
    sets: dict[int, tuple[int, ...]] = {0: ()}
    for index, (room, _) in enumerate(rooms):
        for seats, chosen in list(sets.items()):
            if seats < pods:
                sets.setdefault(seats + room // size, (*chosen, index))
    first = sets[min(seats for seats in sets if seats >= pods)]
    return [rooms[index] for index in first] + [item for index, item in enumerate(rooms) if index not in first]


def scattered(pool: Pool, mask: int, need: Need) -> str:
    """What stands against a need on some nodes though as many GPUs of the pool are free, under no lien, as it takes."""
    packer, size, groups = Packer(pool, mask, need.size), need.size, need.blocks[0]
    reached = pool.free if packer.whole else sum(_room(domain, mask) for domain in pool.domains.values())
    if reached < need.pods * size:
        return f"only {reached} of them where its money may be spent"
    domains = [domain for domain in pool.domains.values() if domain.mask & mask]
    counts = [domain.pods(size) if packer.whole else packer.pods(domain) for domain in domains]
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
    return sum(state.room for state in domain.nodes.values() if state.bit & mask) if domain.mask & mask else 0


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
