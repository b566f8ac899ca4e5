"""Backoff: how long a run rests after its own work failed, before it is tried again. It holds no GPUs meanwhile."""

from __future__ import annotations

from fairlease.model.amount import SECOND

BACKOFF_MAX = 300 * SECOND
_DOUBLED_MAX = 20


def pause_ms(first_ms: int, failures: int) -> int:
    """The pause of a run that failed so often before: twice as long each time."""
    return min(first_ms << min(failures, _DOUBLED_MAX), BACKOFF_MAX)


def a_backoff(value: int) -> str | None:
    """What is wrong with a first pause; None where nothing is."""
    return None if value <= BACKOFF_MAX else "expected at most 5m: that is the longest pause after any failure"
