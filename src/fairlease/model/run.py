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
    """The flavor of GPU: the value of the node label gpu.flavor."""
    total_gpus: int
    """GPUs of the whole gang. They start together or not at all."""


class Locality(Record, frozen=True, kw_only=True):
    """How the GPUs must lie to each other, and where."""

    group_gpus: int | None = None
    """GPUs that must lie in one fabric domain. Without it, every pod is a group of its own."""
    allow_cross_group_spread: bool = True
    """Whether groups may lie in different domains. false: the whole run lies in one."""
    location: dict[str, str] = {}
    """Node labels of the place that is wanted, such as region: us-west."""
    location_policy: LocationPolicy = LocationPolicy.PREFER
    """Prefer: other places will do. Require: only nodes with these labels."""


class Runtime(Record, frozen=True, kw_only=True):
    """Limits and habits in time; `max_duration` counts per attempt."""

    max_duration: Duration | None = None
    """The run is ended after this time, such as 12h; it counts for each attempt. With it, a run commits
    its worst case and cannot overspend, and may use GPUs that are reserved for later."""
    expected_duration: Duration | None = None
    """How long it will probably take; forecasts begin with it."""
    latest_start: Instant | None = None
    """A run that has not started by then is canceled; an RFC 3339 time."""
    checkpoint: Duration | None = None
    """How long the work needs to save itself, such as 10m: the grace before a cut."""
    on_preempt: OnPreempt | None = None
    """What becomes of the run when others, or a failed node, end an attempt. Default: Requeue where
    checkpoint is set, else Fail."""
    retries: int = 0
    """How often it is tried again after its own work failed."""


class Malleable(Record, frozen=True, kw_only=True):
    """The widths an elastic run can live with."""

    min_total_gpus: int
    """The least width at which the work goes on."""
    max_total_gpus: int
    """The greatest width that it can use."""
    step_gpus: int
    """Width changes by multiples of this."""
    desired_total_gpus: int | None = None
    """The width to grow to while there are money and room; default: the greatest. `kubectl scale` sets it."""

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
    """Whether money from outside the family may pay."""
    max_borrow_gpus: int | None = None
    """GPUs that may be borrowed over the whole run."""
    sponsors: tuple[str, ...] = ()
    """Owners to borrow from, in this order. Nobody is asked unless somebody is named."""


class Follow(Record, frozen=True, kw_only=True):
    """Runs that must complete first."""

    after: tuple[str, ...] = ()
    """Runs that must complete before this one may start: a name, or namespace/name."""


class RunSpec(Record, frozen=True, kw_only=True):
    """What a researcher asks for. Reading fills `gpus_per_pod`, so that the engine never guesses it."""

    owner: str
    """Who pays: a path of names, joined by colons. On Kubernetes it is the owner that the namespace is
    bound to, or one below it."""
    resources: Resources
    """How many GPUs, of which flavor."""
    locality: Locality = Locality()
    """How the GPUs must lie to each other, and where."""
    runtime: Runtime = Runtime()
    """Limits and habits in time."""
    malleable: Malleable | None = None
    """The widths that an elastic run can live with. Without it, the run is rigid."""
    spares_per_group: int = 0
    """GPUs held ready in each group, to take over for nodes that fail."""
    opportunistic: bool = False
    """The run uses GPUs that are idle, and gives way as soon as anybody funded needs them. It pays hours
    and takes no concurrency."""
    funding: Funding = Funding()
    """Whose money may be asked beyond the family's."""
    follow: Follow = Follow()
    """Runs that must complete first."""
    gpus_per_pod: int | None = None
    """GPUs of one pod. Default: the GPU limit in the template, else 1. It divides totalGPUs, groupGPUs,
    stepGPUs and sparesPerGroup."""
    template: dict[str, Any] | None = None
    """The pod template of the work, on Kubernetes. Each pod gets its GPU limit, its rank and where to meet
    the others."""
    command: tuple[str, ...] = ()
    """The command of the work, on one machine."""
    env: dict[str, str] = {}
    """Variables of its environment, on one machine."""
    workdir: str | None = None
    """The folder it runs in, on one machine."""

    @property
    def pod_gpus(self) -> int:
        """GPUs of one pod."""
        return self.gpus_per_pod or 1

    def resized(self, desired: int) -> RunSpec:
        """The same, with another width that it would like to have."""
        assert self.malleable is not None, "a rigid run has one width"
        return replace(self, malleable=replace(self.malleable, desired_total_gpus=desired))

    def funded(self, funding: Funding) -> RunSpec:
        """The same, with other money to ask."""
        return replace(self, funding=funding)

    @property
    def requeues(self) -> bool:
        """Whether an attempt that others ended is followed by another."""
        chosen = self.runtime.on_preempt
        return self.runtime.checkpoint is not None if chosen is None else chosen is OnPreempt.REQUEUE


def template_gpus(template: dict[str, Any] | None) -> int | None:
    """The GPU limit that a pod template sets, summed over its containers."""
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    limits = [((each.get("resources") or {}).get("limits") or {}).get("nvidia.com/gpu") for each in containers]
    found = [int(limit) for limit in limits if limit is not None and str(limit).isdigit()]
    return sum(found) or None
