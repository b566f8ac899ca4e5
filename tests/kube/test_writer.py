"""Writes are carried out in their order; and what was written and not seen yet counts as there, until it is or should have been."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from fairlease.kube.lanes import Lane, Part, Target
from fairlease.kube.writer import Made, Writer
from fairlease.ledger.state import State
from fairlease.model.record import Key
from fairlease.theatre.metrics import CLUSTER, Metrics


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
        pods, status = Part(Key("team/run"), "pods"), Part(Key("team/run"), "status")
        over: list[str] = []
        all_over = asyncio.Event()

        def takes(name: str) -> Callable[[], Awaitable[None]]:
            async def act() -> None:
                await asyncio.sleep(0.005)
                over.append(name)

            return act

        def done(part: Part) -> None:
            if part == status:
                all_over.set()
            elif "bound" not in over:
                asyncio.get_running_loop().call_soon(writer.write, Lane.BIND, pods, Target("b", "b"), takes("bound"))

        writer = Writer(done, Metrics(State(), CLUSTER), structlog.get_logger())
        writer.write(Lane.STATUS, status, Target("s", "s"), takes("status"))
        writer.write(Lane.PODS, pods, Target("p", "p"), takes("made"))
        writer.start()
        async with asyncio.timeout(10):
            await all_over.wait()
        assert writer.waiting == 0
        await writer.stop()
        return over

    assert asyncio.run(act()) == ["made", "bound", "status"]
