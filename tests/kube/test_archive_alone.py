"""A controller that runs for long: its ledger is folded into snapshots and archived as it goes, and nobody misses anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kube.plugin import Person
from tests.kube.stage import EXIT, Controller, Team, eventually
from tests.kube.tenancy import controller as as_controller
from tests.kube.tenancy import path
from tools.controlplane import Plane

EVERY = 12
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SETTINGS = f"snapshotEvery: {EVERY}\n"
FLAGS = ("--archive", "{archive}")


def live_along(team: Team, name: str, times: int) -> None:
    """Runs that come and end, one after the other: at least two entries each."""
    for number in range(times):
        team.submit(f"{name}-{number}", 1, marks={EXIT: "0"})
        team.reaches(f"{name}-{number}", "Completed")


def entries(team: Team) -> list[int]:
    """The numbers of the entries on the server."""
    return sorted(each["spec"]["seq"] for each in team.listed(path("LedgerEntry")) if each["spec"]["role"] == "Entry")


def audit(cluster: Plane, *flags: str) -> tuple[int, Any, str]:
    admin = Person(cluster, "admin", "default")
    done = admin.types("fairlease", "audit", "--kubeconfig", str(cluster.kubeconfig()), "-o", "json", *flags)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_old_entries_are_archived_as_time_goes_by_and_the_whole_past_is_still_told(
    cluster: Plane, mind: Controller, archive: Path, team: Team
) -> None:
    team.submit("first", 2, marks={EXIT: "0"})
    team.reaches("first", "Completed")
    live_along(team, "along", 2 * EVERY)
    eventually(lambda: entries(team)[0] > 1)
    told = [json.loads(each) for each in mind.told("snapshot")]
    assert sum(each["archived"] for each in told) > 0
    assert min(archive.glob("*.jsonl")).name.startswith("000000000001-")
    kept = [each["spec"] for each in team.listed(path("LedgerEntry")) if each["spec"]["role"] == "Snapshot"]
    assert len({each["seq"] for each in kept}) <= 3
    assert min(each["seq"] for each in kept) >= entries(team)[0], "what a snapshot stands on is still there"

    code, _, said = audit(cluster)
    assert (code, "--archive" in said) == (2, True)
    code, report, _ = audit(cluster, "--archive", str(archive))
    assert (code, report["ok"]) == (0, True), report
    admin = Person(cluster, "admin", team.namespace)
    past = ("--archive", str(archive))
    assert [each["reason"] for each in admin.asks("explain", "first", *past)["story"]][:2] == ["Submitted", "Start"]
    assert admin.sees("who-pays", "first", *past).count(team.owner) >= 1
    exported = admin.sees("export", "leases", *past)
    assert all(each in exported for each in ("first-1-0", "first-1-1", "along-0-1-0"))


def test_a_controller_that_died_goes_on_from_its_snapshot_and_its_archive(
    cluster: Plane, mind: Controller, archive: Path, team: Team
) -> None:
    live_along(team, "before", EVERY)
    team.submit("goes-on", 2)
    team.reaches("goes-on", "Running")
    mind.kill()
    mind.start()
    live_along(team, "after", 2)
    assert team.phase("goes-on") == "Running"
    assert team.phase("before-0") == "Completed"
    assert len(team.bound()) >= 2
    code, report, _ = audit(cluster, "--archive", str(archive))
    assert (code, report["ok"]) == (0, True), report


def refusing(namespace: str, what: str = "leases") -> tuple[dict[str, Any], dict[str, Any]]:
    """Somebody's rule that keeps ends of leases, or of other things, from being written in a namespace."""
    where = {"apiGroups": ["rq.davidlangworthy.io"], "apiVersions": ["v1"], "operations": ["UPDATE"]}
    rule = {
        "metadata": {"name": "in-the-way"},
        "spec": {
            "matchConstraints": {"resourceRules": [{**where, "resources": [f"{what}/status"]}]},
            "validations": [{"expression": f"request.namespace != '{namespace}'"}],
        },
    }
    return rule, {
        "metadata": {"name": "in-the-way"},
        "spec": {"policyName": "in-the-way", "validationActions": ["Deny"]},
    }


def put_in_the_way(team: Team, what: str) -> None:
    rule, binding = refusing(team.namespace, what)
    for plural, each in (("validatingadmissionpolicies", rule), ("validatingadmissionpolicybindings", binding)):
        team.api.delete(f"{ADMISSION}/{plural}/in-the-way")
        made = team.api.post(f"{ADMISSION}/{plural}", each)
        assert made.ok, made.message


def test_what_became_of_a_reservation_is_told_also_after_its_run_was_deleted(
    cluster: Plane, archive: Path, team: Team
) -> None:
    team.submit("first", 16)
    team.reaches("first", "Running")
    team.submit("waits", 16)
    where = path("Reservation", team.namespace, "waits-reservation", "status")
    assert eventually(lambda: team.reservation("waits-reservation"))["status"]["state"] == "Pending"
    put_in_the_way(team, "reservations")
    probe = {"status": {"message": "no"}}
    eventually(lambda: "in-the-way" in as_controller(cluster).patch(f"{where}?dryRun=All", probe).message)
    team.api.delete(path("Run", team.namespace, "first"))
    team.reaches("waits", "Running")
    team.api.delete(path("Run", team.namespace, "waits"))
    eventually(lambda: not team.run("waits"))
    assert team.reservation("waits-reservation")["status"]["state"] == "Pending"
    assert team.api.delete(f"{ADMISSION}/validatingadmissionpolicybindings/in-the-way").ok
    eventually(lambda: team.reservation("waits-reservation")["status"]["state"] == "Released", within_s=120)
    code, report, _ = audit(cluster, "--archive", str(archive))
    assert (code, report["ok"]) == (0, True), report


def test_nothing_is_folded_away_before_what_ended_stands_in_objects(
    cluster: Plane, mind: Controller, archive: Path, team: Team
) -> None:
    other = Team(cluster)
    team.submit("stuck", 1)
    team.reaches("stuck", "Running")
    put_in_the_way(team, "leases")
    where = path("Lease", team.namespace, "stuck-1-0", "status")
    probe = {"status": {"closed": True, "endTime": "2026-01-01T00:00:00Z", "closureReason": "Canceled"}}
    eventually(lambda: "in-the-way" in as_controller(cluster).patch(f"{where}?dryRun=All", probe).message)
    team.api.delete(path("Run", team.namespace, "stuck"))
    eventually(lambda: mind.told("not written"))
    before = len(mind.told("snapshot"))
    live_along(other, "others", EVERY)
    live_along(other, "more", EVERY)
    held = mind.told("snapshot")[before:]
    assert len(held) <= 1, "at most the one that was taken before it ended"
    mind.kill()
    mind.start()
    live_along(other, "yet-more", 2)
    assert team.closures() == {}
    assert team.api.delete(f"{ADMISSION}/validatingadmissionpolicybindings/in-the-way").ok
    eventually(lambda: team.closures() == {"stuck-1-0": "Canceled"}, within_s=120)
    eventually(lambda: len(mind.told("snapshot")) > before + len(held), within_s=120)
    code, report, _ = audit(cluster, "--archive", str(archive))
    assert (code, report["ok"]) == (0, True), report
