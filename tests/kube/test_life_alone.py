"""The life of runs on a real API server: what people submit with kubectl, what becomes of it, and how it ends."""

from __future__ import annotations

import time

import pytest
from tests.kube.conftest import CONFIG
from tests.kube.plugin import Person
from tests.kube.stage import EXIT, RUN_FOR, SILENT, Controller, Team, audited, eventually
from tests.kube.tenancy import path
from tools.controlplane import Plane, Rack

from fairlease.kube.api.names import FINALIZER, HOLD, NAMESPACE

SETTINGS = "nodeDebounce: 1s\nretryBackoff: 2s\n"


# --- from a Run to its pods ----------------------------------------------------------------------------------------------


def test_a_gang_of_eight_is_bound_whole_with_its_leases_and_its_rendezvous(team: Team) -> None:
    team.submit("train", 8)
    status = team.reaches("train", "Running")
    pods = team.pods()
    assert len(team.bound()) == 8
    assert set(team.leases()) == set(pods) == set(status["leases"])
    assert {pod["spec"]["schedulerName"] for pod in pods.values()} == {"fairlease"}
    assert [each["type"] for each in status["conditions"] if each["status"] == "True"] == [
        "Funded",
        "Placed",
        "Running",
    ]
    assert {each["observedGeneration"] for each in status["conditions"]} == {1}
    found = {}
    for name, pod in pods.items():
        container = pod["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        env = {each["name"]: each["value"] for each in container["env"]}
        assert env["WORLD_SIZE"] == "8"
        assert env["MASTER_ADDR"] == f"a1-r0.run-train.{team.namespace}.svc"
        assert pod["spec"]["hostname"] == f"a1-r{env['RANK']}"
        lease = team.leases()[name]["spec"]["slice"]
        assert lease["nodes"] == [pod["spec"]["nodeName"]]
        slots = pod["metadata"]["annotations"]["rq.davidlangworthy.io/slots"]
        assert lease["gpus"] == {pod["spec"]["nodeName"]: [int(each) for each in slots.split(",")]}
        found[env["RANK"]] = pod["metadata"]["ownerReferences"][0]["name"]
    assert found == dict.fromkeys(map(str, range(8)), "train")
    service = team.api.get(f"/api/v1/namespaces/{team.namespace}/services/run-train")
    assert service.body["spec"]["clusterIP"] == "None"
    eventually(lambda: "Start" in team.events("train"))


def test_a_gang_that_does_not_fit_gets_no_pod_at_all(team: Team) -> None:
    team.submit("first", 8)
    team.reaches("first", "Running")
    team.submit("large", 16, locality={"groupGPUs": 16})
    status = eventually(lambda: team.status("large"))
    assert status["phase"] == "Pending"
    assert [name for name in team.pods() if name.startswith("large")] == []
    assert [name for name in team.leases() if name.startswith("large")] == []
    team.api.delete(path("Run", team.namespace, "first"))
    team.reaches("large", "Running")
    assert len([name for name in team.bound() if name.startswith("large")]) == 16


def test_work_that_ends_well_completes_the_run_and_closes_its_leases(team: Team) -> None:
    team.submit("short", 4, marks={EXIT: "0", RUN_FOR: "1s"})
    status = team.reaches("short", "Completed")
    assert status["reason"] == "Completed"
    eventually(lambda: set(team.closures().values()) == {"Completed"})
    assert len(team.closures()) == 4
    assert {pod["status"]["phase"] for pod in team.pods().values()} == {"Succeeded"}


def test_a_pod_that_fails_ends_the_attempt_and_the_next_one_has_names_of_its_own(team: Team) -> None:
    team.submit("weak", 2, marks={EXIT: "3"}, runtime={"retries": 1})
    status = team.reaches("weak", "Failed")
    assert "exit code 3" in status["message"]
    assert status["attempt"] == 2
    assert "BackOff" in team.events("weak")
    eventually(lambda: len(team.closures()) == 4)
    assert set(team.leases()) == {"weak-1-0", "weak-1-1", "weak-2-0", "weak-2-1"}
    assert set(team.closures().values()) == {"Fail"}


def test_spares_hold_their_gpus_with_pods_that_do_nothing(team: Team) -> None:
    team.submit("safe", 8, pod=8, sparesPerGroup=8, locality={"groupGPUs": 8})
    status = team.reaches("safe", "Running")
    assert status["spares"]["gpus"] == 8
    eventually(lambda: len(team.bound()) == 2)
    spare = next(
        pod for pod in team.pods().values() if pod["metadata"]["labels"]["rq.davidlangworthy.io/role"] == "Spare"
    )
    assert spare["spec"]["containers"][0]["image"] == "pause:3.10"
    assert spare["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    name = spare["metadata"]["name"]
    team.api.delete(f"/api/v1/namespaces/{team.namespace}/pods/{name}")
    eventually(
        lambda: team.pods().get(name, spare)["metadata"]["uid"] != spare["metadata"]["uid"] and name in team.bound()
    )
    assert team.phase("safe") == "Running"
    assert team.status("safe")["attempt"] == 1


@pytest.mark.parametrize("name", ["a." * 60 + "x", "v1.2.3", "9-lives", "x" * 200])
def test_any_name_of_a_run_leads_to_names_that_kubernetes_takes(team: Team, name: str) -> None:
    team.submit(name, 2)
    team.reaches(name, "Running")
    assert len(team.bound()) == 2


# --- ends ----------------------------------------------------------------------------------------------------------------


def test_a_deleted_run_stays_until_its_leases_are_closed_and_its_pods_are_gone(team: Team) -> None:
    team.submit("gone", 4)
    team.reaches("gone", "Running")
    eventually(lambda: FINALIZER in team.run("gone")["metadata"].get("finalizers", ()))
    team.api.delete(path("Run", team.namespace, "gone"))
    eventually(lambda: not team.run("gone"))
    assert team.bound() == {}
    eventually(lambda: list(team.closures().values()) == ["Canceled"] * 4)


def test_a_name_that_was_used_is_refused_with_a_condition(team: Team) -> None:
    team.submit("once", 1)
    team.reaches("once", "Running")
    team.api.delete(path("Run", team.namespace, "once"))
    eventually(lambda: not team.run("once"))
    time.sleep(3)  # the API server's clock knows only seconds
    team.submit("once", 1)
    status = eventually(lambda: team.status("once"))
    assert (status["phase"], status["reason"]) == ("Failed", "AlreadyExists")
    assert team.bound() == {}


def test_gpus_are_given_to_the_next_only_when_the_last_pod_there_is_gone(team: Team) -> None:
    team.submit("slow", 16, pod=8, marks={SILENT: ""})
    eventually(lambda: len(team.bound()) == 2)
    team.submit("next", 16, pod=8)
    team.api.delete(path("Run", team.namespace, "slow"))
    eventually(lambda: [name for name in team.pods() if name.startswith("next")])
    eventually(lambda: "0 of 2 pods" in team.status("next").get("message", ""))
    time.sleep(1)
    assert not [name for name in team.bound() if name.startswith("next")]
    for name in [name for name in team.pods() if name.startswith("slow")]:
        team.api.ask("DELETE", f"/api/v1/namespaces/{team.namespace}/pods/{name}", {"gracePeriodSeconds": 0})
    team.reaches("next", "Running")


# --- money and trust -----------------------------------------------------------------------------------------------------


def conditions(team: Team) -> dict[str, tuple[str, str]]:
    """How the conditions of a team's Budget stand, and since when."""
    status = team.api.get(path("Budget", team.namespace, "money")).body.get("status") or {}
    return {each["type"]: (each["status"], each["lastTransitionTime"]) for each in status["conditions"]}


def covers(team: Team, gpus: int, *, lends: bool = False) -> None:
    envelope = {"name": "main", "flavor": team.flavor, "selector": {"region": "*"}, "concurrency": gpus}
    spec = {"envelopes": [{**envelope, "lending": {"allow": lends, "maxConcurrency": 8}}]}
    assert team.api.patch(path("Budget", team.namespace, "money"), {"spec": spec}).ok


def test_each_condition_of_a_budget_tells_since_when_it_is_as_it_is(mind: Controller, team: Team) -> None:
    team.submit("runs", 8, pod=8)
    team.reaches("runs", "Running")
    first = conditions(team)
    time.sleep(1.1)
    covers(team, 4)
    eventually(lambda: conditions(team)["Covered"][0] == "False")
    second = conditions(team)
    assert second["Covered"][1] > first["Covered"][1]
    assert second["Ready"] == first["Ready"], "an edit of its terms is no change of that"

    mind.kill()
    mind.start()
    time.sleep(1.1)
    covers(team, 8, lends=True)
    eventually(lambda: conditions(team)["Covered"][0] == "True")
    third = conditions(team)
    assert third["Covered"][1] > second["Covered"][1]
    assert third["LendingRoom"][1] >= third["Covered"][1]
    assert third["Ready"] == first["Ready"]
    time.sleep(1.1)
    covers(team, 12, lends=True)
    eventually(lambda: team.api.get(path("Budget", team.namespace, "money")).body["status"]["observedGeneration"] == 4)
    assert conditions(team) == third


def test_a_budget_that_is_written_later_starts_the_run_that_waited_for_it(team: Team) -> None:
    assert team.api.delete(path("Budget", team.namespace, "money")).ok
    time.sleep(0.5)
    team.submit("poor", 1)
    status = eventually(lambda: team.status("poor"))
    assert [each["reason"] for each in status["conditions"] if each["type"] == "Funded"] == ["NoEnvelope"]
    envelope = {"name": "main", "flavor": team.flavor, "selector": {"region": "*"}, "concurrency": 4}
    team.make("Budget", {"owner": team.owner, "envelopes": [envelope]}, "late")
    team.reaches("poor", "Running")
    where = path("Budget", team.namespace, "late")
    eventually(lambda: team.api.get(where).body["status"]["headroom"][0]["concurrency"] == 3)


def test_what_a_waiting_run_is_told_follows_an_edit_of_its_budget_once(mind: Controller, team: Team) -> None:
    covers(team, 4)
    names = ("big", "alike")
    for name in names:
        team.submit(name, 16, pod=4)

    def say(words: str) -> bool:
        return all(team.status(name).get("message", "").startswith(words) for name in names)

    eventually(lambda: say("12 of 16 GPUs find no payer"))
    covers(team, 8)
    eventually(lambda: say("8 of 16 GPUs find no payer"))
    told = {name: team.run(name) for name in names}
    funded = [each for each in told["big"]["status"]["conditions"] if each["type"] == "Funded"]
    assert [each["message"] for each in funded] == [told["big"]["status"]["message"]]
    assert (
        team.status("big")["message"] == Person(team.plane, "admin", team.namespace).asks("explain", "big")["message"]
    )

    led = len(mind.told("decides"))
    mind.kill()
    mind.start()
    eventually(lambda: len(mind.told("decides")) > led)
    time.sleep(2)
    team.submit("small", 4, pod=4)
    team.reaches("small", "Running")
    time.sleep(2)
    versions = {name: team.run(name)["metadata"]["resourceVersion"] for name in names}
    said_once = {name: each["metadata"]["resourceVersion"] for name, each in told.items()}
    assert versions == said_once, "not by who takes over, and not whenever a lease comes or goes"


def test_a_namespace_that_lost_its_owner_spends_nothing_more(team: Team) -> None:
    budget = path("Budget", team.namespace, "money")
    eventually(lambda: team.api.get(budget).body.get("status"))
    where = f"/api/v1/namespaces/{team.namespace}"
    other = {"metadata": {"annotations": {"rq.davidlangworthy.io/owner": "org:elsewhere"}}}
    assert team.api.patch(where, other).ok
    eventually(lambda: [each["reason"] for each in team.api.get(budget).body["status"]["conditions"]] == ["Forbidden"])


def test_nothing_new_starts_while_the_namespace_of_the_controller_says_hold(team: Team) -> None:
    team.submit("before", 1)
    team.reaches("before", "Running")
    where = f"/api/v1/namespaces/{NAMESPACE}"
    assert team.api.patch(where, {"metadata": {"annotations": {HOLD: "true"}}}).ok
    try:
        time.sleep(1)
        team.submit("during", 1)
        eventually(lambda: team.phase("during") == "Pending")
        time.sleep(1)
        assert team.phase("during") == "Pending"
        assert team.phase("before") == "Running"
    finally:
        assert team.api.patch(where, {"metadata": {"annotations": {HOLD: None}}}).ok
    team.reaches("during", "Running")


# --- more of the life of runs --------------------------------------------------------------------------------------------


def test_a_researcher_needs_nothing_but_kubectl_and_the_samples(cluster: Plane, mind: Controller) -> None:
    assert mind.alive
    Team(cluster, nodes=1)  # so that the flavor of the samples is not the only one
    rack = Rack(nodes=8, prefix="west", domain="west-fabric")
    for each in rack.objects():
        assert cluster.api().post("/api/v1/nodes", each).ok
    samples = CONFIG / "samples"
    cluster.kubectl("apply", "-f", str(samples / "namespace.yaml"))
    for user, role in (("lead", "admin"), ("alice", "edit")):
        cluster.kubectl("create", "rolebinding", user, "--clusterrole", role, "--user", user, "-n", "rai")
    eventually(
        lambda: (
            cluster.kubectl("auth", "can-i", "create", "runs", "-n", "rai", user="alice", check=False).returncode == 0
        )
    )
    eventually(
        lambda: (
            cluster.kubectl("auth", "can-i", "create", "budgets", "-n", "rai", user="lead", check=False).returncode == 0
        )
    )
    cluster.kubectl("apply", "-f", str(samples / "budget.yaml"), user="lead")
    cluster.kubectl("apply", "-f", str(samples / "run.yaml"), user="alice")
    cluster.kubectl("wait", "--for=condition=Running", "run/train-128k", "-n", "rai", "--timeout=60s", user="alice")
    rows = cluster.kubectl("get", "runs", "-n", "rai", "--no-headers", user="alice").stdout.split()
    assert rows[:6] == ["train-128k", "org:ai:rai", "Running", "32", "32", "32"]
    pods = cluster.kubectl("get", "pods", "-n", "rai", "-o", "name", user="alice").stdout.split()
    assert len(pods) == 6  # four of work, two that hold spares
    cluster.kubectl("delete", "run", "train-128k", "-n", "rai", "--timeout=60s", user="alice")
    closed = cluster.kubectl("get", "leases.rq.davidlangworthy.io", "-n", "rai", "--no-headers", user="alice").stdout
    assert closed.count("Canceled") == 6


def test_kubectl_scale_changes_the_width_of_an_elastic_run(team: Team) -> None:
    elastic = {"minTotalGPUs": 4, "maxTotalGPUs": 16, "stepGPUs": 4, "desiredTotalGPUs": 8}
    team.submit("wide", 8, malleable=elastic, locality={"groupGPUs": 4})
    team.reaches("wide", "Running")
    assert len(team.bound()) == 8
    team.plane.kubectl("scale", "run", "wide", "--replicas=4", "-n", team.namespace)
    eventually(lambda: len(team.bound()) == 4)
    eventually(
        lambda: (
            team.status("wide")["width"]
            == {"min": 4, "max": 16, "desired": 4, "allocated": 4, "pending": 0, "leaving": 0}
        )
    )
    eventually(lambda: list(team.closures().values()) == ["Shrink"] * 4)
    team.plane.kubectl("scale", "run", "wide", "--replicas=5", "-n", team.namespace)
    eventually(lambda: "step grid" in team.status("wide").get("message", ""))
    assert len(team.bound()) == 4


def test_a_run_that_waits_has_a_reservation_that_says_where_and_when(team: Team) -> None:
    team.submit("now", 16, runtime={"maxDuration": "1h"})
    team.reaches("now", "Running")
    team.submit("later", 16, runtime={"maxDuration": "1h"})
    name = eventually(lambda: team.status("later").get("pendingReservation"))
    where = path("Reservation", team.namespace, name)
    held = eventually(lambda: team.reservation(name))
    assert held["spec"]["runRef"] == {"namespace": team.namespace, "name": "later"}
    assert held["spec"]["earliestStart"] == team.status("later")["earliestStart"]
    assert held["status"]["state"] == "Pending"
    assert team.api.delete(where).ok
    eventually(lambda: team.reservation(name).get("metadata", held["metadata"])["uid"] != held["metadata"]["uid"])
    assert team.reservation(name)["status"]["state"] == "Pending"
    team.api.delete(path("Run", team.namespace, "now"))
    team.reaches("later", "Running")
    eventually(lambda: team.reservation(name)["status"]["state"] == "Released")


def test_a_pod_that_the_api_server_refuses_fails_its_run_instead_of_charging_for_ever(team: Team) -> None:
    broken = {"spec": {"containers": [{"name": "UPPER CASE", "image": "example.invalid/work:1"}]}}
    team.submit("wrong", 2, template=broken)
    status = team.reaches("wrong", "Failed")
    assert "refuses pod wrong-1-" in status["message"]
    eventually(lambda: list(team.closures().values()) == ["Fail"] * 2)


def test_work_that_gives_way_is_told_to_whom_and_the_outcome_is_an_object(team: Team) -> None:
    team.submit("idle", 16, opportunistic=True)
    team.reaches("idle", "Running")
    team.submit("paid", 16)
    assert team.reaches("idle", "Failed")["reason"] == "ReclaimOpportunistic"
    team.reaches("paid", "Running")
    outcomes = [
        each for each in team.listed(path("ResolverOutcome")) if each["spec"]["claim"]["namespace"] == team.namespace
    ]
    assert [each["spec"]["claim"]["name"] for each in outcomes] == ["paid"]
    assert f"gave way to {team.namespace}/paid" in team.status("idle")["message"]
    eventually(lambda: "Resolved" in team.events("paid"))


def test_the_ledger_of_all_this_passes_the_audit(cluster: Plane, mind: Controller) -> None:
    assert mind.stop() == 0
    report = audited(cluster)
    assert report.ok, report.findings
