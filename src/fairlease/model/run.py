"""Run: a gang of GPUs that starts whole or not at all (SEMANTICS §2)."""

from __future__ import annotations

import enum
from typing import Any

from msgspec.structs import replace

from fairlease.model.record import Duration, Instant, Record


class LocationPolicy(enum.Enum):
    """Whether `location` is a wish or a condition."""

    PREFER = "Prefer"
    REQUIRE = "Require"


class OnPreempt(enum.Enum):
    """What becomes of a run whose attempt was ended by others, or by a failed node."""

    FAIL = "Fail"
    REQUEUE = "Requeue"


class Phase(enum.Enum):
    """Where a run is in its life."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"


class Resources(Record, frozen=True, kw_only=True):
    """How many GPUs, of which flavor."""

    gpu_type: str
    total_gpus: int


class Locality(Record, frozen=True, kw_only=True):
    """How the GPUs must lie to each other, and where."""

    group_gpus: int | None = None
    allow_cross_group_spread: bool = True
    location: dict[str, str] = {}
    location_policy: LocationPolicy = LocationPolicy.PREFER


class Runtime(Record, frozen=True, kw_only=True):
    """Limits and habits in time; `max_duration` counts per attempt."""

    max_duration: Duration | None = None
    expected_duration: Duration | None = None
    latest_start: Instant | None = None
    checkpoint: Duration | None = None
    on_preempt: OnPreempt | None = None
    retries: int = 0


class Malleable(Record, frozen=True, kw_only=True):
    """The widths an elastic run can live with."""

    min_total_gpus: int
    max_total_gpus: int
    step_gpus: int
    desired_total_gpus: int | None = None

    @property
    def desired(self) -> int:
        """The width it would like to have: as wide as it can be, unless it says otherwise."""
        return self.max_total_gpus if self.desired_total_gpus is None else self.desired_total_gpus

    @property
    def grid(self) -> range:
        """Every width it can live with."""
        return range(self.min_total_gpus, self.max_total_gpus + 1, self.step_gpus)


class Funding(Record, frozen=True, kw_only=True):
    """Whose money may be asked beyond the family's."""

    allow_borrow: bool = False
    max_borrow_gpus: int | None = None
    sponsors: tuple[str, ...] = ()


class Follow(Record, frozen=True, kw_only=True):
    """Runs that must complete first."""

    after: tuple[str, ...] = ()


class RunSpec(Record, frozen=True, kw_only=True):
    """What a researcher asks for. Reading fills `gpus_per_pod`, so that the engine never guesses it."""

    owner: str
    resources: Resources
    locality: Locality = Locality()
    runtime: Runtime = Runtime()
    malleable: Malleable | None = None
    spares_per_group: int = 0
    opportunistic: bool = False
    funding: Funding = Funding()
    follow: Follow = Follow()
    gpus_per_pod: int | None = None
    template: dict[str, Any] | None = None
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    workdir: str | None = None

    @property
    def pod_gpus(self) -> int:
        """GPUs of one pod."""
        return self.gpus_per_pod or 1

    def resized(self, desired: int) -> RunSpec:
        """The same, with another width that it would like to have."""
        assert self.malleable is not None, "a rigid run has one width"
        return replace(self, malleable=replace(self.malleable, desired_total_gpus=desired))

    @property
    def requeues(self) -> bool:
        """Whether a preempted attempt is followed by another."""
        chosen = self.runtime.on_preempt
        return self.runtime.checkpoint is not None if chosen is None else chosen is OnPreempt.REQUEUE


def template_gpus(template: dict[str, Any] | None) -> int | None:
    """The GPU limit that a pod template sets, summed over its containers."""
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    limits = [((each.get("resources") or {}).get("limits") or {}).get("nvidia.com/gpu") for each in containers]
    found = [int(limit) for limit in limits if limit is not None and str(limit).isdigit()]
    return sum(found) or None
