"""Predict: how long work will run, from the recent runs of its owner; kept apart from the limit at which it is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.model.amount import HOUR

if TYPE_CHECKING:
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State

UNKNOWN = 4 * HOUR
"""What is assumed of an owner whose runs nobody has seen end yet."""


def duration_of(state: State, run: RunState) -> int:
    """How long a run will take at the most, nine times in ten."""
    past = sorted(duration for _, duration in state.history.get(run.spec.owner, ()))
    if past:
        guess = past[min(len(past) - 1, len(past) * 9 // 10)]
    else:
        guess = run.spec.runtime.expected_duration or UNKNOWN
    limit = run.spec.runtime.max_duration
    return guess if limit is None else min(guess, limit)


def end_of(state: State, run: RunState, now: int) -> int:
    """By when a running run will have ended, nine times in ten; one that outlived its prediction is given as long again."""
    assert run.started_at is not None, "asked of what runs"
    duration = duration_of(state, run)
    elapsed = now - run.started_at
    while duration <= elapsed:
        duration = 2 * elapsed + 1
    end = run.started_at + duration
    return end if run.deadline is None else min(end, run.deadline)
