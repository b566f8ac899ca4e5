"""`fairlease down`: stop the daemon. What it started goes on without it, unless it is told to end it."""

from __future__ import annotations

import time

import click

from fairlease.cli.failure import NO, NO_DAEMON, Failure
from fairlease.cli.session import Session
from fairlease.cli.verb import verb

PATIENCE_S = 60.0
_EXAMPLE = """
fairlease down
fairlease down --end
"""


@verb("down", example=_EXAMPLE)
@click.option("--end", is_flag=True, help="End all runs first; by default they go on, and the next daemon finds them.")
def command(session: Session, end: bool) -> None:
    """Stop the daemon; runs go on, or end with --end.

    Returns when it is gone. A daemon that is not there is no error.
    """
    try:
        pid = session.call("status")["pid"]
        left = session.call("stop", end=end)["left"]
    except Failure as failure:
        if failure.exit_code != NO_DAEMON:
            raise
        click.echo("no daemon is running", err=True)
        return
    _wait_until_gone(session, pid)
    click.echo(f"stopped (pid {pid}){'; runs go on, and the next daemon finds them' if left else ''}")


def _wait_until_gone(session: Session, pid: int) -> None:
    """The socket goes first, the ledger's lock last: wait for the process itself."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if not _runs(pid):
            return
        time.sleep(0.05)
    remedy = f"look at {session.home_path() / 'daemon.log'}"
    raise Failure(f"the daemon (pid {pid}) has not stopped within {PATIENCE_S:.0f} s", code=NO, remedy=remedy)


def _runs(pid: int) -> bool:
    """Whether a process is still there and not only waiting to be buried by whoever started it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123 - a file of the kernel
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
