"""Predict: how long work will run, from how long work like it ran; kept apart from the limit at which it is killed.

Each kind of work that a run is of (`ledger.durations`), from the widest to the narrowest, is mixed into what is believed so far:
the more ends of that kind lasted longer than the run has lasted already, the more it counts. That is also what corrects a run that
outlives its prediction: of its own kind nothing is left beyond that age, so the long runs of its owner, and then of all, take over.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from fairlease.ledger.durations import BINS, EDGES, PER_OCTAVE, bin_of, kinds, total
from fairlease.model.amount import HOUR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State

BELIEF = 4.0
"""What is believed of the wider kind counts as much as so many ends of the narrower one."""

UNKNOWN = 2 * HOUR
"""Around what durations are believed to lie where nobody has seen any end, very widely: a factor of two weighs 0.4 octaves."""

_TAIL, _STATED = 0.4, 1.5
"""How fast belief fades on both sides of that, in halvings to each doubling of time; where somebody stated it, faster."""

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
_LOG_EDGES = tuple(math.log(edge) for edge in EDGES)


@lru_cache(maxsize=1024)
def _prior(centre: int, fade: float) -> tuple[float, ...]:
    return tuple(2.0 ** (-fade * abs(place - centre) / PER_OCTAVE) for place in range(BINS))


def quantiles(state: State, run: RunState, elapsed: int, wanted: Sequence[float] = (LOW, MIDDLE, HIGH)) -> list[int]:
    """How long an attempt lasts in all, given that it has lasted for `elapsed`: one duration for each share asked for."""
    age = min(max(elapsed, EDGES[0]), EDGES[-1] - 1)
    first = bin_of(age)
    share = 1.0 if elapsed <= EDGES[0] else 1 - (math.log(age) - _LOG_EDGES[first]) / (_LOG_EDGES[1] - _LOG_EDGES[0])
    found = _mixture(state, run, first, share)
    limit = run.spec.runtime.max_duration
    least = elapsed + 1
    durations = [max(least, _at(found, first, age, want)) for want in wanted]
    return durations if limit is None else [min(each, max(limit, least)) for each in durations]


def _mixture(state: State, run: RunState, first: int, share: float) -> list[float]:
    """Weights that sum up to 1, from the bin `first` on."""
    stated = run.spec.runtime.expected_duration
    layers = []
    for kind in kinds(run.spec.owner, run.by, run.spec.resources.total_gpus):
        histogram = state.durations.kinds.get(kind)
        if histogram is not None:
            layers.append(histogram.beyond(first, share))
    if stated is not None and bin_of(stated) >= first:
        layers.append([(bin_of(stated), 1.0)])
    prior = _prior(bin_of(UNKNOWN), _TAIL) if stated is None else _prior(bin_of(stated), _STATED)
    belief = list(prior[first:])
    belief[0] *= share
    left = 1.0
    scaled: list[tuple[float, list[tuple[int, float]]]] = []
    for layer in reversed(layers):
        mass = total(layer) + BELIEF
        scaled.append((left / mass, layer))
        left *= BELIEF / mass
    left /= sum(belief)
    found = [left * weight for weight in belief]
    for factor, layer in scaled:
        for place, weight in layer:
            found[place - first] += factor * weight
    return found


def _at(weights: list[float], first: int, age: int, wanted: float) -> int:
    """Where the share `wanted` of the weights lies; inside a bin they are spread evenly over the logarithm of time."""
    sought, reached, place, weight = wanted * sum(weights), 0.0, 0, 0.0
    for place, weight in enumerate(weights):  # noqa: B007 - where it ends is what is asked
        if reached + weight >= sought:
            break
        reached += weight
    low = math.log(age) if place == 0 else _LOG_EDGES[first + place]
    part = min(1.0, (sought - reached) / weight) if weight else 0.0
    return round(math.exp(low + part * (_LOG_EDGES[first + place + 1] - low)))


def duration_of(state: State, run: RunState) -> int:
    """How long a run will take at the most, nine times in ten."""
    return quantiles(state, run, 0, (HIGH,))[0]


def end_of(state: State, run: RunState, now: int, share: float = HIGH) -> int:
    """By when a running run will have ended, nine times in ten, or as many as asked; not after its deadline."""
    assert run.started_at is not None, "asked of what runs"
    end = run.started_at + quantiles(state, run, now - run.started_at, (share,))[0]
    return end if run.deadline is None else max(now, min(end, run.deadline))


def last_two(state: State, run: RunState, elapsed: int) -> int:
    """What forecasts are compared with: the mean of the last two runs like it, doubled while it is outlived."""
    found = UNKNOWN
    for kind in kinds(run.spec.owner, run.by, run.spec.resources.total_gpus):
        histogram = state.durations.kinds.get(kind)
        if histogram is not None:
            found = sum(histogram.last) // len(histogram.last)
    found = max(1, found)
    while found <= elapsed:
        found *= 2
    limit = run.spec.runtime.max_duration
    return found if limit is None else min(found, max(limit, elapsed + 1))
