"""Writes are carried out in their order; and what was written and not seen yet counts as there, until it is or should have been."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog

from fairlease.kube.api.cache import Made
from fairlease.kube.api.connection import ApiError, Status
from fairlease.kube.api.http import Unreachable
from fairlease.kube.projection.write_queue import Target, WriteLane, WritePart
from fairlease.kube.projection.writer import MOST_S, PASSING_S, Writer
from fairlease.ledger.state.state import State
from fairlease.model.record import Key
from fairlease.runtime.metrics import CLUSTER, Metrics


def test_what_was_written_is_there_until_its_version_was_passed_however_long_that_takes() -> None:
    async def act() -> None:
        place = [90]
        made = Made(lambda version: int(version) <= place[0])
        made.EXPIRES_S = -1.0  # the time that is given to what has no version is long over
        made.add("team/pod", "uid", "100")
        assert made.get("team/pod") == "uid"
        place[0] = 99
        assert made.get("team/pod") == "uid"
        place[0] = 120
        assert made.get("team/pod") is None, "it would have been seen by now: it was taken away"
        made.add("team/other", "uid")
        assert made.get("team/other") is None

    asyncio.run(act())


def test_a_status_is_not_written_between_the_making_of_a_pod_and_its_binding() -> None:
    async def act() -> list[str]:
        pods, status = WritePart(Key("team/run"), "pods"), WritePart(Key("team/run"), "status")
        over: list[str] = []
        all_over = asyncio.Event()

        def takes(name: str) -> Callable[[], Awaitable[None]]:
            async def act() -> None:
                await asyncio.sleep(0.005)
                over.append(name)

            return act

        def done(part: WritePart) -> None:
            if part == status:
                all_over.set()
            elif "bound" not in over:
                asyncio.get_running_loop().call_soon(
                    writer.write, WriteLane.BIND, pods, Target("b", "b"), takes("bound")
                )

        writer = Writer(done, Metrics(State(), CLUSTER), structlog.get_logger())
        writer.write(WriteLane.STATUS, status, Target("s", "s"), takes("status"))
        writer.write(WriteLane.PODS, pods, Target("p", "p"), takes("made"))
        writer.start()
        async with asyncio.timeout(10):
            await all_over.wait()
        assert writer.waiting == 0
        await writer.stop()
        return over

    assert asyncio.run(act()) == ["made", "bound", "status"]


@pytest.mark.parametrize(
    ("error", "most_s"),
    [
        (Unreachable("nobody is there", sent=False), PASSING_S),
        (ApiError(503, Status(message="starting")), PASSING_S),
        (ApiError(500, Status(message="etcdserver: request timed out")), PASSING_S),
        (ApiError(422, Status(message="invalid")), MOST_S),
    ],
    ids=["nobody is there", "starting", "etcd", "invalid"],
)
def test_who_could_not_be_reached_is_asked_again_soon_and_who_refused_ever_more_slowly(
    error: Exception, most_s: float
) -> None:
    async def act() -> float:
        loop, target = asyncio.get_running_loop(), Target("runs", "team/run")
        tried = asyncio.Event()
        writer = Writer(lambda _: tried.set(), Metrics(State(), CLUSTER), structlog.get_logger())
        writer.start()

        async def fail() -> None:
            raise error

        for _ in range(12):
            tried.clear()
            if target in writer.failed:
                writer.failed[target] = writer.failed[target]._replace(again_at=0.0)
            assert writer.write(WriteLane.PODS, WritePart(Key("team/run"), "pods"), target, fail)
            await tried.wait()
        pause_s = writer.failed[target].again_at - loop.time()
        await writer.stop()
        return pause_s

    assert asyncio.run(act()) == pytest.approx(most_s, abs=1.0)


def test_what_could_not_even_be_said_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlease.kube.projection.writer.MOST_S", 0.01)

    async def act() -> WritePart:
        again: asyncio.Future[WritePart] = asyncio.get_running_loop().create_future()
        writer = Writer(again.set_result, Metrics(State(), CLUSTER), structlog.get_logger())
        writer.fault(Key("team/run"), "runs")
        async with asyncio.timeout(5):
            return await again

    assert asyncio.run(act()) == WritePart(Key("team/run"), "runs")
