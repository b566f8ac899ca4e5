"""Why runs wait for money, in the words of now, where those that the ledger recorded are outdated.

An entry tells why a run waits when the cause becomes another. When a Budget is edited and the cause stays, its numbers do not, and
no entry says so. These are made anew when the terms of a Budget change and at each look at everything, once for runs that are
alike: so a sentence is written again as often as that at the most, and only where it became another. Leases that come and go
change numbers too, but all the time: they wait for the next look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.ledger.state import events as ev
from fairlease.reason import COVER_CAUSES, Reason
from fairlease.report.explain import words

if TYPE_CHECKING:
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key
    from fairlease.scheduler import Decider

TERMS = ev.BudgetSet | ev.BudgetRemoved | ev.EnvelopeTurned
"""What changes the terms of a Budget: an edit, or a window that opens or closes."""


class _Reworded(NamedTuple):
    """What the ledger recorded, and how that would be said now."""

    reason: Reason
    message: str
    now: str


class WaitingReasons:
    """The sentences of one leadership. It forgets them with it: a look at everything makes the same ones again."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._doubted: set[Key] = set()
        self._said: dict[Key, _Reworded] = {}
        self._alike: dict[bytes, str] = {}
        self._seq = 0

    def doubt(self) -> list[Key]:
        """All of it may be outdated: gives the runs that wait for money."""
        others = self._decider.state.queue.others.values()
        shapes = (each for alike in others for each in alike.values() if each.reason in COVER_CAUSES)
        waiting = [run.key for shape in shapes for run in shape.runs.values()]
        self._doubted.update(waiting)
        return waiting

    def of(self, run: RunState, now: int) -> str:
        """What to tell of a run that lives."""
        if run.key in self._doubted:
            self._doubted.discard(run.key)
            self._said[run.key] = _Reworded(run.reason, run.message, self._anew(run, now))
        said = self._said.get(run.key)
        if said is None:
            return run.message
        if (said.reason, said.message) != (run.reason, run.message):
            del self._said[run.key]
            return run.message
        return said.now

    def forget(self, run: Key) -> None:
        """It is over."""
        self._doubted.discard(run)
        self._said.pop(run, None)

    def _anew(self, run: RunState, now: int) -> str:
        decider = self._decider
        if self._seq != decider.head.seq:
            self._seq, self._alike = decider.head.seq, {}
        if run.shape not in self._alike:
            self._alike[run.shape] = words(decider.state, decider.engine.family, run, max(now, decider.state.at))
        return self._alike[run.shape]
