"""`fairlease list`: the runs, as a table."""

from __future__ import annotations

import click

from fairlease.cli.output import show_table
from fairlease.cli.runs_table import headings, row, whereabouts
from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import READ, verb

PHASES = ("Pending", "Running", "Completed", "Failed")
_EXAMPLE = """
fairlease list
fairlease list --phase Pending -o wide
fairlease list --owner org:team-a -A -o json | jq -r '.runs[].name'
"""


@verb("list", example=_EXAMPLE, formats=READ, namespace=True, every=True)
@click.option("--owner", metavar="OWNER", help="Only runs of this owner.")
@click.option(
    "--phase", type=click.Choice(["Pending", "Running", "Completed", "Failed"]), help="Only runs in this phase."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many, the latest first.")
def command(session: Session, owner: str | None, phase: str | None, limit: int | None) -> None:
    """List runs.

    GPUS is the width; of an elastic run, least/now/most. START tells how long ago it started, AGE how long ago it was
    submitted.
    """
    asked: dict[str, object] = {"owner": owner, "phase": phase, "limit": limit}
    asked |= {"all": True} if session.all_namespaces else {"namespace": session.namespace or "default"}
    session.show(session.call("list", **asked), lambda answer: _draw(session, answer))


def _draw(session: Session, answer: Answer) -> None:
    runs = answer["runs"]
    where = whereabouts(session) if runs else None
    rows = [row(session, run, where) for run in runs] if where else []
    show_table(headings(session), rows, colour=session.colour, empty="no runs")
