"""How long work ran, as what is known of it: histograms of durations that fade, from all work down to one user's runs of one width.

A histogram has four bins to each doubling of seconds. What is new weighs more than what is old: instead of letting all weights fade
at each end, the weight of what comes grows (`unit`), and sums are divided by it. Half-lives count ends of the same kind, so that a
user's habit of this morning outweighs last month's, and a quiet night forgets nothing.

Asked how long a run will last, each kind of work that it is of, from the widest to the narrowest, is mixed into what is believed so
far: the more ends of that kind lasted longer than the run has lasted already, the more it counts. That is also what corrects a run
that outlives its prediction: of its own kind nothing is left beyond that age, so the long runs of its owner, and then of all, take
over. The figures were chosen on public traces (docs/design/0011-forecasts-learn-from-their-errors.md).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

from fairlease.model.amount import HOUR, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.undo import UndoLog

BINS = 104
PER_OCTAVE = 4
EDGES = tuple(round(SECOND * 2 ** (place / PER_OCTAVE)) for place in range(BINS + 1))
"""Where bins begin, in milliseconds: from a second to two years. What is shorter or longer counts in the first or last."""

SPANS = EDGES[13 : 13 + 84]
"""Spans of which it is asked how much an attempt takes up: from ten seconds to half a year."""

HALF_LIVES = (1000, 300, 4, 2)
"""In ends: of everything, of an owner, of a user in it, of that user's runs of one width."""

BELIEF = 4.0
"""What is believed of the wider kind counts as much as so many ends of the narrower one."""

UNKNOWN = 2 * HOUR
"""Around what durations are believed to lie where nobody has seen any end."""

_TAIL, _STATED = 0.4, 1.5
"""How fast belief fades on both sides of that, in halvings to each doubling of time; where somebody stated it, faster."""

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9

_LOG_EDGES = tuple(math.log(edge) for edge in EDGES)
_GROWTH = tuple(2 ** (1 / ends) for ends in HALF_LIVES)
_UNIT_MAX = 1e6
_FORGOTTEN = 1e-6

_NOTHING = (0.0,) * BINS

Kind = tuple[str, ...]
"""(), (owner,), (owner, user) or (owner, user, GPUs); the user is empty where nobody knows it."""

Kept = tuple[Kind, float, float, tuple[int, ...], tuple[tuple[int, float], ...]]
"""A histogram as a snapshot holds it: its kind, unit, mass, last two durations and weights."""


def bin_of(duration: int) -> int:
    """The bin that holds a duration."""
    return min(BINS - 1, max(0, bisect_right(EDGES, duration) - 1))


def kinds(owner: str, user: str | None, gpus: int) -> tuple[Kind, ...]:
    """The kinds that a run is of, from the widest to the narrowest."""
    if user is None:
        return (), (owner,), (owner, "", str(gpus))
    return (), (owner,), (owner, user), (owner, user, str(gpus))


def kinds_of(run: RunState) -> tuple[Kind, ...]:
    """The kinds that a run is of."""
    return kinds(run.spec.owner, run.by, run.spec.resources.total_gpus)


class Histogram:
    """Durations of one kind, `mass` is the sum of their weights.

    `last` are the latest two, from which the baseline is made that forecasts are compared with.
    """

    __slots__ = ("last", "mass", "unit", "weights")

    def __init__(self) -> None:
        self.weights: dict[int, float] = {}
        self.unit = 1.0
        self.mass = 0.0
        self.last: tuple[int, ...] = ()

    def beyond(self, first: int, share: float) -> list[tuple[int, float]]:
        """(bin, weight) from the bin `first` on, of which only a share counts, in units of the latest end."""
        unit = self.unit
        found = [(place, weight / unit) for place, weight in self.weights.items() if place > first]
        if first in self.weights:
            found.append((first, share * self.weights[first] / unit))
        return found

    def save(self) -> tuple[float, float, tuple[int, ...]]:
        """For the undo log; weights have their own entries in it."""
        return self.unit, self.mass, self.last

    def restore(self, saved: tuple[float, float, tuple[int, ...]]) -> None:
        """For the undo log."""
        self.unit, self.mass, self.last = saved


class Durations:
    """What all work that came to its own end teaches."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, Histogram] = {}

    def ended(self, undo: UndoLog, run: RunState, now: int) -> None:
        """An attempt came to its own end."""
        if run.started_at is not None:
            self.learn(undo, kinds_of(run), now - run.started_at)

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
            found.mass += found.unit
            found.unit *= _GROWTH[len(kind)]
            found.last = (*found.last[-1:], duration)
            if found.unit > _UNIT_MAX:
                _rescale(undo, found)

    def quantiles(self, of: tuple[Kind, ...], elapsed: int, stated: int | None, wanted: Sequence[float]) -> list[int]:
        """How long an attempt of these kinds lasts in all that has lasted for `elapsed`: one duration for each share asked for."""
        first, age, found = self._believed(of, elapsed, stated)
        return [max(elapsed + 1, _at(found, first, age, want)) for want in wanted]

    def taken_up(self, of: tuple[Kind, ...], elapsed: int, stated: int | None, limit: int | None) -> tuple[float, ...]:
        """How much of each of `SPANS` an attempt is expected to take up that has lasted for `elapsed`, and ends by its limit.

        What is believed where nothing is known has no part in it where something is: it is so wide that it alone would be the mean.
        """
        first, age, found = self._believed(of, elapsed, stated, by_ends=True)
        most = math.inf if limit is None else max(1, limit - elapsed)
        edges = zip((age, *EDGES[first + 1 : -1]), EDGES[first + 1 :], strict=True)
        left = [min(most, max(1.0, math.sqrt(low * high) - elapsed)) for low, high in edges]
        whole, taken, ended, place = sum(found), 0.0, 0.0, 0
        rows = []
        for span in SPANS:
            while place < len(left) and left[place] <= span:
                taken += left[place] * found[place] / whole
                ended += found[place] / whole
                place += 1
            rows.append(taken + span * max(0.0, 1 - ended))
        return tuple(rows)

    def _believed(
        self, of: tuple[Kind, ...], elapsed: int, stated: int | None, *, by_ends: bool = False
    ) -> tuple[int, int, list[float]]:
        """What is believed of how long an attempt lasts in all: weights of bins, from that of its age on.

        `by_ends`: only by what ended, or was stated, if anything did that lasted longer.
        """
        age = min(max(elapsed, EDGES[0]), EDGES[-1] - 1)
        first, share = bin_of(age), 1.0
        if elapsed > EDGES[0]:
            share -= (math.log(age) - _LOG_EDGES[first]) * PER_OCTAVE / math.log(2)
        layers = [self.kinds[kind].beyond(first, share) for kind in of if kind in self.kinds]
        if stated is not None and bin_of(stated) >= first:
            layers.append([(bin_of(stated), 1.0)])
        centre, fade = (bin_of(UNKNOWN), _TAIL) if stated is None else (bin_of(stated), _STATED)
        known = by_ends and any(total(layer) > 0 for layer in layers)
        return first, age, _mixture(layers, first, max(share, 0.0), _NOTHING if known else _prior(centre, fade))

    def high(self, of: tuple[Kind, ...], stated: int | None) -> int:
        """How long an attempt lasts at the most, nine times in ten: as `quantiles`, from the top, as every start asks for it."""
        layers: list[tuple[float, dict[int, float]]] = []
        left = 1.0
        if stated is not None:
            layers.append((1 / (1 + BELIEF), {bin_of(stated): 1.0}))
            left = BELIEF / (1 + BELIEF)
        for kind in reversed(of):
            found = self.kinds.get(kind)
            if found is not None:
                mass = found.mass / found.unit + BELIEF
                layers.append((left / mass / found.unit, found.weights))
                left *= BELIEF / mass
        prior, mass = _whole_prior(stated)
        left /= mass
        over, place, here = 1 - HIGH, BINS, 0.0
        most = max([max(weights) for _, weights in layers if weights], default=-1)
        while place > most + 1 and over > 0:  # nobody has seen an end up there
            place -= 1
            here = left * prior[place]
            over -= here
        while place and over > 0:
            place -= 1
            here = left * prior[place]
            for factor, weights in layers:
                if place in weights:
                    here += factor * weights[place]
            over -= here
        part = min(1.0, max(0.0, -over / here)) if here else 0.0
        return round(math.exp(_LOG_EDGES[place] + part * (_LOG_EDGES[place + 1] - _LOG_EDGES[place])))

    def freeze(self) -> Iterator[Kept]:
        """For a snapshot."""
        for kind, each in sorted(self.kinds.items()):
            yield kind, each.unit, each.mass, each.last, tuple(sorted(each.weights.items()))

    def thaw(self, kept: tuple[Kept, ...]) -> None:
        """From a snapshot."""
        for kind, unit, mass, last, weights in kept:
            found = self.kinds[kind] = Histogram()
            found.unit, found.mass, found.last, found.weights = unit, mass, last, dict(weights)


def _rescale(undo: UndoLog, found: Histogram) -> None:
    """Count in the present unit from now on; what has faded away is forgotten."""
    for place, weight in sorted(found.weights.items()):
        left = weight / found.unit
        if left < _FORGOTTEN:
            undo.pop(found.weights, place)
        else:
            undo.put(found.weights, place, left)
    found.unit = 1.0
    found.mass = math.fsum(found.weights.values())


def total(weights: list[tuple[int, float]]) -> float:
    """Their sum, which does not depend on their order: a trial that is undone may shuffle a dictionary."""
    return math.fsum(weight for _, weight in weights)


@lru_cache(maxsize=1024)
def _prior(centre: int, fade: float) -> tuple[float, ...]:
    return tuple(2.0 ** (-fade * abs(place - centre) / PER_OCTAVE) for place in range(BINS))


@lru_cache(maxsize=1024)
def _whole_prior(stated: int | None) -> tuple[tuple[float, ...], float]:
    """What is believed of work of which nothing is known but what somebody stated, and its sum."""
    prior = _prior(*((bin_of(UNKNOWN), _TAIL) if stated is None else (bin_of(stated), _STATED)))
    return prior, sum(prior)


def _mixture(layers: list[list[tuple[int, float]]], first: int, share: float, prior: tuple[float, ...]) -> list[float]:
    """Weights that sum up to 1, from the bin `first` on."""
    belief = list(prior[first:])
    belief[0] *= share
    left = 1.0
    scaled: list[tuple[float, list[tuple[int, float]]]] = []
    for layer in reversed(layers):
        mass = total(layer) + BELIEF
        scaled.append((left / mass, layer))
        left *= BELIEF / mass
    left /= sum(belief) or 1
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
