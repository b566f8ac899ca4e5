"""Lease as the API shows it (SEMANTICS §2): what tenants and auditors read.

It is apart from `fairlease.model.lease`, which is shaped for the ledger's arithmetic: a lease there knows its rank and
the kind of its money, while this one is the contract with everybody outside.
"""

from __future__ import annotations

from fairlease.model.lease import Role
from fairlease.model.record import Instant, Reason, Record
from fairlease.model.reservation import RunRef


class LeaseSlice(Record, frozen=True, kw_only=True):
    """Which slots of which node, and what for."""

    nodes: tuple[str, ...]
    """The node."""
    gpus: dict[str, tuple[int, ...]]
    """The slots on it: the numbers of its GPUs, by node."""
    role: Role
    """Active: it works. Spare: it stands ready. Borrowed: opportunistic work on a spare."""


class Interval(Record, frozen=True, kw_only=True):
    """When the lease opened; its end is status, because it is not known before."""

    start: Instant
    """When it opened."""


class LeaseSpec(Record, frozen=True, kw_only=True):
    """Immutable: one pod's worth of GPUs, one payer, one role."""

    owner: str
    """The owner of the run."""
    run_ref: RunRef
    """The run."""
    attempt: int
    """Which attempt of the run, from 1."""
    comp_path: tuple[str, ...]
    """Its place in the run, such as ["SHARD[2]", "D"]: group 2."""
    slice: LeaseSlice
    """Which slots of which node, and what for."""
    interval: Interval
    """When it opened."""
    paid_by_budget: str
    """Who pays: the Budget, as namespace/name."""
    paid_by_envelope: str
    """Who pays: the envelope of that Budget."""
    reason: Reason
    """Why it opened."""


class LeaseLeaving(Record, frozen=True, kw_only=True):
    """The work on a lease was asked to leave; the lease closes when its GPUs are free."""

    since: Instant
    """When it was asked to."""
    reason: Reason
    """Why; the lease closes for that."""


class LeaseStatus(Record, frozen=True, kw_only=True):
    """Final when the lease has closed. `closure_reason` may carry a seed: `RandomPreempt(<seed>)`."""

    closed: bool
    """Whether it is over."""
    leaving: LeaseLeaving | None = None
    """While it is open: that its work was asked to leave."""
    end_time: Instant | None = None
    """When it ended."""
    closure_reason: str | None = None
    """Why it ended, such as Completed, NodeFailure or RandomPreempt(<seed>)."""
