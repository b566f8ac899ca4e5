"""Reservation: a run's place in time (SEMANTICS §6), and ResolverOutcome: the record of one resolution (SEMANTICS §7)."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from fairlease.model.record import Instant, Key, Reason, Record, key, short, split

if TYPE_CHECKING:
    from fairlease.model.run import RunSpec

NO_OUTCOME = "0" * 64
"""What the first ResolverOutcome holds as the digest of the one before it."""


class ReservationState(enum.Enum):
    """Where a reservation is in its life."""

    PENDING = "Pending"
    ACTIVE = "Active"
    RELEASED = "Released"
    BLOCKED = "Blocked"
    CANCELED = "Canceled"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"


IN_FORCE = (ReservationState.PENDING, ReservationState.ACTIVE, ReservationState.BLOCKED)
"""Of each run at most one is so; all others are history."""


def reservation_name(run: Key, number: int) -> str:
    """The name of a run's first reservation, of its second, and so on."""
    return split(run)[1] + "-reservation" + (f"-{number}" if number > 1 else "")


class RunRef(Record, frozen=True, kw_only=True):
    """Which run."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""

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

    @classmethod
    def of(cls, spec: RunSpec) -> Scope:
        """Where a run looks for GPUs."""
        return cls(flavor=spec.resources.gpu_type, location=spec.locality.location)

    @property
    def words(self) -> str:
        """As people read it."""
        place = ",".join(f"{name}={value}" for name, value in sorted(self.location.items()))
        return f"{self.flavor} in {place}" if place else self.flavor


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


class Shortage(Record, frozen=True, kw_only=True):
    """How many GPUs one group of the claim lacked."""

    group: int
    """The group's number."""
    gpus: int
    """GPUs it lacked."""


class Token(Record, frozen=True, kw_only=True):
    """What can be drawn: a rigid run, or a malleable run's minimum; it ends whole."""

    owner: str
    """The run's owner; one is drawn before the run is."""
    run: Key
    """The run, as namespace/name."""
    attempt: int
    """Its attempt at that time."""
    gpus: int
    """GPUs it held, spares among them."""


class Draw(Record, frozen=True, kw_only=True):
    """One token that was drawn; `given_back` where the claim could be served without it after all."""

    owner: str
    """The owner that was drawn."""
    run: Key
    """That owner's run that was drawn, as namespace/name."""
    given_back: bool = False
    """Whether it proved unneeded and was left alone."""


class Lottery(Record, frozen=True, kw_only=True):
    """All that is needed to draw again: docs/design/oversubscription.md says how."""

    tokens: tuple[Token, ...]
    """All that could be drawn, by owner and run."""
    conflict_digest: str
    """SHA-256 of the tokens."""
    seed: str
    """SHA-256 of the reservation, the time, the tokens' digest, the previous outcome's digest and the beacon."""
    draws: tuple[Draw, ...]
    """Who was drawn, in order."""
    beacon: str = ""
    """The public value that entered the seed, where one is configured."""


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
    request: str = ""
    """The name of the request, where there was one: it is carried out once."""


class OutcomeSpec(Record, frozen=True, kw_only=True):
    """Why others' work was cut, for whom (`claim`, or `by_hand`), out of which candidates. `previous` chains outcomes."""

    claim: RunRef | None = None
    """The run that asked; none where it was asked for by hand."""
    by_hand: ByHand | None = None
    """What an administrator asked for; none where a run did."""
    reservation: str = ""
    """The reservation that was due, as namespace/name; empty where none was."""
    at: Instant
    """When it was decided."""
    scope: Scope
    """Where it might cut."""
    deficit_gpus: int
    """GPUs that were lacking."""
    deficits: tuple[Shortage, ...] = ()
    """The same, group by group."""
    conflict_set: tuple[Key, ...]
    """The runs that were candidates, as namespace/name."""
    lottery: Lottery | None = None
    """The draw, where there was one."""
    actions: tuple[Cut, ...]
    """What was cut."""
    previous: str
    """The digest of the outcome before this one."""

    @property
    def claimant(self) -> str:
        """For whom others were preempted: a run, or an administrator."""
        if self.claim is not None:
            return short(self.claim.key)
        assert self.by_hand is not None, "nobody is preempted for nobody"
        why = f", {self.by_hand.reason}" if self.by_hand.reason else ""
        return f"an administrator ({self.by_hand.by}{why})"
