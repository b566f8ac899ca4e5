"""What is believed of durations: ordered, never in the past, forgotten without a trace, the same after a restart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import HOUR, MINUTE, World, budget, node, run

from fairlease.engine.forecast import predicted_ends
from fairlease.ledger.learning.durations import Durations, kinds, kinds_of
from fairlease.ledger.state.runs import RunState
from fairlease.ledger.state.state import State
from fairlease.ledger.state.undo import UndoLog
from fairlease.ledger.store import snapshot
from fairlease.model.amount import DAY, SECOND
from fairlease.model.record import key

durations = st.integers(min_value=1, max_value=900 * DAY)
ends = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "u", "v"]), st.sampled_from([1, 8]), durations))


def believing(past: list[tuple[str, str | None, int, int]], **more: int) -> World:
    """A world with one waiting run of owner `a`, in whose ledger these attempts are over."""
    world = World(node("n", 1), budget("a"))
    world.submit("r", run("a", 1, **more))
    for owner, user, gpus, duration in past:
        world.scheduler.state.durations.learn(UndoLog(), kinds(owner, user, gpus), duration)
    return world


def quantiles(state: State, what: RunState, elapsed: int, wanted: tuple[int, ...] = (100, 500, 900)) -> list[int]:
    """How long a run lasts in all, for each share."""
    return state.durations.quantiles(kinds_of(what), elapsed, what.spec.runtime.expected_duration, wanted)


@settings(deadline=None)
@given(ends, st.integers(0, 1000 * DAY))
def test_quantiles_are_in_order_and_lie_beyond_what_has_passed(
    past: list[tuple[str, str | None, int, int]], elapsed: int
) -> None:
    world = believing(past)
    found = quantiles(world.scheduler.state, world.run("r"), elapsed, (10, 100, 500, 900, 990))
    assert found == sorted(found)
    assert found[0] > elapsed


@settings(deadline=None)
@given(ends, st.integers(0, 2 * HOUR), st.integers(0, 2 * HOUR))
def test_who_has_run_longer_is_not_believed_to_end_before_one_who_has_not(
    past: list[tuple[str, str | None, int, int]], one: int, other: int
) -> None:
    world = believing(past)
    early, late = sorted((one, other))
    state, what = world.scheduler.state, world.run("r")
    for before, after in zip(quantiles(state, what, early), quantiles(state, what, late), strict=True):
        assert after >= before - 1 - before // 1000  # rounding apart


@settings(deadline=None)
@given(ends, st.integers(1, 10 * DAY))
def test_nothing_is_believed_to_outlast_its_limit(past: list[tuple[str, str | None, int, int]], limit: int) -> None:
    world = believing(past, max_duration=limit)
    assert predicted_ends.middle(world.scheduler.state, world.run("r"), 0) <= max(limit, 1)


@settings(deadline=None)
@given(ends, ends)
def test_what_is_learned_in_a_trial_is_forgotten_with_it(
    past: list[tuple[str, str | None, int, int]], trial: list[tuple[str, str | None, int, int]]
) -> None:
    undo, found = UndoLog(), Durations()
    for owner, user, gpus, duration in past:
        found.learn(undo, kinds(owner, user, gpus), duration)
    before = tuple(found.freeze())
    attempt = undo.trial()
    for owner, user, gpus, duration in trial * 9:
        found.learn(undo, kinds(owner, user, gpus), duration)
    attempt.undo()
    assert tuple(found.freeze()) == before


@settings(deadline=None)
@given(ends)
def test_a_snapshot_believes_what_the_state_does(past: list[tuple[str, str | None, int, int]]) -> None:
    world = believing(past * 30)
    state = world.scheduler.state
    twin = snapshot.thaw(snapshot.freeze(state))
    assert snapshot.freeze(twin) == snapshot.freeze(state)
    for elapsed in (0, MINUTE, DAY):
        assert quantiles(twin, twin.runs[key("r")], elapsed) == quantiles(state, world.run("r"), elapsed)


def test_habits_of_an_owner_are_learned_from_attempts_that_end_by_themselves() -> None:
    world = World(node("n"), budget("a"))
    for number in range(12):
        world.submit(f"r{number}", run("a", 8))
        world.now += HOUR
        world.end(f"r{number}")
    world.submit("next", run("a", 8))
    low, middle, high = quantiles(world.scheduler.state, world.run("next"), 0)
    assert abs(middle - HOUR) < 10 * MINUTE
    assert low > 40 * MINUTE
    assert high < 2 * HOUR
    world.now += DAY
    later = quantiles(world.scheduler.state, world.run("next"), DAY)
    assert later[2] > DAY + HOUR
    assert predicted_ends.end_of(world.run("next"), world.now) > world.now


def test_work_that_was_canceled_teaches_nothing() -> None:
    from fairlease.engine import command as cmd

    world = World(node("n"), budget("a"))
    world.submit("r", run("a", 8))
    world.now += 10 * SECOND
    world.tick(cmd.Cancel(key("r")))
    assert not world.scheduler.state.durations.kinds


def test_a_stated_duration_stands_where_nothing_is_known() -> None:
    world = believing([], expected_duration=3 * HOUR)
    low, middle, high = quantiles(world.scheduler.state, world.run("r"), 0)
    assert abs(middle - 3 * HOUR) < HOUR
    assert low > 30 * MINUTE
    assert high < 12 * HOUR


@settings(deadline=None)
@given(ends, st.one_of(st.none(), durations))
def test_the_short_way_to_the_high_end_leads_where_the_long_one_does(
    past: list[tuple[str, str | None, int, int]], stated: int | None
) -> None:
    undo, found = UndoLog(), Durations()
    for owner, user, gpus, duration in past * 20:
        found.learn(undo, kinds(owner, user, gpus), duration)
    for user in (None, "u"):
        of = kinds("a", user, 8)
        assert found.high(of, stated) == pytest.approx(found.quantiles(of, 0, stated, (900,))[0], rel=1e-3)
