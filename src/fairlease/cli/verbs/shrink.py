"""`fairlease shrink`: GPUs that an elastic run gives back."""

from __future__ import annotations

import click

from fairlease.cli.session import Session
from fairlease.cli.verb import NO_MORE, READ, run_argument, verb
from fairlease.cli.verbs.resize import draw_width

_EXAMPLE = """
fairlease shrink my-run --to 8
fairlease shrink my-run --by 4
"""


@verb("shrink", example=_EXAMPLE, formats=READ, namespace=True, wide=NO_MORE)
@run_argument(living=True)
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="GPUs that it keeps.")
@click.option("--by", type=click.IntRange(min=1), metavar="N", help="GPUs that it gives back.")
def command(session: Session, run: str, to: int | None, by: int | None) -> None:
    """Have an elastic run give GPUs back.

    Whole groups go, those that borrowed money pays first, then the highest index. Their processes get SIGTERM and, after
    the grace, SIGKILL; the others read in $FAIRLEASE_MEMBERS who is left. It stays that wide until `fairlease resize`.
    A width that the run cannot have is refused, with the nearest that it can.
    """
    if (to is None) == (by is None):
        raise click.UsageError("say --to how many GPUs, or --by how many")
    session.show(session.call("resize", run=session.key(run), to=to, by=by, narrower=True), draw_width)
