"""The controller on a real API server: what people submit, what becomes of it, and what is mended behind its back.

All tests share one control plane, one ledger and one controller; each has a namespace, nodes and money of its own.
"""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kube.conftest import MakePlane
from tests.kube.stage import EXIT, RUN_FOR, SILENT, Controller, Team, audited, eventually
from tests.kube.tenancy import controller as as_controller
from tests.kube.tenancy import path
from tools.controlplane import Plane, Rack

from fairlease.kube.names import FINALIZER, HOLD
from fairlease.kube.policy import NAMESPACE

pytestmark = pytest.mark.xdist_group("controller")

CONFIG = Path(__file__).resolve().parents[2] / "config"
SETTINGS = "nodeDebounce: 1s\nretryBackoff: 2s\n"


@pytest.fixture(scope="module")
def cluster(make_plane: MakePlane) -> Iterator[Plane]:
    plane = make_plane(kwok=True, controllers=True)
    plane.kubectl("apply", "--server-side", "-k", str(CONFIG))
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def mind(cluster: Plane) -> Iterator[Controller]:
    """The controller."""
    settings = cluster.folder / "settings.yaml"
    settings.write_text(SETTINGS)
    controller = Controller(cluster, "one", "--config", str(settings)).start()
    yield controller
    controller.kill()


@pytest.fixture
def team(cluster: Plane, mind: Controller) -> Team:
    assert mind.alive, mind.log.read_text()[-2_000:]
    return Team(cluster)


def node(team: Team, name: str, **change: Any) -> None:  # noqa: ANN401 - any part of a node
    answer = team.api.patch(f"/api/v1/nodes/{name}", change)
    assert answer.ok, answer.message


def ready(team: Team, name: str, status: str) -> None:
    condition = {"type": "Ready", "status": status, "reason": "Test", "message": "", "lastHeartbeatTime": None}
    answer = team.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})
    assert answer.ok, answer.message


# --- from a Run to its pods ------------------------------------------------------------------------------------------------


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


# --- ends ------------------------------------------------------------------------------------------------------------------


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


# --- nodes -----------------------------------------------------------------------------------------------------------------


def test_a_node_that_is_fenced_ends_the_attempt_and_the_run_asks_again(team: Team) -> None:
    team.submit("hit", 8, pod=8, runtime={"onPreempt": "Requeue"})
    team.reaches("hit", "Running")
    broken = team.bound()["hit-1-0"]
    node(team, broken, spec={"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]})
    eventually(lambda: team.closures().get("hit-1-0") == "NodeFailure")
    eventually(lambda: team.status("hit").get("attempt") == 2 and team.phase("hit") == "Running")
    assert team.bound()["hit-2-0"] != broken
    eventually(lambda: "hit-1-0" not in team.pods())


def test_a_node_that_is_deleted_fails_what_ran_on_it(team: Team) -> None:
    team.submit("lost", 8, pod=8)
    team.reaches("lost", "Running")
    team.api.delete(f"/api/v1/nodes/{team.bound()['lost-1-0']}")
    assert team.reaches("lost", "Failed")["reason"] == "NodeFailure"


def test_a_silent_node_is_failed_only_once_its_pods_are_known_dead(team: Team) -> None:
    team.submit("mute", 8, pod=8, marks={SILENT: ""})
    eventually(lambda: "mute-1-0" in team.bound())
    team.reaches("mute", "Running")
    silent = team.bound()["mute-1-0"]
    node(team, silent, metadata={"annotations": {SILENT: ""}})
    ready(team, silent, "Unknown")
    time.sleep(3)
    assert team.phase("mute") == "Running"
    team.api.ask("DELETE", f"/api/v1/namespaces/{team.namespace}/pods/mute-1-0", {"gracePeriodSeconds": 0})
    assert team.reaches("mute", "Failed")["reason"] == "NodeFailure"


def test_a_cordoned_node_gets_nothing_new_and_loses_nothing(team: Team) -> None:
    team.submit("stays", 8, pod=8)
    team.reaches("stays", "Running")
    for each in team.nodes:
        node(team, each, spec={"unschedulable": True})
    team.submit("waits", 8, pod=8)
    eventually(lambda: team.phase("waits") == "Pending")
    time.sleep(1)
    assert team.phase("stays") == "Running"
    for each in team.nodes:
        node(team, each, spec={"unschedulable": False})
    team.reaches("waits", "Running")


def test_a_heartbeat_costs_no_decision(team: Team, cluster: Plane, mind: Controller) -> None:
    team.submit("idle", 1)
    team.reaches("idle", "Running")
    time.sleep(1)
    before = len(mind.told("entry")), len(team.listed(path("LedgerEntry")))
    for beat in range(5):
        heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:00:0{beat}Z"}
        answer = cluster.api().patch(f"/api/v1/nodes/{team.nodes[0]}/status", {"status": {"conditions": [heartbeat]}})
        assert answer.ok, answer.message
    time.sleep(1)
    assert (len(mind.told("entry")), len(team.listed(path("LedgerEntry")))) == before


# --- behind its back -------------------------------------------------------------------------------------------------------


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


# --- money and trust -------------------------------------------------------------------------------------------------------


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


# --- more of the life of runs ----------------------------------------------------------------------------------------------


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


def test_a_spare_takes_over_for_a_node_that_fails_and_the_attempt_goes_on(team: Team) -> None:
    team.submit("safe", 8, pod=8, sparesPerGroup=8, locality={"groupGPUs": 8})
    team.reaches("safe", "Running")
    eventually(lambda: len(team.bound()) == 2)
    work = next(
        name for name, pod in team.pods().items() if pod["metadata"]["labels"]["rq.davidlangworthy.io/role"] == "Active"
    )
    spare = next(name for name in team.pods() if name != work)
    standby = team.bound()[spare]
    node(
        team, team.bound()[work], spec={"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}
    )
    eventually(lambda: team.closures() == {work: "NodeFailure", spare: "Swap"})
    taken = eventually(lambda: [name for name in team.bound() if name not in (work, spare)])
    eventually(lambda: team.bound() == {taken[0]: standby})
    assert team.pods()[taken[0]]["metadata"]["labels"]["rq.davidlangworthy.io/rank"] == "0"
    assert team.status("safe")["attempt"] == 1


def test_kubectl_scale_changes_the_width_of_an_elastic_run(team: Team) -> None:
    elastic = {"minTotalGPUs": 4, "maxTotalGPUs": 16, "stepGPUs": 4, "desiredTotalGPUs": 8}
    team.submit("wide", 8, malleable=elastic, locality={"groupGPUs": 4})
    team.reaches("wide", "Running")
    assert len(team.bound()) == 8
    team.plane.kubectl("scale", "run", "wide", "--replicas=4", "-n", team.namespace)
    eventually(lambda: len(team.bound()) == 4)
    eventually(
        lambda: team.status("wide")["width"] == {"min": 4, "max": 16, "desired": 4, "allocated": 4, "pending": 0}
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


def test_health_and_metrics_are_served_by_those_who_lead_and_those_who_stand_by(
    cluster: Plane, mind: Controller
) -> None:
    assert mind.alive
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    other = Controller(cluster, "by-stander", "--metrics-port", str(port)).start()
    try:
        eventually(lambda: other.told("up"))
        eventually(lambda: _page(port, "/readyz") == (200, "standing by\n"))
        assert _page(port, "/healthz") == (200, "ok\n")
        text = _page(port, "/metrics")[1]
        assert "fairlease_leading 0.0" in text
        assert 'fairlease_watches_broken{kind="runs"} 0.0' in text
    finally:
        assert other.stop() == 0


def _page(port: int, where: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{where}") as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


# --- crashes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.4])
def test_a_controller_killed_in_the_middle_of_a_gang_leaves_nothing_half_made(
    cluster: Plane, mind: Controller, after_s: float
) -> None:
    team = Team(cluster, nodes=8)
    team.submit("gang", 64)
    eventually(team.leases)
    time.sleep(after_s)
    mind.kill()
    mind.start()
    status = team.reaches("gang", "Running")
    assert status["attempt"] == 1
    assert len(team.bound()) == len(team.leases()) == 64
    team.api.delete(path("Run", team.namespace, "gang"))
    eventually(team.closures)
    mind.kill()
    mind.start()
    eventually(lambda: len(team.closures()) == 64)
    eventually(lambda: not team.run("gang"))


def test_ends_that_nobody_saw_are_told_when_the_controller_returns(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster)
    team.submit("done", 2, marks={EXIT: "0", RUN_FOR: "2s"})
    team.submit("deleted", 2)
    team.reaches("done", "Running")
    team.reaches("deleted", "Running")
    mind.kill()
    eventually(
        lambda: (
            [pod["status"]["phase"] for name, pod in team.pods().items() if name.startswith("done")]
            == ["Succeeded"] * 2
        )
    )
    team.api.delete(path("Run", team.namespace, "deleted"))
    team.api.delete(f"/api/v1/nodes/{team.nodes[1]}")
    mind.start()
    team.reaches("done", "Completed")
    eventually(lambda: not team.run("deleted"))


def test_the_api_server_and_etcd_may_die_in_the_middle_of_gangs(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster, nodes=8)
    team.submit("one", 32)
    eventually(team.leases)
    cluster.apiserver.kill()
    cluster.apiserver.start()
    cluster.wait_ready()
    team.reaches("one", "Running")
    team.submit("two", 32)
    eventually(lambda: len(team.leases()) > 32)
    cluster.etcd.kill()
    cluster.etcd.start()
    cluster.wait_ready()
    eventually(lambda: team.api.get(path("Run", team.namespace, "two")).ok)
    team.reaches("two", "Running")
    assert len(team.bound()) == 64
    assert mind.alive


def test_the_second_controller_takes_over_in_time_and_nothing_is_doubled(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster, nodes=8)
    second = Controller(cluster, "two").start()
    decided = mind.told("decides")
    try:
        eventually(lambda: second.told("up"))
        time.sleep(3)
        assert not second.told("leads")
        team.submit("first", 32)
        eventually(team.leases)
        mind.freeze()
        begun = time.monotonic()
        team.submit("second", 32)
        eventually(lambda: second.told("decides"))
        assert time.monotonic() - begun < 20
        team.reaches("second", "Running")
        mind.thaw()
        team.reaches("first", "Running")
        team.submit("third", 1)
        eventually(lambda: team.phase("third") == "Pending")
        eventually(lambda: mind.told("leadership was lost") or mind.told("leads no more"))
        assert len(team.bound()) == len(team.leases()) == 64
        assert second.stop() == 0
        eventually(lambda: mind.told("decides")[len(decided) :])
    finally:
        mind.thaw()
        second.kill()


def test_a_controller_that_stopped_in_order_goes_on_from_its_snapshot(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster)
    team.submit("short", 2, marks={EXIT: "0"})
    ended = team.reaches("short", "Completed")
    team.submit("long", 2)
    team.reaches("long", "Running")
    eventually(lambda: len(team.closures()) == 2)
    time.sleep(2)
    assert mind.stop() == 0
    heads = [each["spec"] for each in team.listed(path("LedgerEntry"))]
    assert any(each["role"] == "Snapshot" for each in heads)
    lie = {"status": {**ended, "phase": "Failed"}}
    assert as_controller(cluster).patch(path("Run", team.namespace, "short", "status"), lie).ok
    mind.start()
    team.submit("next", 2)
    team.reaches("next", "Running")
    eventually(lambda: team.phase("short") == "Completed")
    assert team.phase("long") == "Running"
    assert len(team.bound()) == 6


def test_the_whole_ledger_passes_the_audit_and_open_leases_are_as_it_says(cluster: Plane, mind: Controller) -> None:
    assert mind.stop() == 0
    report = audited(cluster)
    assert report.ok, report.findings
    assert report.leases > 200
