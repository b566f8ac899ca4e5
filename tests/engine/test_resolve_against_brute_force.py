"""Resolutions in small random worlds, each held against counting that shares no code with the resolver.

No victim that could be given back and the claim still served, nobody below its minimum or off its grid, nobody touched where the
claim is not served, and no class touched while the classes before it would have done. FAIRLEASE_RESOLUTIONS says how many to try.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest
from tests.engine.build import MINUTE, World, budget, node, run

from fairlease.engine.command import Cancel
from fairlease.engine.resolve import resolve
from fairlease.engine.victims import Victim
from fairlease.ledger.live import RunState
from fairlease.model.lease import Lease, Role
from fairlease.model.record import key
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason

ROUNDS = int(os.environ.get("FAIRLEASE_RESOLUTIONS", "600"))
CHUNK = 50
CLASSES = (Reason.ReclaimOpportunistic, Reason.DropSpare, Reason.Shrink, Reason.RandomPreempt)
OWNERS = ("ann", "bob", "cy")
NODE_GPUS = 4


def _world(dice: random.Random) -> tuple[World, dict[str, str]]:
    domains = {f"n{number}": f"D{number // 2}" for number in range(dice.randint(2, 6))}
    nodes = [node(name, NODE_GPUS, domain) for name, domain in domains.items()]
    world = World(*nodes, *(budget(owner) for owner in (*OWNERS, "claimant")))
    for number in range(dice.randint(2, 9)):
        world.submit(f"r{number}", _request(dice))
        world.now += dice.choice((0, MINUTE, 6 * MINUTE))
    for name in [f"r{number}" for number in range(9)]:
        known = key(name) in world.scheduler.state.runs and dice.random() < 0.2
        if known and world.run(name).phase is Phase.RUNNING:
            world.end(name)
    waiting = [each for each in world.scheduler.state.runs.values() if each.phase is Phase.PENDING]
    world.tick(*(Cancel(each.key) for each in waiting))
    return world, domains


def _request(dice: random.Random) -> RunSpec:
    owner, pod = dice.choice(OWNERS), dice.choice((1, 1, 2, 4))
    if dice.random() < 0.3:
        least = pod * dice.randint(1, 2)
        most = least + pod * dice.randint(1, 3)
        return run(owner, most, pod, elastic=(least, most, pod), on_preempt=None)
    if dice.random() < 0.25:
        return run(owner, pod, pod, opportunistic=True)
    total = pod * dice.randint(1, 3)
    if dice.random() < 0.4:
        return run(owner, total, pod, spares=pod, group_gpus=total)
    return run(owner, total, pod)


def _claim(dice: random.Random) -> RunSpec:
    pod = dice.choice((1, 2, 4))
    groups, pods = dice.randint(1, 2), dice.randint(1, 2)
    together = dice.random() < 0.2
    more = {"allow_cross_group_spread": False} if together else {}
    return run("claimant", pod * pods * groups, pod, group_gpus=pod * pods, **more)


def _fits(world: World, domains: dict[str, str], spec: RunSpec, gone: Iterable[Lease]) -> bool:
    """Count pods per domain, then groups: each group in one domain, each pod on one node."""
    gone_names = {(lease.run, lease.name) for lease in gone}
    pods: dict[str, int] = {}
    for name, state in world.scheduler.state.capacity.nodes.items():
        held = {
            slot for each in state.leases.values() if (each.run, each.name) not in gone_names for slot in each.slots
        }
        pods[domains[name]] = pods.get(domains[name], 0) + (NODE_GPUS - len(held)) // spec.pod_gpus
    group = spec.locality.group_gpus
    assert group is not None
    per_group, total = group // spec.pod_gpus, spec.resources.total_gpus // spec.pod_gpus
    if not spec.locality.allow_cross_group_spread:
        return any(count >= total for count in pods.values())
    return sum(count // per_group for count in pods.values()) >= total // per_group


def _least_of(running: RunState) -> list[Lease]:
    """The leases that are left of a malleable run when it has given up all it can (each pod is a group here)."""
    elastic = running.spec.malleable
    assert elastic is not None
    active = sorted((each for each in running.leases.values() if each.rank >= 0), key=lambda each: each.group)
    return active[: elastic.min_total_gpus // running.spec.pod_gpus]


def _class(world: World, reason: Reason, now: int) -> list[Lease]:
    """All leases that one class could free."""
    found: list[Lease] = []
    for each in world.scheduler.state.runs.values():
        leases = list(each.leases.values())
        if reason is Reason.ReclaimOpportunistic:
            found += leases if each.spec.opportunistic else []
        elif each.spec.opportunistic or each.started_at is None:
            continue
        elif reason is Reason.DropSpare:
            found += [lease for lease in leases if lease.role is Role.SPARE]
        elif reason is Reason.Shrink:
            kept = [] if each.spec.malleable is None else _least_of(each)
            found += [lease for lease in leases if lease not in kept] if each.spec.malleable is not None else []
        elif now - each.started_at >= 15 * MINUTE:
            found += leases
    return found


def _leases(world: World, victims: Iterable[Victim]) -> list[Lease]:
    return [world.scheduler.state.runs[each.run].leases[name] for each in victims for name in each.names]


def _bound(victim: Victim, others: list[Victim]) -> bool:
    """Whether a victim cannot be given back by itself: its group goes."""
    return any(each.run == victim.run and victim.group in each.groups for each in others)


def _resolution(seed: int) -> str:
    dice = random.Random(seed)
    world, domains = _world(dice)
    spec = _claim(dice)
    if world.submit("claim", spec) != "Reserved":
        return "none needed"
    state, now = world.scheduler.state, world.now + dice.choice((8, 16)) * MINUTE
    found = resolve(state, world.scheduler.engine.family, world.run("claim"), now, 0, due=True)
    everything = [lease for reason in CLASSES for lease in _class(world, reason, now)]
    if found is None:
        assert not _fits(world, domains, spec, everything), f"seed {seed}: it could have been served"
        return "cannot be served"
    victims = found.victims
    assert _fits(world, domains, spec, _leases(world, victims)), f"seed {seed}: it is not served"
    for victim in victims:
        others = [each for each in victims if each is not victim]
        if not _bound(victim, others):
            assert not _fits(world, domains, spec, _leases(world, others)), f"seed {seed}: {victim} was unneeded"
    for each in state.runs.values():
        going = {name for victim in victims if victim.run == each.key for name in victim.names}
        whole = any(victim.run == each.key and victim.whole for victim in victims)
        if going and not whole:
            width = sum(lease.gpus for lease in each.leases.values() if lease.rank >= 0 and lease.name not in going)
            elastic = each.spec.malleable
            least = each.spec.resources.total_gpus if elastic is None else elastic.min_total_gpus
            step = 1 if elastic is None else elastic.step_gpus
            assert width >= least, f"seed {seed}: {each.key} is left with {width}"
            assert (width - least) % step == 0, f"seed {seed}: {each.key} is off its grid with {width}"
    last = max(CLASSES.index(victim.reason) for victim in victims)
    before = [lease for reason in CLASSES[:last] for lease in _class(world, reason, now)]
    assert not _fits(world, domains, spec, before), f"seed {seed}: {CLASSES[last].value} before its turn"
    return str(CLASSES[last].value)


@pytest.mark.parametrize("first", range(0, ROUNDS, CHUNK))
def test_a_resolution_cuts_what_it_must_and_nothing_else(first: int) -> None:
    seen = {_resolution(seed) for seed in range(first, first + CHUNK)}
    assert len(seen) > 1, "worlds that differ come out differently"
