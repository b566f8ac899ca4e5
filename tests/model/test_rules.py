"""The rules of SEMANTICS §2, one row each: what breaks them is refused where it stands, and what does not is let through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.model.rows import (
    BAD_BUDGETS,
    BAD_RUNS,
    BAD_TEMPLATES,
    BUDGET,
    GOOD_BUDGETS,
    GOOD_RUNS,
    GOOD_TEMPLATES,
    LEASE,
    RUN,
    changed,
    refused,
    text,
)
from tests.model.tables import table

from fairlease.model.document import Invalid
from fairlease.model.objects import BudgetObject, RunObject, read_objects


@table("changes field", BAD_BUDGETS)
def test_a_budget_that_breaks_a_rule_is_refused(changes: dict[str, Any], field: str) -> None:
    assert refused("Budget", BUDGET) == []
    assert refused("Budget", changed(BUDGET, changes)) == [field]


@table("changes", GOOD_BUDGETS)
def test_a_budget_that_breaks_no_rule_is_let_through(changes: dict[str, Any]) -> None:
    assert refused("Budget", changed(BUDGET, changes)) == []


@table("changes field", BAD_RUNS)
def test_a_run_that_breaks_a_rule_is_refused(changes: dict[str, Any], field: str) -> None:
    assert refused("Run", RUN) == []
    assert refused("Run", changed(RUN, changes)) == [field]


@table("changes", GOOD_RUNS)
def test_a_run_that_breaks_no_rule_is_let_through(changes: dict[str, Any]) -> None:
    assert refused("Run", changed(RUN, changes)) == []


@table("spec expected", GOOD_TEMPLATES)
def test_gpus_per_pod_is_settled_by_reading(spec: dict[str, Any], expected: int) -> None:
    base = {"owner": "a", "resources": {"gpuType": "H100", "totalGPUs": 16}}
    (item,) = read_objects(text("Run", base | spec), "f.json")
    assert isinstance(item, RunObject)
    assert item.spec.gpus_per_pod == expected


@table("spec field", BAD_TEMPLATES)
def test_a_template_that_does_not_fit_is_refused(spec: dict[str, Any], field: str) -> None:
    base = {"owner": "a", "resources": {"gpuType": "H100", "totalGPUs": 16}}
    assert refused("Run", base | spec) == [field]


@table(
    "kind name namespace good",
    {
        "letters, digits, dashes and dots": ("Run", "a-1.b2", "team-a", True),
        "capitals": ("Run", "A", "default", False),
        "an underscore": ("Budget", "a_b", "default", False),
        "a dash at the end": ("Budget", "a-", "default", False),
        "two dots in a row": ("Budget", "a..b", "default", False),
        "a slash": ("Run", "team/a", "default", False),
        "a newline at the end": ("Run", "a\n", "default", False),
        "a run's name of 200": ("Run", "a" * 200, "default", True),
        "a run's name of 201, which leaves no room for its leases": ("Run", "a" * 201, "default", False),
        "a Budget's name of 253": ("Budget", "a" * 253, "default", True),
        "a Budget's name of 254": ("Budget", "a" * 254, "default", False),
        "a namespace with a dot": ("Run", "a", "b.c", False),
        "a namespace of 64": ("Run", "a", "b" * 64, False),
    },
)
def test_names_are_what_kubernetes_takes(kind: str, name: str, namespace: str, *, good: bool) -> None:
    spec = RUN if kind == "Run" else BUDGET
    assert (refused(kind, spec, name=name, namespace=namespace) == []) is good


def test_a_run_in_another_namespace_may_follow_its_namesake_elsewhere() -> None:
    spec = changed(RUN, {"follow.after": ["default/me"]})
    assert refused("Run", spec, namespace="team") == []
    assert refused("Run", changed(RUN, {"follow.after": ["me"]}), namespace="team") == ["follow.after[0]"]


@pytest.mark.parametrize("value", [-(2**60), -1, 0.5, 1e300, float("inf"), "x", [], {}, True], ids=str)
@pytest.mark.parametrize(
    "path", ["resources.totalGPUs", "locality.groupGPUs", "sparesPerGroup", "gpusPerPod", "runtime.retries"]
)
def test_nothing_but_a_proper_integer_passes(path: str, value: object) -> None:
    assert len(refused("Run", changed(RUN, {path: value}))) == 1


def test_the_objects_of_a_good_budget_are_as_written() -> None:
    (item,) = read_objects(text("Budget", BUDGET), "f.json")
    assert isinstance(item, BudgetObject)
    assert item.key == "default/me"
    assert [each.name for each in item.spec.envelopes] == ["west", "east", "old"]
    assert item.spec.aggregate_caps[0].max_concurrency == 12


@table(
    "status field",
    {
        "a closed lease says when": ({"closed": True, "closureReason": "Completed"}, "status.endTime"),
        "a closed lease says why": ({"closed": True, "endTime": "2026-01-05T00:00:00Z"}, "status.closureReason"),
        "an open lease has no end": ({"closed": False, "endTime": "2026-01-05T00:00:00Z"}, "status.endTime"),
        "a lease closes for a reason we know": (
            {"closed": True, "endTime": "2026-01-05T00:00:00Z", "closureReason": "Bored"},
            "status.closureReason",
        ),
    },
)
def test_a_lease_ends_with_a_time_and_a_reason(status: dict[str, Any], field: str) -> None:
    written = {**json.loads(text("Lease", LEASE)), "status": status}
    with pytest.raises(Invalid) as invalid:
        read_objects(json.dumps(written), "f.json")
    assert [problem.field for problem in invalid.value.problems] == [field]
