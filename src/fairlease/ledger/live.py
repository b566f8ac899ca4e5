"""The live parts of the state besides money and slots: runs, their bills, and the queue of those that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sortedcontainers import SortedDict

from fairlease.ledger.event import Bill
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key
    from fairlease.model.run import RunSpec

Unit = tuple[str, str, str, int]
"""(run, budget, envelope, group; −1: the whole share of a rigid run): what is covered or overdrawn as one."""

Signature = tuple[str, bool, tuple[str, ...]]
"""(owner, may borrow, sponsors): runs alike in this ask the same envelopes in the same order."""

_encode = msgspec.json.Encoder(order="deterministic").encode

WAITS_FOR_ROOM = (Reason.NoRoom, Reason.NeverFits)


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


class RunState:
    """A run that is not over: what it asked, how it stands, what it holds and what it owes."""

    __slots__ = (
        "asked_at", "attempt", "by", "deadline", "failures", "first_started_at", "key", "leases", "message", "meters", "number",
        "order", "overdrawn", "phase", "reason", "shape", "since", "spare_gpus", "spec", "sponsors", "started_at",
        "submitted_at", "tally", "width",
    )  # fmt: skip

    def __init__(self, key: Key, spec: RunSpec, now: int, order: int) -> None:
        self.key = key
        self.spec = spec
        self.by: str | None = None
        self.submitted_at = now
        self.asked_at = now
        self.order = order
        self.attempt = 1
        self.failures = 0
        self.phase = Phase.PENDING
        self.reason = Reason.Submitted
        self.message = ""
        self.tally: dict[str, int] = {}
        self.since = now
        self.started_at: int | None = None
        self.first_started_at: int | None = None
        self.deadline: int | None = None
        self.number = 0
        self.width = 0
        self.spare_gpus = 0
        self.leases: dict[str, Lease] = {}
        self.meters: dict[str, Meter] = {}
        self.sponsors: dict[str, Meter] = {}
        self.overdrawn: dict[Unit, int | None] = {}
        self.shape = shape_of(spec)

    @property
    def signature(self) -> Signature:
        """Which envelopes it asks, in which order."""
        funding = self.spec.funding
        return self.spec.owner, funding.allow_borrow, funding.sponsors

    @property
    def held(self) -> list[Lease]:
        """Its open leases in the order of opening; the dictionary may be shuffled by a trial that was undone."""
        return sorted(self.leases.values(), key=lambda lease: lease.serial)

    def unit(self, lease: Lease) -> Unit:
        """The unit of cover a lease belongs to: an elastic group's, or a rigid run's whole share in the envelope."""
        group = -1 if self.spec.malleable is None else lease.group
        return self.key, lease.payer.budget, lease.payer.envelope, group

    def bill(self, now: int) -> Bill:
        """What it has used up so far."""
        read = {name: meter.read(now) for name, meter in self.meters.items()}
        sponsors = {owner: meter.read(now) for owner, meter in sorted(self.sponsors.items())}
        return Bill(**read, sponsors=sponsors)

    def save(self) -> tuple[object, ...]:
        """For the undo log; meters and dictionaries have their own entries in it."""
        return tuple(getattr(self, name) for name in _SCALARS)

    def restore(self, saved: tuple[object, ...]) -> None:
        """For the undo log."""
        for name, value in zip(_SCALARS, saved, strict=True):
            setattr(self, name, value)


_SCALARS = (
    "spec", "asked_at", "order", "attempt", "failures", "phase", "reason", "message", "tally", "since", "started_at",
    "first_started_at", "deadline", "number", "width", "spare_gpus", "shape",
)  # fmt: skip


def shape_of(spec: RunSpec) -> bytes:
    """What cover and pack see of a run: two of one shape get the same answer."""
    bare = msgspec.structs.replace(spec, template=None, command=(), env={}, workdir=None)
    return _encode(bare)


class Shape:
    """Waiting runs that are alike in everything a decision looks at, in order of asking."""

    __slots__ = ("key", "reason", "runs", "sample")

    def __init__(self, key: bytes, sample: RunState) -> None:
        self.key = key
        self.sample = sample.spec
        self.runs: SortedDict[int, RunState] = SortedDict()
        self.reason = Reason.Submitted


class Queue:
    """Runs that wait for money or room, by shape; those that follow others wait in `following` until it is their turn."""

    def __init__(self) -> None:
        self.shapes: dict[bytes, Shape] = {}
        self.by_signature: dict[Signature, dict[bytes, Shape]] = {}
        self.by_flavor: dict[str, dict[bytes, Shape]] = {}
        self.following: dict[Key, dict[Key, RunState]] = {}

    def add(self, run: RunState, order: int) -> None:
        """A run begins to wait in its place; a trial that is undone may find the run already in another."""
        shape = self.shapes.get(run.shape)
        if shape is None:
            shape = self.shapes[run.shape] = Shape(run.shape, run)
            self.by_signature.setdefault(run.signature, {})[run.shape] = shape
        shape.runs[order] = run

    def remove(self, run: RunState, order: int) -> None:
        """A run waits no more in this place."""
        shape = self.shapes[run.shape]
        del shape.runs[order]
        if not shape.runs:
            self.settle(run.shape, Reason.Submitted)
            del self.shapes[run.shape]
            alike = self.by_signature[run.signature]
            del alike[run.shape]
            if not alike:
                del self.by_signature[run.signature]

    def settle(self, key: bytes, reason: Reason) -> None:
        """A shape was turned away, for `reason`; that says what can help it."""
        shape = self.shapes[key]
        flavor = shape.sample.resources.gpu_type
        if reason in WAITS_FOR_ROOM:
            self.by_flavor.setdefault(flavor, {})[shape.key] = shape
        elif shape.reason in WAITS_FOR_ROOM:
            del self.by_flavor[flavor][shape.key]
        shape.reason = reason
