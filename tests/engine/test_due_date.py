"""What is foretold of the day on which a reservation falls due: who may be cut, how likely, what is lacking; and of nobody else."""

from __future__ import annotations

import pytest
from tests.engine.build import HOUR, MINUTE, World, budget, envelope, node, run
from tests.engine.test_forecast import told
from tests.engine.test_what_is_told import ahead

from fairlease.engine import command as cmd
from fairlease.engine.forecast.remedies import Remedies
from fairlease.engine.preempt.odds import Odds, odds
from fairlease.ledger.store import snapshot
from fairlease.model.config import Config
from fairlease.model.lease import Role
from fairlease.model.record import key, short
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason
from fairlease.runtime.queries.forecasts import odds_of_cuts


def odds_of(world: World, claim: str) -> Odds | None:
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    return odds(engine, world.run(claim))


def by_a_deadline(minutes: int) -> World:
    """Two nodes that are full, one of them for some minutes yet; a claim for one of them."""
    world = World(node("n1"), node("n2"), budget("a"), budget("b"))
    world.submit("long", run("a", 8, 8))
    world.wait(HOUR)
    world.submit("brief", run("a", 8, 8, max_duration=minutes * MINUTE))
    world.submit("claim", run("b", 8, 8))
    return world


def test_a_date_by_hard_facts_threatens_nobody() -> None:
    world = by_a_deadline(5)
    assert (hold := world.run("claim").hold) is not None
    assert (hold.basis, hold.earliest_start) == (Reason.HardFacts, world.now + 5 * MINUTE)
    assert odds_of(world, "claim") is None
    assert odds_of_cuts(world.scheduler.engine, world.run("long")) == []
    assert ahead(world, "notice", "soon") == []
    world.wait(4 * MINUTE)
    assert ahead(world, "notice", "soon") == []


def test_a_deadline_at_the_end_of_the_notice_threatens_nobody_either() -> None:
    world = by_a_deadline(15)
    assert (hold := world.run("claim").hold) is not None
    assert hold.earliest_start == hold.cut_from == world.now + 15 * MINUTE
    assert odds_of(world, "claim") is None
    assert ahead(world, "notice", "soon") == []


def test_who_surely_ends_before_the_date_has_no_odds_of_being_cut_on_it() -> None:
    world = World(node("n1"), node("n2"), node("n3"), budget("a"), budget("b"))
    world.submit("one", run("a", 8, 8))
    world.submit("two", run("a", 8, 8))
    world.wait(HOUR)
    world.submit("brief", run("a", 8, 8, max_duration=10 * MINUTE))
    world.submit("claim", run("b", 16, 8))
    before = snapshot.freeze(world.scheduler.state)
    found = odds_of(world, "claim")
    assert found is not None
    assert found.chances == {key("one"): 0.5, key("two"): 0.5}
    assert snapshot.freeze(world.scheduler.state) == before
    row = told(world)["claim"]
    assert (row.deficit_gpus, row.remedies) == (8, ("end 1 of 2 runs by lot (8 GPUs)",))


def test_a_spare_and_its_tenant_go_in_every_order_of_draws_that_needs_their_gpus() -> None:
    """One order gives them back, as a wide run alone suffices; that tells nothing of the orders after it."""
    world = World(*(node(f"n{number}") for number in range(5)), *map(budget, ("a", "b", "host", "rider", "z")))
    world.submit("host", run("host", 8, 8, spares=8))
    world.submit("wide", run("a", 16, 8))
    world.submit("narrow", run("b", 8, 8))
    world.submit("rider", run("rider", 8, 8, opportunistic=True))
    assert [lease.role for lease in world.run("rider").held] == [Role.BORROWED]
    world.wait(HOUR)
    world.submit("claim", run("z", 16, 8))
    found = odds_of(world, "claim")
    assert found is not None
    chances = {short(name): chance for name, chance in found.chances.items()}
    assert chances == pytest.approx({"wide": 1 / 3, "narrow": 1 / 3, "host": 2 / 3, "rider": 2 / 3})


def test_in_a_large_conflict_set_fewer_lotteries_are_counted_and_their_number_is_told() -> None:
    budgets = (budget(owner, envelope(concurrency=1_200)) for owner in (*(f"o{each}" for each in range(10)), "z"))
    world = World(*(node(f"n{each}") for each in range(150)), *budgets)
    for each in range(75):
        world.submit(f"r{each}", run(f"o{each % 10}", 16, 1))
    world.submit("claim", run("z", 600, 8))
    found = odds_of(world, "claim")
    assert found is not None
    assert (found.draws, len(found.chances)) == (50, 75), "1,200 leases stand in each"
    assert 38 <= sum(found.chances.values()) < 75, "a cut run leaves two nodes at most, and 75 are needed"


def test_a_run_far_back_waits_for_those_before_it_whatever_the_first_of_its_shape_is_told() -> None:
    world = World(node("n"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("old", run("a", 8, 8))
    for number in range(7):
        world.submit(f"q{number}", run("b", 8, 8))
    assert not world.run("q6").hold.lien  # type: ignore[union-attr]  # it has a date
    rows = told(world)
    assert rows["q0"].remedies == ("wait: no cut that is allowed would make room",)
    assert {rows[f"q{number}"].remedies for number in range(1, 7)} == {("wait: those who asked earlier come first",)}


def test_a_blocked_reservation_lacks_money_and_is_told_what_brings_it_back() -> None:
    nodes = node("n1"), node("n2"), node("small", 4)
    world = World(*nodes, budget("org", envelope(concurrency=8)), budget("lab"))
    world.submit("one", run("lab", 8, 8, max_duration=2 * HOUR))
    world.submit("two", run("lab", 8, 8, max_duration=3 * HOUR))
    assert world.submit("claim", run("org", 8, 8)) == "Reserved"
    assert world.submit("kin", run("org:child", 4, 4, max_duration=HOUR)) == "Running"
    first = told(world)["claim"]
    world.wait(15 * MINUTE)
    assert (hold := world.run("claim").hold) is not None
    assert hold.state is ReservationState.BLOCKED
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    for lack in (first, Remedies(engine).of(world.run("claim"))):
        assert (lack.deficit_gpus, lack.remedies) == (8, (Reason.ConcurrencyCapExceeded.remedy,))
    world.end("two")
    engine.now = world.now
    assert Remedies(engine).of(world.run("claim")) == (0, "H100", (Reason.ConcurrencyCapExceeded.remedy,))


def test_money_that_never_comes_out_even_for_all_groups_gives_no_date() -> None:
    money = [("a", "west", 12), ("b", "east", 4), ("c", "north", 4)]
    own = [envelope(name, concurrency=gpus, selector={"region": region}) for name, region, gpus in money]
    either = envelope("u", concurrency=4, selector={"rack": "1"})
    nodes = [node("n1"), node("n2"), *(node(name, region=name, labels={"rack": "1"}) for name in ("east", "north"))]
    world = World(*nodes, budget("a", *own, either))
    assert world.submit("claim", run("a", 24, 4, group_gpus=8)) == "ConcurrencyCapExceeded", (
        "by count there is money for each group, but only for one of the last two at a time"
    )
    assert world.run("claim").hold is None
