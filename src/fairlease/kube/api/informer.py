"""A kind of object, followed: a copy of what the server has, typed, and every change of it in order.

    list     in pages, as of one moment; what is no longer there is reported as deleted
    watch    from that moment on; bookmarks move the place forward while nothing happens
    resume   after any break from the last place; only where the server has forgotten it (410), by a new list

Any answer that is no list is no reason to believe that nothing is there: after a restart the server says 404, 429 or 503 for a
while, and the copy stays as it was until there is a real list. A server that says nothing (frozen, or a half-open socket) is
left after `stall_s`. Pauses between attempts grow and are jittered, also after 410, so that nothing spins.

Of the libraries tried, lightkube restarts a broken watch from nothing, without a pause or a read timeout; kr8s spins on 410; the
official client's informer fails on custom resources; httpx loses events in compressed streams and limits the length of a line.
tests/kube/test_informer.py does each of these to this one.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from fairlease.kube.api.connection import PAGE, Api, ApiError, Status, backoff, decoder
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.resource import Meta, Resource

if TYPE_CHECKING:
    from fairlease.kube.api.http import Wire

STALL_S = 30.0
"""Seconds without a word after which a watch is given up. The server is asked to end each watch a little sooner, and sends a
bookmark before it does: a watch that lives says something in time, even where nothing happens."""

_LASTS = (0.65, 0.8)
_STEADY_S = 10.0
"""A watch that lived this long, or brought something, was a good one: the next pause is a short one again."""

_TOO_LARGE = "ResourceVersionTooLarge"


class Named(Protocol):
    """What every object has."""

    @property
    def metadata(self) -> Meta:
        """Its name, and the version we have of it."""


T = TypeVar("T", bound=Named)


class What(enum.Enum):
    """What happened to an object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Change(NamedTuple, Generic[T]):
    """One change. `old` is what we knew before; of a deleted object, `object` is the last that was seen of it."""

    what: What
    object: T
    old: T | None


class UnreadableObject(NamedTuple):
    """An object that is there but not as its type says."""

    key: str
    error: str


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _OnlyMeta(msgspec.Struct):
    metadata: Meta


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


_events = msgspec.json.Decoder(_Event)
_metas = msgspec.json.Decoder(_OnlyMeta)
_bookmarks = msgspec.json.Decoder(_Bookmark)


class Informer(Generic[T]):
    """Follows one kind. `on` is called for every change, in order, after `objects` has it; it must not raise."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        into: type[T],
        on: Callable[[Change[T]], None],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        stall_s: float = STALL_S,
    ) -> None:
        self.resource = resource
        self.objects: dict[str, T] = {}
        self.unreadable: dict[str, UnreadableObject] = {}
        self.synced = asyncio.Event()
        self.version = ""
        self.lists = 0
        self.problem: str | None = None
        self._heard_at = 0.0
        self._stale = False
        self._following: asyncio.Task[None] | None = None
        self._api = api
        self._read = decoder(into)
        self._on = on
        self._namespace = namespace
        self._select = {"labelSelector": labels, "fieldSelector": fields}
        self._stall_s = stall_s

    async def run(self) -> None:
        """Follow until cancelled. `problem` says why nothing comes at the moment, where nothing does."""
        pauses = backoff()
        loop = asyncio.get_running_loop()
        while True:
            begun, before = loop.time(), self.version
            try:
                self._following = asyncio.create_task(self._follow())
                await self._following
            except asyncio.CancelledError:
                if not self._stale or _is_cancelled():
                    raise
                wait_s = 0.0
            except (ApiError, Unreachable, msgspec.DecodeError) as error:
                self._failed(error)
                wait_s = max(next(pauses), error.retry_after_s if isinstance(error, ApiError) else 0.0)
            else:
                wait_s = next(pauses)
            if self.version and (self.version != before or loop.time() - begun > _STEADY_S) and self.problem is None:
                pauses.reset()
                wait_s = 0.0
            await asyncio.sleep(wait_s)

    async def _follow(self) -> None:
        """Once: list where we have no place to go on from, then watch for as long as that lasts."""
        while self._stale or not self.version:
            await self._list()
        await self._watch()

    def refresh(self, silent_s: float) -> None:
        """Have all listed again, unless the server was heard of within so many seconds; `synced` tells when that is done.

        A watch can be silent for a while because nothing happens, or because nothing gets through. That is no matter to who only
        follows, but to who is about to act on what is not there.
        """
        if asyncio.get_running_loop().time() - self._heard_at <= silent_s:
            return
        self._stale = True
        self.synced.clear()
        if self._following is not None:
            self._following.cancel()

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    def passed(self, version: str) -> bool:
        """Whether all that happened up to a version of the server was told by now; False where versions are no numbers."""
        return version.isdigit() and self.version.isdigit() and int(version) <= int(self.version)

    def _failed(self, error: Exception) -> None:
        """Note what went wrong, and whether our place in the server's history is lost with it."""
        self.problem = str(error)
        if isinstance(error, ApiError) and (error.gone or _TOO_LARGE in error.causes):
            self.version = ""

    # --- list --------------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """Read everything, then report what is different from what we knew."""
        self._stale = False
        found: dict[str, msgspec.Raw] = {}
        metas: dict[str, Meta] = {}
        place = ""
        while True:
            page = await self._api.page(
                self.resource, self._namespace, limit=str(PAGE), **{"continue": place}, **self._select
            )
            for raw in page.items or ():
                meta = _metas.decode(raw).metadata
                found[meta.key], metas[meta.key] = raw, meta
            place = page.metadata.continue_
            if not place:
                break
        self.lists += 1
        self._compare(found, metas)
        self.version = page.metadata.resource_version
        self.problem = None
        self._heard()
        if not self._stale:
            self.synced.set()

    def _compare(self, found: dict[str, msgspec.Raw], metas: dict[str, Meta]) -> None:
        for key in [key for key in (*self.objects, *self.unreadable) if key not in found]:
            self._gone(key)
        for key, raw in found.items():
            known = self.objects.get(key)
            if known is None or known.metadata.resource_version != metas[key].resource_version:
                self._seen(metas[key], raw)

    # --- watch -------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follow from our place on, until the server ends it, breaks off or falls silent."""
        lasts_s = max(1.0, self._stall_s * random.uniform(*_LASTS))
        query = {
            "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self.version,
            "timeoutSeconds": str(int(lasts_s)), **self._select,
        }  # fmt: skip
        async with self._api.stream(self.resource.path(self._namespace), query) as wire:
            self.problem = None
            self._heard()
            async for lines in self._pieces(wire):
                for line in lines:
                    self._take(line)

    async def _pieces(self, wire: Wire) -> AsyncIterator[list[bytes]]:
        """Whole lines, as many as came; a line may be of any length, and arrive in any number of pieces."""
        rest: list[bytes] = []
        while True:
            data = await wire.read(self._stall_s)
            if not data:
                return
            self._heard()
            head, newline, tail = data.rpartition(b"\n")
            if not newline:
                rest.append(data)
                continue
            whole = b"".join([*rest, head])
            rest = [tail] if tail else []
            yield whole.split(b"\n")

    def _take(self, line: bytes) -> None:
        """One event."""
        if not line:
            return
        event = _events.decode(line)
        if event.type == "BOOKMARK":
            self.version = _bookmarks.decode(event.object).metadata.resource_version
            return
        if event.type == "ERROR":
            said = decoder(Status).decode(event.object)
            raise ApiError(said.code, said)
        meta = _metas.decode(event.object).metadata
        if event.type == "DELETED":
            self._gone(meta.key, event.object)
        else:
            self._seen(meta, event.object)
        self.version = meta.resource_version

    # --- the copy ----------------------------------------------------------------------------------------------------

    def _seen(self, meta: Meta, raw: msgspec.Raw) -> None:
        key = meta.key
        old = self.objects.get(key)
        if old is not None and old.metadata.uid != meta.uid:
            self._gone(key)  # it was deleted and made again while we looked elsewhere
            old = None
        try:
            new = self._read.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._gone(key)
            self.unreadable[key] = UnreadableObject(key, str(error))
            return
        self.unreadable.pop(key, None)
        self.objects[key] = new
        self._on(Change(What.ADDED if old is None else What.MODIFIED, new, old))

    def _gone(self, key: str, last: msgspec.Raw | None = None) -> None:
        self.unreadable.pop(key, None)
        old = self.objects.pop(key, None)
        if old is None:
            return
        seen = old
        if last is not None:
            with suppress(msgspec.DecodeError):
                seen = self._read.decode(last)
        self._on(Change(What.DELETED, seen, old))


def _is_cancelled() -> bool:
    """Whether it is we who shall end, and not only what we wait for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def synced(informers: Iterable[Informer[Any]], timeout_s: float) -> bool:
    """Wait until every informer has had a whole list; says whether all have."""
    try:
        async with asyncio.timeout(timeout_s):
            for each in informers:
                await each.synced.wait()
    except TimeoutError:
        return False
    return True
