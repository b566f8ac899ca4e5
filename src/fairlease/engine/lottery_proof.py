"""Lottery proof: whether an outcome's record, as its JSON stands there, is what its own inputs give.

It takes the record as anybody has it and not as the engine made it; `docs/verify_lottery.py` does the same without a line of ours.
"""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.engine import lottery
from fairlease.model.amount import parse_instant
from fairlease.model.record import Key
from fairlease.model.reservation import Token

if TYPE_CHECKING:
    from collections.abc import Sequence

Spec = dict[str, Any]


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
    """Draw again."""
    ended = {cut["run"] for cut in spec["actions"] if cut["reason"] == "RandomPreempt"}
    held = spec.get("lottery")
    if held is None:
        return Proof([], [], [], [f"{run} was drawn, but there was no lottery" for run in sorted(ended)])
    tokens = lottery.in_order(
        Token(owner=each["owner"], run=Key(each["run"]), attempt=each["attempt"], gpus=each["gpus"])
        for each in held["tokens"]
    )
    wrong = []
    conflict = lottery.conflict_digest(tokens)
    if conflict != held["conflictDigest"]:
        wrong.append("the digest of the conflict set is another")
    at = parse_instant(spec["at"])
    seed = lottery.seed_of(spec.get("reservation", ""), at, conflict, spec["previous"], held.get("beacon", ""))
    if seed != held["seed"]:
        wrong.append("the seed does not follow from its inputs")
    again = list(lottery.draws(held["seed"], tokens))[: len(held["draws"])]
    if [(each.owner, each.run) for each in again] != [(each["owner"], each["run"]) for each in held["draws"]]:
        wrong.append("the seed draws others than those recorded")
    kept = {each["run"] for each in held["draws"] if not each.get("givenBack", False)}
    if kept != ended:
        wrong.append("those that were drawn and kept are not those that were ended")
    return Proof(tokens, odds_of(tokens), again, wrong)


def odds_of(tokens: Sequence[Token]) -> list[Fraction]:
    """For each token, the odds of being the first that is drawn: an owner in so many, then one of that owner's."""
    counts: dict[str, int] = {}
    for token in tokens:
        counts[token.owner] = counts.get(token.owner, 0) + 1
    return [Fraction(1, len(counts) * counts[token.owner]) for token in tokens]
