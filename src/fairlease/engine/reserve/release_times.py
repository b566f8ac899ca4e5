"""Release times: from when on work surely has no claim to its GPUs any more, whatever anybody does (SEMANTICS §4, §6).

One source for dates (`availability`), and for all that is foretold of the day on which a reservation falls due: warnings, odds,
remedies. It restates no rule: what money covers is asked of `cover.overdraft`, what goes of a run that is not covered of
`preempt.victims`. Certain are deadlines and the ends of windows. When the window of its money closes, work under Drain ends after
the time for its checkpoint, and work under Hold goes on; but both are overdrawn from that moment, and are preempted at once by
whoever is funded.

Hours that run out are not certain, nor are caps on hours: they last longer where somebody who uses them ends early. If they were
counted, whoever has to be preempted on the day after all would not have been warned. The forecast plays them, as it plays predicted
ends. Cover that is lost by an edit, or regained by one, is nobody's to foresee.
"""

from __future__ import annotations

from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover import overdraft
from fairlease.engine.preempt.victims import drained, of_unclaimed
from fairlease.ledger.state.events import CoverLost, LeasesClosed
from fairlease.ledger.state.timers import Due
from fairlease.model.record import Key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.ledger.state.events import AnyEvent
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease, Payer

EVER, NEVER = 0, 1 << 62
"""Earlier and later than any date."""


class ReleaseTimes:
    """From when on each lease in one state has no claim to its GPUs; what holds of a run is asked once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._runs: dict[Key, int | dict[int, int]] = {}

    def free_from(self, lease: Lease) -> int:
        """`EVER` where a lease has no claim now, `NEVER` where it may keep it."""
        leaving = self._state.leaving.get(lease.serial)
        if leaving is not None:
            return leaving.until
        if lease.opportunistic:
            return EVER
        found = self._runs.get(lease.run)
        if found is None:
            found = self._runs[lease.run] = self._of(self._state.runs[lease.run])
        return found if isinstance(found, int) else found[lease.serial]

    def _of(self, run: RunState) -> int | dict[int, int]:
        """The time for the whole run, or by the serial of each lease."""
        end = NEVER if run.deadline is None else run.deadline
        first = EVER if run.overdrawn else self._first_closes(run)
        if run.spec.malleable is None or first >= end:
            return min(first, end)
        owing: dict[int, int] = {}
        for lease in run.leases.values():
            lost = EVER if run.unit(lease) in run.overdrawn else self._closes(lease.payer)
            owing[lease.group] = min(lost, owing.get(lease.group, end))
        times = {lease.serial: end for lease in run.leases.values()}
        for when in sorted(set(owing.values()) - {end}, reverse=True):
            groups = {group for group, lost in owing.items() if lost <= when}
            for victim in of_unclaimed(run, lambda _: True, groups):
                times |= {lease.serial: when for lease in victim.leases}
        return times

    def _first_closes(self, run: RunState) -> int:
        """When the first window closes of those that pay for a run; mostly one payer pays for all of it, and is asked once."""
        found, asked = NEVER, None
        for lease in run.leases.values():
            if lease.payer is not asked:
                asked = lease.payer
                found = min(found, self._closes(asked))
        return found

    def _closes(self, payer: Payer) -> int:
        found = overdraft.closes(self._state.account(payer.budget, payer.envelope))
        return NEVER if found is None else found


def play(state: State, until: int) -> tuple[AnyEvent, ...]:
    """Make what is certain until then true, inside a trial, each at its time; what that was.

    Runs end at their deadlines, windows close and open, what is overdrawn under Drain ends after its grace, and what others leave
    covers overdrawn work again.
    """
    for each in sorted(state.leaving.values(), key=lambda each: each.lease.serial):
        state.apply(state.at, LeasesClosed(run=each.lease.run, names=(each.lease.name,), reason=each.reason))
    kinds = (Due.DEADLINE, Due.WINDOW, Due.DRAIN)
    ahead = [(state.timers.times[key], *key) for key in state.timers.before(until) if key[0] in kinds]
    heapify(ahead)
    done: list[AnyEvent] = []
    while ahead:
        time, due, subject = heappop(ahead)
        now, budgets = max(time, state.at), {Key(unit[1]) for unit in state.overdrawn}
        ends: LeasesClosed | None = None
        if due is Due.WINDOW:
            budgets.add(Key(subject[0]))
            edge = state.account(Key(subject[0]), subject[1]).next_edge(now)
            if edge is not None and edge <= until:
                heappush(ahead, (edge, due, subject))
        elif due is Due.DEADLINE:
            ends = LeasesClosed(run=Key(subject[0]), reason=Reason.TimeLimit)
        elif (Key(subject[0]), Key(subject[1]), subject[2], int(subject[3])) in state.overdrawn:
            victim = drained(state.runs[Key(subject[0])], int(subject[3]))
            ends = LeasesClosed(run=victim.run, names=victim.names, reason=victim.reason)
        if ends is not None and state.runs[ends.run].leases:  # Else it was drained before.
            state.apply(now, ends)
            done.append(ends)
        for event in [each for key in sorted(budgets) for each in overdraft.changes(state, key, (), now, hours=False)]:
            state.apply(now, event)
            done.append(event)
            if isinstance(event, CoverLost) and event.ends is not None and event.ends <= until:
                unit = (event.run, event.budget, event.envelope, str(event.group))
                heappush(ahead, (event.ends, Due.DRAIN, unit))
    return tuple(done)


# --- the day on which a reservation falls due --------------------------------------------------------------------------------


class Day(NamedTuple):
    """When others may be preempted for a claim, what has become of others by then, and whether their notice is over.

    Where it is not, only work without a claim to its GPUs is preempted.
    """

    at: int
    gone: tuple[AnyEvent, ...]
    noticed: bool


def too_late(run: RunState, date: int) -> bool:
    """Whether a run that waits will have failed by a date: it must have started before, once."""
    latest = run.spec.runtime.latest_start
    return latest is not None and run.attempt == 1 and latest < date


def cuts_on(claim: RunState, now: int) -> int | None:
    """When others may be preempted for a claim, on the date it has; None where it holds nothing, or will have failed by then."""
    hold = claim.hold
    if hold is None or not hold.holds:
        return None
    when = max(now, hold.earliest_start)
    return None if too_late(claim, when) else when


def noticed(claim: RunState, when: int) -> bool:
    """Whether others will have had their notice by then; never, where funded work is not preempted."""
    return claim.hold is not None and claim.hold.cut_from is not None and claim.hold.cut_from <= when


@contextmanager
def due_date(state: State, claim: RunState, now: int) -> Iterator[Day | None]:
    """The state as it surely is when others may be preempted for a claim, inside a trial; None where they may not on its date."""
    at = cuts_on(claim, now)
    if at is None:
        yield None
        return
    with state.trial():
        yield Day(at, play(state, at), noticed(claim, at))
