"""Preemption: what it costs to select victims and to verify the plan for which they go.

- `resolver`: 5,000 nodes full of funded work, 20,000 open leases in scope, and a claim of 128 GPUs whose reservation is due. Timed
  is `resolve`, from the claim to a verified plan: victims by class, draws, what is given back, and the claim planned on a trial.
  Nothing is preempted. The same is timed with a quarter of the leases, and in a region of a cluster that is doubled around it.
- `reclaim`: 1,500 nodes full of opportunistic runs of one GPU, scattered so that the eight on a node are of different ages, and a
  claim of whole nodes that is submitted. Timed is the whole decision.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bench.synthetic import NODE_GPUS, Figures, asked, cluster, fill, node, progress, request, run_key, spread
from fairlease.engine import command as cmd
from fairlease.engine.preempt.resolve import resolve
from fairlease.ledger.state.events import ReservationTurned
from fairlease.model.amount import MINUTE
from fairlease.model.record import key
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Locality, LocationPolicy
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.model.run import RunSpec
    from fairlease.scheduler import Scheduler

GPUS, GROUP, POD = 128, 32, 8
TARGET_MS = 50
GROWTH_MAX = 1.3
ROUNDS = 15
INSIDE = 256
"""Nodes of the region in which a claim looks, while the cluster around it grows."""


def full(leases: int) -> Scheduler:
    """A cluster that `leases` leases of two GPUs fill to the last GPU."""
    scheduler = cluster(leases * 2 // 8, 50)
    at = fill(scheduler, opened=leases, closed=0, pod=2)
    scheduler.tick(at, asked(0, request(7, GPUS, pod=POD, group=GROUP)))
    return scheduler


def surrounded(outside: int) -> Scheduler:
    """A full region in which a claim looks, and `outside` full nodes of the same flavor in another."""
    scheduler, at = cluster(0, 50), 0
    for region, first, nodes in (("eu", 0, INSIDE), ("us", INSIDE, outside)):
        labelled = [
            replace(each, labels=each.labels | {"region": region}) for each in map(node, range(first, first + nodes))
        ]
        scheduler.tick(scheduler.state.at, *map(cmd.SetNode, labelled))
        for number in range(nodes * 2):
            at = scheduler.state.at + MINUTE
            spec = _in(request(number % 50, NODE_GPUS // 2, pod=NODE_GPUS // 4), region=region)
            scheduler.tick(at, cmd.Submit(key(f"{region}-{number}"), spec))
    assert scheduler.state.open_leases == 4 * (INSIDE + outside), "every node is full"
    scheduler.tick(at + MINUTE, asked(0, _in(request(7, GPUS, pod=POD, group=GROUP), region="eu")))
    return scheduler


def scattered(nodes: int) -> Scheduler:
    """Nodes full of opportunistic runs of one GPU; the runs of one age are all on different nodes."""
    scheduler = cluster(0, 50)
    racks = [replace(each, labels=each.labels | {"rack": each.name}) for each in map(node, range(nodes))]
    scheduler.tick(scheduler.state.at, *map(cmd.SetNode, racks))
    for turn in range(NODE_GPUS):
        specs = [
            replace(_in(request(each % 50, 1, pod=1), rack=node(each).name), opportunistic=True)
            for each in range(nodes)
        ]
        submitted = [cmd.Submit(key(f"rider-{turn}-{each}"), spec) for each, spec in enumerate(specs)]
        scheduler.tick(scheduler.state.at + MINUTE, *submitted)
    assert scheduler.state.open_leases == NODE_GPUS * nodes, "every node is full"
    return scheduler


def _in(spec: RunSpec, **location: str) -> RunSpec:
    locality = Locality(group_gpus=spec.locality.group_gpus, location=location, location_policy=LocationPolicy.REQUIRE)
    return replace(spec, locality=locality)


def due(scheduler: Scheduler) -> None:
    """Who would be preempted when the claim is due; nothing changes."""
    state = scheduler.state
    claim, now = state.runs[run_key(0)], state.at + 16 * MINUTE
    with state.trial():
        state.apply(now, ReservationTurned(run=claim.key, state=ReservationState.ACTIVE, reason=Reason.Due))
        found = resolve(state, scheduler.engine.family, claim, now, 0, due=True)
    assert found is not None, "there is work that can be preempted"


def reclaim(scheduler: Scheduler) -> None:
    """A claim of whole nodes is submitted, and starts at once; then all is undone."""
    with scheduler.what_if(scheduler.state.at + MINUTE, asked(0, request(7, 2 * POD, pod=POD))) as decision:
        assert [each.result for each in decision.tries] == [Reason.Start]


def measured(scheduler: Scheduler, work: Callable[[Scheduler], None] = due) -> dict[str, float]:
    """What it costs, several times over."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work(scheduler)
        times.append(time.process_time() - began)
    return spread(times)


def run(*, quick: bool) -> dict[str, Figures]:
    """Print the figures."""
    large, nodes = (4_000, 300) if quick else (20_000, 1_500)
    progress(f"resolver: {large} open leases")
    figures, small = measured(full(large)), measured(full(large // 4))
    progress("resolver: a region of a cluster that grows")
    around = [measured(surrounded(outside))["median_ms"] for outside in (INSIDE, 2 * INSIDE, 4 * INSIDE)]
    growth = [round(after / before, 2) for before, after in pairwise(around)]
    progress(f"reclaim: {nodes} nodes of scattered opportunistic runs")
    reclaimed, half = measured(scattered(nodes), reclaim), measured(scattered(nodes // 2), reclaim)
    return {
        "resolver": {
            "leases": large,
            **figures,
            "ratio_to_a_quarter_of_the_leases": round(figures["median_ms"] / small["median_ms"], 2),
            "ratios_per_doubling_of_leases_outside": growth,
            "target": f"a verified plan with 20,000 open leases in scope in under {TARGET_MS} ms of CPU; "
            f"below {GROWTH_MAX} × per doubling of leases outside the conflict",
            "met": quick or (figures["median_ms"] < TARGET_MS and max(growth) < GROWTH_MAX),
        },
        "reclaim": {
            "nodes": nodes,
            "runs": nodes * NODE_GPUS,
            **reclaimed,
            "ratio_to_half_the_nodes": round(reclaimed["median_ms"] / half["median_ms"], 2),
            "target": f"opportunistic work on 1,500 nodes reclaimed in under {TARGET_MS} ms of CPU",
            "met": quick or reclaimed["median_ms"] < TARGET_MS,
        },
    }
