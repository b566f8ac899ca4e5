"""Lottery proof: whether an outcome's record, as its JSON stands there, is what its own inputs give.

It takes the record as anybody has it and not as the engine made it; `docs/verify_lottery.py` does the same without a line of ours.
"""

from __future__ import annotations

import hashlib
import json
import re
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlease.engine.preempt import lottery
from fairlease.model.amount import format_instant, parse_instant
from fairlease.model.record import short
from fairlease.model.reservation import OutcomeSpec, Token, reservation_name
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.model.record import Key
    from fairlease.model.reservation import Cut, Lottery

Spec = dict[str, Any]

_AT_ONCE = (Reason.ReclaimOpportunistic, Reason.ReclaimOverdrawn)
_WHEN_DUE = (Reason.DropSpare, Reason.Shrink, Reason.RandomPreempt)
"""Why leases are closed for others: of work without a claim to its GPUs, and of funded work."""


class Proof(NamedTuple):
    """What the record's inputs give, in order, and in sentences what the record says otherwise."""

    tokens: list[Token]
    odds: list[Fraction]
    drawn: list[Token]
    wrong: list[str]


def digest(spec: Spec) -> str:
    """SHA-256 of a record as JSON: keys sorted, no spaces, UTF-8. The next outcome holds it as `previous`."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def prove(spec: Spec) -> Proof:
    """Draw again, and look for what a record says against itself; ValueError where it is no record of an outcome."""
    outcome = msgspec.convert(spec | {"at": parse_instant(spec["at"])}, OutcomeSpec)
    wrong = [*_of_the_text(spec, outcome), *_of_the_claim(outcome), *_of_the_deficit(outcome), *_of_the_cuts(outcome)]
    held, ended = outcome.lottery, _ended(outcome.actions)
    if held is None:
        return Proof(
            [], [], [], [*wrong, *(f"{short(run)} was drawn, but there was no lottery" for run in sorted(ended))]
        )
    tokens = lottery.in_order(held.tokens)
    again = list(lottery.draws(held.seed, tokens))[: len(held.draws)]
    wrong += [*_of_the_tokens(held, tokens), *_of_the_draw(outcome, held, tokens, again)]
    if sorted(each.run for each in held.draws if not each.given_back) != sorted(ended):
        wrong.append("those that were drawn and kept are not those that were ended")
    return Proof(tokens, lottery.odds_of(tokens), again, wrong)


def _ended(actions: Iterable[Cut]) -> list[Key]:
    return [cut.run for cut in actions if cut.reason is Reason.RandomPreempt]


def _of_the_text(spec: Spec, outcome: OutcomeSpec) -> Iterator[str]:
    """What has to be written in one way only, because it is hashed."""
    if format_instant(outcome.at) != spec["at"]:
        yield "its time is not written in UTC as records have it"
    if not re.fullmatch("[0-9a-f]{64}", outcome.previous):
        yield "`previous` is no digest"


def _of_the_claim(outcome: OutcomeSpec) -> Iterator[str]:
    claim, by_hand, reservation = outcome.claim, outcome.by_hand, outcome.reservation
    if (claim is None) == (by_hand is None):
        yield "it is neither for one claim nor asked for by hand"
    if by_hand is not None and (by_hand.gpus < 1 or by_hand.gpus_per_pod < 1):
        yield "by hand no GPUs were asked for"
    if claim is not None and "/" in claim.name:
        yield "the claim has no name that a run can have"
    elif reservation and (claim is None or not _is_of(reservation, claim.namespace, reservation_name(claim.key, 1))):
        yield "its reservation is not the claim's"
    if not reservation and by_hand is None and any(cut.reason in _WHEN_DUE for cut in outcome.actions):
        yield "funded work gave way though no reservation was due"
    if claim is not None and claim.key in outcome.conflict_set:
        yield "the claim stands in its own conflict set"


def _is_of(reservation: str, namespace: str, first: str) -> bool:
    """Whether it is a run's first reservation, or a later one, which has its number behind it."""
    whole = f"{namespace}/{first}"
    number = reservation[len(whole) + 1 :]
    return reservation == whole or (
        reservation == f"{whole}-{number}" and number.isdecimal() and str(int(number)) == number and int(number) > 1
    )


def _of_the_deficit(outcome: OutcomeSpec) -> Iterator[str]:
    groups = [-1, *(each.group for each in outcome.deficits)]
    if any(one >= other for one, other in pairwise(groups)):
        yield "what groups lack is not told once for each, in their order"
    if any(each.gpus < 1 for each in outcome.deficits):
        yield "a group that lacks nothing stands among what groups lack"
    if sum(each.gpus for each in outcome.deficits) != outcome.deficit_gpus:
        yield "what each group lacks does not add up"
    if outcome.deficit_gpus < 1:
        yield "there was no deficit, so no reason to cut"


def _of_the_cuts(outcome: OutcomeSpec) -> Iterator[str]:
    stood = set(outcome.conflict_set)
    standing = {cut.run for cut in outcome.actions} | {token.run for token in _tokens(outcome)}
    if len(stood) < len(outcome.conflict_set) or not stood or not standing <= stood:
        yield "the conflict set does not name once everybody who stood in it"
    gone = [(cut.run, lease) for cut in outcome.actions for lease in cut.leases]
    if not gone or len(set(gone)) < len(gone) or not all(cut.leases and cut.gpus > 0 for cut in outcome.actions):
        yield "an action closes nothing, or what another closes"
    if not all(cut.reason in _AT_ONCE + _WHEN_DUE for cut in outcome.actions):
        yield "the reason of an action is none for which others give way"
    weights = {token.run: token.gpus for token in _tokens(outcome)}
    for run in dict.fromkeys(_ended(outcome.actions)):
        cuts = [cut for cut in outcome.actions if cut.run == run]
        if len(cuts) > 1:
            yield f"{short(cuts[0].run)} was ended whole, and something else was taken from it"
        elif weights.get(cuts[0].run, cuts[0].gpus) != cuts[0].gpus:
            yield f"{short(cuts[0].run)} was ended and held other GPUs than its token"


def _tokens(outcome: OutcomeSpec) -> tuple[Token, ...]:
    return () if outcome.lottery is None else outcome.lottery.tokens


def _of_the_tokens(held: Lottery, in_order: list[Token]) -> Iterator[str]:
    if list(held.tokens) != in_order:
        yield "the tokens are not recorded in their order"
    if len({token.run for token in in_order}) < len(in_order):
        yield "one run has several tokens"
    if any(token.gpus < 1 or token.attempt < 1 for token in in_order):
        yield "a token has no GPUs, or no attempt"


def _of_the_draw(outcome: OutcomeSpec, held: Lottery, tokens: list[Token], again: list[Token]) -> Iterator[str]:
    conflict = lottery.conflict_digest(tokens)
    if conflict != held.conflict_digest:
        yield "the digest of the conflict set is another"
    if lottery.seed_of(outcome.reservation, outcome.at, conflict, outcome.previous, held.beacon) != held.seed:
        yield "the seed does not follow from its inputs"
    if not held.draws:
        yield "there was a lottery and nobody was drawn"
    if [(each.owner, each.run) for each in again] != [(each.owner, each.run) for each in held.draws]:
        yield "the seed draws others than those recorded"
