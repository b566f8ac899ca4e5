"""`fairlease list`: the runs, as a table."""

from __future__ import annotations

import click

from fairlease.cli.render.output import show_table, warn_of_limit
from fairlease.cli.render.runs_table import headings, row, whereabouts
from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import READ, limit_option, owner_option, verb

_PHASES = ("Pending", "Running", "Completed", "Failed")
_EXAMPLE = """
fairlease list
fairlease list --phase Pending -o wide
fairlease list --owner org:team-a -A -o json | jq -r '.runs[].name'
"""


@verb("list", example=_EXAMPLE, formats=READ, namespace=True, every=True, wide="nodes, domains, hours, messages")
@owner_option("Only runs of this owner and of owners below it.")
@click.option("--phase", type=click.Choice(_PHASES), help="Only runs in this phase.")
@click.option("--active", is_flag=True, help="Only runs that wait or run.")
@limit_option()
def command(session: Session, owner: str | None, phase: str | None, active: bool, limit: int) -> None:
    """List runs.

    Those that live, in the order in which they were asked for; then those that ended, the latest first.

    GPUS is the width; of an elastic run, least/now/most. START/ETA tells how long ago it started or, of a run that waits,
    how long it is until the date of its reservation or, where it has none, about how long (`~`) by the forecast's P50;
    `blocked` where the reservation lost its money or its room, and has no date: REASON tells why. AGE is how long ago it
    was submitted. PAYER is the envelope that pays
    (`budget/envelope`), or, of a run that has ended, whose money it used: its owner's, `family`,
    sponsors'; `fairlease who-pays` tells more.
    """
    asked = {"owner": owner, "phase": phase, "namespace": session.where(), "all": not active, "limit": limit}
    answer = session.call("list", **asked)
    session.show(answer, lambda found: _draw(session, found))
    warn_of_limit(len(answer["runs"]), limit)


def _draw(session: Session, answer: Answer) -> None:
    runs = answer["runs"]
    where = whereabouts(session) if runs else None
    rows = [row(session, run, where) for run in runs] if where else []
    show_table(headings(session), rows, colour=session.colour, empty="no runs")
