"""The audit's own arithmetic of money: what was spent, what is held, what is promised, in integers (SEMANTICS §4).

It says the same as the live state's books and shares no line with them: where the two disagree, one of them is wrong,
and that is what an audit is for. A tally counts the leases that one envelope pays, or the lent part of them:

    held       GPUs of open leases that take concurrency; opportunistic work takes none
    spent      GPU-ms since ever. Between two changes it grows with a constant rate, so the times and totals of all
               changes tell what was spent inside any window, also one that was moved afterwards
    promised   GPU-ms that open leases may still use as of now, while the window is not over:
                   with a deadline       Σ gpus × (deadline − now) = due − now × dated
                   without one           endless × quantum
               A deadline that has passed promises nothing; a heap tells which have.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from heapq import heappop, heappush

NEVER = 1 << 63
"""Behind every time that a file can hold."""


class AuditUsage:
    """The leases on one envelope's money, as a few sums. Time only moves forward."""

    __slots__ = (
        "_dated", "_deadlines", "_due", "_end", "_endless", "_queue", "_soonest", "_start", "_times", "_totals", "at",
        "held", "moved", "rate", "spent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.at = 0
        self.rate = 0
        self.held = 0
        self.moved = False
        self.spent = 0
        self._times = array("q", [0])  # nothing was spent before time 0, and a change may come at 0 itself
        self._totals = array("q", [0])
        self._endless = 0
        self._dated = 0
        self._due = 0
        self._deadlines: dict[int, int] = {}
        self._queue: list[int] = []
        self._soonest = NEVER  # no deadline comes before it
        self._start: int | None = None
        self._end: int | None = None

    def change(self, now: int, gpus: int, counted: int, deadline: int | None) -> None:
        """A lease opens or (with negative numbers) closes; `counted` of its GPUs take concurrency."""
        if now != self.at:
            self.spent = spent = self.spent + self.rate * (now - self.at)
            self.at = now
            self._times.append(now)
            self._totals.append(spent)
        self.rate += gpus
        self.held += counted
        if deadline is None:
            self._endless += gpus
            return
        if self._soonest <= now:
            self._expire(now)
        if deadline <= now:
            return  # its deadline has passed: it promises nothing (any more)
        deadlines = self._deadlines
        left = deadlines.get(deadline)
        if left is None:
            deadlines[deadline] = gpus
            heappush(self._queue, deadline)
            self._soonest = self._queue[0]
        elif left + gpus:
            deadlines[deadline] = left + gpus
        else:
            del deadlines[deadline]  # the queue forgets it when its time comes
        self._dated += gpus
        self._due += gpus * deadline

    def spent_by(self, when: int) -> int:
        """GPU-ms that were spent before `when`."""
        if when >= self.at:
            return self.spent + self.rate * (when - self.at)
        index = bisect_right(self._times, when) - 1
        if index < 0:
            return 0
        since, before = self._times[index], self._totals[index]
        rate = (self._totals[index + 1] - before) // (self._times[index + 1] - since)
        return before + rate * (when - since)

    def booked(self, now: int, quantum: int) -> int:
        """GPU-ms spent inside the window as of `now`, and those that open leases may still use in it."""
        start, end = self._start, self._end
        if end is not None and now >= end:
            return self.spent_by(end) - (0 if start is None else self.spent_by(start))
        spent = self.spent + self.rate * (now - self.at)
        if start is not None:
            spent -= self.spent_by(start) if start < now else spent
        if self._soonest <= now:
            self._expire(now)
        return spent + self._due - now * self._dated + self._endless * quantum

    def set_window(self, start: int | None, end: int | None) -> None:
        """Count what is spent inside another window from now on; `moved`: it began before, so that the past counts anew."""
        if start != self._start:
            self.moved = start is not None and start < self.at
        self._start, self._end = start, end

    def _expire(self, now: int) -> None:
        queue = self._queue
        while queue and queue[0] <= now:
            deadline = heappop(queue)
            gpus = self._deadlines.pop(deadline, 0)
            self._dated -= gpus
            self._due -= gpus * deadline
        self._soonest = queue[0] if queue else NEVER
