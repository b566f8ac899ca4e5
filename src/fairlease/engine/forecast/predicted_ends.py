"""Predict: when work will have ended; kept apart from the limit at which it is killed.

For dates, what was expected of a run when it started (nine times in ten) stands until it is proved wrong: one that outlives it is
given twice as long, again and again, so that a date does not drift from look to look. For forecasts it is asked anew each time,
with what it has lasted already: `ledger.learning.durations` says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.ledger.learning.durations import MIDDLE, UNKNOWN, kinds_of

if TYPE_CHECKING:
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State

_AGE_BITS = 4


def duration_of(run: RunState) -> int:
    """How long a run that holds a reservation will take."""
    assert run.hold is not None, "asked of those who wait for a date"
    limit = run.spec.runtime.max_duration
    return run.hold.expected if limit is None else min(run.hold.expected, limit)


def end_of(run: RunState, now: int) -> int:
    """By when a running run will have ended."""
    assert run.started_at is not None, "asked of what runs"
    elapsed, expected = now - run.started_at, max(run.expected, 1)
    while expected <= elapsed:
        expected *= 2
    end = run.started_at + expected
    return end if run.deadline is None else min(end, run.deadline)


def middle(state: State, run: RunState, elapsed: int) -> int:
    """How long an attempt lasts in all, given that it has lasted for `elapsed`: half of those like it last longer."""
    runtime = run.spec.runtime
    found = state.durations.quantiles(kinds_of(run), elapsed, runtime.expected_duration, (MIDDLE,))[0]
    limit = runtime.max_duration
    return found if limit is None else min(found, max(limit, elapsed + 1))


def alike(run: RunState, elapsed: int) -> tuple[object, ...]:
    """What those share that may be taken for one: their kind, what was stated of them, and their age, to an eighth."""
    runtime, grain = run.spec.runtime, max(0, elapsed.bit_length() - _AGE_BITS)
    return kinds_of(run), runtime.expected_duration, runtime.max_duration, elapsed >> grain, grain


def taken_up(state: State, run: RunState, elapsed: int) -> tuple[int, ...]:
    """How much of each of `SPANS`, from now on, an attempt is expected to take up that has lasted for `elapsed`."""
    runtime = run.spec.runtime
    return state.durations.taken_up(kinds_of(run), elapsed, runtime.expected_duration, runtime.max_duration)


def last_two(state: State, run: RunState, elapsed: int) -> int:
    """What forecasts are compared with: the mean of the last two runs like it, doubled while it is outlived."""
    found = UNKNOWN
    for kind in kinds_of(run):
        histogram = state.durations.kinds.get(kind)
        if histogram is not None:
            found = sum(histogram.last) // len(histogram.last)
    found = max(1, found)
    while found <= elapsed:
        found *= 2
    limit = run.spec.runtime.max_duration
    return found if limit is None else min(found, max(limit, elapsed + 1))
