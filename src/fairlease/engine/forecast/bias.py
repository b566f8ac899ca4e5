"""Belief: how far forecasts are off, by what became of others, and what is now believed of those that wait still.

Each witness (`ledger.waits`) tells an error of each expert: what its wait came to, or is now thought to come to, against what was
believed. One that waits still counts by the root of the share of that wait that has passed. What is newer counts more: a witness
counts half as much as one that is younger by `HALF_LIFE` witnesses, or by `HALF_SPAN` of the wait that is asked about, whichever is
less of a difference: where waits are long, what was wrong a wait ago may long be mended; where they are short, so few witnesses say
nothing. The expert whose errors are the most alike speaks.

What its errors have in common is made up for as far as it was seen more than once. Witnesses of one wave tell the same thing
however many they are; only those that stand a whole wait apart know nothing of each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from fairlease.ledger.learning.waits import ACTUAL_MIN, EXPERTS, PLAY_MIN, SHARES, centre, nats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlease.engine.forecast.rehearsal import Start
    from fairlease.ledger.learning.waits import Waits
    from fairlease.model.record import Key

HALF_LIFE = 15.0
HALF_SPAN = 0.1
AGE_MAX = 8
"""In half-lives: beyond it nobody is heard."""

ENOUGH = 5.0
"""Witnesses that must be heard before any other expert speaks than the one that only plays."""

DOUBT = 5.0
"""The rehearsal's own spread counts as much as so many witnesses that came out early, in the middle and late."""

SEEN_APART = 0.7
"""Witnesses that stand a wait apart, by which half of the errors' middle is made up for."""

BEYOND = 1.0
"""How much it counts that the next one may be earlier, or later, than all before it."""

SHARE_MIN, SHARE_MAX = 20_000, 980_000
"""Between what shares P10 and P90 are taken, wherever they lean, in millionths."""

PLAIN = (-nats(4) + nats(1), 0, nats(4) - nats(1))
"""A spread of four times earlier or later: where nothing else is known, and to compare experts by."""

Pool = list[tuple[int, float]]
"""Errors in `nats` with their weights, in order."""


class Heard(NamedTuple):
    """What a witness says: when it was told what, what the wait is thought to come to, and how sure that is (1: it is known)."""

    at: int
    centres: tuple[int, ...]
    wait: int
    weight: float


class Bias:
    """What all witnesses say at a time, given when those that wait are now thought to start."""

    def __init__(self, waits: Waits, now: int, starts: Mapping[Key, Start]) -> None:
        self.now = now
        lean = waits.lean
        shares = [max(SHARE_MIN, min(SHARE_MAX, 1000 * share + by)) for share, by in zip(SHARES, lean, strict=True)]
        self.shares = (min(shares[0], shares[1]), shares[1], max(shares[1], shares[2]))
        self._heard: list[Heard] = []
        for each in waits.latest():
            if each.actual is not None:
                self._heard.append(Heard(each.at, each.centres, each.actual, 1.0))
            elif each.run in starts and now > each.at:
                wait = max(starts[each.run].at, now) - each.at
                self._heard.append(
                    Heard(each.at, each.centres, nats(max(wait, ACTUAL_MIN)), math.sqrt((now - each.at) / wait))
                )
        self._known: dict[int, tuple[int, Pool, float]] = {}

    def waits(self, play: int, usual: int | None, doubt: Sequence[int]) -> list[int]:
        """P10, P50 and P90 of a wait, in milliseconds; `doubt` is the rehearsal's own spread around its middle, in `nats`."""
        expert, pool, heeded = self._pool(max(play, PLAY_MIN).bit_length())
        middle, own = centre(expert, play, usual), nats(max(play, PLAY_MIN))
        known = [middle + error for error in _made_up_for(quantiles(pool, doubt, self.shares), heeded)]
        # What is certain is told exactly, and what is early or late lies on its own side of it.
        p10, p50, p90 = (play if each == own else round(math.exp(each / 1000)) for each in known)
        return [min(p10, p50), p50, max(p50, p90)]

    def _pool(self, size: int) -> tuple[int, Pool, float]:
        """The expert that speaks about waits of so many bits, its errors, and the share of their middle that is made up for."""
        found = self._known.get(size)
        if found is None:
            heard, apart = self._by_age(1 << size - 1)
            found = self._known[size] = *self._best(heard), apart / (apart + SEEN_APART)
        return found

    def _by_age(self, wait: int) -> tuple[list[tuple[Heard, float]], float]:
        """Who is heard about such a wait, each with its weight, and how many those are that stand a wait apart."""
        found, before, apart, younger = [], 0.0, 0.0, self.now
        for each in self._heard:
            age = min(before / HALF_LIFE, (self.now - each.at) / (HALF_SPAN * wait))
            if age > AGE_MAX:
                break
            weight = each.weight * 0.5**age
            found.append((each, weight))
            before += each.weight
            apart += weight * min(1.0, (younger - each.at) / wait)
            younger = each.at
        return found, apart

    def _best(self, heard: list[tuple[Heard, float]]) -> tuple[int, Pool]:
        best = EXPERTS - 1, _errors(heard, EXPERTS - 1)
        if sum(weight for _, weight in heard) < ENOUGH:
            return best
        least = _loss(best[1])
        for expert in range(EXPERTS - 2, -1, -1):
            pool = _errors(heard, expert)
            loss = _loss(pool)
            if loss < least:
                best, least = (expert, pool), loss
        return best


def quantiles(pool: Pool, doubt: Sequence[int], shares: Sequence[int]) -> list[int]:
    """The errors that these shares (in millionths, in order) do not exceed; `doubt` weighs as `DOUBT` witnesses."""
    merged = sorted([*pool, *((each, DOUBT / len(doubt)) for each in doubt)])
    total = sum(weight for _, weight in merged) + 2 * BEYOND
    found, reached, place = [], BEYOND, 0
    for share in shares:
        sought = share / 1_000_000 * total
        while place < len(merged) - 1 and reached + merged[place][1] < sought:
            reached += merged[place][1]
            place += 1
        found.append(merged[place][0])
    return found


def _made_up_for(errors: list[int], share: float) -> list[int]:
    """The same, where a share of the middle one is made up for: moved back towards no error, but none past it."""
    back = round((1 - share) * errors[1])
    if back > 0:
        return [max(min(error, 0), error - back) for error in errors]
    return [min(max(error, 0), error - back) for error in errors]


def _errors(heard: list[tuple[Heard, float]], expert: int) -> Pool:
    return sorted((each.wait - each.centres[expert], weight) for each, weight in heard)


def _loss(pool: Pool) -> float:
    """The pinball loss of the quantiles that these errors give: what it would have cost to be told so."""
    known = quantiles(pool, PLAIN, [1000 * share for share in SHARES])
    loss = 0.0
    for share, value in zip(SHARES, known, strict=True):
        loss += sum(
            weight * (share * (error - value) if error >= value else (1000 - share) * (value - error))
            for error, weight in pool
        )
    return loss
