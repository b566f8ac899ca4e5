"""Certain: from when on work surely has no claim to its GPUs any more, whatever anybody does (SEMANTICS §4, §6).

One answer for all who look ahead: who counts a date (`engine.outlook`), who plays the day on which it is due (`engine.due_date`),
who tells how many GPUs others would have to give up for it (`engine.notice`). Certain are deadlines and the ends of windows. When
the window of its money closes, work under Drain ends after the time for its checkpoint, and work under Hold goes on; but both are
overdrawn from that moment, and give way at once to whoever is funded. So a claim has the GPUs when the window closes, and only who
has no claim to them has to ask which of the two it is.

Hours that run out are not certain, nor are caps on hours: they last longer where somebody who uses them ends early, and nobody
knows that. If they were counted, who has to give way on the day after all would not have been warned. The forecast plays them, as
it plays predicted ends. Cover that is lost by an edit, or regained by one, is nobody's to foresee.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from fairlease.engine.cover import overdraft
from fairlease.engine.preempt.shrink import shed
from fairlease.ledger.state.events import CoverLost, CoverRegained, LeasesClosed
from fairlease.ledger.state.timers import Due
from fairlease.model.lease import Role
from fairlease.model.record import Key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.ledger.state.runs import RunState, Unit
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease, Payer

EVER, NEVER = 0, 1 << 62
"""Earlier and later than any date."""

Change = tuple[str, ...]
"""What became of a run, or of a unit of cover, by a later day: alike for two days on which the same has happened."""


class ReleaseTimes:
    """What is certain of the work in one state; what holds of a whole run is asked once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._runs: dict[Key, int] = {}

    def free_from(self, lease: Lease) -> int:
        """From when on a lease surely has no claim to its GPUs: `EVER` where it has none now, `NEVER` where it may keep it."""
        run = self._state.runs[lease.run]
        if lease.opportunistic or (run.overdrawn and run.unit(lease) in run.overdrawn):
            return EVER
        return min(self._whole(run), self._closes(lease.payer))

    def _whole(self, run: RunState) -> int:
        """From when on all of a run: at its deadline, and when windows close of its active pods' money.

        A rigid run is overdrawn in a share with the first of them, and goes whole; an elastic one does when what is left of it is
        less than its minimum.
        """
        found = self._runs.get(run.key)
        if found is None:
            found = NEVER if run.deadline is None else run.deadline
            first = EVER if run.overdrawn else self._first_closes(run)
            if run.spec.malleable is not None and first < NEVER:
                first = self._too_narrow(run, run.spec.malleable.min_total_gpus)
            found = self._runs[run.key] = min(found, first)
        return found

    def _too_narrow(self, run: RunState, least: int) -> int:
        """When those groups of an elastic run that are still paid for are less than its minimum."""
        ends, gpus = dict[int, int](), dict[int, int]()
        for lease in run.leases.values():
            if lease.role is not Role.SPARE:
                end = EVER if run.unit(lease) in run.overdrawn else self._closes(lease.payer)
                ends[lease.group] = min(end, ends.get(lease.group, NEVER))
                gpus[lease.group] = gpus.get(lease.group, 0) + lease.gpus
        left = sum(gpus.values())
        for group in sorted(ends, key=lambda each: ends[each]):
            left -= gpus[group]
            if left < least:
                return ends[group]
        return NEVER

    def _first_closes(self, run: RunState) -> int:
        """When the first window closes of those that pay for its active pods; mostly they all have the same payer."""
        found, asked = NEVER, None
        for lease in run.leases.values():
            payer = lease.payer
            if payer != asked and lease.role is not Role.SPARE:
                found, asked = min(found, self._closes(payer)), payer
        return found

    def _closes(self, payer: Payer) -> int:
        """When the window of a payer closes."""
        terms = self._state.account(payer.budget, payer.envelope).envelope
        return NEVER if terms is None or terms.end is None else terms.end


def let_pass(state: State, when: int) -> tuple[Change, ...]:
    """Play what is certain until then, inside a trial, each at its time; what has become of whom.

    Runs end at their deadlines, windows close and open, what is overdrawn under Drain ends after its grace, and what others leave
    covers overdrawn work again.
    """
    kinds = (Due.DEADLINE, Due.WINDOW, Due.DRAIN)
    ahead = [(state.timers.times[key], *key) for key in state.timers.before(when) if key[0] in kinds]
    heapify(ahead)
    done: list[Change] = []
    while ahead:
        time, due, subject = heappop(ahead)
        now = max(time, state.at)
        if due is Due.DEADLINE:
            done += _end(state, Key(subject[0]), now)
        elif due is Due.DRAIN:
            done += _drain(state, (*subject[:3], int(subject[3])), now)  # type: ignore[arg-type]  # four of them
        else:
            edge = state.account(Key(subject[0]), subject[1]).next_edge(now)
            if edge is not None and edge <= when:
                heappush(ahead, (edge, due, subject))
            for unit, ends in _close(state, subject, now):
                done.append(("overdrawn", *map(str, unit)))
                if ends is not None and ends <= when:
                    heappush(ahead, (ends, Due.DRAIN, tuple(map(str, unit))))
        done += _regain(state, now)
    return tuple(done)


def _end(state: State, run: Key, now: int) -> list[Change]:
    if not state.runs[run].leases:  # It was drained before.
        return []
    state.apply(now, LeasesClosed(run=run, reason=Reason.TimeLimit))
    return [("ended", run)]


def _close(state: State, account: tuple[str, ...], now: int) -> list[tuple[Unit, int | None]]:
    """What an envelope no longer covers, where its window has closed, and when that ends."""
    found, books = [], state.account(Key(account[0]), account[1])
    if books.envelope is None or books.envelope.end is None or books.envelope.end > now:
        return []
    units = {state.runs[lease.run].unit(lease) for lease in books.open.values()}
    for unit in sorted(units - state.overdrawn.keys()):
        run, budget, envelope, group = unit
        ends = overdraft.grace_end(state, unit, now)
        lost = CoverLost(
            run=Key(run), budget=Key(budget), envelope=envelope, group=group, reason=Reason.WindowClosed, ends=ends
        )
        state.apply(now, lost)
        found.append((unit, ends))
    return found


def _drain(state: State, unit: Unit, now: int) -> list[Change]:
    """Overdrawn work whose grace is over ends, unless it was covered again meanwhile."""
    if unit not in state.overdrawn:
        return []
    run = state.runs[Key(unit[0])]
    going = shed(run, unit[3])
    names = () if going is None else tuple(lease.name for lease in run.held if lease.group in going)
    state.apply(now, LeasesClosed(run=run.key, names=names, reason=Reason.BudgetExhausted))
    return [("drained", *map(str, unit))]


def _regain(state: State, now: int) -> list[Change]:
    """What is covered again by what others left, or because its window opened."""
    done: list[Change] = []
    for budget in sorted({Key(unit[1]) for unit in state.overdrawn}):
        known = sorted(unit for unit in state.overdrawn if unit[1] == budget)
        spec = state.budgets.get(budget)
        names = {unit[2] for unit in known} | {each.name for each in (() if spec is None else spec.envelopes)}
        lacking = overdraft.uncovered(state, budget, [state.account(budget, name) for name in sorted(names)], now)
        for unit in known:
            if unit not in lacking:
                state.apply(now, CoverRegained(run=Key(unit[0]), budget=budget, envelope=unit[2], group=unit[3]))
                done.append(("covered", *map(str, unit)))
    return done
