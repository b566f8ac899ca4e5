"""Budget: envelopes of GPUs over windows of time, and the caps over several of them (SEMANTICS §2)."""

from __future__ import annotations

import enum

from fairlease.model.record import GpuHours, Instant, Record


class Sharing(enum.Enum):
    """Whether the family may spend from an envelope."""

    FAMILY = "family"
    NONE = "none"


class OnExhaustion(enum.Enum):
    """What becomes of running work that an envelope no longer covers (SEMANTICS §4)."""

    HOLD = "Hold"
    DRAIN = "Drain"


class PreActivation(Record, frozen=True, kw_only=True):
    """What an envelope allows before its window opens."""

    allow_reservations: bool = True
    """Runs may be given a Reservation that begins when the window opens."""
    allow_admission: bool = False
    """Runs may already start, and spend from this envelope, before the window opens."""


class Lending(Record, frozen=True, kw_only=True):
    """To whom an envelope lends, and how much at most."""

    allow: bool = False
    """Whether owners outside the family may borrow at all."""
    to: tuple[str, ...] = ()
    """Who may borrow: owners, in which * and ? are wildcards, such as org:ai:*. Empty: everyone."""
    max_concurrency: int | None = None
    """GPUs that may be lent at once."""
    max_gpu_hours: GpuHours | None = None
    """GPU-hours that may be lent within the window."""


class Envelope(Record, frozen=True, kw_only=True):
    """GPUs of one flavor, where its selector matches, within a half-open window."""

    name: str
    """What it is called; unique within its Budget."""
    flavor: str
    """The kind of GPU that it pays for: the value of the node label gpu.flavor."""
    selector: dict[str, str]
    """Labels of the nodes on which its money may be spent, at least one; * stands for any value. A hard limit."""
    concurrency: int
    """GPUs that it pays for at once, at most."""
    max_gpu_hours: GpuHours | None = None
    """GPU-hours that it pays for within its window; at most concurrency × window. Without it, only
    concurrency limits."""
    start: Instant | None = None
    """When its window opens, as an RFC 3339 time. Without it, it is open from the beginning."""
    end: Instant | None = None
    """When its window closes: the first instant that is not in it. Without it, it stays open."""
    sharing: Sharing = Sharing.FAMILY
    """family: parents, siblings and children may spend from it too. none: only its owner."""
    pre_activation: PreActivation = PreActivation()
    """What is allowed before the window opens."""
    lending: Lending = Lending()
    """Lending to owners outside the family."""
    on_exhaustion: OnExhaustion = OnExhaustion.HOLD
    """What becomes of running work when hours, window or concurrency no longer cover it. Hold: it goes on
    until somebody funded needs its GPUs. Drain: it ends after the grace that its checkpoint asks for."""

    def opens_by(self, now: int) -> bool:
        """Whether money may be spent at `now`: inside the window, or before it where that is allowed."""
        begun = self.start is None or now >= self.start or self.pre_activation.allow_admission
        return begun and (self.end is None or now < self.end)


class AggregateCap(Record, frozen=True, kw_only=True):
    """One bound over several envelopes of a Budget."""

    name: str
    """What it is called; unique within its Budget."""
    flavor: str
    """The flavor of all envelopes under it."""
    envelopes: tuple[str, ...]
    """The envelopes under it, by name."""
    max_concurrency: int | None = None
    """GPUs that these envelopes pay for at once, all together."""
    max_gpu_hours: GpuHours | None = None
    """GPU-hours that these envelopes pay for, all together."""


class BudgetSpec(Record, frozen=True, kw_only=True):
    """What an owner may spend."""

    owner: str
    """Who owns this money: a path of names, joined by colons, such as org:ai:rai."""
    parents: tuple[str, ...] | None = None
    """The owners above this one in the family. Default: the path without its last name. A cycle is
    reported and counts for nothing."""
    envelopes: tuple[Envelope, ...] = ()
    """GPUs over windows of time. Each is asked by itself. None: a family's head without money of its own."""
    aggregate_caps: tuple[AggregateCap, ...] = ()
    """Bounds over several envelopes together."""

    def parent_owners(self) -> tuple[str, ...]:
        """The parents given, or the path without its last segment."""
        return default_parents(self.owner) if self.parents is None else self.parents


def default_parents(owner: str) -> tuple[str, ...]:
    """The one parent that an owner's path names; a path of one segment has none."""
    head, _, tail = owner.rpartition(":")
    return (head,) if tail and head else ()
