"""How long work ran, as what is known of it: histograms of durations that fade, from all work down to one user's runs of one width.

A histogram has four bins to each doubling of seconds. What is new weighs more than what is old: instead of letting all weights fade
at each end, the weight of what comes grows (`unit`), and sums are divided by it. Half-lives count ends of the same kind, so that a
user's habit of this morning outweighs last month's, and a quiet night forgets nothing. The figures were chosen on public traces
(docs/design/0010-forecasts-learn-from-their-errors.md).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from fairlease.model.amount import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.ledger.undo import UndoLog

BINS = 104
PER_OCTAVE = 4
EDGES = tuple(round(SECOND * 2 ** (place / PER_OCTAVE)) for place in range(BINS + 1))
"""Where bins begin, in milliseconds: from a second to two years. What is shorter or longer counts in the first or last."""

HALF_LIVES = (1000, 300, 4, 2)
"""In ends: of everything, of an owner, of a user in it, of that user's runs of one width."""

_GROWTH = tuple(2 ** (1 / ends) for ends in HALF_LIVES)
_UNIT_MAX = 1e6
_FORGOTTEN = 1e-6

Kind = tuple[str, ...]
"""(), (owner,), (owner, user) or (owner, user, GPUs); the user is empty where nobody knows it."""

Kept = tuple[Kind, float, tuple[int, ...], tuple[tuple[int, float], ...]]
"""A histogram as a snapshot holds it: its kind, unit, last two durations and weights."""


def bin_of(duration: int) -> int:
    """The bin that holds a duration."""
    return min(BINS - 1, max(0, bisect_right(EDGES, duration) - 1))


def kinds(owner: str, user: str | None, gpus: int) -> tuple[Kind, ...]:
    """The kinds that a run is of, from the widest to the narrowest."""
    if user is None:
        return (), (owner,), (owner, "", str(gpus))
    return (), (owner,), (owner, user), (owner, user, str(gpus))


class Histogram:
    """Durations of one kind. `last` are the latest two, from which the baseline is made that forecasts are compared with."""

    __slots__ = ("last", "unit", "weights")

    def __init__(self) -> None:
        self.weights: dict[int, float] = {}
        self.unit = 1.0
        self.last: tuple[int, ...] = ()

    def beyond(self, first: int, share: float) -> list[tuple[int, float]]:
        """(bin, weight) from the bin `first` on, of which only a share counts, in units of the latest end."""
        unit = self.unit
        found = [(place, weight / unit) for place, weight in self.weights.items() if place > first]
        if first in self.weights:
            found.append((first, share * self.weights[first] / unit))
        return found

    def save(self) -> tuple[float, tuple[int, ...]]:
        """For the undo log; weights have their own entries in it."""
        return self.unit, self.last

    def restore(self, saved: tuple[float, tuple[int, ...]]) -> None:
        """For the undo log."""
        self.unit, self.last = saved


class Durations:
    """What all work that came to its own end teaches."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, Histogram] = {}

    def learn(self, undo: UndoLog, of: tuple[Kind, ...], duration: int) -> None:
        """An attempt of these kinds ended by itself."""
        place = bin_of(duration)
        for kind in of:
            found = self.kinds.get(kind)
            if found is None:
                found = Histogram()
                undo.put(self.kinds, kind, found)
            undo.touch(found)
            undo.put(found.weights, place, found.weights.get(place, 0.0) + found.unit)
            found.unit *= _GROWTH[len(kind)]
            found.last = (*found.last[-1:], duration)
            if found.unit > _UNIT_MAX:
                _rescale(undo, found)

    def freeze(self) -> Iterator[Kept]:
        """For a snapshot."""
        for kind, each in sorted(self.kinds.items()):
            yield kind, each.unit, each.last, tuple(sorted(each.weights.items()))

    def thaw(self, kept: tuple[Kept, ...]) -> None:
        """From a snapshot."""
        for kind, unit, last, weights in kept:
            found = self.kinds[kind] = Histogram()
            found.unit, found.last, found.weights = unit, last, dict(weights)


def _rescale(undo: UndoLog, found: Histogram) -> None:
    """Count in the present unit from now on; what has faded away is forgotten."""
    for place, weight in sorted(found.weights.items()):
        left = weight / found.unit
        if left < _FORGOTTEN:
            undo.pop(found.weights, place)
        else:
            undo.put(found.weights, place, left)
    found.unit = 1.0


def total(weights: list[tuple[int, float]]) -> float:
    """Their sum, which does not depend on their order: a trial that is undone may shuffle a dictionary."""
    return math.fsum(weight for _, weight in weights)
