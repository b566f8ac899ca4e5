"""One admission decision: 128 GPUs in groups of 32, asked of a cluster of 1,512 nodes with a past.

A decision is `Engine.decide` on one submission: cover, pack, bind and the new state. It is rolled back through the undo log and
made again, so every repetition meets the same world. Worlds are measured in turns, so that a busy machine disturbs them alike.
"""

from __future__ import annotations

import gc
import time
from typing import NamedTuple

from bench.synthetic import NODE_GPUS, Figures, asked, cluster, fill, progress, request, spread
from fairlease.engine import command as cmd
from fairlease.model.amount import HOUR
from fairlease.model.config import Config
from fairlease.model.run import RunSpec
from fairlease.reason import Reason
from fairlease.scheduler import Scheduler

NODES = 1_512
GPUS = 128
GROUP = 32


class Case(NamedTuple):
    """A world: how many leases are open and closed, who pays, and how large the pods of the new run are."""

    opened: int
    closed: int
    budgets: int = 50
    hours: bool = True
    pod: int = 8
    family: bool = False
    nodes: int = NODES
    pending: int = 0

    @property
    def lease_gpus(self) -> int:
        """GPUs of each open lease: eight where they fit, leaving half of the cluster free, else two."""
        return 8 if self.opened * 8 <= self.nodes * 4 else 2


class Bench:
    """One world and the decision in it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.scheduler = built(case)
        self.now = self.scheduler.state.at + 1
        self.spec = request(7, GPUS, pod=case.pod, group=GROUP, limit=8 * HOUR)
        self.decided: list[float] = []
        self.undone: list[float] = []

    def once(self) -> None:
        """Decide, look that it started, undo."""
        decided, undone = decide(self.scheduler, self.now, self.spec)
        self.decided.append(decided)
        self.undone.append(undone)

    def median(self) -> float:
        return spread(self.decided)["median_ms"]

    def figures(self) -> Figures:
        return {
            **self.case._asdict(),
            "lease_gpus": self.case.lease_gpus,
            **spread(self.decided),
            "undo_median_ms": spread(self.undone)["median_ms"],
        }


def built(case: Case) -> Scheduler:
    scheduler = cluster(case.nodes, case.budgets, hours=case.hours, family=case.family)
    at = fill(scheduler, opened=case.opened, closed=case.closed, pod=case.lease_gpus, budgets=case.budgets)
    if case.pending:  # a lien on all the cluster would turn the new run away: what is timed is the queue alone
        scheduler.tick(scheduler.state.at, cmd.Configure(Config(reservations=False)))
    for number in range(case.pending):  # each asks for all the cluster, and for a time of its own: no two are alike
        spec = request(number % case.budgets, case.nodes * NODE_GPUS, limit=HOUR + number)
        scheduler.tick(at, asked(1 + number, spec))
    assert len(scheduler.state.queue.shapes) == case.pending, "they wait"
    return scheduler


def decide(scheduler: Scheduler, now: int, spec: RunSpec) -> tuple[float, float]:
    """Seconds of one decision, and of its undoing."""
    state, command = scheduler.state, asked(0, spec)
    trial = state.trial()
    began = time.perf_counter()
    decision = scheduler.engine.decide(now, (command,))
    decided = time.perf_counter()
    trial.undo()
    ended = time.perf_counter()
    assert decision.tries[-1].result is Reason.Start, "the run finds money and room"
    return decided - began, ended - decided


def compare(cases: dict[str, Case], repeats: int) -> dict[str, Bench]:
    """Measure several worlds in turns."""
    benches = {}
    for name, case in cases.items():
        progress(f"admission: builds {name}")
        benches[name] = Bench(case)
    gc.collect()
    gc.freeze()  # as a scheduler does after its start: what was there before is not looked at again
    for _ in range(repeats):
        for bench in benches.values():
            bench.once()
    gc.unfreeze()
    return benches


def run(*, quick: bool = False) -> dict[str, Figures]:
    """The promised ratios, the variants beside them, and growth along each axis."""
    scale = 10 if quick else 1
    opened, closed = 4_000 // scale, 20_000 // scale
    cases = {
        "small": Case(100, 0),
        "large": Case(opened, closed),
        "large, 500 budgets": Case(opened, closed, budgets=500),
        "small, no hours": Case(100, 0, hours=False),
        "large, no hours": Case(opened, closed, hours=False),
        "small, pods of 1": Case(100, 0, pod=1),
        "large, pods of 1": Case(opened, closed, pod=1),
        "large, teams with heads": Case(opened, closed, family=True),
    }
    benches = compare(cases, 60 if quick else 400)
    small, large, many = (benches[name].median() for name in ("small", "large", "large, 500 budgets"))
    return {
        "admission": {
            "cases": {name: bench.figures() for name, bench in benches.items()},
            "large_ms": large,
            "large_over_small": round(large / small, 2),
            "large_over_small_no_hours": _ratio(benches, "large, no hours", "small, no hours"),
            "large_over_small_pods_of_1": _ratio(benches, "large, pods of 1", "small, pods of 1"),
            "budgets_500_over_50": round(many / large, 2),
            "target": "large < 1 ms, large ≤ 2 × small, 500 budgets ≤ 1.5 × 50",
            "met": large < 1 and large <= 2 * small and many <= 1.5 * large,
        },
        "admission growth": growth(quick=quick),
    }


def growth(*, quick: bool) -> Figures:
    """The same decision along one axis at a time."""
    scale = 10 if quick else 1
    axes = {
        "open leases": [Case(opened, 0) for opened in (10, 100, 1_000, 4_000 // scale)],
        "closed leases": [Case(100, closed) for closed in (0, 2_000, 20_000 // scale)],
        "nodes": [Case(100, 0, nodes=nodes) for nodes in (256, 1_512, 6_048)],
        "budgets": [Case(100, 0, budgets=budgets) for budgets in (10, 50, 500)],
        "pending": [Case(100, 0, pending=pending) for pending in (0, 500, 5_000 // scale)],
    }
    found = {}
    for axis, cases in axes.items():
        benches = compare({f"{axis} {place}": case for place, case in enumerate(cases)}, 40 if quick else 200)
        field = {"open leases": "opened", "closed leases": "closed"}.get(axis, axis)
        found[axis] = {str(getattr(each.case, field)): each.median() for each in benches.values()}
    return found


def _ratio(benches: dict[str, Bench], over: str, under: str) -> float:
    return round(benches[over].median() / benches[under].median(), 2)
