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
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 30, 56
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "3 6", "14 4", "6 2 1 2 1 2")

_LETTER = 10
"""How wide a letter of a tick is, at most."""

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
            anchor = _anchor(x, label)
            self.parts.append(
                f'<text class="tick" x="{x}" y="{floor + 20}" text-anchor="{anchor}">{escape(label)}</text>'
            )

    def name_axes(self, across: str, upward: str) -> None:
        """What is told along the bottom, and along the side; in words, because a tick alone does not say."""
        self.parts.append(f'<text class="axis" x="12" y="{TOP - 12}">{escape(upward)}</text>')
        x, y = WIDTH - RIGHT, self.height - 12
        self.parts.append(f'<text class="axis" x="{x}" y="{y}" text-anchor="end">{escape(across)}</text>')

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
            f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-labelledby="{self.name}-t" aria-describedby="{self.name}-d">'
            f'<title id="{self.name}-t">{escape(self.title)}</title><desc id="{self.name}-d">{escape(self.told)}</desc>'
        )
        around = f'<div class="plot" role="group" aria-label="{escape(self.title)}" tabindex="0">'
        return around + head + "".join(self.parts) + "</svg></div>"


def _anchor(x: float, label: str) -> str:
    """Text stands in the middle of its place, unless it would be cut at the edge of the picture."""
    half = len(label) * _LETTER / 2
    return "end" if x + half > WIDTH else "start" if x < half else "middle"


def _path(across: Axis, upward: Axis, points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{across.at(x)} {upward.at(y)}" for x, y in points)


# --- scales ------------------------------------------------------------------------------------------------------------


def levels(high: float, shown: Callable[[float], str], least: float = 0) -> list[Tick]:
    """Four to six round values up to `high`, fewer where they would be closer than `least`."""
    if high <= 0:
        return [(0.0, shown(0.0))]
    raw = high / 5
    power = 10 ** math.floor(math.log10(raw))
    step = max(least, next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw))
    return [(step * number, shown(step * number)) for number in range(int(high / step + 1e-9) + 1)]


_SPANS = (
    (SECOND, "1s"), (10 * SECOND, "10s"), (MINUTE, "1m"), (10 * MINUTE, "10m"), (HOUR, "1h"), (6 * HOUR, "6h"), (DAY, "1d"),
    (7 * DAY, "1w"), (30 * DAY, "30d"), (365 * DAY, "1y"),
)  # fmt: skip


def spans(high: float) -> list[Tick]:
    """Round lengths of time up to `high`, for an axis by powers."""
    return [(value, label) for value, label in _SPANS if value <= high * 1.0001]


_SEASON = 91 * DAY
_STEPS = (
    MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, _SEASON,
    365 * DAY, 3_650 * DAY,
)  # fmt: skip


def dates(low: int, high: int) -> list[Tick]:
    """Round moments between two, with the hour where they are close, the year where they are far apart; as many as have room."""
    step = next((each for each in _STEPS if (high - low) / each <= (7 if each < DAY else 9)), _STEPS[-1])
    form = "%d %b %H:%M" if step < DAY else "%d %b" if step < _SEASON else "%b %Y"
    first = -(-low // step) * step
    return [
        (at, datetime.fromtimestamp(at / SECOND, UTC).strftime(form).lstrip("0")) for at in range(first, high + 1, step)
    ]


# --- words -------------------------------------------------------------------------------------------------------------


def length(seconds: float) -> str:
    """A length of time with two units at most."""
    left, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def counts(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
