"""Swaps that are rehearsed, and runs that rest after a failure."""

from __future__ import annotations

import random

from tests.engine.build import HOUR, MINUTE, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.audit.audit import audit
from fairlease.ledger.state import events as ev
from fairlease.model.lease import Role
from fairlease.model.record import key
from fairlease.reason import Reason

ORG = budget("org")


def four() -> World:
    return World(*(node(f"a{index}") for index in range(4)), ORG)


def drill(world: World, name: str, rank: int | None = None) -> Reason | None:
    answer = world.tick(cmd.Drill(key(name), rank)).decision.answers[0]
    return None if answer is None else answer.reason


def test_a_drill_exchanges_a_rank_and_its_spare_and_costs_nothing_more() -> None:
    world = four()
    world.submit("r", run("org", 16, pod=8, group_gpus=16, spares=8))
    before, spare = world.nodes("r"), world.nodes("r", Role.SPARE)
    world.wait(HOUR)
    assert drill(world, "r", 1) is None
    assert sorted(row.lease.rank for row in world.leases("r") if row.lease.role is Role.ACTIVE) == [0, 1]
    assert set(world.nodes("r")) == {before[0], *spare}
    assert world.nodes("r", Role.SPARE) == [before[1]]
    assert world.payers("r") == {"org/e": 24}
    assert world.run("r").attempt == 1
    world.wait(HOUR)
    assert world.account("org").consumed(world.now) == 2 * 24 * HOUR
    assert audit(world.store.entries()).ok


def test_a_drill_is_refused_where_nothing_could_take_over() -> None:
    world = four()
    world.submit("bare", run("org", 8, pod=8))
    world.submit("r", run("org", 8, pod=8, spares=8))
    world.submit("waits", run("org", 32, pod=8))
    assert drill(world, "bare") is Reason.NoSpare
    assert drill(world, "waits") is Reason.NoSpare
    assert drill(world, "nobody") is Reason.NotFound
    assert drill(world, "r", 9) is Reason.NotFound
    world.end("bare")
    assert drill(world, "bare") is Reason.Terminal


def test_a_drill_sends_the_tenant_of_the_spare_away_first() -> None:
    world = World(node("a0"), node("a1"), ORG)
    world.submit("r", run("org", 8, pod=8, spares=8))
    assert (
        world.submit("guest", run("org", 8, pod=8, opportunistic=True, on_preempt=None, checkpoint=MINUTE)) == "Running"
    )
    assert drill(world, "r") is None
    assert "ReclaimedBySpare" in world.closures("guest")
    assert audit(world.store.entries()).ok


def test_a_drill_pays_from_where_each_payer_may_spend() -> None:
    here, there = envelope("here", selector={"rack": "x"}), envelope("there", selector={"rack": "y"})
    world = World(node("a0", labels={"rack": "x"}), node("a1", labels={"rack": "y"}), budget("org", here, there))
    world.submit("r", run("org", 8, pod=8, spares=8))
    paid = {row.lease.node: row.lease.payer.envelope for row in world.leases("r")}
    assert drill(world, "r") is None
    assert {row.lease.node: row.lease.payer.envelope for row in world.leases("r")} == paid
    assert audit(world.store.entries()).ok


def test_random_drills_and_failures_keep_every_promise() -> None:
    dice = random.Random(7)
    world = World(*(node(f"a{index}") for index in range(8)), budget("org", envelope(concurrency=80)))
    world.submit("r", run("org", 16, pod=4, group_gpus=8, spares=4, checkpoint=MINUTE))
    world.submit("s", run("org", 8, pod=8, spares=8, checkpoint=MINUTE))
    for _ in range(200):
        name = f"a{dice.randrange(8)}"
        chosen = dice.randrange(6)
        if chosen == 0:
            world.tick(cmd.FailNode(name))
        elif chosen == 1:
            world.tick(cmd.SetNode(node(name)))
        elif chosen == 2:
            world.tick(cmd.SetNode(node(name, cordoned=True)))
        else:
            drill(world, dice.choice("rs"), dice.choice([None, 0, 1, 2]))
        world.wait(MINUTE)
    assert sum(event.reason is Reason.Swap for event in world.told(ev.LeasesOpened)) > 20
    assert audit(world.store.entries()).ok


def test_a_run_that_failed_rests_as_long_as_its_backend_asks() -> None:
    world = four()
    world.submit("r", run("org", 8, pod=8, retries=2))
    world.tick(cmd.PodFailed(key("r"), 1, 0, 1, retry_after=MINUTE))
    assert (world.how("r"), world.run("r").attempt) == ("BackOff", 2)
    assert not world.leases("r")
    world.restart()
    world.wait(MINUTE - 1)
    assert world.how("r") == "BackOff"
    world.wait(1)
    assert world.how("r") == "Running"
    world.tick(cmd.WorkEnded(key("r"), 2, 1, retry_after=MINUTE))
    world.tick(cmd.Cancel(key("r")))
    world.wait(2 * MINUTE)
    assert world.how("r") == "Canceled"
    assert audit(world.store.entries()).ok
