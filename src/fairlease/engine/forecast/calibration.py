"""Calibration: whether forecasts kept their word, from what was forecast and what then happened.

Of good forecasts four fifths of all starts lie between P10 and P90, half come before P50, nine tenths before P90. Scored is the
forecast that was made when a run began to wait, by the start of that attempt; one that never starts is not scored. The baseline is
what a rehearsal gives in which work lasts as long as the mean of the last two runs like it; it was written down with the forecast.
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.ledger.learning.waits import horizon_of, punctual
from fairlease.ledger.state import events as ev
from fairlease.model.amount import SECOND
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlease.model.record import Key

NAMES = ("under 1h", "1h to 6h", "6h to 1d", "over 1d")
"""What horizons are called."""


class Sample(NamedTuple):
    """One forecast, made at `asked`, and when the run really started; all in milliseconds since 1970."""

    owner: str
    asked: int
    p10: int
    p50: int
    p90: int
    started: int
    baseline: int | None = None

    @property
    def came(self) -> int:
        """When it started, where a moment after a date that was certain is on time."""
        return punctual(self.started, self.p50, self.p90)


class Calibration:
    """A fold over the ledger's past that pairs forecasts with starts."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._owners: dict[Key, str] = {}
        self._told: dict[Key, tuple[int, ev.Foreseen]] = {}
        self._at = 0

    def take(self, at: int, events: Iterable[ev.AnyEvent]) -> None:
        """The events of one entry."""
        self._at = at
        for event in events:
            self._fold(event)

    @singledispatchmethod
    def _fold(self, event: object) -> None:
        """Most events have nothing to do with forecasts."""

    @_fold.register
    def _(self, event: ev.RunSubmitted) -> None:
        self._owners[event.run] = event.spec.owner

    @_fold.register
    def _(self, event: ev.Forecasted) -> None:
        for each in event.runs:
            self._told.setdefault(each.run, (self._at, each))

    @_fold.register
    def _(self, event: ev.LeasesOpened) -> None:
        told = self._told.pop(event.run, None) if event.reason is Reason.Start else None
        if told is not None:
            asked, each = told
            baseline = None if each.baseline is None else asked + each.baseline
            owner = self._owners[event.run]
            self.samples.append(Sample(owner, asked, each.p10, each.p50, each.p90, self._at, baseline))

    @_fold.register
    def _(self, event: ev.RunEnded) -> None:
        self._told.pop(event.run, None)
        self._owners.pop(event.run, None)


def calibrate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Shares and errors over all samples, by owner, and by how far ahead P50 lay."""
    by_owner: dict[str, list[Sample]] = {}
    by_horizon: dict[str, list[Sample]] = {}
    for sample in samples:
        by_owner.setdefault(sample.owner, []).append(sample)
        by_horizon.setdefault(horizon(sample), []).append(sample)
    return {
        **figures(samples),
        "owners": {owner: figures(by_owner[owner]) for owner in sorted(by_owner)},
        "horizons": {name: figures(by_horizon[name]) for name in NAMES if name in by_horizon},
    }


def horizon(sample: Sample) -> str:
    """How far ahead a forecast looked, in words."""
    return NAMES[horizon_of(sample.p50 - sample.asked)]


def figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Shares, errors, and by how much the error is smaller than that of the baseline (1: there is none left)."""
    count = len(samples)
    if not count:
        return {"forecasts": 0}
    told: dict[str, Any] = {
        "forecasts": count,
        "insideP10P90": round(sum(each.p10 <= each.came <= each.p90 for each in samples) / count, 4),
        "beforeP50": round(sum(each.came <= each.p50 for each in samples) / count, 4),
        "beforeP90": round(sum(each.came <= each.p90 for each in samples) / count, 4),
        "meanAbsoluteErrorSeconds": round(sum(abs(each.started - each.p50) for each in samples) / count / SECOND),
    }
    pairs = [(each, each.baseline) for each in samples if each.baseline is not None]
    if pairs:
        ours = sum(abs(each.started - each.p50) for each, _ in pairs)
        theirs = sum(abs(each.started - baseline) for each, baseline in pairs)
        told["lastTwoMeanAbsoluteErrorSeconds"] = round(theirs / len(pairs) / SECOND)
        told["errorBelowLastTwo"] = round(1 - ours / theirs, 4) if theirs else None
    return told
