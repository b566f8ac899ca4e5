"""The ledger for other programs: every lease, or what each envelope was charged for whom, as CSV or Parquet.

Rows stream from the store to the file, and a file appears under its name only when it is whole. Hours are decimal text
with nine digits, computed with integers: enough to read the GPU-milliseconds back, which stand beside them.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from fairlease.ledger.store import LeaseRow
from fairlease.model.amount import HOUR, format_instant

STDOUT = "-"

LEASES = {
    "lease": "string", "run": "string", "owner": "string", "payer": "string", "budget": "string", "envelope": "string",
    "fund": "string", "role": "string", "node": "string", "gpus": "int64", "start": "instant", "end": "instant",
    "closure": "string", "gpuMs": "int64", "gpuHours": "string",
}  # fmt: skip
"""The columns of a lease: `owner` is the run's, `payer` the owner of the Budget; an open lease has no end."""

CHARGES = {
    "budget": "string", "envelope": "string", "owner": "string", "fund": "string", "leases": "int64", "gpuMs": "int64",
    "gpuHours": "string",
}  # fmt: skip
"""The columns of a charge: what the leases of one owner cost one envelope, by fund."""

_BATCH = 20_000

Line = tuple[Any, ...]
Sink = Callable[[list[Line]], None]


class CannotExport(Exception):  # noqa: N818 - it says what happened
    """The export cannot be written, and what to do about it."""


def export_leases(rows: Iterable[LeaseRow], now: int, target: str, form: str = "csv") -> int:
    """Write a line for each lease to a file, or to `-`; open leases are charged up to `now`. Gives the count."""
    return _write(LEASES, (_lease(row, now) for row in rows), target, form)


def export_charges(rows: Iterable[LeaseRow], now: int, target: str, form: str = "csv") -> int:
    """Write what each envelope was charged for the runs of each owner: the sums of the lease lines, exactly."""
    return _write(CHARGES, _charges(rows, now), target, form)


def charged(row: LeaseRow, now: int) -> int:
    """What a lease cost, in GPU-ms; up to `now` where it is open."""
    end = now if row.end is None else row.end
    return row.lease.gpus * max(0, end - row.lease.start)


def hours_text(gpu_ms: int) -> str:
    """GPU-hours as decimal text, rounded to nine digits; the GPU-ms can be read back from it."""
    whole, rest = divmod(gpu_ms, HOUR)
    digits = f"{(rest * 10**9 + HOUR // 2) // HOUR:09d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def _lease(row: LeaseRow, now: int) -> Line:
    lease, payer = row.lease, row.lease.payer
    gpu_ms = charged(row, now)
    return (
        lease.name, lease.run, lease.owner, payer.owner, payer.budget, payer.envelope, payer.fund.value,
        lease.role.value, lease.node, lease.gpus, lease.start, row.end, row.closure, gpu_ms, hours_text(gpu_ms),
    )  # fmt: skip


def _charges(rows: Iterable[LeaseRow], now: int) -> Iterator[Line]:
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    for row in rows:
        payer = row.lease.payer
        total = sums.setdefault((payer.budget, payer.envelope, row.lease.owner, payer.fund.value), [0, 0])
        total[0] += 1
        total[1] += charged(row, now)
    for whom, (leases, gpu_ms) in sorted(sums.items()):
        yield (*whom, leases, gpu_ms, hours_text(gpu_ms))


def _write(columns: dict[str, str], lines: Iterator[Line], target: str, form: str) -> int:
    open_sink = {"csv": _csv, "parquet": _parquet}[form]
    count = 0
    with _whole(target, form) as file, open_sink(file, columns) as put:
        while batch := list(islice(lines, _BATCH)):
            put(batch)
            count += len(batch)
    return count


@contextmanager
def _whole(target: str, form: str) -> Iterator[IO[bytes]]:
    """The file to write to; it gets its name once it is complete and on the disk, and else leaves nothing behind."""
    if target == STDOUT:
        if form != "csv":
            raise CannotExport(f"{form} is not written to standard output; name a file")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise CannotExport(f"{target} cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _csv(file: IO[bytes], columns: dict[str, str]) -> Iterator[Sink]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    instants = [place for place, kind in enumerate(columns.values()) if kind == "instant"]

    def put(batch: list[Line]) -> None:
        for line in batch:
            shown = list(line)
            for place in instants:
                shown[place] = "" if line[place] is None else format_instant(line[place])
            writer.writerow(shown)

    try:
        writer.writerow(columns)
        yield put
    finally:
        text.detach()  # the file is closed by who opened it; standard output is not closed at all


@contextmanager
def _parquet(file: IO[bytes], columns: dict[str, str]) -> Iterator[Sink]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional, and 175 MB
        from pyarrow import parquet  # noqa: PLC0415 - the same
    except ImportError as error:
        raise CannotExport("Parquet needs pyarrow: pip install 'fairlease[parquet]'") from error
    types = {"string": pa.string(), "int64": pa.int64(), "instant": pa.timestamp("ms", tz="UTC")}
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:

        def put(batch: list[Line]) -> None:
            cells = zip(zip(*batch, strict=True), schema, strict=True)
            arrays = [pa.array(column, type=field.type) for column, field in cells]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield put
