"""Quotas that change by the day: how many GPUs each virtual cluster of a cluster had, from one date to another.

A file has the columns cluster, vc, date_from, date_to (inclusive) and gpus, run-length encoded. Days begin at midnight UTC. Before
its first and after its last date a quota is as it was nearest to that.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fairlease.model.amount import DAY, SECOND
from fairlease.model.document import Invalid, Problem, read_file
from fairlease.replay.trace import ROOT

if TYPE_CHECKING:
    from fairlease.replay.trace import Trace

QUOTA_COLUMNS = ("cluster", "vc", "date_from", "date_to", "gpus")
TOTAL = "total"
"""A row of this name sums up the others."""

Steps = list[tuple[int, int]]
"""From when on so many GPUs."""


def read_quotas(path: str, cluster: str | None, trace: Trace) -> list[tuple[int, dict[str, int]]]:
    """What changes when, by owner: first all that holds when the trace begins, then each later change. Raises `Invalid`."""
    clusters = _read(path)
    if cluster is None and len(clusters) == 1:
        (cluster,) = clusters
    if cluster not in clusters:
        told = "which cluster? name it with --cluster" if cluster is None else f"no cluster {cluster!r}"
        raise Invalid([Problem(path, None, "cluster", None, f"{told}; the file has {', '.join(clusters)}")])
    quotas = clusters[cluster]
    if missing := [owner for owner in trace.owners() if owner not in quotas]:
        message = f"no quota for {', '.join(missing)}, who ask for GPUs in {trace.source}"
        raise Invalid([Problem(path, None, "vc", None, message)])
    changes: dict[int, dict[str, int]] = defaultdict(dict)
    for owner in trace.owners():
        steps = quotas[owner]
        begun = [gpus for at, gpus in steps if at <= trace.begin]
        changes[trace.begin][owner] = begun[-1] if begun else steps[0][1]
        for at, gpus in steps:
            if at > trace.begin:
                changes[at][owner] = gpus
    return sorted(changes.items())


def _read(path: str) -> dict[str, dict[str, Steps]]:
    """Quotas by cluster and owner, each in order of time."""
    text, source = read_file(path)
    table = csv.DictReader(text.splitlines())
    if missing := [name for name in QUOTA_COLUMNS if name not in (table.fieldnames or ())]:
        expected = f"no such column; expected {', '.join(QUOTA_COLUMNS)}"
        raise Invalid([Problem(source, 1, missing[0], None, expected)])
    found: dict[str, dict[str, dict[int, int]]] = {}
    for cells in table:
        line = table.line_num
        first, last = (_day(source, line, name, cells[name]) for name in ("date_from", "date_to"))
        if last < first:
            raise _wrong(source, line, "date_to", cells["date_to"], f"before date_from, {cells['date_from']}")
        gpus = _count(source, line, cells["gpus"])
        if cells["vc"] != TOTAL:
            steps = found.setdefault(cells["cluster"], {}).setdefault(f"{ROOT}:{cells['vc']}", {})
            if first in steps:
                raise _wrong(source, line, "date_from", cells["date_from"], "a quota from that day on was told before")
            steps[first] = gpus
    return {cluster: {owner: _steps(each) for owner, each in owners.items()} for cluster, owners in found.items()}


def _steps(by_day: dict[int, int]) -> Steps:
    """Only what changes."""
    steps: Steps = []
    for at, gpus in sorted(by_day.items()):
        if not steps or steps[-1][1] != gpus:
            steps.append((at, gpus))
    return steps


def _day(source: str, line: int, column: str, text: str | None) -> int:
    try:
        day = datetime.strptime(text or "", "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise _wrong(source, line, column, text, "expected a date, such as 2020-07-21") from None
    return round(day.timestamp()) * SECOND // DAY * DAY


def _count(source: str, line: int, text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit():
        raise _wrong(source, line, "gpus", text, "expected a whole number of GPUs")
    return int(text)


def _wrong(source: str, line: int, column: str, value: str | None, message: str) -> Invalid:
    return Invalid([Problem(source, line, column, value or "nothing", message)])
