"""What falls due when: one time per key, the earliest first. Setting, moving and dropping cost a heap push at most."""

from __future__ import annotations

import enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class Due(enum.IntEnum):
    """Kinds of timers, in the order in which those of one instant fire."""

    DEADLINE = 0
    DEBOUNCE = 1
    WINDOW = 2
    EXHAUSTED = 3
    CAP = 4
    DRAIN = 5
    LATEST_START = 6
    RESERVATION = 7
    GROW = 8
    RETRY = 9


TimerKey = tuple[Due, tuple[str, ...]]
"""What falls due, and of what: a run (deadline, start, reservation, growth, retry), a node, an envelope, a cap, a unit of cover."""


class Timers:
    """A heap with lazy deletion: what the dictionary no longer says is skipped when it comes up."""

    __slots__ = ("_heap", "counts", "times")

    def __init__(self) -> None:
        self.times: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []
        self.counts = [0] * len(Due)

    def set(self, key: TimerKey, when: int | None) -> int | None:
        """Set, move or (None) drop a timer; returns what it was."""
        before = self.times.get(key)
        if when == before:
            return before
        self.counts[key[0]] += (when is not None) - (before is not None)
        if when is None:
            del self.times[key]
        else:
            self.times[key] = when
            heappush(self._heap, (when, key))
            if len(self._heap) > 64 + 4 * len(self.times):
                self._heap = [(time, timer) for timer, time in self.times.items()]
                heapify(self._heap)
        return before

    def only(self, due: Due, kept: Collection[tuple[str, ...]]) -> Timers:
        """The same, but of one kind only those `kept`: cheaper than to drop thousands one by one."""
        found = Timers()
        found.times = {key: time for key, time in self.times.items() if key[0] is not due or key[1] in kept}
        found.counts = list(self.counts)
        found.counts[due] = sum((due, each) in found.times for each in kept)
        found._heap = [(time, key) for key, time in found.times.items()]
        heapify(found._heap)
        return found

    def next(self) -> int | None:
        """The time of the earliest timer."""
        heap = self._heap
        while heap and self.times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> list[TimerKey]:
        """The timers at or before `now`, in the order in which they fire; they stay set until somebody drops them."""
        found: set[tuple[int, TimerKey]] = set()
        heap = self._heap
        while heap and heap[0][0] <= now:
            item = heappop(heap)
            if self.times.get(item[1]) == item[0]:
                found.add(item)
        for item in found:
            heappush(heap, item)
        return [key for _, key in sorted(found, key=lambda item: (item[1][0], item[0], item[1][1]))]

    def before(self, when: int) -> list[TimerKey]:
        """What falls due by `when`, in no order: the part of the heap that lies before it, not all of it."""
        heap, found, places = self._heap, [], [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= when:
                time, key = heap[place]
                if self.times.get(key) == time:
                    found.append(key)
                places += (2 * place + 1, 2 * place + 2)
        return found
