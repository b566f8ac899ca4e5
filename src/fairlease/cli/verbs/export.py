"""`fairlease export`: the rows behind the bill, for spreadsheets and warehouses."""

from __future__ import annotations

import errno
import sys
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import click

from fairlease.cli.failure import BAD_INPUT, UNWRITTEN, Failure
from fairlease.cli.session import Session
from fairlease.cli.verb import verb
from fairlease.cli.verbs.leases import When

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.ledger.store.export import Target

_EXAMPLE = """
fairlease export charges > charges.csv
fairlease export leases --format parquet -O leases.parquet
fairlease export leases --db /backup/ledger.db --since 2026-01-01T00:00:00Z -O january.csv
"""


@verb("export", example=_EXAMPLE)
@click.argument("what", type=click.Choice(["leases", "charges"]))
@click.option(
    "--format", "style", type=click.Choice(["csv", "parquet"]), default="csv", show_default=True, help="As what."
)
@click.option("-O", "--out", metavar="FILE", default="-", help="Where to; by default to standard output.")
@click.option("--db", metavar="FILE", help="From this ledger's file directly; no daemon is needed.")
@click.option("--since", type=When(), metavar="TIME", help="Only leases that were open at or after this time.")
@click.option("--until", type=When(), metavar="TIME", help="Only leases that were open before this time.")
def command(
    session: Session, what: str, style: str, out: str, since: str | None, until: str | None, db: str | None = None
) -> None:
    """Write leases or charges as CSV or Parquet.

    `leases` has a row for each lease, `charges` one for each run, payer and class: the sums of those leases. The column
    gpuMilliseconds is exact; gpuHours is the same as decimal text, to nine digits. Leases that are open are charged up to
    now; with --db, up to the last entry. Whole leases are charged: --since and --until choose which, they do not cut them.
    """
    if style == "parquet" and out == "-" and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal; give a file with -O FILE")
    from fairlease.ledger.store.export import CannotExport

    def write(target: Target) -> int:
        if db is None:
            return _from_daemon(session, what, style, target, since, until)
        return _from_file(db, what, style, target, since, until)

    try:
        if style == "parquet" and out == "-":
            _through_a_file(write)
            return
        rows = write(out)
    except CannotExport as error:
        raise Failure(str(error), code=_code(error)) from None
    if out != "-":
        click.echo(f"{out}: {rows} rows", err=True)


def _code(error: Exception) -> int:
    """Whose fault it is: that of who named the file, or the disk's."""
    cause = error.__cause__
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return UNWRITTEN if full else BAD_INPUT


def _through_a_file(write: Callable[[Target], int]) -> None:
    """To a pipe: Parquet is written with a look back, which a pipe does not allow."""
    with TemporaryFile() as whole:
        write(whole)
        whole.seek(0)
        copyfileobj(whole, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _from_daemon(session: Session, what: str, style: str, out: Target, since: str | None, until: str | None) -> int:
    """What the daemon answers is CSV already; only another form is made here."""
    from fairlease.ledger.store.export import rewrite, save

    text: str = session.call("export", what=what, since=since, until=until)["csv"]
    if style == "csv":
        save(text.encode(), out)
        return max(0, text.count("\n") - 1)
    return rewrite(what, text, out, style)


def _from_file(db: str, what: str, style: str, out: Target, since: str | None, until: str | None) -> int:
    """From the file to the file, row by row: however long the ledger is."""
    from fairlease.ledger.store.export import export
    from fairlease.ledger.store.protocol import LeaseQuery
    from fairlease.ledger.store.sqlite import SqliteStore
    from fairlease.ledger.store.sqlite_file import CannotOpen
    from fairlease.model.amount import parse_instant

    query = LeaseQuery(
        since=None if since is None else parse_instant(since), until=None if until is None else parse_instant(until)
    )
    try:
        with SqliteStore(db, readonly=True) as store, store.unchanging():
            return export(what, store.leases(query), store.head().at, out, style)
    except CannotOpen as error:
        raise Failure(str(error), remedy="give the ledger.db of a daemon's home, or a copy of it") from None
