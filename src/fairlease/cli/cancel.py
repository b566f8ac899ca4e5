"""`fairlease cancel`: end runs, whether they wait or run."""

from __future__ import annotations

import click

from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import READ, bare, run_argument, verb

_EXAMPLE = """
fairlease cancel my-run
fairlease list --phase Pending -o json | jq -r '.runs[].name' | xargs fairlease cancel
"""


@verb("cancel", example=_EXAMPLE, formats=READ, namespace=True)
@run_argument(several=True)
def command(session: Session, runs: tuple[str, ...]) -> None:
    """End runs.

    Their processes get SIGTERM and, after the grace, SIGKILL. What they used stays on the bill.
    """
    session.show(session.call("cancel", runs=[session.key(run) for run in runs]), _draw)


def _draw(answer: Answer) -> None:
    for run in answer["canceled"]:
        click.echo(f"run/{bare(run)} canceled")
