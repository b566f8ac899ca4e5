"""The report of a replay as one HTML page that needs nothing else: figures, pictures, and the tables behind them."""

from __future__ import annotations

from bisect import bisect_right
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fairlease.model.amount import MINUTE, SECOND, format_instant
from fairlease.sim.chart import DASHES, HEIGHT, Chart, Curve, dates, levels, spans
from fairlease.sim.page_style import STYLE
from fairlease.sim.trace import LARGE_GPUS
from fairlease.sim.trace_report import LARGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlease.sim.trace_play import TracePlay
    from fairlease.sim.trace_watch import Bucket

View = dict[str, Any]

CURVES_MAX = 7
"""Owners with a line of their own, the largest first; one line more is for all."""
DOTS_MAX = 3_000
_CDF_POINTS = 160
_SHORT = 240


def page(play: TracePlay, told: View, settings: dict[str, str]) -> str:
    """The whole page; `settings` are the words of the command line that made it."""
    name = PurePath(play.trace.source).name
    sections = [
        _tiles(told),
        _section("How long runs waited", _waits(play, told), "Share of runs that had started after so long, by owner."),
        _section("How busy the GPUs were", _busy(play), "GPUs in use, as a share of all there are."),
        _section("How long the queue was", _queue(play), "Runs that waited, on average over each stretch of time."),
        _section(
            f"Runs over {LARGE_GPUS} GPUs",
            _large(play, told),
            "Each dot is a run: when it asked, and how long it waited.",
        ),
        _section("By owner", _table("Owner", told["owners"]), ""),
        _section("By size", _table("Size", told["sizes"]), ""),
    ]
    if "forecast" in told:
        sections.append(_section("Whether forecasts kept their word", _calibration(told["forecast"]), ""))
    sections.append(_section("What the figures mean", _MEANING, ""))
    facts = {"Jobs": f"{told['trace']['jobs']:,}", "From": told["trace"]["from"], "To": told["trace"]["to"]}
    facts |= {"Cluster": f"{told['cluster']['nodes']:,} nodes, {told['cluster']['gpus']:,} GPUs"}
    facts |= {"Load": f"{told['cluster']['load']:.2f}", **settings}
    listed = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in facts.items())
    head = told["head"]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><meta name="color-scheme" content="light dark"/>'
        f"<title>Replay of {escape(name)}</title><style>{STYLE}</style></head><body><main>"
        f'<header><p class="kicker">fairlease · replay of a trace</p><h1>{escape(name)}</h1>'
        f'<dl class="facts">{listed}</dl></header>'
        + "".join(sections)
        + f"<footer>Ledger head {head['seq']:,}, <code>{head['hash']}</code>: the same trace and settings give the same, always."
        "</footer></main></body></html>\n"
    )


def _section(title: str, body: str, told: str) -> str:
    said = f'<p class="said">{escape(told)}</p>' if told else ""
    return f"<section><h2>{escape(title)}</h2>{said}{body}</section>"


def _tiles(told: View) -> str:
    wait, slow = told["waits"]["waitSeconds"], told["waits"]["slowdown"]
    tiles = [
        (
            "Utilisation",
            f"{told['utilisation']['whileAsked']:.1%}",
            f"{told['utilisation']['whole']:.1%} with the drain",
        ),
        ("Mean wait", _span(wait["mean"]), f"median {_span(wait['median'])}, P95 {_span(wait['p95'])}"),
        ("Started at once", f"{told['waits']['atOnce']:.1%}", f"of {told['waits']['runs']:,} runs"),
        ("Bounded slowdown", f"{slow['mean']:.2f}", f"median {slow['median']:.2f}, P95 {slow['p95']:.2f}"),
        (
            "Backfill",
            f"{told['backfill']['share']:.1%}",
            f"{told['backfill']['sharePastRoom']:.1%} past one that waits for room",
        ),
        (
            "Preemptions",
            f"{told['preemptions']['total']:,}",
            f"{told['preemptions']['gpuHoursLost']:,.0f} GPU-hours lost",
        ),
    ]
    if large := told["sizes"].get(LARGE):
        tiles.append((f"Mean wait over {LARGE_GPUS}", _span(large["waitSeconds"]["mean"]), f"{large['runs']:,} runs"))
    if told["waits"]["neverStarted"]:
        causes = ", ".join(f"{count:,} {reason}" for reason, count in told["runs"]["waiting"].items())
        tiles.append(("Never started", f"{told['waits']['neverStarted']:,}", causes))
    cells = "".join(
        f'<div class="tile"><h3>{escape(name)}</h3><p class="big">{escape(value)}</p><p>{escape(more)}</p></div>'
        for name, value, more in tiles
    )
    return f'<div class="tiles">{cells}</div>'


# --- pictures ----------------------------------------------------------------------------------------------------------


def _waits(play: TracePlay, told: View) -> str:
    by_owner: dict[str, list[int]] = {}
    for run in play.watch.runs.values():
        if run.started is not None:
            by_owner.setdefault(run.owner, []).append(run.wait)
    largest = sorted(by_owner, key=lambda owner: (-told["owners"][owner]["gpuHours"], owner))[:CURVES_MAX]
    groups = {"all runs": [wait for waits in by_owner.values() for wait in waits]}
    groups |= {owner: by_owner[owner] for owner in largest}
    longest = max((max(waits) for waits in groups.values() if waits), default=0)
    chart = Chart("waits", "Share of runs started, by wait", f"The longest wait was {_span(longest // SECOND)}.")
    across, upward = chart.across(SECOND, max(longest, 10 * MINUTE), log=True), chart.upward(1.0)
    chart.grid(across, spans(across.high), upward, [(share / 4, f"{share * 25}%") for share in range(5)])
    for colour, (owner, waits) in enumerate(groups.items()):
        chart.curve(across, upward, Curve(owner, _cdf(sorted(waits), across.low, across.high)), colour)
    others = len(by_owner) - len(largest)
    more = f'<p class="said">{others} smaller owners have no line of their own.</p>' if others else ""
    return chart.svg() + _legend(groups) + more


def _cdf(ordered: Sequence[int], low: float, high: float) -> list[tuple[float, float]]:
    """Points of a cumulative share, evenly spread over an axis by powers."""
    ratio = (high / low) ** (1 / _CDF_POINTS)
    places = [low * ratio**number for number in range(_CDF_POINTS + 1)]
    return [(place, bisect_right(ordered, place * 1.000001) / max(1, len(ordered))) for place in places]


def _legend(names: Iterable[str]) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 30 8" aria-hidden="true"><path class="line c{colour}" stroke-dasharray="{DASHES[colour]}" '
        f'd="M0 4 L30 4"/></svg>{escape(name)}</li>'
        for colour, name in enumerate(names)
    )
    return f'<ul class="legend">{keys}</ul>'


def _over_time(play: TracePlay, name: str, title: str, told: str) -> tuple[Chart, Any]:
    chart = Chart(name, title, told, _SHORT)
    return chart, chart.across(play.watch.begin, max(play.watch.now, play.watch.begin + 1))


def _points(play: TracePlay, values: Iterable[float]) -> list[tuple[float, float]]:
    watch = play.watch
    return [(watch.begin + (number + 0.5) * watch.step, value) for number, value in enumerate(values)]


def _busy(play: TracePlay) -> str:
    watch, gpus = play.watch, play.stage.plan.gpus
    whole = gpus * watch.step
    chart, across = _over_time(play, "busy", "GPUs in use over time", "Share of all GPUs that were in use, over time.")
    upward = chart.upward(1.12)
    chart.grid(across, dates(watch.begin, watch.now), upward, [(share / 4, f"{share * 25}%") for share in range(5)])
    chart.area(across, upward, _points(play, (bucket.busy / whole for bucket in _full(watch.buckets))), 1)
    chart.mark(across, play.trace.end, "last asking")
    return chart.svg()


def _queue(play: TracePlay) -> str:
    watch = play.watch
    depth = [bucket.waiting_runs / watch.step for bucket in _full(watch.buckets)]
    high = max([1.0, *depth])
    most = f"At most {watch.waiting_runs_max} runs waited at once."
    chart, across = _over_time(play, "queue", "Runs that waited over time", most)
    upward = chart.upward(high * 1.05)
    chart.grid(across, dates(watch.begin, watch.now), upward, levels(high, lambda value: f"{value:,.4g}"))
    chart.area(across, upward, _points(play, depth), 2)
    chart.mark(across, play.trace.end, "last asking")
    return chart.svg() + f'<p class="said">{escape(most)}</p>'


def _full(buckets: Sequence[Bucket]) -> Sequence[Bucket]:
    """All stretches of time but the last, which is not over; unless it is the only one."""
    return buckets[:-1] if len(buckets) > 1 else buckets


def _large(play: TracePlay, told: View) -> str:
    runs = [run for run in play.watch.runs.values() if run.gpus > LARGE_GPUS and run.started is not None]
    if not runs:
        return f'<p class="none">No run in this trace asked for more than {LARGE_GPUS} GPUs.</p>'
    runs = sorted(runs, key=lambda run: -run.wait)[:DOTS_MAX]
    longest = max(runs[0].wait, 10 * MINUTE)
    told_all = f"{told['sizes'][LARGE]['runs']} runs; the longest wait was {_span(runs[0].wait // SECOND)}."
    chart = Chart("large", f"Waits of runs over {LARGE_GPUS} GPUs", told_all, HEIGHT)
    end = max(run.asked for run in runs)
    across = chart.across(play.watch.begin, max(end, play.trace.end, play.watch.begin + 1))
    upward = chart.upward(longest, SECOND, log=True)
    chart.grid(across, dates(play.watch.begin, int(across.high)), upward, spans(longest))
    for run in runs:
        said = f"{run.owner}, {run.gpus} GPUs, {format_instant(run.asked)}: waited {_span(run.wait // SECOND)}"
        chart.dot(across.at(run.asked), upward.at(max(run.wait, SECOND)), said, 3)
    return chart.svg() + f'<p class="said">{escape(told_all)} Those at the bottom started at once.</p>'


# --- tables ------------------------------------------------------------------------------------------------------------

_HEADINGS = ("Runs", "GPU-hours", "At once", "Mean wait", "Median", "P95", "Slowdown", "Preempted", "Never started")


def _table(first: str, rows: dict[str, View]) -> str:
    body = [(name, *_cells(row)) for name, row in rows.items()]
    return table((first, *_HEADINGS), body)


def _cells(row: View) -> tuple[str, ...]:
    waits = tuple(_span(row["waitSeconds"][name]) for name in ("mean", "median", "p95"))
    head = (f"{row['runs']:,}", f"{row['gpuHours']:,.0f}", f"{row['atOnce']:.1%}")
    return (*head, *waits, f"{row['slowdown']['mean']:.2f}", f"{row['preemptions']:,}", f"{row['neverStarted']:,}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows; it scrolls by itself where the page is narrow."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _calibration(told: View) -> str:
    headings = ("", "Forecasts", "Inside P10–P90 (80%)", "Before P50 (50%)", "Before P90 (90%)", "Mean error")
    rows = [("all", told), *told["horizons"].items(), *told["owners"].items()]
    return table(headings, [(name, *_kept(row)) for name, row in rows])


def _kept(row: View) -> tuple[str, ...]:
    shares = (f"{row[name]:.1%}" for name in ("insideP10P90", "beforeP50", "beforeP90"))
    return (f"{row['forecasts']:,}", *shares, _span(row["meanAbsoluteErrorSeconds"]))


_MEANING = (
    "<dl><dt>Wait</dt><dd>From asking to the first start. Runs that never started are counted apart.</dd>"
    "<dt>Slowdown</dt><dd>Bounded slowdown: (end − asked) ÷ the larger of the time on the machine and 10 minutes, at least 1.</dd>"
    "<dt>Utilisation</dt><dd>GPU-time in use ÷ GPU-time there was, from the first to the last asking.</dd>"
    "<dt>Backfill</dt><dd>Share of runs that started while one that had asked before them waited on.</dd>"
    "<dt>Preemption</dt><dd>An attempt that was cut and asked for again; what it had done is lost.</dd></dl>"
)


def _span(seconds: float) -> str:
    """A length of time with two units at most."""
    left, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
