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
    gpus: dict[str, tuple[int, ...]]
    role: Role


class Interval(Record, frozen=True, kw_only=True):
    """When the lease opened; its end is status, because it is not known before."""

    start: Instant


class LeaseSpec(Record, frozen=True, kw_only=True):
    """Immutable: one pod's worth of GPUs, one payer, one role."""

    owner: str
    run_ref: RunRef
    attempt: int
    comp_path: tuple[str, ...]
    slice: LeaseSlice
    interval: Interval
    paid_by_budget: str
    paid_by_envelope: str
    reason: Reason


class LeaseStatus(Record, frozen=True, kw_only=True):
    """Written once, when the lease closes. `closure_reason` may carry a seed: `RandomPreempt(<seed>)`."""

    closed: bool
    end_time: Instant | None = None
    closure_reason: str | None = None
