"""What the statuses of our kinds hold: the controller writes them, everybody reads them (SEMANTICS §2).

The values come from `fairlease.report.views`; these records are the contract from which the CRDs are made. An API server drops
what a schema does not know without a word, so a test compares the two.
"""

from __future__ import annotations

from fairlease.model.record import GpuHours, Instant, Record
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase


class Condition(Record, frozen=True, kw_only=True):
    """One thing that holds, does not hold, or is not known."""

    type: str
    """What it is about."""
    status: str
    """True, False or Unknown."""
    reason: str
    """Why, in one word; docs/reference lists them all."""
    message: str = ""
    """Why, in a sentence."""
    last_transition_time: Instant
    """Since when."""
    observed_generation: int | None = None
    """The generation of the spec that this is about."""


class Width(Record, frozen=True, kw_only=True):
    """How wide a run is. Spares do not count."""

    min: int
    """The least width at which it goes on."""
    max: int
    """The greatest width it can use."""
    desired: int
    """The width it wants."""
    allocated: int
    """GPUs that it has."""
    pending: int = 0
    """GPUs that are on their way."""
    leaving: int = 0
    """GPUs that its work was asked to leave and has not left."""


class Money(Record, frozen=True, kw_only=True):
    """What one class of money pays."""

    gpus: int = 0
    """GPUs that it pays for now."""
    gpu_hours: GpuHours = 0
    """GPU-hours that it has paid."""


class Sponsor(Record, frozen=True, kw_only=True):
    """What one sponsor pays."""

    owner: str
    """Who."""
    gpus: int = 0
    """GPUs that it pays for now."""
    gpu_hours: GpuHours = 0
    """GPU-hours that it has paid."""


class RunFunding(Record, frozen=True, kw_only=True):
    """Who pays, each GPU in exactly one class."""

    owned: Money = Money()
    """The owner's own money."""
    shared: Money = Money()
    """The family's money."""
    borrowed: Money = Money()
    """Sponsors' money."""
    overdrawn: Money = Money()
    """Nobody's: the envelope no longer covers it."""
    sponsors: tuple[Sponsor, ...] = ()
    """Who lent."""


class SpareGroup(Record, frozen=True, kw_only=True):
    """The spares of one group."""

    group: int
    """The number of the group."""
    wanted: int
    """Spare GPUs that it should have."""
    held: int
    """Spare GPUs that it has."""
    ready: int | None = None
    """Spare GPUs that could take over now."""


class Spares(Record, frozen=True, kw_only=True):
    """GPUs that stand ready."""

    gpus: int = 0
    """Spare GPUs that are held now."""
    ready: int | None = None
    """Spare GPUs that could take over now."""
    gpu_hours: GpuHours = 0
    """GPU-hours that spares have cost."""
    groups: tuple[SpareGroup, ...] = ()
    """The same, by group."""


class RunStatus(Record, frozen=True, kw_only=True):
    """How a run stands."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    phase: Phase | None = None
    """Pending, Running, Completed or Failed."""
    reason: str | None = None
    """How it ended, in one word."""
    message: str | None = None
    """Why it is as it is, in a sentence."""
    attempt: int | None = None
    """Which attempt, from 1."""
    conditions: tuple[Condition, ...] = ()
    """Funded, Placed, Running, Completed, Failed. The reason of the first that is not True is the cause of waiting."""
    width: Width | None = None
    """How wide it is, in GPUs."""
    funding: RunFunding | None = None
    """Who pays."""
    spares: Spares | None = None
    """GPUs that stand ready to take over."""
    leases: tuple[str, ...] = ()
    """Its open leases, by name."""
    pending_reservation: str | None = None
    """The Reservation in force."""
    earliest_start: Instant | None = None
    """When it will start, as far as is known."""
    submitted_at: Instant | None = None
    """When it was asked for."""
    started_at: Instant | None = None
    """When it first started."""
    deadline: Instant | None = None
    """When its maxDuration ends it."""
    ended_at: Instant | None = None
    """When it ended."""


class EnvelopeUsage(Record, frozen=True, kw_only=True):
    """What one envelope pays for."""

    name: str
    """The envelope."""
    flavor: str = ""
    """Its flavor."""
    owned_gpus: int = 0
    """GPUs of the owner's own runs."""
    shared_gpus: int = 0
    """GPUs of the family's runs."""
    borrowed_gpus: int = 0
    """GPUs of borrowers' runs."""
    overdrawn_gpus: int = 0
    """GPUs that it no longer covers."""
    spare_gpus: int = 0
    """GPUs that stand ready."""
    opportunistic_gpus: int = 0
    """GPUs of opportunistic work, which take no concurrency."""
    consumed_gpu_hours: GpuHours = 0
    """GPU-hours used up within the window."""
    committed_gpu_hours: GpuHours = 0
    """GPU-hours that running work may still use, at worst."""


class Headroom(Record, frozen=True, kw_only=True):
    """What is left."""

    name: str
    """The envelope, or the aggregate cap."""
    concurrency: int | None = None
    """GPUs that it could still pay for now; none where it has no such limit."""
    gpu_hours: GpuHours | None = None
    """GPU-hours left: the limit, less what is consumed and committed; none where it has no such limit."""


class BudgetStatus(Record, frozen=True, kw_only=True):
    """What a Budget has spent, promised and left."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    conditions: tuple[Condition, ...] = ()
    """Ready: it can be spent (its parents form no cycle). Covered: no running work is overdrawn. Of a Budget that
    lends, LendingRoom: no lending cap is nine tenths full. ReciprocalLoans: what it lends comes back to it as loans."""
    usage: tuple[EnvelopeUsage, ...] = ()
    """What its envelopes pay for."""
    headroom: tuple[Headroom, ...] = ()
    """What its envelopes have left."""
    aggregate_headroom: tuple[Headroom, ...] = ()
    """What its aggregate caps have left."""
    updated_at: Instant | None = None
    """As of when."""


class ForecastStatus(Record, frozen=True, kw_only=True):
    """When it will start, and what would help."""

    deficit_gpus: int | None = None
    """GPUs that are lacking now."""
    scope: str | None = None
    """Where they are lacking: the flavor, and the labels of nodes."""
    remedies: tuple[str, ...] = ()
    """What would start it sooner."""
    confidence: float | None = None
    """The share of starts lately that came between P10 and P90; none while hardly any was forecast."""
    p10: Instant | None = None
    """One start in ten comes before this."""
    p50: Instant | None = None
    """Half of the starts come before this."""
    p90: Instant | None = None
    """Nine starts in ten come before this."""
    as_of: Instant | None = None
    """When the forecast was made."""
    source: str | None = None
    """What it rests on."""
    why: str | None = None
    """What the run waits for, or why the forecast moved."""


class ReservationStatus(Record, frozen=True, kw_only=True):
    """Where a reservation is in its life."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    state: ReservationState | None = None
    """Pending, Active or Released; or Blocked, Canceled, Failed, Superseded."""
    reason: str | None = None
    """Why, in one word."""
    message: str | None = None
    """Why, in a sentence."""
    forecast: ForecastStatus | None = None
    """When it will start, and what would help."""
    countdown_seconds: int | None = None
    """Seconds until it falls due."""
