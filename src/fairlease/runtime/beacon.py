"""Beacon: a public value that nobody here could know beforehand, for the lottery's seed (SEMANTICS §7).

It is read when a reservation is about to fall due, or somebody frees GPUs by hand: a file at that very moment, a command from some
seconds before, beside the loop.
What is used stands in the outcome's lottery. A beacon that cannot be read keeps no reservation from falling due: the draw is made
without one, as the record then shows, and log and metric say why.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from typing import TYPE_CHECKING

from fairlease.engine.command import Resolve
from fairlease.model.reservation import ReservationState
from fairlease.runtime.processes.hook import call
from fairlease.runtime.processes.login import base_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from fairlease.engine.command import AnyCommand
    from fairlease.ledger.state.state import State
    from fairlease.runtime.metrics import Metrics
    from fairlease.runtime.settings import BeaconSource

LEAD_MS = 10_000
"""How long before a reservation falls due its beacon is asked for by a command."""
FRESH_MS = 30_000
"""How long what a command said serves: reservations that fall due together share it."""
PATIENCE_S = 8.0
AGAIN_S = 1.0
BYTES_MAX = 4_096
_VALUE = re.compile(r"[\x21-\x7e]{1,256}")


class Beacon:
    """The source that the configuration names, if any."""

    def __init__(
        self,
        source: BeaconSource | None,
        state: State,
        now: Callable[[], int],
        metrics: Metrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._source = source
        self._state = state
        self._now = now
        self._metrics = metrics
        self._log = log
        self._wake = asyncio.Event()
        self._heard: tuple[int, str] | None = None
        self._listening: asyncio.Task[None] | None = None

    def value(self, at: int, commands: Iterable[AnyCommand]) -> str:
        """What enters the draws of a tick at `at`: nothing, unless a reservation falls due in it or GPUs are freed by hand."""
        if self._source is None:
            return ""
        due = self._next_due()
        if (due is None or due > at) and not any(isinstance(each, Resolve) for each in commands):
            return ""
        file = self._source.file
        if file is not None:
            return self._counted(lambda: read_file(file))
        heard = self._heard
        if heard is None or at - heard[0] > FRESH_MS:
            self._missed("the command has not answered in time")
            return ""
        return heard[1]

    async def open(self) -> None:
        """Ask the command before the first decision, where a reservation fell due while nobody decided; then ahead of each."""
        command = () if self._source is None else self._source.command
        if not command:
            return
        due = self._next_due()
        if due is not None and due <= self._now():
            await self._ask(command)
        self._listening = asyncio.create_task(self._listen(command))

    def hear(self) -> asyncio.Task[None] | None:
        """Begin to ask the command for a draw by hand, unless what it said will serve; None: nothing is to be waited for."""
        command = () if self._source is None else self._source.command
        if not command or (self._heard is not None and self._now() - self._heard[0] <= FRESH_MS - LEAD_MS):
            return None
        return asyncio.create_task(self._ask(command))

    def close(self) -> None:
        """Ask no more."""
        if self._listening is not None:
            self._listening.cancel()

    def look(self) -> None:
        """Reservations may have changed."""
        self._wake.set()

    async def _listen(self, command: tuple[str, ...]) -> None:
        """Ask the command ahead of every reservation; never returns."""
        while True:
            self._wake.clear()
            due, now = self._next_due(), self._now()
            wait_s = None if due is None else max(0, due - LEAD_MS - now) / 1000
            heard = self._heard
            if due is not None and heard is not None and due - heard[0] <= FRESH_MS:
                wait_s = max(FRESH_MS - (now - heard[0]), 100) / 1000
            elif wait_s == 0:
                await self._ask(command)
                wait_s = AGAIN_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _ask(self, command: tuple[str, ...]) -> None:
        begun = self._now()
        try:
            done = await call(command, base_environment(None, os.environ), None, PATIENCE_S)
        except OSError as error:  # no process can be had at the moment
            self._missed(str(error))
            return
        if done.code:
            self._missed(done.err)
            return
        value = self._counted(lambda: clean(done.out))
        if value:
            self._heard = begun, value

    def _counted(self, read: Callable[[], str]) -> str:
        try:
            value = read()
        except (OSError, ValueError) as error:
            self._missed(str(error))
            return ""
        self._metrics.beacon("read")
        return value

    def _missed(self, why: str) -> None:
        self._metrics.beacon("failed")
        self._log.warning("no beacon: draws are made without one", error=why)

    def _next_due(self) -> int | None:
        """When the next reservation falls due, if one is in force."""
        holds = (run.hold for run in self._state.holds.values())
        dates = (each.earliest_start for each in holds if each is not None and each.state is ReservationState.PENDING)
        return min(dates, default=None)


def read_file(path: str) -> str:
    """The value in a file; one that is no plain file is not waited for."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError(f"{path} is not a plain file")
        return clean(os.read(file, BYTES_MAX))
    finally:
        os.close(file)


def clean(raw: bytes) -> str:
    """A beacon's value: one word of up to 256 printable ASCII characters, whatever blanks stand around it."""
    value = raw.decode("ascii", "replace").strip()
    if not _VALUE.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is no beacon: expected one word of at most 256 printable characters")
    return value
