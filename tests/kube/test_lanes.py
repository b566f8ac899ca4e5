"""Which write goes next: pods that somebody waits for by themselves, and all others a second later at the latest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fairlease.kube.projection.write_queue import (
    ABREAST,
    HOLD_S,
    QUIET_S,
    SHARE,
    QueuedWrite,
    Target,
    WriteLane,
    WritePart,
    WriteQueue,
)
from fairlease.model.record import Key


async def _nothing() -> None:
    pass


def jobs(lane: WriteLane, count: int, first: int = 1) -> list[QueuedWrite]:
    part = WritePart(Key("team/run"), lane.name)
    return [
        QueuedWrite(lane, number, part, Target(lane.name, str(number)), _nothing)
        for number in range(first, first + count)
    ]


def lanes(*waiting: Iterable[QueuedWrite]) -> WriteQueue:
    made = WriteQueue()
    for some in waiting:
        for job in some:
            made.put(job)
    return made


def begun(here: WriteQueue, now: float) -> list[QueuedWrite]:
    """All that begin at a time."""
    found = []
    while (job := here.next(now)) is not None:
        found.append(job)
    return found


def test_pods_and_bindings_begin_by_themselves_however_much_room_there_is() -> None:
    here = lanes(
        jobs(WriteLane.STATUS, 3), jobs(WriteLane.EVENTS, 3, 4), jobs(WriteLane.PODS, 2, 7), jobs(WriteLane.BIND, 1, 9)
    )
    assert [each.lane for each in begun(here, 0.0)] == [WriteLane.BIND, WriteLane.PODS, WriteLane.PODS]


def test_what_follows_an_urgent_write_finds_nothing_else_under_way() -> None:
    here = lanes(jobs(WriteLane.PODS, 1), jobs(WriteLane.LEASES, 3, 2))
    (made,) = begun(here, 0.0)
    here.over(made, 0.01)
    assert begun(here, 0.02) == [], "the binding of the pod is not asked for yet"
    here.put(jobs(WriteLane.BIND, 1, 5)[0])
    (bound,) = begun(here, 0.03)
    assert bound.lane is WriteLane.BIND
    here.over(bound, 0.04)
    assert here.wait_s(0.04) == pytest.approx(QUIET_S)
    assert len(begun(here, 0.04 + QUIET_S)) == 3


def test_calm_writes_begin_at_once_where_nothing_is_urgent_leases_first() -> None:
    here = lanes(jobs(WriteLane.EVENTS, 1), jobs(WriteLane.STATUS, 1, 2), jobs(WriteLane.LEASES, 1, 3))
    assert [each.lane for each in begun(here, 0.0)] == [WriteLane.LEASES, WriteLane.STATUS, WriteLane.EVENTS]
    assert here.wait_s(0.0) is None


def test_calm_writes_have_a_share_after_a_second_however_many_urgent_ones_wait() -> None:
    here = lanes(jobs(WriteLane.PODS, 10 * ABREAST), jobs(WriteLane.STATUS, 100, 10_000))
    under_way = begun(here, 0.0)
    assert len(under_way) == ABREAST
    now = 0.0
    shares = []
    while now < 2 * HOLD_S:
        now += HOLD_S / 4
        for each in under_way[:12]:
            here.over(each, now)
        under_way = under_way[12:] + begun(here, now)
        assert len(under_way) == ABREAST
        shares.append(sum(each.lane.calm for each in under_way))
    assert shares[:3] == [0, 0, 0]
    assert set(shares[3:]) == {SHARE}


def test_one_urgent_write_that_never_ends_holds_nothing_back_for_longer() -> None:
    here = lanes(jobs(WriteLane.PODS, 1), jobs(WriteLane.EVENTS, 100, 2))
    begun(here, 0.0)
    assert here.wait_s(0.0) == HOLD_S
    assert begun(here, HOLD_S / 2) == []
    assert len(begun(here, HOLD_S)) == ABREAST - 1, "what urgent ones leave free is theirs"
