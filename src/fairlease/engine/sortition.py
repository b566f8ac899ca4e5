"""Sortition: which runs stand in the lottery for a claim, and whom it draws (SEMANTICS §7).

A token is a bundle: a rigid run, or what is left of a malleable one, and it ends whole. Work younger than `minRuntime` is not
drawn, nor is work that could not help: that which lies outside the domains where the claim's groups could ever come to lie.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine import lottery
from fairlease.engine.victims import Victim, whole
from fairlease.model.reservation import Draw, Lottery, Token
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fairlease.engine.seats import Seats
    from fairlease.ledger.capacity import Domain
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State
    from fairlease.model.record import Key


class Roll(NamedTuple):
    """Who stands in a lottery, in order, and the digest of it; alike for whoever may draw those that began by `since`, or later.

    From `until` on it would be others.
    """

    tokens: list[Token]
    digest: str
    since: int
    until: int


class Rolls:
    """The rolls of all lotteries that are thought through over one state: alike for most claims, and all that runs is in them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._known: dict[tuple[object, ...], Roll] = {}

    def of(self, claim: RunState, ended: frozenset[Key], now: int, seats: Seats) -> Roll:
        """Who could be drawn for a claim, besides those that have `ended` already."""
        # Who starts at this instant is not drawn at it: others were cut for it.
        started_by, flavor = now - max(self.state.config.min_runtime, 1), claim.spec.resources.gpu_type
        apart = ended.union(claim.displaced_by)
        least = min(seats.first, seats.rest or seats.first)
        kind = (flavor, apart, seats.mask, seats.need.size, least)
        found = self._known.get(kind)
        if found is None or not found.since <= started_by < found.until:
            found = self._known[kind] = self._called(flavor, apart, started_by, set(seats.domains.values()))
        return found

    def _called(self, flavor: str, apart: Collection[Key], started_by: int, helpful: set[Domain]) -> Roll:
        """All with a claim that started in time and have a pod in one of some domains, in one look at what runs."""
        nodes, tokens, since, until = self.state.capacity.nodes, list[Token](), 0, sys.maxsize
        for key, run in self.state.claimants.get(flavor, {}).items():
            started = run.started_at or 0
            if started > started_by:
                until = min(until, started)
                continue
            since = max(since, started)
            if key in apart:
                continue
            for lease in run.leases.values():
                if nodes[lease.node].domain in helpful:
                    gpus = run.width + run.spare_gpus
                    tokens.append(Token(owner=run.spec.owner, run=key, attempt=run.attempt, gpus=gpus))
                    break
        tokens = lottery.in_order(tokens)
        return Roll(tokens, lottery.conflict_digest(tokens), since, until)


class Sortition:
    """One lottery: its tokens, its seed and its draws so far."""

    def __init__(self, state: State, claim: RunState, roll: Roll, now: int, beacon: str) -> None:
        self.state = state
        self.tokens, self.digest = roll.tokens, roll.digest
        self.seed = lottery.seed_of(claim.reservation, now, self.digest, state.last_outcome, beacon)
        self.beacon = beacon
        self._draws: list[Token] = []

    def drawn(self) -> Iterator[Victim]:
        """Whoever is drawn next."""
        for token in lottery.draws(self.seed, self.tokens):
            self._draws.append(token)
            yield whole(self.state.runs[token.run], Reason.RandomPreempt, self.seed)

    def record(self, ended: set[Key]) -> Lottery:
        """What a stranger needs to draw again, and who of the drawn was given back."""
        draws = tuple(
            Draw(owner=token.owner, run=token.run, given_back=token.run not in ended) for token in self._draws
        )
        return Lottery(
            tokens=tuple(self.tokens),
            conflict_digest=self.digest,
            seed=self.seed,
            draws=draws,
            beacon=self.beacon,
        )
