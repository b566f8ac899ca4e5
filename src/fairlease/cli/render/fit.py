"""Making a table fit a terminal: first the gaps give way, then long names, and only then columns that matter least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FLEXIBLE = (
    *(
        "NAME",
        "NAMESPACE",
        "OWNER",
        "PAYER",
        "PAID BY",
        "ENVELOPE",
        "BUDGET",
        "MESSAGE",
        "RUN",
        "RUNS",
        "NODE",
        "NODES",
    ),
    *("DOMAIN", "CLUSTER", "REGION", "FLAVOR", "SELECTOR", "LENDS TO", "PATH", "SLOTS", "FREE SLOTS"),
    *("RESERVATION", "BORROWER", "LENDER", "FROM", "CLAIM", "GAVE WAY", "IN QUESTION", "SEED"),
)
"""Columns that may be shortened."""

BY_END = ("OWNER", "PAYER", "PAID BY", "ENVELOPE")
"""Of these the end tells more: `…team-a` and `…team-b` can be told apart."""

WHOLE = ("REASON", "PHASE", "STATE")
"""Columns that nothing shortens."""

LEAST = (
    *("PATH", "OPENED", "ATTEMPT", "OPPORTUNISTIC", "SPARE", "BORROWED", "SELECTOR", "CLUSTER", "REGION", "DOMAIN"),
    *(
        "SHARING",
        "ON EXHAUSTION",
        "LENDS TO",
        "START",
        "END",
        "START/ETA",
        "OPENS",
        "CLOSES",
        "SHARED",
        "LENT",
        "OWNED",
        "OVERDRAWN",
    ),
    *("AS OF", "RESERVED FOR", "P50 AT"),
    *("USED H", "PROMISED H", "NODES", "AGE", "LASTED", "FLAVOR", "ROLE", "MESSAGE", "NAMESPACE", "OWNER"),
    *("PAID BY", "DATE"),
)
"""Columns that may go, the first of them first; when that is not enough, the others, from the right."""

_LEAST_WIDTH = 6
_GAPS = (3, 2, 1)


class TableFit(NamedTuple):
    """Which columns are shown, how wide each is, and how far apart they stand."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    gap: int


def fit(headings: Sequence[str], widths: Sequence[int], most: int | None) -> TableFit:
    """The columns as they fit into `most` characters; what cannot be made to fit is cut by whoever prints it."""
    columns = list(range(len(headings)))
    if most is None or _total(widths, columns, _GAPS[0]) <= most:
        return TableFit(tuple(columns), tuple(widths), _GAPS[0])
    going = _going(headings)
    while True:
        for gap in _GAPS:
            shrunk = _shrunk(headings, widths, columns, most - gap * (len(columns) - 1))
            if shrunk is not None:
                return TableFit(tuple(columns), tuple(shrunk), gap)
        if not going:
            return TableFit(tuple(columns), tuple(widths[column] for column in columns), _GAPS[1])
        columns.remove(going.pop(0))


def _going(headings: Sequence[str]) -> list[int]:
    """The columns in the order in which they may go; never the one that says what a row is about."""
    about = 1 if headings[0] == "NAMESPACE" else 0
    first = [headings.index(name) for name in LEAST if name in headings]
    rest = [at for at in reversed(range(len(headings))) if at not in first and headings[at] not in WHOLE]
    return [at for at in first + rest if at != about]


def _total(widths: Sequence[int], columns: Sequence[int], gap: int) -> int:
    return sum(widths[column] for column in columns) + gap * (len(columns) - 1)


def _shrunk(headings: Sequence[str], widths: Sequence[int], columns: Sequence[int], room: int) -> list[int] | None:
    """The widths with the widest flexible ones shortened until all fit; None where that is not enough."""
    found = [widths[column] for column in columns]
    last = len(headings) - 1
    free = [
        at
        for at, column in enumerate(columns)
        if headings[column] in FLEXIBLE
        or (column == last and headings[column] not in WHOLE and widths[column] > room // 3)
    ]
    least = {at: min(found[at], max(_LEAST_WIDTH, len(headings[columns[at]]))) for at in free}
    while sum(found) > room:
        able = [at for at in free if found[at] > least[at]]
        if not able:
            return None
        found[max(able, key=lambda at: found[at])] -= 1
    return found
