"""What every step of a decision is handed: the state, the time, the family of owners, and the one way to make something true.

The engine remembers nothing between two ticks that the ledger does not tell. The steps themselves are in `engine.tick.decide`; they
are handed in, so that a rehearsal inside a step can ask the same `decide` without this module knowing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover.family import Family
from fairlease.engine.reserve.availability import AvailabilityCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlease.engine.command import AnyCommand
    from fairlease.engine.refusal import Refusal
    from fairlease.ledger.state import events as ev
    from fairlease.ledger.state.state import State
    from fairlease.model.record import Key
    from fairlease.reason import Reason


class Try(NamedTuple):
    """One attempt at starting waiting runs: what came of it, and for how many of one shape it holds."""

    run: Key
    result: Reason
    runs: int
    tally: dict[str, int]


class RunFault(NamedTuple):
    """An exception while a run was handled: a bug of ours that is contained to that run. The traceback is for the log.

    `request`: it was a request about the run that could not be handled, and that is refused.
    """

    message: str
    request: bool
    traceback: str


class Decision(NamedTuple):
    """What one tick makes true, the answer to each command (None: done), the counters of every try, and faults by run."""

    events: tuple[ev.AnyEvent, ...]
    answers: tuple[Refusal | None, ...]
    tries: tuple[Try, ...]
    faults: Mapping[Key, RunFault]


class Engine:
    """One state, and what the steps that decide over it share.

    `beacon` is a public value that nobody here could know beforehand, where a backend has one: it enters every draw. An engine that
    `rehearses` plays what will come, inside a trial that is always undone, and omits what only matters where it counts.
    `subject` is the run that is being handled: a fault is that run's, and the tick is tried again with it in `faults`.
    `observes_starts`: its backend reports when pods run.
    """

    def __init__(self, state: State, steps: Callable[[Engine, tuple[AnyCommand, ...]], Decision]) -> None:
        self.state = state
        self.now = state.at
        self.events: list[ev.AnyEvent] = []
        self.beacon = ""
        self.rehearses = False
        self.observes_starts = False
        self.horizon = AvailabilityCache()
        self.subject: Key | None = None
        self.requested = False
        self.faults: Mapping[Key, RunFault] = {}
        self._steps = steps
        self._family: Family | None = None

    @property
    def family(self) -> Family:
        """The graph of owners, built anew when Budgets changed."""
        if self._family is None or self._family.version != self.state.budgets_version:
            self._family = Family(self.state)
        return self._family

    def twin(self) -> Engine:
        """Another over the same state, for a rehearsal while this one decides."""
        twin = Engine(self.state, self._steps)
        twin.now, twin.beacon, twin.rehearses, twin._family = self.now, self.beacon, True, self.family
        return twin

    def decide(
        self, now: int, commands: tuple[AnyCommand, ...], faults: Mapping[Key, RunFault] | None = None
    ) -> Decision:
        """One tick. The state is left changed, inside a trial that the caller must keep or undo.

        `faults`: runs that could not be handled when this tick was tried before; they are left alone for a while.
        """
        self.now = max(now, self.state.at)
        self.events, self.subject, self.requested, self.faults = [], None, False, faults or {}
        return self._steps(self, commands)

    def emit(self, event: ev.AnyEvent) -> None:
        """Make something true."""
        self.state.apply(self.now, event)
        self.events.append(event)
