"""The CRDs on a real API server: it takes what our reader takes, refuses what our reader refuses, and says which field is wrong."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.tenancy import bound_namespace, controller, path, thing
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
)
from tests.model.tables import table
from tools.controlplane import Answer, Plane

from fairlease.kube.crd import KINDS
from fairlease.kube.policy import OWNER

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted(each.name for each in (ROOT / "config" / "samples").glob("*.yaml") if each.name != "namespace.yaml")
TEMPLATE_BASE = {"owner": "a", "resources": {"gpuType": "H100", "totalGPUs": 16}}
HASH = "0" * 64
RESERVATION = {
    "runRef": {"namespace": "default", "name": "me"},
    "intendedSlice": {"domain": "d", "nodes": ["n-1"]},
    "payingEnvelopes": ["default/b/west"],
    "earliestStart": "2026-01-05T00:00:00Z",
}
OUTCOME = {
    "claim": {"namespace": "default", "name": "me"},
    "at": "2026-01-05T00:00:00Z",
    "scope": {"flavor": "H100"},
    "deficitGPUs": 8,
    "conflictSet": ["default/a"],
    "actions": [],
    "previous": HASH,
}
ENTRY = {"seq": 1, "at": 0, "prev": HASH, "hash": HASH, "body": "[]"}

# Where the server is told less, or is stricter, than our reader; each for a reason.
FOR_KUBERNETES_TO_JUDGE = {
    "a template's numbers are finite"
}  # the free parts of a template go to Kubernetes as they are
NULL_IS_NOT_NOTHING = {"a field that is null", "a pod without a GPU limit"}  # kubectl drops nulls, the raw API does not


@cache
def home(plane: Plane, owner: str) -> str:
    return bound_namespace(plane, owner)


def answer(plane: Plane, kind: str, spec: dict[str, Any]) -> Answer:
    """What the server says to an object, without keeping it; in a namespace whose owner may spend what the spec names."""
    owner = spec.get("owner")
    namespace = home(plane, owner if owner in ("a", "org", "Org.x:a_b-c") else "org:ai")
    spec = json.loads(json.dumps(spec).replace('"default/', f'"{namespace}/'))
    return plane.api().post(path(kind, namespace) + "?dryRun=All", thing(kind, spec))


def names(message: str, field: str) -> bool:
    """Whether a message names a field, or the list that it is in."""
    outer = field.replace('["', ".").partition("[")[0]
    return f"spec.{field}" in message or f"spec.{outer}" in message or f"spec.{outer.rpartition('.')[0]}" in message


@table("changes field", BAD_BUDGETS)
def test_the_server_refuses_a_budget_that_breaks_a_rule(plane: Plane, changes: dict[str, Any], field: str) -> None:
    said = answer(plane, "Budget", changed(BUDGET, changes))
    assert said.status == 422, said
    assert names(said.message, field), said.message


@table("changes", {name: row for name, row in GOOD_BUDGETS.items() if name not in NULL_IS_NOT_NOTHING})
def test_the_server_takes_a_budget_that_breaks_no_rule(plane: Plane, changes: dict[str, Any]) -> None:
    said = answer(plane, "Budget", changed(BUDGET, changes))
    assert said.ok, said.message


@table("changes field", {name: row for name, row in BAD_RUNS.items() if name not in FOR_KUBERNETES_TO_JUDGE})
def test_the_server_refuses_a_run_that_breaks_a_rule(plane: Plane, changes: dict[str, Any], field: str) -> None:
    said = answer(plane, "Run", changed(RUN, changes))
    assert said.status == 422, said
    assert names(said.message, field), said.message


@table("changes", {name: row for name, row in GOOD_RUNS.items() if name not in NULL_IS_NOT_NOTHING})
def test_the_server_takes_a_run_that_breaks_no_rule(plane: Plane, changes: dict[str, Any]) -> None:
    said = answer(plane, "Run", changed(RUN, changes))
    assert said.ok, said.message


@table("spec field", BAD_TEMPLATES)
def test_the_server_refuses_a_template_that_does_not_fit(plane: Plane, spec: dict[str, Any], field: str) -> None:
    said = answer(plane, "Run", TEMPLATE_BASE | spec)
    assert said.status == 422, said
    assert names(said.message, field), said.message


@table("spec pod", GOOD_TEMPLATES)
def test_the_server_takes_a_template_that_fits(plane: Plane, spec: dict[str, Any], pod: int) -> None:
    said = answer(plane, "Run", TEMPLATE_BASE | spec)
    assert said.ok, said.message
    assert 16 % pod == 0


def test_the_server_and_our_reader_agree_on_mixed_changes(plane: Plane) -> None:
    """Rows put together by chance: right or wrong, both must say the same."""
    chance = random.Random(20261116)
    beside = FOR_KUBERNETES_TO_JUDGE | NULL_IS_NOT_NOTHING
    budgets = [
        *(row for row, _ in BAD_BUDGETS.values()),
        *(GOOD_BUDGETS[each] for each in GOOD_BUDGETS if each not in beside),
    ]
    runs = [row for name, (row, _) in BAD_RUNS.items() if name not in beside]
    runs += [GOOD_RUNS[each] for each in GOOD_RUNS if each not in beside]
    taken = 0
    for _ in range(150):
        kind, base, rows = chance.choice((("Budget", BUDGET, budgets), ("Run", RUN, runs)))
        try:
            spec = changed(base, chance.choice(rows) | chance.choice(rows))
        except (KeyError, IndexError, TypeError):
            continue  # the two do not go together
        wrong = refused(kind, spec)
        said = answer(plane, kind, spec)
        assert said.ok is (wrong == []), f"{json.dumps(spec)}: our reader refuses {wrong}; the server: {said.message}"
        taken += said.ok
    assert taken > 10, "nearly everything was refused, which shows little"


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ("90s", True),
        ("15m", True),
        ("1h30m", True),
        ("1.5h", True),
        ("500ms", True),
        ("2d", True),
        ("0.0005s", False),
        ("0h", False),
        ("", False),
        ("5", False),
        ("5 m", False),
        ("5w", False),
        ("m", False),
        ("1h\n", False),
        (5, False),
    ],
    ids=repr,
)
def test_durations_are_text_that_both_understand(plane: Plane, given: object, good: bool) -> None:
    spec = changed(RUN, {"runtime.maxDuration": given})
    assert (refused("Run", spec) == []) is good
    said = answer(plane, "Run", spec)
    assert said.ok is good, said.message
    assert good or "spec.runtime.maxDuration" in said.message


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ("2026-01-05T00:00:00Z", True),
        ("2026-01-05T00:00:00.123456789Z", True),
        ("2026-01-05T00:00:00+02:00", True),
        ("2026-02-30T00:00:00Z", False),
        ("2026-01-05T24:00:00Z", False),
        ("2026-01-05T00:00:60Z", False),
        ("2026-01-05", False),
        ("2026-01-05T00:00:00", False),
        ("0000-01-05T00:00:00Z", False),
        ("9999-12-31T00:00:00Z", False),
        ("soon", False),
        ("", False),
        (0, False),
    ],
    ids=repr,
)
def test_times_are_text_that_both_understand(plane: Plane, given: object, good: bool) -> None:
    spec = changed(RUN, {"runtime.latestStart": given})
    assert (refused("Run", spec) == []) is good
    said = answer(plane, "Run", spec)
    assert said.ok is good, said.message
    assert good or "spec.runtime.latestStart" in said.message


def test_a_name_leaves_room_for_the_names_made_from_it(plane: Plane) -> None:
    place = path("Run", home(plane, "org:ai")) + "?dryRun=All"
    assert plane.api().post(place, thing("Run", RUN, name="a" * 200)).ok
    said = plane.api().post(place, thing("Run", RUN, name="a" * 201))
    assert said.status == 422
    assert "at most 200 characters" in said.message


def test_an_unknown_field_is_refused_where_kubectl_asks_for_it(plane: Plane) -> None:
    place = path("Run", home(plane, "org:ai")) + "?dryRun=All&fieldValidation=Strict"
    said = plane.api().post(place, thing("Run", changed(RUN, {"resources.totalGpus": 8})))
    assert said.status == 400
    assert "spec.resources.totalGpus" in said.message


# ----------------------------------------------------------------------------------------------- once and for all


@table(
    "kind spec edit",
    {
        "the attempt of a Lease": ("Lease", LEASE, {"attempt": 2}),
        "the payer of a Lease": ("Lease", LEASE, {"paidByEnvelope": "east"}),
        "the time of a Reservation": ("Reservation", RESERVATION, {"earliestStart": "2027-01-05T00:00:00Z"}),
        "the deficit of a ResolverOutcome": ("ResolverOutcome", OUTCOME, {"deficitGPUs": 0}),
        "the body of a LedgerEntry": ("LedgerEntry", ENTRY, {"body": "[1]"}),
    },
)
def test_not_even_the_controller_changes_what_was_written(
    plane: Plane, namespace: str, kind: str, spec: dict[str, Any], edit: dict[str, Any]
) -> None:
    writer, name = controller(plane), f"me-{namespace}"
    made = writer.post(path(kind, namespace), thing(kind, spec, name=name))
    assert made.ok, made.message
    said = writer.put(path(kind, namespace, name), {**made.body, "spec": spec | edit})
    assert said.status in (422, 403), said
    assert plane.api().get(path(kind, namespace, name)).body["spec"] == made.body["spec"]
    if said.status == 422:
        assert f"spec of a {kind} never changes" in said.message


CLOSED = {"closed": True, "endTime": "2026-01-06T00:00:00Z", "closureReason": "RandomPreempt(5f)"}


def test_a_lease_is_closed_once_and_stays_closed(plane: Plane, namespace: str) -> None:
    writer, place = controller(plane), path("Lease", namespace, "me", "status")
    assert writer.post(path("Lease", namespace), thing("Lease", LEASE)).ok
    assert writer.patch(place, {"status": {"closed": False}}).ok
    assert writer.patch(place, {"status": CLOSED}).ok
    for again in (
        {"closed": False, "endTime": None, "closureReason": None},
        {"endTime": "2027-01-01T00:00:00Z"},
        {"closureReason": "Completed"},
    ):
        said = writer.patch(place, {"status": again})
        assert said.status == 422, said
        assert "a closed Lease is never written again" in said.message
    said = writer.patch(place, {"status": None})
    assert said.status == 422, said
    assert plane.api().get(path("Lease", namespace, "me")).body["status"] == CLOSED


@table(
    "status field",
    {
        "a closed lease says when": ({"closed": True, "closureReason": "Completed"}, "status.endTime"),
        "a closed lease says why": ({"closed": True, "endTime": CLOSED["endTime"]}, "status.closureReason"),
        "an open lease has no end": ({"closed": False, "endTime": CLOSED["endTime"]}, "status.endTime"),
        "a lease closes for a reason we know": (CLOSED | {"closureReason": "Bored"}, "status.closureReason"),
        "a lease says whether it is closed": ({"endTime": CLOSED["endTime"]}, "status.closed"),
    },
)
def test_a_lease_ends_with_time_and_reason(plane: Plane, namespace: str, status: dict[str, Any], field: str) -> None:
    writer = controller(plane)
    assert writer.post(path("Lease", namespace), thing("Lease", LEASE)).ok
    said = writer.patch(path("Lease", namespace, "me", "status"), {"status": status})
    assert said.status == 422, said
    assert field in said.message


@table(
    "kind spec field",
    {
        "a lease opens for a reason that opens": ("Lease", LEASE | {"reason": "Completed"}, "spec.reason"),
        "a lease belongs to an attempt": ("Lease", LEASE | {"attempt": 0}, "spec.attempt"),
        "a lease belongs to an owner": ("Lease", LEASE | {"owner": "a b"}, "spec.owner"),
        "a lease has a role": ("Lease", changed(LEASE, {"slice.role": "Idle"}), "spec.slice.role"),
        "a reservation has a time": ("Reservation", RESERVATION | {"earliestStart": "soon"}, "spec.earliestStart"),
        "a deficit is not negative": ("ResolverOutcome", OUTCOME | {"deficitGPUs": -1}, "spec.deficitGPUs"),
        "an entry has a bounded body": ("LedgerEntry", ENTRY | {"body": "x" * 1_000_001}, "spec.body"),
    },
)
def test_the_controller_too_is_held_to_the_schema(
    plane: Plane, namespace: str, kind: str, spec: dict[str, Any], field: str
) -> None:
    said = controller(plane).post(path(kind, namespace), thing(kind, spec, name=f"bad-{namespace}"))
    assert said.status == 422, said
    assert field in said.message, said.message


# ------------------------------------------------------------------------------------------------- with kubectl


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
