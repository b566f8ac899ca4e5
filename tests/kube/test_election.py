"""Who leads: one at a time, the next within seconds of a release, and after the lease's time behind one that died."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.kube.conftest import MakePlane
from tests.kube.wires import Cable, cable_to, connected, ready, until
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api
from fairlease.kube.api.election import Election
from fairlease.kube.api.resource import ELECTION_LEASES

QUICK = {"lease_s": 3.0, "renew_s": 2.0, "retry_s": 0.3}


def candidate(api: Api, namespace: str, who: str) -> Election:
    return Election(api, namespace, "fairlease", who, **QUICK)


def test_one_leads_and_the_other_follows_at_once_when_it_lets_go(plane: Plane, namespace: str) -> None:
    async def act() -> float:
        async with connected(plane) as api:
            first, second = candidate(api, namespace, "first"), candidate(api, namespace, "second")
            await first.acquire()
            holding = asyncio.create_task(first.hold())
            waiting = asyncio.create_task(second.acquire())
            await asyncio.sleep(QUICK["lease_s"] + 1.0)
            assert (first.leading, second.leading, second.holder) == (True, False, "first")
            holding.cancel()
            begun = time.monotonic()
            await first.release()
            await waiting
            assert (first.leading, second.leading) == (False, True)
            return time.monotonic() - begun

    assert asyncio.run(act()) < 2.0


def test_of_many_that_begin_together_exactly_one_leads(plane: Plane, namespace: str) -> None:
    async def act() -> int:
        async with connected(plane) as api:
            all_of_them = [candidate(api, namespace, f"c-{number}") for number in range(8)]
            tasks = [asyncio.create_task(each.acquire()) for each in all_of_them]
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return sum(each.leading for each in all_of_them)

    assert asyncio.run(act()) == 1


def test_a_leader_that_is_cut_off_stops_before_another_begins(plane: Plane, namespace: str) -> None:
    async def act() -> tuple[float, float]:
        async with cable_to(plane.port) as cable, connected(plane) as api, connected(plane, cable.port) as far:
            return await cut_off(cable, candidate(far, namespace, "far"), candidate(api, namespace, "near"))

    stopped, began = asyncio.run(act())
    assert stopped < began


async def cut_off(cable: Cable, far: Election, near: Election) -> tuple[float, float]:
    """When the one at the far end of a cut wire stopped leading, and when the other began."""
    await far.acquire()
    holding = asyncio.create_task(far.hold())
    waiting = asyncio.create_task(near.acquire())
    await asyncio.sleep(1.0)
    cable.mute = True
    await until(holding.done, "the far one gives up")
    stopped = time.monotonic()
    await asyncio.wait_for(waiting, 20.0)
    assert (far.leading, near.leading) == (False, True)
    return stopped, time.monotonic()


def test_a_holder_whose_clock_is_wrong_is_not_robbed(plane: Plane, namespace: str) -> None:
    async def act() -> None:
        async with connected(plane) as api:
            first, second = candidate(api, namespace, "first"), candidate(api, namespace, "second")
            await first.acquire()
            holding = asyncio.create_task(first.hold())
            waiting = asyncio.create_task(second.acquire())
            end = time.monotonic() + QUICK["lease_s"] + 1.0
            while time.monotonic() < end:  # as if the holder lived in the last century
                old = {"spec": {"renewTime": "1999-01-01T00:00:00.000000Z"}}
                await api.patch(ELECTION_LEASES, "fairlease", old, namespace)
                await asyncio.sleep(0.2)
            assert not second.leading
            for task in (holding, waiting):
                task.cancel()

    asyncio.run(act())


@pytest.mark.xdist_group("election")
def test_a_leader_outlives_a_short_outage_of_the_server(make_plane: MakePlane) -> None:
    plane = make_plane()

    async def act() -> bool:
        async with connected(plane) as api:
            leader = Election(api, "default", "fairlease", "me", lease_s=60.0, renew_s=50.0, retry_s=0.3)
            await leader.acquire()
            holding = asyncio.create_task(leader.hold())
            plane.apiserver.kill()
            await asyncio.sleep(1.0)
            plane.apiserver.start()
            await ready(plane)
            await asyncio.sleep(2.0)
            held = leader.leading
            holding.cancel()
            return held

    assert asyncio.run(act())
    plane.stop()
