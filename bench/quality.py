"""How well runs fare, against EASY backfilling: same jobs, same processors, in one run.

Each log is replayed by the engine, on nodes of 8, with one ample Budget and funded work never preempted, and by
`bench.easy` on a flat pool of as many processors. As in SWF, a job asks for processors and its own may be anywhere: all
traces are converted so, or the two would not place the same jobs. Both get the same information:

    limits   the time limit of each job, as its user asked for it; a job that reaches it is killed, under both. Logs that tell no
             limits are given some as users overestimate them: a factor of 1 to 10, rounded up to what people ask for
    none     no limits. EASY cannot do without estimates, so it is given what the engine believes: the 90th percentile of what ended
             before, by owner, user and width; what outlives it is believed to last twice as long
    exact    the limit is what the job really takes

`python -m bench.quality` prints the figures of this module alone; `python -m bench.quality FILE.swf NODES…` those of any SWF log
(NODES as for `simulate --nodes`, such as 16x8 or auto:0.9).
"""

from __future__ import annotations

import json
import random
import sys
import time
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.easy import Easy, FlatJob
from bench.synthetic import Figures, progress
from bench.trace import traces
from fairlease.model.amount import DAY, HOUR, MINUTE, SECOND
from fairlease.replay.cluster import NODE_GPUS, read_budgets, read_nodes
from fairlease.replay.formats import processors_apart, read_trace
from fairlease.replay.play import POLICY, ReplayStage, TracePlay
from fairlease.replay.report import LARGE, SIZES
from fairlease.replay.trace import Asker, Limits, Trace, TraceJob
from fairlease.scheduler import calm_collector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlease.model.config import Config

WAIT_MAX, CLASS_MAX, UTILISATION_LOST_MAX = 0.95, 1.1, 0.0005
"""The target: mean wait and that of the worst size class, ÷ EASY's; utilisation is compared to a twentieth of a point."""

CLASS_RUNS_MIN = 20
"""A size class of fewer runs than this is shown, and not judged."""

BOUND = 10 * SECOND
"""Jobs shorter than this count as this long in a bounded slowdown."""

TELLINGS = ("limits", "none", "exact")
SIZE_NAMES = (*(name for _, name in SIZES), LARGE)
ASKED_FOR = (
    *(each * MINUTE for each in (5, 15, 30)),
    *(each * HOUR for each in (1, 2, 4, 8, 12, 18, 24, 36, 48, 72, 120)),
)
"""Limits that people ask for."""

QUICK_JOBS = 500


class Log(NamedTuple):
    """A log, or a part of one, and the cluster on which it is replayed."""

    file: str
    form: str
    nodes: str
    part: slice = slice(None)

    def read(self) -> Trace:
        """Its jobs."""
        trace = read_trace(traces() / self.file, self.form)
        return trace._replace(
            jobs=tuple(job._replace(nodes=processors_apart(job.gpus)) for job in trace.jobs[self.part])
        )


class Model(NamedTuple):
    """A made-up log: jobs with the features of Lublin and Feitelson's model (2003), and limits by overestimation.

    Widths are serial, or a power of two, or neither; wide jobs run longer; users come back with jobs like their last; arrivals
    follow the hour of the day.
    """

    seed: int
    jobs: int
    nodes: str
    widest: int
    overestimate: float

    def read(self) -> Trace:
        """Its jobs."""
        return _made_up(self)


LOGS: dict[str, Log | Model] = {
    "SDSC SP2": Log("swf_sdsc_sp2_first4961.swf.gz", "swf", "16x8"),
    "Helios": Log("helios_venus_2vc_sept2020_jobs.csv", "helios", "22x8"),
    "Philly, first 8,000": Log("philly_jobs.csv.gz", "philly", "88x8", slice(8_000)),
    "Philly, 8,000 from the middle": Log("philly_jobs.csv.gz", "philly", "44x8", slice(40_000, 48_000)),
    "model, gross limits": Model(1, 6_000, "auto:1.0", 256, 20.0),
    "model, fair limits": Model(2, 6_000, "auto:1.0", 128, 3.0),
    "model, 872 × 8": Model(3, 8_000, "872x8", 1_024, 10.0),
}


def _made_up(model: Model) -> Trace:
    rng = random.Random(model.seed)
    octaves = model.widest.bit_length() - 1
    users = [(rng.lognormvariate(0, 1), rng.choice((0.4, 0.7, 1.0))) for _ in range(60)]
    now, jobs = 0.0, list[TraceJob]()
    last: dict[int, tuple[int, float]] = {}
    while len(jobs) < model.jobs:
        hour = now / 3600 % 24
        busy = 1.6 if 8 <= hour < 18 else 0.5
        now += rng.expovariate(busy / 300)
        who = rng.choices(range(len(users)), [weight for weight, _ in users])[0]
        for _ in range(min(rng.randint(1, 12), rng.randint(1, 12))):  # a campaign of jobs alike
            if who not in last or rng.random() < 0.4:
                wide = 0 if rng.random() < 0.25 else rng.triangular(0.5, octaves, octaves * 0.55)
                width = round(2 ** (round(wide) if rng.random() < 0.75 else wide))
                long = rng.random() > 0.7 - 0.04 * wide
                last[who] = width, rng.lognormvariate(9.5, 1.0) if long else rng.lognormvariate(5.5, 1.5)
            width, usual = last[who]
            taken = min(2 * 86_400.0, max(1.0, usual * rng.lognormvariate(0, 0.5)))
            if rng.random() < 0.15:  # it failed at once
                taken = rng.uniform(1, 60)
            asked = round(now * SECOND)
            limit = overestimated(round(max(taken, usual) * SECOND), rng, model.overestimate * users[who][1])
            jobs.append(
                TraceJob(
                    f"job-{len(jobs)}",
                    asked,
                    f"org:g{who % 7}",
                    width,
                    round(taken * SECOND),
                    processors_apart(width),
                    limit,
                    f"u{who}",
                )
            )
            now += rng.uniform(0, 60)
    jobs.sort(key=lambda job: job.asked)
    return Trace(f"model {model.seed}", "model", tuple(jobs[: model.jobs]), 0)


def overestimated(duration: int, rng: random.Random, most: float) -> int:
    """A limit as users ask for it: more than it takes by some factor, rounded up to one of a few values."""
    wanted = max(duration, round(duration * rng.uniform(1, most)))
    place = bisect_left(ASKED_FOR, wanted)
    return ASKED_FOR[place] if place < len(ASKED_FOR) else -(-wanted // DAY) * DAY


def told(trace: Trace, telling: str) -> Trace:
    """The same jobs with the limits of one telling."""
    if telling == "exact":
        return trace._replace(jobs=tuple(job._replace(limit=max(1, job.duration)) for job in trace.jobs))
    if telling == "none":
        return trace._replace(jobs=tuple(job._replace(limit=None) for job in trace.jobs))
    if any(job.limit is not None for job in trace.jobs):
        return trace
    rng = random.Random(trace.source)
    return trace._replace(jobs=tuple(job._replace(limit=overestimated(job.duration, rng, 10)) for job in trace.jobs))


class Fared(NamedTuple):
    """What became of one job."""

    asked: int
    width: int
    start: int
    end: int

    @property
    def slowdown(self) -> float:
        """Bounded slowdown."""
        return max(1.0, (self.end - self.asked) / max(self.end - self.start, BOUND))


def by_engine(trace: Trace, nodes: str, config: Config) -> tuple[list[Fared], int, float]:
    """What became of each job under the engine; the processors there were, and the seconds of CPU it took."""
    limits = Limits()
    plan = read_nodes(nodes, trace, limits, 32)
    asker = Asker(max(pool.gpus for pool in plan.pools), limits)
    play = TracePlay(trace, ReplayStage(plan, read_budgets("one", trace, asker, plan.gpus, None), asker, config))
    began = time.process_time()
    play.play(lambda _done: None)
    seconds = time.process_time() - began
    return [_fared(each) for each in play.watch.runs.values()], plan.gpus, seconds


def _fared(seen: object) -> Fared:
    asked, gpus, started, ended = (getattr(seen, name) for name in ("asked", "gpus", "started", "ended"))
    assert started is not None, "money is ample and every job fits: all start"
    return Fared(asked, gpus, started, ended)


def by_easy(trace: Trace, processors: int) -> tuple[list[Fared], float]:
    """What became of each job under EASY backfilling, and the seconds of CPU it took."""
    asker = Asker(NODE_GPUS, Limits())
    jobs = [FlatJob(job, asker.width(job), asker.run_time(job), job.limit) for job in trace.jobs]
    began = time.process_time()
    starts = Easy(jobs, processors).play()
    seconds = time.process_time() - began
    fared = [
        Fared(job.job.asked, job.width, start, start + job.duration) for job, start in zip(jobs, starts, strict=True)
    ]
    return fared, seconds


def figures(fared: Sequence[Fared], processors: int) -> Figures:
    """Mean wait, bounded slowdown and utilisation, and the first two by size class."""
    classes = {name: [each for each in fared if _size(each.width) == name] for name in SIZE_NAMES}
    begin, last = fared[len(fared) // 100].asked, max(each.asked for each in fared)
    busy = sum(max(0, min(each.end, last) - max(each.start, begin)) * each.width for each in fared)
    whole = sum((each.end - each.start) * each.width for each in fared)
    span = max(each.end for each in fared) - min(each.asked for each in fared)
    return {
        **_means(fared),
        "utilisation": round(busy / max(1, (last - begin) * processors), 4),
        "utilisation_whole": round(whole / max(1, span * processors), 4),
        "sizes": {name: {"jobs": len(runs), **_means(runs)} for name, runs in classes.items() if runs},
    }


def _size(width: int) -> str:
    return next((name for most, name in SIZES if width <= most), LARGE)


def _means(fared: Sequence[Fared]) -> Figures:
    count = len(fared)
    return {
        "wait_s": round(sum(each.start - each.asked for each in fared) / count / SECOND, 1),
        "bounded_slowdown": round(sum(each.slowdown for each in fared) / count, 2),
    }


def beside(ours: Figures, easy: Figures) -> Figures:
    """The ratios, ours ÷ EASY's, and whether they are what they are to be."""
    sizes = {
        name: _ratio(row["wait_s"], easy["sizes"][name]["wait_s"])
        for name, row in ours["sizes"].items()
        if row["jobs"] >= CLASS_RUNS_MIN
    }
    wait, gained = _ratio(ours["wait_s"], easy["wait_s"]), ours["utilisation"] - easy["utilisation"]
    return {
        "wait": wait,
        "bounded_slowdown": _ratio(ours["bounded_slowdown"], easy["bounded_slowdown"]),
        "sizes": sizes,
        "utilisation_gained": round(gained, 4),
        "met": wait <= WAIT_MAX and max(sizes.values()) <= CLASS_MAX and gained >= -UTILISATION_LOST_MAX,
    }


def _ratio(ours: float, theirs: float) -> float:
    """Waits of less than a second count as one: 0 of 0 is a draw."""
    return round(max(ours, 1.0) / max(theirs, 1.0), 3)


def measure(trace: Trace, nodes: str, tellings: Sequence[str] = TELLINGS, config: Config = POLICY) -> Figures:
    """One log under the engine and under EASY, for each telling."""
    found: Figures = {}
    asker = Asker(NODE_GPUS, Limits())
    for telling in tellings:
        jobs = told(trace, telling)
        ours, processors, seconds = by_engine(jobs, nodes, config)
        theirs, easy_seconds = by_easy(jobs, processors)
        mine, yours = figures(ours, processors), figures(theirs, processors)
        found[telling] = {
            "jobs": len(ours),
            "processors": processors,
            "load": round(asker.demand(jobs) / processors, 3),
            "engine": mine | {"cpu_s": round(seconds, 2)},
            "easy": yours | {"cpu_s": round(easy_seconds, 2)},
            "ratio": beside(mine, yours),
        }
    return found


def run(*, quick: bool = False) -> dict[str, Figures]:
    if not traces().is_dir():
        left_out = f"{traces()} is missing; FAIRLEASE_TRACES names the folder of the public traces"
        return {"quality": {"left_out": left_out}}
    found: Figures = {}
    for name, log in LOGS.items():
        progress(f"quality: {name}")
        trace = log.read()
        found[name] = measure(trace.first(QUICK_JOBS) if quick else trace, log.nodes)
    verdicts = [each["ratio"]["met"] for log in found.values() for each in log.values()]
    return {
        "quality": {
            **found,
            "target": f"each log, each telling: mean wait ≤ {WAIT_MAX} × EASY's, no size class of {CLASS_RUNS_MIN} runs or more "
            f"over {CLASS_MAX} ×, utilisation not lower",
            "met": quick or all(verdicts),
        }
    }


def _main(arguments: list[str]) -> Figures:
    """Any SWF log, or those at hand."""
    if not arguments or arguments == ["--quick"]:
        return run(quick=bool(arguments))
    path, *nodes = arguments
    return measure(read_trace(Path(path), "swf"), nodes[0] if nodes else "auto:0.9")


if __name__ == "__main__":
    calm_collector()
    print(json.dumps(_main(sys.argv[1:]), indent=2, ensure_ascii=False))
