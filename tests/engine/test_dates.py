"""What dates and forecasts rest on, rule by rule: bounds, shortcuts, and whoever stands too far back for a slice."""

from __future__ import annotations

import pytest
from tests.engine.build import HOUR, MINUTE, T0, World, budget, envelope, node, run
from tests.engine.test_forecast import told

from fairlease.engine import command as cmd
from fairlease.engine.forecast import forecast
from fairlease.engine.forecast.fluid_queue import Turns
from fairlease.engine.reserve.availability import Availability
from fairlease.ledger.state.capacity import Domain
from fairlease.ledger.state.runs import Hold
from fairlease.model.amount import DAY
from fairlease.model.config import Config
from fairlease.model.record import key
from fairlease.reason import Reason


def hold_of(world: World, name: str) -> Hold:
    hold = world.run(name).hold
    assert hold is not None
    return hold


# --- bounds of a forecast ------------------------------------------------------------------------------------------------


def test_what_is_certain_bounds_a_forecast_however_late_starts_came_before() -> None:
    """Time after time the node was closed for hours when somebody was about to start. A deadline is kept all the same."""
    world = World(node("n"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    for number in range(12):
        world.submit(f"holder{number}", run("a", 8, 8, max_duration=10 * MINUTE))
        world.submit(f"late{number}", run("b", 8, 8, max_duration=HOUR))
        told(world)
        world.write(node("n", cordoned=True))
        world.wait(20 * HOUR)
        world.write(node("n"))
        world.end(f"late{number}")
    world.submit("holder", run("a", 8, 8, max_duration=10 * MINUTE))
    world.submit("claim", run("b", 8, 8))
    assert hold_of(world, "claim").basis is Reason.HardFacts
    row = told(world)["claim"]
    assert row.p90 == hold_of(world, "claim").earliest_start == world.now + 10 * MINUTE


def test_a_window_bounds_a_forecast_however_soon_starts_came_before() -> None:
    """Time after time work was canceled long before it was to end. No money comes sooner for that."""
    world = World(node("n"), budget("a"), budget("b"), budget("c", envelope(start=T0 + 30 * DAY)))
    world.tick(cmd.Configure(Config(notice=None)))
    for number in range(12):
        world.submit(f"holder{number}", run("a", 8, 8, expected_duration=DAY))
        world.submit(f"soon{number}", run("b", 8, 8))
        told(world)
        world.wait(MINUTE)
        world.tick(cmd.Cancel(key(f"holder{number}")))
        world.tick(cmd.Cancel(key(f"soon{number}")))
    world.submit("claim", run("c", 8, 8))
    assert hold_of(world, "claim").basis is Reason.WindowClosed
    row = told(world)["claim"]
    assert row.p10 == row.p50 == T0 + 30 * DAY


def test_a_few_starts_do_not_say_too_much_of_how_forecasts_are_kept() -> None:
    """The four fifths that are aimed at count as much as ten starts."""
    world = World(node("n"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    assert forecast.confidence(world.scheduler.state) == 80
    for number in range(6):
        world.submit(f"one{number}", run("a", 8, 8, max_duration=HOUR))
        world.submit(f"two{number}", run("b", 8, 8))
        told(world)
        world.wait(50 * MINUTE)
        world.end(f"one{number}")
        world.end(f"two{number}")
    scored = world.scheduler.state.waits.scored
    inside = sum(row.inside for row in scored)
    assert (len(scored), inside) == (6, 6)
    assert forecast.confidence(world.scheduler.state) == round(100 * (6 + 8) / 16)


def test_only_the_first_eight_of_a_flavor_are_looked_into_for_what_could_give_way() -> None:
    world = World(
        *(node(f"n{number}") for number in range(10)),
        budget("a", envelope(concurrency=80)),
        budget("b", envelope(concurrency=80)),
    )
    for number in range(10):
        world.submit(f"old{number}", run("a", 8, 8))
    world.wait(HOUR)
    for number in range(10):
        world.submit(f"q{number}", run("b", 8, 8))
    rows = told(world)
    looked = [name for name, row in rows.items() if any("by lot" in remedy for remedy in row.remedies)]
    assert looked == [f"q{number}" for number in range(8)]
    assert {row.deficit_gpus for row in rows.values()} == {8}, "what they lack is counted all the same"


def test_who_needs_larger_holes_is_in_the_way_only_as_far_as_large_work_ends() -> None:
    """Small work ends and leaves no room for large pods, be there ever so many of them ahead."""
    turns = []
    for count in (10, 100):
        world = World(*(node(f"n{number}") for number in range(4)), budget("a", envelope(concurrency=10_000)))
        world.tick(cmd.Configure(Config(notice=None, reservations=False)))
        world.submit("large", run("a", 8, 8))
        world.submit("small", run("a", 24, 1))
        for number in range(count):
            world.submit(f"wide{number}", run("a", 8, 8))
        world.submit("narrow", run("a", 1, 1))
        found = Turns(world.scheduler.state, world.now, lambda _, age: max(HOUR, age), expected=False)
        turns.append(found.of(world.run("narrow")))
    assert turns[0] is not None
    assert turns[0] == turns[1]


# --- where a date is looked for --------------------------------------------------------------------------------------------


def test_where_nothing_comes_free_before_the_notice_is_over_domains_are_looked_at_until_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(
        *(node(f"n{number}", domain=f"D{number}") for number in range(20)),
        budget("a", envelope(concurrency=200)),
        budget("b"),
    )
    for number in range(20):
        world.submit(f"old{number}", run("a", 8, 8))
    seen: list[str] = []
    pods = Availability.pods

    def counted(self: Availability, domain: Domain, size: int) -> object:
        seen.append(domain.name)
        return pods(self, domain, size)

    monkeypatch.setattr(Availability, "pods", counted)
    world.submit("claim", run("b", 16, 8))
    assert hold_of(world, "claim").basis is Reason.Notice
    assert len(seen) == 2


# --- whoever asked after so many that it has no slice ----------------------------------------------------------------------


def queue_of_guesses() -> World:
    """A node for which six runs wait, and nobody knows until when; only the first four have slices."""
    world = World(node("n"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("holder", run("a", 8, 8))
    for number in range(6):
        world.submit(f"q{number}", run("b", 4 if number == 5 else 8, 4, expected_duration=(number + 1) * HOUR))
    assert [bool(hold_of(world, f"q{number}").lien) for number in range(6)] == [True] * 4 + [False] * 2
    return world


def test_who_has_no_slice_has_its_turn_on_the_pool_after_whoever_asked_just_before() -> None:
    world = queue_of_guesses()
    dates = [hold_of(world, f"q{number}").earliest_start for number in range(6)]
    expected = [hold_of(world, f"q{number}").expected for number in range(6)]
    assert dates[4] == max(dates[:4]) + expected[4] + 1, "all 8 GPUs for as long as it is expected to take"
    assert dates[5] == dates[4] + expected[5] // 2 + 1, "half of them"
    assert hold_of(world, "q5").message.endswith("5 runs that asked earlier come first")


def test_a_date_without_a_slice_that_proved_wrong_is_given_as_long_again() -> None:
    world = queue_of_guesses()
    made, date = hold_of(world, "q4").made_at, hold_of(world, "q4").earliest_start
    world.wait(date - world.now)
    hold = hold_of(world, "q4")
    assert (hold.reason, hold.made_at) == (Reason.NotServed, date)
    assert hold.earliest_start >= date + (date - made)


def test_who_has_no_slice_counts_on_no_cut_before_its_notice_is_over() -> None:
    """All who have slices start by a deadline, before the notice; nobody knows as much of who comes after them."""
    world = World(node("n", 64), budget("a"), budget("b", envelope(concurrency=100)))
    world.submit("holder", run("a", 64, 64, max_duration=5 * MINUTE))
    for number in range(65):
        world.submit(f"q{number}", run("b", 1, 1))
    assert hold_of(world, "q63").earliest_start == world.now + 5 * MINUTE
    last = hold_of(world, "q64")
    assert (last.basis, bool(last.lien)) == (Reason.Predicted, False)
    assert last.earliest_start == world.now + 15 * MINUTE + 15 * MINUTE // 64 + 1


def test_who_comes_near_and_waits_for_a_window_keeps_the_date_that_it_has() -> None:
    """Its money closed; other money opens before its date. It is told once, and nobody asks again and again."""
    money = envelope("now", end=T0 + HOUR), envelope("then", start=T0 + 2 * HOUR)
    world = World(node("n"), budget("a"), budget("b"), budget("c", *money))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("holder", run("a", 8, 8))
    for number in range(4):
        world.submit(f"q{number}", run("b", 8, 8))
    world.submit("far", run("c", 8, 8))
    before = hold_of(world, "far").earliest_start
    assert before > T0 + 2 * HOUR
    world.wait(90 * MINUTE)
    world.end("holder")
    assert (world.how("q0"), world.how("far")) == ("Running", "WindowClosed")
    assert hold_of(world, "far").earliest_start == before
