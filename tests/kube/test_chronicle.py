"""What entries told that the state no longer knows, also where a snapshot cuts the story in two."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.engine.build import HOUR, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.kube.projection.tombstones import Tombstones
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.state import State
from fairlease.model.record import key
from fairlease.report.reservation_history import ReservationHistory


def world() -> World:
    """A run that waits for one that ends within the hour; it has a date, and is forecast."""
    made = World(node("a"), budget("org", envelope("e", 64)))
    made.submit("first", run("org", 8, 8, max_duration=HOUR))
    made.submit("second", run("org", 8, 8))
    made.tick(cmd.Forecast())
    return made


def chronicle_after(here: World, seq: int) -> Tombstones:
    """As after a restart from a snapshot of an entry."""
    base = State()
    for entry in here.store.entries():
        for event in entry.events if entry.seq <= seq else ():
            base.apply(entry.at, event)
    return Tombstones(base, here.store.entries(after=seq))


def statuses(chronicle: Tombstones, here: World) -> list[dict[str, Any]]:
    """What the reservations of the second run are told as."""
    return [each["status"] for each in chronicle.reservations[key("second")].objects(here.now)]


def test_a_date_that_was_made_before_the_entries_begin_is_told_with_its_forecast() -> None:
    here = world()
    (status,) = statuses(chronicle_after(here, here.scheduler.head.seq), here)
    assert status["state"] == "Pending"
    assert status["forecast"]["p50"]


def test_what_becomes_of_a_date_from_before_the_entries_is_told() -> None:
    here = world()
    before = here.scheduler.head.seq
    here.wait(HOUR)
    assert here.run("second").leases
    assert [each["state"] for each in statuses(chronicle_after(here, before), here)] == ["Released"]


def test_a_forecast_outlives_a_move_of_the_date() -> None:
    here = world()
    dates = ReservationHistory()
    for entry in here.store.entries():
        for event in entry.events:
            dates.take(entry.at, event)
    (made,) = here.told(ev.ReservationMade)
    dates.take(here.now, replace(made, name="second-reservation-2", earliest_start=made.earliest_start + HOUR))
    old, new = dates.objects(here.now)
    assert (old["status"]["state"], new["status"]["state"]) == ("Superseded", "Pending")
    assert old["status"]["forecast"] == new["status"]["forecast"]


def test_a_run_that_a_snapshot_cut_in_two_is_told_whole_and_holds_up_no_later_one() -> None:
    here = world()
    before = here.scheduler.head.seq
    (lease,) = here.run("first").leases.values()
    here.end("first")
    chronicle = chronicle_after(here, before)
    assert chronicle.final[key("first")].spec == run("org", 8, 8, max_duration=HOUR)
    (closed,) = chronicle.closed[key("first")].values()
    assert (closed.lease, closed.status["closureReason"]) == (lease, "Completed"), "its object may not be there yet"
    for each in (key("first"), key("second")):
        chronicle.told(each)
    assert chronicle.told_before() == before + 1
    del chronicle.closed[key("first")]
    chronicle.told(key("first"))
    assert chronicle.told_before() is None


def test_a_run_that_held_nothing_when_it_ended_holds_up_no_snapshot() -> None:
    here = world()
    before = here.scheduler.head.seq
    here.tick(cmd.Cancel(run=key("second")))
    chronicle = chronicle_after(here, before)
    chronicle.told(key("second"))
    assert chronicle.told_before() is None
