"""The courier by itself: what is tried again, how often and how soon, whatever goes wrong."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from tests.engine.build import World

from fairlease.report.notices import Notice, NoticeKind
from fairlease.runtime.metrics import MACHINE, Metrics
from fairlease.runtime.notify import dispatcher as carrying
from fairlease.runtime.notify.dispatcher import Channel, Dispatcher
from fairlease.runtime.notify.outbox import Address, Delivery, Outbox, Sums
from fairlease.runtime.processes.hook import call


def carry(place: Path, send: Callable[[Delivery], Awaitable[None]], seconds: float) -> tuple[Sums, dict[str, float]]:
    """Have one notice carried for a while over a channel that gives up after five tries; what became of it, and the counts."""
    outbox, metrics = Outbox(place / "notices.db"), Metrics(World().scheduler.state, MACHINE)
    outbox.put([(Notice(key="RunStarted/a", kind=NoticeKind.RUN_STARTED, at=0, text="a"), [Address("command")])], 0)

    async def live() -> None:
        wake = asyncio.Event()
        courier = Dispatcher(outbox, {"command": Channel(4, 5)}, send, _now, wake.set, metrics, structlog.get_logger())
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            wake.clear()
            wait_s = courier.pump()
            try:
                async with asyncio.timeout(max(0.001, min(wait_s, left))):
                    await wake.wait()
            except TimeoutError:
                continue
        await courier.close()

    asyncio.run(live())
    (family,) = metrics.counters["notifications_total"].collect()
    sums = outbox.sums(0)
    outbox.close()
    return sums, {each.labels["result"]: each.value for each in family.samples}


def _now() -> int:
    return round(time.time() * 1000)


def test_where_no_process_can_be_had_a_command_is_tried_again_later_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))

    async def send(_: Delivery) -> None:
        await call(("/bin/true",), {}, None, 5.0)

    with capture_logs() as logs:
        sums, counted = carry(tmp_path, send, 2.0)
    assert counted == {"retried": 3}, "at once, after half a second, and after one more"
    assert [each["exc_info"] for each in logs if each["event"] == "a delivery failed"] == [True] * 3
    assert sums.error.startswith("FileNotFoundError")
    assert sums.pending == 1


def test_a_fault_that_nobody_thought_of_is_given_up_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "FIRST_WAIT_MS", 1)

    async def send(_: Delivery) -> None:
        raise KeyError("what")

    sums, counted = carry(tmp_path, send, 1.0)
    assert counted == {"retried": 4, "failed": 1}
    assert sums == (0, 1, "KeyError: 'what'")
