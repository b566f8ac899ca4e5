"""The API server, typed: read only the fields that are used, write many things at once, know what an answer means.

Objects come out as msgspec Structs that name the fields wanted (10,000 Pods: 72 ms instead of a second and more); what goes in may
be Structs, dicts or bytes. As many requests are under way as the pool has connections, the others wait their turn.

What is asked again by itself: everything that can be asked twice without harm (reads, applies, patches, deletes), with a growing,
jittered pause that is never shorter than the server's `Retry-After`. A create is asked again only where the server surely did not
carry it out; otherwise `Unreachable.sent` tells the caller, who knows how to find out.

Libraries: lightkube (1.0.1) was tried. It is httpx beneath, which costs more per write than the API server leaves room for on the
same cores (`kube.http`); its watches and its credentials fail as `kube.informer` and `kube.credentials` tell.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from fairlease.kube.api.credentials import Credentials
from fairlease.kube.api.http import ConnectionPool, HttpResponse, Unreachable, Wire
from fairlease.kube.api.kubeconfig import BadConfig, ClusterAccess
from fairlease.kube.api.resource import PODS, Resource

T = TypeVar("T")

POOL_SIZE = 64
PAGE = 500
TIMEOUT_S = 30.0
PATIENCE_S = 30.0
"""How long what may be asked twice is asked again; a command that a person waits for has less."""

FIELD_MANAGER = "fairlease"

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0
_TRANSIENT = (
    HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT,
)  # fmt: skip
_ETCD_FAILED = ("etcdserver: ", "rpc error: ", "context deadline exceeded", "context canceled")

_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_JSON = "application/json"


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] = []
    retry_after_seconds: int = 0


class Status(msgspec.Struct):
    """The API's way to say no."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class ApiError(Exception):
    """The server answered, and the answer is no."""

    def __init__(self, status: int, said: Status, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{said.message or 'no reason given'} ({status} {said.reason})".strip())
        self.code = status
        self.reason = said.reason
        self.message = said.message
        self.causes = tuple(each.reason for each in said.details.causes) if said.details else ()
        self.fields = tuple((each.field, each.message) for each in said.details.causes) if said.details else ()
        self.retry_after_s = max(retry_after_s, said.details.retry_after_seconds if said.details else 0)

    @property
    def not_found(self) -> bool:
        """There is no such object, or no such kind."""
        return self.code == HTTPStatus.NOT_FOUND

    @property
    def already_exists(self) -> bool:
        """A create came second."""
        return self.code == HTTPStatus.CONFLICT and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """A precondition does not hold: the object is another by now."""
        return self.code in (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED) and not self.already_exists

    @property
    def gone(self) -> bool:
        """The history that was asked for is no longer there."""
        return self.code == HTTPStatus.GONE

    @property
    def transient(self) -> bool:
        """The server cannot answer now. Whether it has carried out the request is open, save for 429."""
        return self.code in _TRANSIENT or (
            self.code == HTTPStatus.INTERNAL_SERVER_ERROR and any(each in self.message for each in _ETCD_FAILED)
        )

    @property
    def passing(self) -> bool:
        """It says nothing about what was asked for: the server is not itself, or did not do it in time."""
        return self.transient or self.code >= HTTPStatus.INTERNAL_SERVER_ERROR


class ListMeta(msgspec.Struct, rename="camel"):
    """Where a list stands, and how it goes on."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """Objects as of one moment of the server."""

    metadata: ListMeta
    items: list[T]


class _RawList(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def decoder(into: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, made once."""
    made = _decoders.get(into)
    if made is None:
        made = _decoders[into] = msgspec.json.Decoder(into)
    return made


class Api:
    """One API server, as one identity. Use it in one event loop, and close it."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        pool: int = POOL_SIZE,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.access = access
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self._known = False
        self._credentials = Credentials(access)
        self._pool = ConnectionPool(access.server, self._credentials.tls, access.tls_server_name, pool)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, what: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T:
        """One object."""
        return decoder(into).decode(await self._repeat("GET", what.path(namespace, name)))

    async def page(self, what: Resource, namespace: str | None = None, **query: str) -> _RawList:
        """One page of a list, asked for once, its items not yet decoded."""
        response = await self.ask("GET", what.path(namespace) + _query(query))
        return decoder(_RawList).decode(response)

    async def list(
        self, what: Resource, namespace: str | None = None, *, into: type[T], labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """All objects of a kind, in pages; where the server loses its place in between, from the beginning."""
        read = decoder(into)
        items: list[T] = []
        place = ""
        while True:
            query = {"limit": str(PAGE), "continue": place, "labelSelector": labels, "fieldSelector": fields}
            try:
                body = await self._repeat("GET", what.path(namespace) + _query(query))
            except ApiError as error:
                if not (error.gone and place):
                    raise
                items, place = [], ""
                continue
            page = decoder(_RawList).decode(body)
            items += [read.decode(each) for each in page.items or ()]
            place = page.metadata.continue_
            if not place:
                return Listing(page.metadata, items)

    @asynccontextmanager
    async def stream(self, path: str, query: dict[str, str]) -> AsyncIterator[Wire]:
        """A response that is read as it comes, on a connection of its own. Raises where the server says no."""
        for again in (True, False):
            with self._excused():
                headers, edition = await self._credentials.headers(), self._credentials.edition
                request = self._pool.encode("GET", path + _query(query), headers, None, _JSON)
                response, wire = await self._pool.stream(request, self.timeout_s)
            try:
                if again and await self._stale(response, edition):
                    continue
                _check(response)
                yield wire
            finally:
                wire.close()
            return

    async def text(self, path: str) -> str:
        """A page that is no object, such as `/readyz` or a pod's log."""
        return (await self._repeat("GET", path)).decode(errors="replace")

    # --- writing -----------------------------------------------------------------------------------------------------

    async def create(
        self, what: Resource, body: object, namespace: str | None = None, *, dry_run: bool = False
    ) -> bytes:
        """Make an object; raises `ApiError.already_exists`, or `Unreachable` with `sent` where nobody knows."""
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All" if dry_run else ""}
        return await self._once("POST", what.path(namespace) + _query(query), _encoded(body))

    async def bind(self, namespace: str, pod: str, node: str, uid: str = "") -> None:
        """Put a pod on a node, for good; with its uid never another pod of the same name."""
        meta = {"name": pod, "namespace": namespace} | ({"uid": uid} if uid else {})
        body = {
            "apiVersion": "v1", "kind": "Binding", "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }  # fmt: skip
        await self._once("POST", PODS.path(namespace, pod, "binding"), msgspec.json.encode(body))

    async def patch(
        self, what: Resource, name: str, body: object, namespace: str | None = None, *, sub: str = ""
    ) -> bytes:
        """A merge patch (a dict), or a JSON patch (a list of operations)."""
        kind = _JSON_PATCH if isinstance(body, list) else _MERGE
        path = what.path(namespace, name, sub) + _query({"fieldManager": FIELD_MANAGER})
        return await self._repeat("PATCH", path, _encoded(body), kind)

    async def delete(
        self,
        what: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        grace_s: int | None = None,
    ) -> bool:
        """Delete an object, only if it still has this uid; says whether it was there."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._repeat("DELETE", what.path(namespace, name), msgspec.json.encode(options))
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    # --- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: bytes | None = None, content: str = _JSON) -> bytes:
        """One request, one answer; asked again only where our credentials had run out."""
        response, edition = await self._ask(method, path, body, content)
        if await self._stale(response, edition):
            response, _ = await self._ask(method, path, body, content)
        return _check(response)

    async def _ask(self, method: str, path: str, body: bytes | None, content: str) -> tuple[HttpResponse, int]:
        with self._excused():
            headers, edition = await self._credentials.headers(), self._credentials.edition
            request = self._pool.encode(method, path, headers, body, content)
            response = await self._pool.ask(request, self.timeout_s)
        self._known = True
        return response, edition

    async def _stale(self, response: HttpResponse, edition: int) -> bool:
        """Whether the server did not know us, and may know us better now."""
        if response.status != HTTPStatus.UNAUTHORIZED:
            return False
        with self._excused():
            return await self._credentials.renew(edition)

    @contextmanager
    def _excused(self) -> Iterator[None]:
        """Credentials that cannot be had are a mistake at first; once the server has answered, a passing trouble like others."""
        try:
            yield
        except BadConfig as error:
            if not self._known:
                raise
            raise Unreachable(str(error), sent=False) from error

    async def _repeat(self, method: str, path: str, body: bytes | None = None, content: str = _JSON) -> bytes:
        """Ask until there is an answer that means something; only for what may be carried out twice."""
        return await repeated(
            lambda: self.ask(method, path, body, content),
            lambda error: error.transient if isinstance(error, ApiError) else True,
            self.patience_s,
        )

    async def _once(self, method: str, path: str, body: bytes) -> bytes:
        """Ask again only where the server surely did nothing: it said so, or never got the request."""
        return await repeated(
            lambda: self.ask(method, path, body),
            lambda error: error.code == HTTPStatus.TOO_MANY_REQUESTS if isinstance(error, ApiError) else not error.sent,
            self.patience_s,
        )


async def repeated(
    ask: Callable[[], Awaitable[T]],
    again: Callable[[ApiError | Unreachable], bool],
    patience_s: float,
) -> T:
    """Ask, and after failures that say so ask again, ever more slowly, until patience ends with the last failure."""
    pauses = None
    until = 0.0
    while True:
        try:
            return await ask()
        except (ApiError, Unreachable) as error:
            now = asyncio.get_running_loop().time()
            if pauses is None:
                pauses, until = backoff(), now + patience_s
            wait_s = max(next(pauses), error.retry_after_s if isinstance(error, ApiError) else 0.0)
            if not again(error) or now + wait_s > until:
                raise
        await asyncio.sleep(wait_s)


class backoff:  # noqa: N801 - reads as the generator it is
    """Pauses that grow and never meet those of others: 0.1 s doubling up to 5 s, each by a random share."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: things went well for a while."""
        self._next_s = _PAUSE_FIRST_S

    def __next__(self) -> float:
        pause = self._next_s * (0.5 + random.random())
        self._next_s = min(self._next_s * 2, _PAUSE_MAX_S)
        return pause


def _check(response: HttpResponse) -> bytes:
    """The body of a yes; a no is raised."""
    if response.status < HTTPStatus.MULTIPLE_CHOICES:
        return response.body
    try:
        said = decoder(Status).decode(response.body)
    except msgspec.DecodeError:
        said = Status(message=response.body[:500].decode(errors="replace").strip())
    raise ApiError(response.status, said, response.retry_after_s)


def _encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def _query(query: dict[str, str]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""
