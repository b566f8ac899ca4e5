"""How long work ran, as what is known of it: histograms of durations that fade, from all work down to one user's runs of one width.

A histogram has four bins to each doubling of seconds. What is new weighs more than what is old: instead of letting all weights fade
at each end, the weight of what comes grows (`unit`), and sums are divided by it. Half-lives count ends of the same kind, so that a
user's habit of this morning outweighs last month's, and a quiet night forgets nothing.

Asked how long a run will last, each kind of work that it is of, from the widest to the narrowest, is mixed into what is believed so
far: the more ends of that kind lasted longer than the run has lasted already, the more it counts. That is also what corrects a run
that outlives its prediction: of its own kind nothing is left beyond that age, so the long runs of its owner, and then of all, take
over. The figures were chosen on public traces (docs/design/0011-forecasts-learn-from-their-errors.md).

Dates come of this, and dates are hashed: all numbers are integers, so that every machine gets the same. Weights are counted in
parts of `ONE`, shares of what is believed in parts of `WHOLE`; roots and powers of two are worked out in integers, too. Inside a
bin durations are spread evenly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING

from fairlease.model.amount import HOUR, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.undo import UndoLog

BINS = 104
PER_OCTAVE = 4
EDGES = tuple((isqrt(isqrt(16 * SECOND**PER_OCTAVE << place)) + 1) // 2 for place in range(BINS + 1))
"""Where bins begin, in milliseconds: from a second to two years, by fourth roots of two. What is shorter or longer counts in the
first or last."""

SPANS = EDGES[13 : 13 + 84]
"""Spans of which it is asked how much an attempt takes up: from ten seconds to half a year."""

HALF_LIVES = (1000, 300, 4, 2)
"""In ends: of everything, of an owner, of a user in it, of that user's runs of one width."""

BELIEF = 4
"""What is believed of the wider kind counts as much as so many ends of the narrower one."""

UNKNOWN = 2 * HOUR
"""Around what durations are believed to lie where nobody has seen any end."""

_TAIL, _STATED = (1, 10), (3, 8)
"""How fast belief fades on both sides of that, in halvings to each bin, as a fraction; where somebody stated it, faster."""

MIDDLE, HIGH = 500, 900
"""P50 and P90, in thousandths."""

KINDS_MAX = 8192
"""Kinds of work that are remembered. Beyond that, an eighth goes: those of which nothing has ended for the longest time."""

ONE = 1 << 30
"""The weight of an end when it comes first."""

WHOLE = 1 << 40
"""All that is believed of a run."""

_FRACTION = 32
_UNIT_MAX = ONE << 20
_FORGOTTEN = ONE >> 20
_NOTHING = (0,) * BINS
_FOREVER = 1 << 62

Kind = tuple[str, ...]
"""(), (owner,), (owner, user) or (owner, user, GPUs); the user is empty where nobody knows it."""

Kept = tuple[Kind, int | float, int | float, tuple[int, ...], tuple[tuple[int, int | float], ...]]
"""A histogram as a snapshot holds it: its kind, unit, mass, last two durations and weights. Up to format 3 they were floats."""

Layer = tuple[int, list[tuple[int, int]]]
"""What ends of one kind say: the weight of one end, and (bin, weight) of all that lasted long enough."""


def _power(numerator: int, denominator: int) -> int:
    """2 to the power of a fraction, in parts of 1 << _FRACTION: the largest integer whose power is not too large."""
    most = 1 << numerator + _FRACTION * denominator
    low, high = 0, 1 << _FRACTION + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**denominator <= most else (low, middle)
    return low


_GROWTH = tuple(_power(1, ends) for ends in HALF_LIVES)


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
    """Durations of one kind; `mass` is the sum of their weights, `turn` says when the last of them came.

    `last` are the latest two, from which the baseline is made that forecasts are compared with.
    """

    __slots__ = ("last", "mass", "turn", "unit", "weights")

    def __init__(self) -> None:
        self.weights: dict[int, int] = {}
        self.unit = ONE
        self.mass = 0
        self.turn = 0
        self.last: tuple[int, ...] = ()

    def beyond(self, first: int, share: int) -> Layer:
        """What is known from the bin `first` on, of which only a share counts, in parts of `ONE`."""
        found = [(place, weight) for place, weight in self.weights.items() if place > first]
        if first in self.weights:
            found.append((first, share * self.weights[first] // ONE))
        return self.unit, found

    def save(self) -> tuple[int, int, int, tuple[int, ...]]:
        """For the undo log; weights have their own entries in it."""
        return self.unit, self.mass, self.turn, self.last

    def restore(self, saved: tuple[int, int, int, tuple[int, ...]]) -> None:
        """For the undo log."""
        self.unit, self.mass, self.turn, self.last = saved


class Durations:
    """What all work that came to its own end teaches."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, Histogram] = {}
        self._turns = 0

    def ended(self, undo: UndoLog, run: RunState, now: int) -> None:
        """An attempt came to its own end."""
        if run.started_at is not None:
            self.learn(undo, kinds_of(run), now - run.started_at)

    def learn(self, undo: UndoLog, of: tuple[Kind, ...], duration: int) -> None:
        """An attempt of these kinds ended by itself."""
        place = bin_of(duration)
        undo.later(setattr, self, "_turns", self._turns)
        for kind in of:
            found = self.kinds.get(kind)
            if found is None:
                found = Histogram()
                undo.put(self.kinds, kind, found)
            undo.touch(found)
            undo.put(found.weights, place, found.weights.get(place, 0) + found.unit)
            self._turns += 1
            found.turn = self._turns
            found.mass += found.unit
            found.unit = found.unit * _GROWTH[len(kind)] >> _FRACTION
            found.last = (*found.last[-1:], duration)
            if found.unit > _UNIT_MAX:
                _rescale(undo, found)
        if len(self.kinds) > KINDS_MAX:
            for kind in sorted(self.kinds, key=lambda each: self.kinds[each].turn)[: KINDS_MAX // 8]:
                undo.pop(self.kinds, kind)

    def quantiles(self, of: tuple[Kind, ...], elapsed: int, stated: int | None, wanted: Sequence[int]) -> list[int]:
        """How long an attempt of these kinds lasts in all that has lasted for `elapsed`: one for each share (in thousandths)."""
        first, age, found = self._believed(of, elapsed, stated)
        sums = list(accumulate(found))
        return [max(elapsed + 1, _at(sums, first, age, want)) for want in wanted]

    def taken_up(self, of: tuple[Kind, ...], elapsed: int, stated: int | None, limit: int | None) -> tuple[int, ...]:
        """How much of each of `SPANS` an attempt is expected to take up that has lasted for `elapsed`, and ends by its limit.

        What is believed where nothing is known has no part in it where something is: it is so wide that it alone would be the mean.
        """
        first, age, found = self._believed(of, elapsed, stated, by_ends=True)
        most = _FOREVER if limit is None else max(1, limit - elapsed)
        edges = zip((age, *EDGES[first + 1 : -1]), EDGES[first + 1 :], strict=True)
        left = [min(most, max(1, isqrt(low * high) - elapsed)) for low, high in edges]
        whole, taken, ended, place = sum(found), 0, 0, 0
        rows = []
        for span in SPANS:
            while place < len(left) and left[place] <= span:
                taken += left[place] * found[place]
                ended += found[place]
                place += 1
            rows.append((taken + span * (whole - ended)) // whole)
        return tuple(rows)

    def _believed(
        self, of: tuple[Kind, ...], elapsed: int, stated: int | None, *, by_ends: bool = False
    ) -> tuple[int, int, list[int]]:
        """What is believed of how long an attempt lasts in all: weights of bins, from that of its age on.

        `by_ends`: only by what ended, or was stated, if anything did that lasted longer.
        """
        age = min(max(elapsed, EDGES[0]), EDGES[-1] - 1)
        first = bin_of(age)
        share = ONE * (EDGES[first + 1] - age) // (EDGES[first + 1] - EDGES[first])
        layers = [self.kinds[kind].beyond(first, share) for kind in of if kind in self.kinds]
        if stated is not None and bin_of(stated) >= first:
            layers.append((ONE, [(bin_of(stated), ONE)]))
        known = by_ends and any(weight for _, layer in layers for _, weight in layer)
        return first, age, _mixture(layers, first, share, _NOTHING if known else _prior(stated))

    def high(self, of: tuple[Kind, ...], stated: int | None) -> int:
        """How long an attempt lasts at the most, nine times in ten: as `quantiles`, from the top, as every start asks for it."""
        layers: list[tuple[int, dict[int, int]]] = []
        left = WHOLE
        if stated is not None:
            layers.append((ONE * left // (1 + BELIEF), {bin_of(stated): 1}))
            left = left * BELIEF // (1 + BELIEF)
        for kind in reversed(of):
            found = self.kinds.get(kind)
            if found is not None:
                mass = found.mass + BELIEF * found.unit
                layers.append((ONE * left // mass, found.weights))
                left = left * BELIEF * found.unit // mass
        prior, tail = _prior(stated), _prior_tail(stated)
        over, here = ONE * WHOLE * (1000 - HIGH) // 1000, 0
        place = max([max(weights) for _, weights in layers if weights], default=-1) + 1
        if left * tail[place] >= over:  # it lies where nobody has seen an end
            place = bisect_left(range(BINS), 1, key=lambda each: int(left * tail[each] < over)) - 1
            here, over = left * prior[place], over - left * tail[place]
        else:
            over -= left * tail[place]
        while place and over > 0:
            place -= 1
            here = left * prior[place]
            for part, weights in layers:
                if place in weights:
                    here += part * weights[place]
            over -= here
        inside = min(here, max(0, -over))
        return EDGES[place] + ((EDGES[place + 1] - EDGES[place]) * inside // here if here else 0)

    def freeze(self) -> Iterator[Kept]:
        """For a snapshot, in the order in which they were last heard of."""
        for kind, each in sorted(self.kinds.items(), key=lambda item: item[1].turn):
            yield kind, each.unit, each.mass, each.last, tuple(sorted(each.weights.items()))

    def thaw(self, kept: tuple[Kept, ...]) -> None:
        """From a snapshot."""
        for kind, unit, mass, last, weights in kept:
            found = self.kinds[kind] = Histogram()
            self._turns += 1
            found.turn, found.last = self._turns, last
            if isinstance(unit, float):
                found.weights = {place: round(weight / unit * ONE) for place, weight in weights}
                found.mass = sum(found.weights.values())
            else:
                found.unit, found.mass = unit, int(mass)
                found.weights = {place: int(weight) for place, weight in weights}


def _rescale(undo: UndoLog, found: Histogram) -> None:
    """Count in the present unit from now on; what has faded away is forgotten."""
    for place, weight in sorted(found.weights.items()):
        left = weight * ONE // found.unit
        if left < _FORGOTTEN:
            undo.pop(found.weights, place)
        else:
            undo.put(found.weights, place, left)
    found.unit = ONE
    found.mass = sum(found.weights.values())


@lru_cache(maxsize=2 * BINS)
def _faded(centre: int, halvings: tuple[int, int]) -> tuple[int, ...]:
    """Weights of all bins, which fade on both sides of one, and are `ONE` in all."""
    numerator, denominator = halvings
    step, weights = _power(denominator - numerator, denominator), [WHOLE]
    for _ in range(BINS):
        weights.append(weights[-1] * step >> _FRACTION + 1)
    found = [weights[abs(place - centre)] for place in range(BINS)]
    return tuple(ONE * weight // sum(found) for weight in found)


def _prior(stated: int | None) -> tuple[int, ...]:
    """What is believed of work of which nothing is known but what somebody stated."""
    return _faded(bin_of(UNKNOWN), _TAIL) if stated is None else _faded(bin_of(stated), _STATED)


@lru_cache(maxsize=1024)
def _prior_tail(stated: int | None) -> tuple[int, ...]:
    """The sums of these weights from each bin on."""
    return (*accumulate(reversed(_prior(stated)), initial=0),)[::-1]


def _mixture(layers: list[Layer], first: int, share: int, prior: tuple[int, ...]) -> list[int]:
    """Weights that sum up to `ONE` times `WHOLE`, rounding apart, from the bin `first` on."""
    belief = list(prior[first:])
    belief[0] = belief[0] * share // ONE
    left = WHOLE
    scaled: list[tuple[int, list[tuple[int, int]]]] = []
    for unit, layer in reversed(layers):
        mass = sum([weight for _, weight in layer]) + BELIEF * unit
        scaled.append((ONE * left // mass, layer))
        left = left * BELIEF * unit // mass
    left = ONE * left // (sum(belief) or 1)
    found = [left * weight for weight in belief]
    for part, layer in scaled:
        for place, weight in layer:
            found[place - first] += part * weight
    return found


def _at(sums: list[int], first: int, age: int, wanted: int) -> int:
    """Where a share (in thousandths) of the weights lies, by their sums up to each bin; inside a bin they are spread evenly."""
    sought = sums[-1] * wanted // 1000
    place = bisect_left(sums, sought)
    before = sums[place - 1] if place else 0
    low, high, weight = age if place == 0 else EDGES[first + place], EDGES[first + place + 1], sums[place] - before
    return low + ((high - low) * (sought - before) // weight if weight else 0)
