"""What the tests of the link share: a wire between client and server that can be cut, muted or made to lose answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.kubeconfig import ClusterAccess, from_files
from fairlease.kube.api.resource import Meta, Resource

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


class Thing(msgspec.Struct, frozen=True):
    """A ConfigMap, or an object of any kind with `data` of its own."""

    metadata: Meta
    data: dict[str, str] = {}


def way_into(plane: Plane, port: int | None = None) -> ClusterAccess:
    """The administrator's way in, or the same through a wire that listens on a port."""
    access = from_files([plane.kubeconfig()])
    return access if port is None else msgspec.structs.replace(access, server=f"https://127.0.0.1:{port}")


async def until(holds: Callable[[], bool], what: str, bound_s: float = 30.0) -> None:
    """Wait until something holds; fails with its name."""
    end = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < end, f"after {bound_s:g} s still not so: {what}"
        await asyncio.sleep(0.02)


class Cable:
    """A TCP wire to a port. `cut`: connections break and are refused; `mute`: they hang, silently; `deaf`: answers get lost."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = 0
        self.mute = False
        self.deaf = False
        self.connections = 0
        self._cut = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Break everything."""
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        """All is well again; what was muted in between stays lost."""
        self._cut = self.mute = self.deaf = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._cut:
            writer.transport.abort()
            return
        try:
            back, out = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, out}
        both = [
            asyncio.create_task(self._pump(reader, out, lambda: self.mute)),
            asyncio.create_task(self._pump(back, writer, lambda: self.mute or self.deaf)),
        ]
        self._tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, out):
            each.transport.abort()
            self._writers.discard(each)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: Callable[[], bool]) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if not lost():
                    writer.write(data)
                    await writer.drain()

    async def stop(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def cable_to(port: int) -> AsyncIterator[Cable]:
    """A wire to a local port, for as long as the context lasts."""
    cable = Cable(port)
    server = await asyncio.start_server(cable.serve, "127.0.0.1", 0)
    cable.port = server.sockets[0].getsockname()[1]
    try:
        yield cable
    finally:
        server.close()
        await cable.stop()


@asynccontextmanager
async def connected(plane: Plane, port: int | None = None, timeout_s: float = 30.0) -> AsyncIterator[Api]:
    """The administrator's connection."""
    async with Api(way_into(plane, port), timeout_s=timeout_s) as api:
        yield api


async def ready(plane: Plane, bound_s: float = 60.0) -> None:
    """Wait until a server that was started again is ready."""
    end = time.monotonic() + bound_s
    async with Api(way_into(plane), timeout_s=2.0) as api:
        while True:
            assert plane.apiserver.alive, plane.apiserver.tail()
            assert time.monotonic() < end, f"the server is not ready after {bound_s:g} s"
            try:
                await api.ask("GET", "/readyz")
            except (ApiError, Unreachable):
                await asyncio.sleep(0.05)
            else:
                return
