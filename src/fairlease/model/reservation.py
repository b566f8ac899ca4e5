"""Reservation: a run's place in time (SEMANTICS §6), and ResolverOutcome: the record of one resolution (SEMANTICS §7)."""

from __future__ import annotations

import enum

from fairlease.model.record import Instant, Key, Reason, Record, key, split


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

    @property
    def key(self) -> Key:
        """The run's one key."""
        return key(self.name, self.namespace)

    @classmethod
    def of(cls, run: Key) -> RunRef:
        """The reference to a run."""
        namespace, name = split(run)
        return cls(namespace=namespace, name=name)


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


class Shortage(Record, frozen=True, kw_only=True):
    """How many GPUs one group of the claim lacked."""

    group: int
    gpus: int


class Token(Record, frozen=True, kw_only=True):
    """What can be drawn: a rigid run, or a malleable run's minimum; it ends whole."""

    owner: str
    run: Key
    attempt: int
    gpus: int


class Draw(Record, frozen=True, kw_only=True):
    """One token that was drawn; `given_back` where the claim could be served without it after all."""

    owner: str
    run: Key
    given_back: bool = False


class Lottery(Record, frozen=True, kw_only=True):
    """All that is needed to draw again: docs/design/oversubscription.md says how."""

    tokens: tuple[Token, ...]
    conflict_digest: str
    seed: str
    draws: tuple[Draw, ...]
    beacon: str = ""


class ByHand(Record, frozen=True, kw_only=True):
    """What an administrator asked to be freed, where no run claims it: so many GPUs, in pods and groups like a run's."""

    by: str
    """The administrator."""
    reason: str = ""
    """Why, in the administrator's words."""
    gpus: int
    """GPUs that were to be free."""
    gpus_per_pod: int = 1
    """So many of them on one node at a time."""
    group_gpus: int | None = None
    """So many of them in one fabric domain at a time."""


class OutcomeSpec(Record, frozen=True, kw_only=True):
    """Why others' work was cut, for whom (`claim`, or `by_hand`), out of which candidates. `previous` chains outcomes."""

    claim: RunRef | None = None
    """The run that asked; none where it was asked for by hand."""
    by_hand: ByHand | None = None
    """What an administrator asked for; none where a run did."""
    reservation: str = ""
    at: Instant
    scope: Scope
    deficit_gpus: int
    deficits: tuple[Shortage, ...] = ()
    conflict_set: tuple[Key, ...]
    lottery: Lottery | None = None
    actions: tuple[Cut, ...]
    previous: str
