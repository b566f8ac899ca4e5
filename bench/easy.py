"""EASY backfilling, the yardstick for replays (Lifka 1995; Mu'alem and Feitelson 2001).

One flat pool of processors, one queue in order of asking. The head of the queue starts as soon as it fits. While it does not, it
has a reservation at the *shadow time*, when enough running jobs will have ended by their estimates; the *extra* processors are
those that it leaves over then. A later job is backfilled where it fits now and either ends by the shadow time or takes no more than
the extra processors. The reservation is computed anew at each event, so it moves forward whenever a job ends early.

No nodes, no money, no promise to anybody but the head: that is what makes it a yardstick.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from fairlease.ledger.learning.durations import Durations, Kind, kinds
from fairlease.ledger.state.undo import UndoLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlease.replay.trace import TraceJob


class FlatJob(NamedTuple):
    """A job as a flat pool sees it: how many processors it takes, for how long, and the limit that it asked for."""

    job: TraceJob
    width: int
    duration: int
    limit: int | None


class Estimates:
    """How long jobs are expected to run: a job's limit, where it has one.

    Else what the engine expects of runs without limits: what nine in ten runs of that owner, user and width did not exceed.
    """

    def __init__(self) -> None:
        self._durations, self._undo = Durations(), UndoLog()

    def of(self, flat: FlatJob) -> int:
        """The estimate of a job that is asked for now, in milliseconds."""
        return max(1, self._durations.high(_kinds(flat), None) if flat.limit is None else flat.limit)

    def ended(self, flat: FlatJob) -> None:
        """A job came to its end: one more to learn from."""
        if flat.limit is None:
            self._durations.learn(self._undo, _kinds(flat), flat.duration)


def _kinds(flat: FlatJob) -> tuple[Kind, ...]:
    return kinds(flat.job.owner, flat.job.user, flat.width)


class Easy:
    """One replay of jobs, which are in order of asking; `starts` says when each one started."""

    def __init__(self, jobs: Sequence[FlatJob], processors: int) -> None:
        self.jobs = jobs
        self.starts = [-1] * len(jobs)
        self._estimates = Estimates()
        self._free = processors
        self._queue: list[int] = []
        self._estimate: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []
        self._expected: list[tuple[int, int]] = []
        self._expected_of: dict[int, int] = {}

    def play(self) -> list[int]:
        """Until the last job has started."""
        coming, jobs = 0, self.jobs
        while coming < len(jobs) or self._queue:
            now = min([end for end, _ in self._ends[:1]] + [flat.job.asked for flat in jobs[coming : coming + 1]])
            ended = self._end(now)
            if self._correct(now) or ended:
                self._schedule(now, self._queue)
            while coming < len(jobs) and jobs[coming].job.asked <= now:
                self._estimate[coming] = self._estimates.of(jobs[coming])
                self._queue.append(coming)
                # Nothing else has changed: of all that wait, only this one can start.
                self._schedule(now, [coming] if len(self._queue) > 1 else self._queue)
                coming += 1
        return self.starts

    def _end(self, now: int) -> bool:
        ended = False
        while self._ends and self._ends[0][0] <= now:
            _, number = heappop(self._ends)
            key = (self._expected_of.pop(number), number)
            del self._expected[bisect_left(self._expected, key)]
            self._free += self.jobs[number].width
            self._estimates.ended(self.jobs[number])
            ended = True
        return ended

    def _correct(self, now: int) -> bool:
        """A job that outlives its estimate is given twice as long, again and again."""
        corrected = False
        while self._expected and self._expected[0][0] <= now:
            _, number = self._expected.pop(0)
            start = self.starts[number]
            while start + self._estimate[number] <= now:
                self._estimate[number] *= 2
            self._expect(number, start + self._estimate[number])
            corrected = True
        return corrected

    def _expect(self, number: int, end: int) -> None:
        insort(self._expected, (end, number))
        self._expected_of[number] = end

    def _schedule(self, now: int, candidates: list[int]) -> None:
        """Start the head while it fits, then whoever of the candidates is not in the way of the head."""
        queue = self._queue
        if candidates is queue:
            started = 0
            while started < len(queue) and self.jobs[queue[started]].width <= self._free:
                self._start(now, queue[started])
                started += 1
            del queue[:started]
            candidates = queue[1:]
        if not candidates or not self._free:
            return
        shadow, extra = self._reservation(self.jobs[queue[0]].width)
        passed = set()
        for number in candidates:
            width = self.jobs[number].width
            if width > self._free:
                continue
            in_time = now + self._estimate[number] <= shadow
            if in_time or width <= extra:
                self._start(now, number)
                passed.add(number)
                extra -= 0 if in_time else width
                if not self._free:
                    break
        if passed:
            self._queue = [number for number in queue if number not in passed]

    def _reservation(self, width: int) -> tuple[int, int]:
        """The shadow time of the head, and the processors that it leaves over then."""
        free, shadow = self._free, 0
        for end, number in self._expected:
            if free >= width and end > shadow:
                break
            free += self.jobs[number].width
            shadow = end
        return shadow, free - width

    def _start(self, now: int, number: int) -> None:
        flat = self.jobs[number]
        self.starts[number] = now
        self._free -= flat.width
        heappush(self._ends, (now + flat.duration, number))
        self._expect(number, now + self._estimate[number])
