"""Which write goes next: GPUs that somebody waits for first, and nothing else beside them.

Pods and bindings are urgent; leases, statuses and Events are calm. While urgent writes wait or are under way, and for a moment
after the last one (what follows it, the binding of a pod that was made, is asked for when its answer was looked at), no calm one
begins: an API server answers three requests sooner than fifteen. Calm ones are held back for a second at most. From then on they
have a share of what is under way, however many urgent ones wait, and all that these leave free.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from fairlease.model.record import Key

ABREAST = 48
"""Requests under way at once; fewer than the connections of the pool, so that an append never waits for one."""

HOLD_S = 1.0
SHARE = 8
QUIET_S = 0.05


class WriteLane(IntEnum):
    """What goes first: GPUs that somebody waits for, then the record, then the tidings."""

    BIND = 0
    PODS = 1
    LEASES = 2
    STATUS = 3
    EVENTS = 4

    @property
    def calm(self) -> bool:
        """Whether nobody's GPUs wait for it."""
        return self > WriteLane.PODS


class WritePart(NamedTuple):
    """What a write belongs to: the pods of a run, say, or the status of a Budget."""

    of: Key
    what: str


class Target(NamedTuple):
    """One object, or one aspect of it."""

    kind: str
    name: str


class QueuedWrite(NamedTuple):
    """One write."""

    lane: WriteLane
    number: int
    part: WritePart
    target: Target
    act: Callable[[], Awaitable[None]]


class WriteQueue:
    """The writes that wait, and how many are under way. Times are those of one steady clock."""

    def __init__(self) -> None:
        self._urgent: list[QueuedWrite] = []
        self._calm: list[QueuedWrite] = []
        self._under_way = {True: 0, False: 0}
        """Calm and urgent ones."""
        self._quiet_at = -math.inf
        self._late_at = math.inf
        """When those that are held back now have waited for long enough."""

    def put(self, job: QueuedWrite) -> None:
        """It waits for its turn."""
        heappush(self._calm if job.lane.calm else self._urgent, job)

    def next(self, now: float) -> QueuedWrite | None:
        """The one that shall begin now, if any."""
        if sum(self._under_way.values()) >= ABREAST:
            return None
        line = self._calm if self._calm and self._turn_of_calm(now) else self._urgent
        if not line:
            return None
        job = heappop(line)
        self._under_way[job.lane.calm] += 1
        if not self._calm:
            self._late_at = math.inf
        return job

    def _turn_of_calm(self, now: float) -> bool:
        if not (self._urgent or self._under_way[False] or now < self._quiet_at):
            self._late_at = math.inf
            return True
        self._late_at = min(self._late_at, now + HOLD_S)
        return now >= self._late_at and (not self._urgent or self._under_way[True] < SHARE)

    def over(self, job: QueuedWrite, now: float) -> None:
        """It is done, or has failed."""
        self._under_way[job.lane.calm] -= 1
        if not job.lane.calm:
            self._quiet_at = now + QUIET_S

    def wait_s(self, now: float) -> float | None:
        """After how long there is something to begin although nothing was put or is over by then; None where there is not."""
        if not self._calm or sum(self._under_way.values()) >= ABREAST:
            return None
        free_at = self._late_at if self._urgent or self._under_way[False] else min(self._quiet_at, self._late_at)
        return max(0.0, free_at - now) if free_at < math.inf else None
