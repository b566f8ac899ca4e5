"""Sortition: which runs stand in the lottery for a claim, and whom it draws (SEMANTICS §7).

A token is a bundle: a rigid run, or what is left of a malleable one, and it ends whole. Work younger than `minRuntime` is not
drawn, nor is work that could not help: that which lies outside the domains where the claim's groups could ever come to lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine import lottery
from fairlease.engine.victims import Victim, whole
from fairlease.model.record import split
from fairlease.model.reservation import Draw, Lottery, Token
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.seats import Seats
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State
    from fairlease.model.record import Key


class Sortition:
    """One lottery: its tokens, its seed and its draws so far."""

    def __init__(
        self, state: State, claim: RunState, standing: list[RunState], now: int, beacon: str, seats: Seats
    ) -> None:
        self.state = state
        old = now - max(
            state.config.min_runtime, 1
        )  # who starts at this instant is not drawn at it: others were cut for it
        helpful = _helpful([run for run in standing if (run.started_at or 0) <= old], seats)
        self.tokens = lottery.in_order(
            Token(owner=run.spec.owner, run=run.key, attempt=run.attempt, gpus=run.width + run.spare_gpus)
            for run in helpful
        )
        self.digest = lottery.conflict_digest(self.tokens)
        name = "" if claim.hold is None else f"{split(claim.key)[0]}/{claim.hold.name}"
        self.seed = lottery.seed_of(name, now, self.digest, state.last_outcome, beacon)
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


def _helpful(runs: list[RunState], seats: Seats) -> list[RunState]:
    """Runs with a pod in a domain that could hold one of the claim's groups if nothing ran there."""
    least = min(seats.first, seats.rest or seats.first)
    domains, nodes = seats.pool.domains, seats.nodes
    good = {domains[key] for key in seats.pods if domains[key].pods_when_empty(seats.need.size) >= least}
    return [run for run in runs if any(nodes[lease.node].domain in good for lease in run.leases.values())]
