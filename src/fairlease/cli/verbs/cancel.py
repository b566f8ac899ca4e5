"""`fairlease cancel`: end runs, whether they wait or run."""

from __future__ import annotations

import click

from fairlease.cli.failure import BAD_INPUT, NOT_ALLOWED, Failure
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import NO_MORE, READ, run_argument, verb

_EXAMPLE = """
fairlease cancel my-run
fairlease list --phase Pending -o json | jq -r '.runs[].name' | xargs fairlease cancel
"""


@verb("cancel", example=_EXAMPLE, formats=READ, namespace=True, wide=NO_MORE)
@run_argument(several=True, living=True)
def command(session: Session, runs: tuple[str, ...]) -> None:
    """End runs.

    Their processes get SIGTERM and, after the grace, SIGKILL. What they used stays on the bill. Where one of several
    names is wrong or another's, none is canceled.
    """
    try:
        answer = session.call("cancel", runs=[session.key(run) for run in runs])
    except Failure as failure:
        if len(runs) > 1 and failure.code in (BAD_INPUT, NOT_ALLOWED):
            failure.problems += (f"none of the {len(runs)} runs was canceled",)
        raise
    session.show(answer, _draw)


def _draw(answer: Answer) -> None:
    for run in answer["canceled"]:
        click.echo(f"run/{bare(run)} canceled")
