"""Where things stop being small: a gang of 32,768 GPUs, and the answer "it cannot start, because" on a full cluster.

The verdict is measured as a decision on a submission, with nothing prepared (`first`: a scheduler that has just started) and
again. Full means four things here: no GPU free; one GPU free on every node, none of use for pods of two; money that reaches only a
part of the nodes; and requests that no empty cluster could hold.
"""

from __future__ import annotations

import gc
import statistics
from functools import partial

from bench.synthetic import (
    DOMAIN_NODES,
    FLAVOR,
    NODE_GPUS,
    Figures,
    asked,
    clock,
    cluster,
    millis,
    progress,
    request,
    spread,
)
from fairlease.engine import command as cmd
from fairlease.engine.context import Engine
from fairlease.engine.place.packing import Rooms, need_of
from fairlease.engine.place.search import Search
from fairlease.engine.tick.decide import decide
from fairlease.ledger.state.capacity import Pool
from fairlease.model.budget import BudgetSpec, Envelope
from fairlease.model.record import key
from fairlease.model.run import RunSpec
from fairlease.reason import Reason
from fairlease.scheduler import Scheduler


def run(*, quick: bool = False) -> dict[str, Figures]:
    return {"packing": packing(quick=quick), "verdict": verdict(quick=quick)}


def packing(*, quick: bool) -> Figures:
    """Half of an empty cluster for one gang: the packing alone, and the whole decision with its leases."""
    nodes = 8_192 // (8 if quick else 1)
    gpus = nodes * NODE_GPUS // 2
    scheduler = cluster(nodes, 1)
    pool = scheduler.state.capacity.pools[FLAVOR]
    figures: Figures = {"nodes": nodes, "gpus": gpus}
    worst = 0.0
    for pod in (8, 1):
        progress(f"packing: {gpus} GPUs in pods of {pod}")
        spec = request(0, gpus, pod=pod, group=32)
        placed = min(clock(partial(_place, pool, spec)) for _ in range(5))
        decided = min(clock(partial(_started, scheduler, spec)) for _ in range(3))
        figures[f"pods of {pod}"] = {"place_ms": millis(placed), "decide_and_undo_ms": millis(decided)}
        worst = max(worst, placed)
    return {**figures, "target": "placing < 300 ms, in pods of 8 and of 1", "met": worst < 0.3}


def _place(pool: Pool, spec: RunSpec) -> None:
    need = need_of(spec, spec.resources.total_gpus)
    assert Search(Rooms(pool, pool.mask, spec.pod_gpus), need).find() is not None, "the cluster is empty"


def _started(scheduler: Scheduler, spec: RunSpec) -> None:
    with scheduler.what_if(scheduler.state.at + 1, asked(0, spec)) as decision:
        assert decision.tries[-1].result is Reason.Start, "the cluster is empty"


def verdict(*, quick: bool) -> Figures:
    """Submissions that cannot start."""
    nodes = 5_000 // (10 if quick else 1)
    whole = DOMAIN_NODES * NODE_GPUS
    worlds = {"full": full(nodes, 8), "one free on each": full(nodes, 7)}
    requests = {
        "128 in groups of 32": (request(3, 128, pod=2, group=32), Reason.Reserved),
        "one pod of a node": (request(3, 8, pod=8), Reason.Reserved),
        "a group too large": (request(3, 2 * whole, pod=8, group=2 * whole), Reason.NeverFits),
        "a gang too large": (request(3, 16 * nodes, pod=8, group=32), Reason.NeverFits),
    }
    found, worst = {}, 0.0
    for world, scheduler in worlds.items():
        for name, (spec, reason) in requests.items():
            progress(f"verdict: {name}, {world}")
            first, again = _refused(scheduler, spec, reason)
            found[f"{name}, {world}"] = {"first_ms": millis(first), **spread(again)}
            worst = max(worst, first, statistics.median(again))
    progress("verdict: money for parts of the nodes")
    split = full(nodes, 7, parts=8)
    first, again = _refused(split, request(3, 128, pod=2, group=32), Reason.Reserved)
    found["money in eight parts, one free on each"] = {"first_ms": millis(first), **spread(again)}
    worst = max(worst, first, statistics.median(again))
    return {
        "nodes": nodes,
        **found,
        "worst_ms": millis(worst),
        "target": "each < 5 ms, also the first",
        "met": worst < 0.005,
    }


def full(nodes: int, taken: int, *, parts: int = 0) -> Scheduler:
    """A cluster with `taken` GPUs of every node in use; with `parts`, owner 3's money is for so many domains, one each."""
    scheduler = cluster(nodes, 50)
    at = scheduler.state.at + 1
    scheduler.tick(at, asked(1, request(0, nodes * taken, pod=taken)))
    assert scheduler.state.open_leases == nodes, "one pod on each node"
    if parts:
        spec = request(3, 8)
        envelopes = tuple(
            Envelope(name=f"e{part}", flavor=FLAVOR, selector={"fabric.domain": f"d{part:03d}"}, concurrency=10_000)
            for part in range(parts)
        )
        name = key(spec.owner.replace(":", "-"))
        scheduler.tick(at, cmd.SetBudget(name, BudgetSpec(owner=spec.owner, envelopes=envelopes)))
    return scheduler


def _refused(scheduler: Scheduler, spec: RunSpec, reason: Reason) -> tuple[float, list[float]]:
    """Seconds of the first such decision, with an engine that knows nothing yet, and of later ones."""

    def once() -> None:
        with scheduler.what_if(scheduler.state.at + 1, asked(2, spec)) as decision:
            assert decision.tries[-1].result is reason, decision.tries[-1]

    def at_first() -> float:
        scheduler.engine = Engine(scheduler.state, decide)
        scheduler.state.capacity.pools[FLAVOR].ever_fits.clear()
        return clock(once)

    gc.collect()
    return min(at_first() for _ in range(5)), [clock(once) for _ in range(50)]
