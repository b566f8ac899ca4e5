"""`fairlease forecast`: whether forecasts kept their word."""

from __future__ import annotations

import click

from fairlease.cli.render.output import NOTHING, show_table, span
from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import HELP, READ, VerbGroup, owner_option, verb
from fairlease.cli.verbs.leases import When

_EXAMPLE = """
fairlease forecast report
"""
_REPORT = """
fairlease forecast report
fairlease forecast report --owner org:ai --since 30d
fairlease forecast report -o json | jq .insideP10P90
"""


command = VerbGroup("forecast", help="Show whether forecasts kept their word.", example=_EXAMPLE, context_settings=HELP)


@verb("report", example=_REPORT, formats=READ, wide="the baseline's error")
@owner_option("Only forecasts for this owner's runs, and for those of all below it.")
@click.option("--since", type=When(), metavar="TIME", help="Only forecasts made since then: RFC 3339, or how long ago.")
def report(session: Session, owner: str | None, since: str | None) -> None:
    """Compare forecasts with what came, over the ledger's past.

    Scored is the forecast that a run got when it began to wait. Good ones have 80 % of starts inside P10 to P90, half before
    P50, 90 % before P90. BETTER BY says by how much the mean error is smaller than that of a play in which work lasts
    as long as the mean of the last two runs like it.
    """
    answer = session.call("forecast.report", owner=owner, since=since)
    session.show(answer, lambda found: _draw(session, found, narrowed=owner is not None or since is not None))


def _draw(session: Session, answer: Answer, *, narrowed: bool) -> None:
    if not answer["forecasts"]:
        click.echo(f"no run that was forecast{', of those asked for,' if narrowed else ''} has started yet")
        return
    for title, rows in (("HORIZON", answer["horizons"]), ("OWNER", answer["owners"])):
        lines = [(name, *_cells(session, row)) for name, row in rows.items()]
        headings = (title, "STARTS", "INSIDE P10-P90", "BEFORE P50", "BEFORE P90", "MEAN ERROR", "BETTER BY")
        extra = ("ERROR BY LAST TWO",) if session.wide else ()
        show_table((*headings, *extra), [*lines, ("all", *_cells(session, answer))], colour=session.colour)
        click.echo()
    click.echo("of good forecasts 80% of starts come inside P10-P90, 50% before P50, 90% before P90")
    click.echo("better by: how much smaller the mean error is than by the mean of the last two runs alike")


def _cells(session: Session, row: Answer) -> tuple[object, ...]:
    better = row.get("errorBelowLastTwo")
    cells: tuple[object, ...] = (
        row["forecasts"],
        f"{row['insideP10P90']:.1%}",
        f"{row['beforeP50']:.1%}",
        f"{row['beforeP90']:.1%}",
        span(row["meanAbsoluteErrorSeconds"] * 1000),
        NOTHING if better is None else f"{better:+.1%}" if better else "0.0%",
    )
    if not session.wide:
        return cells
    theirs = row.get("lastTwoMeanAbsoluteErrorSeconds")
    return (*cells, NOTHING if theirs is None else span(theirs * 1000))


command.add_command(report)
