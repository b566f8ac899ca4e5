"""The pictures of a replay's page.

Each says in a sentence what it shows, for those who hear it; where there is nothing to draw, that is said instead.
"""

from __future__ import annotations

from bisect import bisect_right
from html import escape
from typing import TYPE_CHECKING, Any

from fairlease.model.amount import MINUTE, SECOND, format_instant
from fairlease.replay.chart import DASHES, HEIGHT, Axis, Chart, Curve, counts, dates, length, levels, spans
from fairlease.replay.report import mean, quantile
from fairlease.replay.trace import LARGE_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlease.replay.play import TracePlay
    from fairlease.replay.recorder import Bucket

View = dict[str, Any]

CURVES_MAX = 7
"""Owners with a line of their own, the largest first; one line more is for all."""
DOTS_MAX = 3_000
_CDF_POINTS = 160
_SHORT = 240
_HEADROOM = 1.15
"""Room above the highest value, in which the mark is named."""
_SHARES = [(share / 4, f"{share * 25}%") for share in range(5)]
_MARK = "last asking"
_WHEN = "time, in UTC"


def waits(play: TracePlay, told: View) -> str:
    """Which share of each owner's runs had started after how long."""
    by_owner: dict[str, list[int]] = {}
    for run in play.watch.runs.values():
        if run.started is not None:
            by_owner.setdefault(run.owner, []).append(run.wait)
    if not by_owner:
        return nothing("No run started.")
    largest = sorted(by_owner, key=lambda owner: (-told["owners"][owner]["gpuHours"], owner))[:CURVES_MAX]
    groups = {"all runs": sorted(wait for each in by_owner.values() for wait in each)}
    groups |= {owner: sorted(by_owner[owner]) for owner in largest}
    everybody = groups["all runs"]
    if not everybody[-1]:
        return nothing("Every run that started did so at once.")
    half, most, longest = (_said(quantile(everybody, share)) for share in (0.5, 0.95, 1))
    said = f"Half of all runs had started after {half}, 95% of them after {most}, the last after {longest}."
    chart = Chart("waits", "Share of runs started, by wait", said)
    across = chart.across(SECOND, max(everybody[-1], 10 * MINUTE), log=True)
    curves = {name: _cdf(each, across.low, across.high) for name, each in groups.items()}
    upward = chart.upward(1.0, _floor(min(points[0][1] for points in curves.values())))
    chart.grid(across, spans(across.high), upward, _rungs(upward.low))
    chart.name_axes("wait", "share of runs")
    for colour, (name, points) in enumerate(curves.items()):
        chart.curve(across, upward, Curve(name, points), colour)
    others = len(by_owner) - len(largest)
    more = f"{counts(others, 'smaller owner')} without a line." if others else ""
    return chart.svg() + _legend(groups) + (f'<p class="said">{more}</p>' if more else "")


def _floor(lowest: float) -> float:
    """Where the axis begins: at nothing, unless all that happens happens near the top."""
    return next((floor for floor in (0.9, 0.75, 0.5) if lowest >= floor), 0.0)


def _rungs(low: float) -> list[tuple[float, str]]:
    """Four even steps from where the axis begins to all of them."""
    return [(low + (1 - low) * part / 4, f"{100 * (low + (1 - low) * part / 4):.4g}%") for part in range(5)]


def _cdf(ordered: Sequence[int], low: float, high: float) -> list[tuple[float, float]]:
    """Points of a cumulative share, evenly spread over an axis by powers."""
    ratio = (high / low) ** (1 / _CDF_POINTS)
    places = [low * ratio**number for number in range(_CDF_POINTS + 1)]
    return [(place, bisect_right(ordered, place * 1.000001) / len(ordered)) for place in places]


def _legend(names: Iterable[str]) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 30 8" aria-hidden="true"><path class="line c{colour}" stroke-dasharray="{DASHES[colour]}" '
        f'd="M0 4 L30 4"/></svg>{escape(name)}</li>'
        for colour, name in enumerate(names)
    )
    return f'<ul class="legend">{keys}</ul>'


def busy(play: TracePlay, told: View) -> str:
    """Which share of the GPUs was in use, over time."""
    watch, whole = play.watch, play.stage.plan.gpus * play.watch.step
    shares = [bucket.busy / whole for bucket in _full(watch.buckets)]
    if not shares:
        return nothing("The replay took no time.")
    average = told["utilisation"]["whileAsked"]
    said = f"Between {min(shares):.0%} and {max(shares):.0%}; {average:.1%} on average until the last asking."
    chart = Chart("busy", "GPUs in use over time", said, _SHORT)
    across, upward = _over_time(play, chart), chart.upward(_HEADROOM)
    chart.grid(across, dates(watch.begin, watch.now), upward, _SHARES)
    chart.name_axes(_WHEN, "share of GPUs")
    chart.area(across, upward, _points(play, shares), 1)
    chart.mark(across, play.trace.end, _MARK)
    return chart.svg()


def queue(play: TracePlay, told: View) -> str:
    """How many runs waited, over time."""
    watch = play.watch
    depth = [bucket.waiting_runs / watch.step for bucket in _full(watch.buckets)]
    if not depth:
        return nothing("The replay took no time.")
    if not watch.waiting_runs_max or not any(depth):
        return nothing("No run ever waited.")
    said = f"At most {counts(watch.waiting_runs_max, 'run')} waited at once, {told['queue']['runsMean']:,} on average."
    chart = Chart("queue", "Runs that waited over time", said, _SHORT)
    high = max(1.0, *depth)
    across, upward = _over_time(play, chart), chart.upward(high * _HEADROOM)
    chart.grid(across, dates(watch.begin, watch.now), upward, levels(high, lambda value: f"{value:,.0f}", least=1))
    chart.name_axes(_WHEN, "runs")
    chart.area(across, upward, _points(play, depth), 2)
    chart.mark(across, play.trace.end, _MARK)
    return chart.svg() + f'<p class="said">{escape(said)}</p>'


def large(play: TracePlay) -> str:
    """When each large run asked, and how long it waited."""
    asked = [run for run in play.watch.runs.values() if run.gpus > LARGE_GPUS]
    runs = [run for run in asked if run.started is not None]
    if not asked:
        return nothing(f"No run in this trace asked for more than {LARGE_GPUS} GPUs.")
    if not runs:
        return nothing(f"None of the {counts(len(asked), 'run')} over {LARGE_GPUS} GPUs started.")
    runs = sorted(runs, key=lambda run: -run.wait)[:DOTS_MAX]
    longest = max(runs[0].wait, 10 * MINUTE)
    average = length(mean([run.wait for run in runs]) / SECOND)
    said = f"{counts(len(runs), 'run')} waited {average} on average, {_said(runs[0].wait)} at most."
    chart = Chart("large", f"Waits of runs over {LARGE_GPUS} GPUs", said, HEIGHT)
    end = max(run.asked for run in runs)
    across = chart.across(play.watch.begin, max(end, play.trace.end, play.watch.begin + 1))
    upward = chart.upward(longest * 1.3, SECOND, log=True)
    chart.grid(across, dates(play.watch.begin, int(across.high)), upward, [(SECOND, "none"), *spans(longest)[1:]])
    chart.name_axes(f"asked, {_WHEN}", "wait")
    for run in runs:
        dot = f"{run.owner}, {run.gpus} GPUs, {format_instant(run.asked)}: waited {_said(run.wait)}"
        chart.dot(across.at(run.asked), upward.at(max(run.wait, SECOND)), dot, 3)
    return chart.svg() + f'<p class="said">{escape(said)} Those at the bottom started at once.</p>'


def nothing(told: str) -> str:
    """A frame for a sentence, where a picture would show nothing."""
    return f'<p class="none">{escape(told)}</p>'


def _over_time(play: TracePlay, chart: Chart) -> Axis:
    return chart.across(play.watch.begin, max(play.watch.now, play.watch.begin + 1))


def _points(play: TracePlay, values: Sequence[float]) -> list[tuple[float, float]]:
    """A value for each stretch of time, in its middle; the first and the last reach to the ends."""
    watch = play.watch
    points = [(watch.begin + (number + 0.5) * watch.step, value) for number, value in enumerate(values)]
    return [
        (float(watch.begin), values[0]),
        *points,
        (float(min(watch.now, points[-1][0] + watch.step / 2)), values[-1]),
    ]


def _full(buckets: Sequence[Bucket]) -> Sequence[Bucket]:
    """All stretches of time but the last, which is not over; unless it is the only one."""
    return buckets[:-1] if len(buckets) > 1 else buckets


def _said(milliseconds: float) -> str:
    return length(milliseconds / SECOND)
