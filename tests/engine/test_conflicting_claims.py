"""Claims that meet others' work in odd places: who is drawn, when, and how often a date is tried."""

from __future__ import annotations

import pytest
from tests.engine.build import HOUR, MINUTE, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.model.config import Config
from fairlease.model.record import key, short
from fairlease.reason import Reason


def test_who_goes_because_it_is_overdrawn_does_not_stand_in_the_lottery_too() -> None:
    world = World(
        node("a0"), node("a1"), *(budget(each, envelope(concurrency=16)) for each in ("ann", "bob", "claimant"))
    )
    world.submit("owing", run("ann", 8, 8))
    world.submit("funded", run("bob", 8, 8))
    assert world.submit("claim", run("claimant", 16, 8)) == "Reserved"
    world.write(budget("ann", envelope(concurrency=4)))
    world.wait(20 * MINUTE)
    assert world.how("claim") == "Running"
    (record,) = world.told(ev.OutcomeRecorded)
    assert [token.run for token in record.outcome.lottery.tokens] == [key("funded")]
    assert {cut.run: cut.reason for cut in record.outcome.actions} == {
        key("owing"): Reason.ReclaimOverdrawn, key("funded"): Reason.RandomPreempt
    }  # fmt: skip


def test_who_gave_all_that_the_claim_could_use_does_not_stand_in_the_lottery() -> None:
    """Of `wide` one group lies where the claim could, and goes as width; the other is in a domain that could not hold the claim."""
    world = World(
        node("a0"), node("a1"), node("b0", domain="B"), *(budget(each) for each in ("ann", "bob", "claimant"))
    )
    world.submit("wide", run("ann", 16, 8, elastic=(8, 16, 8), group_gpus=8))
    world.submit("rigid", run("bob", 8, 8))
    assert {lease.node for lease in world.run("wide").held} == {"a0", "b0"}
    whole = {"group_gpus": 16, "allow_cross_group_spread": False}
    assert world.submit("claim", run("claimant", 16, 8, **whole)) == "Reserved"
    world.wait(20 * MINUTE)
    (record,) = world.told(ev.OutcomeRecorded)
    assert [token.run for token in record.outcome.lottery.tokens] == [key("rigid")]
    assert {cut.run: cut.reason for cut in record.outcome.actions} == {
        key("wide"): Reason.Shrink, key("rigid"): Reason.RandomPreempt
    }  # fmt: skip


def test_who_starts_at_this_instant_is_not_drawn_at_it() -> None:
    """Others were cut for it: without minRuntime two claims that fall due together would undo each other."""
    world = World(node("a0"), *(budget(each) for each in ("ann", "bob", "cy")))
    world.tick(cmd.Configure(Config(min_runtime=0)))
    world.submit("old", run("ann", 8, 8))
    world.submit("first", run("bob", 8, 8))
    world.submit("second", run("cy", 8, 8))
    world.wait(15 * MINUTE)
    assert [each.run for each in world.told(ev.LeasesClosed)] == [key("old")]


def test_a_run_whose_money_reaches_a_cordoned_node_only_has_a_date_when_the_node_is_back() -> None:
    """There are GPUs enough elsewhere, and money for half of them: others are not preempted for what cannot be paid."""
    claimant = budget("claimant", envelope("all", 8), envelope("one", 8, selector={"rack": "r1"}))
    world = World(node("a0", labels={"rack": "r1"}, cordoned=True), node("a1"), node("a2"), budget("bob"), claimant)
    world.tick(cmd.Configure(Config(notice=MINUTE)))
    world.submit("held", run("bob", 16, 8))
    assert world.submit("claim", run("claimant", 16, 8)) == "NoRoom"
    world.wait(24 * HOUR)
    assert world.how("held") == "Running"
    world.write(node("a0", labels={"rack": "r1"}))
    assert world.how("claim") == "Reserved"
    world.wait(MINUTE)
    assert world.how("claim") == "Running"


def test_who_waits_has_a_date_as_soon_as_reservations_are_turned_on_and_none_when_they_are_off() -> None:
    world = World(node("a0"), budget("ann"), budget("bob"))
    world.tick(cmd.Configure(Config(reservations=False)))
    world.submit("held", run("ann", 8, 8))
    assert world.submit("waits", run("bob", 8, 8)) == "NoRoom"
    world.tick(cmd.Configure(Config()))
    assert world.how("waits") == "Reserved"
    world.tick(cmd.Configure(Config(reservations=False)))
    assert world.how("waits") == "NoRoom"
    assert world.auditor.promises.of[key("waits")].state.value == "Blocked"


def test_growth_beside_a_reservation_leaves_nothing_over_for_the_next_tick() -> None:
    world = World(node("n"), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("tiny", run("a", 3, max_duration=2 * HOUR))
    world.submit("small", run("a", 4, 4, max_duration=HOUR))
    world.submit("elastic", run("b", 1, elastic=(1, 4, 1)))
    world.wait(2 * MINUTE)
    assert world.submit("waits", run("b", 4, 4)) == "Reserved"
    world.end("tiny")
    assert world.run("elastic").width == 2
    assert world.scheduler.state.dirty.shaken == set()


@pytest.mark.parametrize("asked", [False, True])
def test_who_gets_a_slice_first_does_not_hang_on_what_somebody_asked_meanwhile(asked: bool) -> None:
    """Two flavors move up in one tick: in one order, whichever of them was thought of first."""
    world = World(node("h"), node("m", flavor="A100"), budget("a", envelope(), envelope("old", flavor="A100")))
    world.tick(cmd.Configure(Config(notice=None)))
    for number in range(5):
        for flavor in ("H100", "A100"):
            world.submit(f"{flavor.lower()}-{number}", run("a", 8, 8, flavor=flavor))
    if asked:
        with world.scheduler.what_if(world.now, cmd.Submit(key("plan"), run("a", 8, 8, flavor="A100"))):
            pass
    for flavor in ("H100", "A100"):
        world.submit(f"{flavor.lower()}-last", run("a", 8, 8, flavor=flavor))
    world.wait(MINUTE)
    tick = world.tick(*(cmd.WorkEnded(key(f"{flavor}-0"), 1, 0) for flavor in ("h100", "a100")))
    made = [each.run for each in tick.decision.events if isinstance(each, ev.ReservationMade)]
    assert made == [key("a100-last"), key("h100-last")]


def test_tokens_stand_in_the_order_of_names_whoever_came_first() -> None:
    """By owner, then by run: neither when they came, nor how a table keeps them, tells who is drawn."""
    world = World(*(node(f"n{number}") for number in range(4)), budget("zeta"), budget("beta"), budget("claims"))
    for name, owner in (("r9", "zeta"), ("r3", "zeta"), ("r7", "beta"), ("r10", "beta")):
        world.submit(name, run(owner, 8, 8))
    world.wait(HOUR)
    world.submit("claim", run("claims", 8, 8))
    world.wait(15 * MINUTE)
    (outcome,) = [event.outcome for event in world.told(ev.OutcomeRecorded)]
    assert outcome.lottery is not None
    assert [short(token.run) for token in outcome.lottery.tokens] == ["r10", "r7", "r3", "r9"]
