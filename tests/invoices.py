"""A stranger's invoice: what everybody owes, from the exported CSV of leases alone. Shares no code with Fairlease."""

from __future__ import annotations

import csv
import io
from collections import Counter
from datetime import UTC, datetime, timedelta

Row = dict[str, str]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(text: str) -> list[Row]:
    """The lines of an export."""
    return list(csv.DictReader(io.StringIO(text)))


def milliseconds(instant: str) -> int:
    """An RFC 3339 time as milliseconds since 1970."""
    return (datetime.fromisoformat(instant) - _EPOCH) // timedelta(milliseconds=1)


def spent(row: Row, now: int, begin: int | None = None, end: int | None = None) -> int:
    """GPU-milliseconds that a lease has cost by `now`, inside a window where one is given."""
    last = milliseconds(row["end"]) if row["end"] else now
    first = milliseconds(row["start"])
    first = first if begin is None else max(first, begin)
    last = last if end is None else min(last, end)
    return len(row["slots"].split()) * max(0, last - first)


def by_payer(rows: list[Row], now: int) -> Counter[tuple[str, ...]]:
    """What each envelope owes for each run, spares apart from the rest."""
    owed: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        kind = "spare" if row["role"] == "Spare" else row["fund"]
        run = f"{row['namespace']}/{row['run']}"
        owed[run, row["owner"], row["budget"], row["envelope"], row["payer"], kind] += spent(row, now)
    return owed


def by_envelope(
    rows: list[Row], now: int, windows: dict[tuple[str, str], tuple[int | None, int | None]]
) -> Counter[tuple[str, str]]:
    """What each envelope has consumed inside its window."""
    owed: Counter[tuple[str, str]] = Counter()
    for row in rows:
        envelope = row["budget"], row["envelope"]
        if envelope in windows:
            owed[envelope] += spent(row, now, *windows[envelope])
    return owed


def by_run(rows: list[Row], now: int) -> dict[str, tuple[int, int, Counter[str]]]:
    """What each run cost: its work, its spares, and what each sponsor lent its work."""
    found: dict[str, tuple[int, int, Counter[str]]] = {}
    for row in rows:
        run, cost = f"{row['namespace']}/{row['run']}", spent(row, now)
        work, spares, sponsors = found.get(run, (0, 0, Counter()))
        if row["role"] == "Spare":
            spares += cost
        else:
            work += cost
            if row["fund"] == "borrowed":
                sponsors[row["payer"]] += cost
        found[run] = work, spares, sponsors
    return found
