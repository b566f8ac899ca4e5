"""What people and machines do behind the controller's back, and names that look alike; in the end the audit finds nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.kube.stage import SILENT, Controller, Team, audited, eventually
from tests.kube.tenancy import controller as as_controller
from tests.kube.tenancy import path, pod, thing
from tools.controlplane import Plane

from fairlease.kube.api.names import RUN

SETTINGS = "nodeDebounce: 2s\n"


def pods_of(team: Team, run: str) -> dict[str, str]:
    """The pods of one run that are bound, by name."""
    bound = team.bound()
    return {name: bound[name] for name, each in team.pods().items() if name in bound and _run(each) == run}


def _run(each: dict[str, Any]) -> str:
    return str(each["metadata"].get("annotations", {}).get(RUN))


def say_ready(team: Team, node: str, status: str) -> None:
    condition = {"type": "Ready", "status": status, "reason": "Test", "message": "", "lastHeartbeatTime": None}
    assert team.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}}).ok


# --- objects -------------------------------------------------------------------------------------------------------------


def test_a_pod_deleted_by_hand_is_the_failure_of_its_run(team: Team) -> None:
    team.submit("hurt", 4, runtime={"retries": 1})
    team.reaches("hurt", "Running")
    team.api.delete(f"/api/v1/namespaces/{team.namespace}/pods/hurt-1-2")
    eventually(lambda: team.status("hurt").get("attempt") == 2 and team.phase("hurt") == "Running")
    eventually(lambda: len([name for name in team.bound() if name.startswith("hurt-2")]) == 4)
    assert set(team.closures().values()) == {"Fail"}
    eventually(lambda: not [name for name in team.pods() if name.startswith("hurt-1")])


def test_a_lease_deleted_by_an_administrator_is_written_again(team: Team) -> None:
    team.submit("kept", 2)
    team.reaches("kept", "Running")
    before = eventually(lambda: team.leases().get("kept-1-1"))
    assert team.api.delete(path("Lease", team.namespace, "kept-1-1")).ok
    after = eventually(lambda: team.leases().get("kept-1-1"))
    assert after["spec"] == before["spec"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


def test_a_status_that_was_overwritten_is_restored(team: Team, cluster: Plane) -> None:
    team.submit("true", 2)
    status = team.reaches("true", "Running")
    lie = {
        "status": {**status, "phase": "Completed", "width": {**status["width"], "allocated": 77}, "message": "a lie"}
    }
    answer = as_controller(cluster).patch(path("Run", team.namespace, "true", "status"), lie)
    assert answer.ok, answer.message
    eventually(lambda: team.phase("true") == "Running", within_s=10)
    restored = team.status("true")
    assert restored["width"]["allocated"] == 2
    assert "message" not in restored
    answer = as_controller(cluster).patch(path("Budget", team.namespace, "money", "status"), {"status": {"usage": []}})
    assert answer.ok, answer.message
    eventually(lambda: team.api.get(path("Budget", team.namespace, "money")).body["status"].get("usage"), within_s=10)


def test_a_service_that_was_deleted_comes_back(team: Team) -> None:
    team.submit("found", 2)
    team.reaches("found", "Running")
    where = f"/api/v1/namespaces/{team.namespace}/services/run-found"
    uid = team.api.get(where).body["metadata"]["uid"]
    assert team.api.delete(where).ok
    eventually(lambda: team.api.get(where).body.get("metadata", {}).get("uid", uid) != uid)


def test_what_stands_for_good_cannot_be_edited_and_what_may_change_does(team: Team) -> None:
    team.submit("fixed", 2)
    team.reaches("fixed", "Running")
    said = team.api.patch(path("Run", team.namespace, "fixed"), {"spec": {"resources": {"totalGPUs": 4}}})
    assert (said.ok, "spec.resources: of a Run only" in said.message) == (False, True)
    assert team.api.patch(path("Run", team.namespace, "fixed"), {"spec": {"funding": {"maxBorrowGPUs": 1}}}).ok
    eventually(lambda: team.status("fixed")["observedGeneration"] == 2)
    assert len(team.bound()) == 2


# --- names -----------------------------------------------------------------------------------------------------------------


LONG = "x" * 150
ALIKE = [(f"{LONG}-a", f"{LONG}-b"), ("a.b", "a-b"), ("train", "train-1"), (f"{LONG}.{'y' * 40}", f"{LONG}-{'y' * 40}")]


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=["cut", "dots", "numbers", "cut and dots"])
def test_runs_whose_names_look_alike_keep_to_themselves(team: Team, one: str, other: str) -> None:
    for name in (one, other):
        team.submit(name, 2)
        team.reaches(name, "Running")
    assert len(pods_of(team, one)) == len(pods_of(team, other)) == 2
    team.api.delete(path("Run", team.namespace, one))
    eventually(lambda: not team.run(one))
    assert len(pods_of(team, other)) == 2
    assert team.phase(other) == "Running"
    services = team.listed(f"/api/v1/namespaces/{team.namespace}/services")
    eventually(lambda: [_run(each) for each in team.listed(f"/api/v1/namespaces/{team.namespace}/services")] == [other])
    assert services


def test_runs_of_one_name_in_two_namespaces_are_two_runs(cluster: Plane, team: Team) -> None:
    other = Team(cluster)
    for each in (team, other):
        each.submit("same", 2)
        each.reaches("same", "Running")
    team.api.delete(path("Run", team.namespace, "same"))
    eventually(lambda: set(team.closures().values()) == {"Canceled"})
    assert (other.phase("same"), len(other.bound()), other.closures()) == ("Running", 2, {})


# --- objects ---------------------------------------------------------------------------------------------------------------


def test_a_run_whose_finalizer_was_taken_off_by_hand_ends_all_the_same(team: Team) -> None:
    team.submit("bare", 2)
    team.reaches("bare", "Running")
    eventually(lambda: team.run("bare")["metadata"].get("finalizers"))
    where = path("Run", team.namespace, "bare")
    team.api.delete(where)
    team.api.patch(where, {"metadata": {"finalizers": None}})
    eventually(lambda: not team.run("bare"))
    eventually(lambda: sorted(team.closures().values()) == ["Canceled", "Canceled"])
    eventually(lambda: not team.bound())
    team.submit("next", 16)
    team.reaches("next", "Running")


def test_a_pod_that_somebody_put_in_the_way_is_named_and_never_bound(team: Team) -> None:
    mine = pod("train-1-0", schedulerName="somebody-else")
    owner = {"apiVersion": "rq.davidlangworthy.io/v1", "kind": "Run", "name": "train", "controller": True}
    mine["metadata"]["ownerReferences"] = [{**owner, "uid": "0c0ffee0-0000-4000-8000-000000000000"}]
    where = f"/api/v1/namespaces/{team.namespace}/pods"
    made = team.api.post(where, pod("train-1-1", schedulerName="somebody-else"))
    assert made.ok, made.message
    made = team.api.post(where, mine)
    assert made.ok, made.message
    team.submit("train", 2)
    eventually(lambda: "not ours" in team.status("train").get("message", ""))
    assert not team.bound()
    for name in ("train-1-0", "train-1-1"):
        team.api.delete(f"{where}/{name}?gracePeriodSeconds=0")
    team.reaches("train", "Running", within_s=120)
    assert len(team.bound()) == 2


def test_what_was_deleted_and_edited_while_no_controller_looked_is_mended(
    cluster: Plane, mind: Controller, team: Team
) -> None:
    team.submit("keeps", 2)
    team.reaches("keeps", "Running")
    eventually(lambda: len(team.leases()) == 2)
    before = team.leases()
    mind.kill()
    for name in before:
        assert team.api.delete(path("Lease", team.namespace, name)).ok
    assert team.api.delete(f"/api/v1/namespaces/{team.namespace}/services/run-keeps").ok
    outside = cluster.api("outsider", ("fairlease:controllers", "system:masters"))
    lie = {"status": {"phase": "Failed", "message": "it is all over"}}
    assert outside.patch(path("Run", team.namespace, "keeps", "status"), lie).ok
    mind.start()
    eventually(
        lambda: (
            {name: each["spec"] for name, each in team.leases().items()} == {n: e["spec"] for n, e in before.items()}
        )
    )
    eventually(lambda: team.phase("keeps") == "Running")
    eventually(lambda: team.api.get(f"/api/v1/namespaces/{team.namespace}/services/run-keeps").ok)
    assert len(team.bound()) == 2


def test_a_namespace_that_goes_takes_its_runs_with_it_and_nobody_elses(cluster: Plane, team: Team) -> None:
    other = Team(cluster)
    for each in (team, other):
        each.submit("train", 2)
        each.reaches("train", "Running")
    assert team.api.delete(f"/api/v1/namespaces/{team.namespace}").ok
    eventually(lambda: not team.api.get(f"/api/v1/namespaces/{team.namespace}").ok, within_s=120)
    assert (other.phase("train"), len(other.bound())) == ("Running", 2)


def test_numbers_beyond_all_measure_are_answered_and_harm_nobody(mind: Controller, team: Team) -> None:
    most = 2**53 - 1
    team.submit("huge", most)
    team.submit("wide", 8, malleable={"minTotalGPUs": 1, "maxTotalGPUs": most, "stepGPUs": 1})
    team.submit("stubborn", 1, runtime={"retries": most})
    team.submit("plain", 1)
    team.reaches("plain", "Running")
    eventually(lambda: team.status("huge").get("conditions"))
    assert team.phase("huge") == "Pending"
    assert mind.alive
    envelope = {
        "name": "e",
        "flavor": team.flavor,
        "selector": {"region": "*"},
        "concurrency": most,
        "maxGPUHours": 10**9,
    }
    said = team.api.post(
        path("Budget", team.namespace), thing("Budget", {"owner": team.owner, "envelopes": [envelope]}, "more")
    )
    assert said.ok, said.message
    eventually(lambda: team.api.get(path("Budget", team.namespace, "more")).body.get("status"))


# --- nodes -----------------------------------------------------------------------------------------------------------------


def test_a_node_that_comes_back_with_fewer_gpus_takes_only_what_it_has(cluster: Plane) -> None:
    team = Team(cluster, nodes=1)
    team.submit("train", 8, runtime={"checkpoint": "1s"})
    team.reaches("train", "Running")
    where = f"/api/v1/nodes/{team.nodes[0]}"
    body = team.api.get(where).body
    assert team.api.delete(where).ok
    eventually(lambda: set(team.closures().values()) == {"NodeFailure"})
    kept = {key: body["metadata"][key] for key in ("name", "labels", "annotations")}
    has = {**body["status"]["capacity"], "nvidia.com/gpu": "4"}
    again = {**body, "metadata": kept, "status": {**body["status"], "capacity": has, "allocatable": has}}
    assert team.api.post("/api/v1/nodes", again).ok
    team.submit("half", 4)
    team.reaches("half", "Running")
    assert team.phase("train") == "Pending"
    assert len(pods_of(team, "half")) == 4


def test_a_node_that_flaps_loses_nothing(cluster: Plane) -> None:
    team = Team(cluster, nodes=2)
    team.submit("train", 16)
    team.reaches("train", "Running")
    before = team.bound()
    node = team.nodes[0]
    assert team.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {SILENT: ""}}}).ok
    for _ in range(4):
        for status in ("False", "Unknown", "True"):
            say_ready(team, node, status)
            time.sleep(0.3)
    say_ready(team, node, "Unknown")
    time.sleep(4)  # longer than it may be silent; but its pods are not known to be dead
    say_ready(team, node, "True")
    time.sleep(1)
    assert (team.phase("train"), team.status("train")["attempt"], team.bound()) == ("Running", 1, before)
    assert team.closures() == {}


# --- the end ---------------------------------------------------------------------------------------------------------------


def test_after_all_that_the_audit_finds_nothing(cluster: Plane, mind: Controller) -> None:
    assert mind.alive
    report = audited(cluster)
    assert report.ok, report.findings
