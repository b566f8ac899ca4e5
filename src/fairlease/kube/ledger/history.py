"""The whole past of a ledger on Kubernetes, for those who ask: the archive, then what is on the server.

The controller never needs it. Commands that tell of closed leases, stories and ends read it into a store in memory; an audit reads
its bytes. Reading needs the right to read LedgerEntries and, once old entries were archived, a look into the archive.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlease import __version__
from fairlease.kube.ledger.entry_codec import BrokenLedger, events_of, read_shelf
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Entry
from fairlease.ledger.store.snapshot import readable
from fairlease.model.ledger_entry import EntryRole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.kube.api.connection import Api
    from fairlease.kube.ledger.archive import Archive
    from fairlease.kube.ledger.entry_codec import EntryCodec
    from fairlease.ledger.state.events import AnyEvent
    from fairlease.ledger.store.chain import Row
    from fairlease.ledger.store.protocol import Snapshot


class HistoryMissing(Exception):  # noqa: N818 - it says what is wrong
    """Entries lie neither on the server nor in an archive that we were shown, or say what we do not know."""


async def read_rows(api: Api, archive: Archive | None = None) -> list[Row]:
    """Every entry from the first on, as the bytes that were hashed; raises `HistoryMissing` where some cannot be had.

    Where the archive and the server both have an entry, the archive's is taken; that both say the same is shown by the chain.
    """
    shelf = await read_shelf(api, EntryRole.ENTRY)
    rows = [] if archive is None else list(archive.rows())
    rows += shelf.rows(rows[-1][0] if rows else 0)
    missing = _first_gap(rows)
    if missing is not None:
        first, last = missing
        raise HistoryMissing(
            f"entries {first} to {last} were archived: name the archive's folder with --archive (the controller's --archive,"
            " or a copy of it)"
        )
    return rows


def _first_gap(rows: Iterable[Row]) -> tuple[int, int] | None:
    expected = 1
    for seq, *_ in rows:
        if seq != expected:
            return expected, seq - 1
        expected += 1
    return None


def past_of(rows: Iterable[Row], base: Snapshot | None = None) -> MemoryStore:
    """A store that answers for entries from the first on, or from a snapshot on."""
    with _collector_asleep():
        try:
            return MemoryStore.of(map(_entry, rows), base)
        except BrokenLedger as error:
            raise HistoryMissing(str(error)) from None


def _entry(row: Row) -> Entry:
    seq, at, prev, sealed, _ = row
    return Entry(seq=seq, at=at, prev=prev.hex(), hash=sealed.hex(), events=events_of(row))


async def read_past(api: Api, archive: Archive | None = None) -> MemoryStore:
    """The store that commands ask: everything that ever happened, or (`first` tells) what happened since a snapshot.

    Who has no archive at hand still learns all about what lives, and about what ended lately.
    """
    try:
        return past_of(await read_rows(api, archive))
    except HistoryMissing:
        shelf, sound = await _snapshots(api)
        if not sound:
            raise
        return past_of(shelf.rows(sound[-1].seq), sound[-1])


async def read_recent(api: Api, archive: Archive | None = None) -> MemoryStore:
    """The store of who asks only how things stand: from the newest snapshot on, however long the past is."""
    shelf, sound = await _snapshots(api)
    if sound:
        return past_of(shelf.rows(sound[0].seq), sound[0])
    try:
        return past_of(await read_rows(api, archive))
    except HistoryMissing:
        told = f"no snapshot on the server can be read by this version of Fairlease, {__version__}"
        raise HistoryMissing(f"{told}: use the one that the controller has") from None


async def read_events(api: Api, since: int) -> list[AnyEvent]:
    """What the entries on the server tell that were made at or after a time, whether a snapshot has been taken since or not."""
    shelf = await read_shelf(api, EntryRole.ENTRY)
    return [event for row in shelf.rows() if row[1] >= since for event in events_of(row)]


async def _snapshots(api: Api) -> tuple[EntryCodec, list[Snapshot]]:
    """The entries on the server, and the snapshots that they bear out and that this version knows, the newest first."""
    snapshots = await read_shelf(api, EntryRole.SNAPSHOT)
    shelf = await read_shelf(api, EntryRole.ENTRY)
    return shelf, [each for each in snapshots.snapshots() if shelf.bears(each) and readable(each)]


@contextmanager
def _collector_asleep() -> Iterator[None]:
    """Decoding makes many records and no cycles."""
    awake = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if awake:
            gc.enable()
