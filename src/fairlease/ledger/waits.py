"""How long runs waited, and how wrong forecasts of it were: what the next forecast is made with.

A forward play of the engine knows the queue but not who will cancel, fail or be submitted; an owner's waits lately know that but
not the queue. Five experts blend the two in different shares, in the logarithm of time. Of each the ledger remembers how far it was
off when runs started, so that the spread of a forecast is that of the errors that were made, and the best expert speaks. All
numbers are integers (thousandths of a natural logarithm), so that what is undone leaves no trace.

Only the forecast that was made when a run began to wait teaches, because that is the one people ask for and the one that is
scored.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.amount import SECOND

if TYPE_CHECKING:
    from fairlease.ledger.live import RunState
    from fairlease.ledger.undo import UndoLog

EXPERTS = 5
"""Expert k counts the play with k/4 and the owner's usual wait with the rest."""

REMEMBERED = 500
"""Starts whose errors are remembered."""
JUDGED = 200
"""Of these, so many decide which expert speaks."""
WAITS = 20
"""Waits of each owner that are remembered."""
EVERYBODY = ""
"""Under this name, the latest waits of all."""

PLAY_MIN = 10 * SECOND
ACTUAL_MIN = SECOND
SHARES = (100, 500, 900)
"""P10, P50 and P90, in thousandths."""


def nats(ms: int) -> int:
    """The logarithm of a time, in thousandths."""
    return round(1000 * math.log(ms))


def centre(expert: int, play: int, usual: int | None) -> int:
    """What an expert believes of a wait, in `nats`, before its errors are looked at."""
    by_play = nats(max(play, PLAY_MIN))
    by_owner = by_play if usual is None else nats(max(usual, ACTUAL_MIN))
    return (expert * by_play + (EXPERTS - 1 - expert) * by_owner) // (EXPERTS - 1)


class Scored(NamedTuple):
    """One start that had been forecast: each expert's error and loss, and how the forecast that was told fared.

    `actual`, `error` and `baseline_error` are milliseconds; the last is None where nothing was there to compare with.
    """

    errors: tuple[int, ...]
    losses: tuple[int, ...]
    inside: bool
    before_p50: bool
    before_p90: bool
    error: int
    baseline_error: int | None


KeptWaits = tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[Scored, ...]]
"""As a snapshot holds them."""


class Waits:
    """What starts have taught."""

    def __init__(self) -> None:
        self.recent: dict[str, tuple[int, ...]] = {}
        self.scored: deque[Scored] = deque()
        self.errors: list[list[int]] = [[] for _ in range(EXPERTS)]
        self.losses = [0] * EXPERTS

    def usual(self, owner: str, waited: int = 0) -> int | None:
        """How much longer this owner's runs waited lately that had waited so long, in the middle; else everybody's; else None."""
        for name in (owner, EVERYBODY):
            rest = sorted(wait - waited for wait in self.recent.get(name, ()) if wait > waited)
            if rest:
                return rest[len(rest) // 2]
        return None

    def best(self) -> int:
        """The expert whose forecasts lost the least lately; while hardly any is known, the one that only plays."""
        enough = 10
        if len(self.scored) < enough:
            return EXPERTS - 1
        return min(range(EXPERTS), key=lambda expert: (self.losses[expert], -expert))

    def started(self, undo: UndoLog, run: RunState, now: int) -> None:
        """A run that was touched starts now: note how long it waited, and what became of its forecast, which is over."""
        wait = now - run.asked_at
        if wait > 0:
            for name in (run.spec.owner, EVERYBODY):
                undo.put(self.recent, name, (*self.recent.get(name, ()), wait)[-WAITS:])
        if run.foreseen_first is None:
            return
        (at, told), run.foreseen, run.foreseen_first = run.foreseen_first, None, None
        actual = nats(max(now - at, ACTUAL_MIN))
        errors = tuple(actual - centre(expert, told.play, told.usual) for expert in range(EXPERTS))
        baseline = None if told.baseline is None else abs(now - at - told.baseline)
        self._learn(
            undo,
            Scored(
                errors=errors,
                losses=tuple(_loss(self.errors[expert], error) for expert, error in enumerate(errors)),
                inside=told.p10 <= now <= told.p90,
                before_p50=now <= told.p50,
                before_p90=now <= told.p90,
                error=abs(now - told.p50),
                baseline_error=baseline,
            ),
        )

    def _learn(self, undo: UndoLog, row: Scored) -> None:
        self.scored.append(row)
        left = self.scored.popleft() if len(self.scored) > REMEMBERED else None
        self._count(row, 1)
        if left is not None:
            self._count(left, -1)
        if len(self.scored) > JUDGED:
            self._judge(self.scored[-JUDGED - 1], -1)
        self._judge(row, 1)
        undo.later(self._unlearn, left)

    def _unlearn(self, left: Scored | None) -> None:
        if len(self.scored) > JUDGED:
            self._judge(self.scored[-JUDGED - 1], 1)
        row = self.scored.pop()
        self._judge(row, -1)
        self._count(row, -1)
        if left is not None:
            self.scored.appendleft(left)
            self._count(left, 1)

    def _count(self, row: Scored, sign: int) -> None:
        for errors, error in zip(self.errors, row.errors, strict=True):
            if sign > 0:
                insort(errors, error)
            else:
                del errors[bisect_left(errors, error)]

    def _judge(self, row: Scored, sign: int) -> None:
        for expert, loss in enumerate(row.losses):
            self.losses[expert] += sign * loss

    def freeze(self) -> KeptWaits:
        """For a snapshot."""
        return tuple(sorted(self.recent.items())), tuple(self.scored)

    def thaw(self, kept: KeptWaits) -> None:
        """From a snapshot."""
        recent, scored = kept
        self.recent.update(recent)
        for row in scored:
            self.scored.append(row)
            self._count(row, 1)
        for row in scored[-JUDGED:]:
            self._judge(row, 1)


def _loss(errors: list[int], error: int) -> int:
    """The pinball loss of the quantiles that errors so far would have given: what it costs to be told wrong."""
    loss = 0
    for share in SHARES:
        known = errors[min(len(errors) - 1, len(errors) * share // 1000)] if errors else 0
        over = error - known
        loss += share * over if over >= 0 else (share - 1000) * over
    return loss
