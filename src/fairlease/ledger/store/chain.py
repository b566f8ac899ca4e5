r"""The hash chain: what binds every entry to all that came before it, to the byte, so that a stranger can recompute it.

The hash of an entry is the SHA-256, written as 64 lower-case hexadecimal digits, over these bytes and no others:

    prev   the hash of the entry before, 64 lower-case hexadecimal digits in ASCII (64 zeros before the first entry)
    \n     one byte, 0x0A
    seq    the entry's number, decimal digits in ASCII, without sign or leading zeros; the first entry is number 1
    \n     one byte, 0x0A
    at     the entry's time in milliseconds since 1970-01-01T00:00:00Z, decimal digits in ASCII; none lies before 1970
    \n     one byte, 0x0A
    body   the entry's events as `event.encode` wrote them: a JSON array in UTF-8, the very bytes that the store keeps

Numbers run 1, 2, 3, … without a gap, and `at` never decreases. In a shell, for one entry:

    { printf '%s\n%s\n%s\n' "$prev" "$seq" "$at"; cat body.json; } | sha256sum

Bodies are hashed as they are stored, never re-encoded: a store that keeps the bytes (SQLite) is checked byte by byte.
A chain proves that nothing *inside* it changed. That its end was not cut off is seen only by comparing the last hash
with one noted elsewhere, which is why the report of an audit carries it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

from fairlease.ledger.state.events import AnyEvent, encode
from fairlease.ledger.store.protocol import Entry, Head

_NOTHING = Head()


Row = tuple[int, int, bytes, bytes, bytes]
"""An entry as it lies in a store: seq, at, prev and hash as 32 bytes each, and the body as the bytes that were hashed."""


class Sealed(NamedTuple):
    """A new entry together with its bytes, which were needed for its hash and are what a store keeps."""

    entry: Entry
    body: bytes


def entry_hash(prev: str, seq: int, at: int, body: bytes) -> str:
    """The hash of one entry, as the module's docstring specifies it."""
    return sha256(b"%b\n%d\n%d\n%b" % (prev.encode("ascii"), seq, at, body)).hexdigest()


def seal(head: Head, at: int, events: tuple[AnyEvent, ...]) -> Sealed:
    """The entry that follows `head`. Time that runs backwards is refused here, so that no store can ever hold it."""
    if at < head.at:
        raise ValueError(f"entry {head.seq + 1} would lie at {at}, before its predecessor at {head.at}")
    body = encode(events)
    seq = head.seq + 1
    return Sealed(Entry(seq=seq, at=at, prev=head.hash, hash=entry_hash(head.hash, seq, at, body), events=events), body)


def row_of(entry: Entry) -> Row:
    """An entry as a store would keep it."""
    return entry.seq, entry.at, bytes.fromhex(entry.prev), bytes.fromhex(entry.hash), encode(entry.events)


def breaks(rows: Iterable[Row], head: Head = _NOTHING) -> Iterator[tuple[int, str]]:
    """Every place where a chain does not hold, as (number, sentence), beginning behind `head`.

    After a break it goes on from what the row says of itself: one change shows as one break, not as a thousand.
    """
    last_seq, last_hash, last_at = head.seq, bytes.fromhex(head.hash), head.at
    for seq, at, prev, stated, body in rows:
        if seq != last_seq + 1:
            yield seq, f"the entry behind {last_seq} has number {seq}"
        if prev != last_hash:
            yield seq, f"entry {seq} does not name the hash of the entry before it"
        if at < last_at:
            yield seq, f"entry {seq} lies at {at}, before its predecessor at {last_at}"
        if stated.hex() != entry_hash(prev.hex(), seq, at, body):
            yield seq, f"the bytes of entry {seq} do not give the hash that it states"
        last_seq, last_hash, last_at = seq, stated, at


def verify(rows: Iterable[Row], head: Head = _NOTHING) -> str | None:
    """The first break of a chain as a sentence, or None where it holds."""
    return next((sentence for _, sentence in breaks(rows, head)), None)
