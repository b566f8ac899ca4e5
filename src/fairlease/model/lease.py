"""Lease: one pod's worth of GPUs on one node, one payer, one role; opened once, closed once, never changed (SEMANTICS §2)."""

from __future__ import annotations

import enum

from fairlease.model.record import Key, Reason, Record


class Role(enum.Enum):
    """What a lease's GPUs are for."""

    ACTIVE = "Active"
    SPARE = "Spare"
    BORROWED = "Borrowed"


class Fund(enum.Enum):
    """In what relation the payer stands to the run; settled when the lease opens."""

    OWNED = "owned"
    SHARED = "shared"
    BORROWED = "borrowed"


class Payer(Record, frozen=True, kw_only=True):
    """Whose money: an envelope, its owner, and the relation to the run."""

    budget: Key
    envelope: str
    owner: str
    fund: Fund


class Lease(Record, frozen=True, kw_only=True):
    """An open lease as the ledger's state knows it. `serial` is the order of opening over the whole ledger."""

    name: str
    run: Key
    owner: str
    attempt: int
    group: int
    rank: int
    node: str
    slots: tuple[int, ...]
    role: Role
    start: int
    payer: Payer
    reason: Reason
    serial: int
    opportunistic: bool = False

    @property
    def gpus(self) -> int:
        """How many GPUs it holds."""
        return len(self.slots)
