"""What the API server lets people and the controller change of what is there; not even a cluster administrator may do more."""

from __future__ import annotations

import pytest
from tests.kube.tenancy import bound_namespace, controller, path, thing
from tests.model.rows import RUN
from tests.model.tables import table
from tools.controlplane import Answer, Plane

ELASTIC = {"minTotalGPUs": 8, "maxTotalGPUs": 30, "stepGPUs": 8, "desiredTotalGPUs": 16}


@pytest.fixture(scope="module")
def home(plane: Plane) -> str:
    return bound_namespace(plane, "org:ai")


def denied(said: Answer, words: str) -> None:
    assert said.status in (403, 422), said
    assert "ValidatingAdmissionPolicy" in said.message, said.message
    assert words in said.message, said.message


@table(
    "width told",
    {
        "on the grid": (24, ""),
        "between two": (17, "17 GPUs are not on the step grid; nearest: 16 and 24"),
        "above the last": (30, "30 GPUs are not on the step grid; nearest: 24"),
        "the widest on the grid": (24, ""),
    },
)
def test_a_width_that_is_asked_for_later_lies_on_the_grid(plane: Plane, home: str, width: int, told: str) -> None:
    spec = {
        "owner": "org:ai",
        "resources": {"gpuType": "H100", "totalGPUs": 16},
        "gpusPerPod": 1,
        "malleable": ELASTIC,
    }
    name = f"wide-{width}"
    plane.api().delete(path("Run", home, name))
    assert plane.api().post(path("Run", home), thing("Run", spec, name=name)).ok
    said = plane.api().patch(path("Run", home, name), {"spec": {"malleable": {"desiredTotalGPUs": width}}})
    if told:
        denied(said, told)
    else:
        assert said.ok, said.message


def test_a_tenant_cannot_name_a_config_map_as_ours_and_the_controller_writes_no_other(plane: Plane, home: str) -> None:
    where, own = f"/api/v1/namespaces/{home}/configmaps", {"metadata": {"name": "his"}, "data": {"a": "b"}}
    ours = {"metadata": {"name": "ours", "labels": {"rq.davidlangworthy.io/run": "x"}}}
    denied(plane.api().post(where, ours), "set by the controller of Fairlease only")
    assert plane.api().post(where, own).ok
    denied(controller(plane).patch(f"{where}/his", {}), "writes no ConfigMaps but those of runs")
    denied(controller(plane).post(where, {"metadata": {"name": "other"}}), "writes no ConfigMaps but those of runs")
    assert controller(plane).post(where, ours).ok
    assert controller(plane).patch(f"{where}/ours", {"data": {"a": "b"}}).ok
    marked = {"metadata": {"labels": {"rq.davidlangworthy.io/run": "x"}}}
    denied(controller(plane).patch(f"{where}/his", marked), "writes no ConfigMaps but those of runs")


def test_a_tenant_may_ask_for_a_drill_and_for_nothing_else_by_an_annotation(plane: Plane, home: str) -> None:
    assert plane.api().post(path("Run", home), thing("Run", RUN, name="asks")).ok
    for name, good in (("drill", True), ("resolve", False), ("hold", False)):
        marks = {"metadata": {"annotations": {f"rq.davidlangworthy.io/{name}": "x"}}}
        assert plane.api().patch(path("Run", home, "asks"), marks).ok is good
