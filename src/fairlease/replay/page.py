"""The report of a replay as one HTML page that needs nothing else: figures, pictures, and the tables behind them."""

from __future__ import annotations

from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fairlease.replay import plots
from fairlease.replay.chart import counts, length
from fairlease.replay.page_style import STYLE
from fairlease.replay.report import LARGE, thrashing
from fairlease.replay.trace import LARGE_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlease.replay.play import TracePlay

View = dict[str, Any]

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
            plots.waits(play, told),
            "Share of runs that had started after so long, by owner.",
        ),
        _section("busy", "How busy the GPUs were", plots.busy(play, told), "GPUs in use, as a share of all there are."),
        _section(
            "queue",
            "How long the queue was",
            plots.queue(play, told),
            "Runs that waited, on average over each stretch of time.",
        ),
        _section(
            "large",
            f"Runs over {LARGE_GPUS} GPUs",
            plots.large(play),
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
