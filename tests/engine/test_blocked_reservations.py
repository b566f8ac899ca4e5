"""A reservation that lost its place holds nothing, and comes back with what it lost."""

from __future__ import annotations

from msgspec.structs import replace
from tests.engine.build import MINUTE, World, budget, node, run

from fairlease.model.reservation import ReservationState


def test_a_reservation_that_lost_all_its_nodes_is_made_again_when_one_comes_back() -> None:
    box = node("a0")
    world = World(box, budget("alpha"), budget("beta"))
    world.submit("old", run("beta", 8, pod=8))
    world.submit("big", run("alpha", 8, pod=8))
    asked_at = world.now
    world.write(replace(box, cordoned=True))
    hold = world.run("big").hold
    assert hold is not None
    assert hold.state is ReservationState.BLOCKED
    world.wait(MINUTE)
    world.write(box)
    hold = world.run("big").hold
    assert hold is not None
    assert (hold.state, hold.earliest_start) == (ReservationState.PENDING, asked_at + 15 * MINUTE), (
        "its notice was given"
    )
    world.wait(14 * MINUTE)
    assert world.how("big") == "Running"
