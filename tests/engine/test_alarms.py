"""Money that runs low is told: hours, windows that end, lending caps; from the state alone."""

from __future__ import annotations

from tests.engine.build import HOUR, MINUTE, T0, World, budget, cap, envelope, lending, node, run

from fairlease.model.amount import DAY, SECOND
from fairlease.model.record import key
from fairlease.report.budget_warnings import alarms
from fairlease.report.lending import conditions, lent_view
from fairlease.report.notices import NoticeKind, of_entry

BUDGETS = [budget(owner, envelope(concurrency=64)) for owner in ("alpha", "beta", "gamma")]


def test_hours_are_told_at_80_and_95_percent_with_the_time_at_which_they_end() -> None:
    world = World(node("a0"), budget("alpha", envelope(max_gpu_hours=80 * HOUR)))
    start = world.now
    world.submit("r", run("alpha", 8, pod=8))
    first = alarms(world.scheduler.state, world.now)
    assert first == ([], start + 8 * HOUR)
    world.wait(8 * HOUR)
    (low,), again = alarms(world.scheduler.state, world.now)
    assert (low.kind, low.due, again) == (NoticeKind.HOURS_LOW, start + 10 * HOUR, start + 9 * HOUR + 30 * MINUTE)
    assert "80 % of the hours of e are used, 16 GPU-hours are left" in low.text
    world.wait(9 * HOUR + 30 * MINUTE - 8 * HOUR)
    (lower,), _ = alarms(world.scheduler.state, world.now)
    assert "95 %" in lower.text
    assert lower.key != low.key
    world.wait(HOUR)
    assert alarms(world.scheduler.state, world.now).notices == []
    told = [notice for entry in world.store.entries(0) for notice in of_entry(world.scheduler.engine, entry, str)]
    assert [notice.kind for notice in told] == [NoticeKind.HOURS_USED_UP, NoticeKind.OVERDRAWN]


def test_hours_under_an_aggregate_cap_are_told_as_those_of_the_cap() -> None:
    spec = budget(
        "alpha", envelope("e"), envelope("f"), aggregate_caps=(cap("both", ["e", "f"], max_gpu_hours=10 * HOUR),)
    )
    world = World(node("a0"), spec)
    world.submit("r", run("alpha", 8, pod=8))
    world.wait(HOUR)
    (low,) = alarms(world.scheduler.state, world.now).notices
    assert "80 % of the hours of cap both are used" in low.text


def test_hours_of_a_window_that_is_over_are_low_no_more() -> None:
    """What is left of them is lost; nobody can spend less of it now."""
    world = World(node("a0"), budget("alpha", envelope(max_gpu_hours=72 * HOUR, start=T0, end=T0 + 9 * HOUR)))
    world.submit("r", run("alpha", 8, pod=8, max_duration=8 * HOUR))
    world.wait(8 * HOUR)
    assert [each.kind for each in alarms(world.scheduler.state, world.now).notices] == [NoticeKind.HOURS_LOW]
    world.wait(HOUR)
    assert alarms(world.scheduler.state, world.now) == ([], None)


def test_hours_of_a_cap_are_spent_only_where_a_window_is_open() -> None:
    """Work goes on that its window no longer covers: it uses up nothing of the cap over both envelopes."""
    both = (cap("both", ["e", "f"], max_gpu_hours=20 * HOUR),)
    spec = budget("alpha", envelope("e", 8, end=T0 + HOUR), envelope("f", 8), aggregate_caps=both)
    world = World(node("a0"), node("a1"), spec)
    for name in ("one", "two"):
        world.submit(name, run("alpha", 8, pod=8))
    world.wait(HOUR)
    assert world.overdrawn() == {"one"}
    (low,), again = alarms(world.scheduler.state, world.now)
    assert "80 % of the hours of cap both are used, 4 GPU-hours are left" in low.text
    assert (low.due, again) == (world.now + 30 * MINUTE, world.now + 22 * MINUTE + 30 * SECOND)


def test_a_window_that_ends_is_told_in_its_last_tenth_or_its_last_day() -> None:
    now = World().now
    world = World(
        budget("alpha", envelope("short", start=now, end=now + 10 * HOUR), envelope("open", end=now + 30 * DAY))
    )
    assert alarms(world.scheduler.state, now) == ([], now + 9 * HOUR)
    world.wait(9 * HOUR)
    (ends,), again = alarms(world.scheduler.state, world.now)
    assert (ends.kind, ends.envelope, ends.due) == (NoticeKind.WINDOW_ENDING, "short", now + 10 * HOUR)
    assert again == now + 29 * DAY


def test_a_lending_cap_near_its_limit_is_told_once_a_day_at_most() -> None:
    lent = lending(max_concurrency=8)
    world = World(node("a0"), budget("bank", envelope(lending=lent)), budget("poor", envelope(concurrency=1)))
    borrower = {"allow_borrow": True, "sponsors": ("bank",)}
    world.submit("four", run("poor", 4, pod=4, **borrower))
    assert alarms(world.scheduler.state, world.now).notices == []
    world.submit("more", run("poor", 4, pod=4, **borrower))
    (near,) = alarms(world.scheduler.state, world.now).notices
    assert (near.kind, near.owner) == (NoticeKind.LENDING_CAP_NEAR, "bank")
    assert "has lent 8 of 8 GPUs" in near.text
    (later,) = alarms(world.scheduler.state, world.now + HOUR).notices
    assert later.key == near.key
    (tomorrow,) = alarms(world.scheduler.state, world.now + DAY).notices
    assert tomorrow.key != near.key


def test_hours_that_are_lent_count_what_is_promised_too() -> None:
    lent = lending(max_gpu_hours=4 * HOUR)
    world = World(node("a0"), budget("bank", envelope(lending=lent)), budget("poor", envelope(concurrency=1)))
    world.submit("r", run("poor", 4, pod=4, max_duration=HOUR - 60 * SECOND, allow_borrow=True, sponsors=("bank",)))
    (near,) = alarms(world.scheduler.state, world.now).notices
    assert "has lent 3.93333 of 4 GPU-hours, what is promised included" in near.text


def test_lent_hours_that_fill_their_cap_by_the_passing_of_time_are_told_when_they_do() -> None:
    lent = lending(max_gpu_hours=100 * HOUR)
    world = World(node("a0"), budget("bank", envelope(lending=lent)), budget("poor", envelope(concurrency=1)))
    start = world.now
    world.submit("r", run("poor", 8, pod=8, allow_borrow=True, sponsors=("bank",)))
    near_at = start + 11 * HOUR  # eleven hours, and the quarter that is promised ahead: 90 of 100
    assert alarms(world.scheduler.state, world.now) == ([], near_at)
    world.wait(11 * HOUR)
    (near,), again_at = alarms(world.scheduler.state, world.now)
    assert "has lent 90 of 100 GPU-hours" in near.text
    assert again_at == start + DAY, "another day, another warning"


def test_lent_hours_of_a_run_with_a_limit_are_promised_whole_and_fill_no_cap_by_the_passing_of_time() -> None:
    lent = lending(max_gpu_hours=100 * HOUR)
    world = World(node("a0"), budget("bank", envelope(lending=lent)), budget("poor", envelope(concurrency=1)))
    world.submit("r", run("poor", 8, pod=8, max_duration=10 * HOUR, allow_borrow=True, sponsors=("bank",)))
    assert alarms(world.scheduler.state, world.now) == ([], None)


def test_whoever_looks_at_a_lending_cap_is_warned_of_the_same() -> None:
    """The condition of the Budget, `budgets lent` and the notice ask one question; a window that is over has no answer to it."""
    now = World().now
    terms = envelope(lending=lending(max_concurrency=8), start=now, end=now + HOUR)
    world = World(node("a0"), budget("bank", terms), budget("poor", envelope(concurrency=1)))
    world.submit("r", run("poor", 8, pod=8, allow_borrow=True, sponsors=("bank",)))
    state = world.scheduler.state
    for wait, warned in ((0, True), (HOUR, False)):
        world.wait(wait)
        near = [each for each in alarms(state, world.now).notices if each.kind is NoticeKind.LENDING_CAP_NEAR]
        room = next(each for each in conditions(state, key("bank"), world.now) if each[0] == "LendingRoom")
        assert (bool(near), not room[1], bool(lent_view(state, key("bank"), world.now)["warnings"])) == (warned,) * 3
