"""The odds that are told are those of the resolver: they are held against what it does, seed by seed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.engine.build import HOUR, LocationPolicy, World, budget, envelope, node, run

from fairlease.engine.preempt import odds as odds_module
from fairlease.engine.preempt.odds import EFFORT_MAX, Odds, odds
from fairlease.engine.preempt.resolve import resolve
from fairlease.engine.reserve.release_times import due_date
from fairlease.ledger.store import snapshot
from fairlease.model.amount import DAY
from fairlease.model.record import short

BEACONS = 300


def told(world: World, claim: str, effort: int = EFFORT_MAX) -> Odds | None:
    """What is told of a claim, which changes nothing."""
    before = snapshot.freeze(world.scheduler.state)
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    found = odds(engine, world.run(claim), effort)
    assert snapshot.freeze(world.scheduler.state) == before
    return found


def done(world: World, claim: str, beacons: int = BEACONS) -> tuple[Counter[str], Counter[int]]:
    """How often the resolver would cut each run on that day, and what was lacking, with so many values of a beacon."""
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    cuts, lacking = Counter[str](), Counter[int]()
    for beacon in range(beacons):
        with due_date(engine.state, world.run(claim), engine.now) as day:
            assert day is not None
            state, family = engine.state, engine.family
            found = resolve(state, family, world.run(claim), day.at, 0, due=True, beacon=str(beacon))
        cuts.update(set() if found is None else {short(each.run) for each in found.victims})
        lacking.update([] if found is None else [found.record.outcome.deficit_gpus])
    return cuts, lacking


def agree(found: Odds | None, cuts: Counter[str], beacons: int = BEACONS) -> None:
    """What is certain comes with every seed, what is impossible with none, and all else about as often as was told."""
    chances = {} if found is None else {short(name): chance for name, chance in found.chances.items()}
    assert cuts.keys() <= {name for name, chance in chances.items() if chance > 0}
    for name, chance in chances.items():
        if found is not None and found.draws == 0 and not 1e-9 < chance < 1 - 1e-9:
            assert cuts[name] == round(chance) * beacons, name
        assert abs(cuts[name] / beacons - chance) < 4.5 * (0.25 / beacons) ** 0.5, name


def apart() -> World:
    """A claim for two nodes with money for one in the west and one in the east; who lies where, money does not care for."""
    west, east = (envelope(each, concurrency=8, selector={"region": each}) for each in ("west", "east"))
    nodes = [
        node(f"{region[0]}{each}", region=region, domain=region) for region in ("west", "east") for each in (1, 2, 3)
    ]
    world = World(*nodes, budget("claimant", west, east), *map(budget, ("a", "b", "c")))
    for name, owner, region in (
        ("w1", "a", "west"), ("w2", "a", "west"), ("w3", "b", "west"),
        ("e1", "b", "east"), ("e2", "c", "east"), ("e3", "c", "east"),
    ):  # fmt: skip
        world.submit(name, run(owner, 8, 8, location={"region": region}, location_policy=LocationPolicy.REQUIRE))
    world.wait(HOUR)
    world.submit("claim", run("claimant", 16, 8))
    return world


def test_where_money_reaches_only_some_nodes_the_odds_are_those_of_the_resolver() -> None:
    world = apart()
    found = told(world, "claim")
    cuts, lacking = done(world, "claim")
    assert found is not None
    assert (found.draws, set(lacking)) == (0, {found.deficit_gpus})
    assert sum(found.chances.values()) == pytest.approx(2), (
        "one in the west and one in the east, whoever is drawn besides"
    )
    assert sum(cuts.values()) == 2 * BEACONS
    agree(found, cuts)


def test_where_each_order_costs_much_fewer_are_counted_and_they_are_the_resolvers_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = apart()
    monkeypatch.setattr(odds_module, "EXACT_MAX", 0)
    monkeypatch.setattr(odds_module, "COUNTED_MAX", 400)
    found = told(world, "claim")
    assert found is not None
    assert found.draws == 400
    agree(found, done(world, "claim")[0])
    found = told(world, "claim", 0)
    assert found is not None
    assert found.draws == odds_module.EVER_COUNTED
    assert sum(found.chances.values()) == pytest.approx(2)


def test_work_without_a_claim_goes_for_the_width_that_the_claim_would_take() -> None:
    """One rider would do for the narrowest width; the claim takes all it can pay for when its window opens."""
    opens = World(node("n1")).now + HOUR
    world = World(
        *(node(f"n{each}") for each in range(3)), budget("a"), budget("z", envelope(start=opens, end=opens + DAY))
    )
    for each in range(3):
        world.submit(f"rider-{each}", run("a", 8, 8, opportunistic=True))
    world.submit("claim", run("z", 24, 8, elastic=(8, 24, 8)))
    found = told(world, "claim")
    assert found is not None
    assert {short(name): chance for name, chance in found.chances.items()} == {
        f"rider-{each}": 1.0 for each in range(3)
    }
    agree(found, done(world, "claim", 2)[0], 2)


def test_a_run_that_is_cut_in_one_way_or_the_other_has_odds_of_each() -> None:
    world = World(node("n1"), node("n2"), node("n3"), *map(budget, ("a", "b", "z")))
    world.submit("wide", run("a", 16, 8, elastic=(8, 16, 8), group_gpus=8))
    world.submit("rigid", run("b", 8, 8))
    world.wait(HOUR)
    world.submit("claim", run("z", 16, 8))
    found = told(world, "claim")
    assert found is not None
    ways = {(short(name), reason.value): (each.chance, each.gpus) for (name, reason), each in found.perils.items()}
    assert ways == {
        ("wide", "Shrink"): (0.5, 8), ("wide", "RandomPreempt"): (0.5, 16), ("rigid", "RandomPreempt"): (0.5, 8)
    }  # fmt: skip
    assert {short(name): chance for name, chance in found.chances.items()} == {"wide": 1.0, "rigid": 0.5}


def random_world(seed: int) -> World:
    """A full cluster in two regions, with a claim whose money may reach one, both, or both apart."""
    dice = random.Random(seed)
    regions = ("west", "east")
    nodes = [node(f"{each[0]}{n}", region=each, domain=f"{each}-{n % 2}") for each in regions for n in range(4)]
    envelopes = [
        envelope(f"e{n}", dice.choice((4, 8, 12, 16)), selector={"region": dice.choice(("*", regions[n % 2]))})
        for n in range(dice.randint(1, 3))
    ]
    world = World(*nodes, budget("claimant", *envelopes), *map(budget, "abc"))
    for number in range(14):
        pod, width = dice.choice((2, 4, 8)), dice.choice((1, 2, 3))
        more: dict[str, object] = {"opportunistic": True} if dice.random() < 0.1 else {}
        if dice.random() < 0.3:
            more, width = {"elastic": (pod, 3 * pod, pod), "group_gpus": pod}, 3
        if dice.random() < 0.2:
            more["spares"] = pod
        world.submit(f"r{number}", run(dice.choice("abc"), width * pod, pod, **more))
        if dice.random() < 0.2:
            world.wait(HOUR)
    world.wait(HOUR)
    pod, width = dice.choice((4, 8)), dice.choice((1, 2, 3))
    whole = {"group_gpus": width * pod, "allow_cross_group_spread": False} if dice.random() < 0.2 else {}
    world.submit("claim", run("claimant", width * pod, pod, **whole))
    return world


def test_in_random_worlds_the_odds_are_those_of_the_resolver() -> None:
    looked_at = Counter[str]()
    for seed in range(24):
        world = random_world(seed)
        hold = world.run("claim").hold
        if hold is not None and hold.cut_from is not None:
            found = told(world, "claim")
            cuts, lacking = done(world, "claim", 40)
            agree(found, cuts, 40)
            assert found is None or found.deficit_gpus in lacking
            looked_at["nobody" if found is None else "exact" if found.draws == 0 else "counted"] += 1
    assert looked_at["exact"] > 5
    assert looked_at["counted"] > 2
