"""Trace: what a cluster was really asked for, job by job, and how such a job is put to the engine as a Run.

A reader (`trace_formats`) makes jobs of the lines of a file; from here on all traces are alike. Times are milliseconds since 1970,
so that the days of a trace are days of a calendar, on which quotas change.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fairlease.engine import command as cmd
from fairlease.model.record import Key, key
from fairlease.model.run import OnPreempt, Resources, RunSpec, Runtime

FLAVOR = "GPU"
"""The flavor of every GPU in a trace: none of them tells more."""

ROOT = "org"
"""The owner above all owners of a trace."""

LARGE_GPUS = 64
"""Runs wider than this are told apart: they are the ones that starve where small ones pass them."""


class TraceJob(NamedTuple):
    """One job as it was: when it was asked for, by whom, how wide it was and how long it ran."""

    name: str
    asked: int
    owner: str
    gpus: int
    duration: int
    nodes: int | None = None
    limit: int | None = None
    user: str | None = None
    exit_code: int = 0


class Trace(NamedTuple):
    """The jobs of a file in order of asking, and how many of its lines told of jobs that never ran."""

    source: str
    form: str
    jobs: tuple[TraceJob, ...]
    left_out: int

    @property
    def begin(self) -> int:
        """When the first job was asked for."""
        return self.jobs[0].asked

    @property
    def end(self) -> int:
        """When the last job was asked for."""
        return self.jobs[-1].asked

    @property
    def earnest(self) -> int:
        """When the first of its jobs but for a hundredth was asked for.

        Records often begin with old jobs that had survived until then. Philly's first 71 fill 20 of its 109 days: a mean over all
        would hide that the two weeks behind them ask for two and a half times as much.
        """
        return self.jobs[len(self.jobs) // 100].asked

    def first(self, jobs: int | None) -> Trace:
        """The same trace, only its first jobs."""
        return self._replace(jobs=self.jobs[:jobs])

    def owners(self) -> tuple[str, ...]:
        """Everybody who asks, by name."""
        return tuple(sorted({job.owner for job in self.jobs}))


class Limits(NamedTuple):
    """Which time limit a run asks for: `kind` is trace (what the file says, where it does), none, or factor."""

    kind: str = "trace"
    factor: float = 1.0

    def of(self, job: TraceJob) -> int | None:
        """The `maxDuration` of a job."""
        if self.kind == "trace":
            return job.limit
        return math.ceil(job.duration * self.factor) if self.kind == "factor" else None


def read_limits(text: str) -> Limits:
    """`trace`, `none`, `exact` or `factor:F`; raises ValueError."""
    if text in ("trace", "none"):
        return Limits(text)
    if text == "exact":
        return Limits("factor")
    kind, _, number = text.partition(":")
    try:
        factor = float(number) if kind == "factor" else math.nan
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise ValueError(f"{text!r} is none of trace, none, exact and factor:F, where F is more than 0")
    return Limits(kind, factor)


def pods_of(job: TraceJob, node_gpus: int) -> tuple[int, int]:
    """How many pods, of how many GPUs each.

    As many nodes as the trace tells, else as few as hold the job, filled evenly: 16 GPUs are 2 × 8, 12 are 2 × 6. What does not
    come out even is rounded up: 9 GPUs are 2 × 5.
    """
    pods = -(-job.gpus // node_gpus)
    if job.nodes is not None and pods <= job.nodes <= job.gpus:
        pods = job.nodes
    return pods, -(-job.gpus // pods)


class Asker:
    """Makes Runs of jobs. Jobs that ask for the same share one spec, as the engine sees them as one shape."""

    def __init__(self, node_gpus: int, limits: Limits) -> None:
        self.node_gpus = node_gpus
        self.limits = limits
        self._specs: dict[tuple[str, int, int, int | None], RunSpec] = {}

    def width(self, job: TraceJob) -> int:
        """GPUs that a job really takes."""
        pods, each = pods_of(job, self.node_gpus)
        return pods * each

    def run_time(self, job: TraceJob) -> int:
        """How long one attempt lasts: until the work is done, or the limit is reached."""
        limit = self.limits.of(job)
        return job.duration if limit is None else min(job.duration, limit)

    def demand(self, trace: Trace) -> float:
        """GPUs that are asked for on average, once the trace has begun in earnest; what was left by then of earlier jobs counts."""
        begin = trace.earnest
        left = (max(0, self.run_time(job) - max(0, begin - job.asked)) * self.width(job) for job in trace.jobs)
        return sum(left) / max(1, trace.end - begin)

    def submit(self, job: TraceJob) -> cmd.Submit:
        """The command that asks for a job."""
        return cmd.Submit(run_key(job), self.spec(job), job.user)

    def spec(self, job: TraceJob) -> RunSpec:
        """A rigid run that begins anew when it was cut: traces do not tell of checkpoints."""
        pods, each = pods_of(job, self.node_gpus)
        limit = self.limits.of(job)
        shape = (job.owner, pods, each, limit)
        found = self._specs.get(shape)
        if found is None:
            found = self._specs[shape] = RunSpec(
                owner=job.owner,
                resources=Resources(gpu_type=FLAVOR, total_gpus=pods * each),
                runtime=Runtime(max_duration=limit, on_preempt=OnPreempt.REQUEUE),
                gpus_per_pod=each,
            )
        return found


def run_key(job: TraceJob) -> Key:
    """The run that a job becomes."""
    return key(job.name)
