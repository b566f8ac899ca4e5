"""The live parts of the state besides money and slots: runs, their bills, and the queue of those that wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from sortedcontainers import SortedDict

from fairlease.ledger.state.events import Bill, ReservationMade
from fairlease.model.lease import Lease, Payer
from fairlease.model.record import Record, split
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.ledger.state.events import Foreseen
    from fairlease.model.record import Key
    from fairlease.model.run import RunSpec

Unit = tuple[str, str, str, int]
"""(run, budget, envelope, group; −1: the whole share of a rigid run): what is covered or overdrawn as one."""

Signature = tuple[str, bool, tuple[str, ...]]
"""(owner, may borrow, sponsors): runs alike in this ask the same envelopes in the same order."""

Footprint = tuple[int, int, int, int, bool, bool, int | None]
"""(GPUs per pod, per group, in all at the narrowest, spares per group, all in one domain, opportunistic, least limit): runs alike
in this need one room, and whoever asked first finds it first. Opportunistic work holds no spares, as it has no claim to its GPUs,
and finds room on those of others; whoever surely ends soon finds room under liens."""

_encode = msgspec.json.Encoder(order="deterministic").encode
_FOR_ROOM = (Reason.NoRoom, Reason.Reserved)


class Meter:
    """GPU-milliseconds that grow with a rate."""

    __slots__ = ("at", "rate", "total")

    def __init__(self) -> None:
        self.rate = 0
        self.total = 0
        self.at = 0

    def change(self, gpus: int, now: int) -> None:
        """From `now` on, `gpus` more (or fewer) count."""
        self.total += self.rate * (now - self.at)
        self.at = now
        self.rate += gpus

    def read(self, now: int) -> int:
        """What it shows at `now`."""
        return self.total + self.rate * (now - self.at)

    def save(self) -> tuple[int, int, int]:
        """For the undo log."""
        return self.rate, self.total, self.at

    def restore(self, saved: tuple[int, int, int]) -> None:
        """For the undo log."""
        self.rate, self.total, self.at = saved


class Hold:
    """A reservation in force: a run's date, and the slots (as bits by node) that are under its lien until then.

    `expected` is how long the run was expected to run, nine times in ten, when the reservation was made.
    """

    __slots__ = (
        "basis", "cut_from", "domains", "earliest_start", "envelopes", "expected", "lien", "made_at", "message", "name",
        "reason", "state",
    )  # fmt: skip

    def __init__(self, made: ReservationMade, at: int, expected: int) -> None:
        self.name = made.name
        self.earliest_start = made.earliest_start
        self.basis = made.basis
        self.reason = made.reason
        self.message = made.message
        self.domains = made.domains
        self.lien = made.lien
        self.envelopes = made.envelopes
        self.cut_from = made.cut_from
        self.expected = expected
        self.made_at = at
        self.state = ReservationState.PENDING

    @property
    def holds(self) -> bool:
        """Whether its lien stands; one that lost its money holds nothing."""
        return self.state is not ReservationState.BLOCKED

    @property
    def exclusive(self) -> bool:
        """Whether others are leaving for it: their slots come free for it alone."""
        return self.basis is Reason.Leaving

    def made(self, run: Key) -> ReservationMade:
        """The event that would make it anew."""
        return ReservationMade(
            run=run,
            name=self.name,
            earliest_start=self.earliest_start,
            basis=self.basis,
            reason=self.reason,
            message=self.message,
            domains=self.domains,
            lien=self.lien,
            envelopes=self.envelopes,
            cut_from=self.cut_from,
        )

    def save(self) -> tuple[ReservationState, Reason, str]:
        """For the undo log."""
        return self.state, self.reason, self.message

    def restore(self, saved: tuple[ReservationState, Reason, str]) -> None:
        """For the undo log."""
        self.state, self.reason, self.message = saved


class Standings:
    """Reservations in force by flavor and order of asking: those with a lien, those too far back for one, those without money.

    `alike` are those that hold something, by the shape of their runs: what a shape is refused concerns them, be it ever so long.
    """

    __slots__ = ("alike", "blocked", "far", "near")

    def __init__(self) -> None:
        self.near: dict[str, SortedDict[int, RunState]] = {}
        self.far: dict[str, SortedDict[int, RunState]] = {}
        self.blocked: dict[str, SortedDict[int, RunState]] = {}
        self.alike: dict[bytes, dict[int, RunState]] = {}

    def enter(self, shape: bytes, order: int, run: RunState) -> None:
        """A reservation that holds something stands among those of its shape."""
        self.alike.setdefault(shape, {})[order] = run

    def leave(self, shape: bytes, order: int) -> None:
        """It does so no more."""
        alike = self.alike[shape]
        del alike[order]
        if not alike:
            del self.alike[shape]

    def of(self, flavor: str, hold: Hold) -> SortedDict[int, RunState]:
        """Where a reservation stands."""
        kind = self.blocked if not hold.holds else self.near if hold.lien else self.far
        if flavor not in kind:
            kind[flavor] = SortedDict()
        return kind[flavor]


NO_LOSS = (0, 0)


class Leaving(Record, frozen=True, kw_only=True):
    """An open lease whose work was asked to leave at `since`, and is killed at `until`; `overdrawn`: it was when it was asked."""

    lease: Lease
    since: int
    until: int
    reason: Reason
    seed: str | None = None
    overdrawn: bool = False


class RunState:
    """A run that is not over: what it asked, how it stands, what it holds and what it owes.

    `expected` is how long it will run, nine times in ten, as seen when it started. `awaits` are the runs that it follows and that
    have not completed since it was submitted: a name that is used again later is another run's. `starting`: it holds its
    leases, and not all of its pods were observed to run yet. `leases` are those on which it works, `leaving` those that were asked
    to leave; both are open. `awaited` are spares whose tenants are leaving: the rank that each takes over then, and who paid for
    that rank.
    """

    __slots__ = (
        "asked_at", "attempt", "awaited", "awaits", "by", "changed_at", "deadline", "displaced_by", "expected", "failures",
        "faults", "first_started_at", "foreseen", "foreseen_first", "graceful", "hold", "key", "leases", "leaving", "message",
        "meters", "not_before", "number", "order", "overdrawn", "phase", "reason", "reservations", "shape", "since", "spare_gpus",
        "spec", "sponsors", "stalled", "started_at", "starting", "steady", "submitted_at", "tally", "width",
    )  # fmt: skip

    def __init__(self, key: Key, spec: RunSpec, now: int, order: int) -> None:
        self.key = key
        self.spec = spec
        self.by: str | None = None
        self.submitted_at = now
        self.asked_at = now
        self.order = order
        self.attempt = 1
        self.awaits: tuple[Key, ...] = ()
        self.failures = 0
        self.faults = 0
        self.phase = Phase.PENDING
        self.reason = Reason.Submitted
        self.message = ""
        self.tally: dict[str, int] = {}
        self.since = now
        self.started_at: int | None = None
        self.starting = False
        self.first_started_at: int | None = None
        self.deadline: int | None = None
        self.not_before: int | None = None
        self.number = 0
        self.width = 0
        self.changed_at = 0
        self.steady = NO_LOSS
        self.stalled: Reason | None = None
        self.spare_gpus = 0
        self.hold: Hold | None = None
        self.reservations = 0
        self.displaced_by: tuple[Key, ...] = ()
        self.foreseen: tuple[int, Foreseen] | None = None
        self.foreseen_first: tuple[int, Foreseen] | None = None
        self.expected = 0
        self.graceful = False
        self.leases: dict[str, Lease] = {}
        self.leaving: dict[str, Leaving] = {}
        self.awaited: dict[str, tuple[int, Payer]] = {}
        self.meters: dict[str, Meter] = {}
        self.sponsors: dict[str, Meter] = {}
        self.overdrawn: dict[Unit, int | None] = {}
        self.shape = shape_of(spec)

    def ask_for(self, spec: RunSpec) -> None:
        """Ask for something else."""
        self.spec, self.shape = spec, shape_of(spec)

    @property
    def signature(self) -> Signature:
        """Which envelopes it asks, in which order."""
        funding = self.spec.funding
        return self.spec.owner, funding.allow_borrow, funding.sponsors

    @property
    def held(self) -> list[Lease]:
        """Its open leases in the order of opening; the dictionary may be shuffled by a trial that was undone."""
        return sorted(self.leases.values(), key=lambda lease: lease.serial)

    @property
    def open(self) -> list[Lease]:
        """All its open leases in the order of opening, those that are leaving too."""
        both = [*self.leases.values(), *(each.lease for each in self.leaving.values())]
        return sorted(both, key=lambda lease: lease.serial)

    @property
    def over(self) -> bool:
        """Whether it has ended, and only waits for its leases to close."""
        return self.phase is Phase.COMPLETED or self.phase is Phase.FAILED

    @property
    def leaving_gpus(self) -> int:
        """GPUs that its work was asked to leave and has not left."""
        return sum(len(each.lease.slots) for each in self.leaving.values())

    @property
    def reservation(self) -> str:
        """`namespace/name` of its reservation in force; empty where it has none."""
        return "" if self.hold is None else f"{split(self.key)[0]}/{self.hold.name}"

    def unit(self, lease: Lease) -> Unit:
        """The unit of cover a lease belongs to: an elastic group's, or a rigid run's whole share in the envelope."""
        group = -1 if self.spec.malleable is None else lease.group
        return self.key, lease.payer.budget, lease.payer.envelope, group

    def resized(self, before: int, now: int, why: Reason) -> None:
        """Its width was `before` and is another: note when it changed. What a swap makes good at the same instant is no change.

        `steady` is the width, and when it had last changed, before ranks were lost that a swap may make good.
        """
        lost = self.width < before and why in (Reason.NodeFailure, Reason.Swap)
        if lost and (self.steady == NO_LOSS or self.changed_at != now):
            self.steady = (before, self.changed_at)
        elif not lost and why is not Reason.Swap:
            self.steady = NO_LOSS
        self.changed_at = now
        if why is Reason.Swap and self.width == self.steady[0]:
            self.changed_at, self.steady = self.steady[1], NO_LOSS

    def bill(self, now: int) -> Bill:
        """What it has used up so far."""
        read = {name: meter.read(now) for name, meter in self.meters.items()}
        sponsors = {owner: meter.read(now) for owner, meter in sorted(self.sponsors.items())}
        return Bill(**read, sponsors=sponsors)

    def save(self) -> tuple[object, ...]:
        """For the undo log; meters and dictionaries have their own entries in it."""
        return _scalars(self)

    def restore(self, saved: tuple[object, ...]) -> None:
        """For the undo log."""
        for name, value in zip(_SCALARS, saved, strict=True):
            setattr(self, name, value)


_SCALARS = (
    "awaits", "not_before", "spec", "asked_at", "order", "attempt", "failures", "faults", "phase", "reason", "message",
    "tally", "since", "started_at", "starting", "first_started_at", "deadline", "number", "width", "changed_at", "steady",
    "stalled", "spare_gpus", "shape", "hold", "reservations", "displaced_by", "expected", "foreseen", "foreseen_first",
)  # fmt: skip
_scalars: attrgetter[tuple[object, ...]] = attrgetter(*_SCALARS)


def shape_of(spec: RunSpec) -> bytes:
    """What cover and pack see of a run: two of one shape get the same answer."""
    if spec.command or spec.template is not None or spec.env or spec.workdir is not None:
        spec = msgspec.structs.replace(spec, template=None, command=(), env={}, workdir=None)
    return _encode(spec)


def footprint_of(spec: RunSpec) -> Footprint:
    """What room a run needs at its narrowest, whoever asks and pays."""
    size, locality = spec.pod_gpus, spec.locality
    width = spec.resources.total_gpus if spec.malleable is None else spec.malleable.min_total_gpus
    together = not locality.allow_cross_group_spread
    spares = 0 if spec.opportunistic else spec.spares_per_group
    return size, locality.group_gpus or size, width, spares, together, spec.opportunistic, least_limit(spec)


def least_limit(spec: RunSpec) -> int | None:
    """The least limit of those that are so long to a factor of two: what a line passes for, as all in it are no shorter."""
    limit = spec.runtime.max_duration
    return None if limit is None else 1 << limit.bit_length() - 1


class Shape:
    """Waiting runs that are alike in everything a decision looks at; `orders` are their places in the order of asking.

    `place` is where the shape itself stands in its line, if it waits for room; `other`: it waits for something else. (Most shapes
    live for one tick and hold one run, for which a sorted dictionary would be dear.)
    """

    __slots__ = ("key", "orders", "other", "place", "reason", "runs", "sample", "signature")

    def __init__(self, key: bytes, sample: RunState) -> None:
        self.key = key
        self.sample = sample.spec
        self.signature = sample.signature
        self.place: int | None = None
        self.other = False
        self.runs: dict[int, RunState] = {}
        self.orders: list[int] = []
        self.reason = Reason.Submitted


class Queue:
    """Runs that wait for money or room, by shape; those that follow others wait in `following` until it is their turn.

    Shapes that wait for room stand in `lines`, by flavor and footprint, each where its first run asked: a line whose footprint
    finds no room need not be looked at, however long it is. The others wait for money, or for nodes: by the envelopes they ask.
    """

    def __init__(self) -> None:
        self.shapes: dict[bytes, Shape] = {}
        self.others: dict[Signature, dict[bytes, Shape]] = {}
        self.lines: dict[str, dict[Footprint, SortedDict[int, Shape]]] = {}
        self.following: dict[Key, dict[Key, RunState]] = {}
        self.resting: dict[Key, RunState] = {}

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self.shapes) or any(self.following.values())

    def has(self, run: RunState) -> bool:
        """Whether a run waits, be it for money or for room."""
        shape = self.shapes.get(run.shape)
        return shape is not None and run.order in shape.runs

    def add(self, run: RunState, order: int) -> None:
        """A run begins to wait in its place; a trial that is undone may find the run already in another."""
        shape = self.shapes.get(run.shape)
        if shape is None:
            shape = self.shapes[run.shape] = Shape(run.shape, run)
        shape.runs[order] = run
        insort(shape.orders, order)
        self._align(shape)

    def remove(self, run: RunState, order: int) -> None:
        """A run waits no more in this place."""
        shape = self.shapes[run.shape]
        del shape.runs[order]
        del shape.orders[bisect_left(shape.orders, order)]
        self._align(shape)
        if not shape.runs:
            del self.shapes[run.shape]

    def settle(self, key: bytes, reason: Reason) -> None:
        """A shape was turned away, for `reason`; that says what can help it."""
        shape = self.shapes[key]
        shape.reason = reason
        self._align(shape)

    def _align(self, shape: Shape) -> None:
        """Put a shape where it belongs: if it waits for room, into the line of its footprint, by its first run."""
        first = shape.orders[0] if shape.reason in _FOR_ROOM and shape.orders else None
        other = first is None and bool(shape.orders)
        if other != shape.other:
            self._sort_out(shape, other=other)
        if first != shape.place:
            self._move(shape, first)

    def _sort_out(self, shape: Shape, *, other: bool) -> None:
        shape.other = other
        if other:
            self.others.setdefault(shape.signature, {})[shape.key] = shape
            return
        others = self.others[shape.signature]
        del others[shape.key]
        if not others:
            del self.others[shape.signature]

    def _move(self, shape: Shape, first: int | None) -> None:
        lines = self.lines.setdefault(shape.sample.resources.gpu_type, {})
        footprint = footprint_of(shape.sample)
        line = lines.get(footprint)
        if line is None:
            line = lines[footprint] = SortedDict()
        if shape.place is not None:
            del line[shape.place]
        if first is not None:
            line[first] = shape
        elif not line:
            del lines[footprint]
        shape.place = first
