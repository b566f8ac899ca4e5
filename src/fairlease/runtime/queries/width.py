"""The width that somebody asks for: to so many GPUs, or by so many fewer. Every backend says no to the same, in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.engine.tick.lifecycle import rigid
from fairlease.model.record import short
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.model.record import Key
    from fairlease.model.run import RunSpec

ANOTHER = "ask for a width that it can have"


class WidthChange(NamedTuple):
    """How wide a run is, and how wide it would like to be."""

    allocated: int
    desired: int

    @classmethod
    def of(cls, spec: RunSpec, allocated: int) -> WidthChange:
        """What a spec would like, beside what there is."""
        desired = spec.resources.total_gpus if spec.malleable is None else spec.malleable.desired
        return cls(allocated, desired)

    @property
    def now(self) -> int:
        """What is counted from: what it has, or while it waits, what it would like."""
        return self.allocated or self.desired

    def view(self) -> dict[str, Any]:
        """As it is shown."""
        return self._asdict()


class WidthRequest(NamedTuple):
    """Another width: `to` so many GPUs, or `by` so many fewer. `narrower`: it must not become wider."""

    to: int | None
    by: int | None
    narrower: bool


class WidthRefusal(NamedTuple):
    """Why a width cannot be asked for, and what can be done instead."""

    reason: Reason
    message: str
    remedy: str


def wanted(run: Key, spec: RunSpec, width: WidthChange, asked: WidthRequest, command: str) -> int | WidthRefusal:
    """The width that was asked for, or what is wrong with asking; `command` is how the caller's program is called."""
    if (asked.to is None) == (asked.by is None):
        return WidthRefusal(Reason.InvalidRequest, "say to how many GPUs, or by how many", "say one of the two")
    if asked.by is not None and asked.by < 1:
        return WidthRefusal(Reason.InvalidRequest, f"by: {asked.by} is less than 1", "give back at least one GPU")
    if spec.malleable is None:
        return WidthRefusal(Reason.InvalidRequest, rigid(run, spec), ANOTHER)
    found = asked.to if asked.to is not None else width.now - (asked.by or 0)
    if asked.narrower and found > width.now:
        told = f"{short(run)} is {width.now} GPUs wide; {found} would be wider"
        return WidthRefusal(Reason.InvalidRequest, told, f"{command} resize {short(run)} --to {found}")
    return found
