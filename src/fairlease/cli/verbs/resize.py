"""`fairlease resize`: another width for an elastic run."""

from __future__ import annotations

import click

from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import NO_MORE, READ, run_argument, verb

_EXAMPLE = """
fairlease resize my-run --to 16
"""


@verb("resize", example=_EXAMPLE, formats=READ, namespace=True, wide=NO_MORE)
@run_argument(living=True)
@click.option("--to", type=click.IntRange(min=1), metavar="N", required=True, help="GPUs that it would like to have.")
def command(session: Session, run: str, to: int) -> None:
    """Set the width that an elastic run would like to have.

    Too much is given back at once, in whole groups. What is missing is added step by step, while there are money and
    room, after the cooldown. A width that the run cannot have is refused, with the nearest that it can.
    """
    session.show(session.call("resize", run=session.key(run), to=to), draw_width)


def draw_width(answer: Answer) -> None:
    """What became of it, in a line."""
    before, width = answer["before"]["allocated"], answer["width"]
    wide = f"{width['allocated']} GPUs" if before == width["allocated"] else f"{before} → {width['allocated']} GPUs"
    click.echo(f"run/{bare(answer['name'])} {wide}, {width['desired']} desired")
