"""The daemon's ears: connections from people on this machine, none of whom can harm the others.

Each connection is read line by line within limits: of size, of time for a line to become whole, of time for an answer to be taken,
of connections for one user and in all. What a caller sends is decoded here; what it means is the business of `answers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.local.socket.protocol import (
    EXIT_FORBIDDEN,
    EXIT_INVALID,
    EXIT_REFUSED,
    LINE_MAX,
    Error,
    Fault,
    Request,
    Response,
    decode_request,
    encode,
    fault,
    reachable,
)
from fairlease.reason import Reason
from fairlease.runtime.requests import Refused

if TYPE_CHECKING:
    from fairlease.local.socket.access import Access, Caller

CONNECTIONS_MAX = 256
CONNECTIONS_OF_ONE_MAX = 32
LINE_S = 30.0
TAKE_S = 30.0
BACKLOG = 256
_CREDENTIALS = struct.Struct("3i")

Answer = Callable[["Caller", Request], Awaitable[Any]]
Report = Callable[[BaseException], None]


class ServerRefusal(Exception):  # noqa: N818 - a value on its way to the caller, not a failure of ours
    """A request that cannot be answered: the conversation failed, or the daemon cannot go on."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


class Server:
    """Listens on one socket and hands each request to `answer`, which returns the result or raises `Refused`."""

    def __init__(self, path: Path, access: Access, answer: Answer, report: Report) -> None:
        self._path = path
        self._access = access
        self._answer = answer
        self._report = report
        self._open: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. The socket of a daemon that died is in the way; the lock of the home says that it did die."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with reachable(self._path) as name:
            listener.bind(name)
        # Who may reach it is for the directory to say; who may do what, for the peer's credentials.
        self._path.chmod(0o666 if os.geteuid() == 0 else 0o600)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=LINE_MAX, backlog=BACKLOG)

    async def close(self) -> None:
        """Listen no more, and let answers that are under way be taken."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._tasks.add(task)
        uid: int | None = None
        writer.transport.set_write_buffer_limits(0)  # `drain` then means that it was taken
        try:
            _, uid, gid = credentials(writer.get_extra_info("socket"))
            self._open[uid] = self._open.get(uid, 0) + 1
            if sum(self._open.values()) > CONNECTIONS_MAX or self._open[uid] > CONNECTIONS_OF_ONE_MAX:
                await _say(writer, Response(ok=False, error=fault(Fault.TooManyConnections, "too many connections")))
            else:
                await self._serve(await self._access.known_caller(uid, gid), reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # it went, or it was too slow: its own loss
        finally:
            if uid is not None:
                self._open[uid] -= 1
                if not self._open[uid]:
                    del self._open[uid]
            self._tasks.discard(task)
            if _flushed(writer):
                writer.close()
            else:
                writer.transport.abort()

    async def _serve(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(LINE_S):
                    line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                if error.partial.strip():
                    await _say(writer, Response(ok=False, error=fault(Fault.Malformed, "the line has no end")))
                return
            except asyncio.LimitOverrunError:
                told = fault(Fault.TooLarge, f"a request has at most {LINE_MAX} bytes")
                await _say(writer, Response(ok=False, error=told))
                return
            await _say(writer, await self._respond(caller, line))

    async def _respond(self, caller: Caller, line: bytes) -> Response:
        try:
            request = decode_request(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Response(ok=False, error=fault(Fault.Malformed, f"not a request: {str(error)[:200]}"))
        try:
            return Response(ok=True, result=await self._answer(caller, request))
        except ServerRefusal as refused:
            return Response(ok=False, error=refused.error)
        except Refused as refused:
            return Response(ok=False, error=error_of(refused))
        except Exception as error:  # noqa: BLE001 - one caller's trouble must not become everybody's
            self._report(error)
            return Response(ok=False, error=fault(Fault.Broken, f"the daemon failed to answer {request.verb[:40]}"))


def error_of(refused: Refused) -> Error:
    """A refusal as it is sent."""
    codes = {Reason.InvalidRequest: EXIT_INVALID, Reason.Forbidden: EXIT_FORBIDDEN}
    code = codes.get(refused.reason, EXIT_REFUSED)
    return Error(refused.reason.value, refused.message, refused.remedy, code, list(refused.problems))


def credentials(conn: Any) -> tuple[int, int, int]:  # noqa: ANN401 - asyncio's stand-in for a socket
    """Process, user and group at the other end, as they were when it connected: the kernel's word, not the caller's."""
    raw = conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid


async def _say(writer: asyncio.StreamWriter, response: Response) -> None:
    writer.write(encode(response) + b"\n")
    async with asyncio.timeout(TAKE_S):
        await writer.drain()


def _flushed(writer: asyncio.StreamWriter) -> bool:
    return writer.transport.get_write_buffer_size() == 0
