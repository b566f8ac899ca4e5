"""Old entries in a folder: text that outlives the cluster, that `sha256sum` checks, and from which the whole past is read again."""

from __future__ import annotations

import gc
import os
import re
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlease import __version__
from fairlease.kube.ledger.entry_codec import BrokenLedger, events_of, read_shelf
from fairlease.ledger.state.state import State
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.chain import Row, breaks, verify
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Entry, Head, Snapshot
from fairlease.ledger.store.snapshot import readable
from fairlease.model.ledger_entry import EntryRole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.kube.api.connection import Api
    from fairlease.kube.ledger.entry_codec import EntryCodec
    from fairlease.ledger.state.events import AnyEvent
    from fairlease.ledger.store.chain import Row
    from fairlease.ledger.store.protocol import Snapshot


_NAME = re.compile(r"(\d{12})-(\d{12})\.jsonl")


class ArchiveLine(msgspec.Struct, frozen=True):
    """An entry as it is archived."""

    seq: int
    at: int
    prev: str
    hash: str
    body: str


class BadArchive(Exception):  # noqa: N818 - it says what is wrong
    """The archive's files are not what they were, or do not fit what is to follow them."""


_lines = msgspec.json.Decoder(ArchiveLine)


class Archive:
    """The files of one folder, or of several; what is added goes to the first."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders

    def head(self) -> Head | None:
        """The last entry that is archived, or None."""
        files = self._files()
        if not files:
            return None
        *_, (_, path) = files
        last = deque(_read(path), maxlen=1)
        if not last:
            raise BadArchive(f"{path} is empty")
        seq, at, _, sealed, _ = last[0]
        return Head(seq=seq, hash=sealed.hex(), at=at)

    def rows(self, after: int = 0) -> Iterator[Row]:
        """Entries behind number `after`, in order; a range that is in two files comes once."""
        for (_, last), path in self._files():
            if last <= after:
                continue
            for row in _read(path):
                if row[0] > after:
                    yield row
                    after = row[0]

    def add(self, rows: Sequence[Row]) -> Path | None:
        """Put entries on the disk, all or none; returns when they are there. Those that are archived already are left out."""
        before = self.head()
        new = [row for row in rows if before is None or row[0] > before.seq]
        if not new:
            return None
        first = new[0]
        base = before or Head(seq=first[0] - 1, hash=first[2].hex())
        broken = verify(new, base)
        if broken is not None:
            raise BadArchive(f"{self._folders[0]} is not continued: {broken}")
        return self._write(self._folders[0], new)

    def _write(self, folder: Path, rows: Sequence[Row]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{rows[0][0]:012d}-{rows[-1][0]:012d}.jsonl"
        draft = path.with_suffix(
            f".{uuid.uuid4().hex}.draft"
        )  # another, who led before us, may be writing the same range
        with draft.open("wb") as file:
            file.writelines(msgspec.json.encode(_line(row)) + b"\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(there)
        finally:
            os.close(there)
        return path

    def _files(self) -> list[tuple[tuple[int, int], Path]]:
        found = []
        for folder in self._folders:
            for path in folder.iterdir() if folder.is_dir() else ():
                match = _NAME.fullmatch(path.name)
                if match:
                    found.append(((int(match[1]), int(match[2])), path))
        return sorted(found)


def _line(row: Row) -> ArchiveLine:
    seq, at, prev, sealed, body = row
    return ArchiveLine(seq, at, prev.hex(), sealed.hex(), body.decode())


def _read(path: Path) -> Iterable[Row]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                line = _lines.decode(raw)
                row = (line.seq, line.at, bytes.fromhex(line.prev), bytes.fromhex(line.hash), line.body.encode())
            except (msgspec.DecodeError, ValueError) as error:
                raise BadArchive(f"{path}, line {number}: {error}") from None
            yield row


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
