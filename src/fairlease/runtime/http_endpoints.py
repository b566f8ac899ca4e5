"""A few pages over HTTP, for those who scrape and those who ask whether we live: GET, one answer, and the connection closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

_HEAD_MAX = 8_192
_PATIENCE_S = 5.0


class Page(NamedTuple):
    """What a path answers."""

    body: bytes
    status: str = "200 OK"
    kind: str = "text/plain; charset=utf-8"


class Pages:
    """Answers each of its paths by calling what makes the page, and nothing else."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = {path.encode(): make for path, make in pages.items()}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; OSError where the port is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_MAX)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, path, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b"", b""]
        make = self._pages.get(path.split(b"?", 1)[0])
        if make is None:
            known = " or ".join(each.decode() for each in self._pages)
            return _written(Page(f"ask for {known}\n".encode(), "404 Not Found"))
        if method != b"GET":
            return _written(Page(b"only GET\n", "405 Method Not Allowed"), allow="Allow: GET\r\n")
        return _written(make())


def _written(page: Page, allow: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {page.status}\r\nContent-Type: {page.kind}\r\nContent-Length: {len(page.body)}\r\n{allow}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + page.body
