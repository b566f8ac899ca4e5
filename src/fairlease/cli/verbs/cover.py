"""`fairlease cover`: the money alone."""

from __future__ import annotations

import click

from fairlease.cli.render.visits import draw_cover, heading
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, completes, verb

_EXAMPLE = """
fairlease cover --explain my-run
fairlease cover -f run.yaml
"""


@verb("cover", example=_EXAMPLE, formats=READ, namespace=True, wide="full names, and what each could change")
@click.option("--explain", "run", metavar="RUN", shell_complete=completes("runs"), help="A run that was submitted.")
@click.option("-f", "--filename", "file", metavar="FILE", help="A run that was not, in a file; `-` is standard input.")
def command(session: Session, run: str | None, file: str | None) -> None:
    """Show whose money a run was offered, and why not.

    Every envelope in the order of cover: the owner's own, the family's, then, where the run borrows, those of sponsors,
    ancestors and cousins.
    """
    if (run is None) == (file is None):
        raise click.UsageError("give either --explain RUN or -f FILE")
    session.show({"covers": _ask(session, run, file)}, lambda answer: _draw(session, answer))


def _ask(session: Session, run: str | None, file: str | None) -> list[Answer]:
    if run is not None:
        full = session.key(run)
        return [{"name": bare(full), **session.call("cover", run=full)}]
    from fairlease.cli.objects import read_objects

    objects = read_objects([file or "-"], "Run", session.namespace)
    return [{"name": each["metadata"]["name"], **session.call("cover", object=each)} for each in objects]


def _draw(session: Session, answer: Answer) -> None:
    for number, each in enumerate(answer["covers"]):
        if len(answer["covers"]) > 1:
            heading(f"{each['name']}:") if number else click.echo(f"{each['name']}:")
        draw_cover(session, each["cover"])
