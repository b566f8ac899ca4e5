"""Scheduling pass: runs that wait are tried in order of asking, whoever asks for the same at once (SEMANTICS §6).

Runs that ask for the same stand in one shape: what the first of them is refused, all are, and they are told so together. Each
comes to its reservation in its own turn all the same, so that who asked before it, with another shape, has its date first. Shapes
that need the same room stand in one line, which ends where there is none left.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.context import Try
from fairlease.engine.place.lien_rights import opening
from fairlease.engine.place.packing import could_fit, need_of
from fairlease.engine.place.plan import Planner, least_width
from fairlease.engine.reserve import reservation
from fairlease.engine.tick.start import start
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.runs import Shape, least_limit
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sortedcontainers import SortedDict

    from fairlease.engine.context import Engine
    from fairlease.engine.refusal import Refusal
    from fairlease.ledger.state.runs import RunState

FIRST, EXACT, TOLD = -1, -2, -3
"""Whom to try of a shape, where no line says it: whoever asked first, or the very run whose reservation is due. One that was only
told why it waits is not tried, but comes to its reservation."""


class Woken(NamedTuple):
    """What to try again: shapes in any case, lines while there is room for their footprint, and the very runs in `due`.

    Those are the runs whose reservations fell due, or lost a node.
    """

    shapes: list[Shape]
    lines: list[SortedDict[int, Shape]]
    arrived: dict[bytes, list[RunState]]
    due: list[RunState]


def woken(engine: Engine, due: list[RunState]) -> Woken:
    """Waiting runs that something since the last try could have helped; forgets what it was."""
    state, queue = engine.state, engine.state.queue
    dirty, state.dirty = state.dirty, type(state.dirty)()
    state.dirty.shaken = dirty.shaken
    due = due + [state.holds[key] for key in sorted(dirty.sliced) if key in state.holds]
    if dirty.budgets:
        return Woken(list(queue.shapes.values()), [], dirty.arrived, due)
    found = {key: queue.shapes[key] for key in dirty.arrived if key in queue.shapes}
    if dirty.topology:
        found |= {key: each for key, each in queue.shapes.items() if each.sample.resources.gpu_type in dirty.topology}
    if dirty.lost:  # Those who wait for room may no longer be funded: that is recorded, room or not.
        asked = engine.family.asked
        found |= {key: each for key, each in queue.shapes.items() if not asked(each.signature).isdisjoint(dirty.lost)}
    if dirty.accounts:
        family = engine.family
        for signature, shapes in queue.others.items():
            if not family.asked(signature).isdisjoint(dirty.accounts):
                found.update(shapes)
    flavors = queue.lines if dirty.accounts else dirty.flavors
    lines = [line for flavor in flavors for line in queue.lines.get(flavor, {}).values()]
    return Woken(list(found.values()), lines, dirty.arrived, due)


class SchedulingPass:
    """One look at all that could start now."""

    def __init__(self, engine: Engine, woken: Woken, tries: list[Try]) -> None:
        self._engine = engine
        self._tries = tries
        self._state = engine.state
        self._woken = woken
        self._refused: dict[bytes, Refusal] = {}
        self._heap = [(shape.orders[0], shape.key, FIRST) for shape in woken.shapes]
        for number, line in enumerate(woken.lines):
            order, shape = line.peekitem(0)
            self._heap.append((order, shape.key, number))
        self._heap += [(run.order, run.shape, EXACT) for run in woken.due]
        heapify(self._heap)

    def go(self) -> None:
        """Try runs in order of asking."""
        while self._heap:
            order, key, number = heappop(self._heap)
            shape = self._state.queue.shapes.get(key)
            if number == TOLD:
                if shape is not None and order in shape.runs:
                    _reserve(self._engine, shape.runs[order], self._refused[key])
                continue
            if shape is not None and (key not in self._refused or number == EXACT):
                if order not in shape.runs:
                    self._next_of(shape, number)  # Who was first has started all the same.
                elif number < 0 or room_for(self._engine, shape, order):
                    self._try(shape, order, number)
                else:
                    continue
            if number >= 0:
                self._next_in(self._woken.lines[number], order, number)

    def _try(self, shape: Shape, order: int, number: int) -> None:
        """Start a run; what it is refused, all of its shape are."""
        run = shape.runs[order]
        self._engine.subject = run.key
        refusal = start(self._engine, run)
        if refusal is None:
            if run.phase is Phase.RUNNING:
                self._tries.append(Try(run.key, Reason.Start, 1, {}))
            self._next_of(shape, number)
            return
        self._refused[shape.key] = refusal
        for each in _tell(self._engine, shape, refusal, self._woken.arrived.get(shape.key, []), self._tries):
            heappush(self._heap, (each, shape.key, TOLD))

    def _next_of(self, shape: Shape, number: int) -> None:
        if number == FIRST and shape.key in self._state.queue.shapes:
            heappush(self._heap, (shape.orders[0], shape.key, FIRST))

    def _next_in(self, line: SortedDict[int, Shape], order: int, number: int) -> None:
        after = line.bisect_right(order)
        if after < len(line):
            place, following = line.peekitem(after)
            heappush(self._heap, (place, following.key, number))


def room_for(engine: Engine, shape: Shape, order: int) -> bool:
    """Whether anybody in a line, from this place on, could find room; where others would give way, only a try can tell."""
    spec, state = shape.sample, engine.state
    if state.hosts if spec.opportunistic else state.opportunistic or state.overdrawn:
        return True
    pool = state.capacity.pools.get(spec.resources.gpu_type)
    if pool is None:
        return True
    least = least_limit(spec)
    way = opening(state, pool, order, None if least is None else engine.now + least, free=spec.opportunistic)
    return could_fit(pool, need_of(spec, least_width(spec)), way)


def promote(engine: Engine, tries: list[Try]) -> None:
    """Those who asked next get a slice and a lien when somebody with one has started or gone.

    Who cannot be paid any more, or has nowhere to lie, is told so, like all who are alike.
    """
    state = engine.state
    for _, far in sorted(state.standings.far.items()):
        while far and not reservation.far(engine, run := far.peekitem(0)[1]):
            engine.subject = run.key
            planner = Planner(state, engine.family, run, engine.now)
            refusal = planner.unfunded()
            if refusal is None and reservation.make(engine, run, planner, Reason.Nearer):
                continue
            shape, why = state.queue.shapes[run.shape], refusal or planner.roomless()
            for order in _tell(engine, shape, why, [], tries):
                if order in shape.runs:
                    _reserve(engine, shape.runs[order], why)
            if far and far.peekitem(0)[1] is run:  # It waits for a window, and has a date until then.
                break


def _tell(engine: Engine, shape: Shape, refusal: Refusal, arrived: list[RunState], tries: list[Try]) -> list[int]:
    """Tell all runs of a shape why they wait, where that changed; where it did not, only those that came must be told.

    Returns the places of those for whose reservations that means something.
    """
    first = shape.runs[shape.orders[0]]
    tries.append(Try(first.key, refusal.reason, len(shape.runs), refusal.tally))
    orders = shape.orders
    if shape.reason is refusal.reason:
        came = {run.order for run in arrived + engine.state.dirty.arrived.get(shape.key, [])}
        orders = sorted(came & shape.runs.keys())
    told = tuple(shape.runs[order].key for order in orders if shape.runs[order].reason is not refusal.reason)
    if told:
        engine.emit(ev.RunDeferred(runs=told, reason=refusal.reason, message=refusal.message, tally=refusal.tally))
    elif shape.reason is not refusal.reason:
        engine.emit(
            ev.RunDeferred(runs=(first.key,), reason=refusal.reason, message=refusal.message, tally=refusal.tally)
        )
    if shape.sample.opportunistic or engine.rehearses:
        return []
    return sorted({*orders, *_concerned(engine, shape, refusal)})


def _concerned(engine: Engine, shape: Shape, refusal: Refusal) -> Iterable[int]:
    """Whose reservations a refusal may change, of all in a shape: those that hold something, where it is money that lacks."""
    standings = engine.state.standings
    if refusal.reason is Reason.Reserved:  # Money is back for those who had none.
        blocked = standings.blocked.get(shape.sample.resources.gpu_type, ())
        return [order for order in blocked if order in shape.runs]
    if refusal.reason is Reason.NeverFits or Reason.WindowClosed.value in refusal.tally:
        return shape.runs  # Another window may be what they wait for now, or none.
    return standings.alike.get(shape.key, ())


def _reserve(engine: Engine, run: RunState, refusal: Refusal) -> None:
    """What the reason for waiting means for the reservation of a run that was not tried itself."""
    engine.subject = run.key
    reason, closed = refusal.reason, Reason.WindowClosed.value in refusal.tally
    if reason is Reason.Reserved:
        if run.hold is None or not run.hold.holds:
            reservation.await_room(engine, run, Planner(engine.state, engine.family, run, engine.now))
    elif reason is Reason.NeverFits:
        reservation.settle(engine, run, ReservationState.FAILED, reason, reason.remedy)
    elif (run.hold is not None or closed) and not (reason is Reason.NoRoom and reservation.is_coming(engine, run)):
        reservation.await_money(engine, run, reason, closed=closed)
