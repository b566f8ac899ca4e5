"""Nodes that fail, fall silent, are fenced or cordoned, and what becomes of the runs on them."""

from __future__ import annotations

import time
from typing import Any

from tests.kube.stage import SILENT, Controller, Team, audited, eventually
from tests.kube.tenancy import path
from tools.controlplane import Plane

SETTINGS = "nodeDebounce: 1s\nretryBackoff: 2s\n"


def node(team: Team, name: str, **change: Any) -> None:  # noqa: ANN401 - any part of a node
    answer = team.api.patch(f"/api/v1/nodes/{name}", change)
    assert answer.ok, answer.message


def ready(team: Team, name: str, status: str) -> None:
    condition = {"type": "Ready", "status": status, "reason": "Test", "message": "", "lastHeartbeatTime": None}
    answer = team.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})
    assert answer.ok, answer.message


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


def test_the_ledger_of_all_this_passes_the_audit(cluster: Plane, mind: Controller) -> None:
    assert mind.stop() == 0
    report = audited(cluster)
    assert report.ok, report.findings
