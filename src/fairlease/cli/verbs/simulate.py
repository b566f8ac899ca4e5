"""`fairlease simulate`: play a film of a cluster on the real engine, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fairlease.cli.failure import BAD_INPUT, NO, Failure
from fairlease.cli.render.output import emit, progress_bar, show_table, wanted
from fairlease.cli.session import Session, bare
from fairlease.cli.verb import READ, verb
from fairlease.cli.verbs.simulate_trace import play_trace, trace_options

if TYPE_CHECKING:
    from fairlease.sim.film import Film

STEPS = 200
"""How long a random life is, unless it is told otherwise."""

_EXAMPLE = """
fairlease simulate what-if.yaml
fairlease simulate what-if.yaml --until 2d -o json
fairlease simulate --random 7 --steps 500
fairlease simulate --trace jobs.swf.gz --format swf --nodes 16x8 --budgets fair --html report.html
"""


@verb(
    "simulate",
    example=_EXAMPLE,
    formats=("text", *READ),
    wide="dates and cuts; of a trace, longest waits and hours lost",
)
@click.argument("file", metavar="FILE", required=False)
@click.option("--until", metavar="T", help="Stop at this offset from the start, such as 90m, whatever the file says.")
@click.option("--random", "seed", type=int, metavar="SEED", help="No file: a random world and a life in it.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="How long a random life is.  [default: 200]")
@trace_options
@click.option("--progress/--no-progress", default=None, help="A bar on stderr; by default on a terminal only.")
def command(
    session: Session,
    file: str | None,
    until: str | None,
    seed: int | None,
    steps: int | None,
    progress: bool | None,
    **trace: Any,  # noqa: ANN401 - the options that belong to --trace, as they were given
) -> None:
    """Play a scenario in virtual time.

    Exits 0 when every expectation held and the audit passed, 1 when not, 2 when the file is no scenario.
    With --random, an auditor that shares no code with the engine looks at every tick; the seed is the bug report.
    With --trace, the jobs of a public trace are asked for at their times, and a report tells how they fared.
    """
    if sum(each is not None for each in (file, seed, trace["trace"])) != 1:
        raise click.UsageError("give one of a scenario FILE, --random SEED and --trace FILE")
    if until is not None and file is None:
        raise click.UsageError("--until belongs to a scenario FILE; --steps and --limit bound the others")
    if steps is not None and seed is None:
        raise click.UsageError("--steps belongs to --random SEED")
    bar = wanted(progress)
    if play_trace(session, trace, bar=bar):
        return
    if seed is not None:
        _play_random(session, seed, STEPS if steps is None else steps, bar=bar)
    else:
        _play_file(session, file or "-", until, bar=bar)


def _play_file(session: Session, file: str, until: str | None, *, bar: bool) -> None:
    from fairlease.model.amount import parse_duration
    from fairlease.model.document import Invalid
    from fairlease.scheduler import calm_collector
    from fairlease.sim.film import play
    from fairlease.sim.scenario_file import load_scenario

    try:
        end = None if until is None else parse_duration(until)
    except ValueError as error:
        raise Failure(f"--until: {error}", remedy="write a duration, such as 90m or 2h") from None
    calm_collector()
    try:
        scenario = load_scenario(file)
        with progress_bar(len(scenario.steps), shown=bar) as advance:
            film = play(scenario, end, lambda taken, _steps: advance(taken))
    except Invalid as error:
        problems = [str(problem) for problem in error.problems]
        raise Failure(f"{file} cannot be played", code=BAD_INPUT, problems=problems) from None
    if session.output not in ("json", "yaml"):
        _tell(session, film)
    else:
        emit(film.result(), session.output)
        for line in _failures(film):
            click.echo(line, err=True)
    if not film.ok:
        raise click.exceptions.Exit(NO)


def _play_random(session: Session, seed: int, steps: int, *, bar: bool) -> None:
    from fairlease.sim.random.play import run_random

    with progress_bar(steps, shown=bar) as advance:
        report = run_random(seed, steps, advance)
    if session.output not in ("json", "yaml"):
        click.echo(str(report))
    else:
        told = report._asdict() | {"violations": [each._asdict() for each in report.violations]}
        emit(told, session.output)
    if report.violations:
        raise click.exceptions.Exit(NO)


def _tell(session: Session, film: Film) -> None:
    """The end of a film, for people."""
    result = film.result()
    rows = [_run_row(name, status) for name, status in result["runs"].items()]
    show_table(("RUN", "PHASE", "REASON", "GPUS", "ATTEMPT", "GPU-HOURS"), rows, colour=session.colour)
    click.echo()
    used = [
        (bare(name), each["name"], _taken(each), each["consumedGPUHours"], each["committedGPUHours"])
        for name, status in result["budgets"].items()
        for each in status["usage"]
    ]
    show_table(("BUDGET", "ENVELOPE", "GPUS", "CONSUMED", "COMMITTED"), used, colour=session.colour)
    if session.wide:
        _tell_dates(session, result)
    head = f"head {result['head']['seq']} {result['head']['hash']}"
    held = len(film.expectations) - len(film.failures)
    audit = result["audit"]
    click.echo()
    click.echo(f"{result['scenario']} at {result['now']}: {len(result['leases'])} leases, {head}")
    click.echo(f"expectations: {held} of {len(film.expectations)} held; audit: {'passed' if audit['ok'] else 'FAILED'}")
    for line in _failures(film):
        click.echo(line)


def _tell_dates(session: Session, result: dict[str, Any]) -> None:
    """Every date that was given, and who gave way to whom."""
    from fairlease.cli.verbs.outcomes import draw_outcomes

    dates = [
        (
            bare(each["name"]),
            each["status"]["state"],
            each["spec"]["earliestStart"],
            each["status"]["reason"],
            ",".join(each["spec"]["payingEnvelopes"]),
            ",".join(each["spec"]["intendedSlice"]["nodes"]),
        )
        for each in result["reservations"]
    ]
    if dates:
        click.echo()
        show_table(("RESERVATION", "STATE", "DATE", "REASON", "PAID BY", "NODES"), dates, colour=session.colour)
    if result["resolverOutcomes"]:
        click.echo()
        draw_outcomes(session, result["resolverOutcomes"])


def _run_row(name: str, status: dict[str, Any]) -> tuple[object, ...]:
    conditions = {each["type"]: each for each in status["conditions"]}
    reason = status.get("reason") or conditions["Running"]["reason"]
    hours = sum(status["funding"][kind]["gpuHours"] for kind in ("owned", "shared", "borrowed", "overdrawn"))
    return bare(name), status["phase"], reason, status["width"]["allocated"], status["attempt"], round(hours, 3)


def _taken(usage: dict[str, Any]) -> int:
    kinds = ("ownedGPUs", "sharedGPUs", "borrowedGPUs", "overdrawnGPUs", "spareGPUs", "opportunisticGPUs")
    return sum(int(usage[kind]) for kind in kinds)


def _failures(film: Film) -> Iterator[str]:
    """What did not hold: the difference, then the story of the run concerned."""
    for each in film.failures:
        yield f"\nnot held at {each['at']}: {each['field']}"
        yield from (f"  - {line}" for line in each["differences"])
        for line in each.get("story", ()):
            yield f"    {line['at']}  {line['reason']}: {line['message']}"
    for finding in [*film.report.findings, *film.world.faults]:
        yield f"\naudit: {finding}"
