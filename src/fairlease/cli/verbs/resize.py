"""`fairlease resize` and `shrink`: another width for an elastic run."""

from __future__ import annotations

import click

from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import NO_MORE, READ, run_argument, verb

_SHRINK = """
fairlease shrink my-run --to 8
fairlease shrink my-run --by 4
"""


@verb("resize", example="fairlease resize my-run --to 16", formats=READ, namespace=True, wide=NO_MORE)
@run_argument(living=True)
@click.option("--to", type=click.IntRange(min=1), metavar="N", required=True, help="GPUs that it would like to have.")
def command(session: Session, run: str, to: int) -> None:
    """Set the width that an elastic run would like to have.

    Too much is given back at once, in whole groups. What is missing is added step by step, while there are money and
    room, after the cooldown. A width that the run cannot have is refused, with the nearest that it can.
    """
    session.show(session.call("resize", run=session.key(run), to=to), _draw)


@verb("shrink", example=_SHRINK, formats=READ, namespace=True, wide=NO_MORE)
@run_argument(living=True)
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="GPUs that it keeps.")
@click.option("--by", type=click.IntRange(min=1), metavar="N", help="GPUs that it gives back.")
def shrink(session: Session, run: str, to: int | None, by: int | None) -> None:
    """Have an elastic run give GPUs back.

    Whole groups go, those that borrowed money pays first, then the highest index. Their processes get SIGTERM and, after
    the grace, SIGKILL; the others read in $FAIRLEASE_MEMBERS who is left. It stays that wide until `fairlease resize`.
    A width that the run cannot have is refused, with the nearest that it can.
    """
    if (to is None) == (by is None):
        raise click.UsageError("say --to how many GPUs, or --by how many")
    session.show(session.call("resize", run=session.key(run), to=to, by=by, narrower=True), _draw)


commands = {"shrink": shrink}


def _draw(answer: Answer) -> None:
    """What became of it, in a line."""
    before, width = answer["before"]["allocated"], answer["width"]
    wide = f"{width['allocated']} GPUs" if before == width["allocated"] else f"{before} → {width['allocated']} GPUs"
    click.echo(f"run/{bare(answer['name'])} {wide}, {width['desired']} desired")
