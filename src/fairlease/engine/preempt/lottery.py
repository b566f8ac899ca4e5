"""Lottery: which runs stand in it for a claim, and draws that anybody can repeat (SEMANTICS §7; docs/design/oversubscription.md).

A token is a bundle: a rigid run, or what is left of a malleable one, and it ends whole. Work younger than `minRuntime` is not
drawn, nor is work that could not help. The seed is a SHA-256 over what nobody could choose alone. The draws come from an
HMAC-SHA256 counter: uniform, without replacement, first among owners in order of their names, then among the owner's tokens in
order of their runs. Nothing here depends on the order of a map or on Python's own generator.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from fractions import Fraction
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.preempt.victims import in_scope
from fairlease.model.amount import format_instant
from fairlease.model.reservation import Draw, Lottery, Token

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from fairlease.engine.place.fit_count import FitCount
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.record import Key

_SPAN = 1 << 64


def conflict_digest(tokens: Iterable[Token]) -> str:
    """SHA-256 over one line per token of a list in order: owner, run, attempt, GPUs, separated by tabs."""
    lines = "".join([f"{each.owner}\t{each.run}\t{each.attempt}\t{each.gpus}\n" for each in tokens])
    return hashlib.sha256(lines.encode()).hexdigest()


def in_order(tokens: Iterable[Token]) -> list[Token]:
    """Tokens as the record lists them: by owner, then by run (code points sort as the bytes of UTF-8 do)."""
    return sorted(tokens, key=attrgetter("owner", "run"))


def seed_of(reservation: str, at: int, digest: str, previous: str, beacon: str) -> str:
    """SHA-256 over five lines: the reservation, the time of its activation, the two digests, the beacon (empty: none)."""
    lines = (reservation, format_instant(at), digest, previous, beacon)
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


class Counter:
    """Numbers below a bound, each from the first eight bytes of HMAC-SHA256(seed, counter) that do not favour any."""

    def __init__(self, seed: str) -> None:
        self._key = bytes.fromhex(seed)
        self._count = 0

    def below(self, bound: int) -> int:
        """The next number from 0 to `bound` − 1."""
        limit = _SPAN - _SPAN % bound
        while True:
            block = hmac.digest(self._key, self._count.to_bytes(8, "big"), "sha256")
            self._count += 1
            number = int.from_bytes(block[:8], "big")
            if number < limit:
                return number % bound


def draws(seed: str, tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens of a list in order, as they are drawn, until none is left."""
    counter = Counter(seed)
    owners: dict[str, list[Token]] = {}
    for token in tokens:
        owners.setdefault(token.owner, []).append(token)
    names = list(owners)
    while names:
        place = counter.below(len(names))
        theirs = owners[names[place]]
        yield theirs.pop(counter.below(len(theirs)))
        if not theirs:
            del names[place]


def odds_of(tokens: Sequence[Token]) -> list[Fraction]:
    """For each token, the odds of being the first that is drawn: an owner in so many, then one of that owner's."""
    counts: dict[str, int] = {}
    for token in tokens:
        counts[token.owner] = counts.get(token.owner, 0) + 1
    return [Fraction(1, len(counts) * counts[token.owner]) for token in tokens]


class LotteryPool(NamedTuple):
    """The runs in a lottery, in order, and the digest of them; alike for whoever may draw those that began by `since`, or later.

    From `until` on it would be others.
    """

    tokens: list[Token]
    digest: str
    since: int
    until: int

    def seed(self, state: State, claim: RunState, now: int, beacon: str) -> str:
        """The seed of a draw among them for a claim."""
        return seed_of(claim.reservation, now, self.digest, state.last_outcome, beacon)

    def proof(self, drawn: Iterable[Token], seed: str, beacon: str, ended: Collection[Key]) -> Lottery:
        """What a stranger needs to draw again, and who of the drawn was given back."""
        draws = tuple(Draw(owner=token.owner, run=token.run, given_back=token.run not in ended) for token in drawn)
        return Lottery(tokens=tuple(self.tokens), conflict_digest=self.digest, seed=seed, draws=draws, beacon=beacon)


class LotteryPools:
    """The funded work in scope and the lottery pools of all claims that are thought through over one state: alike for most."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._funded: dict[tuple[object, ...], list[RunState]] = {}
        self._known: dict[tuple[object, ...], LotteryPool] = {}

    def funded(self, fit: FitCount) -> list[RunState]:
        """Running work in scope that has a claim to its GPUs, in no particular order."""
        found = self._funded.get(fit.scope)
        if found is None:
            found = self._funded[fit.scope] = in_scope(fit, self.state.claimants.get(fit.pool.flavor, {}))
        return found

    def of(self, claim: RunState, gone: frozenset[Key], now: int, fit: FitCount) -> LotteryPool:
        """Who could be drawn for a claim, besides those that go already, or with all that it could use."""
        # Who starts at this instant is not drawn at it: others were preempted for it.
        started_by = now - max(self.state.config.min_runtime, 1)
        apart = gone.union(claim.displaced_by)
        kind = (*fit.scope, apart)
        found = self._known.get(kind)
        if found is None or not found.since <= started_by < found.until:
            found = self._known[kind] = self._called(self.funded(fit), apart, started_by)
        return found

    @staticmethod
    def _called(funded: Iterable[RunState], apart: Collection[Key], started_by: int) -> LotteryPool:
        tokens, since, until = list[Token](), 0, sys.maxsize
        for run in funded:
            started = run.started_at or 0
            if started > started_by:
                until = min(until, started)
                continue
            since = max(since, started)
            if run.key not in apart:
                gpus = run.width + run.spare_gpus
                tokens.append(Token(owner=run.spec.owner, run=run.key, attempt=run.attempt, gpus=gpus))
        tokens = in_order(tokens)
        return LotteryPool(tokens, conflict_digest(tokens), since, until)
