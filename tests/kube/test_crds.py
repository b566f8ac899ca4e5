"""The CRDs on a real API server: it takes what our reader takes, refuses what our reader refuses, and says which field is wrong."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest
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
