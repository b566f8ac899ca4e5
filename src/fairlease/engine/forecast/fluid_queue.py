"""Flow: when somebody far back in a long line comes to its turn, by the GPU-time that is asked for and the GPU-time that there is.

Thousands of starts are too many to play one by one. Until a turn comes, at t, each GPU of the line is kept by what runs now, or
used by who waits ahead:

    GPUs × t = kept until t + used until t

Runs that need larger holes than the one that is asked about are not always in its way, though they asked before it: where work with
small pods ends, they find no room. They take no more than work with large pods gives back.

How long work lasts can be put in two ways. Where all lasts as long as it does in the middle, the turn comes early, as a few long
runs outweigh all short ones; where all lasts as long as must be expected, it comes late, as what must be expected of runs that are
not known yet is mostly what the longest of all took. `Turns` tells what lies between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.forecast import predicted_ends
from fairlease.ledger.learning.durations import SPANS
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State

Line = tuple[str, ...]
"""(flavor,) or (flavor, owner): where runs wait for the same GPUs, or the same money."""

Table = tuple[int, ...]
"""How much of each of `SPANS` something takes up."""

_BY_OWNER = (Reason.ConcurrencyCapExceeded, Reason.AggregateCapExceeded, Reason.LendingCapExceeded)
"""Who waits for this waits for work that the same money pays for."""


class RunningWork:
    """What runs in a line with pods of one size."""

    def __init__(self) -> None:
        self.gpus = 0
        self._tables: Counter[Table] = Counter()
        self._kept: list[int] = []

    def add(self, gpus: int, table: Table) -> None:
        """A run that holds so many GPUs."""
        self.gpus += gpus
        self._tables[table] += gpus

    def freed(self, place: int) -> int:
        """The GPU-time that it will have given back by the end of a span."""
        if not self._kept:
            columns = zip(*([gpus * each for each in table] for table, gpus in self._tables.items()), strict=True)
            self._kept = [sum(column) for column in columns] or [0] * len(SPANS)
        return self.gpus * SPANS[place] - self._kept[place]


class WaitingWork:
    """Who waits in a line with pods of one size: sums over all who asked before somebody."""

    def __init__(self) -> None:
        self._shape_of: dict[int, int] = {}
        self._works: list[tuple[int, Table]] = []
        self._orders: list[int] = []
        self._shapes: list[int] = []
        self._sums: dict[int, list[int]] = {}

    def add(self, orders: list[int], gpus: int, table: Table) -> None:
        """Runs of one shape."""
        self._shape_of.update(dict.fromkeys(orders, len(self._works)))
        self._works.append((gpus, table))

    def before(self, order: int | None) -> int:
        """How many asked before this one; all, where it stands in no line."""
        if not self._orders:
            self._orders = sorted(self._shape_of)
            self._shapes = list(map(self._shape_of.__getitem__, self._orders))
        return len(self._orders) if order is None else bisect_left(self._orders, order)

    def used(self, place: int, count: int) -> int:
        """The GPU-time that the first `count` will have used by the end of a span, if they start evenly spread over it."""
        found = self._sums.get(place)
        if found is None:
            works = [gpus * table[place] for gpus, table in self._works]
            found = self._sums[place] = [0, *accumulate(map(works.__getitem__, self._shapes))]
        return found[count]


class FlowLane(NamedTuple):
    """Pods of one size in a line, and how many wait there before the run that is asked about."""

    running: RunningWork
    waiting: WaitingWork
    ahead: int


class FluidQueue:
    """The lines as they are now. `table_of` says how much an attempt takes up of spans that has lasted for so long."""

    def __init__(self, state: State, now: int, table_of: Callable[[RunState, int], Table]) -> None:
        self._state = state
        self._now = now
        self._table_of = table_of
        self._running: dict[Line, dict[int, RunningWork]] = {}
        self._waiting: dict[Line, dict[int, WaitingWork]] = {}
        self._tables: dict[tuple[object, ...], Table] = {}
        for shape in state.queue.shapes.values():
            first = shape.runs[shape.orders[0]]
            spec, spread = first.spec, _spread(self._table(first, 0))
            for line in _lines(first):
                waiting = self._waiting.setdefault(line, {}).setdefault(spec.pod_gpus, WaitingWork())
                waiting.add(shape.orders, spec.resources.total_gpus, spread)
        for run in state.running():
            assert run.started_at is not None, "what runs has started"
            table = self._table(run, now - run.started_at)
            for line in _lines(run):
                running = self._running.setdefault(line, {}).setdefault(run.spec.pod_gpus, RunningWork())
                running.add(run.width, table)

    def turn(self, run: RunState) -> int | None:
        """How long it is until a run's turn comes; None where nothing runs that could end."""
        like, wider = self._lanes(run)
        if not any(lane.running.gpus for lane in (*like, *wider)):
            return None
        place = bisect_left(range(len(SPANS)), 1, key=lambda place: int(_left_over(like, wider, place) > 0))
        if place in (0, len(SPANS)):
            return SPANS[min(place, len(SPANS) - 1)]
        lacking, left = -_left_over(like, wider, place - 1), _left_over(like, wider, place)
        return SPANS[place - 1] + (SPANS[place] - SPANS[place - 1]) * lacking // (lacking + left)

    def _lanes(self, run: RunState) -> tuple[list[FlowLane], list[FlowLane]]:
        """Those whose pods find room where the run's own do, and those that need more."""
        line, order = line_of(run), run.order if self._state.queue.has(run) else None
        running, waiting = self._running.get(line, {}), self._waiting.get(line, {})
        like: list[FlowLane] = []
        wider: list[FlowLane] = []
        for size in sorted(running.keys() | waiting.keys()):
            queue = waiting.get(size, WaitingWork())
            lane = FlowLane(running.get(size, RunningWork()), queue, queue.before(order))
            (like if size <= run.spec.pod_gpus else wider).append(lane)
        return like, wider

    def _table(self, run: RunState, elapsed: int) -> Table:
        kind = predicted_ends.alike(run, elapsed)
        found = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = self._table_of(run, elapsed)
        return found


def _lines(run: RunState) -> tuple[Line, Line]:
    """Where a run stands: in the line of its flavor, and in that of its owner there."""
    flavor = run.spec.resources.gpu_type
    return (flavor,), (flavor, run.spec.owner)


def line_of(run: RunState) -> Line:
    """Whose ends a run waits for."""
    return _lines(run)[run.reason in _BY_OWNER]


def _left_over(like: list[FlowLane], wider: list[FlowLane], place: int) -> int:
    """The GPU-time of a span that nobody ahead will have used."""
    freed = sum(lane.running.freed(place) for lane in like)
    for_wider = sum(lane.running.freed(place) for lane in wider)
    used = sum(lane.waiting.used(place, lane.ahead) for lane in like)
    used_by_wider = sum(lane.waiting.used(place, lane.ahead) for lane in wider)
    return freed - used + for_wider - min(used_by_wider, for_wider)


def _spread(table: Table) -> Table:
    """The same for something that begins at any time in the span: the mean over all shorter ones."""
    doubled, found = 0, []
    before, last = 0, 0
    for span, taken in zip(SPANS, table, strict=True):
        doubled += (taken + last) * (span - before)
        found.append(doubled // (2 * span))
        before, last = span, taken
    return tuple(found)


class Turns:
    """When those come to their turn who stand far back. `lasts` says how long an attempt lasts in the middle."""

    def __init__(self, state: State, now: int, lasts: Callable[[RunState, int], int], *, expected: bool) -> None:
        self._state = state
        self._flows = [FluidQueue(state, now, lambda run, elapsed: _until(lasts(run, elapsed) - elapsed))]
        if expected:
            self._flows.append(
                FluidQueue(state, now, lambda run, elapsed: predicted_ends.taken_up(state, run, elapsed))
            )

    def of(self, run: RunState) -> int | None:
        """How long it is until then; the middle, in the logarithm of time, where both tell."""
        found = [turn for flow in self._flows if (turn := flow.turn(run)) is not None]
        return isqrt(found[0] * found[-1]) if found else None


def places(state: State) -> Callable[[RunState], int]:
    """How many of its line asked before a run."""
    orders: dict[Line, list[int]] = {}
    for shape in state.queue.shapes.values():
        for line in _lines(shape.runs[shape.orders[0]]):
            orders.setdefault(line, []).extend(shape.orders)
    for each in orders.values():
        each.sort()

    def place(run: RunState) -> int:
        found = orders.get(line_of(run), [])
        return bisect_left(found, run.order) if state.queue.has(run) else len(found)

    return place


def _until(left: int) -> Table:
    """What something takes up of each span that ends after so long."""
    return tuple(min(span, left) for span in SPANS)
