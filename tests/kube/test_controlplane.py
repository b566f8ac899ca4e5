"""The control plane itself: users, tokens, fake nodes and their pods behave as the tests of others rely on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.controlplane import Plane, Rack, add_nodes
from tools.controlplane.build import ensure

from fairlease.model.objects import NodeObject, read_objects

ROOT = Path(__file__).resolve().parents[2]


def until(true: Callable[[], bool], what: str, bound_s: float = 30.0) -> None:
    deadline = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < deadline, f"not within {bound_s:g} s: {what}"
        time.sleep(0.05)


def test_users_are_who_their_certificates_say(plane: Plane) -> None:
    said = plane.kubectl("auth", "whoami", "-o", "json", user="org/o=x", groups=("team a", "b+c"))
    assert '"username": "org/o=x"' in said.stdout
    assert '"team a"' in said.stdout
    assert '"b+c"' in said.stdout


def test_service_accounts_come_with_tokens(plane: Plane, namespace: str) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert plane.api().post(accounts, {"metadata": {"name": "robot"}}).ok
    config = plane.token_kubeconfig(plane.service_account_token(namespace, "robot"), "robot", namespace)
    argv = [str(plane.binaries["kubectl"]), "--kubeconfig", str(config), "auth", "whoami"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"system:serviceaccount:{namespace}:robot" in said.stdout


@pytest.fixture(scope="module")
def racks(plane: Plane) -> list[str]:
    return add_nodes(plane.api(), Rack(nodes=5, prefix="cp", domain="cp-fabric", per_domain=2, flavor="B200"))


def test_fake_nodes_are_nodes_that_fairlease_can_use(plane: Plane, racks: list[str]) -> None:
    listed = plane.kubectl("get", "nodes", *racks, "-o", "yaml").stdout
    nodes = [each.node for each in read_objects(listed, "nodes") if isinstance(each, NodeObject)]
    assert [(each.gpus, each.ready) for each in nodes] == [(8, True)] * 5
    assert [each.labels["fabric.domain"] for each in nodes] == [f"cp-fabric-{number}" for number in (1, 1, 2, 2, 3)]


def bound_pod(plane: Plane, namespace: str, node: str, name: str, **annotations: str) -> Callable[[], dict[str, Any]]:
    """A pod on a node; returns a look at its status."""
    place = f"/api/v1/namespaces/{namespace}/pods"
    fakes = {f"fake.fairlease/{key.replace('_', '-')}": value for key, value in annotations.items()}
    spec = {"containers": [{"name": "c", "image": "example.invalid/x:1"}], "nodeName": node}
    made = plane.api().post(place, {"metadata": {"name": name, "annotations": fakes}, "spec": spec})
    assert made.ok, made.message

    def status() -> dict[str, Any]:
        body: dict[str, Any] = plane.api().get(f"{place}/{name}").body
        return body.get("status", {}) if body["kind"] == "Pod" else {"phase": "Gone"}

    return status


def test_pods_on_fake_nodes_run_and_end_as_they_are_told(plane: Plane, racks: list[str], namespace: str) -> None:
    stays = bound_pod(plane, namespace, racks[0], "stays")
    done = bound_pod(plane, namespace, racks[0], "done", exit_code="0")
    fails = bound_pod(plane, namespace, racks[1], "fails", exit_code="3", run_for="100ms")
    silent = bound_pod(plane, namespace, racks[1], "silent", silent="")
    until(lambda: stays()["phase"] == "Running", "a pod runs")
    until(lambda: done()["phase"] == "Succeeded", "a pod succeeds")
    until(lambda: fails()["phase"] == "Failed", "a pod fails")
    assert fails()["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert stays()["phase"] == "Running"
    assert silent()["phase"] == "Pending"
    assert plane.api().delete(f"/api/v1/namespaces/{namespace}/pods/stays").ok
    until(lambda: stays()["phase"] == "Gone", "a deleted pod goes")


def test_a_silent_node_stays_as_a_test_left_it(plane: Plane, racks: list[str]) -> None:
    place = f"/api/v1/nodes/{racks[4]}"
    not_ready = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Test", "message": ""}]}}
    assert plane.api().patch(place, {"metadata": {"annotations": {"fake.fairlease/silent": ""}}}).ok
    assert plane.api().patch(f"{place}/status", not_ready).ok
    time.sleep(0.5)
    assert plane.api().get(place).body["status"]["conditions"][0]["status"] == "False"
    assert plane.api().patch(place, {"metadata": {"annotations": {"fake.fairlease/silent": None}}}).ok
    until(lambda: plane.api().get(place).body["status"]["conditions"][0]["status"] == "True", "the node returns")


def test_binaries_are_taken_from_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binaries: dict[str, Path]
) -> None:
    given = tmp_path / "etcd"
    given.write_text("#!/bin/sh\n")
    given.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert ensure("etcd", "kubectl") == {"etcd": given, "kubectl": binaries["kubectl"]}
