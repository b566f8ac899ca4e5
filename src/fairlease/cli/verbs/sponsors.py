"""`fairlease sponsors`: whom a run may borrow from."""

from __future__ import annotations

import click

from fairlease.cli.render.output import NOTHING, hours, show_table
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import HELP, NO_MORE, READ, VerbGroup, completes, run_argument, verb

_EXAMPLE = """
fairlease sponsors list my-run
fairlease sponsors add my-run org:team-b --max 8
"""

command = VerbGroup(
    "sponsors",
    help="Show and change whom a run may borrow from.",
    example=_EXAMPLE,
    context_settings=HELP,
)


@verb(
    "list",
    example="fairlease sponsors list my-run",
    formats=READ,
    namespace=True,
    wide="every answer, and exact hours",
)
@run_argument()
def listing(session: Session, run: str) -> None:
    """List a run's sponsors, in the order in which they are asked.

    GPUS and GPU-HOURS are what each lends and has lent; ROOM is what each could lend now, and ANSWER what stops it.
    """
    session.show(session.call("sponsors.list", run=session.key(run)), lambda answer: _draw(session, answer))


@verb("add", example="fairlease sponsors add my-run org:team-b --max 8", formats=READ, namespace=True, wide=NO_MORE)
@run_argument(living=True)
@click.argument("owner", metavar="OWNER", shell_complete=completes("owners"))
@click.option(
    "--max", "most", type=click.IntRange(min=0), metavar="GPUS", help="GPUs that the run may borrow, from all sponsors."
)
def add(session: Session, run: str, owner: str, most: int | None) -> None:
    """Let a run borrow from one more owner.

    A run that waits is tried again at once. One that runs asks the new sponsor when it grows, and in later attempts.
    """
    full = session.key(run)
    session.show(session.call("sponsors.add", run=full, owner=owner, maxGpus=most), _draw_change)


@verb("remove", example="fairlease sponsors remove my-run org:team-b", formats=READ, namespace=True, wide=NO_MORE)
@run_argument(living=True)
@click.argument("owner", metavar="OWNER", shell_complete=completes("owners"))
def remove(session: Session, run: str, owner: str) -> None:
    """Let a run borrow no more from an owner.

    What it has borrowed already stays until it ends: this is for what starts or grows from now on.
    """
    session.show(session.call("sponsors.remove", run=session.key(run), owner=owner), _draw_change)


for each in (listing, add, remove):
    command.add_command(each)


def _draw(session: Session, answer: Answer) -> None:
    most = answer["maxBorrowGPUs"]
    if not answer["allowBorrow"] or not answer["sponsorNames"]:
        click.echo(f"run/{bare(answer['name'])} borrows from nobody", err=True)
    elif most is not None:
        click.echo(f"run/{bare(answer['name'])} may borrow {most} GPUs in all", err=True)
    rows = [
        (
            each["owner"],
            each["gpus"],
            hours(each["gpuHours"], exact=session.wide),
            NOTHING if each["roomGPUs"] is None else each["roomGPUs"],
            ", ".join(each["answers"] if session.wide else each["answers"][:1])
            if each["named"]
            else "removed: lends nothing more",
        )
        for each in answer["sponsors"]
    ]
    show_table(("SPONSOR", "GPUS", "GPU-HOURS", "ROOM", "ANSWER"), rows, colour=session.colour, empty="no sponsors")


def _draw_change(answer: Answer) -> None:
    asked = ", ".join(answer["sponsorNames"]) if answer["allowBorrow"] else ""
    most = answer["maxBorrowGPUs"]
    told = f"borrows from {asked}" if asked else "borrows from nobody"
    told += f", {most} GPUs at most" if asked and most is not None else ""
    click.echo(f"run/{bare(answer['name'])} {told}" + ("" if answer["changed"] else " (unchanged)"))
