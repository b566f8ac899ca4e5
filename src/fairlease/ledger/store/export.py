"""The ledger for other programs: every lease, or what each envelope was charged for which run, as CSV or Parquet.

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
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, Any, TypeAlias

from fairlease.ledger.store.protocol import LeaseRow
from fairlease.model.amount import HOUR, format_instant, parse_instant
from fairlease.model.lease import Lease, Role
from fairlease.model.record import split

STDOUT = "-"

LEASES = {
    "lease": "string", "namespace": "string", "run": "string", "owner": "string", "attempt": "int64", "group": "int64",
    "rank": "int64", "role": "string", "node": "string", "slots": "string", "gpus": "int64", "start": "instant",
    "end": "instant", "closure": "string", "budget": "string", "envelope": "string", "payer": "string", "fund": "string",
    "class": "string", "reason": "string", "gpuMilliseconds": "int64", "gpuHours": "string",
}  # fmt: skip
"""The columns of a lease: `owner` is the run's, `payer` the owner of the Budget; an open lease has no end."""

CHARGES = {
    "namespace": "string", "run": "string", "owner": "string", "budget": "string", "envelope": "string", "payer": "string",
    "class": "string", "leases": "int64", "gpuMilliseconds": "int64", "gpuHours": "string",
}  # fmt: skip
"""The columns of a charge: what the leases of one run and class cost one envelope. The class is the fund, or `spare`."""

_BATCH = 20_000

Target: TypeAlias = "str | IO[bytes]"
"""Where to: a file's name, `-` for standard output, or an open file."""

Line = tuple[Any, ...]
Sink = Callable[[list[Line]], None]


class CannotExport(Exception):  # noqa: N818 - it says what happened
    """The export cannot be written, and what to do about it."""


def export(what: str, rows: Iterable[LeaseRow], now: int, target: Target, form: str = "csv") -> int:
    """Write `leases` or `charges` as `csv` or `parquet`; open leases are charged up to `now`. Gives the count of lines."""
    return {"leases": export_leases, "charges": export_charges}[what](rows, now, target, form)


def export_leases(rows: Iterable[LeaseRow], now: int, target: Target, form: str = "csv") -> int:
    """Write a line for each lease."""
    return _write(LEASES, (_lease(row, now) for row in rows), target, form)


def export_charges(rows: Iterable[LeaseRow], now: int, target: Target, form: str = "csv") -> int:
    """Write what each envelope was charged for each run: the sums of the lease lines, exactly."""
    return _write(CHARGES, _charges(rows, now), target, form)


def save(body: bytes, target: Target) -> None:
    """Write an export that is complete already, as whole as any other."""
    with _whole(target, "csv") as file:
        file.write(body)


def rewrite(what: str, text: str, target: Target, form: str = "csv") -> int:
    """Write an export that came as CSV text, from a daemon, in another form: the columns are known, so nothing is lost."""
    columns = {"leases": LEASES, "charges": CHARGES}[what]
    lines = csv.reader(io.StringIO(text, newline=""))
    if next(lines, None) != list(columns):
        raise CannotExport("the daemon gives other columns: it is of another version than this program")
    readers = [_READERS[kind] for kind in columns.values()]
    cells = (tuple(read(cell) for read, cell in zip(readers, line, strict=True)) for line in lines)
    return _write(columns, cells, target, form)


_READERS: dict[str, Callable[[str], Any]] = {
    "string": lambda cell: cell or None,
    "int64": int,
    "instant": lambda cell: parse_instant(cell) if cell else None,
}


def charged(row: LeaseRow, now: int) -> int:
    """What a lease cost, in GPU-ms; up to `now` where it is open."""
    end = now if row.end is None else row.end
    return row.lease.gpus * max(0, end - row.lease.start)


def hours_text(gpu_ms: int) -> str:
    """GPU-hours as decimal text, rounded to nine digits; the GPU-ms can be read back from it."""
    whole, rest = divmod(gpu_ms, HOUR)
    digits = f"{(rest * 10**9 + HOUR // 2) // HOUR:09d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def _class(lease: Lease) -> str:
    return "spare" if lease.role is Role.SPARE else lease.payer.fund.value


def _lease(row: LeaseRow, now: int) -> Line:
    lease, payer = row.lease, row.lease.payer
    gpu_ms = charged(row, now)
    return (
        lease.name, *split(lease.run), lease.owner, lease.attempt, lease.group, lease.rank, lease.role.value, lease.node,
        " ".join(map(str, lease.slots)), lease.gpus, lease.start, row.end, row.closure, payer.budget, payer.envelope,
        payer.owner, payer.fund.value, _class(lease), lease.reason.value, gpu_ms, hours_text(gpu_ms),
    )  # fmt: skip


def _charges(rows: Iterable[LeaseRow], now: int) -> Iterator[Line]:
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        lease, payer = row.lease, row.lease.payer
        whom = (*split(lease.run), lease.owner, payer.budget, payer.envelope, payer.owner, _class(lease))
        total = sums.setdefault(whom, [0, 0])
        total[0] += 1
        total[1] += charged(row, now)
    for charge, (leases, gpu_ms) in sums.items():
        yield (*charge, leases, gpu_ms, hours_text(gpu_ms))


def _write(columns: dict[str, str], lines: Iterator[Line], target: Target, form: str) -> int:
    open_sink = {"csv": _csv, "parquet": _parquet}[form]
    count = 0
    with _whole(target, form) as file, open_sink(file, columns) as put:
        while batch := list(islice(lines, _BATCH)):
            put(batch)
            count += len(batch)
    return count


@contextmanager
def _whole(target: Target, form: str) -> Iterator[IO[bytes]]:
    """The file to write to; it gets its name once it is complete and on the disk, and else leaves nothing behind."""
    if not isinstance(target, str):
        yield target
        return
    if target == STDOUT:
        if form != "csv":
            raise CannotExport(f"{form} is not written to standard output; name a file")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    try:
        with _into(path) if _is_no_file(path) else _named_when_whole(path.resolve()) as file:
            yield file
    except OSError as error:
        raise CannotExport(f"{target} cannot be written: {error.strerror}") from error


def _is_no_file(path: Path) -> bool:
    """Whether something is there that is no file but can be written to: a device or a pipe, such as `/dev/stdout`."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _into(path: Path) -> Iterator[IO[bytes]]:
    """What cannot be put in the place of: it is written to once the export is whole. Parquet looks back while it is written."""
    with path.open("wb") as out, TemporaryFile() as whole:
        yield whole
        whole.seek(0)
        copyfileobj(whole, out)


@contextmanager
def _named_when_whole(path: Path) -> Iterator[IO[bytes]]:
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
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
