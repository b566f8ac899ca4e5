"""The ledger on Kubernetes: an entry is an object, and creating it under the next number is the append.

    append      create `e-000000000042`; who finds it created by another has lost, and steps down (`Conflict`)
    snapshot    the folded state as of an entry, so that a start reads only what came later
    tidy        what lies before the older of two snapshots goes to the archive, and only then from etcd

An append never ends in doubt. Where an answer is lost, the same object is created again: if it is there by then, its writer and
its hash tell whether it is ours. So long as the API server cannot say, the append waits, and with it every further decision;
a controller that stops meanwhile leaves the entry there or not, and the next one reads which.

Questions about the past (closed leases, stories, ends) are no business of the one who decides. Who asks them reads the entries,
and the archive where there is one, into a store in memory (`kube.history`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from fairlease.kube.api.connection import Api, ApiError, backoff
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.resource import LEDGER_ENTRIES
from fairlease.kube.ledger.archive import rebuilt
from fairlease.kube.ledger.entry_codec import (
    BrokenLedger,
    EntryCodec,
    Filed,
    events_of,
    name_of,
    object_of,
    put_parts,
    read_shelf,
    remove,
    specs_of_entry,
    specs_of_snapshot,
)
from fairlease.ledger.state.events import AnyEvent
from fairlease.ledger.store.chain import Sealed, seal, verify
from fairlease.ledger.store.protocol import Conflict, Entry, Head, Snapshot
from fairlease.ledger.store.snapshot import readable
from fairlease.model.ledger_entry import EntryRole, LedgerEntrySpec

if TYPE_CHECKING:
    from fairlease.kube.ledger.archive import Archive

__all__ = ["BrokenLedger", "Journal", "Tidied"]

SNAPSHOTS_KEPT = 2
"""The newest snapshot, and the one to fall back on where the newest proves damaged."""


class Tidied(NamedTuple):
    """What a tidying did: entries archived now, and objects removed."""

    archived: int
    removed: int


class Journal:
    """The ledger of the controller that leads. `open` it when leadership is won; one task appends at a time."""

    def __init__(
        self, api: Api, shelf: EntryCodec, snapshots: list[Snapshot], archive: Archive | None, writer: str | None
    ) -> None:
        self.writer = writer or f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self.waiting_since: float | None = None
        self._api = api
        self._archive = archive
        self.rebuilt = False
        """Whether no snapshot could be read, and the newest was made again from the entries."""
        self._snapshots = {each.seq: each for each in snapshots}
        base = self.latest_snapshot()
        start = Head() if base is None else Head(seq=base.seq, hash=base.hash, at=base.at)
        rows = list(shelf.rows(start.seq))
        broken = verify(rows, start)
        if broken is not None:
            raise BrokenLedger(
                f"{broken}; nothing was decided. Compare the LedgerEntries with a backup and the archive"
            )
        self._rows = rows
        self.size = sum(len(row[4]) for row in rows)
        """Bytes of all entries that we read or wrote."""
        self._hashes = {start.seq: start.hash} | {row[0]: row[3].hex() for row in rows}
        self._head = Head(seq=rows[-1][0], hash=rows[-1][3].hex(), at=rows[-1][1]) if rows else start

    @classmethod
    async def open(cls, api: Api, *, archive: Archive | None = None, writer: str | None = None) -> Journal:
        """Read the newest snapshot that this version knows, and what came later; raises `BrokenLedger` where that is no chain.

        A second look is taken first: between the two lists another, who leads no longer and does not know it, may have tidied.
        """
        try:
            return await cls._read_all(api, archive, writer)
        except BrokenLedger:
            return await cls._read_all(api, archive, writer)

    @classmethod
    async def _read_all(cls, api: Api, archive: Archive | None, writer: str | None) -> Journal:
        snapshots = await read_shelf(api, EntryRole.SNAPSHOT)
        entries = await read_shelf(api, EntryRole.ENTRY)
        sound = [each for each in snapshots.snapshots() if entries.bears(each)]
        known = await asyncio.to_thread(lambda: [each for each in sound if readable(each)])
        if sound and not known:
            made = await asyncio.to_thread(rebuilt, sound[0], entries, archive)
            journal = cls(api, entries, [made], archive, writer)
            journal.rebuilt = True
            return journal
        return cls(api, entries, known, archive, writer)

    def head(self) -> Head:
        """The last entry that we read or wrote."""
        return self._head

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """The entries behind number `after` that were read at the start: to fold a state from, before the first append.

        They are not kept any longer than that. A controller lives for months, and 512 leases at a time add up.
        """
        rows = [row for row in self._rows if row[0] > after]
        if len(rows) != self._head.seq - after:
            raise ValueError(
                f"a journal holds what came behind its snapshot, until it appends; not what came behind {after}"
            )
        for row in rows:
            seq, at, prev, sealed, _ = row
            yield Entry(seq=seq, at=at, prev=prev.hex(), hash=sealed.hex(), events=events_of(row))

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that this version knows, whose digest is right and whose entry is in the chain, or None."""
        return self._snapshots[max(self._snapshots)] if self._snapshots else None

    # --- append ------------------------------------------------------------------------------------------------------

    async def append(self, expected_seq: int, at: int, events: tuple[AnyEvent, ...]) -> Entry:
        """Make `events` the entry after `expected_seq`; returns when etcd has it, raises `Conflict` where another was first."""
        head = self._head
        if expected_seq != head.seq:
            raise Conflict(f"the ledger's head is entry {head.seq}, not {expected_seq}")
        sealed = seal(head, at, events)
        try:
            await self._commit(sealed)
        finally:
            self.waiting_since = None
        entry = sealed.entry
        self.size += len(sealed.body)
        self._head = Head(seq=entry.seq, hash=entry.hash, at=entry.at)
        self._hashes[entry.seq] = entry.hash
        self._rows.clear()
        return entry

    async def _commit(self, sealed: Sealed) -> None:
        """Create the entry's objects, until the server has said that they are there, or whose is in their place."""
        first, *rest = specs_of_entry(sealed, self.writer)
        pauses = backoff()
        doubt = False
        loop = asyncio.get_running_loop()
        while True:
            try:
                await put_parts(self._api, rest)
                await self._api.create(LEDGER_ENTRIES, object_of(first))
            except ApiError as error:
                if error.already_exists:
                    await self._whose(first, doubt=doubt)
                    return
                open_ended = _open_ended(error)
                if not open_ended and not (doubt and await self._maybe_there(first)):
                    raise
                doubt = doubt or open_ended
                wait_s = max(next(pauses), error.retry_after_s)
            except Unreachable as error:
                doubt = doubt or error.sent
                wait_s = next(pauses)
            else:
                return
            self.waiting_since = self.waiting_since or loop.time()
            await asyncio.sleep(wait_s)

    async def _whose(self, spec: LedgerEntrySpec, *, doubt: bool) -> None:
        """Raise `Conflict`, unless the object that is there is the one we sent and never got an answer for."""
        if doubt:
            there = await self._read(spec)
            if there is not None and (there.spec.hash, there.spec.writer) == (spec.hash, spec.writer):
                return
        raise Conflict(f"entry {spec.seq} was written by another")

    async def _maybe_there(self, spec: LedgerEntrySpec) -> bool:
        """Whether an entry that is now refused may have been taken at an earlier try whose answer was lost."""
        try:
            return await self._read(spec) is not None
        except (ApiError, Unreachable):
            return True

    async def _read(self, spec: LedgerEntrySpec) -> Filed | None:
        pauses = backoff()
        while True:
            try:
                return await self._api.get(LEDGER_ENTRIES, name_of(spec.role, spec.seq), into=Filed)
            except ApiError as error:
                if error.not_found and error.reason == "NotFound":
                    return None
                if not _open_ended(error):
                    raise
            except Unreachable:
                pass
            await asyncio.sleep(next(pauses))

    # --- snapshot, archive -------------------------------------------------------------------------------------------

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, and the one before it; one that is there already under its number stays."""
        if self._hashes.get(snapshot.seq) != snapshot.hash:
            raise ValueError(f"the snapshot of entry {snapshot.seq} does not belong to this ledger")
        first, *rest = await asyncio.to_thread(specs_of_snapshot, snapshot, self.writer)
        await put_parts(self._api, rest)
        try:
            await self._api.create(LEDGER_ENTRIES, object_of(first))
        except ApiError as error:
            if not error.already_exists:
                raise
        self._snapshots[snapshot.seq] = snapshot
        kept = sorted(self._snapshots)[-SNAPSHOTS_KEPT:]
        self._snapshots = {seq: self._snapshots[seq] for seq in kept}
        self._hashes = {seq: sealed for seq, sealed in self._hashes.items() if seq >= kept[0]}

    async def tidy(self) -> Tidied:
        """Archive what lies before the older of the two snapshots, then remove it; also what dead writers left behind.

        Without an archive nothing of the ledger is removed. A crash anywhere in here costs nothing: what is archived and still
        there is removed the next time.
        """
        snapshots = await read_shelf(self._api, EntryRole.SNAPSHOT)
        entries = await read_shelf(self._api, EntryRole.ENTRY)
        sound = [each.seq for each in snapshots.snapshots() if entries.bears(each)][:SNAPSHOTS_KEPT]
        if not sound:
            return Tidied(0, await self._removed(entries.orphans(self._head.seq)))
        surplus = [head for seq, head in snapshots.heads.items() if seq not in sound and seq < max(sound)]
        waste = [*_whole(snapshots, surplus), *snapshots.orphans(self._head.seq), *entries.orphans(self._head.seq)]
        archived = 0
        if self._archive is not None and len(sound) == SNAPSHOTS_KEPT:
            rows = [row for row in entries.rows() if row[0] < min(sound)]
            before = await asyncio.to_thread(self._archive.head)
            await asyncio.to_thread(self._archive.add, rows)
            archived = sum(1 for row in rows if before is None or row[0] > before.seq)
            waste += _whole(entries, [entries.heads[row[0]] for row in rows])
        return Tidied(archived, await self._removed(waste))

    async def _removed(self, objects: list[Filed]) -> int:
        await remove(self._api, objects)
        return len(objects)


def _open_ended(error: ApiError) -> bool:
    """Whether an answer leaves open what became of an append: etcd failed under the server, or the server is just starting."""
    return error.transient or error.not_found or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR


def _whole(shelf: EntryCodec, heads: list[Filed]) -> list[Filed]:
    """Objects with all their parts."""
    return [each for head in heads for each in (head, *shelf.parts.get(head.id, ()))]
