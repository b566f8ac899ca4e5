"""Further attempts of a tenant with all rights in her namespaces: families, side doors, and reports that are not hers to write."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kube.tenancy import SOMEONE, controller, denied, grant, path, pod, pods, thing
from tests.model.rows import BUDGET, changed
from tests.model.tables import table
from tools.controlplane import Answer, Api, Plane

from fairlease.kube.api.names import RUN

STRATEGIC = "application/strategic-merge-patch+json"


# --- families --------------------------------------------------------------------------------------------------------------


@table(
    "parents good",
    {
        "the one that the path names": (["org"], True),
        "nobody": ([], True),
        "one of her own": (["org:ai:labs"], True),
        "a rich stranger": (["rich"], False),
        "a sibling": (["org:vision"], False),
        "a sibling whose name begins alike": (["org:ai2"], False),
        "a stranger beside the right one": (["org", "rich"], False),
    },
)
def test_a_tenant_does_not_choose_whose_money_her_family_has(
    mallory: Api, home: str, parents: list[str], good: bool
) -> None:
    budget = thing("Budget", changed(BUDGET, {"owner": "org:ai", "parents": parents}))
    said = mallory.post(path("Budget", home) + "?dryRun=All", budget)
    if good:
        assert said.ok, said.message
    else:
        denied(said, "spec.parents")


def test_an_administrator_joins_families_and_the_tenant_may_go_on_editing(
    plane: Plane, mallory: Api, home: str
) -> None:
    grant(plane, "fay", "fairlease-administrator")
    grant(plane, "fay", "fairlease-admin", home)
    joined = thing("Budget", changed(BUDGET, {"owner": "org:ai", "parents": ["org", "fund"]}), name="joined")
    assert plane.api("fay").post(path("Budget", home), joined).ok
    said = mallory.patch(path("Budget", home, "joined"), {"spec": {"aggregateCaps": []}})
    assert said.ok, said.message
    denied(mallory.patch(path("Budget", home, "joined"), {"spec": {"parents": ["fund", "rich"]}}), "spec.parents")


# --- pods of the controller ------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(plane: Plane, home: str) -> str:
    """A pod of a run in Mallory's namespace, as the controller makes it."""
    made = pod("worker", [{**SOMEONE, "resources": {"limits": {"nvidia.com/gpu": 1}}}], schedulerName="fairlease")
    made["metadata"] |= {"labels": {RUN: "train"}, "annotations": {RUN: "train"}}
    said = controller(plane).post(pods(home), made)
    assert said.ok or said.status == 409, said.message
    return "worker"


@table(
    "status",
    {
        "that it is done": {"phase": "Succeeded"},
        "that it failed": {"phase": "Failed"},
        "an exit code": {
            "containerStatuses": [
                {
                    "name": "c", "image": "i", "imageID": "i", "ready": False, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 3}},
                }
            ]
        },
    },
)  # fmt: skip
def test_a_tenant_does_not_say_how_a_pod_of_a_run_fares(
    plane: Plane, mallory: Api, home: str, worker: str, status: dict[str, Any]
) -> None:
    denied(mallory.patch(pods(home, worker, "status"), {"status": status}), "told by their nodes")
    said = plane.api("system:node:n-1", ("system:nodes",)).patch(pods(home, worker, "status"), {"status": status})
    assert "ValidatingAdmissionPolicy" not in said.message, said.message
    assert plane.api().patch(pods(home, worker, "status") + "?dryRun=All", {"status": status}).ok, (
        "kwok, or a controller"
    )


def test_a_tenant_may_still_open_a_gate_of_readiness(mallory: Api, home: str, worker: str) -> None:
    condition = {"type": "example.com/ready", "status": "True"}
    said = mallory.ask("PATCH", pods(home, worker, "status"), {"status": {"conditions": [condition]}}, STRATEGIC)
    assert said.ok, said.message
    assert mallory.post(pods(home), pod("own")).ok
    assert mallory.patch(pods(home, "own", "status"), {"status": {"phase": "Succeeded"}}).ok, "a pod of her own"


def changed_marks(said: Answer) -> bool:
    return said.ok and said.body["metadata"].get("annotations", {}).get(RUN) != "train"


@pytest.mark.parametrize("door", ["", "status", "ephemeralcontainers", "resize"])
def test_no_door_of_a_pod_lets_our_marks_be_changed(mallory: Api, home: str, worker: str, door: str) -> None:
    for value in ("other", None):
        said = mallory.ask("PATCH", pods(home, worker, door), {"metadata": {"annotations": {RUN: value}}}, STRATEGIC)
        assert not changed_marks(said), said
    assert mallory.get(pods(home, worker)).body["metadata"]["annotations"][RUN] == "train"


def test_a_service_is_not_named_as_ours_by_its_side_door(mallory: Api, home: str) -> None:
    where = f"/api/v1/namespaces/{home}/services"
    assert mallory.post(where, {"metadata": {"name": "plain"}, "spec": {"clusterIP": "None"}}).ok
    said = mallory.patch(f"{where}/plain/status", {"metadata": {"labels": {RUN: "train"}}})
    denied(said, "set by the controller of Fairlease only")
