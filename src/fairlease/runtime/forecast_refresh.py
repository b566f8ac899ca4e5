"""Refresh: when forecasts are to be made anew. Facts call for it, never a clock alone; and it never takes more than a small share.

A forecast plays the engine forward, which takes long where many wait, and nothing else is decided meanwhile. So it is made once for
all that changed since the last one, not sooner than some seconds after it, and the longer it took the later.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 2.0
SHARE = 20
"""A forecast that took a second is made anew after twenty at the earliest: a twentieth of the time at most goes into them."""

PATIENCE_S = 10.0
"""So long a forecast that is due lets decisions go first, where one follows the other without a pause."""


class Refresh:
    """Keeps the time between two forecasts, in seconds of a steady clock."""

    def __init__(self, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._due: float | None = None
        self._next = 0.0

    def call_for(self) -> None:
        """A fact has changed while somebody waits."""
        if self._due is None:
            self._due = max(self._next, self._clock())

    def due(self, *, busy: bool = False) -> bool:
        """Whether it is time. While decisions wait (`busy`) they go first, up to a point."""
        return self._due is not None and self._due + (PATIENCE_S if busy else 0.0) <= self._clock()

    def wait_s(self) -> float | None:
        """Seconds until it is time; None where nothing calls for it."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    def made(self, began: float) -> None:
        """One was made, or could not be: what it told is no fact that calls for another."""
        now = self._clock()
        self._due = None
        self._next = now + max(self._every_s, SHARE * (now - began))
