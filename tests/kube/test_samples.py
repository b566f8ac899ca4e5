"""The kinds as people meet them with kubectl: samples, defaults, columns, scale, explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.tenancy import controller, path, thing
from tests.model.rows import (
    changed,
)
from tests.model.tables import table
from tools.controlplane import Plane

from fairlease.kube.api.names import OWNER
from fairlease.kube.manifests.crd import KINDS

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted(each.name for each in (ROOT / "config" / "samples").glob("*.yaml") if each.name != "namespace.yaml")


@pytest.fixture(scope="module")
def samples(plane: Plane) -> dict[str, dict[str, Any]]:
    """Every sample, applied in order by whom it is for: people's by the administrator, the controller's by the controller."""
    folder = ROOT / "config" / "samples"
    plane.kubectl("apply", "-f", str(folder / "namespace.yaml"))
    found = {}
    for name in SAMPLES:
        wanted = yaml.safe_load((folder / name).read_text())
        kind, namespace = wanted["kind"], wanted["metadata"].get("namespace", "")
        writer = plane.api() if kind in ("Run", "Budget") else controller(plane)
        said = writer.post(path(kind, namespace) + "?fieldValidation=Strict", wanted)
        assert said.ok, f"{name}: {said.message}"
        found[name] = wanted
    return found


def within(wanted: object, found: object) -> bool:
    """Whether all that is wanted was kept; defaults may have come to it."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and within(value, found[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(within, wanted, found))
    return wanted == found


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_kept_as_it_was_written(plane: Plane, samples: dict[str, dict[str, Any]], name: str) -> None:
    wanted = samples[name]
    metadata = wanted["metadata"]
    found = plane.api().get(path(wanted["kind"], metadata.get("namespace", ""), metadata["name"])).body
    assert within(wanted["spec"], found["spec"])


def test_there_is_a_sample_of_each_kind(samples: dict[str, dict[str, Any]]) -> None:
    assert {each["kind"] for each in samples.values()} == {kind.name for kind in KINDS}


def test_defaults_are_shown_by_the_server(plane: Plane, samples: dict[str, dict[str, Any]]) -> None:
    assert samples
    run = plane.api().get(path("Run", "rai", "sweep")).body["spec"]
    assert run["locality"] == {"allowCrossGroupSpread": True, "locationPolicy": "Prefer"}
    assert run["runtime"]["retries"] == 0
    west = plane.api().get(path("Budget", "rai", "rai")).body["spec"]["envelopes"][0]
    assert (west["sharing"], west["onExhaustion"], west["lending"]) == ("family", "Hold", {"allow": False})
    assert west["preActivation"] == {"allowReservations": True, "allowAdmission": False}


def test_kubectl_scale_sets_the_width_that_is_wanted(plane: Plane, samples: dict[str, dict[str, Any]]) -> None:
    assert samples
    plane.kubectl("scale", "run/sweep", "-n", "rai", "--replicas=32")
    assert plane.api().get(path("Run", "rai", "sweep")).body["spec"]["malleable"]["desiredTotalGPUs"] == 32
    said = plane.kubectl("scale", "run/sweep", "-n", "rai", "--replicas=33", check=False)
    assert said.returncode != 0
    assert "expected a multiple" in said.stderr or "multiples" in said.stderr
    free = changed(yaml.safe_load((ROOT / "config/samples/run-elastic.yaml").read_text())["spec"], {"follow": {}})
    del free["malleable"]["desiredTotalGPUs"]
    assert plane.api().post(path("Run", "rai"), thing("Run", free, name="free")).ok
    plane.kubectl("scale", "run/free", "-n", "rai", "--replicas=16")
    assert plane.api().get(path("Run", "rai", "free")).body["spec"]["malleable"]["desiredTotalGPUs"] == 16
    assert plane.api().delete(path("Run", "rai", "free")).ok
    status = {"width": {"min": 8, "max": 64, "desired": 32, "allocated": 16, "pending": 0}}
    assert controller(plane).patch(path("Run", "rai", "sweep", "status"), {"status": status}).ok
    assert plane.api().get(path("Run", "rai", "sweep", "scale")).body["status"]["replicas"] == 16


@table(
    "arguments expected",
    {
        "runs by owner": (("runs", "--field-selector", "spec.owner=org:ai:rai:sweeps"), ["sweep"]),
        "leases by run": (("glease", "--field-selector", "spec.runRef.name=train-128k"), ["train-128k-1-0"]),
        "leases by role": (("glease", "--field-selector", "spec.slice.role=Spare"), []),
        "leases by envelope": (("glease", "--field-selector", "spec.paidByEnvelope=west"), ["train-128k-1-0"]),
        "budgets by owner": (("bud", "--field-selector", "spec.owner=org:ai:rai"), ["rai"]),
        "reservations by run": (("resv", "--field-selector", "spec.runRef.name=sweep"), ["sweep"]),
        "outcomes by claim": (("outcome", "--field-selector", "spec.claim.name=train-128k"), ["outcome-1"]),
        "leases by their full name": (("leases.rq.davidlangworthy.io",), ["train-128k-1-0"]),
        "entries by role": (("ledger", "--field-selector", "spec.role=Snapshot"), []),
    },
)
def test_kubectl_finds_objects_by_what_people_ask_for(
    plane: Plane, samples: dict[str, dict[str, Any]], arguments: tuple[str, ...], expected: list[str]
) -> None:
    assert samples
    shown = plane.kubectl("get", *arguments, "-n", "rai", "-o", "jsonpath={.items[*].metadata.name}").stdout.split()
    assert shown == expected


def test_kubectl_shows_everything_of_a_team_at_once(plane: Plane, samples: dict[str, dict[str, Any]]) -> None:
    assert samples
    shown = plane.kubectl("get", "fairlease", "-n", "rai").stdout
    for name in (
        "budget.rq.davidlangworthy.io/rai",
        "run.rq.davidlangworthy.io/sweep",
        "lease.rq.davidlangworthy.io/train",
    ):
        assert name in shown


@table(
    "kind shown",
    {
        "runs": ("runs", ["NAME", "OWNER", "PHASE", "MIN", "NOW", "MAX", "STARTED", "ETA", "AGE"]),
        "leases": ("glease", ["NAME", "RUN", "OWNER", "ROLE", "NODE", "PAYER", "OPENED", "CLOSED", "AGE"]),
        "budgets": ("budgets", ["NAME", "OWNER", "READY", "COVERED", "UPDATED", "AGE"]),
        "reservations": ("reservations", ["NAME", "RUN", "STATE", "START", "P50", "PAYERS", "AGE"]),
    },
)
def test_columns_answer_what_readers_ask(
    plane: Plane, samples: dict[str, dict[str, Any]], kind: str, shown: list[str]
) -> None:
    assert samples
    header, *rows = plane.kubectl("get", kind, "-n", "rai").stdout.splitlines()
    assert header.split() == shown
    assert rows


@table(
    "field words",
    {
        "budget.spec.envelopes.maxGPUHours": ["budget.spec.envelopes.maxGPUHours", "at most concurrency × window"],
        "run.spec.malleable": ["run.spec.malleable", "Without it, the run is rigid"],
        "run.status.width": ["run.status.width", "GPUs that are on their way"],
        "leases": ["leases.rq.davidlangworthy.io", "one payer, one role"],
        "ledgerentry.spec.body": ["ledgerentry.spec.body", "the very bytes that were hashed"],
    },
)
def test_kubectl_explain_says_what_a_field_means(plane: Plane, field: str, words: str) -> None:
    said = plane.kubectl("explain", field).stdout
    assert words in " ".join(said.split())


def test_every_field_of_every_kind_has_words(plane: Plane) -> None:
    def silent(schema: dict[str, Any], at: str) -> list[str]:
        found = []
        for name, each in schema.get("properties", {}).items():
            free = "template." in f"{at}." or at == ""
            found += [] if free or each.get("description") else [f"{at}.{name}"]
            found += silent(each, f"{at}.{name}") + silent(each.get("items", {}), f"{at}.{name}[]")
        return found

    for kind in KINDS:
        definition = plane.api().get(
            f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind.plural}.rq.davidlangworthy.io"
        )
        schema = definition.body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert silent(schema, "") == []


def test_an_owner_stands_in_the_namespace_and_nowhere_else(plane: Plane, samples: dict[str, dict[str, Any]]) -> None:
    assert samples
    assert plane.api().get("/api/v1/namespaces/rai").body["metadata"]["annotations"][OWNER] == "org:ai:rai"
