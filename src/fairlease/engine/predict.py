"""Predict: when work will have ended, nine times in ten; kept apart from the limit at which it is killed.

What was expected of a run when it started stands until it is proved wrong: one that outlives it is given twice as long, again and
again. So a date that rests on it does not drift from look to look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlease.ledger.live import RunState


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
