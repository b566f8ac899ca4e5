"""Search: place groups by trying, where placing them one by one in order of preference did not work out.

Needed only where money reaches different nodes: an early group can then take the nodes, or the money, that only a later one could
have used. Groups are tried in every domain and on every mix of kinds of nodes (a kind: what the same payers reach), and money is
moved between payers as needed. It is asked only when GPUs alone and money alone would do, and it gives up after `TRIES_MAX`
tries, so that no request can hold up the others; within that bound it finds a placement whenever there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.place.assignment import Kind, Payment
    from fairlease.engine.place.packing import Batch, Packer
    from fairlease.ledger.state.capacity import Domain, NodeState

TRIES_MAX = 2_000
"""Placements of one batch that are tried in all: some tens of milliseconds."""

Mix = tuple[tuple["Kind", int], ...]
"""How many pods on nodes of which kind."""


class Search:
    """One search, over a packer and a payment that hold nothing yet."""

    def __init__(self, packer: Packer, payment: Payment, batches: list[Batch]) -> None:
        self.packer = packer
        self.payment = payment
        self.batches = batches
        self.tries = 0

    def find(self) -> bool:
        """Whether every batch found its place; then packer and payment hold it."""
        ways = [self._ways(0, 0)]
        while ways:
            number = next(ways[-1], None)
            if number is None:
                ways.pop()
            elif len(ways) == len(self.batches):
                return True
            else:
                ways.append(self._ways(len(ways), number))
        return False

    def _ways(self, index: int, begin: int) -> Iterator[int]:
        """Place one batch in each way, told by its domain's number; one like its predecessor need not try what that passed over."""
        batch = self.batches[index]
        pods = _pods(batch)
        alike = index > 0 and _pods(self.batches[index - 1]) == pods
        for number, domain in enumerate(sorted(self.packer.pool.domains.values(), key=lambda each: each.order)):
            if alike and number < begin:
                continue
            for mix in self._mixes(domain, pods):
                self.tries += 1
                if self.tries > TRIES_MAX:
                    return
                saved, length = self.payment.save(), len(self.packer.spots)
                if self._seat(domain, mix, batch):
                    yield number
                self.payment.restore(saved)
                self.packer.drop(length)

    def _mixes(self, domain: Domain, pods: int) -> Iterator[Mix]:
        """Every way to spread `pods` over the kinds of nodes of a domain, the earliest payers' nodes first."""
        room: dict[Kind, int] = {}
        for free, node in self.packer.rooms(domain):
            kind = self.payment.kind(node)
            room[kind] = room.get(kind, 0) + free // self.packer.size
        yield from _spread(sorted(room.items()), pods)

    def _seat(self, domain: Domain, mix: Mix, batch: Batch) -> bool:
        """Take the best-fitting nodes of each kind, and pay for all."""
        wanted = dict(mix)
        seats: list[NodeState] = []
        for free, node in self.packer.rooms(domain):
            kind = self.payment.kind(node)
            count = min(wanted.get(kind, 0), free // self.packer.size)
            wanted[kind] = wanted.get(kind, 0) - count
            seats += [node] * count
        if not all(self.payment.pay(node, len(self.payment.offers)) for node in seats):
            return False
        for group, (active, spares) in batch:
            used = {node.node.name for node in seats[:active]}
            for node in seats[:active]:
                self.packer.take(group, node, spare=False)
            rest = sorted(seats[active:], key=lambda node: node.node.name in used)
            for node in rest[:spares]:
                self.packer.take(group, node, spare=True)
            seats = rest[spares:]
        return True


def _pods(batch: Batch) -> int:
    return sum(active + spares for _, (active, spares) in batch)


def _spread(room: list[tuple[Kind, int]], pods: int) -> Iterator[Mix]:
    if not room:
        if pods == 0:
            yield ()
        return
    (kind, most), rest = room[0], room[1:]
    for count in range(min(most, pods), -1, -1):
        for others in _spread(rest, pods - count):
            yield ((kind, count), *others)
