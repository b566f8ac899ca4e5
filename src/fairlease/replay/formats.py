"""The formats of public traces, each read line by line into jobs.

What a line says is believed only as far as it makes sense: a number that is none, a job of no GPUs or a name given twice is an
error that names file, line, column and value. Jobs that never ran (SWF: no run time) are left out and counted.

    philly   gzipped CSV: src_row, submit_ts, submit_s, vc, gpus, duration_s, arrival_rank; in order of arrival_rank
    helios   CSV: job_id, user, vc, submit_s, gpus, nodes, duration_s, state; second 0 is `--start`
    swf      Standard Workload Format: 18 numbers to a line, `;` before comments; -1 stands for "not known"
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from fairlease.model.amount import SECOND, parse_instant
from fairlease.model.document import Invalid, Problem, shown
from fairlease.model.rules import a_run_name, an_owner
from fairlease.replay.trace import ROOT, Trace, TraceJob

_GZIP = b"\x1f\x8b"
_LONGEST = 100 * 366 * 24 * 3600
_GPUS_MAX = 1_000_000
_WHOLE = re.compile(r"-?\d{1,15}")
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,9})?")

EXIT_CODES = {"COMPLETED": 0, "CANCELLED": 130, "TIMEOUT": 124, "FAILED": 1, "NODE_FAIL": 1}
"""What the state of a Slurm job becomes; 130 and 124 are what a shell tells of an interrupt and of `timeout`."""

COLUMNS = {
    "philly": ("src_row", "submit_ts", "submit_s", "vc", "gpus", "duration_s", "arrival_rank"),
    "helios": ("job_id", "user", "vc", "submit_s", "gpus", "nodes", "duration_s", "state"),
}
SWF_FIELDS = (
    "job", "submit", "wait", "run time", "allocated", "cpu", "memory", "requested processors", "requested time",
    "requested memory", "status", "user", "group", "application", "queue", "partition", "preceding", "think",
)  # fmt: skip
SWF_STATUS = {0: 1, 1: 0, 5: 130}
"""Failed, completed, cancelled; anything else is taken as completed."""

PODS_MAX = 64
"""A job of processors alone is divided into as many pods at the most, where its width allows."""

HELIOS_START = "2020-09-01T00:00:00Z"
SWF_START = "1970-01-01T00:00:00Z"


class Row(NamedTuple):
    """One line, by the names of its columns."""

    source: str
    line: int
    cells: dict[str, str]

    def wrong(self, column: str, message: str) -> Invalid:
        """The error that names this place."""
        return Invalid([Problem(self.source, self.line, column, shown(self.cells.get(column)), message)])

    def text(self, column: str) -> str:
        """What a cell says."""
        value = self.cells[column].strip()
        if not value:
            raise self.wrong(column, "empty; expected some text")
        return value

    def whole(self, column: str, least: int = 0, most: int = 10**15) -> int:
        """A whole number within bounds."""
        value = self.cells[column].strip()
        if not _WHOLE.fullmatch(value):
            raise self.wrong(column, "expected a whole number")
        return self._within(column, int(value), least, most)

    def seconds(self, column: str, least: int = 0) -> int:
        """Milliseconds of a number of seconds."""
        value = self.cells[column].strip()
        if not _NUMBER.fullmatch(value):
            raise self.wrong(column, "expected a number of seconds")
        return self._within(column, round(float(value) * SECOND), least * SECOND, _LONGEST * SECOND)

    def _within(self, column: str, value: int, least: int, most: int) -> int:
        if value < least:
            raise self.wrong(column, f"expected {least} or more")
        if value > most:
            raise self.wrong(column, f"expected {most} or less")
        return value

    def owner(self, column: str, prefix: str = "") -> str:
        """The owner that a group or virtual cluster becomes."""
        owner = f"{ROOT}:{prefix}{self.text(column)}"
        if problem := an_owner(owner):
            raise self.wrong(column, problem)
        return owner

    def name(self, column: str) -> str:
        """The name of the run that a job becomes."""
        name = f"job-{self.text(column).lower()}"
        if problem := a_run_name(name):
            raise self.wrong(column, problem)
        return name


def read_trace(path: str | Path, form: str, start: str | None = None) -> Trace:
    """The jobs of a file, in order of asking; raises `Invalid` at the first line that makes no sense."""
    source = str(path)
    try:
        with _opened(Path(path)) as lines:
            jobs, left_out = _READERS[form](source, lines, start)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Invalid([Problem(source, None, "", None, f"cannot be read: {reason}")]) from None
    if not jobs:
        raise Invalid([Problem(source, None, "", None, f"no jobs in it; expected a trace in the form of {form}")])
    return Trace(source, form, tuple(jobs), left_out)


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a file, whether it is packed or not; comments in old logs need not be UTF-8."""
    with path.open("rb") as head:
        packed = head.read(2) == _GZIP
    opener: Callable[..., Iterator[str]] = gzip.open if packed else open
    with opener(path, "rt", encoding="utf-8", errors="replace", newline="") as file:  # type: ignore[attr-defined]  # both are files
        yield file


def _looks_like(first: str) -> str:
    """What a file may be instead, by its first line."""
    cells = {cell.strip() for cell in first.split(",")}
    found = next((form for form, columns in COLUMNS.items() if cells.issuperset(columns)), None)
    if found is None and (first.startswith(";") or len(first.split()) == len(SWF_FIELDS)):
        found = "swf"
    return "" if found is None else f"; it looks like --format {found}"


def _rows(source: str, lines: Iterator[str], form: str) -> Iterator[Row]:
    """The rows of a CSV file that has the columns of a format, and perhaps more."""
    columns = COLUMNS[form]
    table = csv.reader(lines)
    heading = [name.strip() for name in next(table, [])]
    if missing := [name for name in columns if name not in heading]:
        message = f"no such column; expected {', '.join(columns)}{_looks_like(','.join(heading))}"
        raise Invalid([Problem(source, 1, missing[0], None, message)])
    for cells in table:
        if not cells:
            continue
        row = Row(source, table.line_num, dict(zip(heading, cells, strict=False)))
        if len(cells) != len(heading):
            raise row.wrong(heading[min(len(cells), len(heading)) - 1], f"{len(cells)} cells, expected {len(heading)}")
        yield row


Found = tuple[list[TraceJob], int]


def _philly(source: str, lines: Iterator[str], start: str | None) -> Found:
    """Its rows lie in no order; the rank tells who came first, also within one second."""
    names = _Names()
    ranked = []
    for row in _rows(source, lines, "philly"):
        began = _instant(row, "submit_ts") if start is None else parse_instant(start) + row.seconds("submit_s")
        job = TraceJob(
            name=names.new(row, "src_row"),
            asked=began,
            owner=row.owner("vc"),
            gpus=row.whole("gpus", 1, _GPUS_MAX),
            duration=row.seconds("duration_s"),
        )
        ranked.append((row.whole("arrival_rank"), job))
    ranked.sort()
    return sorted((job for _, job in ranked), key=attrgetter("asked")), 0


def _helios(source: str, lines: Iterator[str], start: str | None) -> Found:
    zero = parse_instant(start or HELIOS_START)
    names = _Names()
    jobs = [
        TraceJob(
            name=names.new(row, "job_id"),
            asked=zero + row.seconds("submit_s"),
            owner=row.owner("vc"),
            gpus=row.whole("gpus", 1, _GPUS_MAX),
            duration=row.seconds("duration_s"),
            nodes=row.whole("nodes", 1, _GPUS_MAX),
            user=row.text("user"),
            exit_code=_exit_code(row),
        )
        for row in _rows(source, lines, "helios")
    ]
    return sorted(jobs, key=attrgetter("asked")), 0


def _exit_code(row: Row) -> int:
    state = row.text("state")
    if state not in EXIT_CODES:
        raise row.wrong("state", f"expected one of {', '.join(EXIT_CODES)}")
    return EXIT_CODES[state]


def _swf(source: str, lines: Iterator[str], start: str | None) -> Found:
    """Processors stand for GPUs; the requested time is the limit. The header tells when second 0 was."""
    zero, names, jobs, left_out = parse_instant(start or SWF_START), _Names(), [], 0
    for number, line in enumerate(lines, 1):
        if line.startswith(";"):
            header = re.match(r";\s*UnixStartTime:\s*(\d{1,12})\s*$", line)
            zero = int(header[1]) * SECOND if header and start is None else zero
            continue
        cells = line.split()
        if not cells:
            continue
        row = Row(source, number, dict(zip(SWF_FIELDS, cells, strict=False)))
        if len(cells) != len(SWF_FIELDS):
            at = SWF_FIELDS[min(len(cells), len(SWF_FIELDS)) - 1]
            told = f"{len(cells)} numbers, expected {len(SWF_FIELDS)}{_looks_like(line)}"
            raise row.wrong(at, told)
        job = _swf_job(row, zero, names)
        if job is None:
            left_out += 1
        else:
            jobs.append(job)
    return sorted(jobs, key=attrgetter("asked")), left_out


def _swf_job(row: Row, zero: int, names: _Names) -> TraceJob | None:
    """One job, or None where it never ran: it was canceled while it waited, or nothing is known of it."""
    name = names.new(row, "job")
    duration, limit = row.seconds("run time", -1), row.seconds("requested time", -1)
    wide, asked = row.whole("allocated", -1, _GPUS_MAX), row.whole("requested processors", -1, _GPUS_MAX)
    gpus = asked if asked > 0 else wide
    if duration < 0 or gpus <= 0:
        return None
    user, group = row.whole("user", -1), row.whole("group", -1)
    return TraceJob(
        name=name,
        asked=zero + row.seconds("submit"),
        owner=row.owner("group", "g") if group >= 0 else f"{ROOT}:unknown",
        gpus=gpus,
        duration=duration,
        nodes=processors_apart(gpus),
        limit=limit if limit > 0 else None,
        user=f"u{user}" if user >= 0 else None,
        exit_code=SWF_STATUS.get(row.whole("status", -1), 0),
    )


def processors_apart(processors: int) -> int:
    """Into how many pods a job is divided of which only the processors are known, and no nodes: they may be anywhere.

    One each; where that were more than 64, two, four or eight, so that what is placed stays countable.
    """
    pods = processors
    while pods > PODS_MAX and pods % 2 == 0:
        pods //= 2
    return pods


class _Names:
    """Every job has a name of its own."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def new(self, row: Row, column: str) -> str:
        """The name that a row gives; the second to give it is refused."""
        name = row.name(column)
        before = self._seen.setdefault(name, row.line)
        if before != row.line:
            raise row.wrong(column, f"line {before} has the same")
        return name


def _instant(row: Row, column: str) -> int:
    """A time without a zone is taken as UTC."""
    try:
        return parse_instant(f"{row.text(column)}Z")
    except ValueError:
        raise row.wrong(column, "expected a time, such as 2017-10-09 07:01:55") from None


_READERS: dict[str, Callable[[str, Iterator[str], str | None], Found]] = {
    "philly": _philly,
    "helios": _helios,
    "swf": _swf,
}

FORMATS = tuple(_READERS)
