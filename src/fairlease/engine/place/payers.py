"""Payers: who pays for how many pods on which nodes, each as early in the order of cover as can be (SEMANTICS §3).

Nodes that the same payers reach are of one kind, and pods on them are alike. A `Demand` is a number of pods that go on nodes of
some kinds, of which each has room for so many. Payers have limits, some of them shared: an envelope that is asked for two areas,
an aggregate cap, the run's `maxBorrowGPUs`. Limits that nest make it a flow in whole pods, from the limits over the payers to the
kinds. `Payers.richest` makes it the lexicographically greatest: it raises what the first payer pays as far as the demands can still
be met, fixes that, then the second, and so on. Limits that overlap without nesting are counted as payers are fixed, with a step
back where a later payer then cannot pay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.cover.envelopes import Offer, Spending

Kind = int
"""The payers that reach a node, a bit each by their place in the order of cover."""

SOURCE, SINK = 0, 1
"""Where a flow begins and ends."""

STEPS_BACK_MAX = 200
"""Values tried in vain for payers under overlapping limits, for one set of demands."""


class Demand(NamedTuple):
    """So many pods on nodes of some kinds, with the room that each kind has."""

    pods: int
    rooms: dict[Kind, int]


class Flow:
    """A flow in whole units: `left[arc]` is what more an arc could carry, and `left[arc ^ 1]` what it carries, free to go back."""

    def __init__(self) -> None:
        self.head: list[int] = []
        self.left: list[int] = []
        self.out: list[list[int]] = []

    def node(self) -> int:
        """One more node."""
        self.out.append([])
        return len(self.out) - 1

    def arc(self, tail: int, head: int, room: int) -> int:
        """One more arc, with its way back."""
        self.head += (head, tail)
        self.left += (room, 0)
        arc = len(self.head) - 2
        self.out[tail].append(arc)
        self.out[head].append(arc + 1)
        return arc

    def push(self, start: int, end: int, most: int) -> int:
        """Send up to `most` more units from one node to another, by shortest paths."""
        head, left, out, sent = self.head, self.left, self.out, 0
        while sent < most:
            came = {start: -1}
            queue = [start]
            for node in queue:
                for arc in out[node]:
                    if left[arc] and head[arc] not in came:
                        came[head[arc]] = arc
                        queue.append(head[arc])
                if end in came:
                    break
            if end not in came:
                break
            path, node = [], end
            while node != start:
                path.append(came[node])
                node = head[came[node] ^ 1]
            units = min(most - sent, *(left[arc] for arc in path))
            for arc in path:
                left[arc] -= units
                left[arc ^ 1] += units
            sent += units
        return sent

    def turn(self, arc: int, most: int) -> int:
        """Send up to `most` more units through one arc and back to its tail by other ways, so that the whole stays as large."""
        back = self.left[arc ^ 1]
        most = min(most, self.left[arc])
        self.left[arc ^ 1] = 0
        sent = self.push(self.head[arc], self.head[arc ^ 1], most) if most > 0 else 0
        self.left[arc] -= sent
        self.left[arc ^ 1] = back + sent
        return sent

    def fix(self, arc: int, most: int) -> int:
        """Up to `most` units of what an arc carries, or can be made to carry, that will not go back any more; how many."""
        more = most - self.left[arc ^ 1]
        if more > 0:
            most = self.left[arc ^ 1] + self.turn(arc, more)
        self.left[arc ^ 1] -= most
        return most


class Payment:
    """Demands that are met: what each payer pays for (`pods`), and how kinds of nodes share in it."""

    def __init__(
        self, flow: Flow, pods: list[int], kinds: dict[tuple[int, Kind], int], ways: list[tuple[int, Kind, int]]
    ) -> None:
        self.flow = flow
        self.pods = tuple(pods)
        self.kinds = kinds
        self._ways = ways

    def payers(self) -> dict[Kind, list[int]]:
        """The payers of the pods on each kind of node, the last in the order of cover first, to be popped from the end."""
        found: dict[Kind, list[int]] = {}
        for payer, kind, arc in self._ways:
            found.setdefault(kind, []).extend([payer] * self.flow.left[arc ^ 1])
        for row in found.values():
            row.sort(reverse=True)
        return found


class Payers:
    """Those who would pay for a run, in the order of cover, with the limits that bind for so many `pods`."""

    def __init__(self, spending: Spending, offers: list[Offer], pods: int) -> None:
        self.offers = offers
        self.complete = True
        self._most = [min(spending.room(offer)[0], pods) for offer in offers]
        shared: dict[int, tuple[int, int]] = {}
        for place, offer in enumerate(offers):
            for limit in spending.limits(offer):
                shared[id(limit)] = (shared.get(id(limit), (0, 0))[0] | 1 << place, limit.left)
        binding: dict[int, int] = {}
        for members, left in shared.values():
            total = sum(self._most[place] for place in _places(members))
            if members & (members - 1) and left < min(total, pods):
                binding[members] = min(left, binding.get(members, left))
        self.shared = tuple(binding.items())
        self._nested: list[tuple[int, int]] = []
        self._loose: list[tuple[int, int]] = []
        for members, left in sorted(binding.items(), key=lambda each: (-each[0].bit_count(), each)):
            fits = all(members & other in (0, members) for other, _ in self._nested)
            (self._nested if fits else self._loose).append((members, left))

    def kind(self, bit: int) -> Kind:
        """Which payers reach a node."""
        found = 0
        for place, offer in enumerate(self.offers):
            if offer.mask & bit:
                found |= 1 << place
        return found

    def affordable(self, pods: int) -> int:
        """For how many of `pods` pods there are payers, wherever they may lie."""
        everywhere = (1 << len(self.offers)) - 1
        low, high = 0, pods
        while low < high:
            middle = (low + high + 1) // 2
            met = self.richest([Demand(middle, {everywhere: middle})]) is not None
            low, high = (middle, high) if met else (low, middle - 1)
        return low

    def most(self, demand: Demand) -> tuple[int, ...]:
        """What each would pay for as many pods of a demand as can be, or more where limits overlap without nesting."""
        flow, arcs, _, _ = self._network([demand])
        flow.push(SOURCE, SINK, demand.pods)
        return tuple(flow.left[arc ^ 1] for arc in arcs)

    def richest(self, demands: list[Demand]) -> Payment | None:
        """The payment of all demands that is the greatest, payer by payer; None where they cannot be met."""
        flow, arcs, kinds, ways = self._network(demands)
        pods = sum(demand.pods for demand in demands)
        if flow.push(SOURCE, SINK, pods) < pods:
            return None
        self._tries = STEPS_BACK_MAX
        paid = self._raise(flow, arcs, list(self._most), [])
        return None if paid is None else Payment(flow, paid, kinds, ways)

    def _network(
        self, demands: list[Demand]
    ) -> tuple[Flow, list[int], dict[tuple[int, Kind], int], list[tuple[int, Kind, int]]]:
        """The arcs from limits to payers, of each payer, of each kind of node in each demand, and from payers to those."""
        flow = Flow()
        source, sink = flow.node(), flow.node()
        over = [source] * len(self.offers)
        for members, left in self._nested:  # the widest first, so that each hangs below the one it lies in
            node = flow.node()
            flow.arc(over[(members & -members).bit_length() - 1], node, left)
            for place in _places(members):
                over[place] = node
        nodes = [flow.node() for _ in self.offers]
        arcs = [flow.arc(*each) for each in zip(over, nodes, self._most, strict=True)]
        kinds: dict[tuple[int, Kind], int] = {}
        ways: list[tuple[int, Kind, int]] = []
        for number, demand in enumerate(demands):
            goal = flow.node()
            flow.arc(goal, sink, demand.pods)
            for kind, room in demand.rooms.items():
                spot = flow.node()
                kinds[number, kind] = flow.arc(spot, goal, room)
                ways += [(place, kind, flow.arc(nodes[place], spot, room)) for place in _places(kind)]
        return flow, arcs, kinds, ways

    def _raise(self, flow: Flow, arcs: list[int], most: list[int], paid: list[int]) -> list[int] | None:
        """Let each payer from here on pay for as much as it can, and fix that."""
        left = flow.left
        for place in range(len(paid), len(arcs)):
            arc = arcs[place]
            flow.turn(arc, left[arc])
            pods = left[arc ^ 1]
            if any(members >> place & 1 for members, _ in self._loose):
                return self._step(flow, arcs, most, [*paid, pods])
            left[arc] = left[arc ^ 1] = 0
            paid.append(pods)
        return paid

    def _step(self, flow: Flow, arcs: list[int], most: list[int], paid: list[int]) -> list[int] | None:
        """Fix what a payer under overlapping limits pays: as much as leaves the others enough."""
        place, pods, saved = len(paid) - 1, paid[-1], list(flow.left)
        for value in range(pods, -1, -1):
            if self._tries == 0:
                self.complete = False
                return None
            self._tries -= 1
            if not self._lower(flow, arcs[place], value):
                return None
            flow.left[arcs[place]] = flow.left[arcs[place] ^ 1] = 0
            bounds = self._bounds([*paid[:-1], value], most)
            if all(self._bound(flow, arc, *each) for arc, each in zip(arcs[place + 1 :], bounds, strict=True)):
                lower = most[: place + 1] + [now for _, now in bounds]
                found = self._raise(flow, arcs, lower, [*paid[:-1], value])
                if found is not None:
                    return found
            flow.left[:] = saved
        return None

    def _bounds(self, paid: list[int], most: list[int]) -> list[tuple[int, int]]:
        """What later payers could pay at most, before and now that so much is `paid` under the overlapping limits."""
        found = []
        for place in range(len(paid), len(most)):
            now = most[place]
            for members, left in self._loose:
                if members >> place & 1:
                    now = min(now, left - sum(paid[each] for each in _places(members) if each < len(paid)))
            found.append((most[place], now))
        return found

    @staticmethod
    def _lower(flow: Flow, arc: int, value: int) -> bool:
        """Have an arc carry no more than `value`, others the rest; False where they cannot."""
        over = flow.left[arc ^ 1] - value
        return value >= 0 and (over <= 0 or flow.turn(arc ^ 1, over) == over)

    def _bound(self, flow: Flow, arc: int, before: int, now: int) -> bool:
        if now == before:
            return True
        if not self._lower(flow, arc, now):
            return False
        flow.left[arc] -= before - now
        return True


def _places(members: int) -> Iterator[int]:
    """The places whose bits are set, the lowest first."""
    while members:
        low = members & -members
        members ^= low
        yield low.bit_length() - 1
