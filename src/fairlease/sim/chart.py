"""Charts as SVG, drawn here: no script, no font and no picture comes from elsewhere, so a page can be mailed and kept.

Colours are variables of the page's style sheet, which knows light and dark; lines differ in their dashes too, so that nobody
needs to tell colours apart. Every chart has a title and a sentence that says what it shows, for those who hear it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from fairlease.model.amount import DAY, HOUR, MINUTE, SECOND

WIDTH, HEIGHT = 880, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 14, 40
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 4", "12 3", "6 2 1 2 1 2")

Tick = tuple[float, str]


class Axis(NamedTuple):
    """From values to places; `start` and `stop` are pixels."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value stands; one beyond the end stands at the end."""
        low, high, value = (self._scaled(each) for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.0
        return round(self.start + (self.stop - self.start) * min(1.0, max(0.0, share)), 1)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.log else value


class Curve(NamedTuple):
    """A named line of points."""

    name: str
    points: Sequence[tuple[float, float]]


class Chart:
    """One picture: a frame with two axes, into which things are drawn."""

    def __init__(self, name: str, title: str, told: str, height: int = HEIGHT) -> None:
        self.name = name
        self.title = title
        self.told = told
        self.height = height
        self.parts: list[str] = []

    def across(self, low: float, high: float, *, log: bool = False) -> Axis:
        """The axis along the bottom."""
        return Axis(low, high, LEFT, WIDTH - RIGHT, log)

    def upward(self, high: float, low: float = 0.0, *, log: bool = False) -> Axis:
        """The axis along the side."""
        return Axis(low, high, self.height - BOTTOM, TOP, log)

    def grid(self, across: Axis, ticks: Sequence[Tick], upward: Axis, levels: Sequence[Tick]) -> None:
        """Thin lines and what they stand for."""
        floor = self.height - BOTTOM
        for value, label in levels:
            y = upward.at(value)
            self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            self.parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        for value, label in ticks:
            x = across.at(value)
            self.parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{floor}" y2="{floor + 5}"/>')
            self.parts.append(
                f'<text class="tick" x="{x}" y="{floor + 20}" text-anchor="middle">{escape(label)}</text>'
            )

    def area(self, across: Axis, upward: Axis, points: Sequence[tuple[float, float]], colour: int) -> None:
        """A line with what lies below it filled."""
        if not points:
            return
        floor = self.height - BOTTOM
        path = _path(across, upward, points)
        first, last = across.at(points[0][0]), across.at(points[-1][0])
        self.parts.append(f'<path class="area c{colour}" d="M{first} {floor} L{path[1:]} L{last} {floor} Z"/>')
        self.parts.append(f'<path class="line c{colour}" fill="none" d="{path}"/>')

    def curve(self, across: Axis, upward: Axis, curve: Curve, colour: int) -> None:
        """A line; the pointer over it shows its name."""
        dash = f' stroke-dasharray="{DASHES[colour]}"' if DASHES[colour] else ""
        path = _path(across, upward, curve.points)
        self.parts.append(
            f'<path class="line c{colour}" fill="none"{dash} d="{path}"><title>{escape(curve.name)}</title></path>'
        )

    def dot(self, x: float, y: float, told: str, colour: int) -> None:
        """One point; the pointer over it shows what it is."""
        self.parts.append(
            f'<circle class="dot c{colour}" cx="{x}" cy="{y}" r="3.5"><title>{escape(told)}</title></circle>'
        )

    def mark(self, across: Axis, value: float, label: str) -> None:
        """An upright line at a moment that matters."""
        x = across.at(value)
        self.parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{self.height - BOTTOM}"/>')
        end = "end" if x > WIDTH / 2 else "start"
        shift = -6 if end == "end" else 6
        self.parts.append(
            f'<text class="tick" x="{x + shift}" y="{TOP + 12}" text-anchor="{end}">{escape(label)}</text>'
        )

    def svg(self) -> str:
        """The whole of it."""
        head = (
            f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-labelledby="{self.name}-t {self.name}-d">'
            f'<title id="{self.name}-t">{escape(self.title)}</title><desc id="{self.name}-d">{escape(self.told)}</desc>'
        )
        return head + "".join(self.parts) + "</svg>"


def _path(across: Axis, upward: Axis, points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{across.at(x)} {upward.at(y)}" for x, y in points)


# --- scales ------------------------------------------------------------------------------------------------------------


def levels(high: float, shown: Callable[[float], str]) -> list[Tick]:
    """Four to six round values up to `high`."""
    if high <= 0:
        return [(0.0, shown(0.0))]
    raw = high / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [(step * number, shown(step * number)) for number in range(int(high / step + 1e-9) + 1)]


_SPANS = (
    (SECOND, "1s"), (10 * SECOND, "10s"), (MINUTE, "1m"), (10 * MINUTE, "10m"), (HOUR, "1h"), (6 * HOUR, "6h"), (DAY, "1d"),
    (7 * DAY, "1w"), (30 * DAY, "30d"), (365 * DAY, "1y"),
)  # fmt: skip


def spans(high: float) -> list[Tick]:
    """Round lengths of time up to `high`, for an axis by powers."""
    return [(value, label) for value, label in _SPANS if value <= high * 1.0001]


_STEPS = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 365 * DAY)


def dates(low: int, high: int) -> list[Tick]:
    """Up to nine round moments between two, with the date, or the hour where they are close."""
    most = 9
    step = next((each for each in _STEPS if (high - low) / each <= most), _STEPS[-1])
    form = "%d %b" if step >= DAY else "%d %b %Hh"
    first = -(-low // step) * step
    return [
        (at, datetime.fromtimestamp(at / SECOND, UTC).strftime(form).lstrip("0")) for at in range(first, high + 1, step)
    ]
