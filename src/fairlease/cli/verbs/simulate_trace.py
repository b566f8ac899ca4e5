"""`fairlease simulate --trace`: replay what a real cluster was asked for, and tell how it would have fared."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlease.cli.failure import BAD_INPUT, NO, UNWRITTEN, Failure
from fairlease.cli.render.output import NOTHING, emit, progress_bar, show_table, span
from fairlease.cli.session import Session

if TYPE_CHECKING:
    from fairlease.model.config import Config
    from fairlease.replay.play import ReplayStage, TracePlay
    from fairlease.replay.trace import Trace

Given = dict[str, Any]

_OPTIONS: Sequence[Callable[..., Any]] = (
    click.option("--trace", metavar="FILE", help="No scenario: replay the jobs of this trace, gzipped or not."),
    click.option("--format", "form", type=click.Choice(("philly", "helios", "swf")), help="What the trace looks like."),
    click.option("--nodes", metavar="NODES", help="64x8, pools as a:32x8,b:16x8, or auto:LOAD.  [default: auto:0.9]"),
    click.option("--domain-nodes", type=click.IntRange(min=1), metavar="N", help="Nodes to a fabric domain.  [default: 32]"),
    click.option("--budgets", metavar="MONEY", help="one, fair, family, a CSV of quotas, or a file of Budgets.  [default: one]"),
    click.option("--cluster", metavar="NAME", help="Whose quotas, where the CSV holds those of several clusters."),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs."),
    click.option("--limits", metavar="HOW", help="maxDuration: trace, none, exact or factor:F.  [default: trace]"),
    click.option("--start", metavar="TIME", help="When second 0 of the trace was, where the file does not say."),
    click.option("--config", multiple=True, metavar="FILE|KEY=VALUE", help="Policy, such as minRuntime=30m; may be repeated."),
    click.option("--forecasts", type=click.IntRange(min=0), metavar="N", help="Forecast each Nth that waits.  [default: by size]"),
    click.option("--against", multiple=True, metavar="KEY=VALUE", help="Replay it under another policy, too, and compare."),
    click.option("--html", metavar="FILE", help="Write the report as a page with plots, too."),
    click.option("--audit", is_flag=True, default=None, help="Keep the whole ledger in memory and audit it at the end."),
)  # fmt: skip


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Everything that belongs to `--trace`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def play_trace(session: Session, given: Given, *, bar: bool) -> bool:
    """Replay the trace that was named and report; False where none was."""
    if given["trace"] is None:
        flags = {"form": "format", "domain_nodes": "domain-nodes"}
        if alone := [flags.get(name, name) for name, value in given.items() if value not in (None, ())]:
            raise click.UsageError(f"--{alone[0]} belongs to --trace FILE")
        return False
    from fairlease.model.document import Invalid

    html = given["html"]
    if html is not None:
        _writable(html, given)
    try:
        play, settings = _prepared(given)
        other = _other(play, given)
    except Invalid as error:
        problems = [str(problem) for problem in error.problems]
        raise Failure(f"{given['trace']} cannot be replayed", code=BAD_INPUT, problems=problems) from None
    if other is None:
        _play(play, "", bar=bar)
    else:
        _play(play, "replay", bar=bar)
        _play(other, f"against {', '.join(given['against'])}", bar=bar)
    _report(session, play, settings, html, other)
    return True


def _writable(html: str, given: Given) -> None:
    """Whether a page can be written there, before hours of trace are replayed for it; what is read is not written over."""
    page, read = Path(html).absolute(), (given["trace"], given["budgets"], *given["config"])
    if not page.parent.is_dir():
        raise Failure(
            f"--html: {html} cannot be written: there is no such folder", remedy="make the folder, or name another"
        )
    if page.is_dir() or not os.access(page if page.exists() else page.parent, os.W_OK):
        told = "it is a folder" if page.is_dir() else "you may not write there"
        raise Failure(f"--html: {html} cannot be written: {told}", remedy="name another file")
    if page.exists() and any(each is not None and Path(each).exists() and page.samefile(each) for each in read):
        raise Failure(f"--html: {html} is what is replayed, and would be written over", remedy="name another file")


def _prepared(given: Given) -> tuple[TracePlay, dict[str, str]]:
    from fairlease.ledger.store.memory import MemoryStore
    from fairlease.replay.formats import read_trace
    from fairlease.replay.play import TracePlay

    if given["form"] is None:
        raise click.UsageError("--trace needs --format philly, helios or swf")
    start = _checked("--start", _instant, given["start"], "write an RFC 3339 time, such as 2020-09-01T00:00:00Z")
    trace = read_trace(given["trace"], given["form"], start).first(given["limit"])
    stage = _stage(trace, given)
    settings = {"Budgets": _or(given["budgets"], "one"), "Limits": _or(given["limits"], "trace")}
    settings |= {"Forecasts": f"1 in {stage.forecasts} that waits" if stage.forecasts else "none"}
    settings |= {name.title(): ", ".join(given[name]) for name in ("config", "against") if given[name]}
    return TracePlay(trace, stage, MemoryStore() if given["audit"] else None), settings


def _other(play: TracePlay, given: Given) -> TracePlay | None:
    """The same replay under the policy to compare with, if one is named; it forecasts nothing."""
    from fairlease.replay.play import TracePlay

    if not given["against"]:
        return None
    config = _config("--against", given["against"], play.stage.config)
    return TracePlay(play.trace, play.stage._replace(config=config, forecasts=0))


def _stage(trace: Trace, given: Given) -> ReplayStage:
    from fairlease.replay.cluster import read_budgets, read_nodes
    from fairlease.replay.play import POLICY, ReplayStage, usual_forecasts
    from fairlease.replay.trace import Asker, read_limits

    limits = _checked("--limits", read_limits, _or(given["limits"], "trace"), "write trace, none, exact, or factor:1.5")
    plan = _checked(
        "--nodes",
        lambda text: read_nodes(text, trace, limits, _or(given["domain_nodes"], 32)),
        _or(given["nodes"], "auto:0.9"),
        "write 64x8, a:32x8,b:16x8 or auto:0.9",
    )
    asker = Asker(max(pool.gpus for pool in plan.pools), limits)
    money = _checked(
        "--budgets",
        lambda text: read_budgets(text, trace, asker, plan.gpus, given["cluster"]),
        _or(given["budgets"], "one"),
        "",
    )
    every = usual_forecasts(trace) if given["forecasts"] is None else given["forecasts"]
    return ReplayStage(plan, money, asker, _config("--config", given["config"], POLICY), every)


def _or(given: Any, default: Any) -> Any:  # noqa: ANN401 - whatever the option takes
    """What was given, if anything was: an empty text is no answer, and is refused as one."""
    return default if given is None else given


def _checked(option: str, read: Callable[[Any], Any], text: object, remedy: str) -> Any:  # noqa: ANN401 - as `read` returns it
    try:
        return read(text)
    except ValueError as error:
        raise Failure(f"{option}: {error}", remedy=remedy) from None


def _instant(text: str | None) -> str | None:
    from fairlease.model.amount import parse_instant

    if text is not None:
        parse_instant(text)
    return text


def _config(option: str, given: Sequence[str], base: Config) -> Config:
    """A policy: `base` or one file instead of it, and single settings on top, read as if they stood in a file of their own."""
    import msgspec

    from fairlease.model.document import read_file
    from fairlease.model.objects import read_config
    from fairlease.model.record import api_name

    pairs = dict(each.split("=", 1) for each in given if "=" in each)
    files = [each for each in given if "=" not in each]
    if len(files) > 1:
        raise Failure(
            f"{option}: two files, {files[0]} and {files[1]}", remedy="name one file, and single settings as key=value"
        )
    for name, value in pairs.items():
        if not value.strip():
            raise Failure(f"{option}: {name}= has no value", remedy="write it behind the sign, such as notice=15m")
    config = read_config(*read_file(files[0])) if files else base
    names = {api_name(name.strip()): value for name, value in pairs.items()}
    single = read_config("\n".join(f"{name}: {value}" for name, value in names.items()), option)
    chosen = [field.name for field in msgspec.structs.fields(single) if field.encode_name in names]
    return msgspec.structs.replace(config, **{name: getattr(single, name) for name in chosen})


def _play(play: TracePlay, label: str, *, bar: bool) -> None:
    from fairlease.model.amount import HOUR, SECOND
    from fairlease.scheduler import calm_collector

    began = time.monotonic()

    def speed(done: int) -> str:
        return f"{done * SECOND / HOUR / max(time.monotonic() - began, 0.1):,.0f} h of trace per second"

    calm_collector()
    seconds = (play.trace.end - play.trace.begin) // SECOND
    with progress_bar(seconds, shown=bar, label=label, told=speed) as advance:
        play.play(lambda done: advance(done // SECOND))
    if sys.stderr.isatty():
        click.echo(f"{seconds / 3600:,.0f} h of trace in {time.monotonic() - began:,.1f} s", err=True)


def _report(
    session: Session, play: TracePlay, settings: dict[str, str], html: str | None, other: TracePlay | None
) -> None:
    from fairlease.replay.report import compare, report, series

    told = report(play)
    if other is not None:
        told["against"] = compare(report(other), told)
        told["policies"] = {"before": settings["Against"], "after": settings.get("Config", "default policy")}
    audit = _audit(play)
    if audit is not None:
        told["audit"] = audit
    if html is not None:
        from fairlease.replay.page import page

        try:
            Path(html).write_text(page(play, told, settings), encoding="utf-8")
        except OSError as error:
            raise Failure(f"--html: {html} cannot be written: {error.strerror}", code=UNWRITTEN) from None
    if session.output not in ("json", "yaml"):
        _tell(session, told)
    else:
        emit({**told, "settings": settings, "series": series(play)}, session.output)
    if audit is not None and not audit["ok"]:
        raise click.exceptions.Exit(NO)


def _audit(play: TracePlay) -> Given | None:
    from fairlease.ledger.audit.audit import audit
    from fairlease.replay.play import PassingStore

    store = play.scheduler.store
    if isinstance(store, PassingStore):
        return None
    found = audit(store.entries())
    return {"ok": found.ok, "checks": found.checks, "findings": [str(each) for each in found.findings]}


_HEADINGS = ("RUNS", "GPU-HOURS", "AT ONCE", "MEAN WAIT", "MEDIAN", "P95", "SLOWDOWN", "PREEMPTED", "NEVER STARTED")
_WIDE = ("LONGEST WAIT", "GPU-HOURS LOST")


def _tell(session: Session, told: Given) -> None:
    """The report, for people."""
    from fairlease.replay.page import counts
    from fairlease.replay.report import thrashing

    wide = session.output == "wide"
    headings = (*_HEADINGS, *(_WIDE if wide else ()))
    for first, rows in (("OWNER", told["owners"]), ("SIZE", told["sizes"])):
        lines = [(name, *_row(row, wide=wide)) for name, row in rows.items()]
        show_table((first, *headings), [*lines, ("all", *_row(told["waits"], wide=wide))], colour=session.colour)
        click.echo()
    if "against" in told:
        _tell_against(session, told["against"], told["policies"])
    trace, cluster, used = told["trace"], told["cluster"], told["utilisation"]
    left_out = f", {trace['leftOut']:,} that never ran left out" if trace["leftOut"] else ""
    click.echo(f"{counts(trace['jobs'], 'job')} from {trace['from']} to {trace['to']}{left_out}")
    size = f"{counts(cluster['nodes'], 'node')}, {counts(cluster['gpus'], 'GPU')}"
    click.echo(f"cluster       {size}, load {cluster['load']:.2f}")
    click.echo(f"utilisation   {used['whileAsked']:.1%} while runs were asked for, {used['whole']:.1%} to the last end")
    queue, backfill, cuts = told["queue"], told["backfill"], told["preemptions"]
    click.echo(f"queue         {queue['runsMean']:,} runs on average, {queue['runsMax']:,} at most")
    past = f"{backfill['sharePastRoom']:.1%} past one that waited for room"
    click.echo(f"backfill      {backfill['share']:.1%} of runs started past one that had asked before them; {past}")
    click.echo(f"preemptions   {cuts['total']:,}, {_lost(cuts)}")
    if costs := thrashing(told):
        click.echo(f"thrashing     {costs}")
    if "stopped" in told:
        click.echo(f"stopped       {told['stopped']}")
    if "forecast" in told:
        click.echo(f"forecast      {_kept(told['forecast'])}")
    if told["runs"]["waiting"]:
        causes = ", ".join(f"{count:,} {reason}" for reason, count in told["runs"]["waiting"].items())
        click.echo(f"not ended     {causes}")
    if "audit" in told:
        click.echo(f"audit         {'passed' if told['audit']['ok'] else 'FAILED'}")
        for finding in told["audit"]["findings"]:
            click.echo(f"  {finding}")
    click.echo(f"head          {told['head']['seq']} {told['head']['hash']}")


_COSTS = {"preemptions": "preemptions", "gpuHoursLost": "GPU-hours lost to cuts", "notEnded": "runs that did not end"}


def _tell_against(session: Session, beside: Given, policies: Given) -> None:
    """Each figure under both policies, by their names."""
    from fairlease.replay.report import LARGE

    rows: list[tuple[object, ...]] = []
    waits = {"waitMeanSecondsLarge": f"mean wait of runs {LARGE}", "waitMeanSeconds": "mean wait of all"}
    for name, words in waits.items():
        before, after = (beside[name][when] for when in ("before", "after"))
        if before is not None and after is not None:
            rows.append((words, span(round(before * 1000)), span(round(after * 1000)), _longer(after - before)))
    for name, words in _COSTS.items():
        before, after = (beside[name][when] for when in ("before", "after"))
        if before or after:
            rows.append((words, f"{before:,.0f}", f"{after:,.0f}", f"{after - before:+,.0f}"))
    before, after = (beside["utilisation"][when] for when in ("before", "after"))
    rows.append(("utilisation", f"{before:.1%}", f"{after:.1%}", f"{100 * (after - before):+.1f} points"))
    show_table(("AGAINST", policies["before"], policies["after"], "CHANGE"), rows, colour=session.colour)
    click.echo()


def _longer(seconds: float) -> str:
    sign = "+" if seconds > 0 else "-" if seconds < 0 else ""
    return sign + span(round(abs(seconds) * 1000))


def _kept(forecast: Given) -> str:
    inside, half = f"{forecast['insideP10P90']:.1%} inside P10–P90", f"{forecast['beforeP50']:.1%} before P50"
    error = span(forecast["meanAbsoluteErrorSeconds"] * 1000)
    better = forecast.get("errorBelowLastTwo")
    than = "" if better is None else f", {abs(better):.0%} {'more' if better < 0 else 'less'} than by the last two"
    return f"{inside}, {half}, mean error {error}{than}, of {forecast['forecasts']:,}"


def _lost(cuts: Given) -> str:
    return f"{cuts['gpuHoursLost']:,.1f} GPU-hours lost, {cuts['lostShare']:.1%} of those used"


def _row(row: Given, *, wide: bool) -> tuple[object, ...]:
    waits = {name: NOTHING if each is None else span(each * 1000) for name, each in row["waitSeconds"].items()}
    mean, at_once = row["slowdown"]["mean"], row["atOnce"]
    return (
        f"{row['runs']:,}",
        f"{row['gpuHours']:,.0f}",
        NOTHING if at_once is None else f"{at_once:.1%}",
        *(waits[name] for name in ("mean", "median", "p95")),
        NOTHING if mean is None else f"{mean:.2f}",
        row["preemptions"],
        row["neverStarted"],
        *((waits["max"], f"{row['gpuHoursLost']:,.0f}") if wide else ()),
    )
