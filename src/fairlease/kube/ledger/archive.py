"""Old entries in a folder: text that outlives the cluster and that anybody can check with `sha256sum`.

A file for each range, named after its first and last number, with a line for each entry: a JSON object of `seq`, `at`, `prev`,
`hash` and `body`, the body as the text whose bytes were hashed (`store/chain.py`). A file appears under its name only when it is
whole and on the disk. Files are never written again. Several folders, of controllers that had a disk each, read as one archive.
"""

from __future__ import annotations

import os
import re
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from fairlease.ledger.store.chain import Row, verify
from fairlease.ledger.store.protocol import Head

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
