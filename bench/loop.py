"""The whole loop without I/O: runs come, wait or start, run and end, in virtual time, on a ledger in memory.

Every submission and every end is a tick of its own, as in life. `light`: most runs start at once. `deep`: a queue of thousands
that never empties while it is measured, in a few hundred shapes, or in as many shapes as runs (each with its own time limit).
"""

from __future__ import annotations

import gc
import heapq
import itertools
import random
import time
from typing import NamedTuple

from bench.synthetic import Figures, asked, cluster, progress, request, run_key, spread
from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.model.amount import HOUR, MINUTE, SECOND
from fairlease.model.config import Config

NODES = 5_000
RUNS = 10_000
BUDGETS = 50
SIZES = (8, 8, 8, 16, 16, 32, 64, 128)


class Load(NamedTuple):
    """How runs come: `gap` ms apart, on a cluster that is busy; `pending` of them must wait before the clock starts."""

    runs: int
    gap: int
    pending: int = 0
    distinct: bool = False
    nodes: int = NODES


class Loop:
    """One simulation: a heap of ends, and the wall clock."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.random = random.Random(7)
        self.scheduler = cluster(load.nodes, BUDGETS)
        if load.pending:  # the queue alone is timed: dates for thousands that wait are another matter
            self.scheduler.tick(self.scheduler.state.at, cmd.Configure(Config(reservations=False)))
        self.ends: list[tuple[int, int]] = []
        self.durations: dict[str, tuple[int, int]] = {}
        self.coming = 0
        self.done = 0
        self.submitted: list[float] = []
        self.ended: list[float] = []
        self.waiting_least = load.runs

    def step(self, at: int) -> None:
        """Everything that ends until `at`, and one submission then."""
        while self.ends and self.ends[0][0] <= at:
            when, number = heapq.heappop(self.ends)
            self.tick(when, cmd.WorkEnded(run_key(number), 1, 0), self.ended)
            self.done += 1
        self.submit(at)

    def submit(self, at: int) -> None:
        number, gpus = self.coming, self.random.choice(SIZES)
        limit = 24 * HOUR + (number * SECOND if self.load.distinct else 0)
        spec = request(self.random.randrange(BUDGETS), gpus, group=min(gpus, 32), limit=limit)
        self.durations[run_key(number)] = (number, self.random.randrange(30 * MINUTE, 3 * HOUR))
        self.coming += 1
        self.tick(at, asked(number, spec), self.submitted)

    def tick(self, at: int, command: cmd.AnyCommand, seconds: list[float]) -> None:
        """Have it decided, and do what a backend does: what was started will end."""
        began = time.perf_counter()
        tick = self.scheduler.tick(at, command)
        seconds.append(time.perf_counter() - began)
        for event in tick.decision.events:
            if isinstance(event, ev.LeasesOpened):
                number, duration = self.durations.pop(event.run)
                heapq.heappush(self.ends, (at + duration, number))

    @property
    def waiting(self) -> int:
        """Runs that were submitted and have not started."""
        return len(self.durations)

    def run(self) -> Figures:
        """Warm up until runs end as often as they come, then measure until so many more have ended."""
        load, at = self.load, self.scheduler.state.at
        while load.pending and self.waiting < load.pending:
            at += 1
            self.submit(at)
        while self.done < load.runs // 10:
            at += load.gap
            self.step(at)
        gc.collect()
        self.submitted.clear()
        self.ended.clear()
        marks, first, cpu = [time.perf_counter()], self.done, time.process_time()
        while self.done - first < load.runs:
            at += load.gap
            self.step(at)
            self.waiting_least = min(self.waiting_least, self.waiting)
            if self.done - first >= load.runs * len(marks) // 4:
                marks.append(time.perf_counter())
        quarters = [after - before for before, after in itertools.pairwise(marks)]
        ended = self.done - first
        return {
            "runs": ended,
            "running": len(self.ends),
            "waiting_least": self.waiting_least,
            "waiting": self.waiting,
            "shapes": len(self.scheduler.state.queue.shapes),
            "runs_per_second": round(ended / (marks[-1] - marks[0])),
            "runs_per_cpu_second": round(ended / (time.process_time() - cpu)),
            "submit_median_ms": spread(self.submitted)["median_ms"],
            "end_median_ms": spread(self.ended)["median_ms"],
            "quarters_s": [round(each, 3) for each in quarters],
            "last_over_first_quarter": round(quarters[-1] / quarters[0], 2),
        }


def measure(name: str, load: Load) -> Figures:
    progress(f"loop: {name}")
    return Loop(load).run()


def run(*, quick: bool = False) -> dict[str, Figures]:
    scale = 10 if quick else 1
    runs, pending, nodes = RUNS // scale, 5_000 // scale, NODES // scale
    light = measure("light", Load(runs, gap=6 * SECOND * scale, nodes=nodes))
    deep = measure("deep", Load(runs, gap=5 * SECOND * scale, pending=pending, nodes=nodes))
    distinct = measure(
        "deep, distinct", Load(runs, gap=5 * SECOND * scale, pending=pending, distinct=True, nodes=nodes)
    )
    return {
        "loop": {
            "light": light,
            "deep": deep,
            "deep, all distinct": distinct,
            "target": "≥ 2,000 runs/s, the last quarter no dearer than the first",
            "met": light["runs_per_second"] >= 2_000 and light["last_over_first_quarter"] <= 1.3,
            "met_deep": deep["runs_per_second"] >= 2_000,
        }
    }
