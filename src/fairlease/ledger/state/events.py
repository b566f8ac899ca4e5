"""What can happen: the events of the ledger. State changes by these and by nothing else.

An event is a fact with no time of its own: all events of an entry happened at the entry's time. Records are compact, because a
million leases must replay in seconds: a lease stands as a short array, and payers are named once per event.
"""

from __future__ import annotations

import enum
import hashlib

import msgspec

from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.lease import Payer, Role
from fairlease.model.node import Node
from fairlease.model.record import Key, Reason, Record, api_name
from fairlease.model.reservation import OutcomeSpec, ReservationState
from fairlease.model.run import Funding, Phase, RunSpec
from fairlease.model.writing import write


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename=api_name,
    tag=True,
    tag_field="event",
    gc=False,
):
    """Something that happened."""


class Configured(Event, frozen=True, kw_only=True):
    """The scheduler runs under these settings from now on."""

    config: Config


class NodeSet(Event, frozen=True, kw_only=True):
    """A node was seen, or seen changed."""

    node: Node


class NodeFailed(Event, frozen=True, kw_only=True):
    """A node counts as failed: its pods are gone, its GPUs are nobody's until it returns."""

    node: str


class NodeRemoved(Event, frozen=True, kw_only=True):
    """A node is gone and forgotten."""

    node: str


class BudgetSet(Event, frozen=True, kw_only=True):
    """A Budget was written; what was spent before stays as it was."""

    budget: Key
    spec: BudgetSpec


class BudgetRemoved(Event, frozen=True, kw_only=True):
    """A Budget is gone; nothing new can be paid by it."""

    budget: Key


class RunSubmitted(Event, frozen=True, kw_only=True):
    """A run asked for GPUs. `by` is the user who asked, where there is one.

    `graceful`: its work needs time to leave when it is asked to, and the backend reports when its GPUs are free.
    """

    run: Key
    spec: RunSpec
    by: str | None = None
    graceful: bool = False


class RunDeferred(Event, frozen=True, kw_only=True):
    """Runs of one shape cannot start, for this reason. Written when the reason changes, not each time they are tried.

    `tally` counts, by reason, the envelopes and domains that turned them away.
    """

    runs: tuple[Key, ...]
    reason: Reason
    message: str
    tally: dict[str, int] = {}


class Cell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One lease inside `LeasesOpened`: its number in the attempt, where it lies, and which of the event's payers pays it."""

    number: int
    group: int
    rank: int
    node: str
    slots: tuple[int, ...]
    payer: int
    role: Role = Role.ACTIVE


class LeasesOpened(Event, frozen=True, kw_only=True):
    """Cover and pack became true at once. `plan` is the digest of the plan that was carried out.

    `starting`: the backend reports when its pods run (`RunStarted`); until then it is placed, and not Running.
    """

    run: Key
    attempt: int
    reason: Reason
    payers: tuple[Payer, ...]
    cells: tuple[Cell, ...]
    plan: str
    starting: bool = False


class RunStarted(Event, frozen=True, kw_only=True):
    """All pods of a run that was starting were observed to run."""

    run: Key


class LeasesLeaving(Event, frozen=True, kw_only=True):
    """The work on leases was asked to leave, and is killed at `until`. They stay open and paid for until their GPUs are free.

    They then close with the same `reason` and `seed`, or NodeFailure where their node fails first.
    """

    run: Key
    names: tuple[str, ...]
    reason: Reason
    until: int
    seed: str | None = None


class LeasesClosed(Event, frozen=True, kw_only=True):
    """Leases of one run ended, all for one reason. `seed` completes RandomPreempt. `names` empty: all that are open."""

    run: Key
    reason: Reason
    names: tuple[str, ...] = ()
    seed: str | None = None


class RunRequeued(Event, frozen=True, kw_only=True):
    """An attempt is over and the next one was asked for. `by` is the claim it gave way to in a draw, which it never cuts.

    Until `not_before`, where it is set, it does not stand in the queue.
    """

    run: Key
    reason: Reason
    message: str
    by: Key | None = None
    not_before: int | None = None


class RunQuarantined(Event, frozen=True, kw_only=True):
    """A fault of the scheduler's while it handled this run: what it began was undone, and the run is left alone `until` then."""

    run: Key
    message: str
    until: int


class BackoffEnded(Event, frozen=True, kw_only=True):
    """The pause after a failure or a fault is over: a run that waits stands in the queue again."""

    run: Key


class Bill(Record, frozen=True, kw_only=True):
    """What a run used up, in GPU-milliseconds of Active leases, each GPU in exactly one class; spares are told apart."""

    owned: int = 0
    shared: int = 0
    borrowed: int = 0
    overdrawn: int = 0
    spares: int = 0
    sponsors: dict[str, int] = {}


class RunEnding(Event, frozen=True, kw_only=True):
    """A run is over for good, and some of its leases are leaving: `RunEnded` follows, with the bill, when the last has closed."""

    run: Key
    phase: Phase
    reason: Reason
    message: str


class RunEnded(Event, frozen=True, kw_only=True):
    """A run is over for good, with its bill; all its leases are closed."""

    run: Key
    phase: Phase
    reason: Reason
    message: str
    attempt: int
    bill: Bill = Bill()
    started_at: int | None = None


class SwapAwaited(Event, frozen=True, kw_only=True):
    """A lost rank is to run on a spare as soon as the work that borrows the spare's GPUs has left them.

    `spares` are leases, each with the rank that it takes over, and which of `payers` paid for that rank.
    """

    run: Key
    spares: tuple[tuple[str, int, int], ...]
    payers: tuple[Payer, ...]


class CoverLost(Event, frozen=True, kw_only=True):
    """A unit (a rigid run's share in an envelope, or one elastic group's: `group` ≥ 0) is overdrawn; Drain ends it at `ends`."""

    run: Key
    budget: Key
    envelope: str
    group: int = -1
    reason: Reason
    ends: int | None = None


class CoverRegained(Event, frozen=True, kw_only=True):
    """Room came back: the unit is covered again."""

    run: Key
    budget: Key
    envelope: str
    group: int = -1


class Turn(enum.Enum):
    """What a moment in time did to an envelope or an aggregate cap."""

    OPENED = "opened"
    CLOSED = "closed"
    EXHAUSTED = "exhausted"
    LENT_OUT = "lentOut"


class EnvelopeTurned(Event, frozen=True, kw_only=True):
    """A window opened or closed, or hours ran out: all, or those that are lent. `cap` names the aggregate cap, if it is one's."""

    budget: Key
    envelope: str = ""
    cap: str = ""
    turn: Turn


class OutcomeRecorded(Event, frozen=True, kw_only=True):
    """A resolution was decided; written before the first lease is closed."""

    name: str
    outcome: OutcomeSpec


class ReservationMade(Event, frozen=True, kw_only=True):
    """A run that must wait has a date, and a lien on the slots it means to use (as bits by node) until then.

    One that supersedes another is a move, and `reason` says why. `basis` says what the date rests on. From `cut_from` on funded
    work may have to give way to it (None: never): others have had their notice then, and a move does not begin it again.
    """

    run: Key
    name: str
    earliest_start: int
    basis: Reason
    reason: Reason
    message: str
    domains: tuple[str, ...]
    lien: dict[str, int]
    envelopes: tuple[str, ...]
    cut_from: int | None = None


class ReservationTurned(Event, frozen=True, kw_only=True):
    """The reservation in force fell due, was kept, lost its money, or is over."""

    run: Key
    state: ReservationState
    reason: Reason
    message: str = ""


class Foreseen(Record, frozen=True, kw_only=True):
    """When a waiting run will start: before `p10` once in ten, `p50` five, `p90` nine times in ten.

    `source` says what it rests on, `why` what it is waiting for or why it moved. `play` and `baseline` are waits from then on: by a
    forward play of the engine, and by a play with the mean of the last two durations. Where it has a reservation, `deficit_gpus`
    and `remedies` say what is missing, and what could be preempted. `usual` is in ledgers of earlier versions only.
    """

    run: Key
    p10: int
    p50: int
    p90: int
    source: Reason
    why: str
    play: int
    usual: int | None = None
    baseline: int | None = None
    confidence: int | None = None
    deficit_gpus: int = 0
    scope: str = ""
    remedies: tuple[str, ...] = ()


class Forecasted(Event, frozen=True, kw_only=True):
    """Forecasts were made: the first of each run that waits, and those that moved by enough to be told."""

    runs: tuple[Foreseen, ...]


class DesiredSet(Event, frozen=True, kw_only=True):
    """An elastic run's desired width was set, for good."""

    run: Key
    gpus: int


class FundingSet(Event, frozen=True, kw_only=True):
    """Whom a run may ask for money beyond its family was set, for good. It is for what starts and grows from now on."""

    run: Key
    funding: Funding


class GrowthDeferred(Event, frozen=True, kw_only=True):
    """An elastic run's cooldown is over and it cannot grow, for this reason. Written once per change of width, or of reason."""

    run: Key
    reason: Reason
    message: str


AnyEvent = (
    Configured
    | NodeSet
    | NodeFailed
    | NodeRemoved
    | BudgetSet
    | BudgetRemoved
    | RunSubmitted
    | RunDeferred
    | LeasesOpened
    | RunStarted
    | LeasesLeaving
    | LeasesClosed
    | RunRequeued
    | BackoffEnded
    | RunQuarantined
    | RunEnding
    | RunEnded
    | SwapAwaited
    | CoverLost
    | CoverRegained
    | EnvelopeTurned
    | OutcomeRecorded
    | ReservationMade
    | ReservationTurned
    | Forecasted
    | DesiredSet
    | FundingSet
    | GrowthDeferred
)

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(tuple[AnyEvent, ...])


def encode(events: tuple[AnyEvent, ...]) -> bytes:
    """The bytes that are hashed and stored: JSON with sorted keys in free-form maps."""
    return _encoder.encode(events)


def decode(body: bytes) -> tuple[AnyEvent, ...]:
    """The events of a stored body."""
    return _decoder.decode(body)


def digest(record: Record) -> str:
    """SHA-256 of a record as its object shows it: JSON with sorted keys, no spaces, in UTF-8. By it outcomes are chained."""
    return hashlib.sha256(_encoder.encode(write(record))).hexdigest()
