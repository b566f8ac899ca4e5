"""A snapshot that this version cannot read, made again: the entries that it stands for are folded, from the first one on.

Another version took it: a later one, where somebody went back to the one before. The entries are the ledger, and those are on the
server, or in the archive where they were moved there. So nobody has to lend a hand.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from fairlease.kube.ledger.archive import BadArchive
from fairlease.kube.ledger.entry_codec import BrokenLedger, events_of
from fairlease.ledger.state.state import State
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.chain import Row, breaks
from fairlease.ledger.store.protocol import Head, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.kube.ledger.archive import Archive
    from fairlease.kube.ledger.entry_codec import EntryCodec


def rebuilt(kept: Snapshot, shelf: EntryCodec, archive: Archive | None) -> Snapshot:
    """The same snapshot in this version's words; raises `BrokenLedger` where entries are missing. It may take minutes."""
    try:
        broken = next(breaks(_rows(kept, shelf, archive)), None)
        if broken is not None:
            raise BrokenLedger(_refusal(kept, broken[1], archive))
        return _folded(kept, _rows(kept, shelf, archive))
    except BadArchive as error:
        raise BrokenLedger(_refusal(kept, str(error), archive)) from None


def _refusal(kept: Snapshot, why: str, archive: Archive | None) -> str:
    remedy = "start the version that took it" if archive is not None else "name the archive's folder with --archive"
    return (
        f"the snapshot of entry {kept.seq} was taken by another version of Fairlease, and cannot be made again: {why}."
        f" Nothing was decided; {remedy}"
    )


def _rows(kept: Snapshot, shelf: EntryCodec, archive: Archive | None) -> Iterator[Row]:
    """The entries up to a snapshot: the archive's, then the server's."""
    last = 0
    for row in () if archive is None else takewhile(lambda each: each[0] <= kept.seq, archive.rows()):
        last = row[0]
        yield row
    yield from takewhile(lambda each: each[0] <= kept.seq, shelf.rows(last))


def _folded(kept: Snapshot, rows: Iterator[Row]) -> Snapshot:
    state, head = State(), Head()
    for row in rows:
        seq, at, _, sealed, _ = row
        for event in events_of(row):
            state.apply(at, event)
        head = Head(seq=seq, hash=sealed.hex(), at=at)
    state.settled()
    if (head.seq, head.hash) != (kept.seq, kept.hash):
        raise BadArchive(f"entry {kept.seq} is another there, or is missing")
    return snapshot.take(state, head)
