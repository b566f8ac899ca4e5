"""Due date: the state as it surely is when a reservation falls due, for whoever rehearses the resolver before (SEMANTICS §6, §7).

What is foretold of cuts (who is warned, the odds, what could give way) rests on the same day: what surely has ended by then is
gone, what surely is no longer paid for gives way before anybody is drawn (`engine.certain`), and nobody else gives way to a claim
before the notice is over.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.reserve.release_times import Change, let_pass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.context import Engine
    from fairlease.ledger.state.runs import RunState


class Day(NamedTuple):
    """When a claim may have others cut, what has become of others by then, and whether their notice is over.

    Where it is not, only work without a claim to its GPUs gives way.
    """

    at: int
    gone: tuple[Change, ...]
    noticed: bool


def too_late(run: RunState, date: int) -> bool:
    """Whether a run that waits will have failed by a date: it must have started before, once."""
    latest = run.spec.runtime.latest_start
    return latest is not None and run.attempt == 1 and latest < date


def cuts_on(claim: RunState, now: int) -> int | None:
    """When a claim may have others cut, on the date it has; None where it holds nothing, or will have failed by then."""
    hold = claim.hold
    if hold is None or not hold.holds:
        return None
    when = max(now, hold.earliest_start)
    return None if too_late(claim, when) else when


def noticed(claim: RunState, when: int) -> bool:
    """Whether others will have had their notice by then; never, where funded work is not cut."""
    return claim.hold is not None and claim.hold.cut_from is not None and claim.hold.cut_from <= when


@contextmanager
def due_date(engine: Engine, claim: RunState) -> Iterator[Day | None]:
    """The day on which a claim may have others cut, inside a trial; None where it may not on the date it has."""
    state, at = engine.state, cuts_on(claim, engine.now)
    if at is None:
        yield None
        return
    with state.trial():
        yield Day(at, let_pass(state, at), noticed(claim, at))
