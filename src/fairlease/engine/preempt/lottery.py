"""Lottery: draws that anybody can repeat (SEMANTICS §7; docs/design/oversubscription.md says it to the byte).

The seed is a SHA-256 over what nobody could choose alone. The draws come from an HMAC-SHA256 counter: uniform, without replacement,
first among owners in order of their names, then among the owner's tokens in order of their runs. Nothing here depends on the
order of a map or on Python's own generator.
"""

from __future__ import annotations

import hashlib
import hmac
from operator import attrgetter
from typing import TYPE_CHECKING

from fairlease.model.amount import format_instant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.model.reservation import Token

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
