"""Catching up: what happened while nobody decided is decided late, but each thing as of its own time, in order.

Work ends without the daemon and its supervisors write down when; deadlines and windows have their times in the ledger. A lease
ends when its work ended, not when somebody came to look, and work that ended in time did not overrun.

Only starts cannot be made up for: nobody was there to launch anything. So where a late decision would start a run, the nodes are
held as of then, and let go at the present time, when the run can really begin. An administrator's cordon is something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.timers import Due

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlease.ledger.state.state import State
    from fairlease.scheduler import Scheduler

LATE_MS = 1_000
"""A decision that is later than this starts nothing as of its own time: the run would pay for what it did not have."""


class End(NamedTuple):
    """An end of work, and when it was."""

    at: int
    command: cmd.AnyCommand


def catch_up(
    scheduler: Scheduler, ends: Iterable[End], now: int, tick: Callable[[int, list[cmd.AnyCommand]], object]
) -> None:
    """Play ends of work and the timers that fell due before `now`; of one instant, the ends come first."""
    left = sorted((min(end.at, now), index, end.command) for index, end in enumerate(ends))
    left.reverse()
    played = -1
    while True:
        timer = _timer_after(scheduler, played, now)
        if left and (timer is None or left[-1][0] <= timer or timer >= now):
            at = left[-1][0]
            commands = []
            while left and left[-1][0] == at:
                commands.append(left.pop()[2])
        elif timer is not None and timer < now:
            at = played = timer
            commands = [cmd.TimePassed()]
        else:
            return
        tick(at, [*_held(scheduler, at, now, commands), *commands])


def reopened(state: State) -> list[cmd.AnyCommand]:
    """Let go of the nodes that catching up has held, also before a crash."""
    nodes = (known.node for known in state.capacity.nodes.values())
    return [cmd.SetNode(node=msgspec.structs.replace(node, held=False)) for node in nodes if node.held]


def _timer_after(scheduler: Scheduler, played: int, now: int) -> int | None:
    """The next timer; one that was played and stays set, because nothing came of it, is not played again.

    A reservation that fell due meanwhile starts its run, and cuts others, only now: nobody was there to launch anything.
    """
    timer = scheduler.next_timer()
    if timer is None or timer >= now or (timer > played and not scheduler.state.holds):
        return timer
    times = scheduler.state.timers.times.items()
    return min((when for (due, _), when in times if when > played and due is not Due.RESERVATION), default=None)


def _held(scheduler: Scheduler, at: int, now: int, commands: list[cmd.AnyCommand]) -> list[cmd.AnyCommand]:
    """The nodes to hold, where a decision that late would start something."""
    if now - at <= LATE_MS:
        return []
    with scheduler.what_if(at, *commands) as decision:
        starts = any(isinstance(event, ev.LeasesOpened) for event in decision.events)
    if not starts:
        return []
    usable = (known.node for known in scheduler.state.capacity.nodes.values() if known.barred is None)
    return [cmd.SetNode(node=msgspec.structs.replace(node, held=True)) for node in usable]
