"""The report of a replay: waits, slowdown, utilisation, backfill and preemptions, as one object with the names of the API.

What the figures mean:

    wait          from asking to the first start; runs that never started are counted apart
    slowdown      bounded slowdown: (end - asked) / max(time on the machine, 10 minutes), at least 1; 10 minutes, so that a run of
                  seconds that waited a minute does not drown all others
    utilisation   GPU-time in use ÷ GPU-time there was, from the first to the last asking (behind that the cluster only drains),
                  and over the whole replay
    backfill      runs that started while one that asked before them waited on; and how many of them passed one that waited for
                  room, not for money
    preemptions   attempts that were cut and asked for again; what they had done is lost; the share is that of all
                  GPU-time used
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fairlease.engine.forecast.calibration import calibrate
from fairlease.model.amount import HOUR, MINUTE, SECOND, format_instant
from fairlease.reason import Reason
from fairlease.replay.trace import LARGE_GPUS

if TYPE_CHECKING:
    from fairlease.replay.play import TracePlay
    from fairlease.replay.recorder import Bucket, RunSeen

View = dict[str, Any]

BOUND = 10 * MINUTE
"""Work shorter than this counts as this long in a slowdown."""

THRASHING = 0.1
"""From this share of GPU-time lost to cuts on, the report says plainly that the policy eats its own work."""

SIZES = ((1, "1 GPU"), (8, "2 to 8 GPUs"), (LARGE_GPUS, f"9 to {LARGE_GPUS} GPUs"))
LARGE = f"over {LARGE_GPUS} GPUs"


def report(play: TracePlay) -> View:
    """Everything that a replay showed."""
    watch, trace, plan = play.watch, play.trace, play.stage.plan
    seen = list(watch.runs.values())
    told: View = {
        "trace": {
            "file": trace.source,
            "format": trace.form,
            "jobs": len(trace.jobs),
            "leftOut": trace.left_out,
            "from": format_instant(trace.begin),
            "to": format_instant(trace.end),
            "end": format_instant(watch.now),
        },
        "cluster": {
            "nodes": plan.nodes,
            "gpus": plan.gpus,
            "load": round(play.stage.asker.demand(trace) / plan.gpus, 4),
        },
        "runs": _outcomes(seen),
        "utilisation": _utilisation(play),
        "waits": figures(seen),
        "owners": _by(seen, lambda run: run.owner, sorted({run.owner for run in seen})),
        "sizes": _by(seen, size_of, [*(name for _, name in SIZES), LARGE]),
        "queue": _queue(play),
        "backfill": _backfill(seen),
        "preemptions": _preemptions(seen, watch.preemptions),
        "head": {"seq": play.scheduler.head.seq, "hash": play.scheduler.head.hash},
    }
    if play.stuck:
        told["stopped"] = (
            f"given up at {format_instant(watch.now)}: in the last {watch.cuts_since_end:,} cuts no run ended; "
            "runs that last longer than they are left in peace displace one another for ever"
        )
    if play.calibration.samples:
        told["forecast"] = calibrate(play.calibration.samples)
    return told


def size_of(run: RunSeen) -> str:
    """The class of a run's width, in words."""
    return next((name for most, name in SIZES if run.gpus <= most), LARGE)


def figures(runs: Sequence[RunSeen]) -> View:
    """How runs fared: how long they waited, how much slower than alone they were done, what they used."""
    started = [run for run in runs if run.started is not None]
    waits = sorted(run.wait for run in started)
    slow = sorted(slowdown(run) for run in started if run.ended is not None)
    return {
        "runs": len(runs),
        "neverStarted": len(runs) - len(started),
        "gpuHours": round(sum(run.used for run in runs) / HOUR, 3),
        "waitSeconds": {name: None if each is None else round(each / SECOND) for name, each in _spread(waits).items()},
        "atOnce": round(sum(wait == 0 for wait in waits) / len(waits), 4) if waits else None,
        "slowdown": {name: None if each is None else round(each, 3) for name, each in _spread(slow).items()},
        "preemptions": sum(run.cuts for run in runs),
        "gpuHoursLost": round(sum(run.lost for run in runs) / HOUR, 3),
    }


def _spread(ordered: Sequence[float]) -> dict[str, float | None]:
    """Mean and quantiles; of nobody there are none, and 0 would look like praise."""
    if not ordered:
        return dict.fromkeys(("mean", "median", "p95", "max"))
    return {
        "mean": mean(ordered),
        "median": quantile(ordered, 0.5),
        "p95": quantile(ordered, 0.95),
        "max": ordered[-1],
    }


def slowdown(run: RunSeen) -> float:
    """Bounded slowdown of a run that is over, by its last attempt."""
    assert run.ended is not None, "what is not over has no slowdown yet"
    assert run.last_started is not None, "what never started has none either"
    return max(1.0, (run.ended - run.asked) / max(run.ended - run.last_started, BOUND))


def compare(before: View, after: View) -> View:
    """Two reports of one trace side by side: what it was, what it is, and the difference."""
    if before["trace"] != after["trace"] | {"end": before["trace"]["end"]}:
        raise ValueError("two reports can be compared only where they are of the same jobs")
    looked_at: dict[str, Callable[[View], float | None]] = {
        "waitMeanSeconds": lambda told: _mean_wait(told["waits"]),
        "waitMeanSecondsLarge": lambda told: _mean_wait(told["sizes"].get(LARGE)),
        "waitP95Seconds": lambda told: _figure(told["waits"]["waitSeconds"]["p95"]),
        "slowdownMean": lambda told: _figure(told["waits"]["slowdown"]["mean"]),
        "utilisation": lambda told: float(told["utilisation"]["whileAsked"]),
        "utilisationWhole": lambda told: float(told["utilisation"]["whole"]),
        "backfillShare": lambda told: float(told["backfill"]["share"]),
        "preemptions": lambda told: float(told["preemptions"]["total"]),
        "gpuHoursLost": lambda told: float(told["preemptions"]["gpuHoursLost"]),
        "lostShare": lambda told: float(told["preemptions"]["lostShare"]),
        "neverStarted": lambda told: float(told["waits"]["neverStarted"]),
        "notEnded": lambda told: float(sum(told["runs"]["waiting"].values())),
    }
    return {name: _pair(read(before), read(after)) for name, read in looked_at.items()}


def _pair(before: float | None, after: float | None) -> View:
    change = None if before is None or after is None else round(after - before, 4)
    return {"before": before, "after": after, "change": change}


def _mean_wait(row: View | None) -> float | None:
    return None if row is None else _figure(row["waitSeconds"]["mean"])


def _figure(value: float | None) -> float | None:
    return None if value is None else float(value)


def series(play: TracePlay) -> View:
    """How it went over time, in equal stretches: the share of GPUs in use, and how many runs and GPUs waited, on average."""
    watch, gpus = play.watch, play.stage.plan.gpus
    width = watch.step
    return {
        "from": format_instant(watch.begin),
        "stepSeconds": width // SECOND,
        "utilisation": [round(bucket.busy / (gpus * width), 4) for bucket in watch.buckets],
        "waitingRuns": [round(bucket.waiting_runs / width, 2) for bucket in watch.buckets],
        "waitingGPUs": [round(bucket.waiting_gpus / width, 2) for bucket in watch.buckets],
    }


def _outcomes(runs: Iterable[RunSeen]) -> View:
    ended: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for run in runs:
        reason = "Running" if run.width else run.reason.value
        (waiting if run.ended is None else ended)[reason] += 1
    return {"asked": ended.total() + waiting.total(), "ended": dict(sorted(ended.items())), "waiting": dict(waiting)}


def _utilisation(play: TracePlay) -> View:
    watch, trace, gpus = play.watch, play.trace, play.stage.plan.gpus
    thin, asked, whole = (
        (span, _busy(watch.buckets, span, watch.step))
        for span in (trace.earnest - watch.begin, trace.end - watch.begin, watch.now - watch.begin)
    )
    return {
        "whileAsked": round((asked[1] - thin[1]) / (max(1, asked[0] - thin[0]) * gpus), 4),
        "whole": round(whole[1] / (max(1, whole[0]) * gpus), 4),
    }


def _busy(buckets: Sequence[Bucket], span: int, step: int) -> float:
    """GPU-time in use over the first `span`; the last bucket counts with the share of it that lies inside."""
    whole, rest = divmod(span, step)
    busy = float(sum(bucket.busy for bucket in buckets[:whole]))
    if rest and whole < len(buckets):
        busy += buckets[whole].busy * rest / step
    return busy


def _queue(play: TracePlay) -> View:
    watch = play.watch
    span = max(1, watch.now - watch.begin)
    return {
        "runsMean": round(sum(bucket.waiting_runs for bucket in watch.buckets) / span, 2),
        "runsMax": watch.waiting_runs_max,
        "gpusMean": round(sum(bucket.waiting_gpus for bucket in watch.buckets) / span, 2),
    }


def _backfill(runs: Iterable[RunSeen]) -> View:
    started = [run for run in runs if run.started is not None]
    count = max(1, len(started))
    passed, room = sum(run.backfilled for run in started), sum(run.passed_room for run in started)
    return {
        "runs": passed,
        "share": round(passed / count, 4),
        "pastRoom": room,
        "sharePastRoom": round(room / count, 4),
    }


def _preemptions(runs: Sequence[RunSeen], reasons: Counter[Reason]) -> View:
    lost, used = (sum(getattr(run, kind) for run in runs) for kind in ("lost", "used"))
    return {
        "total": reasons.total(),
        "byReason": {reason.value: count for reason, count in sorted(reasons.items(), key=_by_name)},
        "runs": sum(run.cuts > 0 for run in runs),
        "mostOfOneRun": max((run.cuts for run in runs), default=0),
        "gpuHoursLost": round(lost / HOUR, 3),
        "lostShare": round(lost / max(1, used), 4),
    }


def thrashing(told: View) -> str:
    """What cuts cost where they cost much, in words; nothing where they do not."""
    cuts = told["preemptions"]
    if cuts["lostShare"] < THRASHING:
        return ""
    runs, most = cuts["runs"], cuts["mostOfOneRun"]
    who = "1 run was" if runs == 1 else f"{runs:,} runs were"
    again = "once" if most == 1 else f"{most:,} times" if runs == 1 else f"one of them {most:,} times"
    drawn = Reason.RandomPreempt.value in cuts["byReason"]
    advice = "; notice=never cuts no funded work, a longer minRuntime cuts less" if drawn else ""
    return (
        f"{cuts['lostShare']:.0%} of the GPU-hours used were lost to cuts: {who} cut, {again}, and whatever is cut begins anew, "
        f"because traces tell of no checkpoints{advice}"
    )


def _by(runs: Iterable[RunSeen], kind: Callable[[RunSeen], str], names: Sequence[str]) -> dict[str, View]:
    groups: dict[str, list[RunSeen]] = {name: [] for name in names}
    for run in runs:
        groups[kind(run)].append(run)
    return {name: figures(group) for name, group in groups.items() if group}


def mean(values: Sequence[float]) -> float:
    """The mean of some values."""
    return sum(values) / len(values)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _by_name(item: tuple[Any, int]) -> str:
    return str(item[0].value)
