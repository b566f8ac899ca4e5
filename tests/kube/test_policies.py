"""Every rule of SEMANTICS §9, broken by the one who would gain by it. The server says no, and all that is honest goes through.

Mallory has all rights in her namespaces, as tenants often do: what stops her is not her role but the policies.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.kube.tenancy import SOMEONE, bound_namespace, controller, denied, grant, path, pod, pods, thing
from tests.model.rows import BUDGET, LEASE, RUN, changed
from tests.model.tables import table
from tools.controlplane import Api, Plane

from fairlease.kube.api.names import OWNER
from fairlease.kube.manifests.policy import CONTROLLERS, POLICIES

LABEL = "rq.davidlangworthy.io/run"


# ---------------------------------------------------------------------------------------------------- who may spend


@table(
    "kind owner good",
    {
        "a run for the owner": ("Run", "org:ai", True),
        "a run for one below": ("Run", "org:ai:rai", True),
        "a run for one further below": ("Run", "org:ai:rai:sweeps", True),
        "a run for the one above": ("Run", "org", False),
        "a run for a sibling": ("Run", "org:vision", False),
        "a run for a sibling whose name begins alike": ("Run", "org:aim", False),
        "a run for a sibling with a dash": ("Run", "org:ai-x", False),
        "a run for someone else": ("Run", "other", False),
        "a budget for the owner": ("Budget", "org:ai", True),
        "a budget for one below": ("Budget", "org:ai:rai", True),
        "a budget for the one above": ("Budget", "org", False),
        "a budget for a sibling whose name begins alike": ("Budget", "org:ai2", False),
    },
)
def test_a_namespace_spends_for_its_owner_and_those_below(
    mallory: Api, home: str, kind: str, owner: str, good: bool
) -> None:
    spec = changed(RUN if kind == "Run" else BUDGET, {"owner": owner})
    said = mallory.post(path(kind, home) + "?dryRun=All", thing(kind, spec))
    if good:
        assert said.ok, said.message
    else:
        denied(said, "spec.owner: expected org:ai")


@pytest.mark.parametrize("kind", ["Run", "Budget"])
def test_a_namespace_that_is_bound_to_nobody_spends_nothing(mallory: Api, elsewhere: str, kind: str) -> None:
    said = mallory.post(path(kind, elsewhere), thing(kind, RUN if kind == "Run" else BUDGET))
    denied(said, "bound to no owner")


def test_a_run_cannot_be_moved_to_another_owner_later(mallory: Api, home: str) -> None:
    assert mallory.post(path("Run", home), thing("Run", RUN, name="mover")).ok
    said = mallory.patch(path("Run", home, "mover"), {"spec": {"owner": "org:vision"}})
    denied(said, "spec.owner")


def test_a_run_of_a_former_owner_can_still_be_finished(plane: Plane) -> None:
    place = bound_namespace(plane, "org:ai")
    assert plane.api().post(path("Run", place), thing("Run", RUN, finalizers=["example.com/f"])).ok
    assert plane.api().patch(f"/api/v1/namespaces/{place}", {"metadata": {"annotations": {OWNER: "org:vision"}}}).ok
    denied(plane.api().patch(path("Run", place, "me"), {"spec": {"funding": {"maxBorrowGPUs": 1}}}), "spec.owner")
    said = controller(plane).patch(path("Run", place, "me"), {"metadata": {"finalizers": []}})
    assert said.ok, said.message


# ------------------------------------------------------------------------------------------- who binds a namespace


@pytest.mark.parametrize("owner", ["org:vision", "org", "", None], ids=repr)
def test_a_tenant_cannot_bind_his_namespace_to_another(mallory: Api, home: str, owner: str | None) -> None:
    said = mallory.patch(f"/api/v1/namespaces/{home}", {"metadata": {"annotations": {OWNER: owner}}})
    denied(said, "set by administrators of Fairlease only")


def test_a_tenant_cannot_bind_a_namespace_when_making_it(mallory: Api) -> None:
    said = mallory.post("/api/v1/namespaces", {"metadata": {"name": "mine", "annotations": {OWNER: "org"}}})
    denied(said, "set by administrators of Fairlease only")


@pytest.mark.parametrize("door", ["status", "finalize"])
def test_a_tenant_cannot_bind_a_namespace_by_a_side_door(mallory: Api, home: str, door: str) -> None:
    now = mallory.get(f"/api/v1/namespaces/{home}").body
    now["metadata"]["annotations"][OWNER] = "org"
    denied(mallory.put(f"/api/v1/namespaces/{home}/{door}", now), "set by administrators of Fairlease only")


def test_a_tenant_may_write_other_annotations_of_his_namespace(mallory: Api, home: str) -> None:
    said = mallory.patch(f"/api/v1/namespaces/{home}", {"metadata": {"annotations": {"example.com/note": "x"}}})
    assert said.ok, said.message


def test_an_administrator_of_fairlease_binds_namespaces(plane: Plane, elsewhere: str) -> None:
    grant(plane, "ada", "fairlease-administrator")
    ada, place = plane.api("ada"), f"/api/v1/namespaces/{bound_namespace(plane, None)}"
    said = ada.patch(place, {"metadata": {"annotations": {OWNER: "org:new"}}})
    assert said.ok, said.message
    denied(ada.patch(place, {"metadata": {"annotations": {OWNER: "org: new"}}}), "expected an owner")
    assert elsewhere


# ---------------------------------------------------------------------------------- what only the controller writes


HASH = "0" * 64
MADE: dict[str, dict[str, Any]] = {
    "Lease": LEASE,
    "Reservation": {
        "runRef": {"namespace": "default", "name": "me"},
        "intendedSlice": {"domain": "d", "nodes": ["n-1"]},
        "payingEnvelopes": ["default/b/west"],
        "earliestStart": "2026-01-05T00:00:00Z",
    },
    "ResolverOutcome": {
        "claim": {"namespace": "default", "name": "me"},
        "at": "2026-01-05T00:00:00Z",
        "scope": {"flavor": "H100"},
        "deficitGPUs": 8,
        "conflictSet": [],
        "actions": [],
        "previous": HASH,
    },
    "LedgerEntry": {"seq": 1, "at": 0, "prev": HASH, "hash": HASH, "body": "[]"},
}


@pytest.mark.parametrize("who", ["mallory", "admin"])
@pytest.mark.parametrize("kind", list(MADE))
@pytest.mark.usefixtures("mallory")
def test_nobody_but_the_controller_makes_its_records(plane: Plane, home: str, kind: str, who: str) -> None:
    said = plane.api(who).post(path(kind, home), thing(kind, MADE[kind], name=f"forged-{who}"))
    assert said.status == 403, said
    if who == "admin" or kind in ("Lease", "Reservation"):
        denied(said, "written by the controller of Fairlease only")


@pytest.mark.parametrize("kind", ["Lease", "Reservation"])
def test_a_tenant_cannot_touch_the_controllers_records(plane: Plane, mallory: Api, home: str, kind: str) -> None:
    name = f"kept-{kind.lower()}"
    assert controller(plane).post(path(kind, home), thing(kind, MADE[kind], name=name)).ok
    words = "written by the controller of Fairlease only"
    denied(mallory.patch(path(kind, home, name), {"metadata": {"labels": {"a": "b"}}}), words)
    denied(mallory.delete(path(kind, home, name)), words)
    status = {"closed": False} if kind == "Lease" else {"state": "Released"}
    denied(mallory.patch(path(kind, home, name, "status"), {"status": status}), words)
    assert mallory.get(path(kind, home, name)).ok


@pytest.mark.parametrize("kind", ["Run", "Budget"])
def test_a_tenant_cannot_write_statuses_of_his_objects(mallory: Api, home: str, kind: str) -> None:
    spec = RUN if kind == "Run" else BUDGET
    assert mallory.post(path(kind, home), thing(kind, spec, name="honest")).ok
    said = mallory.patch(path(kind, home, "honest", "status"), {"status": {"observedGeneration": 7}})
    denied(said, "/status are written by the controller of Fairlease only")
    said = mallory.patch(path(kind, home, "honest"), {"status": {"observedGeneration": 7}})
    assert "status" not in said.body, "the main resource takes no status"


def test_an_administrator_deletes_leases_but_not_the_ledger(plane: Plane, home: str) -> None:
    grant(plane, "ada", "fairlease-administrator")
    writer = controller(plane)
    assert writer.post(path("Lease", home), thing("Lease", LEASE, name="stray")).ok
    assert writer.post(path("LedgerEntry"), thing("LedgerEntry", MADE["LedgerEntry"], name=f"entry-{home}")).ok
    assert plane.api("ada").delete(path("Lease", home, "stray")).ok
    denied(plane.api().delete(path("LedgerEntry", name=f"entry-{home}")), "written by the controller of Fairlease only")
    assert writer.delete(path("LedgerEntry", name=f"entry-{home}")).ok


def test_a_namespace_that_goes_takes_its_leases_with_it(plane: Plane) -> None:
    place = bound_namespace(plane, "org:gone")
    assert controller(plane).post(path("Lease", place), thing("Lease", LEASE)).ok
    cleaner = plane.api("system:serviceaccount:kube-system:namespace-controller")
    grant(plane, "system:serviceaccount:kube-system:namespace-controller", "cluster-admin", place)
    said = cleaner.delete(path("Lease", place))
    assert said.ok, said.message
    assert plane.api().get(path("Lease", place)).body["items"] == []


def test_a_controller_outside_of_the_cluster_is_known_by_its_group(plane: Plane, home: str) -> None:
    grant(plane, "outside", "fairlease-controller")
    denied(plane.api("outside").post(path("Lease", home), thing("Lease", LEASE, name="out")), "only")
    said = plane.api("outside", (CONTROLLERS,)).post(path("Lease", home), thing("Lease", LEASE, name="out"))
    assert said.ok, said.message


# ------------------------------------------------------------------------------- labels and annotations that are read


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_a_tenant_cannot_make_pods_with_our_marks(mallory: Api, home: str, elsewhere: str, kind: str) -> None:
    for place in (home, elsewhere):
        forged = {**pod(), "metadata": {"name": "p", kind: {LABEL: "x"}}}
        denied(mallory.post(pods(place), forged), "set by the controller of Fairlease only")


@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize("door", ["", "status"])
def test_a_tenant_cannot_change_our_marks_on_pods(plane: Plane, mallory: Api, home: str, kind: str, door: str) -> None:
    name = f"marked-{kind}-{door or 'main'}"
    made = {**pod(), "metadata": {"name": name, kind: {LABEL: "x"}}}
    assert controller(plane).post(pods(home), made).ok
    for value in ("y", None):
        said = mallory.patch(pods(home, name, door), {"metadata": {kind: {LABEL: value}}})
        denied(said, "set by the controller of Fairlease only")
    assert mallory.patch(pods(home, name), {"metadata": {kind: {"example.com/own": "fine"}}}).ok


@pytest.mark.parametrize("kind", ["Run", "Budget"])
def test_a_tenant_cannot_set_our_marks_on_his_objects(mallory: Api, home: str, kind: str) -> None:
    spec = RUN if kind == "Run" else BUDGET
    said = mallory.post(path(kind, home), thing(kind, spec, name="marked", annotations={LABEL: "x"}))
    denied(said, "set by the controller of Fairlease only")
    said = mallory.post(path(kind, home), thing(kind, spec, name="marked", labels={"example.com/own": "x"}))
    assert said.ok, said.message
    said = mallory.patch(path(kind, home, "marked"), {"metadata": {"labels": {LABEL: "x"}}})
    denied(said, "set by the controller of Fairlease only")


def test_a_tenant_cannot_name_a_service_as_ours(mallory: Api, home: str) -> None:
    service = {"metadata": {"name": "s", "labels": {LABEL: "x"}}, "spec": {"ports": [{"port": 80}]}}
    said = mallory.post(f"/api/v1/namespaces/{home}/services", service)
    denied(said, "set by the controller of Fairlease only")


# ------------------------------------------------------------------------------------------------------- templates


GPU = {"limits": {"nvidia.com/gpu": 1}}
CLASS = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"


@table(
    "template words",
    {
        "a label of ours": ({"metadata": {"labels": {LABEL: "x"}}}, "spec.template.metadata"),
        "an annotation of ours": ({"metadata": {"annotations": {LABEL: "x"}}}, "spec.template.metadata"),
        "a node": ({"spec": {"nodeName": "n-1"}}, "spec.template.spec.nodeName"),
        "another scheduler": ({"spec": {"schedulerName": "default-scheduler"}}, "spec.template.spec.schedulerName"),
        "GPUs before the work": (
            {"spec": {"initContainers": [{"name": "i", "resources": GPU}]}},
            "spec.template.spec.initContainers",
        ),
        "a part of a GPU": (
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}]}},
            "spec.template.spec.containers",
        ),
        "devices of a class": (
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {CLASS: 1}}}]}},
            "spec.template.spec.containers",
        ),
        "devices of a class before the work": (
            {"spec": {"initContainers": [{"name": "i", "resources": {"requests": {CLASS: 1}}}]}},
            "spec.template.spec.initContainers",
        ),
        "a gate of its own": (
            {"spec": {"schedulingGates": [{"name": "example.com/later"}]}},
            "spec.template.spec.schedulingGates",
        ),
        "GPUs by a claim": ({"spec": {"resourceClaims": [{"name": "g"}]}}, "spec.template.spec.resourceClaims"),
    },
)
def test_a_template_cannot_take_what_is_ours(mallory: Api, home: str, template: dict[str, Any], words: str) -> None:
    said = mallory.post(path("Run", home), thing("Run", changed(RUN, {"template": template}), name="crafty"))
    denied(said, words)


def test_an_honest_template_is_let_through(mallory: Api, home: str) -> None:
    template = {
        "metadata": {"labels": {"example.com/team": "a"}},
        "spec": {"schedulerName": "fairlease", "initContainers": [SOMEONE], "containers": [SOMEONE]},
    }
    said = mallory.post(path("Run", home) + "?dryRun=All", thing("Run", changed(RUN, {"template": template})))
    assert said.ok, said.message


# -------------------------------------------------------------------------------------------------------- GPU pods


ASKING = {
    "a limit": pod(containers=[{**SOMEONE, "resources": GPU}]),
    "a second container": pod(containers=[SOMEONE, {**SOMEONE, "name": "d", "resources": GPU}]),
    "a part of a GPU": pod(containers=[{**SOMEONE, "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}]),
    "a device of a class": pod(containers=[{**SOMEONE, "resources": {"limits": {CLASS: 1}}}]),
    "an init container": pod(initContainers=[{**SOMEONE, "name": "i", "resources": GPU}]),
    "a sidecar": pod(initContainers=[{**SOMEONE, "name": "i", "resources": GPU, "restartPolicy": "Always"}]),
}


@table("wanted", ASKING)
def test_a_pod_gets_gpus_only_through_fairlease(
    plane: Plane, mallory: Api, home: str, elsewhere: str, wanted: dict[str, Any]
) -> None:
    denied(mallory.post(pods(home), wanted), "gets GPUs through Fairlease only")
    denied(plane.api().post(pods(home), wanted), "gets GPUs through Fairlease only")
    assert mallory.post(pods(elsewhere) + "?dryRun=All", wanted).ok, (
        "a namespace that is bound to nobody is not our concern"
    )
    assert controller(plane).post(pods(home) + "?dryRun=All", wanted).ok


@table(
    "wanted words",
    {
        "as a pod of ours": (pod(schedulerName="fairlease"), "spec.schedulerName"),
        "straight to a node": (pod(nodeName="n-1"), "spec.nodeName"),
        "with a claim for devices": (
            pod(resourceClaims=[{"name": "g", "resourceClaimName": "gpu"}]),
            "spec.resourceClaims",
        ),
    },
)
def test_a_pod_does_not_pass_by_the_ledger(mallory: Api, home: str, wanted: dict[str, Any], words: str) -> None:
    denied(mallory.post(pods(home), wanted), words)


def test_a_pod_without_gpus_is_nobodys_concern(mallory: Api, home: str) -> None:
    none = {"limits": {"cpu": "1", "nvidia.com/gpu": 0}}
    said = mallory.post(pods(home) + "?dryRun=All", pod(containers=[{**SOMEONE, "resources": none}]))
    assert said.ok, said.message


def test_a_running_pod_cannot_be_given_gpus(mallory: Api, home: str) -> None:
    assert mallory.post(pods(home), pod("plain")).ok
    now = mallory.get(pods(home, "plain")).body
    debug = {"name": "d", "image": "example.invalid/x:1", "resources": GPU}
    patch = {"spec": {"ephemeralContainers": [debug]}}
    said = mallory.ask(
        "PATCH", pods(home, "plain", "ephemeralcontainers"), patch, "application/strategic-merge-patch+json"
    )
    assert said.status in (403, 422), said
    grown = {"spec": {"containers": [{"name": "c", "resources": GPU}]}}
    said = mallory.ask("PATCH", pods(home, "plain", "resize"), grown, "application/strategic-merge-patch+json")
    assert said.status in (403, 422), said
    assert mallory.get(pods(home, "plain")).body["spec"] == now["spec"]


def test_a_tenant_may_still_debug_his_own_pod(mallory: Api, home: str) -> None:
    assert mallory.post(pods(home), pod("debugged")).ok
    patch = {"spec": {"ephemeralContainers": [{"name": "d", "image": "example.invalid/x:1"}]}}
    said = mallory.ask(
        "PATCH", pods(home, "debugged", "ephemeralcontainers"), patch, "application/strategic-merge-patch+json"
    )
    assert said.ok, said.message


def bound(name: str, **metadata: Any) -> dict[str, Any]:  # noqa: ANN401 - metadata is of any shape
    return {"metadata": {"name": name, **metadata}, "target": {"apiVersion": "v1", "kind": "Node", "name": "n-1"}}


def test_only_schedulers_bind_pods_to_nodes(plane: Plane, mallory: Api, home: str, elsewhere: str) -> None:
    for place in (home, elsewhere):
        for name in ("x", "y"):
            assert mallory.post(pods(place), pod(name)).ok
    denied(mallory.post(pods(home, "x", "binding"), bound("x")), "only schedulers bind pods")
    denied(mallory.post(f"/api/v1/namespaces/{home}/bindings", bound("x")), "only schedulers bind pods")
    assert plane.api("system:kube-scheduler").post(pods(home, "x", "binding"), bound("x")).ok
    said = controller(plane).post(pods(home, "y", "binding"), bound("y"))
    assert said.ok, said.message
    assert mallory.post(pods(elsewhere, "x", "binding"), bound("x")).ok


def test_a_binding_cannot_smuggle_our_marks_into_a_pod(mallory: Api, elsewhere: str) -> None:
    assert mallory.post(pods(elsewhere), pod("carrier")).ok
    said = mallory.post(pods(elsewhere, "carrier", "binding"), bound("carrier", annotations={LABEL: "x"}))
    denied(said, "set by the controller of Fairlease only")


def test_the_server_finds_no_fault_with_the_types_in_any_policy(plane: Plane) -> None:
    def checked() -> dict[str, dict[str, Any]]:
        listed = plane.api().get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies").body["items"]
        return {
            each["metadata"]["name"]: each["status"]
            for each in listed
            if "observedGeneration" in each.get("status", {})
        }

    deadline = time.monotonic() + 30
    while not {each.name for each in POLICIES} <= checked().keys():
        assert time.monotonic() < deadline, "the controller that checks types did not come round"
        time.sleep(0.1)
    for name, status in checked().items():
        assert status.get("typeChecking", {}).get("expressionWarnings", []) == [], name
