"""Writes, many at a time and the urgent ones first (`kube.lanes`); what fails is shown, and tried again later.

Each object is written by one request at a time. A request belongs to a part of a run (its pods, its leases, its status): when the
last one of a part is done, or failed, that part is looked at again, and what is still not as it should be is written then. So a
gang of 512 pods is compared once after its pods are made, not 512 times.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.projection.write_queue import QueuedWrite, Target, WriteLane, WritePart, WriteQueue

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from fairlease.model.record import Key
    from fairlease.runtime.metrics import Metrics

FIRST_S, MOST_S = 0.5, 60.0
PASSING_S = 5.0
"""The longest pause where the server cannot be had. It does not refuse the object: once it is back, nobody waits any longer."""
WARN_S = 5.0
BACKLOG_MAX = 20_000
"""Tidings that wait to be written; more are not worth writing, and the ledger has them all."""


class Failed(NamedTuple):
    """Whose object could not be written, why, how often in a row, and when it is tried again (loop time)."""

    of: Key
    message: str
    code: int
    times: int
    again_at: float


class Writer:
    """Carries out writes. `done(part)` is called when the last write of a part is over; it must not raise."""

    def __init__(self, done: Callable[[WritePart], None], metrics: Metrics, log: FilteringBoundLogger) -> None:
        self.failed: dict[Target, Failed] = {}
        self.asked = 0
        """How many writes were ever asked for, whether they were taken or had to wait."""
        self._done, self._metrics, self._log = done, metrics, log
        self._lanes = WriteQueue()
        self._targets: set[Target] = set()
        self._parts: Counter[WritePart] = Counter()
        self._number = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._working = False
        self._again: asyncio.TimerHandle | None = None
        self._warned: dict[str, tuple[float, int]] = {}

    def start(self) -> None:
        """Begin to work."""
        self._working = True
        self._begin_soon(0.0)

    async def stop(self) -> None:
        """Drop everything: whoever leads next finds what is missing."""
        self._working = False
        for each in self._under_way:
            each.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """Writes under way, or waiting for their turn."""
        return len(self._targets)

    def busy(self, part: WritePart) -> bool:
        """Whether writes of a part are under way: what it looks like now is not what it will look like."""
        return self._parts[part] > 0

    def write(self, lane: WriteLane, part: WritePart, target: Target, act: Callable[[], Awaitable[None]]) -> bool:
        """Have a write done, unless it is under way already or failed just now; says whether it was taken."""
        self.asked += 1
        failed = self.failed.get(target)
        if target in self._targets or (failed is not None and failed.again_at > asyncio.get_running_loop().time()):
            return False
        if lane is WriteLane.EVENTS and len(self._targets) > BACKLOG_MAX:
            return False
        self._targets.add(target)
        self._parts[part] += 1
        self._number += 1
        self._lanes.put(QueuedWrite(lane, self._number, part, target, act))
        self._begin_soon(0.0)
        return True

    def _begin_soon(self, wait_s: float) -> None:
        """Begin what can be, in a while or in a moment: then all that one turn asks for is known."""
        loop = asyncio.get_running_loop()
        if self._again is not None:
            if self._again.when() <= loop.time() + wait_s:
                return
            self._again.cancel()
        self._again = loop.call_later(wait_s, self._begin)

    def _begin(self) -> None:
        self._again = None
        now = asyncio.get_running_loop().time()
        while self._working and (job := self._lanes.next(now)) is not None:
            task = asyncio.create_task(self._carry_out(job))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        wait_s = self._lanes.wait_s(now)
        if self._working and wait_s is not None:
            self._begin_soon(wait_s)

    async def _carry_out(self, job: QueuedWrite) -> None:
        try:
            await job.act()
        except (ApiError, Unreachable) as error:
            self._failure(job, error)
        except Exception:  # noqa: BLE001 - a fault in one write must not stop the others
            self._log.exception("a write failed", kind=job.target.kind, name=job.target.name)
            self._failure(job, RuntimeError("a fault of the controller; its log tells more"))
        else:
            self.failed.pop(job.target, None)
            self._metrics.counters["writes_total"].labels(job.target.kind, "done").inc()
        self._over(job)

    def _over(self, job: QueuedWrite) -> None:
        self._lanes.over(job, asyncio.get_running_loop().time())
        self._begin_soon(0.0)
        self._targets.discard(job.target)
        self._parts[job.part] -= 1
        if self._parts[job.part] <= 0:
            del self._parts[job.part]
            self._done(job.part)

    def _failure(self, job: QueuedWrite, error: Exception) -> None:
        loop = asyncio.get_running_loop()
        before = self.failed.get(job.target)
        times = 1 if before is None else before.times + 1
        passing = isinstance(error, Unreachable) or (isinstance(error, ApiError) and error.passing)
        wait_s = min(PASSING_S if passing else MOST_S, FIRST_S * 2 ** min(times - 1, 10))
        code = error.code if isinstance(error, ApiError) else 0
        self.failed[job.target] = Failed(job.part.of, str(error), code, times, loop.time() + wait_s)
        self._metrics.counters["writes_total"].labels(job.target.kind, "failed").inc()
        self._warn(job.target, str(error), times, loop.time())
        loop.call_later(wait_s, self._done, job.part)

    def _warn(self, target: Target, error: str, times: int, now: float) -> None:
        """One line for each kind now and then: where a server goes away, a thousand writes fail alike."""
        since, unsaid = self._warned.get(target.kind, (0.0, 0))
        if now - since < WARN_S:
            self._warned[target.kind] = (since, unsaid + 1)
            return
        self._warned[target.kind] = (now, 0)
        self._log.warning("not written", kind=target.kind, name=target.name, error=error, times=times, others=unsaid)

    def fault(self, of: Key, kind: str) -> None:
        """What should be written could not even be said: our own fault, shown as if the server had refused it."""
        self._log.exception("a fault of the controller", of=of)
        loop = asyncio.get_running_loop()
        message = "a fault of the controller; its log tells more"
        self.failed[Target(kind, of)] = Failed(of, message, 0, 2, loop.time() + MOST_S)
        loop.call_later(MOST_S, self._done, WritePart(of, kind))

    def forget(self, of: Key) -> None:
        """Nobody wants anything of it written any more."""
        for target in [target for target, failed in self.failed.items() if failed.of == of]:
            del self.failed[target]

    def problem(self, of: Key) -> str:
        """What cannot be written of a run, in a sentence; nothing where all can. Told after the second failure in a row."""
        for target, failed in self.failed.items():
            if failed.of == of and failed.times > 1:
                return f"{target.kind} {target.name} cannot be written: {failed.message}"
        return ""
