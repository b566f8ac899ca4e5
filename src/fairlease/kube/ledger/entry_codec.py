"""The ledger's objects on the API server: how an entry or a snapshot becomes LedgerEntry objects, and is read back from them.

One object where the body is short. A long one is cut into parts, which are created first, at once and in any order, under names
that carry the hash: two writers never get into each other's parts. The object that bears nothing but the number is created last.
Parts without it mean nothing, and are cleared away (docs/design/0007).
"""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator
from hashlib import sha256

import msgspec

from fairlease import __version__
from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.resource import LEDGER_ENTRIES, Meta
from fairlease.ledger.state.events import AnyEvent, decode
from fairlease.ledger.store.chain import Row, Sealed
from fairlease.ledger.store.protocol import GENESIS, Snapshot
from fairlease.model.ledger_entry import EntryRole, LedgerEntrySpec

BODY_MAX = 192 << 10
"""Bytes of a body in one object. etcd takes 1.5 MiB, and the API server writes some characters as six: this always fits."""

_LETTER = {EntryRole.ENTRY: "e", EntryRole.SNAPSHOT: "s"}


class BrokenLedger(Exception):  # noqa: N818 - it says what is wrong
    """The entries on the server are no chain; nothing may be decided on them."""


class Torn(BrokenLedger):
    """An entry or a snapshot is there, and not whole: a part is missing."""


def events_of(row: Row) -> tuple[AnyEvent, ...]:
    """What an entry says; raises `BrokenLedger` where this version does not know all of it."""
    try:
        return decode(row[4])
    except msgspec.ValidationError as error:
        told = f"entry {row[0]} says what this version of Fairlease, {__version__}, does not know ({error})"
        raise BrokenLedger(f"{told}: a later one wrote it. Use that one") from None


class Filed(msgspec.Struct, frozen=True):
    """A LedgerEntry as it is read."""

    metadata: Meta
    spec: LedgerEntrySpec

    @property
    def id(self) -> tuple[int, str]:
        """Which entry or snapshot it belongs to."""
        return self.spec.seq, self.spec.digest or self.spec.hash


def name_of(role: EntryRole, seq: int) -> str:
    """The name whose creation is the append."""
    return f"{_LETTER[role]}-{seq:012d}"


def object_of(spec: LedgerEntrySpec) -> dict[str, object]:
    """What is created."""
    name = name_of(spec.role, spec.seq)
    if spec.part:
        name = f"{name}-{spec.digest or spec.hash}-{spec.part:04d}"
    return {
        "apiVersion": LEDGER_ENTRIES.api_version,
        "kind": LEDGER_ENTRIES.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def specs_of_entry(sealed: Sealed, writer: str) -> list[LedgerEntrySpec]:
    """An entry as objects, the one that commits it first."""
    entry, body = sealed
    return _cut(
        LedgerEntrySpec(seq=entry.seq, at=entry.at, prev=entry.prev, hash=entry.hash, body="", writer=writer), body
    )


def specs_of_snapshot(snapshot: Snapshot, writer: str) -> list[LedgerEntrySpec]:
    """A snapshot as objects, the one that commits it first."""
    head = LedgerEntrySpec(
        seq=snapshot.seq,
        at=snapshot.at,
        hash=snapshot.hash,
        role=EntryRole.SNAPSHOT,
        digest=snapshot.digest,
        body="",
        writer=writer,
    )
    return _cut(head, base64.b64encode(zlib.compress(snapshot.body, 6)))


def _cut(head: LedgerEntrySpec, body: bytes) -> list[LedgerEntrySpec]:
    pieces = list(_pieces(body))
    replace = msgspec.structs.replace
    rest = [replace(head, part=part, body=piece) for part, piece in enumerate(pieces[1:], 1)]
    return [replace(head, body=pieces[0], parts=len(rest)), *rest]


def _pieces(body: bytes) -> Iterator[str]:
    """A text in pieces that fit, none of which begins in the middle of a character."""
    at = 0
    while True:
        end = min(at + BODY_MAX, len(body))
        while end < len(body) and body[end] & 0xC0 == 0x80:  # noqa: PLR2004 - UTF-8: a byte that continues a character
            end -= 1
        yield body[at:end].decode()
        at = end
        if at == len(body):
            return


class EntryCodec:
    """All objects of the ledger at one moment."""

    def __init__(self, objects: list[Filed]) -> None:
        self.heads: dict[int, Filed] = {}
        self.parts: dict[tuple[int, str], list[Filed]] = defaultdict(list)
        for each in objects:
            if each.spec.part:
                self.parts[each.id].append(each)
            else:
                self.heads[each.spec.seq] = each

    def body(self, head: Filed) -> bytes:
        """The whole body, or `Torn`."""
        spec = head.spec
        if not spec.parts:
            return spec.body.encode()
        rest = sorted((part.spec.part, part.spec.body) for part in self.parts.get(head.id, ()))
        if [part for part, _ in rest] != list(range(1, spec.parts + 1)):
            raise Torn(f"{head.metadata.name} has {spec.parts} parts, of which {len(rest)} are there")
        return "".join([spec.body, *(text for _, text in rest)]).encode()

    def rows(self, after: int = 0) -> Iterator[Row]:
        """The entries behind number `after`, in order."""
        for seq in sorted(each for each in self.heads if each > after):
            head = self.heads[seq]
            spec = head.spec
            yield seq, spec.at, bytes.fromhex(spec.prev or GENESIS), bytes.fromhex(spec.hash), self.body(head)

    def snapshots(self) -> Iterator[Snapshot]:
        """The snapshots that are whole and whose digest is right, the newest first."""
        for seq in sorted(self.heads, reverse=True):
            spec = self.heads[seq].spec
            try:
                body = zlib.decompress(base64.b64decode(self.body(self.heads[seq]), validate=True))
            except (Torn, ValueError, zlib.error):
                continue
            if sha256(body).hexdigest() == spec.digest:
                yield Snapshot(seq=seq, hash=spec.hash, at=spec.at, digest=spec.digest, body=body)

    def bears(self, snapshot: Snapshot) -> bool:
        """Whether the entry of a snapshot is here, and is the one that the snapshot names."""
        if snapshot.seq == 0:
            return snapshot.hash == GENESIS
        head = self.heads.get(snapshot.seq)
        return head is not None and (head.spec.hash, head.spec.at) == (snapshot.hash, snapshot.at)

    def orphans(self, up_to: int) -> list[Filed]:
        """Parts, of entries up to a number, that no object speaks for: of a writer that died or lost."""
        return [
            part
            for (seq, sealed), parts in self.parts.items()
            if seq <= up_to and (seq not in self.heads or self.heads[seq].id != (seq, sealed))
            for part in parts
        ]


async def read_shelf(api: Api, role: EntryRole) -> EntryCodec:
    """All entries, or all snapshots."""
    found = await api.list(LEDGER_ENTRIES, into=Filed, fields=f"spec.role={role.value}")
    return EntryCodec(found.items)


async def put_parts(api: Api, specs: list[LedgerEntrySpec]) -> None:
    """Create parts, all at once. One that is there already is the same: its name carries the hash of what it is part of."""

    async def put(spec: LedgerEntrySpec) -> None:
        try:
            await api.create(LEDGER_ENTRIES, object_of(spec))
        except ApiError as error:
            if not error.already_exists:
                raise

    await _all(map(put, specs))


REMOVED_ABREAST = 4
"""There are thousands, nobody waits for them, and appends need connections too."""


async def remove(api: Api, objects: list[Filed]) -> None:
    """Delete objects, a few at once; those that are gone already are no matter. Parts go last: nobody shall find them missing."""

    async def take(waiting: list[Meta]) -> None:
        while waiting:
            each = waiting.pop()
            await api.delete(LEDGER_ENTRIES, each.name, uid=each.uid)

    for parts in (False, True):
        waiting = [each.metadata for each in reversed(objects) if bool(each.spec.part) is parts]
        await _all(take(waiting) for _ in range(REMOVED_ABREAST))


async def _all(writes: Iterable[Coroutine[None, None, object]]) -> None:
    """Have all of them done, and leave none behind; then raise what the first to fail said."""
    for result in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
