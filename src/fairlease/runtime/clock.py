"""The ledger's clock: the wall's time while that goes forward, and steady time where somebody set the wall back.

Ledger time never runs backwards. If it stood still until the wall had caught up, nobody would be charged and no deadline would
fall due for as long as that takes; so it goes on from where it was, at the pace of a clock that nobody can set.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairlease.model.amount import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

_MS = 1_000_000
BEHIND_MS = 1_000
"""How far the wall may lag behind the ledger before somebody is told: less is what time services do all day."""


class LedgerClock:
    """Milliseconds that never run backwards and never stand still. `warn` hears once of each time that the wall falls behind."""

    def __init__(
        self,
        warn: Callable[[int], None],
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._warn = warn
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._last_ns = 0
        self._mark_ns = steady_ns()
        self._warned = False

    def now(self, ledger_at: int) -> int:
        """The time now, where the ledger's last entry is of `ledger_at`."""
        wall, steady = self._wall_ns(), self._steady_ns()
        if wall >= max(self._last_ns, ledger_at * _MS):
            self._last_ns, self._warned = wall, False
        else:
            gone = steady - self._mark_ns if self._last_ns else 0
            self._last_ns = max(self._last_ns + gone, ledger_at * _MS)
            behind_ms = (self._last_ns - wall) // _MS
            if behind_ms > BEHIND_MS and not self._warned:
                self._warned = True
                self._warn(behind_ms)
        self._mark_ns = steady
        return self._last_ns // _MS

    def at(self, wall_ms: int, ledger_at: int) -> int:
        """When something was that the wall's clock gave a time to: as long ago as the wall says, and no sooner than now."""
        ago_ms = max(0, self._wall_ns() // _MS - wall_ms)
        return max(ledger_at, self.now(ledger_at) - ago_ms)


BACKOFF_MAX = 300 * SECOND
_DOUBLED_MAX = 20


def pause_ms(first_ms: int, failures: int) -> int:
    """The pause of a run that failed so often before: twice as long each time."""
    return min(first_ms << min(failures, _DOUBLED_MAX), BACKOFF_MAX)


def a_backoff(value: int) -> str | None:
    """What is wrong with a first pause; None where nothing is."""
    return None if value <= BACKOFF_MAX else "expected at most 5m: that is the longest pause after any failure"
