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
    name: str


class Slice(Record, frozen=True, kw_only=True):
    """The GPUs a reservation means to use."""

    domain: str
    nodes: tuple[str, ...]


class ReservationSpec(Record, frozen=True, kw_only=True):
    """Immutable: a move writes a new Reservation."""

    run_ref: RunRef
    intended_slice: Slice
    paying_envelopes: tuple[str, ...]
    earliest_start: Instant


class Scope(Record, frozen=True, kw_only=True):
    """Where a claim may cut."""

    flavor: str
    location: dict[str, str] = {}


class Cut(Record, frozen=True, kw_only=True):
    """One victim: which leases of which run are closed, and why."""

    run: Key
    leases: tuple[str, ...]
    reason: Reason
    gpus: int


class OutcomeSpec(Record, frozen=True, kw_only=True):
    """Why others' work was cut, for whom, out of which candidates. `previous` chains the outcomes to each other."""

    claim: Key
    at: Instant
    scope: Scope
    deficit_gpus: int
    conflict_set: tuple[Key, ...]
    actions: tuple[Cut, ...]
    previous: str
