"""What is seen of a replay while it goes on: what became of each run, and how busy the cluster and how long the queue were.

It folds over the events that the ledger takes, as everything does, and keeps a few numbers per run: the events themselves may be
forgotten. Sums over time are in GPU- or run-milliseconds, in integers, bucket by bucket.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from fairlease.ledger.state import events as ev
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.model.record import Key

ROOM = (Reason.NoRoom, Reason.Reserved)
"""Causes of waiting that have to do with GPUs, not with money."""


class RunSeen:
    """One run's life in numbers; times are None until they come."""

    __slots__ = (
        "asked", "backfilled", "cuts", "ended", "gpus", "last_started", "lost", "number", "owner", "passed_room", "pod", "reason",
        "started", "used", "width",
    )  # fmt: skip

    def __init__(self, number: int, owner: str, gpus: int, pod: int, asked: int) -> None:
        self.number = number
        self.owner = owner
        self.gpus = gpus
        self.pod = pod
        self.asked = asked
        self.started: int | None = None
        self.last_started: int | None = None
        self.ended: int | None = None
        self.reason = Reason.Submitted
        self.width = 0
        self.used = 0
        self.lost = 0
        self.cuts = 0
        self.backfilled = False
        self.passed_room = False

    @property
    def wait(self) -> int:
        """From asking to the first start."""
        assert self.started is not None, "only runs that started have waited for so long"
        return self.started - self.asked


class Bucket:
    """Sums over a stretch of time: GPUs in use, runs that waited, the GPUs they asked for."""

    __slots__ = ("busy", "waiting_gpus", "waiting_runs")

    def __init__(self) -> None:
        self.busy = 0
        self.waiting_runs = 0
        self.waiting_gpus = 0


class QueueLine:
    """Waiting runs by order of asking; who is first is found without a scan."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._waiting: set[int] = set()

    def add(self, number: int) -> None:
        """A run waits."""
        if number not in self._waiting:
            self._waiting.add(number)
            heappush(self._heap, number)

    def drop(self, number: int) -> None:
        """It waits no longer."""
        self._waiting.discard(number)

    def first(self) -> int | None:
        """Who asked first of those who wait."""
        while self._heap and self._heap[0] not in self._waiting:
            heappop(self._heap)
        return self._heap[0] if self._heap else None


class Watch:
    """The fold. `begin` is the time of the first bucket, `step` the width of each."""

    def __init__(self, begin: int, step: int) -> None:
        self.begin = begin
        self.step = step
        self.now = begin
        self.runs: dict[Key, RunSeen] = {}
        self.buckets: list[Bucket] = []
        self.busy = 0
        self.waiting_runs = 0
        self.waiting_gpus = 0
        self.waiting_runs_max = 0
        self.preemptions: Counter[Reason] = Counter()
        self.cuts_since_end = 0
        self._line = QueueLine()
        self._room = QueueLine()

    def take(self, at: int, events: Iterable[ev.AnyEvent]) -> list[ev.LeasesOpened]:
        """Let time pass, then note what happened; returns what was started."""
        self.pass_time(at)
        started: list[ev.LeasesOpened] = []
        for event in events:
            if isinstance(event, ev.LeasesOpened):
                started.append(event)
                self._opened(at, event)
            elif isinstance(event, ev.LeasesClosed):
                self._closed(at, event)
            elif isinstance(event, ev.RunSubmitted):
                self._submitted(at, event)
            elif isinstance(event, ev.RunDeferred):
                self._deferred(event)
            elif isinstance(event, ev.RunRequeued):
                self._requeued(at, event)
            elif isinstance(event, ev.RunEnded):
                self._ended(at, event)
        for opened in started:
            self._note_backfill(at, self.runs[opened.run])
        self.waiting_runs_max = max(self.waiting_runs_max, self.waiting_runs)
        return started

    def pass_time(self, at: int) -> None:
        """Add what was busy and what waited since the last event to the buckets in between."""
        while self.now < at:
            place = (self.now - self.begin) // self.step
            while len(self.buckets) <= place:
                self.buckets.append(Bucket())
            until = min(at, self.begin + (place + 1) * self.step)
            span, bucket = until - self.now, self.buckets[place]
            bucket.busy += self.busy * span
            bucket.waiting_runs += self.waiting_runs * span
            bucket.waiting_gpus += self.waiting_gpus * span
            self.now = until

    def _submitted(self, at: int, event: ev.RunSubmitted) -> None:
        spec = event.spec
        seen = RunSeen(len(self.runs), spec.owner, spec.resources.total_gpus, spec.pod_gpus, at)
        self.runs[event.run] = seen
        self._wait(seen)

    def _wait(self, seen: RunSeen) -> None:
        self.waiting_runs += 1
        self.waiting_gpus += seen.gpus
        self._line.add(seen.number)

    def _wait_no_longer(self, seen: RunSeen) -> None:
        self.waiting_runs -= 1
        self.waiting_gpus -= seen.gpus
        self._line.drop(seen.number)
        self._room.drop(seen.number)

    def _deferred(self, event: ev.RunDeferred) -> None:
        for run in event.runs:
            seen = self.runs[run]
            seen.reason = event.reason
            if event.reason in ROOM:
                self._room.add(seen.number)
            else:
                self._room.drop(seen.number)

    def _opened(self, at: int, event: ev.LeasesOpened) -> None:
        seen = self.runs[event.run]
        if seen.width == 0:
            self._wait_no_longer(seen)
            seen.last_started = at
            seen.reason = Reason.Start
        gpus = len(event.cells) * seen.pod
        seen.width += gpus
        self.busy += gpus

    def _note_backfill(self, at: int, seen: RunSeen) -> None:
        """Whether a run started past one that asked before it and waits on, now that all who start at this instant have started."""
        if seen.started is not None:
            return
        seen.started = at
        first, first_room = self._line.first(), self._room.first()
        seen.backfilled = first is not None and first < seen.number
        seen.passed_room = first_room is not None and first_room < seen.number

    def _closed(self, at: int, event: ev.LeasesClosed) -> None:
        seen = self.runs[event.run]
        gpus = len(event.names) * seen.pod if event.names else seen.width
        assert seen.last_started is not None, "only what was opened can be closed"
        seen.used += gpus * (at - seen.last_started)
        seen.width -= gpus
        self.busy -= gpus

    def _requeued(self, at: int, event: ev.RunRequeued) -> None:
        """An attempt was cut: what it did is lost, because traces do not tell of checkpoints."""
        seen = self.runs[event.run]
        assert seen.last_started is not None, "only an attempt that had begun can be cut"
        seen.cuts += 1
        seen.reason = event.reason
        self.preemptions[event.reason] += 1
        self.cuts_since_end += 1
        seen.lost += seen.gpus * (at - seen.last_started)
        self._wait(seen)

    def _ended(self, at: int, event: ev.RunEnded) -> None:
        seen = self.runs[event.run]
        if event.started_at is None or seen.reason is not Reason.Start:
            self._wait_no_longer(seen)
        seen.ended = at
        self.cuts_since_end = 0
        seen.reason = event.reason
