"""One node: which of its slots are free, who holds the others, and what liens lie on them.

It keeps its own books and knows nobody else's; what its domain and its pool add up (`ledger.capacity`) follows from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.ledger.state.slots import bits_of, natural
from fairlease.model.lease import Role
from fairlease.model.node import Node
from fairlease.reason import Reason

# In Python 3.11 a member of an enum is found far more slowly through its class than as a global.
ACTIVE, SPARE = Role.ACTIVE, Role.SPARE

if TYPE_CHECKING:
    from fairlease.ledger.state.capacity import Domain
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key


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
