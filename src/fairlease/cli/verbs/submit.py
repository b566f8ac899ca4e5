"""`fairlease submit`: runs from files."""

from __future__ import annotations

import click

from fairlease.cli.objects import files_option, read_objects
from fairlease.cli.render.output import NOTHING
from fairlease.cli.render.runs_table import date_of, full_name, reason
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import NO_MORE, READ, verb, wait_for_nodes_option

_EXAMPLE = """
fairlease submit -f run.yaml
fairlease submit -f sweep.yaml --wait
generate-runs | fairlease submit -f - -o json
"""


@verb("submit", example=_EXAMPLE, formats=READ, namespace=True, wide=NO_MORE)
@files_option("Runs")
@click.option("--wait", is_flag=True, help="Wait until all of them have ended; exit with 1 where one failed.")
@wait_for_nodes_option()
def command(session: Session, files: tuple[str, ...], wait: bool, wait_for_nodes: bool = False) -> None:
    """Submit runs from files.

    All of them or none: where one is refused, nothing is submitted. A run that names no `workdir` works in the directory
    you submit it from.
    """
    objects = read_objects(files, "Run", session.namespace, here=session.here)
    answer = session.call("submit", objects=objects, waitForNodes=wait_for_nodes or None)
    if wait:
        from fairlease.cli.verbs.watch import follow

        if session.output not in ("json", "yaml"):
            draw(answer)
        follow(session, [full_name(run) for run in answer["runs"]], until_done=True, final=True)
    else:
        session.show(answer, draw)


def draw(answer: Answer) -> None:
    """A line for each run: how it stands after the first decision."""
    for run in answer["runs"]:
        status = run.get("status") or {}
        phase = status.get("phase", "Pending")
        told = (reason(status), date_of(status), status.get("message", "")) if phase == "Pending" else ()
        why = "".join(f": {each}" for each in told if each not in ("", NOTHING))
        click.echo(f"run/{bare(full_name(run))} submitted, {phase}{why}")
