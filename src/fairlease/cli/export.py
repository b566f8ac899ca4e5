"""`fairlease export`: the rows behind the bill, for spreadsheets and warehouses."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click

from fairlease.cli.failure import BAD_INPUT, Failure
from fairlease.cli.leases import When
from fairlease.cli.session import Session, refused
from fairlease.cli.verb import verb

_EXAMPLE = """
fairlease export charges > charges.csv
fairlease export leases --format parquet -O leases.parquet
fairlease export leases --db /backup/ledger.db --since 2026-01-01T00:00:00Z -O january.csv
"""
_WHOLE = ("attempt", "group", "rank", "gpus", "leases")
_TIMES = ("start", "end")


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
    session: Session, what: str, style: str, out: str, db: str | None, since: str | None, until: str | None
) -> None:
    """Write leases or charges as CSV or Parquet.

    `leases` has a row for each lease, `charges` one for each run and payer. Leases that are open are charged up to now; with
    --db, up to the last entry. Whole leases are charged: --since and --until choose which, they do not cut them.
    """
    if style == "parquet" and out == "-" and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal; give a file with -O FILE")
    if db is None:
        text: str = session.call("export", what=what, since=since, until=until)["csv"]
    else:
        text = _from_file(db, what, since, until)
    body = text.encode() if style == "csv" else as_parquet(text)
    _write(body, out)


def _from_file(db: str, what: str, since: str | None, until: str | None) -> str:
    from fairlease.ledger.sqlite import SqliteStore
    from fairlease.ledger.sqlite_file import CannotOpen
    from fairlease.ledger.store import LeaseQuery
    from fairlease.local.children import export_csv
    from fairlease.local.server import Refused
    from fairlease.model.amount import parse_instant

    query = LeaseQuery(
        since=None if since is None else parse_instant(since), until=None if until is None else parse_instant(until)
    )
    try:
        with SqliteStore(db, readonly=True) as store:
            now = store.head().at
        text: str = export_csv(Path(db), what, query, now)["csv"]
    except CannotOpen as error:
        raise Failure(str(error), remedy="give the ledger.db of a daemon's home, or a copy of it") from None
    except Refused as error:
        raise refused(error.error) from None
    return text


def as_parquet(text: str) -> bytes:
    """The same rows with types: whole numbers, hours, instants in milliseconds; what is empty is null."""
    try:
        import pyarrow as pa
        from pyarrow import csv, parquet
    except ImportError:
        remedy = "install fairlease[parquet], or use --format csv"
        raise Failure("Parquet needs pyarrow, which is not installed", code=BAD_INPUT, remedy=remedy) from None
    names = text.partition("\n")[0].split(",")
    types = {name: pa.string() for name in names}
    types |= {name: pa.int64() for name in names if name in _WHOLE}
    types |= {name: pa.timestamp("ms", tz="UTC") for name in names if name in _TIMES}
    types["gpuHours"] = pa.float64()
    options = csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""])
    rows = csv.read_csv(io.BytesIO(text.encode()), convert_options=options)
    out = io.BytesIO()
    parquet.write_table(rows, out)
    return out.getvalue()


def _write(body: bytes, out: str) -> None:
    if out == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        return
    try:
        Path(out).write_bytes(body)
    except OSError as error:
        raise Failure(f"-O {out}: cannot be written: {error.strerror}", code=BAD_INPUT) from None
    click.echo(f"{out}: {len(body)} bytes", err=True)
