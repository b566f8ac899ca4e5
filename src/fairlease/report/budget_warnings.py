"""Alarms: money that runs low, told before it is gone.

Hours of an envelope or an aggregate cap at 80 % and at 95 %, with the time at which they end at the present rate; a window in the
last tenth of its time, or in its last day; lending sub-caps that `engine.lending` holds for nearly full. Hours only grow within
their window, so each threshold is told once for a window and a cap. What is lent goes up and down all day: that is told once a day
at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.amount import DAY, format_instant, gpu_hours
from fairlease.model.record import Key, short
from fairlease.report.lending import in_question
from fairlease.report.notices import Notice, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.ledger.state.accounts import Account
    from fairlease.ledger.state.state import State
    from fairlease.model.budget import AggregateCap, Envelope

HOURS_PERCENT = (95, 80)
WINDOW_PART = 10


class Alarms(NamedTuple):
    """What is to be told now, unless it was; and when something will be, if all goes on as it does."""

    notices: list[Notice]
    again_at: int | None


class FillLevel(NamedTuple):
    """How full something with a cap is: GPU-ms used by now, how many more each ms, and when it ends for good."""

    used: int
    rate: int
    cap: int
    end: int | None


def alarms(state: State, now: int) -> Alarms:
    """All that holds of the money of all Budgets at `now`."""
    found: list[Notice] = []
    times: list[int] = []
    for budget, spec in state.budgets.items():
        for envelope in spec.envelopes:
            account = state.account(budget, envelope.name)
            found += _hours(state, budget, envelope.name, _fill(account, envelope, now), now, times)
            found += _window(state, budget, envelope, now, times)
        found += _lent(state, budget, now, times)
        for cap in spec.aggregate_caps:
            found += _hours(state, budget, f"cap {cap.name}", _aggregate(state, budget, cap, now), now, times)
    return Alarms(found, min(times, default=None))


def _fill(account: Account, envelope: Envelope, now: int) -> FillLevel | None:
    if envelope.max_gpu_hours is None or not account.inside_window(now):
        return None
    return FillLevel(account.consumed(now), account.usage.rate, envelope.max_gpu_hours, envelope.end)


def _aggregate(state: State, budget: Key, cap: AggregateCap, now: int) -> FillLevel | None:
    if cap.max_gpu_hours is None:
        return None
    members = [state.account(budget, name) for name in cap.envelopes]
    rate = sum(member.usage.rate for member in members if member.inside_window(now))
    return FillLevel(sum(member.consumed(now) for member in members), rate, cap.max_gpu_hours, None)


def _hours(
    state: State, budget: Key, name: str, fill: FillLevel | None, now: int, times: list[int]
) -> Iterator[Notice]:
    """The highest threshold that was passed, and when the next will be."""
    if fill is None or fill.used >= fill.cap:
        return
    passed = next((each for each in HOURS_PERCENT if fill.used * 100 >= fill.cap * each), None)
    above = [each for each in HOURS_PERCENT if fill.used * 100 < fill.cap * each]
    if fill.rate and above:
        times.append(_reached(fill, fill.cap * above[-1], 100, now))
    if passed is None:
        return
    ends = _reached(fill, fill.cap, 1, now) if fill.rate else None
    if ends is not None and fill.end is not None and ends >= fill.end:
        ends = None
    until = "nothing is spent just now" if not fill.rate else "they last to the end of the window"
    if ends is not None:
        until = f"at the present rate they end at {format_instant(ends)}"
    left = gpu_hours(fill.cap - fill.used)
    text = f"Budget {short(budget)}: {passed} % of the hours of {name} are used, {left:g} GPU-hours are left; {until}"
    yield Notice(
        key=f"{NoticeKind.HOURS_LOW.value}/{budget}/{name}/{passed}/{fill.cap}/{fill.end}",
        kind=NoticeKind.HOURS_LOW,
        at=now,
        text=text,
        owner=state.budgets[budget].owner,
        budget=budget,
        envelope=name,
        due=ends,
    )


def _reached(fill: FillLevel, goal: int, scale: int, now: int) -> int:
    """When use will have reached `goal` / `scale`."""
    left = -(-goal // scale) - fill.used
    return now - (-left // fill.rate)


def _window(state: State, budget: Key, envelope: Envelope, now: int, times: list[int]) -> Iterator[Notice]:
    end = envelope.end
    if end is None or end <= now:
        return
    lead = DAY if envelope.start is None else min(DAY, (end - envelope.start) // WINDOW_PART)
    if end - lead > now:
        times.append(end - lead)
        return
    text = f"Budget {short(budget)}: the window of {envelope.name} ends at {format_instant(end)}"
    yield Notice(
        key=f"{NoticeKind.WINDOW_ENDING.value}/{budget}/{envelope.name}/{end}",
        kind=NoticeKind.WINDOW_ENDING,
        at=now,
        text=text,
        owner=state.budgets[budget].owner,
        budget=budget,
        envelope=envelope.name,
        due=end,
    )


def _lent(state: State, budget: Key, now: int, times: list[int]) -> Iterator[Notice]:
    """Lending caps that are nearly full, today; when others will be by the passing of time, and when it is another day."""
    for fill in in_question(state, budget, now):
        near_at = fill.near_at(now)
        if near_at is not None:
            times.append(near_at)
        if fill.warning is None or not fill.cap:  # who lends nothing has said so
            continue
        times.append((now // DAY + 1) * DAY)
        what, lent = "GPUs", f"{fill.taken} of {fill.cap} GPUs"
        if fill.hours:
            what = "hours"
            lent = f"{gpu_hours(fill.taken):g} of {gpu_hours(fill.cap):g} GPU-hours, what is promised included"
        yield Notice(
            key=f"{NoticeKind.LENDING_CAP_NEAR.value}/{budget}/{fill.envelope}/{what}/{fill.cap}/{now // DAY}",
            kind=NoticeKind.LENDING_CAP_NEAR,
            at=now,
            text=f"Budget {short(budget)}: {fill.envelope} has lent {lent}",
            owner=state.budgets[budget].owner,
            budget=budget,
            envelope=fill.envelope,
        )
