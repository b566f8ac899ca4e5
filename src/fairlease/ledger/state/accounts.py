"""What an envelope has spent and promised: the arithmetic of SEMANTICS §4, in integers, each question answered without a scan.

Three quantities per envelope, and the same three for the part that is lent out:

    used       GPUs held now by work that takes concurrency
    consumed   GPU-ms that leases accrued inside the envelope's window; between two changes it grows with a constant rate
    committed  GPU-ms promised and not yet used, the worst case:
                 with a deadline     gpus × (deadline − now)   = D − G·now
                 without one         gpus × quantum            = Q·quantum
               so three sums (D, G, Q) answer for any number of leases. A window that closed has nothing to promise.

Consumption is kept as a history of cumulative GPU-ms, because a later edit may move the window: what the ledger shows consumed
inside the new window then counts, and nothing is rewritten. The further back, the fewer times are kept; where a window is moved to
begin or end between two of them, all that was used between them counts as used inside (docs/design/0019).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from datetime import date
from typing import TYPE_CHECKING

from fairlease.model.amount import DAY, HOUR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlease.model.budget import Envelope
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key

    _Saved = tuple[
        tuple[str, Envelope | None, int, int, int, dict[str, int]],
        tuple[int, int, int, int, int, array[int], array[int]],
        tuple[int, int, int],
    ]

_EPOCH = date(1970, 1, 1).toordinal()

AccountId = tuple[str, str]
"""(budget key, envelope name)."""


EXACT = 512
"""Changes of the rate that are kept to the millisecond, the latest; twice as many before the others are thinned out."""

HOURS_KEPT, DAYS_KEPT = 8 * DAY, 400 * DAY
"""Before those, totals are kept at every whole hour, further back at every day (UTC), and then at the first of every month."""


class Usage:
    """GPU-milliseconds over time: a rate, a running total, and the totals at times past.

    The latest changes of the rate are kept, and of what lies further back ever fewer times, so that ten years take little more room
    than a week. The first `thin` of `times` are such: between two of them nobody knows when how much was used.
    """

    __slots__ = ("at", "rate", "thin", "times", "total", "totals")

    def __init__(self) -> None:
        self.rate = 0
        self.total = 0
        self.at = 0
        self.thin = 0
        self.times = array("q")
        self.totals = array("q")

    def change(self, gpus: int, now: int, edges: Callable[[], Iterable[int]] = tuple) -> None:
        """From `now` on, `gpus` more (or fewer) accrue. `edges` gives the times that must stay exact."""
        if now > self.at or not self.times:
            self.total += self.rate * (now - self.at)
            self.at = now
            if len(self.times) - self.thin >= 2 * EXACT:
                self._thin_out(edges())
            self.times.append(now)
            self.totals.append(self.total)
        self.rate += gpus
        assert self.rate >= 0, "more GPUs given back than taken"

    def until(self, when: int, *, most: bool = False) -> int:
        """GPU-ms accrued before `when`; where only times around it are known, the least that it can be, or the `most`."""
        if when >= self.at:
            return self.total + self.rate * (when - self.at)
        index = bisect_right(self.times, when) - 1
        if index < 0:
            return 0
        start, end = self.times[index], self.times[index + 1]
        gained = self.totals[index + 1] - self.totals[index]
        if index < self.thin and start < when:
            return self.totals[index] + (gained if most else 0)
        return self.totals[index] + gained * (when - start) // (end - start)

    def _thin_out(self, edges: Iterable[int]) -> None:
        """Keep the latest changes as they are, and before them the totals at times that people choose for windows."""
        old, last = len(self.times) - EXACT, self.times[-1]
        first, until = self.times[0], self.times[old]
        kept = {first, *(edge for edge in edges if first < edge < until)}
        kept.update(each for each in self.times[: self.thin] if _chosen(each, last))
        begin = self.times[self.thin - 1] if self.thin else first
        kept.update(_whole(begin, until, last))
        times = sorted(kept)
        totals = [self.until(each) for each in times]
        self.times, self.totals = array("q", times) + self.times[old:], array("q", totals) + self.totals[old:]
        self.thin = len(times)

    def save(self) -> tuple[int, int, int, int, int, array[int], array[int]]:
        """For the undo log. What was thinned out is in arrays of its own."""
        return self.rate, self.total, self.at, self.thin, len(self.times), self.times, self.totals

    def restore(self, saved: tuple[int, int, int, int, int, array[int], array[int]]) -> None:
        """For the undo log."""
        self.rate, self.total, self.at, self.thin, length, self.times, self.totals = saved
        del self.times[length:], self.totals[length:]


def _chosen(when: int, now: int) -> bool:
    """Whether a time that was kept is one still, now that it lies further back."""
    ago = now - when
    if ago <= DAYS_KEPT:
        return when % (HOUR if ago <= HOURS_KEPT else DAY) == 0
    return when % DAY == 0 and date.fromordinal(_EPOCH + when // DAY).day == 1


def _whole(begin: int, until: int, now: int) -> Iterator[int]:
    """The times after `begin` and before `until` that are worth keeping."""
    when = begin - begin % HOUR + HOUR
    while when < until:
        if _chosen(when, now):
            yield when
        fine = now - when <= HOURS_KEPT + DAY
        when += HOUR if fine else DAY - when % DAY


class Promise:
    """GPU-ms not yet used by open leases, as three sums."""

    __slots__ = ("deadline_gpus", "deadline_sum", "open_gpus")

    def __init__(self) -> None:
        self.deadline_sum = 0
        self.deadline_gpus = 0
        self.open_gpus = 0

    def change(self, gpus: int, deadline: int | None) -> None:
        """Add (or with negative `gpus` take away) a lease's promise."""
        if deadline is None:
            self.open_gpus += gpus
            return
        self.deadline_sum += gpus * deadline
        self.deadline_gpus += gpus

    def at(self, now: int, quantum: int) -> int:
        """What is promised as of `now`."""
        return max(0, self.deadline_sum - self.deadline_gpus * now) + self.open_gpus * quantum

    def save(self) -> tuple[int, int, int]:
        """For the undo log."""
        return self.deadline_sum, self.deadline_gpus, self.open_gpus

    def restore(self, saved: tuple[int, int, int]) -> None:
        """For the undo log."""
        self.deadline_sum, self.deadline_gpus, self.open_gpus = saved


class Account:
    """One envelope's books. `envelope` is None when it was taken out of its Budget: it then covers nothing, but its past stays."""

    __slots__ = (
        "envelope",
        "gpus",
        "id",
        "lent",
        "lent_promise",
        "lent_used",
        "open",
        "owner",
        "promise",
        "since",
        "usage",
        "used",
    )

    def __init__(self, budget: Key, name: str) -> None:
        self.id: AccountId = (budget, name)
        self.owner = ""
        self.since = 0
        self.envelope: Envelope | None = None
        self.used = 0
        self.lent_used = 0
        self.usage = Usage()
        self.lent = Usage()
        self.promise = Promise()
        self.lent_promise = Promise()
        self.open: dict[int, Lease] = {}
        self.gpus = {"owned": 0, "shared": 0, "borrowed": 0, "overdrawn": 0, "spare": 0, "opportunistic": 0}

    def _closed(self, now: int) -> bool:
        """Whether its window is over."""
        return self.envelope is not None and self.envelope.end is not None and now >= self.envelope.end

    def inside_window(self, now: int) -> bool:
        """Whether what accrues now counts for its hours."""
        envelope = self.envelope
        if envelope is None:
            return True
        return (envelope.start is None or now >= envelope.start) and (envelope.end is None or now < envelope.end)

    def next_edge(self, now: int) -> int | None:
        """When its window opens or closes next; None where it never will."""
        envelope = self.envelope
        if envelope is None:
            return None
        if envelope.start is not None and envelope.start > now:
            return envelope.start
        return envelope.end if envelope.end is not None and envelope.end > now else None

    def consumed(self, now: int) -> int:
        """GPU-ms consumed inside the window as of `now`."""
        return self._inside(self.usage, now)

    def lent_consumed(self, now: int) -> int:
        """The part of `consumed` that borrowers used."""
        return self._inside(self.lent, now)

    def committed(self, now: int, quantum: int) -> int:
        """GPU-ms promised and not yet used."""
        return 0 if self._closed(now) else self.promise.at(now, quantum)

    def lent_committed(self, now: int, quantum: int) -> int:
        """The part of `committed` that borrowers hold."""
        return 0 if self._closed(now) else self.lent_promise.at(now, quantum)

    def exhausted(self, now: int) -> bool:
        """Whether its hours are used up (consumed, not committed)."""
        cap = None if self.envelope is None else self.envelope.max_gpu_hours
        return cap is not None and self.consumed(now) >= cap

    def lent_out(self, now: int) -> bool:
        """Whether the hours that it lends are used up (consumed, not committed)."""
        cap = None if self.envelope is None else self.envelope.lending.max_gpu_hours
        return cap is not None and self.lent_consumed(now) >= cap

    def exhausts_at(self, now: int) -> int | None:
        """When its hours, or those that it lends, will be used up at the present rate; None where that cannot come."""
        envelope = self.envelope
        if envelope is None:
            return None
        own = self._empty_at(envelope, self.usage, envelope.max_gpu_hours, now)
        lent = self._empty_at(envelope, self.lent, envelope.lending.max_gpu_hours, now)
        return own if lent is None else lent if own is None else min(own, lent)

    def _empty_at(self, envelope: Envelope, usage: Usage, cap: int | None, now: int) -> int | None:
        """When a rate of use will have used up a cap, where that comes inside the window."""
        if cap is None or usage.rate == 0:
            return None
        begin = now if envelope.start is None else max(now, envelope.start)
        left = cap - self._inside(usage, now)
        if left <= 0:
            return None
        when = begin - (-left // usage.rate)
        return when if envelope.end is None or when < envelope.end else None

    def _inside(self, usage: Usage, now: int) -> int:
        envelope = self.envelope
        if envelope is None:
            return usage.until(now)
        last = now if envelope.end is None else min(now, envelope.end)
        if envelope.start is None:
            return usage.until(last, most=True)
        spent = usage.until(last, most=True) - usage.until(envelope.start)
        return max(0, spent) if last > envelope.start else 0

    def edges(self) -> list[int]:
        """When its window begins and ends: what was used by then must be known exactly for as long as it stands."""
        edges = () if self.envelope is None else (self.envelope.start, self.envelope.end)
        return [edge for edge in edges if edge is not None]

    def save(self) -> _Saved:
        """For the undo log. What is lent saves itself: it seldom changes."""
        own = self.owner, self.envelope, self.since, self.used, self.lent_used, self.gpus.copy()
        return own, self.usage.save(), self.promise.save()

    def restore(self, saved: _Saved) -> None:
        """For the undo log."""
        own, usage, promise = saved
        self.owner, self.envelope, self.since, self.used, self.lent_used, self.gpus = own
        self.usage.restore(usage)
        self.promise.restore(promise)
