"""Sooner: dates that need no longer be so late, because facts have improved (SEMANTICS §6).

A date is a lien too: who asks later and surely ends by it passes. So a date that stays late while facts tell a much sooner one lets
others in who then are in the way. Looked at again are the dates of runs on whose slices work began or ended, or another's lien was
lifted, and of all with a slice when nodes of their flavor come, go or change. A prediction gives way to facts, or to the notice,
that tell a sooner date. Another date moves only for who asked first, which is all that passing can hurt now; only where it comes
sooner by a quarter of the time that is left, so that it cannot flutter; and only where nobody who asked later loses what it was
promised. It is bounded so: one date is counted again for what happens on its slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.plan import Planner
from fairlease.engine.reserve.availability import CUTS
from fairlease.engine.reserve.reservation import draft, make
from fairlease.ledger.state.timers import Due
from fairlease.model.amount import MINUTE
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
    from fairlease.engine.reserve.reservation import Draft
    from fairlease.ledger.state.runs import Hold, RunState

GAIN_MIN, GAIN_SHARE = MINUTE, 4
"""How much sooner a date has to come: a quarter of the time that is left, and a minute at least."""

_PROVED_WRONG = (Reason.NotServed, Reason.TooYoung)
"""Why a date was given that had been counted sooner before, and could not be kept."""


def lead(engine: Engine) -> None:
    """The dates of those who asked first, each of a flavor, before anybody who asked later passes by the date that was.

    Who stands behind others is looked at when they have been tried: what they do moves its date, and one move is enough.
    """
    state = engine.state
    shaken, near = state.dirty.shaken, state.standings.near
    for flavor in state.dirty.topology:
        shaken.update(run.key for run in near.get(flavor, {}).values())
    if shaken:
        first = [runs.peekitem(0)[1] for runs in near.values() if runs and runs.peekitem(0)[1].key in shaken]
        shaken.difference_update(run.key for run in first)
        _bring_forward(engine, first)


def follow(engine: Engine) -> None:
    """All other dates that were shaken, in order of asking."""
    state = engine.state
    shaken, state.dirty.shaken = state.dirty.shaken, set()
    _bring_forward(engine, [state.holds[key] for key in shaken if key in state.holds])


def _bring_forward(engine: Engine, runs: list[RunState]) -> None:
    """Move every date that can be much sooner."""
    state, counts = engine.state, engine.state.timers.counts
    if engine.rehearses or (state.config.notice is None and not counts[Due.DEADLINE] and not counts[Due.WINDOW]):
        return
    for run in sorted(runs, key=lambda each: each.order):
        hold, engine.subject = run.hold, run.key
        if hold is None or hold.state is not ReservationState.PENDING or hold.exclusive:
            continue
        latest = _worthwhile(engine, run, hold)
        if latest <= engine.now:
            continue
        planner = Planner(state, engine.family, run, engine.now)
        if planner.unfunded(told=False) is not None:
            continue
        found = draft(engine, run, planner, surely=True)
        if found is None or found.date > latest or (found.date <= engine.now and found.fit.how not in CUTS):
            continue
        if hold.basis is Reason.Predicted or _harmless(engine, run, hold, found):
            make(engine, run, planner, Reason.Sooner)


def _worthwhile(engine: Engine, run: RunState, hold: Hold) -> int:
    """The latest date for which it is worth moving; now where there is none.

    So it is for whoever is not the first of a flavor, where a date rests on no more than the notice, or came about because counting
    had erred: to count again proves nothing.
    """
    if hold.basis is Reason.Predicted:
        return hold.earliest_start - 1
    first = engine.state.standings.near[run.spec.resources.gpu_type].peekitem(0)[1]
    if run is not first or hold.reason in _PROVED_WRONG:
        return engine.now
    left = hold.earliest_start - max(engine.now, hold.cut_from or 0)
    return engine.now if left <= 0 else hold.earliest_start - max(GAIN_MIN, left // GAIN_SHARE)


def _harmless(engine: Engine, run: RunState, hold: Hold, found: Draft) -> bool:
    """Whether nobody who asked later counts on the same slots before, or in place of, a claim that would come sooner."""
    state = engine.state
    for pod in found.fit.pods:
        for key, slots in pod.node.liens.items():
            other = state.holds[key]
            shared = slots & pod.slots
            if not shared or other.order <= run.order or other.hold is None:
                continue
            limit, start = other.spec.runtime.max_duration, other.hold.earliest_start
            follows = start >= hold.earliest_start and not shared & ~hold.lien.get(pod.node.node.name, 0)
            if not follows and (limit is None or start + limit > found.date):
                return False
    return True
