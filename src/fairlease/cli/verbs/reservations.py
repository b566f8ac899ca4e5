"""`fairlease reservations`: who waits until when."""

from __future__ import annotations

import click

from fairlease.cli.render.contention import draw_reservations
from fairlease.cli.render.output import warn_of_limit
from fairlease.cli.session import Session
from fairlease.cli.verb import READ, limit_option, run_argument, verb

_EXAMPLE = """
fairlease reservations
fairlease reservations my-run --all
fairlease reservations -A -o json | jq -r '.reservations[] | [.name, .spec.earliestStart, .status.reason] | @tsv'
"""


@verb("reservations", example=_EXAMPLE, formats=READ, namespace=True, every=True, wide="nodes and messages")
@run_argument(required=False)
@click.option("--all", "history", is_flag=True, help="Those that are over too: Released, Superseded, Canceled, Failed.")
@limit_option()
def command(session: Session, run: str | None, history: bool, limit: int) -> None:
    """List who waits until when, and on what that rests.

    Those in force, the earliest date first; with --all every one ever made, in that order. REASON says what the date rests
    on (HardFacts: deadlines and windows; Notice: others have to give way by then; WindowClosed: its money is not open
    yet; Predicted), why the reservation is Blocked, or why it was moved.
    """
    asked = {"run": None if run is None else session.key(run), "namespace": None if run else session.where()}
    answer = session.call("reservations", **asked, all=history, limit=limit)
    session.show(answer, lambda found: draw_reservations(session, found["reservations"]))
    warn_of_limit(len(answer["reservations"]), limit)
