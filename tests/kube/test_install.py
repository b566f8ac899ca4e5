"""`kubectl apply -k deploy/kustomize` on a real API server: all of it is taken, twice, and the controller's pods are let in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.controlplane import Plane

from fairlease.kube.api.names import NAMESPACE
from fairlease.kube.manifests.policy import ACCOUNT

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/fairlease-controller"


@pytest.fixture(scope="module")
def deployment(plane: Plane) -> dict[str, Any]:
    """The controller's Deployment, as the server has it after an installation."""
    said = plane.kubectl("apply", "--server-side", "-k", str(ROOT / "deploy" / "kustomize"))
    assert "deployment.apps/fairlease-controller" in said.stdout
    found: dict[str, Any] = plane.api().get(DEPLOYMENT).body
    return found


def test_one_folder_installs_everything(plane: Plane, deployment: dict[str, Any]) -> None:
    assert deployment["spec"]["replicas"] == 2
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == ACCOUNT
    assert plane.api().get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}").ok
    assert pod["containers"][0]["args"] == ["controller"]


def test_a_second_installation_changes_nothing(plane: Plane, deployment: dict[str, Any]) -> None:
    plane.kubectl("apply", "--server-side", "-k", str(ROOT / "deploy" / "kustomize"))
    now = plane.api().get(DEPLOYMENT).body["metadata"]
    assert now["generation"] == deployment["metadata"]["generation"]


def test_a_plain_apply_takes_the_folder_too(plane: Plane, deployment: dict[str, Any]) -> None:
    """Its annotation holds the whole object, and must not outgrow what annotations may hold."""
    said = plane.kubectl("apply", "--dry-run=server", "-k", str(ROOT / "deploy" / "kustomize"), check=False)
    assert said.returncode == 0, said.stderr
    assert deployment


def test_the_controllers_pod_is_let_in_and_has_no_rights_on_its_node(plane: Plane, deployment: dict[str, Any]) -> None:
    template = deployment["spec"]["template"]
    pod = {"metadata": {"name": "controller", "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    namespace = f"/api/v1/namespaces/{NAMESPACE}"
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    assert plane.api().patch(namespace, enforced).ok
    said = plane.api().post(f"{namespace}/pods?dryRun=All", pod)
    assert said.ok, said.message


def test_the_image_runs_what_the_deployment_expects(deployment: dict[str, Any]) -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    (port,) = [each["containerPort"] for each in container["ports"]]
    assert 'ENTRYPOINT ["fairlease"]' in lines
    assert f"EXPOSE {port}" in lines
    user = deployment["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in lines


def kinds(plane: Plane) -> set[str]:
    built = plane.kubectl("kustomize", str(ROOT / "deploy" / "kustomize")).stdout
    return {each["kind"] for each in yaml.safe_load_all(built)}


def test_no_answer_of_the_api_server_waits_for_us(plane: Plane) -> None:
    assert kinds(plane).isdisjoint({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "APIService"})


def test_samples_are_in_no_installation(plane: Plane) -> None:
    assert kinds(plane).isdisjoint({"Run", "Budget", "Lease", "Reservation", "ResolverOutcome", "LedgerEntry"})
