"""What entries told that the state no longer knows, also where a snapshot cuts the story in two."""

from __future__ import annotations

from msgspec.structs import replace
from tests.engine.build import HOUR, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.engine.reservations import Reservations
from fairlease.kube.chronicle import Chronicle
from fairlease.ledger import event as ev
from fairlease.model.record import key


def world() -> World:
    """A run that waits for one that ends within the hour; it has a date, and is forecast."""
    made = World(node("a"), budget("org", envelope("e", 64)))
    made.submit("first", run("org", 8, 8, max_duration=HOUR))
    made.submit("second", run("org", 8, 8))
    made.tick(cmd.Forecast())
    return made


def test_a_date_that_was_made_before_the_entries_begin_is_told_with_its_forecast() -> None:
    here = world()
    (status,) = (
        each["status"] for each in Chronicle(here.scheduler.state, []).reservations[key("second")].objects(here.now)
    )
    assert status["state"] == "Pending"
    assert status["forecast"]["p50"]


def test_what_becomes_of_a_date_from_before_the_entries_is_told_and_stops_nobody() -> None:
    here = world()
    before = here.scheduler.head.seq
    here.wait(HOUR)
    assert here.run("second").leases
    chronicle = Chronicle(here.scheduler.state, here.store.entries(after=before))
    assert chronicle.turned[key("second")]["state"] == "Released"
    assert key("second") not in chronicle.reservations


def test_a_forecast_outlives_a_move_of_the_date() -> None:
    here = world()
    dates = Reservations()
    for entry in here.store.entries():
        for event in entry.events:
            dates.take(entry.at, event)
    (made,) = here.told(ev.ReservationMade)
    dates.take(here.now, replace(made, name="second-reservation-2", earliest_start=made.earliest_start + HOUR))
    old, new = dates.objects(here.now)
    assert (old["status"]["state"], new["status"]["state"]) == ("Superseded", "Pending")
    assert old["status"]["forecast"] == new["status"]["forecast"]


def test_a_run_that_a_snapshot_cut_in_two_holds_up_no_later_one_once_its_leases_are_told() -> None:
    here = world()
    before = here.scheduler.head.seq
    here.end("first")
    assert key("first") in here.scheduler.state.ended
    chronicle = Chronicle(here.scheduler.state, here.store.entries(after=before))
    for each in (key("first"), key("second")):
        chronicle.told(each)
    assert chronicle.told_before() is None, (
        "its leases were closed in objects before the restart: nothing is left to tell"
    )


def test_a_lease_that_still_looks_open_after_such_a_cut_is_waited_for() -> None:
    here = world()
    before = here.scheduler.head.seq
    (lease,) = here.run("first").leases
    here.end("first")
    chronicle = Chronicle(here.scheduler.state, here.store.entries(after=before))
    assert chronicle.swept(key("first"), lease)
    for each in (key("first"), key("second")):
        chronicle.told(each)
    assert chronicle.told_before() is not None
    assert chronicle.closed[key("first")][lease].status["closureReason"] == "Completed"
