"""How long runs waited, and how wrong forecasts of it were: what the next forecast is made with.

Some of the runs that were forecast are witnesses: what was believed of their wait is kept, and what became of it. Where queues
are long, what a start teaches is old news, as it was foreseen days ago; so witnesses that wait still are heard as well, for what
is now believed of them (`engine.belief`). They stand apart in time by a share of the wait that was foreseen, so that a thousand
runs that were asked for in one minute are not a thousand witnesses of the same thing.

The shares that P10, P50 and P90 are taken at follow what comes of them: each witness that starts moves them a little, down where it
came before, up where it came after. In the long run as many starts come before each as should, whatever the cluster is like.

All numbers are integers (thousandths of a natural logarithm, millionths of a share), so that what is undone leaves no trace. Only
the forecast that was made when a run began to wait teaches, because that is the one people ask for and the one that is scored.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.amount import SECOND
from fairlease.model.record import Key

if TYPE_CHECKING:
    from fairlease.ledger.state.events import Foreseen
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.undo import UndoLog

EXPERTS = 3
"""Expert k counts the play with k/2 and the owner's usual wait with the rest."""

REMEMBERED = 500
"""Starts whose scores are remembered."""
WITNESSES = 256
"""Forecasts that are kept to learn from."""
APART = 32
"""Witnesses stand apart by the wait that was foreseen, divided by this."""
WAITS = 20
"""Waits of each owner that are remembered."""
EVERYBODY = ""
"""Under this name, the latest waits of all."""

PLAY_MIN = 10 * SECOND
ACTUAL_MIN = SECOND
SHARES = (100, 500, 900)
"""P10, P50 and P90, in thousandths."""

MOMENT = 250
"""In milliseconds: how long after a date that was certain a start may come that is still on time."""

PACES = (10, 30, 10)
"""By how many thousandths of what it was off each share is moved by a start; the middle can follow faster, it is seldom far off."""
LEAN_MAX = 200_000
"""How far a share may lean, in millionths."""


def nats(ms: int) -> int:
    """The logarithm of a time, in thousandths."""
    return round(1000 * math.log(ms))


def centre(expert: int, play: int, usual: int | None) -> int:
    """What an expert believes of a wait, in `nats`, before its errors are looked at."""
    by_play = nats(max(play, PLAY_MIN))
    by_owner = by_play if usual is None else nats(max(usual, ACTUAL_MIN))
    return (expert * by_play + (EXPERTS - 1 - expert) * by_owner) // (EXPERTS - 1)


class Scored(NamedTuple):
    """One start that had been forecast, and how the forecast that was told fared.

    `error` and `baseline_error` are milliseconds; the latter is None where nothing was there to compare with.
    """

    inside: bool
    before_p50: bool
    before_p90: bool
    error: int
    baseline_error: int | None


class Witness(NamedTuple):
    """What was believed at a time of a run's wait from then on, by each expert; and the wait that it came to, if that is known."""

    number: int
    run: Key
    at: int
    centres: tuple[int, ...]
    actual: int | None = None


KeptWaits = tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[Scored, ...], tuple[Witness, ...], tuple[int, ...]]
"""As a snapshot holds them."""


class Waits:
    """What starts have taught. `lean`: by how much each share is moved, in millionths."""

    def __init__(self) -> None:
        self.recent: dict[str, tuple[int, ...]] = {}
        self.scored: deque[Scored] = deque()
        self.witnesses: dict[int, Witness] = {}
        self.open: dict[Key, int] = {}
        self.lean = (0,) * len(SHARES)
        self._numbers = 0

    def usual(self, owner: str, waited: int = 0) -> int | None:
        """How much longer this owner's runs waited lately that had waited so long, in the middle; else everybody's; else None."""
        for name in (owner, EVERYBODY):
            rest = sorted(wait - waited for wait in self.recent.get(name, ()) if wait > waited)
            if rest:
                return rest[len(rest) // 2]
        return None

    def latest(self) -> list[Witness]:
        """All witnesses, the latest first."""
        return [self.witnesses[number] for number in sorted(self.witnesses, reverse=True)]

    def told(self, undo: UndoLog, run: Key, at: int, first: Foreseen) -> None:
        """A run got its first forecast: it is a witness, if there was none just before it."""
        last = self.witnesses.get(self._numbers)
        if last is not None and (at - last.at) * APART < max(first.play, PLAY_MIN):
            return
        undo.later(setattr, self, "_numbers", self._numbers)
        self._numbers += 1
        centres = tuple(centre(expert, first.play, first.usual) for expert in range(EXPERTS))
        undo.put(self.witnesses, self._numbers, Witness(self._numbers, run, at, centres))
        undo.put(self.open, run, self._numbers)
        if self._numbers - WITNESSES in self.witnesses:
            self._drop(undo, self._numbers - WITNESSES)

    def gone(self, undo: UndoLog, run: Key) -> None:
        """A run is over that had not started: it tells nothing."""
        if run in self.open:
            self._drop(undo, self.open[run])

    def started(self, undo: UndoLog, run: RunState, now: int) -> None:
        """A run that was touched starts now: note how long it waited, and what became of its forecast, which is over."""
        wait = now - run.asked_at
        if wait > 0:
            for name in (run.spec.owner, EVERYBODY):
                undo.put(self.recent, name, (*self.recent.get(name, ()), wait)[-WAITS:])
        if run.foreseen_first is None:
            return
        (at, told), run.foreseen, run.foreseen_first = run.foreseen_first, None, None
        baseline = None if told.baseline is None else abs(now - at - told.baseline)
        came = punctual(now, told.p50, told.p90)
        self._score(
            undo,
            Scored(
                inside=told.p10 <= came <= told.p90,
                before_p50=came <= told.p50,
                before_p90=came <= told.p90,
                error=abs(now - told.p50),
                baseline_error=baseline,
            ),
        )
        number = self.open.get(run.key)
        if number is not None:
            undo.pop(self.open, run.key)
            witness = self.witnesses[number]._replace(actual=nats(max(now - at, ACTUAL_MIN)))
            undo.put(self.witnesses, number, witness)
            self._lean(undo, (came <= told.p10, came <= told.p50, came <= told.p90))

    def _drop(self, undo: UndoLog, number: int) -> None:
        witness = undo.pop(self.witnesses, number)
        if self.open.get(witness.run) == number:
            undo.pop(self.open, witness.run)

    def _lean(self, undo: UndoLog, before: tuple[bool, ...]) -> None:
        undo.later(setattr, self, "lean", self.lean)
        moved = [pace * (share - 1000 * came) for pace, share, came in zip(PACES, SHARES, before, strict=True)]
        self.lean = tuple(max(-LEAN_MAX, min(LEAN_MAX, lean + by)) for lean, by in zip(self.lean, moved, strict=True))

    def _score(self, undo: UndoLog, row: Scored) -> None:
        self.scored.append(row)
        undo.later(self._unscore, self.scored.popleft() if len(self.scored) > REMEMBERED else None)

    def _unscore(self, left: Scored | None) -> None:
        self.scored.pop()
        if left is not None:
            self.scored.appendleft(left)

    def freeze(self) -> KeptWaits:
        """For a snapshot."""
        witnesses = tuple(self.witnesses[number] for number in sorted(self.witnesses))
        return tuple(sorted(self.recent.items())), tuple(self.scored), witnesses, (*self.lean, self._numbers)

    def thaw(self, kept: KeptWaits) -> None:
        """From a snapshot."""
        recent, scored, witnesses, (*lean, self._numbers) = kept
        witnesses = tuple(each._replace(centres=_of_three(each.centres)) for each in witnesses)
        self.recent.update(recent)
        self.scored.extend(scored)
        self.lean = tuple(lean)
        for witness in witnesses:
            if witness.number <= self._numbers - WITNESSES:
                continue  # The first format of snapshots kept twice as many.
            self.witnesses[witness.number] = witness
            if witness.actual is None:
                self.open[witness.run] = witness.number


def _of_three(centres: tuple[int, ...]) -> tuple[int, ...]:
    """What the experts believed, of whom the first format of snapshots kept five: k/4 instead of k/2 of the play."""
    return centres if len(centres) == EXPERTS else centres[::2]


def punctual(started: int, p50: int, p90: int) -> int:
    """When a start counts as having come: a moment after a date that was told as certain, if not sooner, is at it.

    Real clocks wake a scheduler some milliseconds late; a date that was kept would count as missed.
    """
    return p90 if p50 == p90 < started <= p90 + MOMENT else started
