"""How answers look: kubectl's kind of table for people, JSON and YAML for programs.

A table is plain text without borders; on a terminal it has a little colour and is made to fit (`fit`). No library is
needed for that, which keeps `fairlease list` as quick as `ls`; rich comes in where a picture moves (`watch`).
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from fairlease.cli.failure import printable
from fairlease.cli.render.fit import BY_END, TableFit, fit

FORMATS = ("table", "wide", "json", "yaml")
NOTHING = "-"


class TableCell(NamedTuple):
    """Text with a colour, which only a terminal shows."""

    text: str
    colour: str | None = None


_PHASES = {"Running": "green", "Completed": "cyan", "Failed": "red", "Pending": "yellow"}


def phase_cell(phase: str) -> TableCell:
    """A phase in the colour by which one finds it."""
    return TableCell(phase, _PHASES.get(phase))


def reason_cell(reason: str, good: Sequence[str] = ("Start", "Chosen", "Bound", "Covered", "Completed")) -> TableCell:
    """A reason; what needs no attention is green, what was not asked for plain."""
    plain = ("NotNeeded", "Submitted", NOTHING, "")
    return TableCell(reason or NOTHING, "green" if reason in good else None if reason in plain else "yellow")


def emit(value: object, style: str) -> None:
    """Print a value for programs."""
    click.echo(as_yaml(value) if style == "yaml" else as_json(value), nl=style != "yaml")


def as_json(value: object, *, compact: bool = False) -> str:
    """JSON with its keys in the order in which the API documents them."""
    return json.dumps(value, ensure_ascii=False, indent=None if compact else 2)


def as_yaml(value: object) -> str:
    """The same as YAML."""
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False))


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, colour: bool, empty: str = "", whole: bool = False
) -> None:
    """Print a table; where there is nothing to show, say so on stderr, so that a pipe stays empty.

    On a terminal it is made to fit, unless every word counts (`whole`): then long lines wrap.
    """
    grid = _grid(headings, rows)
    if len(grid) > 1:
        fitted = _fitted(headings, grid, None if whole else terminal_width())
        click.echo("\n".join(_lines(grid, fitted, colour=colour)), color=colour)
        if left_out := [name for at, name in enumerate(headings) if name and at not in fitted[0].columns]:
            click.echo(f"left out for want of room: {', '.join(left_out)}; a pipe shows all", err=True)
    elif empty:
        click.echo(empty, err=True)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print what there is to say of one thing, a line for each fact that there is."""
    said = {name: value for name, value in facts.items() if value not in (None, "", NOTHING)}
    width = max(map(len, facts)) + 2
    for name, value in said.items():
        click.echo(f"{name + ':':<{width}}{value}")


def warn_of_limit(found: int, limit: int) -> None:
    """Say that there may be more: a list that was cut in silence is believed to be whole."""
    if found >= limit:
        click.echo(f"only the first {limit} are shown; --limit shows more", err=True)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, colour: bool = False, width: int | None = None
) -> Iterator[str]:
    """Lines of a table: columns as wide as their widest cell, the last one free; made to fit into `width`."""
    grid = _grid(headings, rows)
    yield from _lines(grid, _fitted(headings, grid, width), colour=colour)


Grid = list[list[TableCell]]


def _grid(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Grid:
    return [[TableCell(heading, "bold") for heading in headings]] + [[_cell(value) for value in row] for row in rows]


def _fitted(headings: Sequence[str], grid: Grid, width: int | None) -> tuple[TableFit, int]:
    widths = [max(len(row[column].text) for row in grid) for column in range(len(headings))]
    return fit(headings, widths, width), width if width is not None else sys.maxsize


def _cell(value: object) -> TableCell:
    cell = value if isinstance(value, TableCell) else TableCell(NOTHING if value is None or value == "" else str(value))
    return TableCell(printable(cell.text), cell.colour)


def _lines(grid: Grid, fitted: tuple[TableFit, int], *, colour: bool) -> Iterator[str]:
    (columns, widths, gap), most = fitted
    for row in grid:
        left, parts = most, []
        for at, (column, wide) in enumerate(zip(columns, widths, strict=True)):
            text = shortened(row[column].text, wide, end=grid[0][column].text in BY_END)
            text = (text if at == len(columns) - 1 else text.ljust(wide + gap))[:left]
            left -= len(text)
            parts.append(paint(text, row[column].colour) if colour and text.strip() else text)
        yield "".join(parts).rstrip()


def paint(text: str, colour: str | None) -> str:
    """Text in a colour (or bold)."""
    if colour is None:
        return text
    return click.style(text, bold=True) if colour == "bold" else click.style(text, fg=colour)


def shortened(text: str, most: int, *, end: bool = False) -> str:
    """Text that leaves room for the columns beside it: its beginning, or its end."""
    if len(text) <= most:
        return text
    return f"…{text[len(text) - most + 1 :]}" if end else f"{text[: most - 1]}…"


def terminal_width() -> int | None:
    """How wide the terminal is; a pipe is as wide as what is put through it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def bar(used: float, whole: float, cells: int = 20, *, plain: bool = True) -> str:
    """How full something is. More than full is full: the numbers beside it tell the rest."""
    share = min(1.0, used / whole) if whole > 0 else float(used > 0)
    full = round(share * cells)
    if full == 0 and used > 0:
        full = 1
    return f"[{'#' * full}{'.' * (cells - full)}]" if plain else "█" * full + "░" * (cells - full)


# --- time and amounts ------------------------------------------------------------------------------------------------


def age(instant: str | None, now_ms: int | None = None) -> str:
    """How long ago an RFC 3339 time was, as kubectl writes it."""
    if not instant:
        return NOTHING
    from fairlease.model.amount import parse_instant

    now = int(time.time() * 1000) if now_ms is None else now_ms
    return span(now - parse_instant(instant))


def until(instant: str | None, now_ms: int | None = None) -> str:
    """How long it is until an RFC 3339 time, as a countdown: `in 14m`; `due` where it has come."""
    if not instant:
        return NOTHING
    from fairlease.model.amount import parse_instant

    left = parse_instant(instant) - (int(time.time() * 1000) if now_ms is None else now_ms)
    return f"in {span(left)}" if left > 0 else "due"


def between(start: str | None, end: str | None) -> str:
    """How long something took, or has taken so far."""
    if not start:
        return NOTHING
    from fairlease.model.amount import parse_instant

    return age(start, parse_instant(end)) if end else age(start)


def span(ms: int) -> str:
    """A length of time as exact as people care for: `45s`, `5m30s`, `119m`, `7h15m`, `30h`, `3d4h`, `200d`."""
    seconds = max(0, ms) // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:  # noqa: PLR2004 - kubectl's own steps, here and below
        return f"{seconds}s"
    if minutes < 10:  # noqa: PLR2004 - as above
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:  # noqa: PLR2004 - as above
        return f"{minutes}m"
    if hours < 8:  # noqa: PLR2004 - as above
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:  # noqa: PLR2004 - as above
        return f"{hours}h"
    return _two(days, "d", hours % 24, "h") if days < 8 else f"{days}d"  # noqa: PLR2004 - as above


def _two(large: int, unit: str, small: int, fraction: str) -> str:
    return f"{large}{unit}{small}{fraction}" if small else f"{large}{unit}"


def hours(value: float | None, *, exact: bool = False) -> str:
    """GPU-hours as one reads them; `exact` to the millisecond of one GPU."""
    if value is None:
        return NOTHING
    if exact:
        return f"{value:.9f}"
    least = 0.01
    if isinstance(value, int) or value == 0:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= least else f"<{least}"


def wanted(progress: bool | None) -> bool:
    """Whether a bar is shown: on a terminal, unless it was refused."""
    return sys.stderr.isatty() and progress is not False


@contextmanager
def progress_bar(
    length: int, *, shown: bool, label: str = "", told: Callable[[int], str] | None = None
) -> Iterator[Callable[[int], None]]:
    """A bar of `length` behind its `label`, told how much is done; `told` says beside it what that is."""
    if not shown or length == 0:
        yield lambda _done: None
        return
    beside = None if told is None else lambda done: "" if done is None else told(done)
    with click.progressbar(length=length, label=label or None, file=sys.stderr, item_show_func=beside) as bar:
        yield lambda done: bar.update(done - bar.pos, done)
