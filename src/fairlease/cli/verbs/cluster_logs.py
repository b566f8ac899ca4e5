"""`kubectl runs logs`: what a run's pods wrote."""

from __future__ import annotations

import sys

import click

from fairlease.cli.cluster import ClusterSession
from fairlease.cli.session import bare
from fairlease.cli.verb import run_argument, verb

_EXAMPLE = """
kubectl runs logs my-run
kubectl runs logs my-run --rank 0 -f
kubectl runs logs my-run --attempt 1 -c trainer
"""


@verb("logs", example=_EXAMPLE, namespace=True)
@run_argument()
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only what this rank wrote.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="A", help="Of this attempt; by default the last.")
@click.option("-c", "--container", metavar="NAME", default="", help="Of this container; by default the first.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run has ended.")
def command(
    session: ClusterSession, run: str, rank: int | None, attempt: int | None, container: str, following: bool
) -> None:
    """Print what a run's pods wrote.

    Lines of several ranks begin with `[rank]`. Pods of runs that ended are kept until the Run is deleted, and their logs
    with them. A run that has not started has written nothing; `-f` waits for it.
    """
    from fairlease.kube.api.refused import name_key
    from fairlease.kube.commands.podlogs import PodLogs

    out = sys.stdout.buffer

    def put(text: bytes) -> None:
        out.write(text)
        out.flush()

    async def work() -> int:
        logs = PodLogs(session.link.api, name_key(session.key(run)), rank, attempt, container, put)
        await (logs.follow() if following else logs.read())
        return logs.printed

    api = session.link.api
    assert api is not None
    if not session.link.run(work()) and not following:
        click.echo(f"{bare(session.key(run))} has written nothing", err=True)
