"""Scenario: a cluster, its teams and what happens to them, as records that can be played.

`fairlease.sim.scenario_file` reads them. Everything that can be known to be wrong before the film begins is found
there, all at once and with its line: a misspelled field, an object that breaks a rule, a node or run that nobody has
declared. What is left can be played without a check.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, TypeAlias

from fairlease.model.amount import parse_instant
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.node import Node
from fairlease.model.objects import BudgetObject, NodeObject, RunObject
from fairlease.model.record import Duration, GpuHours, Key, Record, Unit
from fairlease.model.reservation import Scope
from fairlease.model.run import RunSpec

START = parse_instant("2026-01-05T00:00:00Z")


class Work(Record, frozen=True, kw_only=True):
    """What a run's work will really do, hidden from the engine: time on the machine, or work that width divides.

    `leaves` is how long its pods take to go once they are asked to; None: they have to be killed (`never`).
    """

    duration: Duration | None = None
    gpu_hours: GpuHours | None = None
    exit_code: int = 0
    leaves: Annotated[int | None, Unit.NOTICE] = 0


class NodeEvent(enum.Enum):
    """What can happen to nodes, by the name of the step."""

    FAILS = "nodeFails"
    RETURNS = "nodeReturns"
    CORDONED = "nodeCordoned"
    UNCORDONED = "nodeUncordoned"
    NOT_READY = "nodeNotReady"
    PODS_DEAD = "podsDead"


class Submission(Record, frozen=True, kw_only=True):
    """A run is submitted; without `work` it runs until it is ended."""

    run: Key
    spec: RunSpec
    work: Work | None = None


class NodeChange(Record, frozen=True, kw_only=True):
    """Something happens to nodes, at once."""

    event: NodeEvent
    nodes: tuple[str, ...]


class BudgetChange(Record, frozen=True, kw_only=True):
    """A Budget gets a new spec."""

    budget: Key
    spec: BudgetSpec


class Shrink(Record, frozen=True, kw_only=True):
    """A run's desired width is set, for good."""

    run: Key
    to: int


class Cancellation(Record, frozen=True, kw_only=True):
    """A run is canceled."""

    run: Key


class Completion(Record, frozen=True, kw_only=True):
    """A run's work ends now."""

    run: Key
    exit_code: int = 0


class PodFailure(Record, frozen=True, kw_only=True):
    """One pod of a run fails by itself."""

    run: Key
    rank: int


class ResolveStep(Record, frozen=True, kw_only=True):
    """An administrator frees GPUs of a scope by hand."""

    scope: Scope
    gpus: int
    gpus_per_pod: int = 1
    group_gpus: int | None = None
    by: str = "admin"
    reason: str = ""


class Application(Record, frozen=True, kw_only=True):
    """An object is applied as it stands."""

    item: BudgetObject | RunObject | NodeObject


class Restart(Record, frozen=True, kw_only=True):
    """The engine is thrown away and rebuilt from the ledger."""


Action: TypeAlias = (
    Submission
    | NodeChange
    | BudgetChange
    | Shrink
    | Cancellation
    | Completion
    | PodFailure
    | ResolveStep
    | Application
    | Restart
)


class Step(Record, frozen=True, kw_only=True):
    """What happens at one time, in the order of the file; `field` is where it stands there (`spec.steps[3]`)."""

    at: int
    field: str
    actions: tuple[Action, ...]


class Subject(enum.Enum):
    """What an expectation can look at."""

    RUN = "run"
    BUDGET = "budget"
    RESERVATION = "reservation"
    LEASES = "leases"
    OUTCOMES = "outcomes"
    EVENTS = "events"


class Expectation(Record, frozen=True, kw_only=True):
    """What must be true at a time.

    Of a run, a Budget or a run's Reservation (`name`): that it is like `wanted`, or is not there where that is None. Of
    leases, outcomes and events that match `where`: that there are `count` of them, and that each is like `each`; None
    where it was not asked.
    """

    at: int
    field: str
    about: Subject
    name: Key | None = None
    wanted: Any = None
    where: dict[str, Any] = {}
    count: int | None = None
    each: dict[str, Any] | None = None


class Scenario(Record, frozen=True, kw_only=True):
    """A film that can be played. `start` is an instant; the other times (steps, expectations, `until`) count from it."""

    name: str
    start: int
    config: Config
    nodes: tuple[Node, ...]
    budgets: tuple[tuple[Key, BudgetSpec], ...]
    steps: tuple[Step, ...]
    until: int
    expect: tuple[Expectation, ...]
