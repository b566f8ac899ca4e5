"""How far forecasts were off: the offsets that put P10, P50 and P90 around what a rehearsal foresees, for each horizon.

This is adaptive conformal inference by quantile tracking (Gibbs & Candès 2021; Angelopoulos et al. 2023), one tracker for each
share and horizon. A start after its date moves the offset up by a step times the share, one before it down by a step times the
rest: the offset stands still only where as many starts come before as should. Over any sequence of forecasts the weighted share of
starts before P10, P50 or P90 therefore differs from 10, 50 or 90 % by no more than the range of the offset divided by the sum of
the steps, whatever the cluster is like. That needs no tuning; the constants below decide only how fast it holds, and how far
offsets swing (docs/design/0011-forecasts-learn-from-their-errors.md has the measurements).

Feedback comes as soon as it is known. A run that starts tells whether it came before each date; one that still waits past a date
is after it, and that is known then. Waiting for starts alone would hear only of short waits while a queue grows.

All numbers are integers: offsets in `OCTAVE`ths of a doubling of the wait, shares and weights in thousandths. Only the first
forecast of each wait teaches: it is the one that is scored.
"""

from __future__ import annotations

from collections import deque
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedList

from fairlease.model.amount import DAY, HOUR
from fairlease.model.record import Key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.ledger.state.events import Foreseen
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.undo import UndoLog

REMEMBERED = 500
"""Starts whose scores are remembered."""

SHARES = (100, 500, 900)
"""P10, P50 and P90, in thousandths."""

HORIZONS = (HOUR, 6 * HOUR, DAY)
"""Where horizons end, by the wait until P50; the last has no end."""

OCTAVE = 1 << 20
"""A doubling of the wait, in units of an offset."""

FIRST = (-2 * OCTAVE, 0, 2 * OCTAVE)
"""Offsets before anything was learned: the rehearsal, and four times earlier or later."""

STEPS = (200, 60, 200)
"""How far one forecast moves each offset, in thousandths of half the distance between P10 and P90."""

HALF_WIDTHS = (OCTAVE, 4 * OCTAVE)
"""Between these, half that distance scales the steps."""

EAGER = 5
"""The first forecast of a horizon moves its offsets by so many steps more, the nth by as many divided by n."""

COMMON = 300
"""The part of each step, in thousandths, that moves the offsets of all horizons, so that one never seen is not a stranger."""

CERTAIN = (Reason.Notice, Reason.Window)
"""What a date rests on that is no estimate."""

FARTHEST = 16 * OCTAVE
"""No offset goes beyond: a wait of a second is told from one of a day."""

MOMENT = 250
"""In milliseconds: how long after a date that was certain a start may come that is still on time."""


def horizon_of(wait: int) -> int:
    """Which horizon a wait until P50 belongs to."""
    return sum(wait >= end for end in HORIZONS)


class Scored(NamedTuple):
    """One start that had been forecast, and how the forecast fared.

    `error` and `baseline_error` are milliseconds; the latter is None where nothing was there to compare with.
    """

    inside: bool
    before_p50: bool
    before_p90: bool
    error: int
    baseline_error: int | None


class Open(NamedTuple):
    """A forecast of a run that waits: horizon, weight in thousandths, P10, P50 and P90, and how many of these have passed."""

    run: Key
    horizon: int
    weight: int
    dates: tuple[int, ...]
    passed: int = 0


KeptWaits = tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[Open, ...], tuple[Scored, ...]]
"""As a snapshot holds them: offsets (the common ones first), how many forecasts each horizon has learned from, and the rest."""


class Waits:
    """What forecasts taught.

    `offsets` and `learned` are by horizon; the last place is common to all. `crowds` counts open forecasts by horizon; `due` has
    the next date of each.
    """

    def __init__(self) -> None:
        common = len(HORIZONS) + 1
        self.offsets: dict[int, tuple[int, ...]] = dict.fromkeys(range(common), (0,) * len(SHARES)) | {common: FIRST}
        self.learned: dict[int, int] = dict.fromkeys(range(common + 1), 0)
        self.crowds: dict[int, int] = dict.fromkeys(range(common), 0)
        self.open: dict[Key, Open] = {}
        self.scored: deque[Scored] = deque()
        self._common = common
        self.due: SortedList[tuple[int, Key]] = SortedList()

    def offset(self, horizon: int) -> tuple[int, ...]:
        """By how much P10, P50 and P90 of a horizon differ from what the rehearsal says."""
        both = zip(self.offsets[self._common], self.offsets[horizon], strict=True)
        return tuple(max(-FARTHEST, min(FARTHEST, common + own)) for common, own in both)

    def told(self, undo: UndoLog, run: Key, at: int, first: Foreseen) -> None:
        """A run got its first forecast. What is certain teaches nothing.

        Forecasts of one horizon that are open together mostly share one fate, and are answered late: each weighs the less the more
        there are. The inverse root of their number is the step that delayed feedback asks for (Joulani et al. 2013).
        """
        self._pass(undo, at)
        if first.source in CERTAIN or run in self.open:
            return
        horizon = horizon_of(first.p50 - at)
        weight = isqrt(1_000_000 // (1 + self.crowds[horizon]))
        undo.put(self.crowds, horizon, self.crowds[horizon] + 1)
        self._set(undo, Open(run, horizon, weight, (first.p10, first.p50, first.p90)))

    def gone(self, undo: UndoLog, run: Key) -> None:
        """A run is over that had not started: of the dates that had not passed it tells nothing."""
        if run in self.open:
            self._close(undo, self.open[run])

    def started(self, undo: UndoLog, run: RunState, now: int) -> None:
        """A run that was touched starts now: its forecast is over, is scored, and teaches."""
        self._pass(undo, now)
        if run.foreseen_first is None:
            return
        (at, told), run.foreseen, run.foreseen_first = run.foreseen_first, None, None
        came = punctual(now, told.p50, told.p90)
        self._score(
            undo,
            Scored(
                inside=told.p10 <= came <= told.p90,
                before_p50=came <= told.p50,
                before_p90=came <= told.p90,
                error=abs(now - told.p50),
                baseline_error=None if told.baseline is None else abs(now - at - told.baseline),
            ),
        )
        waited = self.open.get(run.key)
        if waited is not None:
            for share in range(waited.passed, len(SHARES)):
                self._learn(undo, waited, share, before=came <= waited.dates[share])
            self._close(undo, waited)

    def _pass(self, undo: UndoLog, now: int) -> None:
        """Runs that wait past a date of their forecast are after it."""
        while self.due and self.due[0][0] + MOMENT < now:
            waited = self.open[self.due[0][1]]
            self._learn(undo, waited, waited.passed, before=False)
            self._set(undo, waited._replace(passed=waited.passed + 1))

    def _learn(self, undo: UndoLog, waited: Open, share: int, *, before: bool) -> None:
        low, _, high = self.offset(waited.horizon)
        half = max(HALF_WIDTHS[0], min(HALF_WIDTHS[1], (high - low) // 2))
        step = STEPS[share] * waited.weight * (SHARES[share] - 1000 * before) * half // 1_000_000_000
        for place, part in ((self._common, COMMON), (waited.horizon, 1000 - COMMON)):
            count = self.learned[place] + 1
            moved = list(self.offsets[place])
            moved[share] += step * part * (count + EAGER) // (1000 * count)
            moved[share] = max(-FARTHEST, min(FARTHEST, moved[share]))
            undo.put(self.offsets, place, tuple(moved))
            if share == len(SHARES) - 1:
                undo.put(self.learned, place, count)

    def _set(self, undo: UndoLog, waited: Open) -> None:
        """A forecast is open, and its next date is waited for."""
        self._forget(undo, waited.run)
        undo.put(self.open, waited.run, waited)
        if waited.passed < len(SHARES):
            due = (waited.dates[waited.passed], waited.run)
            self.due.add(due)
            undo.later(self.due.remove, due)

    def _close(self, undo: UndoLog, waited: Open) -> None:
        self._forget(undo, waited.run)
        undo.pop(self.open, waited.run)
        undo.put(self.crowds, waited.horizon, self.crowds[waited.horizon] - 1)

    def _forget(self, undo: UndoLog, run: Key) -> None:
        waited = self.open.get(run)
        if waited is not None and waited.passed < len(SHARES):
            due = (waited.dates[waited.passed], run)
            self.due.remove(due)
            undo.later(self.due.add, due)

    def _score(self, undo: UndoLog, row: Scored) -> None:
        self.scored.append(row)
        undo.later(self._unscore, self.scored.popleft() if len(self.scored) > REMEMBERED else None)

    def _unscore(self, left: Scored | None) -> None:
        self.scored.pop()
        if left is not None:
            self.scored.appendleft(left)

    def freeze(self) -> KeptWaits:
        """For a snapshot."""
        offsets = tuple(each for _, each in sorted(self.offsets.items()))
        learned = tuple(each for _, each in sorted(self.learned.items()))
        return offsets, learned, tuple(each for _, each in sorted(self.open.items())), tuple(self.scored)

    def thaw(self, kept: KeptWaits) -> None:
        """From a snapshot."""
        offsets, learned, opened, scored = kept
        self.offsets.update(enumerate(offsets))
        self.learned.update(enumerate(learned))
        self.scored.extend(scored)
        for waited in opened:
            self.open[waited.run] = waited
            self.crowds[waited.horizon] += 1
            if waited.passed < len(SHARES):
                self.due.add((waited.dates[waited.passed], waited.run))


def punctual(started: int, p50: int, p90: int) -> int:
    """When a start counts as having come: a moment after a date that was told as certain, if not sooner, is at it.

    Real clocks wake a scheduler some milliseconds late; a date that was kept would count as missed.
    """
    return p90 if p50 == p90 < started <= p90 + MOMENT else started
