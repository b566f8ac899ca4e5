"""Public traces replayed on the real engine: how fast, and how their runs fare.

The traces are not part of the project: `FAIRLEASE_TRACES` names their folder (default: ../shared/traces beside the project).
Where it is missing, the benchmark says so and measures nothing. `python -m bench.trace` prints the figures of this module alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from bench.synthetic import Figures, progress
from fairlease.model.config import Config
from fairlease.replay.cluster import read_budgets, read_nodes
from fairlease.replay.formats import read_trace
from fairlease.replay.play import POLICY, ReplayStage, TracePlay, usual_forecasts
from fairlease.replay.report import LARGE, View, compare, report
from fairlease.replay.trace import Asker, Limits
from fairlease.scheduler import calm_collector

ROOT = Path(__file__).resolve().parent.parent
PHILLY_SECONDS = 180
QUICK_JOBS = 1_000
UTILISATION_LOST_MAX = 0.02


class Replay(NamedTuple):
    """One trace on one cluster with one kind of money."""

    file: str
    form: str
    nodes: str
    budgets: str
    jobs: int | None = None


REPLAYS = {
    "philly": Replay("philly_jobs.csv.gz", "philly", "auto:0.9", "one"),
    "philly, first 20,000": Replay("philly_jobs.csv.gz", "philly", "auto:0.9", "one", 20_000),
    "philly, by fair shares": Replay("philly_jobs.csv.gz", "philly", "auto:0.9", "fair", 20_000),
    "helios, with its quotas": Replay(
        "helios_venus_2vc_sept2020_jobs.csv", "helios", "22x8", "helios_vc_quota_runs.csv"
    ),
    "helios, one budget": Replay("helios_venus_2vc_sept2020_jobs.csv", "helios", "22x8", "one"),
    "swf": Replay("swf_sdsc_sp2_first4961.swf.gz", "swf", "16x8", "one"),
}


def traces() -> Path:
    """Where the public traces lie."""
    return Path(os.environ.get("FAIRLEASE_TRACES") or ROOT.parent / "shared" / "traces")


def replay(which: Replay, config: Config, *, jobs: int | None = None, forecasts: bool = False) -> tuple[View, float]:
    """The report of one replay, with the usual forecasts or with none, and the seconds of CPU that it took."""
    folder = traces()
    trace = read_trace(folder / which.file, which.form).first(jobs or which.jobs)
    limits = Limits()
    plan = read_nodes(which.nodes, trace, limits, 32)
    asker = Asker(max(pool.gpus for pool in plan.pools), limits)
    quotas = which.budgets.endswith(".csv")
    budgets = str(folder / which.budgets) if quotas else which.budgets
    money = read_budgets(budgets, trace, asker, plan.gpus, "Venus" if quotas else None)
    every = usual_forecasts(trace) if forecasts else 0
    play = TracePlay(trace, ReplayStage(plan, money, asker, config, every))
    began = time.process_time()
    play.play(lambda _done: None)
    return report(play), time.process_time() - began


def figures(told: View, seconds: float) -> Figures:
    hours = sum(row["gpuHours"] for row in told["owners"].values())
    large = told["sizes"].get(LARGE)
    return {
        "jobs": told["trace"]["jobs"],
        "gpus": told["cluster"]["gpus"],
        "load": told["cluster"]["load"],
        "cpu_s": round(seconds, 2),
        "jobs_per_cpu_s": round(told["trace"]["jobs"] / seconds),
        "gpu_hours": round(hours),
        "wait_mean_s": told["waits"]["waitSeconds"]["mean"],
        "wait_p95_s": told["waits"]["waitSeconds"]["p95"],
        "wait_mean_large_s": None if large is None else large["waitSeconds"]["mean"],
        "slowdown_mean": told["waits"]["slowdown"]["mean"],
        "utilisation": told["utilisation"]["whileAsked"],
        "backfill": told["backfill"]["share"],
        "preemptions": told["preemptions"]["total"],
        "queue_max": told["queue"]["runsMax"],
    }


def run(*, quick: bool = False) -> dict[str, Figures]:
    if not traces().is_dir():
        return {"trace": {"left_out": f"{traces()} is missing; FAIRLEASE_TRACES names the folder of the public traces"}}
    found: Figures = {}
    for name, which in REPLAYS.items():
        progress(f"trace: {name}")
        jobs = QUICK_JOBS if quick else None
        with_them = replay(which, POLICY, jobs=jobs, forecasts=True)
        without, _ = replay(which, replace(POLICY, reservations=False), jobs=jobs)
        found[name] = figures(*with_them) | {"against_no_reservations": compare(without, with_them[0])}
    whole = found["philly"]
    beside = whole["against_no_reservations"]
    return {
        "trace": {
            **found,
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "target": f"Philly's 82,247 jobs in under {PHILLY_SECONDS} s on one core, with reservations and sampled forecasts; "
            "runs over 64 GPUs wait less than without reservations, for less than 2 points of utilisation",
            "met": whole["cpu_s"] < PHILLY_SECONDS
            and (quick or beside["waitMeanSecondsLarge"]["change"] < 0)
            and beside["utilisation"]["change"] > -UTILISATION_LOST_MAX,
        }
    }


if __name__ == "__main__":
    calm_collector()
    print(json.dumps(run(quick="--quick" in sys.argv[1:]), indent=2, ensure_ascii=False))
