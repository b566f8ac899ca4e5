"""What the engine's views say and what the CRDs keep are the same: an API server drops unknown fields without a word."""

from __future__ import annotations

from typing import Any

from tests.engine.build import HOUR, World, budget, cap, envelope, lending, node, run
from tests.kube.tenancy import bound_namespace, controller, path, thing
from tests.model.rows import BUDGET, LEASE, RUN
from tools.controlplane import Plane

from fairlease.engine import command as cmd
from fairlease.ledger.state.events import RunSubmitted
from fairlease.model.record import key
from fairlease.report import views
from fairlease.report.reservation_history import ReservationHistory


def world() -> World:
    """A run that runs on its own, its family's and a sponsor's money with spares, one that waits, one that is over."""
    made = World(
        *(node(f"n-{number}") for number in range(7)),
        budget(
            "org", envelope("e", 8, max_gpu_hours=1000 * HOUR), aggregate_caps=(cap("all", ["e"], max_concurrency=8),)
        ),
        budget("org:a", envelope("e", 8)),
        budget("rich", envelope("e", 64, lending=lending())),
    )
    funding: dict[str, Any] = {"allow_borrow": True, "sponsors": ("rich",)}
    made.submit("over", run("org:a", 8, 8))
    made.wait(HOUR)
    made.end("over")
    made.submit("runs", run("org:a", 24, 8, group_gpus=8, spares=8, max_duration=2 * HOUR, **funding))
    made.submit("waits", run("org:a", 64, 8, **funding))
    return made


def kept(plane: Plane, kind: str, spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    """A status as the server keeps it."""
    place = bound_namespace(plane, "org:ai")
    writer = plane.api() if kind in ("Run", "Budget") else controller(plane)
    assert writer.post(path(kind, place), thing(kind, spec)).ok
    said = controller(plane).ask(
        "PATCH", path(kind, place, "me", "status"), {"status": status}, "application/merge-patch+json"
    )
    assert said.ok, said.message
    found: dict[str, Any] = said.body["status"]
    return found


def bare(value: Any) -> Any:  # noqa: ANN401 - JSON is of no one type
    """Without nulls: not there, and there as null, mean the same."""
    if isinstance(value, dict):
        return {key: bare(each) for key, each in value.items() if each is not None}
    return [bare(each) for each in value] if isinstance(value, list) else value


def test_the_server_keeps_all_that_a_run_says_of_itself(plane: Plane) -> None:
    here = world()
    for name in ("runs", "waits"):
        told = views.run_status(here.run(name), here.now)
        assert bare(kept(plane, "Run", RUN, told)) == bare(told)
    assert views.run_status(here.run("runs"), here.now)["funding"]["sponsors"]
    assert views.run_status(here.run("runs"), here.now)["spares"]["groups"]


def test_the_server_keeps_how_a_run_ended(plane: Plane) -> None:
    here = world()
    (ending,) = here.store.endings()
    asked = next(each for each in here.told(RunSubmitted) if each.run == key("over"))
    told = views.ended_status(asked.spec, here.now, ending)
    assert bare(kept(plane, "Run", RUN, told)) == bare(told)


def test_the_server_keeps_all_that_a_budget_says_of_itself(plane: Plane) -> None:
    here = world()
    scheduler = here.scheduler
    for owner in ("org", "org-a", "rich"):
        told = views.budget_status(scheduler.state, scheduler.engine.family, key(owner), here.now)
        assert bare(kept(plane, "Budget", BUDGET, told)) == bare(told)


def test_the_server_keeps_all_that_a_reservation_says_of_itself(plane: Plane) -> None:
    here = World(node("n"), budget("org", envelope("e", 64)))
    for name in ("runs", "waits"):
        here.submit(name, run("org", 8, 8))
    here.tick(cmd.Forecast())
    made = ReservationHistory()
    for entry in here.store.entries():
        for event in entry.events:
            made.take(entry.at, event)
    place, writer = bound_namespace(plane, "org:ai"), controller(plane)
    found = [each for each in made.objects(here.now) if "forecast" in each["status"]]
    assert any(each["status"]["forecast"].get("remedies") for each in found)
    for told in found:
        assert writer.post(path("Reservation", place), thing("Reservation", told["spec"], name=told["name"])).ok
        said = writer.patch(path("Reservation", place, told["name"], "status"), {"status": told["status"]})
        assert said.ok, said.message
        assert (said.body["spec"], bare(said.body["status"])) == (told["spec"], bare(told["status"]))


def test_the_server_keeps_leases_as_the_ledger_tells_them(plane: Plane) -> None:
    here = world()
    writer, place = controller(plane), bound_namespace(plane, None)
    rows = [*here.leases("over", open_only=False), *here.leases("runs")]
    for row in rows:
        told = views.lease_object(row)
        made = writer.post(path("Lease", place), thing("Lease", told["spec"], name=told["name"]))
        assert made.ok, made.message
        said = writer.patch(path("Lease", place, told["name"], "status"), {"status": told["status"]})
        assert said.ok, said.message
        assert (said.body["spec"], said.body["status"]) == (told["spec"], told["status"])
    assert {row.end is None for row in rows} == {True, False}
    assert LEASE.keys() == views.lease_object(rows[0])["spec"].keys()
