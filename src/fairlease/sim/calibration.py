"""Calibration: whether forecasts kept their word, from what was forecast and what then happened.

Of good forecasts four fifths of all starts lie between P10 and P90, half come before P50, nine tenths before P90. That is the whole
of it; how forecasts are made is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairlease.model.amount import DAY, HOUR, SECOND

HORIZONS = ((HOUR, "under 1h"), (6 * HOUR, "1h to 6h"), (DAY, "6h to 1d"))
BEYOND = "over 1d"


class Sample(NamedTuple):
    """One forecast, made at `asked`, and when the run really started; all in milliseconds since 1970."""

    owner: str
    asked: int
    p10: int
    p50: int
    p90: int
    started: int


def calibrate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Shares and errors over all samples, by owner, and by how far ahead P50 lay."""
    by_owner: dict[str, list[Sample]] = {}
    by_horizon: dict[str, list[Sample]] = {}
    for sample in samples:
        by_owner.setdefault(sample.owner, []).append(sample)
        by_horizon.setdefault(horizon(sample), []).append(sample)
    names = [*(name for _, name in HORIZONS), BEYOND]
    return {
        **_figures(samples),
        "owners": {owner: _figures(by_owner[owner]) for owner in sorted(by_owner)},
        "horizons": {name: _figures(by_horizon[name]) for name in names if name in by_horizon},
    }


def horizon(sample: Sample) -> str:
    """How far ahead a forecast looked, in words."""
    ahead = sample.p50 - sample.asked
    return next((name for limit, name in HORIZONS if ahead < limit), BEYOND)


def _figures(samples: Sequence[Sample]) -> dict[str, Any]:
    count = len(samples)
    if not count:
        return {"forecasts": 0}
    return {
        "forecasts": count,
        "insideP10P90": round(sum(each.p10 <= each.started <= each.p90 for each in samples) / count, 4),
        "beforeP50": round(sum(each.started <= each.p50 for each in samples) / count, 4),
        "beforeP90": round(sum(each.started <= each.p90 for each in samples) / count, 4),
        "meanAbsoluteErrorSeconds": round(sum(abs(each.started - each.p50) for each in samples) / count / SECOND),
    }
