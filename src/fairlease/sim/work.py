"""Work: what a run's processes really do in virtual time. The engine never sees it; it only sees it end.

`duration` is time on the machine at any width; `gpuHours` is work that a wider run does sooner. An attempt after a requeue goes
on from the last multiple of the run's `checkpoint`; without one it begins anew.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlease.model.record import Key
    from fairlease.sim.scenario import Work


class SimulatedJob:
    """The work of one run, through all its attempts."""

    def __init__(self, work: Work, checkpoint: int | None) -> None:
        self.exit_code = work.exit_code
        self.leaves = work.leaves
        self.total = work.duration if work.duration is not None else work.gpu_hours
        self.by_width = work.duration is None
        self.checkpoint = checkpoint
        self.done = 0
        self.attempt = 0
        self.width = 0
        self.steps: list[tuple[int, int]] = []

    def begin(self, attempt: int, now: int, width: int) -> None:
        """An attempt starts, or its width changes."""
        if attempt != self.attempt:
            self.attempt = attempt
            self.steps = []
        self.steps.append((now, width))
        self.width = width

    def interrupt(self, now: int) -> None:
        """An attempt is over before the work is: keep what the last checkpoint kept."""
        kept = 0
        if self.checkpoint and self.steps:
            begun = self.steps[0][0]
            marks = (now - begun) // self.checkpoint
            kept = self._done_at(begun + marks * self.checkpoint)
            if self.total is not None and kept >= self.total and marks:
                kept = self._done_at(begun + (marks - 1) * self.checkpoint)
        self.done = kept
        self.steps = []
        self.width = 0

    def ends_at(self) -> int | None:
        """When the work will be done, if nothing changes."""
        if self.total is None or not self.steps or self.width == 0:
            return None
        since = self.steps[-1][0]
        left = self.total - self._done_at(since)
        return since - (-left // self.width) if self.by_width else since + left

    def _done_at(self, when: int) -> int:
        done = self.done
        for index, (since, width) in enumerate(self.steps):
            until = self.steps[index + 1][0] if index + 1 < len(self.steps) else when
            span = max(0, min(until, when) - since)
            done += span * (width if self.by_width else min(width, 1))
        return done


class Jobs:
    """All work in the world, and what ends next."""

    def __init__(self) -> None:
        self.jobs: dict[Key, SimulatedJob] = {}
        self._ends: list[tuple[int, int, Key]] = []
        self._current: dict[Key, int] = {}
        self._count = 0
        self._going: list[tuple[int, int, Key, tuple[str, ...]]] = []

    def add(self, run: Key, work: Work, checkpoint: int | None) -> None:
        """A run brings its work."""
        self.jobs[run] = SimulatedJob(work, checkpoint)

    def width(self, run: Key, attempt: int, now: int, width: int) -> None:
        """A run now has `width` active GPUs."""
        job = self.jobs.get(run)
        if job is not None:
            job.begin(attempt, now, width)
            self._plan(run, job)

    def stop(self, run: Key, now: int) -> None:
        """An attempt was ended."""
        job = self.jobs.get(run)
        if job is not None:
            job.interrupt(now)
            self._current.pop(run, None)

    def forget(self, run: Key) -> None:
        """A run is over."""
        self.jobs.pop(run, None)
        self._current.pop(run, None)

    def next(self) -> int | None:
        """When work ends next, or is gone."""
        ends, going = self._next_end(), self._going[0][0] if self._going else None
        return going if ends is None else ends if going is None else min(ends, going)

    def _next_end(self) -> int | None:
        while self._ends and self._current.get(self._ends[0][2]) != self._ends[0][1]:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def leave(self, run: Key, leases: tuple[str, ...], now: int, killed: int) -> None:
        """Pods of a run were asked to leave at `now`; they are gone when they like, or when they are killed."""
        leaves = self.jobs[run].leaves
        self._count += 1
        heappush(self._going, (killed if leaves is None else min(now + leaves, killed), self._count, run, leases))

    def gone(self, now: int) -> list[tuple[Key, tuple[str, ...]]]:
        """Pods that are gone by now, in the order in which they were asked to leave."""
        found = []
        while self._going and self._going[0][0] <= now:
            found.append(heappop(self._going)[1:])
        return [(run, leases) for _, run, leases in sorted(found)]

    def due(self, now: int) -> list[tuple[Key, SimulatedJob]]:
        """Work that ends now, in the order in which it was begun."""
        found = []
        while (when := self._next_end()) is not None and when <= now:
            _, serial, run = heappop(self._ends)
            del self._current[run]
            found.append((serial, run))
        return [(run, self.jobs[run]) for _, run in sorted(found)]

    def _plan(self, run: Key, job: SimulatedJob) -> None:
        ends = job.ends_at()
        self._current.pop(run, None)
        if ends is not None:
            self._count += 1
            self._current[run] = self._count
            heappush(self._ends, (ends, self._count, run))
