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
    allow_admission: bool = False


class Lending(Record, frozen=True, kw_only=True):
    """To whom an envelope lends, and how much at most."""

    allow: bool = False
    to: tuple[str, ...] = ()
    max_concurrency: int | None = None
    max_gpu_hours: GpuHours | None = None


class Envelope(Record, frozen=True, kw_only=True):
    """GPUs of one flavor, where its selector matches, within a half-open window."""

    name: str
    flavor: str
    selector: dict[str, str]
    concurrency: int
    max_gpu_hours: GpuHours | None = None
    start: Instant | None = None
    end: Instant | None = None
    sharing: Sharing = Sharing.FAMILY
    pre_activation: PreActivation = PreActivation()
    lending: Lending = Lending()
    on_exhaustion: OnExhaustion = OnExhaustion.HOLD

    def opens_by(self, now: int) -> bool:
        """Whether money may be spent at `now`: inside the window, or before it where that is allowed."""
        begun = self.start is None or now >= self.start or self.pre_activation.allow_admission
        return begun and (self.end is None or now < self.end)


class AggregateCap(Record, frozen=True, kw_only=True):
    """One bound over several envelopes of a Budget."""

    name: str
    flavor: str
    envelopes: tuple[str, ...]
    max_concurrency: int | None = None
    max_gpu_hours: GpuHours | None = None


class BudgetSpec(Record, frozen=True, kw_only=True):
    """What an owner may spend."""

    owner: str
    parents: tuple[str, ...] | None = None
    envelopes: tuple[Envelope, ...]
    aggregate_caps: tuple[AggregateCap, ...] = ()

    def parent_owners(self) -> tuple[str, ...]:
        """The parents given, or the path without its last segment."""
        return default_parents(self.owner) if self.parents is None else self.parents


def default_parents(owner: str) -> tuple[str, ...]:
    """The one parent that an owner's path names; a path of one segment has none."""
    head, _, tail = owner.rpartition(":")
    return (head,) if tail and head else ()
