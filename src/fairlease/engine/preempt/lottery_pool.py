"""Sortition: which runs stand in the lottery for a claim, and the record of whom it draws (SEMANTICS §7).

A token is a bundle: a rigid run, or what is left of a malleable one, and it ends whole. Work younger than `minRuntime` is not
drawn, nor is work that could not help: that which has no pod on a node that the claim could use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.preempt import lottery
from fairlease.model.reservation import Draw, Lottery, Token

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from fairlease.engine.place.fit_count import FitCount
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.record import Key


class LotteryPool(NamedTuple):
    """Who stands in a lottery, in order, and the digest of it; alike for whoever may draw those that began by `since`, or later.

    From `until` on it would be others.
    """

    tokens: list[Token]
    digest: str
    since: int
    until: int


class LotteryPools:
    """The rolls of all lotteries that are thought through over one state: alike for most claims, and all that runs is in them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._known: dict[tuple[object, ...], LotteryPool] = {}

    def of(self, claim: RunState, gone: frozenset[Key], now: int, seats: FitCount) -> LotteryPool:
        """Who could be drawn for a claim, besides those that go already, or with all that it could use."""
        # Who starts at this instant is not drawn at it: others were cut for it.
        started_by, flavor = now - max(self.state.config.min_runtime, 1), claim.spec.resources.gpu_type
        apart = gone.union(claim.displaced_by)
        kind = (flavor, apart, *seats.usable_by)
        found = self._known.get(kind)
        if found is None or not found.since <= started_by < found.until:
            found = self._known[kind] = self._called(flavor, apart, started_by, seats)
        return found

    def _called(self, flavor: str, apart: Collection[Key], started_by: int, seats: FitCount) -> LotteryPool:
        """All with a claim that started in time and have a pod where it would help, in one look at what runs."""
        tokens, since, until = list[Token](), 0, sys.maxsize
        nodes, wholly, usable = self.state.capacity.nodes, seats.wholly, seats.usable
        for key, run in self.state.claimants.get(flavor, {}).items():
            started = run.started_at or 0
            if started > started_by:
                until = min(until, started)
                continue
            since = max(since, started)
            if key in apart:
                continue
            for lease in run.leases.values():
                # The first alone says so of nearly all, without a call.
                if nodes[lease.node].domain in wholly or usable(lease):
                    gpus = run.width + run.spare_gpus
                    tokens.append(Token(owner=run.spec.owner, run=key, attempt=run.attempt, gpus=gpus))
                    break
        tokens = lottery.in_order(tokens)
        return LotteryPool(tokens, lottery.conflict_digest(tokens), since, until)


def seed_of(state: State, claim: RunState, roll: LotteryPool, now: int, beacon: str) -> str:
    """The seed of a lottery among those on a roll."""
    return lottery.seed_of(claim.reservation, now, roll.digest, state.last_outcome, beacon)


def drawn(seed: str, roll: LotteryPool) -> Iterator[Token]:
    """Those on a roll as a seed draws them."""
    return lottery.draws(seed, roll.tokens)


def proof(roll: LotteryPool, drawn: Iterable[Token], seed: str, beacon: str, ended: Collection[Key]) -> Lottery:
    """What a stranger needs to draw again, and who of the drawn was given back."""
    draws = tuple(Draw(owner=token.owner, run=token.run, given_back=token.run not in ended) for token in drawn)
    return Lottery(tokens=tuple(roll.tokens), conflict_digest=roll.digest, seed=seed, draws=draws, beacon=beacon)
