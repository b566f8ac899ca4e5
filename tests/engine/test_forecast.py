"""Forecasts: what is foreseen happens when work ends as predicted; nothing is written but forecasts; the ledger tells all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import HOUR, MINUTE, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.engine.forecast import forecast, predicted_ends
from fairlease.engine.forecast.calibration import Calibration, calibrate
from fairlease.engine.forecast.intervals import interval, scaled
from fairlease.engine.forecast.rehearsal import NEAR, Rehearsal, Start
from fairlease.engine.preempt.odds import odds
from fairlease.ledger.learning.waits import OCTAVE, REMEMBERED, SHARES, Waits, horizon_of
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.runs import RunState
from fairlease.ledger.state.timers import Due, Timers
from fairlease.ledger.state.undo import UndoLog
from fairlease.ledger.store import snapshot
from fairlease.model.amount import DAY, SECOND
from fairlease.model.config import Config
from fairlease.model.record import Key, key
from fairlease.model.run import OnPreempt, Phase
from fairlease.reason import Reason


def crowded(*, notice: int | None = None) -> World:
    """Two nodes that are full, a past of runs that took an hour, and two that wait."""
    world = World(node("n1"), node("n2"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=notice)))
    for number in range(8):
        world.submit(f"past{number}", run("ab"[number % 2], 8, 8))
        world.wait(HOUR)
        world.end(f"past{number}")
    world.submit("one", run("a", 8, 8))
    world.wait(10 * MINUTE)
    world.submit("two", run("b", 8, 8))
    world.wait(5 * MINUTE)
    world.submit("first", run("a", 8, 8))
    world.submit("second", run("b", 16, 8))
    return world


def told(world: World) -> dict[str, ev.Foreseen]:
    """The forecasts that one tick writes down now."""
    tick = world.tick(cmd.Forecast())
    rows = [row for event in tick.decision.events if isinstance(event, ev.Forecasted) for row in event.runs]
    return {row.run.partition("/")[2]: row for row in rows}


def test_runs_start_when_it_was_foreseen_if_work_ends_as_predicted() -> None:
    world = crowded()
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    foreseen = Rehearsal(engine, forecast.waiting(world.scheduler.state)).play()
    assert set(foreseen) == {key("first"), key("second")}
    state = world.scheduler.state
    believed = {
        each.key: predicted_ends.middle(state, each, world.now - (each.started_at or world.now))
        for each in state.runs.values()
    }
    ends: dict[str, int] = {}
    seen: dict[str, int] = {}
    for _ in range(10):
        for each in state.runs.values():
            if each.phase is Phase.RUNNING and each.key not in ends:
                ends[each.key] = (each.started_at or 0) + believed[each.key]
                if each.key in foreseen:
                    seen.setdefault(each.key, world.now)
        coming = sorted((when, name) for name, when in ends.items() if name in state.runs)
        if len(seen) == len(foreseen) or not coming:
            break
        world.wait(coming[0][0] - world.now)
        world.end(coming[0][1])
    assert seen == {name: start.at for name, start in foreseen.items()}


def test_a_forecast_is_written_once_and_again_only_when_it_moved() -> None:
    world = crowded()
    first = told(world)
    assert set(first) == {"first", "second"}
    for row in first.values():
        assert world.now <= row.p10 <= row.p50 <= row.p90
        assert row.source is Reason.Predicted
        assert row.baseline is not None
    world.wait(SECOND)
    assert told(world) == {}
    world.wait(3 * HOUR)
    moved = told(world)
    assert moved
    assert all("later" in row.why for row in moved.values())


def test_thinking_ahead_changes_nothing() -> None:
    world = crowded(notice=15 * MINUTE)
    state = world.scheduler.state
    before, indexes, head = snapshot.freeze(state), snapshot.derived(state), world.scheduler.head
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    assert forecast.outlooks(engine, forecast.waiting(state))
    assert snapshot.freeze(state) == before
    assert snapshot.derived(state) == indexes
    assert world.scheduler.head == head


def test_a_restart_changes_nothing_of_what_was_learned() -> None:
    world = crowded()
    told(world)
    world.wait(40 * MINUTE)
    world.end("one")
    world.wait(5 * MINUTE)
    world.end("two")
    told(world)
    before = snapshot.freeze(world.scheduler.state)
    assert world.scheduler.state.waits.scored
    world.restart()
    assert snapshot.freeze(world.scheduler.state) == before
    assert snapshot.freeze(snapshot.thaw(before)) == before


def test_a_sure_date_bounds_every_quantile() -> None:
    world = World(node("n"), budget("a"))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("one", run("a", 8, 8, max_duration=2 * HOUR))
    world.wait(HOUR)
    world.submit("next", run("a", 8, 8))
    row = told(world)["next"]
    assert row.p90 <= world.run("one").started_at + 2 * HOUR  # type: ignore[operator]  # it runs
    assert row.p10 >= world.now


def test_a_window_that_opens_later_bounds_it_from_below() -> None:
    world = World(node("n"), budget("a", envelope(start=None)))
    opens = world.now + DAY
    world.write(budget("a", envelope(start=opens)))
    world.submit("early", run("a", 8, 8))
    row = told(world)["early"]
    assert row.p10 >= opens
    assert row.source is Reason.Window


def test_a_run_that_can_never_start_has_no_forecast() -> None:
    world = World(node("n"), budget("a"))
    assert world.submit("huge", run("a", 16, 16)) == Reason.NeverFits.value
    assert world.submit("poor", run("nobody", 8, 8)) == Reason.NoEnvelope.value
    assert told(world) == {}


def test_a_run_without_money_is_foreseen_where_money_comes_free() -> None:
    world = World(node("n1"), node("n2"), budget("a", envelope(concurrency=8)))
    world.submit("one", run("a", 8, 8, max_duration=HOUR))
    world.submit("two", run("a", 8, 8))
    assert world.how("two") == Reason.ConcurrencyCapExceeded.value
    row = told(world)["two"]
    assert world.now <= row.p50 <= world.now + HOUR + MINUTE


def test_with_notice_it_says_what_is_missing_and_what_could_give_way() -> None:
    world = crowded(notice=15 * MINUTE)
    row = told(world)["first"]
    assert row.deficit_gpus == 8
    assert row.scope == "H100"
    assert any("by lot" in remedy for remedy in row.remedies)


def test_what_is_kept_free_for_others_is_lacking_to_who_may_not_use_it() -> None:
    world = World(node("n"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("half", run("a", 4, 4))
    for number in range(4):
        world.submit(f"r{number}", run("a", 8, 4))
    world.submit("last", run("b", 8, 4))
    rows = told(world)
    assert (rows["r0"].deficit_gpus, rows["last"].deficit_gpus) == (4, 8)


def test_forecasts_are_scored_over_the_past_of_the_ledger() -> None:
    world = crowded()
    told(world)
    for name in ("one", "two", "first", "second"):
        world.wait(45 * MINUTE)
        if world.run(name).phase is Phase.RUNNING:
            world.end(name)
    fold = Calibration()
    for entry in world.store.entries():
        fold.take(entry.at, entry.events)
    found = calibrate(fold.samples)
    assert found["forecasts"] == len(world.scheduler.state.waits.scored) > 0
    assert found["insideP10P90"] == sum(row.inside for row in world.scheduler.state.waits.scored) / found["forecasts"]
    assert found["lastTwoMeanAbsoluteErrorSeconds"] >= 0
    assert set(found["owners"]) <= {"a", "b"}


def test_forecasts_of_a_steady_queue_become_calibrated() -> None:
    """One node, work whose length nobody can foresee, and always somebody who waits: four fifths lie inside."""
    dice = random.Random(3)
    world = World(node("n"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    fold = Calibration()
    lengths: dict[str, int] = {}
    ends: dict[str, int] = {}
    for number in range(260):
        lengths[f"r{number}"] = round(dice.lognormvariate(8, 1)) * SECOND
        while ends and min(ends.values()) <= world.now:
            _finish(world, ends, lengths)
        world.submit(f"r{number}", run(dice.choice("ab"), 8, 8))
        world.tick(cmd.Forecast((key(f"r{number}"),)))
        _begun(world, ends, lengths)
        while len(world.scheduler.state.runs) > 3:
            _finish(world, ends, lengths)
        world.wait(MINUTE)
    for entry in world.store.entries():
        fold.take(entry.at, entry.events)
    scored = world.scheduler.state.waits.scored
    whole = calibrate(fold.samples[-len(scored) :])
    assert whole["forecasts"] == len(scored)
    assert whole["insideP10P90"] == round(sum(row.inside for row in scored) / len(scored), 4)
    assert whole["beforeP50"] == round(sum(row.before_p50 for row in scored) / len(scored), 4)
    assert whole["meanAbsoluteErrorSeconds"] == round(sum(row.error for row in scored) / len(scored) / SECOND)
    found = calibrate(fold.samples[50:])
    assert found["forecasts"] > 150
    assert 0.7 < found["insideP10P90"] < 0.9
    assert 0.38 < found["beforeP50"] < 0.62


def _begun(world: World, ends: dict[str, int], lengths: dict[str, int]) -> None:
    for each in world.scheduler.state.runs.values():
        name = each.key.partition("/")[2]
        if each.started_at is not None and name not in ends:
            ends[name] = each.started_at + lengths[name]


def _finish(world: World, ends: dict[str, int], lengths: dict[str, int]) -> None:
    name = min(ends, key=lambda each: ends[each])
    world.now = max(world.now, ends[name])
    world.end(name)
    del ends[name]
    _begun(world, ends, lengths)


def test_odds_are_exact_where_there_are_few_to_draw_from() -> None:
    world = World(node("n1"), node("n2"), node("n3"), budget("a"), budget("b"), budget("c"))
    for name, owner in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        world.submit(name, run(owner, 8, 8, on_preempt=OnPreempt.REQUEUE))
    world.wait(HOUR)
    world.submit("claim", run("c", 8, 8))
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    found = odds(engine, world.run("claim"))
    assert found is not None
    assert found.draws == 0
    chances = {name.partition("/")[2]: chance for name, chance in found.chances.items()}
    assert chances == pytest.approx({"a1": 0.25, "a2": 0.25, "b1": 0.5})


def test_odds_by_draws_say_how_many_and_come_near_what_is_exact() -> None:
    owners = [f"o{number}" for number in range(12)]
    world = World(*(node(f"n{number}") for number in range(12)), *map(budget, owners), budget("c"))
    for number, owner in enumerate(owners):
        world.submit(f"r{number}", run(owner, 8, 8))
    world.wait(HOUR)
    world.submit("claim", run("c", 32, 8))
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    before = snapshot.freeze(world.scheduler.state)
    found = odds(engine, world.run("claim"))
    assert found is not None
    assert found.draws == 1000
    assert sum(found.chances.values()) == pytest.approx(4)
    assert all(abs(chance - 1 / 3) < 0.06 for chance in found.chances.values())
    assert snapshot.freeze(world.scheduler.state) == before


def forecast_of(run: Key, at: int, waits: tuple[int, ...]) -> ev.Foreseen:
    """A forecast with these waits as P10, P50 and P90."""
    p10, p50, p90 = (at + wait for wait in waits)
    return ev.Foreseen(run=run, p10=p10, p50=p50, p90=p90, source=Reason.Predicted, why="", play=waits[1])


def learn(waits: Waits, undo: UndoLog, number: int, at: int) -> None:
    """A run is forecast, and starts later, or is canceled, or waits on."""
    dice = random.Random(number)
    live = RunState(key(f"r{number}"), run(dice.choice("ab"), 8, 8), at, number)
    play, wait = dice.randrange(9 * HOUR), dice.randrange(9 * HOUR)
    told = forecast_of(live.key, at, (play // 2, play, 2 * play))
    live.foreseen = live.foreseen_first = (at, told)
    waits.told(undo, live.key, at, told)
    if number % 3 == 0:
        waits.started(undo, live, at + wait)
    elif number % 3 == 1:
        waits.gone(undo, live.key)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from([0, 3 * REMEMBERED - 9]))
def test_what_starts_teach_in_a_trial_is_forgotten_with_it(past: int, trial: int, before: int) -> None:
    undo, waits = UndoLog(), Waits()
    for number in range(before + past):
        learn(waits, undo, number, number * HOUR)
    kept, open_before = waits.freeze(), dict(waits.open)
    attempt = undo.trial()
    for number in range(before + past, before + past + trial):
        learn(waits, undo, number, number * HOUR)
    attempt.undo()
    assert (waits.freeze(), waits.open) == (kept, open_before)
    thawed = Waits()
    thawed.thaw(waits.freeze())
    assert (thawed.freeze(), thawed.open) == (kept, open_before)


def test_runs_that_wait_past_their_dates_move_forecasts_before_anybody_started() -> None:
    """Everything was foreseen to start within the hour; a day later nobody has."""
    undo, waits = UndoLog(), Waits()
    for number in range(12):
        at = number * 10 * MINUTE
        waits.told(undo, key(f"r{number}"), at, forecast_of(key(f"r{number}"), at, interval(waits, HOUR // 2)))
    before = interval(waits, HOUR // 2)
    waits.told(undo, key("later"), DAY, forecast_of(key("later"), DAY, before))
    assert all(after > each for each, after in zip(before, interval(waits, HOUR // 2), strict=True))


def test_a_run_that_is_canceled_late_still_tells_that_it_was_not_early() -> None:
    undo, waits = UndoLog(), Waits()
    before = interval(waits, HOUR)
    waits.told(undo, key("gone"), 0, forecast_of(key("gone"), 0, before))
    waits.told(undo, key("other"), before[1] + SECOND, forecast_of(key("other"), before[1] + SECOND, before))
    waits.gone(undo, key("gone"))
    after = interval(waits, HOUR)
    assert after[0] > before[0]
    assert after[1] > before[1]
    assert after[2] == before[2], "P90 had not passed"


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([0.02, 0.5, 1, 3, 40]), st.sampled_from([0.1, 0.7, 2.0]), st.integers(0, 1000))
def test_as_many_starts_come_before_as_should_however_wrong_the_rehearsal_is(
    off: float, spread: float, seed: int
) -> None:
    """Waits are `off` times what the rehearsal says, and spread around it: after a while the shares hold, in each horizon."""
    dice, undo, waits = random.Random(seed), UndoLog(), Waits()
    at, came = 0, []
    for number in range(900):
        played = dice.choice((10 * MINUTE, 3 * HOUR, 10 * HOUR, 2 * DAY))
        told = interval(waits, played)
        live = RunState(key(f"r{number}"), run("a", 8, 8), at, number)
        live.foreseen = live.foreseen_first = (at, forecast_of(live.key, at, told))
        waits.told(undo, live.key, at, live.foreseen[1])
        wait = round(played * off * dice.lognormvariate(0, spread))
        waits.started(undo, live, at + wait)
        came.append([wait <= each for each in told])
        at += wait + DAY
    for place, share in enumerate(SHARES):
        assert abs(sum(each[place] for each in came[300:]) / 600 - share / 1000) < 0.06


def test_forecasts_that_are_open_together_teach_less_each_than_one_alone() -> None:
    alone, crowd = Waits(), Waits()
    undo = UndoLog()
    for waits, many in ((alone, 1), (crowd, 100)):
        for number in range(many):
            waits.told(undo, key(f"r{number}"), 0, forecast_of(key(f"r{number}"), 0, (HOUR, 2 * HOUR, 3 * HOUR)))
        waits.told(undo, key("later"), DAY, forecast_of(key("later"), DAY, (HOUR, 2 * HOUR, 3 * HOUR)))
    one, all_of_them = (waits.offset(horizon_of(2 * HOUR))[1] for waits in (alone, crowd))
    assert one < all_of_them < 40 * one


def test_two_to_a_power_is_the_same_on_every_machine() -> None:
    assert [scaled(HOUR, offset * OCTAVE) for offset in (-2, -1, 0, 1, 5)] == [
        HOUR // 4,
        HOUR // 2,
        HOUR,
        2 * HOUR,
        32 * HOUR,
    ]
    assert scaled(1_000_000_000, OCTAVE // 2) == 1_414_213_562
    assert scaled(1_000_000_000, -OCTAVE // 4) == 840_896_415


def test_who_is_far_back_in_a_queue_is_forecast_by_what_is_ahead_of_it() -> None:
    world = World(node("n1"), budget("a"))
    world.tick(cmd.Configure(Config(notice=None)))
    for number in range(4):
        world.submit(f"past{number}", run("a", 8, 8))
        world.wait(HOUR)
        world.end(f"past{number}")
    for number in range(3 * NEAR):
        world.submit(f"r{number}", run("a", 8, 8))
    last = key(f"r{3 * NEAR - 1}")
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    alone = Rehearsal(engine, [last])
    found = alone.play()[last]
    assert alone.played == 0

    assert HOUR * 3 * NEAR / 2 < found.at - world.now < HOUR * 3 * NEAR * 2


def test_what_was_only_tried_moves_no_forecast_of_those_far_back() -> None:
    """What runs about as long as another is taken for as old: whose age that is may not depend on what was undone before."""
    world = World(node("n1"), node("n2"), budget("a"))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("one", run("a", 8, 8))
    world.wait(3 * MINUTE)
    world.submit("two", run("a", 8, 8))
    for number in range(2 * NEAR):
        world.submit(f"r{number}", run("a", 8, 8))
    world.wait(58 * MINUTE)
    last = key(f"r{2 * NEAR - 1}")

    def foreseen() -> Start:
        engine = world.scheduler.engine.twin()
        engine.now = world.now
        return Rehearsal(engine, [last]).play()[last]

    before = foreseen()
    with world.scheduler.what_if(world.now, cmd.WorkEnded(key("one"), 1, 0)):
        pass
    assert foreseen() == before
    world.restart()
    assert foreseen() == before


def test_timers_that_a_trial_leaves_out_are_not_counted_in_it() -> None:
    timers = Timers()
    for number in range(3):
        timers.set((Due.RESERVATION, (f"r{number}",)), number)
        timers.set((Due.DEADLINE, (f"r{number}",)), number)
    seen = timers.only(Due.RESERVATION, {("r1",), ("unset",)})
    assert (seen.counts[Due.RESERVATION], seen.counts[Due.DEADLINE]) == (1, 3)
    seen.set((Due.DEADLINE, ("r1",)), None)
    assert (seen.counts[Due.DEADLINE], timers.counts[Due.DEADLINE]) == (2, 3)


def test_who_is_far_back_starts_when_its_notice_is_over_at_the_latest() -> None:
    world = World(node("n1"), budget("a"))
    for number in range(2 * NEAR):
        world.submit(f"r{number}", run("a", 8, 8))
    last = key(f"r{2 * NEAR - 1}")
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    hold = world.run(f"r{2 * NEAR - 1}").hold
    assert hold is not None
    assert hold.cut_from is not None
    alone = Rehearsal(engine, [last]).play()[last]
    assert (alone.at, alone.source) == (hold.earliest_start, Reason.Notice)
