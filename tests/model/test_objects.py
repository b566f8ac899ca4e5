"""Whole objects, as kubectl shows them and as people apply them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.model.tables import table

from fairlease.model.amount import MINUTE
from fairlease.model.config import Config
from fairlease.model.document import Invalid
from fairlease.model.lease import Role
from fairlease.model.node import Node
from fairlease.model.objects import (
    BudgetObject,
    LeaseObject,
    NodeObject,
    OutcomeObject,
    ReservationObject,
    RunObject,
    read_config,
    read_objects,
)
from fairlease.model.record import Reason
from fairlease.model.writing import write

API = "rq.davidlangworthy.io/v1"
RUN_REF = {"namespace": "default", "name": "r"}
OBJECTS: dict[str, dict[str, Any]] = {
    "Budget": {
        "owner": "org:ai",
        "parents": ["org"],
        "envelopes": [
            {
                "name": "w",
                "flavor": "H100",
                "selector": {"region": "*"},
                "concurrency": 8,
                "maxGPUHours": 2.5,
                "start": "2026-01-05T00:00:00Z",
                "sharing": "none",
                "preActivation": {"allowAdmission": True},
                "lending": {"allow": True, "to": ["org:*"], "maxConcurrency": 4},
                "onExhaustion": "Drain",
            }
        ],
        "aggregateCaps": [{"name": "c", "flavor": "H100", "envelopes": ["w"], "maxGPUHours": 1}],
    },
    "Run": {
        "owner": "org:ai",
        "resources": {"gpuType": "H100", "totalGPUs": 16},
        "locality": {"groupGPUs": 8, "location": {"region": "us"}, "locationPolicy": "Require"},
        "runtime": {"maxDuration": "2h", "checkpoint": "10m", "onPreempt": "Fail", "retries": 2},
        "malleable": {"minTotalGPUs": 8, "maxTotalGPUs": 32, "stepGPUs": 8},
        "funding": {"allowBorrow": True, "sponsors": ["x"]},
        "follow": {"after": ["a", "team/b"]},
        "gpusPerPod": 8,
        "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}},
        "command": ["python", "train.py"],
        "env": {"A": "1"},
        "workdir": "/work",
    },
    "Reservation": {
        "runRef": RUN_REF,
        "intendedSlice": {"domain": "A", "nodes": ["a0"]},
        "payingEnvelopes": ["default/b/w"],
        "earliestStart": "2026-01-05T00:16:00Z",
    },
    "Lease": {
        "owner": "org:ai",
        "runRef": RUN_REF,
        "attempt": 1,
        "compPath": ["SHARD[2]", "D"],
        "slice": {"nodes": ["a0"], "gpus": {"a0": [0, 1]}, "role": "Active"},
        "interval": {"start": "2026-01-05T00:00:00Z"},
        "paidByBudget": "default/b",
        "paidByEnvelope": "w",
        "reason": "Start",
    },
    "ResolverOutcome": {
        "claim": {"namespace": "default", "name": "r"},
        "at": "2026-01-05T00:16:00Z",
        "scope": {"flavor": "H100", "location": {"region": "us"}},
        "deficitGPUs": 8,
        "conflictSet": ["default/x"],
        "actions": [{"run": "default/x", "leases": ["x-1-0"], "reason": "RandomPreempt", "gpus": 8}],
        "previous": "00",
    },
}
CLASSES: dict[str, type[Any]] = {
    "Budget": BudgetObject,
    "Run": RunObject,
    "Reservation": ReservationObject,
    "Lease": LeaseObject,
    "ResolverOutcome": OutcomeObject,
}


def whole(kind: str, **more: object) -> dict[str, Any]:
    metadata = {"name": "x", "uid": "1", "labels": {"a": "b"}, "managedFields": [{"manager": "kubectl"}]}
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": OBJECTS[kind], **more}


def node(**parts: dict[str, Any]) -> dict[str, Any]:
    form: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"region": "us"}, "annotations": {"a": "b"}},
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
            "allocatable": {"cpu": "7910m", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.33.0"},
        },
    }
    for name, part in parts.items():
        form[name] = form[name] | part
    return form


def read_one(raw: dict[str, Any]) -> Any:  # noqa: ANN401 - one of the classes above
    (item,) = read_objects(json.dumps(raw), "f.json")
    return item


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_of_each_kind_is_read_and_written_back(kind: str) -> None:
    item = read_one(whole(kind))
    assert isinstance(item, CLASSES[kind])
    assert item.key == "default/x"
    assert write(item.spec) == OBJECTS[kind]


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_unknown_field_in_a_spec_of_ours_is_a_mistake(kind: str) -> None:
    raw = whole(kind)
    raw["spec"] = {**raw["spec"], "priority": 5}
    with pytest.raises(Invalid, match=r"spec\.priority: unknown field"):
        read_one(raw)


@pytest.mark.parametrize("kind", ["Budget", "Run", "Reservation", "ResolverOutcome"])
def test_a_status_is_passed_over_whatever_it_holds(kind: str) -> None:
    assert read_one(whole(kind, status={"phase": 5, "odd": [10**40]})) == read_one(whole(kind))


def test_an_unknown_field_beside_the_spec_is_a_mistake() -> None:
    with pytest.raises(Invalid, match=r"f.json:1: sepc: unknown field; did you mean spec\?"):
        read_one({**whole("Run"), "sepc": {}})


def test_a_lease_brings_its_end_with_it() -> None:
    status = {"closed": True, "endTime": "2026-01-05T01:00:00Z", "closureReason": "RandomPreempt(00ff)"}
    item = read_one(whole("Lease", status=status))
    assert item.status.closure_reason == "RandomPreempt(00ff)"
    assert item.spec.slice.role is Role.ACTIVE
    assert item.spec.reason is Reason.Start
    assert write(item.status) == status


@table(
    "field value",
    {
        "it opens to start, grow or swap": ("reason", "Completed"),
        "it has an owner": ("owner", "a b"),
        "attempts count from one": ("attempt", 0),
    },
)
def test_a_lease_that_makes_no_sense_is_a_mistake(field: str, value: object) -> None:
    raw = whole("Lease")
    raw["spec"] = {**raw["spec"], field: value}
    with pytest.raises(Invalid, match=rf"spec\.{field}: .*: expected"):
        read_one(raw)


def test_a_namespace_is_part_of_the_key() -> None:
    raw = whole("Run")
    raw["metadata"] = {"name": "x", "namespace": "team"}
    assert read_one(raw).key == "team/x"


def test_a_list_is_taken_apart_and_documents_are_read_in_order() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [whole("Run"), node()]}
    ours = {"apiVersion": API, "kind": "BudgetList", "items": [whole("Budget")]}
    text = yaml.safe_dump_all([listed, ours, None, whole("Lease")])
    assert [type(each) for each in read_objects(text, "f.yaml")] == [RunObject, NodeObject, BudgetObject, LeaseObject]


def test_a_list_inside_a_list_is_not_followed() -> None:
    inner: dict[str, Any] = {"kind": "List", "items": []}
    with pytest.raises(Invalid, match=r"items\[0\]\.kind: \"List\": unknown kind"):
        read_objects(json.dumps({"kind": "List", "items": [inner]}), "f.json")


@table(
    "raw expected",
    {
        "a healthy node": (node(), {}),
        "a cordoned node": (node(spec={"unschedulable": True}), {"cordoned": True}),
        "a fenced node": (
            node(spec={"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}),
            {"fenced": True},
        ),
        "a node that lost GPUs": (node(status={"allocatable": {"nvidia.com/gpu": "6"}}), {"healthy_gpus": 6}),
        "a node that lost all its GPUs": (node(status={"allocatable": {"nvidia.com/gpu": 0}}), {"healthy_gpus": 0}),
        "a node that can use more than it has": (node(status={"allocatable": {"nvidia.com/gpu": "9"}}), {}),
        "a node that says nothing of what can be used": (node(status={"allocatable": {"cpu": "8"}}), {}),
        "a node without GPUs": (node(status={"capacity": {"cpu": "8"}, "allocatable": {}}), {"gpus": 0}),
        "a node that is not ready": (
            node(status={"conditions": [{"type": "Ready", "status": "False"}]}),
            {"ready": False},
        ),
        "a node that nobody has heard of lately": (
            node(status={"conditions": [{"type": "Ready", "status": "Unknown"}]}),
            {"ready": False},
        ),
        "a node that is not asked how it is": (node(status={"conditions": []}), {}),
        "a node without labels": (node(metadata={"labels": None}), {"labels": {}}),
        "a node with a name of its own kind": (node(metadata={"name": "GPU_Box.1"}), {"name": "GPU_Box.1"}),
    },
)
def test_a_node_is_read_as_kubernetes_shows_it(raw: dict[str, Any], expected: dict[str, Any]) -> None:
    base = {"name": "n", "labels": {"region": "us"}, "gpus": 8}
    assert read_one(raw).node == Node(**{**base, **expected})


@table(
    "raw field",
    {
        "GPUs that are no number": (node(status={"capacity": {"nvidia.com/gpu": "many"}}), "status.capacity"),
        "GPUs in halves": (node(status={"allocatable": {"nvidia.com/gpu": 7.5}}), "status.allocatable"),
        "a label that is a number": (node(metadata={"labels": {"rack": 5}}), "metadata.labels.rack"),
        "no name": (node(metadata={"name": None}), "metadata.name"),
    },
)
def test_a_node_that_cannot_be_understood_is_a_mistake(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_one(raw)
    assert [problem.field.startswith(field) for problem in caught.value.problems] == [True]


def test_settings_have_defaults_and_never_is_a_notice() -> None:
    assert read_config("", "c.yaml") == Config()
    assert read_config("notice: never\ngrowCooldown: 5m\n", "c.yaml") == Config(notice=None, grow_cooldown=5 * MINUTE)
    assert read_config("notice: 0\nlabels: {flavor: nvidia.com/gpu.product}", "c.yaml").notice == 0
