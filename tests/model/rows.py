"""The rules of SEMANTICS §2 as rows: what breaks each of them and where, and what comes close and breaks none.

The reader is held to them (`test_rules.py`), and so is the API server (`tests/kube/test_crds.py`): the two must agree.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from fairlease.model.document import Invalid
from fairlease.model.objects import read_objects

API = "rq.davidlangworthy.io/v1"
REMOVE = object()
BUDGET: dict[str, Any] = {
    "owner": "org:ai",
    "envelopes": [
        {"name": "west", "flavor": "H100", "selector": {"region": "us"}, "concurrency": 8},
        {"name": "east", "flavor": "H100", "selector": {"region": "*"}, "concurrency": 8},
        {"name": "old", "flavor": "A100", "selector": {"region": "us"}, "concurrency": 8},
    ],
    "aggregateCaps": [{"name": "all", "flavor": "H100", "envelopes": ["west", "east"], "maxConcurrency": 12}],
}
RUN: dict[str, Any] = {
    "owner": "org:ai",
    "resources": {"gpuType": "H100", "totalGPUs": 16},
    "locality": {"groupGPUs": 8},
    "malleable": {"minTotalGPUs": 8, "maxTotalGPUs": 32, "stepGPUs": 8, "desiredTotalGPUs": 24},
    "sparesPerGroup": 4,
    "gpusPerPod": 4,
}
LEASE: dict[str, Any] = {
    "owner": "org:ai",
    "runRef": {"namespace": "default", "name": "me"},
    "attempt": 1,
    "compPath": ["SHARD[0]", "D"],
    "slice": {"nodes": ["n-1"], "gpus": {"n-1": [0, 1]}, "role": "Active"},
    "interval": {"start": "2026-01-05T00:00:00Z"},
    "paidByBudget": "default/b",
    "paidByEnvelope": "west",
    "reason": "Start",
}
WINDOW = {"start": "2026-01-05T00:00:00Z", "end": "2026-01-05T02:00:00Z"}


def text(kind: str, spec: dict[str, Any], name: str = "me", namespace: str = "default") -> str:
    metadata = {"name": name, "namespace": namespace}
    return json.dumps({"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec})


def refused(kind: str, spec: dict[str, Any], **names: str) -> list[str]:
    """The fields that are refused."""
    try:
        read_objects(text(kind, spec, **names), "f.json")
    except Invalid as invalid:
        return [problem.field.removeprefix("spec.") for problem in invalid.problems]
    return []


def changed(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with some values replaced, by dotted path."""
    spec = copy.deepcopy(spec)
    for path, value in changes.items():
        *outer, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        place: Any = spec
        for step in outer:
            place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
        if value is REMOVE:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)  # parts of the specs above are among them
    return spec


def container(limit: object) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": limit}}}


BAD_BUDGETS: dict[str, tuple[dict[str, Any], str]] = {
    "an owner is a path of names": ({"owner": "org:"}, "owner"),
    "an owner has no spaces": ({"owner": "a b"}, "owner"),
    "an owner is not empty": ({"owner": ""}, "owner"),
    "an owner has no star": ({"owner": "org:*"}, "owner"),
    "an owner ends with its name and not a newline": ({"owner": "org\n"}, "owner"),
    "a parent is an owner": ({"parents": ["org", "a b"]}, "parents[1]"),
    "a parent is named once": ({"parents": ["a", "b", "a"]}, "parents[2]"),
    "an envelope has a name": ({"envelopes.0.name": ""}, "envelopes[0].name"),
    "names of envelopes are unique": ({"envelopes.1.name": "west", "aggregateCaps": []}, "envelopes[1].name"),
    "an envelope has a flavor": ({"envelopes.0.flavor": ""}, "envelopes[0].flavor"),
    "a selector has a label": ({"envelopes.0.selector": {}}, "envelopes[0].selector"),
    "concurrency is more than nothing": ({"envelopes.0.concurrency": 0}, "envelopes[0].concurrency"),
    "hours are never negative": ({"envelopes.0.maxGPUHours": -1}, "envelopes[0].maxGPUHours"),
    "a window is not empty": (
        {"envelopes.0.start": WINDOW["start"], "envelopes.0.end": WINDOW["start"]},
        "envelopes[0].end",
    ),
    "a window goes forward": (
        {"envelopes.0.start": WINDOW["end"], "envelopes.0.end": WINDOW["start"]},
        "envelopes[0].end",
    ),
    "hours fit in the window": (
        {"envelopes.0.start": WINDOW["start"], "envelopes.0.end": WINDOW["end"], "envelopes.0.maxGPUHours": 16.01},
        "envelopes[0].maxGPUHours",
    ),
    "lending goes to owners": ({"envelopes.0.lending.to": ["org:*", "a b"]}, "envelopes[0].lending.to[1]"),
    "a lending cap is not negative": (
        {"envelopes.0.lending.maxConcurrency": -1},
        "envelopes[0].lending.maxConcurrency",
    ),
    "a lending cap of hours is not negative": (
        {"envelopes.0.lending.maxGPUHours": -0.5},
        "envelopes[0].lending.maxGPUHours",
    ),
    "names of caps are unique": (
        {"aggregateCaps": [BUDGET["aggregateCaps"][0], BUDGET["aggregateCaps"][0]]},
        "aggregateCaps[1].name",
    ),
    "a cap has a name": ({"aggregateCaps.0.name": ""}, "aggregateCaps[0].name"),
    "a cap has a flavor": ({"aggregateCaps.0.flavor": ""}, "aggregateCaps[0].flavor"),
    "a cap is over something": ({"aggregateCaps.0.envelopes": []}, "aggregateCaps[0].envelopes"),
    "a cap is over envelopes of this Budget": (
        {"aggregateCaps.0.envelopes.1": "none"},
        "aggregateCaps[0].envelopes[1]",
    ),
    "a cap is over envelopes of its flavor": (
        {"aggregateCaps.0.envelopes.1": "old"},
        "aggregateCaps[0].envelopes[1]",
    ),
    "a cap names an envelope once": (
        {"aggregateCaps.0.envelopes.1": "west"},
        "aggregateCaps[0].envelopes[1]",
    ),
    "a cap bounds something": ({"aggregateCaps.0.maxConcurrency": REMOVE}, "aggregateCaps[0]"),
    "a cap is not negative": ({"aggregateCaps.0.maxConcurrency": -1}, "aggregateCaps[0].maxConcurrency"),
    "a cap of hours is not negative": ({"aggregateCaps.0.maxGPUHours": -1}, "aggregateCaps[0].maxGPUHours"),
    "a cap in a Budget without envelopes is over none of them": (
        {"envelopes": [], "aggregateCaps.0.envelopes": ["west"]},
        "aggregateCaps[0].envelopes[0]",
    ),
}

GOOD_BUDGETS: dict[str, dict[str, Any]] = {
    "an owner of one segment": {"owner": "org"},
    "an owner with dots, dashes and capitals": {"owner": "Org.x:a_b-c"},
    "an owner who is its own parent, which is a cycle and is reported": {"parents": ["org:ai"]},
    "no parents at all": {"parents": []},
    "hours that fill the window exactly": {
        "envelopes.0.start": WINDOW["start"],
        "envelopes.0.end": WINDOW["end"],
        "envelopes.0.maxGPUHours": 16,
    },
    "hours without end and only a start": {"envelopes.0.start": WINDOW["start"], "envelopes.0.maxGPUHours": 1e6},
    "a third of an hour": {"envelopes.0.maxGPUHours": 0.333333333},
    "a window before 1970": {"envelopes.0.start": "0001-01-01T00:00:00Z"},
    "an offset other than UTC": {"envelopes.0.start": "2026-01-05T01:00:00.5+01:00"},
    "lending to all": {"envelopes.0.lending": {"allow": True, "to": ["*", "?rg:*", "org"]}},
    "a head of a family without money": {"envelopes": [], "aggregateCaps": []},
    "a head of a family that says nothing of money": {"envelopes": REMOVE, "aggregateCaps": REMOVE},
    "no hours at all": {"envelopes.0.maxGPUHours": 0},
    "caps of nothing": {"aggregateCaps.0.maxConcurrency": 0, "aggregateCaps.0.maxGPUHours": 0},
    "lending nothing for now": {"envelopes.0.lending": {"allow": True, "maxConcurrency": 0, "maxGPUHours": 0}},
    "an envelope with an odd name": {"envelopes.2.name": "Größe 8/8"},
    "a field that is null": {"envelopes.0.maxGPUHours": None, "aggregateCaps": None},
    "a huge concurrency": {"envelopes.0.concurrency": 2**53 - 1},
}

BAD_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "a flavor is named": ({"resources.gpuType": ""}, "resources.gpuType"),
    "a run asks for something": ({"resources.totalGPUs": 0}, "resources.totalGPUs"),
    "a group holds something": ({"locality.groupGPUs": 0}, "locality.groupGPUs"),
    "a pod holds something": ({"gpusPerPod": 0}, "gpusPerPod"),
    "spares are not negative": ({"sparesPerGroup": -4}, "sparesPerGroup"),
    "retries are not negative": ({"runtime.retries": -1}, "runtime.retries"),
    "a limit is longer than nothing": ({"runtime.maxDuration": "0s"}, "runtime.maxDuration"),
    "an expectation is longer than nothing": ({"runtime.expectedDuration": "0s"}, "runtime.expectedDuration"),
    "a checkpoint is longer than nothing": ({"runtime.checkpoint": "0s"}, "runtime.checkpoint"),
    "a limit is not negative": ({"runtime.maxDuration": "-5m"}, "runtime.maxDuration"),
    "the total is whole pods": (
        {"malleable": REMOVE, "resources.totalGPUs": 18},
        "resources.totalGPUs",
    ),
    "a group is whole pods": ({"locality.groupGPUs": 6}, "locality.groupGPUs"),
    "spares are whole pods": ({"sparesPerGroup": 2}, "sparesPerGroup"),
    "a step is whole pods": ({"malleable.stepGPUs": 6}, "malleable.stepGPUs"),
    "the minimum is whole pods": ({"malleable.minTotalGPUs": 6}, "malleable.minTotalGPUs"),
    "the maximum is whole pods": ({"malleable.maxTotalGPUs": 30}, "malleable.maxTotalGPUs"),
    "the desired width is whole pods": ({"malleable.desiredTotalGPUs": 22}, "malleable.desiredTotalGPUs"),
    "the minimum is not above the maximum": (
        {"malleable.minTotalGPUs": 64},
        "malleable.minTotalGPUs",
    ),
    "the minimum is more than nothing": ({"malleable.minTotalGPUs": 0}, "malleable.minTotalGPUs"),
    "the maximum is more than nothing": ({"malleable.maxTotalGPUs": 0}, "malleable.maxTotalGPUs"),
    "the desired width is more than nothing": ({"malleable.desiredTotalGPUs": 0}, "malleable.desiredTotalGPUs"),
    "a step is more than nothing": ({"malleable.stepGPUs": 0}, "malleable.stepGPUs"),
    "the total is not below the minimum": ({"resources.totalGPUs": 4}, "resources.totalGPUs"),
    "the total is not above the maximum": ({"resources.totalGPUs": 64}, "resources.totalGPUs"),
    "the desired width is not below the minimum": (
        {"malleable.desiredTotalGPUs": 4},
        "malleable.desiredTotalGPUs",
    ),
    "the desired width is not above the maximum": (
        {"malleable.desiredTotalGPUs": 64},
        "malleable.desiredTotalGPUs",
    ),
    "borrowing is not negative": ({"funding.maxBorrowGPUs": -1}, "funding.maxBorrowGPUs"),
    "a sponsor is an owner": ({"funding.sponsors": ["org:*"]}, "funding.sponsors[0]"),
    "what it follows has a name": ({"follow.after": ["A b"]}, "follow.after[0]"),
    "what it follows has at most one namespace": ({"follow.after": ["a/b/c"]}, "follow.after[0]"),
    "what it follows is named once": ({"follow.after": ["a", "default/a"]}, "follow.after[1]"),
    "a run does not follow itself": ({"follow.after": ["me"]}, "follow.after[0]"),
    "a run does not follow itself by its full name": ({"follow.after": ["default/me"]}, "follow.after[0]"),
    "a variable has a name": ({"env": {"": "x"}}, 'env[""]'),
    "a variable's name has no equals sign": ({"env": {"A=B": "x"}}, 'env["A=B"]'),
    "a word of a command has no NUL": ({"command": ["a\0b"]}, "command[0]"),
    "a template has a spec": ({"template": {"spec": "x"}}, "template.spec"),
    "a template's containers are a list": (
        {"template": {"spec": {"containers": {"a": 1}}}},
        "template.spec.containers",
    ),
    "a container is a mapping": ({"template": {"spec": {"containers": ["x"]}}}, "template.spec.containers[0]"),
    "a template's numbers are finite": (
        {"template": {"x": [1, {"y": 2**63}]}},
        "template.x[1].y",
    ),
}

GOOD_RUNS: dict[str, dict[str, Any]] = {
    "a group larger than the run": {"locality.groupGPUs": 64},
    "a total that its groups do not divide": {"resources.totalGPUs": 20},
    "an expected duration beyond the limit": {"runtime": {"maxDuration": "1h", "expectedDuration": "2h"}},
    "a width that is not on the step grid": {"malleable.stepGPUs": 28},
    "a sponsor named twice, who is asked once": {"funding.sponsors": ["a", "b", "a"]},
    "a sponsor who is the owner": {"funding.sponsors": ["a", "org:ai"]},
    "borrowing nothing": {"funding": {"allowBorrow": True, "maxBorrowGPUs": 0}},
    "following runs here and elsewhere": {"follow.after": ["a", "team/a", "team/me"]},
    "a pod without a GPU limit": {"template": {"spec": {"containers": [{"name": "x"}, {"resources": None}]}}},
    "a template without anything": {"template": {}},
    "variables as Kubernetes names them": {"env": {"_A": "", "a.b-c": "x"}},
    "no command": {"command": []},
    "a latest start in the past": {"runtime.latestStart": "1999-01-01T00:00:00Z"},
    "a huge total": {"malleable": REMOVE, "resources.totalGPUs": 2**53 - 4},
}

GOOD_TEMPLATES: dict[str, tuple[dict[str, Any], int]] = {
    "as given": ({"gpusPerPod": 2}, 2),
    "the limit of the template": ({"template": {"spec": {"containers": [container(4)]}}}, 4),
    "the limits of all containers": ({"template": {"spec": {"containers": [container("2"), container(2)]}}}, 4),
    "as given where the template agrees": (
        {"gpusPerPod": 8, "template": {"spec": {"containers": [container("8")]}}},
        8,
    ),
    "one where nothing is said": ({}, 1),
}

BAD_TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "the template and gpusPerPod disagree": (
        {"gpusPerPod": 4, "template": {"spec": {"containers": [container(8)]}}},
        "gpusPerPod",
    ),
    "the template's pods do not divide the total": (
        {"template": {"spec": {"containers": [container(3)]}}},
        "resources.totalGPUs",
    ),
    "the template asks for half a GPU": (
        {"template": {"spec": {"containers": [container(0.5)]}}},
        'template.spec.containers[0].resources.limits["nvidia.com/gpu"]',
    ),
    "the template asks for a number of an odd script": (
        {"template": {"spec": {"containers": [container("²")]}}},
        'template.spec.containers[0].resources.limits["nvidia.com/gpu"]',
    ),
}
