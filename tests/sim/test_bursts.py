"""Failures as they really come: the GPU errors of AcmeTrace's Kalos, replayed as failures of whole nodes under runs with spares."""

from __future__ import annotations

import csv
from itertools import count

from tests.engine.build import HOUR, MINUTE, T0, World, budget, envelope, node, run
from tests.sim.traces import public

from fairlease.engine import command as cmd
from fairlease.ledger.audit.audit import audit
from fairlease.ledger.state import events as ev
from fairlease.model.record import key
from fairlease.model.run import RunSpec

RACK = 18
"""Nodes of one fabric domain."""

REPAIR = 2 * HOUR
"""How long a node is away."""


def onsets() -> dict[int, list[str]]:
    """The nodes that show an error, by the half-minute (ms) in which they do."""
    found: dict[int, dict[str, None]] = {}
    with public("acme_kalos_xid_onsets.csv").open() as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["t_s"]) // 30 * 30_000, {})[row["node"]] = None
    return {at: list(nodes) for at, nodes in sorted(found.items())}


def request(number: int) -> RunSpec:
    """Of every five runs two are elastic, all hold a spare node per group, and all ask again from a checkpoint."""
    elastic = {"elastic": (32, 96, 32)} if number % 5 < 2 else {}
    return run(
        f"team{number % 4}", 64, 8, group_gpus=32, spares=8, checkpoint=10 * MINUTE, max_duration=40 * HOUR, **elastic
    )


def test_the_bursts_of_a_real_cluster_are_survived() -> None:
    bursts = onsets()
    names = sorted({name for nodes in bursts.values() for name in nodes})
    machines = {name: node(name, 8, f"rack{place // RACK}") for place, name in enumerate(names)}
    world = World(*machines.values(), *(budget(f"team{each}", envelope(concurrency=512)) for each in range(4)))
    numbers = count()
    back: dict[int, list[str]] = {}
    for at, fallen in bursts.items():
        for due in sorted(each for each in back if each <= at):
            world.wait(T0 + due - world.now)
            world.write(*(machines[name] for name in back.pop(due)))
        world.wait(T0 + at - world.now)
        alive = sum(not each.over for each in world.auditor.runs.values())
        for number in (next(numbers) for _ in range(14 - alive)):
            world.tick(cmd.Submit(key(f"r{number}"), request(number)))
        for waiting in back.values():
            waiting[:] = [name for name in waiting if name not in fallen]
        back[at + REPAIR] = fallen
        world.tick(*(cmd.FailNode(name) for name in fallen))
        world.wait(0)
    assert max(len(nodes) for nodes in bursts.values()) >= 74, "the great burst is part of it"
    opened = [each.reason.value for each in world.told(ev.LeasesOpened)]
    assert opened.count("Swap") > 10
    assert {"Shrink", "Fail", "NodeFailure", "Swap"} <= {each.reason.value for each in world.told(ev.LeasesClosed)}
    assert audit(world.store.entries()).ok
