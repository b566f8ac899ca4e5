"""What the engine can be told: requests and observations. Only what `decide` makes of them is a fact."""

from __future__ import annotations

import msgspec

from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.node import Node
from fairlease.model.record import Key
from fairlease.model.reservation import ByHand
from fairlease.model.run import Funding, RunSpec


class Command(msgspec.Struct, frozen=True, tag=True):
    """One wish or report."""


class Configure(Command, frozen=True):
    """Run under these settings."""

    config: Config


class SetNode(Command, frozen=True):
    """A node is there, like this (also: cordoned, not ready, fenced, back again)."""

    node: Node


class FailNode(Command, frozen=True):
    """A node is gone, and all that ran on it."""

    node: str


class RemoveNode(Command, frozen=True):
    """A node is taken out for good; what ran on it is gone."""

    node: str


class SetBudget(Command, frozen=True):
    """Write a Budget."""

    budget: Key
    spec: BudgetSpec


class RemoveBudget(Command, frozen=True):
    """Delete a Budget."""

    budget: Key


class Submit(Command, frozen=True):
    """Ask for GPUs. `graceful`: its work needs time to leave when it is asked to, and `PodsGone` reports that it has left."""

    run: Key
    spec: RunSpec
    by: str | None = None
    graceful: bool = False


class Cancel(Command, frozen=True):
    """End a run, or take it out of the queue."""

    run: Key


class WorkEnded(Command, frozen=True):
    """The work of one attempt is over, with an exit code. `retry_after`: ms before the next attempt, where there is one."""

    run: Key
    attempt: int
    exit_code: int
    retry_after: int = 0


class WorkStarted(Command, frozen=True):
    """All pods of an attempt were observed to run."""

    run: Key
    attempt: int


class StartFailed(Command, frozen=True):
    """Pods of an attempt could not be started in time, and why. `retry_after`: ms before the next attempt."""

    run: Key
    attempt: int
    message: str
    retry_after: int = 0


class PodFailed(Command, frozen=True):
    """One pod of an attempt failed by itself (not with its node). `retry_after`: ms before the next attempt."""

    run: Key
    attempt: int
    rank: int
    exit_code: int = 1
    retry_after: int = 0


class PodsGone(Command, frozen=True):
    """Pods that were asked to leave are gone, and the GPUs of these leases are free."""

    run: Key
    leases: tuple[str, ...]


class Resize(Command, frozen=True):
    """Set the width that an elastic run would like to have, for good; what is too much is released at once."""

    run: Key
    desired: int


class Resolve(Command, frozen=True):
    """Free GPUs of a flavor, on nodes with these labels, for maintenance: by the same rules and with the same record as a claim."""

    flavor: str
    location: dict[str, str]
    asked: ByHand


class SetFunding(Command, frozen=True):
    """Set whom a run may ask for money beyond its family, for good; loans that run stay as they are."""

    run: Key
    funding: Funding


class Drill(Command, frozen=True):
    """Rehearse a swap: treat a rank as lost (None: the lowest that has a spare) and let a spare of its group take over."""

    run: Key
    rank: int | None = None


class TimePassed(Command, frozen=True):
    """Fire the timers that are due."""


class Forecast(Command, frozen=True):
    """Say when runs that wait will start (those named, or all), and write down what is new of it."""

    runs: tuple[Key, ...] = ()


AnyCommand = (
    Configure
    | SetNode
    | FailNode
    | RemoveNode
    | SetBudget
    | RemoveBudget
    | Submit
    | Cancel
    | WorkStarted
    | StartFailed
    | WorkEnded
    | PodFailed
    | PodsGone
    | Resize
    | Resolve
    | SetFunding
    | Drill
    | TimePassed
    | Forecast
)
