"""Odds: how likely each run is to be cut for a reservation that comes, before anybody is drawn (SEMANTICS §6, §7).

What goes before the lottery is taken as the resolver would; then the draws are either all thought through, each order with its
probability, or, where there are too many, made: a counted number of lotteries with seeds of their own (SHA-256 over the claim, its
date and a number), none of which can be the seed of the real one. Who is drawn and given back is not counted as cut.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine import lottery
from fairlease.engine.bench import Bench
from fairlease.engine.due_date import due_date
from fairlease.engine.plan import Planner
from fairlease.engine.seats import Seats
from fairlease.engine.sortition import Rolls
from fairlease.engine.victims import whole
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.engine.decide import Engine
    from fairlease.ledger.live import RunState
    from fairlease.model.record import Key
    from fairlease.model.reservation import Token

COUNTED_MIN, COUNTED_MAX = 50, 1_000
"""Orders of draws that are thought through one by one, or lotteries that are drawn where there are more."""

THOUGHT = 60_000
"""Leases that are taken and given back in all of them, about: where many stand in the conflict set, fewer are counted."""

EXACT_MAX = 12
"""Runs in a conflict set of which all orders may be thought through; of more there are too many at any rate."""


class Odds(NamedTuple):
    """The chance of each run that stands in the conflict set; `draws` is how many lotteries were counted, 0 where it is exact."""

    at: int
    chances: dict[Key, float]
    draws: int


class TooMany(Exception):  # noqa: N818 - no error: the other way is taken then
    """More orders than are thought through."""


def odds(engine: Engine, claim: RunState) -> Odds | None:
    """The odds as of the date of the claim's reservation; None where nobody would be cut, or it would not help."""
    with due_date(engine, claim) as day:
        return None if day is None else _on(engine, claim, day.at)


def _on(engine: Engine, claim: RunState, when: int) -> Odds | None:
    planner = Planner(engine.state, engine.family, claim, when)
    if planner.pool is None:
        return None
    seats = Seats(engine.state, planner.pool, planner.reach(), planner.least, planner.way)
    bench = Bench(engine.state, claim, seats)
    if bench.without_draw():
        counted = _Counted(engine, bench, 1)
        counted.leaf(1.0)
        return Odds(when, counted.chances, 0) if bench.taken else None
    tokens = Rolls(engine.state).of(claim, bench.ended(), when, seats).tokens
    leases = sum(len(engine.state.runs[token.run].leases) for token in tokens)
    most = max(COUNTED_MIN, min(COUNTED_MAX, THOUGHT // max(1, leases)))
    if len(tokens) <= EXACT_MAX:
        counted = _Counted(engine, bench, most)
        with suppress(TooMany):
            counted.walk(1.0, _by_owner(tokens))
            return _told(when, tokens, counted, 0)
    counted = _Counted(engine, bench, most)
    for number in range(most):
        seed = hashlib.sha256(f"{claim.key}\n{when}\n{number}\n".encode()).hexdigest()
        counted.draw(lottery.draws(seed, tokens), 1 / most)
    return _told(when, tokens, counted, most)


def _told(when: int, tokens: list[Token], counted: _Counted, draws: int) -> Odds | None:
    """Everybody who stands in it, also with no chance at all; None where no order of draws serves the claim."""
    if not counted.orders:
        return None
    return Odds(when, {token.run: 0.0 for token in tokens} | counted.chances, draws)


def _by_owner(tokens: Iterable[Token]) -> dict[str, tuple[Token, ...]]:
    found: dict[str, tuple[Token, ...]] = {}
    for token in tokens:
        found[token.owner] = (*found.get(token.owner, ()), token)
    return found


class _Counted:
    """Chances, as orders of draws are thought through; what is taken in one is put back before the next."""

    def __init__(self, engine: Engine, bench: Bench, orders_max: int) -> None:
        self.chances: dict[Key, float] = {}
        self.orders = 0
        self.orders_max = orders_max
        self.bench = bench
        self._runs = engine.state.runs
        self._first = bench.save()

    def walk(self, probability: float, left: dict[str, tuple[Token, ...]]) -> None:
        """Every way in which the draws may go on."""
        if self.bench.serves():
            self.leaf(probability)
            return
        saved = self.bench.save()
        for owner, tokens in left.items():
            for token in tokens:
                rest = tuple(each for each in tokens if each is not token)
                others = {**left, owner: rest} if rest else {name: each for name, each in left.items() if name != owner}
                self.bench.take(whole(self._runs[token.run], Reason.RandomPreempt))
                self.walk(probability / len(left) / len(tokens), others)
                self.bench.restore(saved)

    def draw(self, tokens: Iterable[Token], probability: float) -> None:
        """One lottery."""
        for token in tokens:
            self.bench.take(whole(self._runs[token.run], Reason.RandomPreempt))
            if self.bench.serves():
                self.leaf(probability)
                break
        self.bench.restore(self._first)

    def leaf(self, probability: float) -> None:
        """The claim is served: count who really goes."""
        self.orders += 1
        if self.orders > self.orders_max:
            self.bench.restore(self._first)
            raise TooMany
        for run in {victim.run for victim in self.bench.give_back()}:
            self.chances[run] = self.chances.get(run, 0.0) + probability
