"""A reservation that lost its place holds nothing, and comes back with what it lost."""

from __future__ import annotations

from msgspec.structs import replace
from tests.engine.build import HOUR, MINUTE, T0, World, budget, envelope, node, run

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


def test_a_lien_names_its_nodes_in_the_order_in_which_a_restart_reads_them() -> None:
    world = World(*(node(f"a{number}") for number in range(4)), budget("alpha"), budget("beta"))
    for number, gpus in enumerate((2, 8, 4, 8)):
        world.submit(f"old-{number}", run("beta", gpus, pod=gpus))
    world.submit("big", run("alpha", 24, pod=4))
    hold = world.run("big").hold
    assert hold is not None
    assert len(hold.lien) > 2
    assert list(hold.lien) == sorted(hold.lien)


def test_a_window_that_pays_only_where_the_run_never_fits_keeps_no_date() -> None:
    """Its money now is taken away, what opens later reaches a node that is too small."""
    now = envelope("now", concurrency=8, selector={"region": "west"})
    later = envelope("later", concurrency=8, selector={"region": "east"}, start=T0 + 10 * HOUR)
    nodes = node("big", 8), node("small", 4, region="east", domain="B")
    world = World(*nodes, budget("org", now, later), budget("lab"))
    assert world.submit("runs", run("lab", 8, pod=8)) == "Running"
    assert world.submit("waits", run("org", 8, pod=8)) == "Reserved"
    world.write(budget("org", replace(now, concurrency=4), later))
    assert world.how("waits") == "ConcurrencyCapExceeded"
    hold = world.run("waits").hold
    assert hold is not None
    assert hold.state is ReservationState.BLOCKED
    world.wait(HOUR)
