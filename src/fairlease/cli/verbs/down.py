"""`fairlease down`: stop the daemon. What it started goes on without it, unless it is told to end it."""

from __future__ import annotations

from pathlib import Path

import click

from fairlease.cli.failure import BROKEN, NO_DAEMON, Failure
from fairlease.cli.session import Session, refused
from fairlease.cli.verb import verb

_EXAMPLE = """
fairlease down
fairlease down --end
"""


@verb("down", example=_EXAMPLE)
@click.option("--end", is_flag=True, help="End all runs first; by default they go on, and the next daemon finds them.")
def command(session: Session, end: bool) -> None:
    """Stop the daemon; runs go on, or end with --end.

    Returns when it is gone. A daemon that is not there is no error: it is as you wanted it.
    """
    try:
        status = session.call("status")
    except Failure as failure:
        if failure.code != NO_DAEMON or failure.reason == "NoAnswer":
            raise
        click.echo("no daemon is running", err=True)
        return
    from fairlease.local.daemon.launch import NotUp, down
    from fairlease.local.socket.protocol import CallFailed

    try:
        pid = down(Path(status["home"]), end=end)
    except CallFailed as failed:
        raise refused(failed.error) from None
    except NotUp as error:
        raise Failure(str(error), code=BROKEN, remedy=f"look at {Path(status['home']) / 'daemon.log'}") from None
    left = status["runs"].get("Running", 0) if not end else 0
    go_on = "" if not left else f"; {left} run{' goes' if left == 1 else 's go'} on, and the next daemon will find them"
    click.echo(f"stopped (pid {pid}){go_on}")
