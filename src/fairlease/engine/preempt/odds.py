"""Odds: how likely each run is to be cut for a reservation that comes, before anybody is drawn (SEMANTICS §6, §7).

The resolver that the resolver settles once (`engine.resolver`) is asked who would go: for every order of draws, each with its
probability, or, where there are too many, for a counted number of lotteries with seeds of their own (SHA-256 over the claim, its
date, a number and the digest of those who stand in it), none of which can be the seed of the real one. So all that the resolver
looks at counts, where money reaches too. Who is drawn and given back is not counted as cut.
"""

from __future__ import annotations

import hashlib
import math
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.place.plan import Planner
from fairlease.engine.preempt import lottery
from fairlease.engine.preempt.lottery import LotteryPools
from fairlease.engine.preempt.resolve import Resolver
from fairlease.engine.reserve.release_times import due_date
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.engine.context import Engine
    from fairlease.engine.preempt.lottery import LotteryPool
    from fairlease.engine.preempt.victims import Victim
    from fairlease.engine.reserve.release_times import Day
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key
    from fairlease.model.reservation import Token

COUNTED_MIN, COUNTED_MAX = 50, 1_000
"""Orders of draws that are thought through one by one, or lotteries that are drawn where there are more."""

THOUGHT = 60_000
"""Leases that are taken and given back in all of them, about: where many stand in the conflict set, fewer are counted."""

EXACT_MAX = 12
"""Runs in a conflict set of which all orders may be thought through; of more there are too many at any rate."""

EFFORT_MAX, EFFORT_BRIEF = 30_000, 10_000
"""Looks at seats that are spent on either of the two: where each order costs much, few are counted, and it is told how few.
Brief is who looks ahead for everybody between two decisions, and not because somebody asks."""

EVER_COUNTED = 10
"""Lotteries that are drawn whatever they cost."""

SURE = 1 - 1e-9
"""A chance that is certainty, as sums of fractions go."""


class Peril(NamedTuple):
    """The chance that a run loses GPUs in one way, how many at most, and whether that comes in any case, as things stand."""

    chance: float
    gpus: int
    certain: bool


class Odds(NamedTuple):
    """The chance of each run that stands in the conflict set; `draws` is how many lotteries were counted, 0 where it is exact.

    `perils` tells the ways apart in which a run may be cut: one that shrinks may be drawn as well.
    """

    at: int
    chances: dict[Key, float]
    draws: int
    perils: dict[tuple[Key, Reason], Peril]
    deficit_gpus: int

    def certain(self, run: Key) -> bool:
        """Whether a run loses something in any case: in one way for certain, or in one or another whatever is drawn."""
        return any(peril.certain for way, peril in self.perils.items() if way[0] == run) or (
            not self.draws and self.chances[run] >= SURE
        )


def odds(engine: Engine, claim: RunState, effort: int = EFFORT_MAX) -> Odds | None:
    """The odds as of the date of the claim's reservation; None where nobody would be cut, or it would not help."""
    with due_date(engine.state, claim, engine.now) as day:
        return None if day is None else _on(engine, claim, day, effort)


def _on(engine: Engine, claim: RunState, day: Day, effort: int) -> Odds | None:
    when = day.at
    planner = Planner(engine.state, engine.family, claim, when)
    if planner.starts():
        return None
    if planner.pool is None:
        return None
    resolver = Resolver(planner, engine.family, LotteryPools(engine.state), 0, due=day.noticed)
    resolver.choose(lambda pool: pool.tokens)
    leases = sum(len(engine.state.runs[token.run].leases) for token in resolver.tokens)
    most = max(COUNTED_MIN, min(COUNTED_MAX, THOUGHT // max(1, leases)))
    every = _every(resolver, most, effort) if len(resolver.tokens) <= EXACT_MAX else None
    tally, draws = _some(resolver, most, effort) if every is None else (every, 0)
    return tally.odds(when, draws, tally.deficit_gpus, resolver.tokens)


def _every(resolver: Resolver, most: int, effort: int) -> _Tally | None:
    """All orders of draws, each with its probability; None where there are more than `most`, or they cost too much."""
    tally, ways = _Tally(), _Ways()
    for _ in range(most):
        tally.hear(resolver, ways)
        if not ways.next():
            return tally
        if resolver.effort > effort:
            break
    return None


def _some(resolver: Resolver, most: int, effort: int) -> tuple[_Tally, int]:
    """As many lotteries as may be drawn, and how many that were."""
    begun, number = resolver.effort, 0
    tally, seeds = _Tally(), _Seeds(resolver)
    while number < most and (number < EVER_COUNTED or resolver.effort - begun <= effort):
        seeds.number = number
        tally.hear(resolver, seeds)
        number += 1
    return tally, number


class _Tally:
    """Who went how often, in orders of draws of some weight each."""

    def __init__(self) -> None:
        self.deficit_gpus = 0
        self._weight = 0.0
        self._runs: dict[Key, float] = {}
        self._ways: dict[tuple[Key, Reason], tuple[float, int]] = {}

    def hear(self, resolver: Resolver, draws: _Ways | _Seeds) -> None:
        """One order more; where nobody is touched it counts as well."""
        found = resolver.choose(draws.order)
        if found is not None and found.victims and not self.deficit_gpus:
            self.deficit_gpus = resolver.deficit_gpus(found)
        self.add([] if found is None else found.victims, draws.chance)

    def add(self, victims: Iterable[Victim], weight: float) -> None:
        """These went."""
        gpus: dict[tuple[Key, Reason], int] = {}
        for victim in victims:
            way = victim.run, victim.reason
            gpus[way] = gpus.get(way, 0) + victim.gpus
        for run in {run for run, _ in gpus}:
            self._runs[run] = self._runs.get(run, 0.0) + weight
        for way, lost in gpus.items():
            before = self._ways.get(way, (0.0, 0))
            self._ways[way] = before[0] + weight, max(before[1], lost)
        self._weight += weight

    def odds(self, when: int, draws: int, deficit_gpus: int, tokens: Iterable[Token]) -> Odds | None:
        """All who stand in it, also with no chance at all; None where no order of draws has anybody cut."""
        if not self._runs:
            return None
        whole = self._weight if draws else 1.0
        chances = {token.run: 0.0 for token in tokens} | {run: each / whole for run, each in self._runs.items()}
        perils = {
            way: Peril(each / whole, gpus, each >= SURE * whole and not (draws and way[1] is Reason.RandomPreempt))
            for way, (each, gpus) in self._ways.items()
        }
        return Odds(when, chances, draws, perils, deficit_gpus)


class _Seeds:
    """Lotteries with seeds of their own, one for each number."""

    chance = 1.0

    def __init__(self, resolver: Resolver) -> None:
        self.number = 0
        self._of = f"{resolver.planner.run.key}\n{resolver.planner.now}\n"

    def order(self, pool: LotteryPool) -> Iterator[Token]:
        """As a seed draws them; who stands in it is part of the seed, as in the real one."""
        seed = hashlib.sha256(f"{self._of}{self.number}\n{pool.digest}\n".encode()).hexdigest()
        return lottery.draws(seed, pool.tokens)


class _Ways:
    """Every way in which draws may go, one after the other: all of them are turned as the wheels of a counter are.

    A wheel is one draw: which of those that were left it took, and how likely each of them was. Only as many draws count as were
    asked for. Where others stand in the lottery the seed is another, too, so their draws are wheels of their own.
    """

    def __init__(self) -> None:
        self._wheels: list[tuple[int, list[float]]] = []
        self._pools: dict[str, list[int]] = {}
        self._turned = 0

    @property
    def chance(self) -> float:
        """How likely it is that all goes as it just went."""
        return math.prod(chances[taken] for taken, chances in self._wheels[: self._turned])

    def order(self, pool: LotteryPool) -> Iterator[Token]:
        """Those on a pool, in the order that this way has for them."""
        wheels, left = self._pools.setdefault(pool.digest, []), list(pool.tokens)
        for place in count():
            if not left:
                return
            if place == len(wheels):
                wheels.append(self._turned)
                self._turned += 1
            if wheels[place] == len(self._wheels):
                self._wheels.append((0, list(map(float, lottery.odds_of(left)))))
            yield left.pop(self._wheels[wheels[place]][0])

    def next(self) -> bool:
        """Go on to the next way; False where all have been gone."""
        del self._wheels[self._turned :]
        while self._wheels:
            taken, chances = self._wheels.pop()
            if taken + 1 < len(chances):
                self._wheels.append((taken + 1, chances))
                break
        self._pools, self._turned = {}, 0
        return bool(self._wheels)
