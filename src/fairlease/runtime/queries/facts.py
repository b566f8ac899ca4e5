"""What questions are answered from: a state, the past as far as it is at hand, and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.record import Key, short
from fairlease.reason import Reason
from fairlease.runtime.queries.history import RunHistory, SubmittedRun
from fairlease.runtime.requests import Refused, name_key

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
    from fairlease.ledger.state.state import State
    from fairlease.ledger.store.protocol import Store
    from fairlease.scheduler import Scheduler


class PastNeeded(Exception):  # noqa: N818 - it says what is missing
    """The question is about what is over, and the facts at hand tell only how things stand."""


class Facts(NamedTuple):
    """What questions are answered from: a state with its engine and store, the runs there ever were, and the time.

    `history` is None where only the present is at hand. `program` is what one types to ask here.
    """

    scheduler: Scheduler
    history: RunHistory | None
    now: int
    program: str = "fairlease"
    bytes_max: int | None = None
    """How much one answer can carry, where that has a bound."""

    def run(self, name: str) -> SubmittedRun:
        """The run that somebody named, whether it lives or is over."""
        run = name_key(name)
        live = self.scheduler.state.runs.get(run)
        if live is not None:
            return SubmittedRun(run, live.spec, live.submitted_at, live.by)
        found = self.past.find(run)
        if found is None:
            raise Refused(Reason.NotFound, f"there is no run {short(run)}")
        return found

    def budget(self, name: str) -> Key:
        """The Budget that somebody named."""
        budget = name_key(name)
        if budget not in self.scheduler.state.budgets:
            raise Refused(Reason.NotFound, f"there is no Budget {short(budget)}")
        return budget

    @property
    def past(self) -> RunHistory:
        """Runs that are over; raises `PastNeeded` where they are not at hand."""
        if self.history is None:
            raise PastNeeded
        return self.history

    @property
    def state(self) -> State:
        """How things stand."""
        return self.scheduler.state

    @property
    def store(self) -> Store:
        """Where stories and leases of single runs are looked up."""
        return self.scheduler.store

    def engine_now(self) -> Engine:
        """An engine to think things through with, as of now."""
        engine = self.scheduler.engine.twin()
        engine.now = max(self.now, self.state.at)
        return engine
