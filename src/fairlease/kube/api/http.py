"""HTTP/1.1 to one server, over connections that stay open: just what an API server speaks, and cheap enough to share its cores.

What others cost: creating Pods on one API server, 64 at once, aiohttp (3.14) spends 1.5 to 1.8 times the processor time of this,
httpx (0.28) 27 times, because its pool walks through all connections for each request; on two cores that time is the API server's.
To load aiohttp takes 320 ms, lightkube 230, this 120, of which asyncio is 76. And both hide what we must know: whether a request
that failed can have reached the server. bench/link.py measures this one beside the bare requests.

A response is read whole, or (a watch) as it comes. Nothing is compressed: members of a gzip stream get lost in some readers, and
within a cluster compression costs more than it saves.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from fairlease import __version__

CONNECT_S = 10.0
BUFFERED_MAX = 4 << 20
"""Bytes of a stream that wait to be read before the server is made to wait."""

_USER_AGENT = f"fairlease/{__version__}"
_HEAD_MAX = 64 << 10
_STATUS = slice(9, 12)


class Unreachable(Exception):  # noqa: N818 - it says what happened
    """No answer came. `sent` tells whether the server may have got, and carried out, the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class HttpResponse(NamedTuple):
    """An answer: its status, the seconds to wait before asking again (0 where the server did not say), and its body."""

    status: int
    retry_after_s: float
    body: bytes


class _Head(NamedTuple):
    status: int
    retry_after_s: float
    length: int | None
    chunked: bool
    close: bool


def _parse_head(raw: bytes) -> _Head:
    """What we need of a status line and headers."""
    lowered = raw.lower()

    def value(name: bytes) -> bytes | None:
        at = lowered.find(b"\r\n" + name + b":")
        if at < 0:
            return None
        begin = at + len(name) + 3
        end = lowered.find(b"\r\n", begin)
        return lowered[begin : end if end >= 0 else len(lowered)].strip()

    status, length, retry = int(raw[_STATUS]), value(b"content-length"), value(b"retry-after")
    return _Head(
        status,
        float(retry) if retry and retry.isdigit() else 0.0,
        int(length) if length is not None else None,
        value(b"transfer-encoding") == b"chunked",
        value(b"connection") == b"close",
    )


class _Chunks:
    """Undoes chunked transfer, whatever the pieces it is fed."""

    def __init__(self) -> None:
        self._left = bytearray()
        self._size = -1
        self.done = False

    def feed(self, data: bytes) -> list[bytes]:
        """The content of all chunks that are complete or under way."""
        left = self._left
        left += data
        out: list[bytes] = []
        at = 0
        while not self.done:
            if self._size < 0:
                end = left.find(b"\r\n", at)
                if end < 0:
                    break
                self._size = int(left[at:end].split(b";")[0], 16)
                at = end + 2
            if self._size == 0:
                self.done = len(left) >= at + 2
                at = len(left) if self.done else at
                break
            have = min(self._size, len(left) - at)
            if have == self._size and len(left) < at + have + 2:
                break
            if have:
                out.append(bytes(left[at : at + have]))
            at += have
            self._size -= have
            if self._size:
                break
            self._size = -1
            at += 2
        del left[:at]
        return out


class Wire(asyncio.Protocol):
    """One connection. It serves one request at a time, or becomes the one stream it was asked for."""

    def __init__(self) -> None:
        self.open = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._chunks: _Chunks | None = None
        self._body: list[bytes] = []
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._streaming = False
        self._arrived: asyncio.Event = asyncio.Event()
        self._buffered = 0
        self._paused = False
        self._ended = False
        self._failed: str | None = None

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        try:
            if self._head is not None and self._chunks is not None:
                self._chunked(self._chunks.feed(data))
                return
            self._buffer += data
            self._advance()
        except ValueError as error:
            self.fail(f"the server speaks no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if not self.lost.done():
            self.lost.set_result(None)
        if self._head is not None and self._head.length is None and self._chunks is None and not self._streaming:
            self._finish(bytes(self._buffer))  # a body without a length ends with its connection
        self.fail(f"the connection broke: {exc}" if exc else "the server closed the connection")

    # --- parsing -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _HEAD_MAX:
                    raise ValueError("headers without end")
                return
            self._head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            if self._head.chunked:
                self._chunks = _Chunks()
                rest = bytes(self._buffer)
                self._buffer.clear()
                self._chunked(self._chunks.feed(rest))
                return
        length = self._head.length
        if length is not None and len(self._buffer) >= length:
            self._finish(bytes(self._buffer[:length]))

    def _chunked(self, pieces: list[bytes]) -> None:
        head, chunks = self._head, self._chunks
        assert head is not None
        assert chunks is not None
        if self._streaming and head.status < HTTPStatus.BAD_REQUEST:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(HttpResponse(head.status, head.retry_after_s, b""))
            self._body += pieces
            self._buffered += sum(map(len, pieces))
            self._ended = self._ended or chunks.done
            if pieces or chunks.done:
                self._arrived.set()
            if self._buffered > BUFFERED_MAX and not self._paused and self._transport is not None:
                self._transport.pause_reading()
                self._paused = True
            return
        self._body += pieces
        if chunks.done:
            self._finish(b"".join(self._body))

    def _finish(self, body: bytes) -> None:
        head, answer = self._head, self._answer
        assert head is not None
        self._head = self._chunks = self._answer = None
        self._buffer.clear()
        self._body = [body] if self._streaming and body else []  # a stream that came whole, such as a log that is over
        self._ended = self._streaming
        if head.close:
            self.close()
        if answer is not None and not answer.done():
            answer.set_result(HttpResponse(head.status, head.retry_after_s, body))

    # --- asking ------------------------------------------------------------------------------------------------------

    def ask(self, request: bytes, *, streaming: bool = False) -> asyncio.Future[HttpResponse]:
        """Send a request; the answer, or of a stream its status, comes with the future."""
        assert self._answer is None, "one request at a time"
        answer: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._streaming = streaming
        assert self._transport is not None
        self._transport.write(request)
        return answer

    async def read(self, timeout_s: float) -> bytes:
        """What came of the stream since the last look, at least a byte; nothing at its orderly end."""
        if not self._body and not self._ended:
            timer = asyncio.get_running_loop().call_later(timeout_s, self.fail, f"nothing came for {timeout_s:.0f} s")
            self._arrived.clear()
            try:
                await self._arrived.wait()
            finally:
                timer.cancel()
        if self._failed is not None and not self._body:
            raise Unreachable(self._failed, sent=True)
        data = b"".join(self._body)
        self._body.clear()
        self._buffered = 0
        if self._paused and self.open and self._transport is not None:
            self._transport.resume_reading()
            self._paused = False
        return data

    def fail(self, why: str) -> None:
        """Give up the connection, and tell who waits for it."""
        self.close()
        if not self._ended:
            self._ended, self._failed = True, why
        self._arrived.set()
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(Unreachable(why, sent=True))

    def close(self) -> None:
        """End it at once: nobody waits for a polite farewell."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()


class ConnectionPool:
    """Connections to one server, as many as there are requests at once, up to `size`; streams are not counted."""

    def __init__(self, server: str, tls: Callable[[], ssl.SSLContext | None], name: str | None, size: int) -> None:
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._tls = tls
        self._name = name
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Wire] = []
        self._wires: set[Wire] = set()
        self._closed = False

    def encode(self, method: str, path: str, headers: str, body: bytes | None, content: str) -> bytes:
        """A request as bytes."""
        kind = "" if body is None else f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n"
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._authority}\r\nUser-Agent: {_USER_AGENT}\r\n"
            f"Accept: application/json\r\nAccept-Encoding: identity\r\n{headers}{kind}\r\n"
        )
        return head.encode("latin-1") + (body or b"")

    async def ask(self, request: bytes, timeout_s: float) -> HttpResponse:
        """The answer to a request; raises `Unreachable` where none comes."""
        async with self._slots:
            wire = self._pick() or await self._connect()
            response = await _within(wire, wire.ask(request), timeout_s)
            if wire.open:
                self._idle.append(wire)
            return response

    async def stream(self, request: bytes, timeout_s: float) -> tuple[HttpResponse, Wire]:
        """Begin a stream on a connection of its own; the caller reads it and closes it."""
        wire = await self._connect()
        return await _within(wire, wire.ask(request, streaming=True), timeout_s), wire

    def _pick(self) -> Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.open:
                return wire
        return None

    async def _connect(self) -> Wire:
        if self._closed:
            raise Unreachable("the connection was closed by us", sent=False)
        loop = asyncio.get_running_loop()
        context = self._tls()
        name = None if context is None else self._name or self._host
        try:
            async with asyncio.timeout(
                CONNECT_S
            ):  # `wait_for` loses a cancellation that comes together with the connection
                _, wire = await loop.create_connection(Wire, self._host, self._port, ssl=context, server_hostname=name)
        except TimeoutError:
            raise Unreachable(f"{self._authority} does not answer", sent=False) from None
        except OSError as error:
            raise Unreachable(f"{self._authority} cannot be reached: {error}", sent=False) from error
        self._wires.add(wire)
        wire.lost.add_done_callback(lambda _: self._wires.discard(wire))
        return wire

    async def close(self) -> None:
        """Close every connection, streams too."""
        self._closed = True
        wires = list(self._wires)
        for wire in wires:
            wire.fail("the connection was closed by us")
        self._idle.clear()
        if wires:
            await asyncio.wait([wire.lost for wire in wires], timeout=1.0)


async def _within(wire: Wire, answer: asyncio.Future[HttpResponse], timeout_s: float) -> HttpResponse:
    """Wait for an answer. A timer costs a tenth of what `wait_for` does, and there are a thousand a second."""
    timer = asyncio.get_running_loop().call_later(timeout_s, wire.fail, f"no answer within {timeout_s:.0f} s")
    try:
        return await answer
    except asyncio.CancelledError:
        wire.close()  # its answer would be taken for that of the next request
        raise
    finally:
        timer.cancel()
