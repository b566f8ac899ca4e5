"""Resolutions in small random worlds, each held against counting that shares no code with the resolver.

No victim that could be given back and the claim still served, nobody below its minimum or off its grid, nobody touched where the
claim is not served, no class touched while the classes before it would have done, and nobody cut in the place of one who should
have gone before. FAIRLEASE_RESOLUTIONS says how many to try.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from tests.engine.build import MINUTE, LocationPolicy, World, budget, cap, envelope, lending, node, run

from fairlease.engine.command import Cancel
from fairlease.engine.preempt.resolve import resolve
from fairlease.engine.preempt.victims import Victim
from fairlease.ledger.state.runs import RunState
from fairlease.model.budget import BudgetSpec
from fairlease.model.lease import Fund, Lease, Role
from fairlease.model.record import key
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason

ROUNDS = int(os.environ.get("FAIRLEASE_RESOLUTIONS", "600"))
CHUNK = 50
CLASSES = (
    Reason.ReclaimOpportunistic, Reason.ReclaimOverdrawn, Reason.DropSpare, Reason.Shrink, Reason.RandomPreempt
)  # fmt: skip
OPPORTUNISTIC, OVERDRAWN, SPARES, WIDTH, LOTTERY = range(5)
OWNERS = ("ann", "bob", "cy")
NODE_GPUS = 4
OLD = 15 * MINUTE


class Place(NamedTuple):
    """Where a node stands."""

    domain: str
    region: str


def _world(dice: random.Random) -> tuple[World, dict[str, Place]]:
    """A few domains, the first in another region than the others; owners with money of their own, and one that lends."""
    places = {f"n{each}": Place(f"D{each // 2}", "east" if each < 2 else "west") for each in range(dice.randint(2, 8))}
    nodes = [node(name, NODE_GPUS, place.domain, place.region) for name, place in places.items()]
    budgets = [budget(owner, envelope(concurrency=dice.choice((4, 8, 64)))) for owner in OWNERS]
    world = World(*nodes, *budgets, budget("bank", envelope(lending=lending())), _purse(dice))
    for number in range(dice.randint(2, 9)):
        world.submit(f"r{number}", _request(dice))
        world.wait(dice.choice((0, MINUTE, 6 * MINUTE)))
    for name in [f"r{number}" for number in range(9)]:
        known = key(name) in world.scheduler.state.runs and dice.random() < 0.2
        if known and world.run(name).phase is Phase.RUNNING:
            world.end(name)
    waiting = [each for each in world.scheduler.state.runs.values() if each.phase is Phase.PENDING]
    world.tick(*(Cancel(each.key) for each in waiting))
    for owner in OWNERS:
        if dice.random() < 0.25:
            world.write(budget(owner, envelope(concurrency=dice.choice((1, 2, 4)))))
    return world, places


def _purse(dice: random.Random) -> BudgetSpec:
    """The claimant's money: everywhere, in one region, or under an aggregate cap over two envelopes."""
    kind = dice.random()
    if kind < 0.6:
        return budget("claimant")
    if kind < 0.8:
        return budget("claimant", envelope(selector={"region": dice.choice(("east", "west"))}))
    bound = cap("both", ("a", "b"), max_concurrency=dice.choice((4, 8, 12)))
    return budget("claimant", envelope("a", 8), envelope("b", 8), aggregate_caps=(bound,))


def _request(dice: random.Random) -> RunSpec:
    owner, pod = dice.choice(OWNERS), dice.choice((1, 1, 2, 4))
    money = {"allow_borrow": True, "sponsors": ("bank",)} if dice.random() < 0.5 else {}
    if dice.random() < 0.35:
        group = pod * dice.choice((1, 1, 2)) if pod < NODE_GPUS else pod
        least = group * dice.randint(1, 2)
        most = least + group * dice.randint(1, 3)
        spares = dice.choice((0, 0, pod))
        return run(owner, most, pod, elastic=(least, most, group), group_gpus=group, spares=spares, **money)
    if dice.random() < 0.25:
        return run(owner, pod, pod, opportunistic=True, **money)
    total = pod * dice.randint(1, 3)
    if dice.random() < 0.4:
        return run(owner, total, pod, spares=pod, group_gpus=total, **money)
    return run(owner, total, pod, **money)


def _claim(dice: random.Random) -> RunSpec:
    pod = dice.choice((1, 2, 4))
    groups, pods = dice.randint(1, 2), dice.randint(1, 2)
    more: dict[str, object] = {"allow_cross_group_spread": False} if dice.random() < 0.25 else {}
    if dice.random() < 0.3:
        more |= {"location": {"region": dice.choice(("east", "west"))}, "location_policy": LocationPolicy.REQUIRE}
    if dice.random() < 0.2:
        more["spares"] = pod
    return run("claimant", pod * pods * groups, pod, group_gpus=pod * pods, **more)


def _fits(world: World, places: dict[str, Place], spec: RunSpec, gone: Iterable[Lease]) -> bool:
    """Count pods per domain, then groups: each group, with its spares, in one domain, each pod on one node that may be used."""
    gone_names = {(lease.run, lease.name) for lease in gone}
    terms = world.scheduler.state.budgets[key("claimant")].envelopes
    region = terms[0].selector["region"]
    wanted = {spec.locality.location.get("region", "*"), region} - {"*"}
    pods: dict[str, int] = {}
    for name, state in world.scheduler.state.capacity.nodes.items():
        if wanted <= {places[name].region}:
            held = {
                slot for each in state.leases.values() if (each.run, each.name) not in gone_names for slot in each.slots
            }
            domain = places[name].domain
            pods[domain] = pods.get(domain, 0) + (NODE_GPUS - len(held)) // spec.pod_gpus
    group = spec.locality.group_gpus
    assert group is not None
    groups = spec.resources.total_gpus // group
    per_group = (group + spec.spares_per_group) // spec.pod_gpus
    if not spec.locality.allow_cross_group_spread:
        return any(count >= groups * per_group for count in pods.values())
    return sum(count // per_group for count in pods.values()) >= groups


def _order(running: RunState) -> list[int]:
    """The groups of a malleable run in the order in which they go: borrowed first, then the highest index."""
    ranks = [each for each in running.leases.values() if each.rank >= 0]
    borrowed = {each.group for each in ranks if each.payer.fund is Fund.BORROWED}
    return sorted({each.group for each in ranks}, key=lambda group: (group not in borrowed, -group))


def _left(running: RunState, level: int, now: int) -> list[Lease]:
    """What is left of a run when every class up to `level` has given all it can (every group is a step wide here)."""
    leases, elastic = list(running.leases.values()), running.spec.malleable
    if running.spec.opportunistic:
        return [] if level >= OPPORTUNISTIC else leases
    owing = {unit[3] for unit in running.overdrawn} if level >= OVERDRAWN else set()
    if owing and elastic is None:
        return []
    groups = [group for group in _order(running) if group not in owing]
    if elastic is not None:
        least = elastic.min_total_gpus // elastic.step_gpus
        if len(groups) < least:
            return []
        groups = groups[-least:] if level >= WIDTH else groups
        leases = [each for each in leases if each.group in groups]
    if level >= LOTTERY and running.started_at is not None and now - running.started_at >= OLD:
        return []
    return [each for each in leases if level < SPARES or each.role is not Role.SPARE]


def _class(world: World, level: int, now: int) -> list[Lease]:
    """All leases that the classes up to `level` could free."""
    runs = world.scheduler.state.runs.values()
    return [lease for each in runs for lease in each.leases.values() if lease not in _left(each, level, now)]


def _leases(world: World, victims: Iterable[Victim]) -> list[Lease]:
    return [world.scheduler.state.runs[each.run].leases[name] for each in victims for name in each.names]


def _bound(victim: Victim, others: list[Victim]) -> bool:
    """Whether a victim cannot be given back by itself: its group goes."""
    return any(each.run == victim.run and victim.group in each.groups for each in others)


def _stand_ins(world: World, victims: list[Victim], level: int) -> list[list[Lease]]:
    """What should have gone before anything of the class `level`, and stays."""
    touched = {each.run for each in victims}
    found: list[list[Lease]] = []
    for each in world.scheduler.state.runs.values():
        leases = list(each.leases.values())
        if each.key in touched:
            continue
        if each.spec.opportunistic or (each.overdrawn and each.spec.malleable is None):
            found += [leases] if (OPPORTUNISTIC if each.spec.opportunistic else OVERDRAWN) < level else []
        elif level > SPARES:
            found += [[lease] for lease in leases if lease.role is Role.SPARE]
    return found


def _check_widths(world: World, victims: list[Victim], seed: int) -> None:
    for each in world.scheduler.state.runs.values():
        going = {name for victim in victims if victim.run == each.key for name in victim.names}
        if not going or any(victim.run == each.key and victim.whole for victim in victims):
            continue
        width = sum(lease.gpus for lease in each.leases.values() if lease.rank >= 0 and lease.name not in going)
        elastic = each.spec.malleable
        least = each.spec.resources.total_gpus if elastic is None else elastic.min_total_gpus
        step = 1 if elastic is None else elastic.step_gpus
        assert width >= least, f"seed {seed}: {each.key} is left with {width}"
        assert (width - least) % step == 0, f"seed {seed}: {each.key} is off its grid with {width}"


def _check_order(world: World, places: dict[str, Place], spec: RunSpec, victims: list[Victim], seed: int) -> None:
    """Nobody goes where another, who comes before in the order, would have done in its place."""
    for victim in victims:
        rest = _leases(world, [each for each in victims if each is not victim])
        for instead in _stand_ins(world, victims, CLASSES.index(victim.reason)):
            assert not _fits(world, places, spec, [*rest, *instead]), f"seed {seed}: {instead} before {victim}"
        if victim.reason is Reason.Shrink:
            running = world.scheduler.state.runs[victim.run]
            order = _order(running)
            gone = {group for each in victims if each.run == victim.run for group in each.groups}
            first = [group for group in order[: order.index(max(victim.groups, key=order.index))] if group not in gone]
            for group in first:
                instead = [each for each in running.leases.values() if each.group == group]
                assert not _fits(world, places, spec, [*rest, *instead]), f"seed {seed}: group {group} before {victim}"


def _resolution(seed: int) -> set[str]:
    dice = random.Random(seed)
    world, places = _world(dice)
    spec = _claim(dice)
    if world.submit("claim", spec) != "Reserved":
        return {"none needed"}
    state, now = world.scheduler.state, world.now + dice.choice((8, 16)) * MINUTE
    found = resolve(state, world.scheduler.engine.family, world.run("claim"), now, 0, due=True)
    if found is None:
        assert not _fits(world, places, spec, _class(world, LOTTERY, now)), f"seed {seed}: it could have been served"
        return {"cannot be served"}
    victims = found.victims
    assert _fits(world, places, spec, _leases(world, victims)), f"seed {seed}: it is not served"
    for victim in victims:
        others = [each for each in victims if each is not victim]
        if not _bound(victim, others):
            assert not _fits(world, places, spec, _leases(world, others)), f"seed {seed}: {victim} was unneeded"
    _check_widths(world, victims, seed)
    _check_order(world, places, spec, victims, seed)
    last = max(CLASSES.index(victim.reason) for victim in victims)
    assert not _fits(world, places, spec, _class(world, last - 1, now)), f"seed {seed}: {CLASSES[last].value} too soon"
    lottery = found.record.outcome.lottery
    owners = 0 if lottery is None else len({token.owner for token in lottery.tokens})
    return {each.reason.value for each in victims} | ({"several owners"} if owners > 1 else set())


@pytest.mark.parametrize("first", range(0, ROUNDS, CHUNK))
def test_a_resolution_cuts_what_it_must_and_nothing_else(first: int) -> None:
    seen = {kind for seed in range(first, first + CHUNK) for kind in _resolution(seed)}
    assert len(seen) > 1, "worlds that differ come out differently"


def test_the_random_worlds_show_every_class_and_draws_among_several_owners() -> None:
    seen = Counter(kind for seed in range(400) for kind in _resolution(seed))
    wanted = {each.value for each in CLASSES} | {"none needed", "cannot be served", "several owners"}
    assert wanted <= seen.keys(), seen
