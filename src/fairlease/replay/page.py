"""The report of a replay as one HTML page that needs nothing else: figures, SVG charts drawn here, and the tables behind them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.model.amount import DAY, HOUR, MINUTE, SECOND, format_instant
from fairlease.replay.report import LARGE, mean, quantile, thrashing
from fairlease.replay.trace import LARGE_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlease.replay.play import TracePlay
    from fairlease.replay.recorder import Bucket


WIDTH, HEIGHT = 880, 300
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 30, 56
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "3 6", "14 4", "6 2 1 2 1 2")

_LETTER = 10
"""How wide a letter of a tick is, at most."""

Tick = tuple[float, str]


class Axis(NamedTuple):
    """From values to places; `start` and `stop` are pixels."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value stands; one beyond the end stands at the end."""
        low, high, value = (self._scaled(each) for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.0
        return round(self.start + (self.stop - self.start) * min(1.0, max(0.0, share)), 1)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.log else value


class Curve(NamedTuple):
    """A named line of points."""

    name: str
    points: Sequence[tuple[float, float]]


class Chart:
    """One picture: a frame with two axes, into which things are drawn."""

    def __init__(self, name: str, title: str, told: str, height: int = HEIGHT) -> None:
        self.name = name
        self.title = title
        self.told = told
        self.height = height
        self.parts: list[str] = []

    def across(self, low: float, high: float, *, log: bool = False) -> Axis:
        """The axis along the bottom."""
        return Axis(low, high, LEFT, WIDTH - RIGHT, log)

    def upward(self, high: float, low: float = 0.0, *, log: bool = False) -> Axis:
        """The axis along the side."""
        return Axis(low, high, self.height - BOTTOM, TOP, log)

    def grid(self, across: Axis, ticks: Sequence[Tick], upward: Axis, levels: Sequence[Tick]) -> None:
        """Thin lines and what they stand for."""
        floor = self.height - BOTTOM
        for value, label in levels:
            y = upward.at(value)
            self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            self.parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        for value, label in ticks:
            x = across.at(value)
            self.parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{floor}" y2="{floor + 5}"/>')
            anchor = _anchor(x, label)
            self.parts.append(
                f'<text class="tick" x="{x}" y="{floor + 20}" text-anchor="{anchor}">{escape(label)}</text>'
            )

    def name_axes(self, across: str, upward: str) -> None:
        """What is told along the bottom, and along the side; in words, because a tick alone does not say."""
        self.parts.append(f'<text class="axis" x="12" y="{TOP - 12}">{escape(upward)}</text>')
        x, y = WIDTH - RIGHT, self.height - 12
        self.parts.append(f'<text class="axis" x="{x}" y="{y}" text-anchor="end">{escape(across)}</text>')

    def area(self, across: Axis, upward: Axis, points: Sequence[tuple[float, float]], colour: int) -> None:
        """A line with what lies below it filled."""
        if not points:
            return
        floor = self.height - BOTTOM
        path = _path(across, upward, points)
        first, last = across.at(points[0][0]), across.at(points[-1][0])
        self.parts.append(f'<path class="area c{colour}" d="M{first} {floor} L{path[1:]} L{last} {floor} Z"/>')
        self.parts.append(f'<path class="line c{colour}" fill="none" d="{path}"/>')

    def curve(self, across: Axis, upward: Axis, curve: Curve, colour: int) -> None:
        """A line; the pointer over it shows its name."""
        dash = f' stroke-dasharray="{DASHES[colour]}"' if DASHES[colour] else ""
        path = _path(across, upward, curve.points)
        self.parts.append(
            f'<path class="line c{colour}" fill="none"{dash} d="{path}"><title>{escape(curve.name)}</title></path>'
        )

    def dot(self, x: float, y: float, told: str, colour: int) -> None:
        """One point; the pointer over it shows what it is."""
        self.parts.append(
            f'<circle class="dot c{colour}" cx="{x}" cy="{y}" r="3.5"><title>{escape(told)}</title></circle>'
        )

    def mark(self, across: Axis, value: float, label: str) -> None:
        """An upright line at a moment that matters."""
        x = across.at(value)
        self.parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{self.height - BOTTOM}"/>')
        end = "end" if x > WIDTH / 2 else "start"
        shift = -6 if end == "end" else 6
        self.parts.append(
            f'<text class="tick" x="{x + shift}" y="{TOP + 12}" text-anchor="{end}">{escape(label)}</text>'
        )

    def svg(self) -> str:
        """The whole of it."""
        head = (
            f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-labelledby="{self.name}-t" aria-describedby="{self.name}-d">'
            f'<title id="{self.name}-t">{escape(self.title)}</title><desc id="{self.name}-d">{escape(self.told)}</desc>'
        )
        around = f'<div class="plot" role="group" aria-label="{escape(self.title)}" tabindex="0">'
        return around + head + "".join(self.parts) + "</svg></div>"


def _anchor(x: float, label: str) -> str:
    """Text stands in the middle of its place, unless it would be cut at the edge of the picture."""
    half = len(label) * _LETTER / 2
    return "end" if x + half > WIDTH else "start" if x < half else "middle"


def _path(across: Axis, upward: Axis, points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{across.at(x)} {upward.at(y)}" for x, y in points)


# --- scales ------------------------------------------------------------------------------------------------------------


def levels(high: float, shown: Callable[[float], str], least: float = 0) -> list[Tick]:
    """Four to six round values up to `high`, fewer where they would be closer than `least`."""
    if high <= 0:
        return [(0.0, shown(0.0))]
    raw = high / 5
    power = 10 ** math.floor(math.log10(raw))
    step = max(least, next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw))
    return [(step * number, shown(step * number)) for number in range(int(high / step + 1e-9) + 1)]


_SPANS = (
    (SECOND, "1s"), (10 * SECOND, "10s"), (MINUTE, "1m"), (10 * MINUTE, "10m"), (HOUR, "1h"), (6 * HOUR, "6h"), (DAY, "1d"),
    (7 * DAY, "1w"), (30 * DAY, "30d"), (365 * DAY, "1y"),
)  # fmt: skip


def spans(high: float) -> list[Tick]:
    """Round lengths of time up to `high`, for an axis by powers."""
    return [(value, label) for value, label in _SPANS if value <= high * 1.0001]


_SEASON = 91 * DAY
_STEPS = (
    MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, _SEASON,
    365 * DAY, 3_650 * DAY,
)  # fmt: skip


def dates(low: int, high: int) -> list[Tick]:
    """Round moments between two, with the hour where they are close, the year where they are far apart; as many as have room."""
    step = next((each for each in _STEPS if (high - low) / each <= (7 if each < DAY else 9)), _STEPS[-1])
    form = "%d %b %H:%M" if step < DAY else "%d %b" if step < _SEASON else "%b %Y"
    first = -(-low // step) * step
    return [
        (at, datetime.fromtimestamp(at / SECOND, UTC).strftime(form).lstrip("0")) for at in range(first, high + 1, step)
    ]


# --- words -------------------------------------------------------------------------------------------------------------


def length(seconds: float) -> str:
    """A length of time with two units at most."""
    left, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def counts(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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


STYLE = """
:root{--bg:#fbfbfa;--ink:#1c1e21;--soft:#5d646d;--line:#dfe2e6;--card:#fff;
--c0:#1c1e21;--c1:#0067a8;--c2:#b8500a;--c3:#8a3ffc;--c4:#007d5c;--c5:#b0357e;--c6:#8a6500;--c7:#4d5b6b}
@media screen and (prefers-color-scheme:dark){:root{--bg:#121417;--ink:#e8eaed;--soft:#9aa3ad;--line:#2b3036;--card:#1a1d21;
--c0:#e8eaed;--c1:#5db4ff;--c2:#ff9d5c;--c3:#c3a1ff;--c4:#3fd0a4;--c5:#ff8ac6;--c6:#e8c14a;--c7:#a8b4c2}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:960px;margin:0 auto;padding:40px 20px 60px}
header{border-bottom:1px solid var(--line);margin-bottom:24px;padding-bottom:16px}
.kicker{margin:0;color:var(--soft);font-size:13px;letter-spacing:.04em}
h1{margin:2px 0 14px;font-size:28px;line-height:1.2;overflow-wrap:anywhere}
h2{margin:0 0 2px;font-size:19px}
.facts{display:flex;flex-wrap:wrap;gap:6px 28px;margin:0}
.facts dt{font-size:12px;color:var(--soft)}
.facts dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
section{margin:36px 0}
.said{margin:2px 0 10px;color:var(--soft);font-size:14px}
.none{padding:18px;border:1px dashed var(--line);border-radius:8px;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(168px,1fr));gap:12px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile h2{font-size:13px;font-weight:600;color:var(--soft)}
.tile p{margin:0;color:var(--soft);font-size:13px;overflow-wrap:anywhere}
.tile .big{color:var(--ink);font-size:26px;font-weight:650;line-height:1.3;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto}
.plot{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
.plot+.said{margin-top:8px}
.grid{stroke:var(--line);stroke-width:1}
.mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.tick{fill:var(--soft);stroke:var(--card);stroke-width:3px;paint-order:stroke;font-size:12px;font-variant-numeric:tabular-nums}
.axis{fill:var(--soft);font-size:12px}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line:hover{stroke-width:3.5}
.area{stroke:none;opacity:.16}
.dot{stroke:none;opacity:.55}
.dot:hover{opacity:1}
.line.c0{stroke:var(--c0);stroke-width:2.6}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.line.c4{stroke:var(--c4)}.line.c5{stroke:var(--c5)}.line.c6{stroke:var(--c6)}.line.c7{stroke:var(--c7)}
.area.c1,.dot.c1{fill:var(--c1)}.area.c2,.dot.c2{fill:var(--c2)}.area.c3,.dot.c3{fill:var(--c3)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;margin:10px 0 0;padding:0;font-size:14px}
.legend li{overflow-wrap:anywhere;display:flex;align-items:center;gap:8px}
.legend svg{width:30px;flex:none}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:6px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
thead th{color:var(--soft);font-weight:600}
th:first-child{text-align:left}
tbody th{font-weight:500}
th:first-child{position:sticky;left:0;background:var(--bg)}
.against thead th{white-space:normal;min-width:7em}
.ends td:not(:last-child){text-align:left}
.ends th:nth-child(2){text-align:left}
dl dt{font-weight:600}
dl dd{margin:0 0 8px}
footer{margin-top:40px;padding-top:14px;border-top:1px solid var(--line);color:var(--soft);font-size:13px;overflow-wrap:anywhere}
@media(max-width:640px){main{padding:24px 16px 40px}h1{font-size:22px}.plot svg{width:620px}
.tick,.axis{font-size:15px}.facts{gap:6px 20px}
th:first-child{white-space:normal;overflow-wrap:anywhere;min-width:7em;max-width:40vw}}
@media print{@page{margin:14mm}body{font-size:13px;background:none}main{max-width:none;padding:0}section{margin:20px 0}
h2{break-after:avoid}tr,.tile,.plot,.waits,.busy,.queue,.large{break-inside:avoid}thead{display:table-header-group}
.scroll,.plot{overflow:visible}.plot svg{max-height:58mm}table{font-size:11px}
th,td{padding:3px 5px}th:first-child{position:static;background:none}}
"""


NOTHING = "–"
"""Where there is no figure, because there was nobody to count."""


def page(play: TracePlay, told: View, settings: dict[str, str]) -> str:
    """The whole page; `settings` are the words of the command line that made it."""
    name = PurePath(play.trace.source).name
    sections = [
        _tiles(told),
        *([_section("thrashing", "Cuts ate work", _costs(told, costs))] if (costs := thrashing(told)) else []),
        *(
            [_section("against", "Against another policy", _against(told["against"], told["policies"]))]
            if "against" in told
            else []
        ),
        _section(
            "waits",
            "How long runs waited",
            waits(play, told),
            "Share of runs that had started after so long, by owner.",
        ),
        _section("busy", "How busy the GPUs were", busy(play, told), "GPUs in use, as a share of all there are."),
        _section(
            "queue",
            "How long the queue was",
            queue(play, told),
            "Runs that waited, on average over each stretch of time.",
        ),
        _section(
            "large",
            f"Runs over {LARGE_GPUS} GPUs",
            large(play),
            "Each dot is a run: when it asked, and how long it waited.",
        ),
        _section("owners", "By owner", _table("owners", "Owner", told["owners"], told["waits"])),
        _section("sizes", "By size", _table("sizes", "Size", told["sizes"], told["waits"])),
    ]
    if "forecast" in told:
        kept = _calibration(told["forecast"])
        sections.append(_section("forecast", "Whether forecasts kept their word", kept, _beats(told["forecast"])))
    sections.append(_section("ends", "How runs ended", _ends(told)))
    if "audit" in told:
        sections.append(_section("audit", "Audit", _audit(told["audit"])))
    sections.append(_section("meaning", "What the figures mean", _MEANING))
    head = told["head"]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><meta name="color-scheme" content="light dark"/>'
        f"<title>Replay of {escape(name)}</title><style>{STYLE}</style></head><body><main>"
        f'<header><p class="kicker">fairlease · replay of a trace</p><h1>{escape(name)}</h1>'
        f'<dl class="facts">{_facts(told, settings)}</dl></header>'
        + "".join(sections)
        + f"<footer>Ledger head {head['seq']:,}, <code>{head['hash']}</code>: the same trace and settings give the same, always."
        "</footer></main></body></html>\n"
    )


def _facts(told: View, settings: dict[str, str]) -> str:
    trace, cluster = told["trace"], told["cluster"]
    left_out = f", {trace['leftOut']:,} that never ran left out" if trace["leftOut"] else ""
    facts = {"Jobs": f"{trace['jobs']:,}{left_out}", "From": trace["from"], "To": trace["to"], "Last end": trace["end"]}
    facts |= {"Cluster": f"{counts(cluster['nodes'], 'node')}, {counts(cluster['gpus'], 'GPU')}"}
    facts |= {"Load": f"{cluster['load']:.2f}", **settings}
    return "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in facts.items())


def _section(name: str, title: str, body: str, told: str = "") -> str:
    said = f'<p class="said">{escape(told)}</p>' if told else ""
    return f'<section class="{name}"><h2 id="{name}-h">{escape(title)}</h2>{said}{body}</section>'


def _tiles(told: View) -> str:
    wait, slow = told["waits"]["waitSeconds"], told["waits"]["slowdown"]
    used, filled, cuts = told["utilisation"], told["backfill"], told["preemptions"]
    started = told["waits"]["runs"] - told["waits"]["neverStarted"]
    past = f"{filled['sharePastRoom']:.1%} past one that waits for room"
    tiles = [
        ("Utilisation", f"{used['whileAsked']:.1%}", f"{used['whole']:.1%} with the drain"),
        ("Mean wait", _length(wait["mean"]), f"median {_length(wait['median'])}, P95 {_length(wait['p95'])}"),
        ("Started at once", _share(told["waits"]["atOnce"]), f"of {counts(started, 'run')} that started"),
        ("Bounded slowdown", _ratio(slow["mean"]), f"median {_ratio(slow['median'])}, P95 {_ratio(slow['p95'])}"),
        ("Backfill", f"{filled['share']:.1%}", past),
        ("Preemptions", f"{cuts['total']:,}", f"{cuts['gpuHoursLost']:,.0f} GPU-hours lost, {cuts['lostShare']:.1%}"),
    ]
    if large := told["sizes"].get(LARGE):
        title = f"Mean wait over {LARGE_GPUS} GPUs"
        tiles.append((title, _length(large["waitSeconds"]["mean"]), counts(large["runs"], "run")))
    if told["waits"]["neverStarted"]:
        causes = ", ".join(f"{count:,} {reason}" for reason, count in told["runs"]["waiting"].items())
        tiles.append(("Never started", f"{told['waits']['neverStarted']:,}", causes))
    cells = "".join(
        f'<div class="tile"><h2>{escape(name)}</h2><p class="big">{escape(value)}</p><p>{escape(more)}</p></div>'
        for name, value, more in tiles
    )
    return f'<div class="tiles">{cells}</div>'


# --- tables ------------------------------------------------------------------------------------------------------------

_HEADINGS = ("Runs", "GPU-hours", "At once", "Mean wait", "Median", "P95", "Slowdown", "Preempted", "Never started")


def _table(section: str, first: str, rows: dict[str, View], everybody: View) -> str:
    body = [(name, *_cells(row)) for name, row in (*rows.items(), ("all", everybody))]
    return table(section, (first, *_HEADINGS), body)


def _cells(row: View) -> tuple[str, ...]:
    waits = tuple(_length(row["waitSeconds"][name]) for name in ("mean", "median", "p95"))
    head = (f"{row['runs']:,}", f"{row['gpuHours']:,.0f}", _share(row["atOnce"]))
    return (*head, *waits, _ratio(row["slowdown"]["mean"]), f"{row['preemptions']:,}", f"{row['neverStarted']:,}")


def table(section: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows; it scrolls by itself where the page is narrow."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    label = f'aria-labelledby="{section}-h"'
    return (
        f'<div class="scroll" role="group" {label} tabindex="0"><table {label}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


_COMPARED = {
    "waitMeanSeconds": "Mean wait of all runs",
    "waitMeanSecondsLarge": f"Mean wait of runs over {LARGE_GPUS} GPUs",
    "waitP95Seconds": "P95 of waits",
    "slowdownMean": "Mean bounded slowdown",
    "utilisation": "Utilisation until the last asking",
    "utilisationWhole": "Utilisation with the drain",
    "backfillShare": "Backfill",
    "preemptions": "Preemptions",
    "gpuHoursLost": "GPU-hours lost to cuts",
    "lostShare": "Lost to cuts, of the GPU-hours used",
    "neverStarted": "Never started",
    "notEnded": "Not ended",
}


def _against(beside: View, policies: View) -> str:
    """Each figure under both policies, by their names."""
    rows = [(words, *_compared(name, beside[name])) for name, words in _COMPARED.items()]
    return table("against", ("Figure", policies["before"], policies["after"], "Change"), rows)


def _compared(name: str, pair: View) -> tuple[str, str, str]:
    before, after, change = pair["before"], pair["after"], pair["change"]
    sign = "" if not change else "+" if change > 0 else "−"
    size = None if change is None else abs(change)
    if name.endswith(("Seconds", "SecondsLarge")):
        return _length(before), _length(after), sign + _length(size)
    if name.startswith(("utilisation", "backfill", "lostShare")):
        return _share(before), _share(after), NOTHING if size is None else f"{sign}{100 * size:.1f} points"
    if name.startswith("slowdown"):
        return _ratio(before), _ratio(after), sign + _ratio(size)
    return f"{before:,.0f}", f"{after:,.0f}", f"{sign}{size:,.0f}"


def _calibration(told: View) -> str:
    headings = (
        "Horizon or owner",
        "Forecasts",
        "Inside P10–P90 (80%)",
        "Before P50 (50%)",
        "Before P90 (90%)",
        "Mean error",
    )
    rows = [("all", told), *told["horizons"].items(), *told["owners"].items()]
    return table("forecast", headings, [(name, *_kept(row)) for name, row in rows])


def _kept(row: View) -> tuple[str, ...]:
    shares = (f"{row[name]:.1%}" for name in ("insideP10P90", "beforeP50", "beforeP90"))
    return (f"{row['forecasts']:,}", *shares, length(row["meanAbsoluteErrorSeconds"]))


def _beats(told: View) -> str:
    """How it compares with the known baseline."""
    better = told.get("errorBelowLastTwo")
    if better is None:
        return ""
    less = "less" if better >= 0 else "more"
    baseline = length(told["lastTwoMeanAbsoluteErrorSeconds"])
    known = "where each run is believed to last as long as its owner’s last two"
    return f"The mean error is {abs(better):.0%} {less} than {known}, {baseline}."


def _ends(told: View) -> str:
    runs, cuts = told["runs"], told["preemptions"]["byReason"]
    rows = [("ended", reason, f"{count:,}") for reason, count in runs["ended"].items()]
    rows += [("waits at the end", reason, f"{count:,}") for reason, count in runs["waiting"].items()]
    rows += [("attempt cut", reason, f"{count:,}") for reason, count in cuts.items()]
    return table("ends", ("What", "Reason", "How many"), rows)


def _costs(told: View, costs: str) -> str:
    stopped = f"<p>The replay was {escape(told['stopped'])}.</p>" if "stopped" in told else ""
    return f"<p>{escape(costs)}</p>{stopped}"


def _audit(told: View) -> str:
    said = "The whole ledger was audited, and passed." if told["ok"] else "The audit of the ledger FAILED."
    findings = "".join(f"<li>{escape(each)}</li>" for each in told["findings"])
    return f"<p>{said}</p>" + (f"<ul>{findings}</ul>" if findings else "")


_MEANING = (
    "<dl><dt>Wait</dt><dd>From asking to the first start. Runs that never started are counted apart.</dd>"
    "<dt>Slowdown</dt><dd>Bounded slowdown: (end − asked) ÷ the larger of the time on the machine and 10 minutes, at least 1.</dd>"
    "<dt>Utilisation</dt><dd>GPU-time in use ÷ GPU-time there was, from the first to the last asking.</dd>"
    "<dt>Backfill</dt><dd>Share of runs that started while one that had asked before them waited on.</dd>"
    "<dt>Preemption</dt><dd>An attempt that was cut and asked for again; what it had done is lost."
    " The share is that of the GPU-hours used.</dd></dl>"
)


def _length(seconds: float | None) -> str:
    return NOTHING if seconds is None else length(seconds)


def _share(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}"
