"""Search: where a run's pods go and who pays for them, for all runs (SEMANTICS §3, §5).

Each group lies in one fabric domain, or all groups in one. Of all placements that keep to that, the one is taken that pays most
from the first payer in the order of cover, then from the second, and so on; among those the one with the fewest spares on a node
of their group's active pods; among those the best fit: the run's own domains, then the smallest hole, and the same for nodes in a
domain.

Domains are tried in the order of best fit, each with as many groups as it holds, then with fewer. `Payers.richest` bounds what can
still be paid when some groups have their domain and the others may lie anywhere: a choice is pursued only if that is as much as the
target, and the first complete one is the best fit among equals. The first target is the bound before any choice; if nothing
reaches it, the next is the highest bound that was passed over. When every group has its domain the bound is exact, and nodes follow
best fit as far as the payers allow.

Where all money in question reaches the same nodes (`payers` is None), every choice pays the same: the first one is taken at once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.place.packing import Need, Rooms, Spot
from fairlease.engine.place.payers import Demand, Flow, Kind, Payers, Payment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.ledger.state.capacity import Domain, NodeState

TRIES_MAX = 1_000
"""Choices that are weighed in vain for one plan, so that no request can hold up the others: some tenths of a second."""


class Batch(NamedTuple):
    """`sets` sets of groups, `pods` pods each, that lie in one domain: each group with its active and spare pods."""

    sets: int
    pods: int
    groups: tuple[tuple[int, int], ...]


@lru_cache(maxsize=4_096)
def _batches(need: Need) -> tuple[tuple[Batch, ...], bool, int]:
    """What must lie together, whether there are spares, and the fewest pods that lie together."""
    if need.together:
        groups = tuple((block.active, block.spares) for block in need.blocks for _ in range(block.groups))
        found: tuple[Batch, ...] = (Batch(1, need.pods, groups),)
    else:
        found = tuple(Batch(each.groups, each.pods, ((each.active, each.spares),)) for each in need.blocks)
    return found, any(block.spares for block in need.blocks), min(batch.pods for batch in found)


class Seating(NamedTuple):
    """A place for every pod, the payers (None: who pays is a matter of counting), and how many spares lie beside their group.

    `complete`: no better one was left out for want of tries.
    """

    spots: list[Spot]
    payment: Payment | None
    beside: int
    complete: bool


class NodeRoom:
    """What is left of a node while pods are put on it; `arc` leads to its kind, where payers bound how many pods that takes."""

    __slots__ = ("arc", "node", "pods")

    def __init__(self, pods: int, node: NodeState, arc: int) -> None:
        self.pods = pods
        self.node = node
        self.arc = arc


class Search:
    """One search for one need; nothing is taken for real. `home`: the run's own domains."""

    def __init__(self, rooms: Rooms, need: Need, payers: Payers | None = None, home: Iterable[Domain] = ()) -> None:
        self.rooms = rooms
        self.payers = payers
        self.tries = TRIES_MAX
        self.complete = True
        self.batches, self._spares, least = _batches(need)
        self._more = rooms.domains(least)
        self._known: list[Domain] = []
        if home:
            self._known += sorted(home, key=lambda domain: (rooms.free(domain), domain.order))
            self._more = (each for each in self._more if each not in home)
        self._put: list[tuple[Domain, int, int]] = []
        self._used: dict[Domain, int] = {}
        self._profiles: dict[Domain, dict[Kind, int]] = {}
        self._payable: dict[object, int] = {}
        self._leasts: dict[object, int] = {}
        self._numbers: dict[Domain, int] = {}
        self._target: tuple[int, ...] = ()
        self._next: tuple[int, ...] | None = None
        self._payment: Payment | None = None
        self._best: Seating | None = None

    def find(self) -> Seating | None:
        """The best placement; None where there is none, or none was found in so many tries (it is not `complete` then)."""
        if self.payers is not None:
            bound = self._bound()
            if bound is None:
                return None
            self._target = bound.pods
        elif not self._spares:  # every choice is worth the same
            return self._seat() if next(self._leaves(), False) else None
        while True:
            found = self._first_of_the_best()
            if not self.tries or (self.payers is not None and not self.payers.complete):
                self.complete = False
            if found is None and not self.tries:
                found = self._seat() if self.possible() else None
            elif found is None and self._next is not None:
                self._target = self._next
                continue
            return None if found is None else found._replace(complete=self.complete)

    def possible(self) -> bool:
        """Whether there is any placement, whoever of the payers pays; no, if `tries` is 0 then, may be wrong."""
        self.tries, self._target, self._best = TRIES_MAX, (), None
        return (self.payers is None or self._bound() is not None) and next(self._leaves(), False)

    def _first_of_the_best(self) -> Seating | None:
        """Of the placements that reach the target the first of those with the fewest spares beside their group."""
        self._best = self._next = None
        for _ in self._leaves():
            found = self._seat()
            if self._best is None or found.beside < self._best.beside:
                self._best = found
            if not found.beside or found.beside <= self._least_beside or not self.tries:
                break
        return self._best

    # --- which domain holds how many groups ------------------------------------------------------------------------------

    def _leaves(self) -> Iterator[bool]:
        """Every choice of domains for all groups that reaches the target, in the order of best fit; `_put` holds it."""
        self._put.clear()
        self._used.clear()
        last, ahead = len(self.batches), [self._choices(0, self.batches[0].sets, 0)]
        while ahead:
            step = next(ahead[-1], None)
            if step is None:
                ahead.pop()
                continue
            number, left, start = step
            if not left:
                number, start = number + 1, 0
            if number == last:
                yield True
            else:
                ahead.append(self._choices(number, left or self.batches[number].sets, start))

    def _choices(self, number: int, left: int, start: int) -> Iterator[tuple[int, int, int]]:
        """Put some of those left of a batch into each domain in turn, the most first; what is then left, and from where on."""
        pods = self.batches[number].pods
        tried: set[object] = set()
        for place, domain in self._order(number, start):
            used = self._used.get(domain, 0)
            room = (self._room(domain) - used) // pods
            if not room or (tried and self._signature(domain) in tried):
                continue
            for count in range(min(left, room), 0, -1):
                self._put.append((domain, number, count))
                self._used[domain] = used + count * pods
                if self._promises(number, left - count, place + 1):
                    yield number, left - count, place + 1
                self._put.pop()
                if used:
                    self._used[domain] = used
                else:
                    del self._used[domain]
            tried.add(self._signature(domain))

    def _order(self, number: int, start: int) -> Iterator[tuple[int, Domain]]:
        """Domains from a place on, as they are preferred; later batches prefer those that hold earlier ones."""
        if number:
            used = sorted(
                self._used, key=lambda each: (self.rooms.free(each) - self._used[each] * self.rooms.size, each.order)
            )
            yield from enumerate(used)
        while True:
            if start == len(self._known):
                domain = next(self._more, None)
                if domain is None:
                    return
                self._known.append(domain)
            if not number or self._known[start] not in self._used:
                yield start, self._known[start]
            start += 1

    def _room(self, domain: Domain) -> int:
        """Pods that fit into a domain, and that somebody would pay for if all else lay elsewhere."""
        if self.payers is None:
            return self.rooms.pods(domain)
        profile = self._profile(domain)
        known = tuple(profile.items())
        if known not in self._payable:
            self._payable[known] = sum(self.payers.most(Demand(sum(profile.values()), profile)))
        return self._payable[known]

    def _signature(self, domain: Domain) -> object:
        """Alike for domains of which one will not do if the other does not."""
        if domain in self._used:
            return domain.key
        if self._spares:
            return tuple((gpus // self.rooms.size, self._kind(node)) for gpus, node in self.rooms.nodes(domain))
        return self._room(domain) if self.payers is None else tuple(sorted(self._profile(domain).items()))

    def _promises(self, number: int, left: int, start: int) -> bool:
        """Whether the target can still be reached; if not, what can is remembered."""
        if self._best is not None and self._beside_at_least(number, left) >= self._best.beside:
            return False
        if self.payers is None:  # every choice pays the same
            return True
        if not self.tries:
            return False
        self._payment = self._paid(number, left, start)
        if self._payment is not None and self._payment.pods >= self._target:
            return True
        self.tries -= 1
        if self._payment is not None and (self._next is None or self._payment.pods > self._next):
            self._next = self._payment.pods
        return False

    # --- who pays ----------------------------------------------------------------------------------------------------------

    def _bound(self) -> Payment | None:
        """The payment of all pods as if each could be put anywhere."""
        self._put.clear()
        self._used.clear()
        return self._paid(0, self.batches[0].sets, 0)

    def _paid(self, number: int, left: int, start: int) -> Payment | None:
        """The payment of what is put, and of the rest as if it could be put anywhere from the place `start` on."""
        assert self.payers is not None, "asked only where it matters who pays"
        alike: dict[Kind, int] = {}
        demands: list[Demand] = []
        self._numbers.clear()
        for domain, pods in self._used.items():
            profile = self._profile(domain)
            if len(profile) == 1:
                kind = next(iter(profile))
                alike[kind] = alike.get(kind, 0) + pods
            else:
                self._numbers[domain] = len(demands)
                demands.append(Demand(pods, profile))
        demands += [Demand(pods, {kind: pods}) for kind, pods in alike.items()]
        for each in range(number, len(self.batches)):
            count = left if each == number else self.batches[each].sets
            if count:
                pools = self._pools[each]
                demands.append(Demand(count * self.batches[each].pods, pools[start if each == number else 0]))
        return self.payers.richest(demands)

    @cached_property
    def _pools(self) -> list[list[dict[Kind, int]]]:
        """By batch, and by the place from which on domains count: the room of each kind of node, as far as whole groups use it."""
        self._known += self._more
        found = []
        for batch in self.batches:
            pools = [dict[Kind, int]()]
            for domain in reversed(self._known):
                pool, profile = dict(pools[-1]), self._profile(domain)
                most = self._room(domain) // batch.pods * batch.pods
                for kind, pods in profile.items():
                    if most:
                        pool[kind] = pool.get(kind, 0) + min(pods, most)
                pools.append(pool)
            found.append(pools[::-1])
        return found

    def _profile(self, domain: Domain) -> dict[Kind, int]:
        """How many pods fit on nodes of each kind in a domain."""
        found = self._profiles.get(domain)
        if found is None:
            assert self.payers is not None, "asked only where it matters who pays"
            found, size = dict[Kind, int](), self.rooms.size
            inside = [offer.mask & domain.mask for offer in self.payers.offers]
            if self.rooms.indexed(domain) and all(mask in (0, domain.mask) for mask in inside):
                found[self.payers.kind(domain.mask)] = self.rooms.pods(domain)
            else:
                for gpus, node in self.rooms.nodes(domain):
                    kind = self._kind(node)
                    found[kind] = found.get(kind, 0) + gpus // size
            self._profiles[domain] = found
        return found

    def _kind(self, node: NodeState) -> Kind:
        return 0 if self.payers is None else self.payers.kind(node.bit)

    # --- which node holds which pod -----------------------------------------------------------------------------------------

    def _seat(self) -> Seating:
        """A node for every pod of what is put; payers that allow it allow some node for each."""
        groups = [
            (domain, *each) for domain, number, count in self._put for each in self.batches[number].groups * count
        ]
        if self._spares:
            return self._apart(groups)
        spots: list[Spot] = []
        seats: dict[Domain, Iterator[NodeState]] = {}
        for group, (domain, active, _) in enumerate(groups):
            row = seats.get(domain)
            if row is None:
                row = seats[domain] = self._seats(domain)
            spots += [Spot(group, False, node) for node in islice(row, active)]  # noqa: FBT003 - by place, for every pod
        return Seating(spots, self._payment, 0, complete=True)

    def _seats(self, domain: Domain) -> Iterator[NodeState]:
        """A node for each pod in a domain, the smallest hole first, as far as the payers allow."""
        if self._payment is None or domain not in self._numbers:
            return self.rooms.seats(domain)
        return (row.node for row in self._rows(domain) for _ in range(self._payment.flow.fix(row.arc, row.pods)))

    def _rows(self, domain: Domain) -> list[NodeRoom]:
        """The nodes of a domain, the smallest hole first."""
        rows, number = [], self._numbers.get(domain) if self._payment is not None else None
        for gpus, node in self.rooms.nodes(domain):
            arc = -1 if number is None or self._payment is None else self._payment.kinds[number, self._kind(node)]
            rows.append(NodeRoom(gpus // self.rooms.size, node, arc))
        return rows

    # --- spares off the nodes of their group's active pods ------------------------------------------------------------------

    def _apart(self, groups: list[tuple[Domain, int, int]]) -> Seating:
        """Seat groups with spares: as few as possible beside their group."""
        least = [self._least(domain, active, spares) for domain, active, spares in groups]
        total = sum(spares for _, _, spares in groups)
        for most in range(sum(least), total + 1):
            found = self._settle(groups, least, most)
            if found is not None:
                return found
            if not self.tries:
                break
        found = self._settle(groups, [0] * len(groups), total, hasty=True)
        assert found is not None, "what was counted has a seat"
        return found

    def _settle(
        self, groups: list[tuple[Domain, int, int]], least: list[int], most: int, *, hasty: bool = False
    ) -> Seating | None:
        """Seat groups with at most so many spares beside them in all; `hasty`: whatever the number of tries."""
        flow = None if self._payment is None else self._payment.flow
        saved = [] if flow is None else list(flow.left)
        rows = {domain: self._rows(domain) for domain, _, _ in groups}
        spots: list[list[Spot]] = []
        counts: list[int] = []
        ahead: list[Iterator[tuple[list[NodeState], list[NodeState], int]]] = []
        while len(spots) < len(groups):
            if len(ahead) == len(spots):
                group = len(spots)
                domain, active, spares = groups[group]
                left = most - sum(counts) - sum(least[group + 1 :])
                ahead.append(_settings(rows[domain], active, spares, left, flow))
            step = next(ahead[-1], None) if hasty or self.tries else None
            if step is None:
                self.tries = max(0, self.tries - 1)
                ahead.pop()
                if not ahead:
                    break
                spots.pop()
                counts.pop()
                continue
            group = len(spots)
            working, waiting, beside = step
            counts.append(beside)
            spots.append([Spot(group, spare=False, node=node) for node in working])
            spots[-1] += [Spot(group, spare=True, node=node) for node in waiting]
        if flow is not None and len(spots) < len(groups):
            flow.left[:] = saved
        if len(spots) < len(groups):
            return None
        return Seating([spot for each in spots for spot in each], self._payment, sum(counts), complete=True)

    def _least(self, domain: Domain, active: int, spares: int) -> int:
        """How many spares of one group lie beside it at least in a domain, whoever pays."""
        known = (tuple(gpus // self.rooms.size for gpus, _ in self.rooms.nodes(domain)), active, spares)
        if known not in self._leasts:
            self._leasts[known] = _beside(list(known[0]), active, spares)
        return self._leasts[known]

    def _least_in(self, domain: Domain, batch: Batch) -> int:
        return sum(self._least(domain, active, spares) for active, spares in set(batch.groups))

    @cached_property
    def _leasts_anywhere(self) -> list[int]:
        """How many spares of each batch lie beside their group at least, in the domain that serves them best."""
        self._known += self._more
        return [
            min((self._least_in(each, batch) for each in self._known if self._room(each) >= batch.pods), default=0)
            for batch in self.batches
        ]

    @cached_property
    def _least_beside(self) -> int:
        """How many spares lie beside their group at least."""
        return sum(batch.sets * least for batch, least in zip(self.batches, self._leasts_anywhere, strict=True))

    def _beside_at_least(self, number: int, left: int) -> int:
        put = sum(count * self._least_in(domain, self.batches[each]) for domain, each, count in self._put)
        rest = zip(self.batches[number + 1 :], self._leasts_anywhere[number + 1 :], strict=True)
        return put + left * self._leasts_anywhere[number] + sum(batch.sets * least for batch, least in rest)


def _beside(pods: list[int], active: int, spares: int) -> int:
    """How many of a group's spares lie on nodes of its active pods at least, on nodes with room for so many pods each.

    The active pods take nodes that have the least room left over; all others are for the spares.
    """
    sums = 1
    for each in pods:
        sums |= sums << each
    fit = sums >> active
    taken = active + (fit & -fit).bit_length() - 1
    return max(0, spares - (sum(pods) - taken))


def _settings(
    rows: list[NodeRoom], active: int, spares: int, most: int, flow: Flow | None
) -> Iterator[tuple[list[NodeState], list[NodeState], int]]:
    """Every way to seat one group, those with the fewest spares beside it first; the rows hold what is then left."""
    free = sorted((row for row in rows if row.pods), key=lambda row: (row.pods, row.node.rank))
    pods = [row.pods for row in free]
    for beside in range(_beside(pods, active, spares), min(most, spares) + 1):
        for working in _fills(free, active, sum(pods) - spares + beside, flow):
            begun = [row for row, _ in working]
            others = [row for row in free if row not in begun]
            for off in _fills(others, spares - beside, None, flow):
                for on in _fills([row for row in begun if row.pods], beside, None, flow):
                    yield _nodes(working), _nodes([*off, *on]), beside


def _nodes(taken: list[tuple[NodeRoom, int]]) -> list[NodeState]:
    return [row.node for row, pods in taken for _ in range(pods)]


def _fills(
    rows: list[NodeRoom], pods: int, most: int | None, flow: Flow | None
) -> Iterator[list[tuple[NodeRoom, int]]]:
    """Every way to put so many pods on some nodes, the first ones filled first; `most`: the nodes hold no more than that in all."""
    totals, sums = [0], [1]
    for row in reversed(rows):
        totals.append(totals[-1] + row.pods)
        sums.append(sums[-1] | sums[-1] << row.pods)
    totals.reverse()
    sums.reverse()
    taken: list[tuple[NodeRoom, int]] = []

    def fill(first: int, left: int, most: int | None) -> Iterator[list[tuple[NodeRoom, int]]]:
        if not left:
            yield list(taken)
            return
        for place in range(first, len(rows)):
            if totals[place] < left:
                return
            row, room = rows[place], rows[place].pods
            count = min(room, left)
            if most is not None and not _reaches(sums[place + 1], left - count, most - room):
                continue
            saved = None if flow is None or row.arc < 0 else list(flow.left)
            if flow is not None and saved is not None:
                count = flow.fix(row.arc, count)
            for here in range(count, 0, -1):
                if flow is not None and saved is not None and here < count:
                    flow.left[:] = saved
                    flow.fix(row.arc, here)
                row.pods = room - here
                taken.append((row, here))
                yield from fill(place + 1, left - here, None if most is None else most - room)
                taken.pop()
                row.pods = room
            if flow is not None and saved is not None:
                flow.left[:] = saved

    return fill(0, pods, most)


def _reaches(sums: int, least: int, most: int) -> bool:
    """Whether one of some sums, a bit each, lies between two bounds."""
    return most >= least and sums >> least & ((1 << (most - least + 1)) - 1) != 0
