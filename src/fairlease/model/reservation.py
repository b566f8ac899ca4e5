"""Reservation: a run's place in time (SEMANTICS §6), and ResolverOutcome: the record of one resolution (SEMANTICS §7)."""

from __future__ import annotations

import enum

from fairlease.model.record import Instant, Key, Reason, Record


class ReservationState(enum.Enum):
    """Where a reservation is in its life."""

    PENDING = "Pending"
    ACTIVE = "Active"
    RELEASED = "Released"
    BLOCKED = "Blocked"
    CANCELED = "Canceled"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"


class RunRef(Record, frozen=True, kw_only=True):
    """Which run."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""


class Slice(Record, frozen=True, kw_only=True):
    """The GPUs a reservation means to use."""

    domain: str
    """The fabric domain."""
    nodes: tuple[str, ...]
    """The nodes."""


class ReservationSpec(Record, frozen=True, kw_only=True):
    """Immutable: a move writes a new Reservation."""

    run_ref: RunRef
    """The run that waits."""
    intended_slice: Slice
    """The GPUs that it means to use: a lien, which later runs may use only if they surely end in time."""
    paying_envelopes: tuple[str, ...]
    """Who is going to pay: namespace/budget/envelope."""
    earliest_start: Instant
    """When it falls due. It starts sooner whenever it fits sooner."""


class Scope(Record, frozen=True, kw_only=True):
    """Where a claim may cut."""

    flavor: str
    """The flavor of GPU."""
    location: dict[str, str] = {}
    """Node labels."""


class Cut(Record, frozen=True, kw_only=True):
    """One victim: which leases of which run are closed, and why."""

    run: Key
    """The run, as namespace/name."""
    leases: tuple[str, ...]
    """Its leases that are closed."""
    reason: Reason
    """Why these."""
    gpus: int
    """GPUs that become free."""


class OutcomeSpec(Record, frozen=True, kw_only=True):
    """Why others' work was cut, for whom, out of which candidates. `previous` chains the outcomes to each other."""

    claim: Key
    """The run that asked, as namespace/name."""
    at: Instant
    """When it was decided."""
    scope: Scope
    """Where it might cut."""
    deficit_gpus: int
    """GPUs that were lacking."""
    conflict_set: tuple[Key, ...]
    """The runs that were candidates, as namespace/name."""
    actions: tuple[Cut, ...]
    """What was cut."""
    previous: str
    """The digest of the outcome before this one."""
