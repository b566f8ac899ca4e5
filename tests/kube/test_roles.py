"""What the roles give: readers read, researchers submit, leaders write Budgets, and the controller does its work and no more."""

from __future__ import annotations

import time
import uuid

import pytest
from tests.kube.tenancy import bound_namespace, path, thing
from tests.model.rows import BUDGET, RUN
from tests.model.tables import table
from tools.controlplane import Api, Plane

from fairlease.kube.api.names import NAMESPACE
from fairlease.kube.manifests.policy import CONTROLLER

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def home(plane: Plane) -> str:
    """A namespace in which three people have the roles that Kubernetes itself gives."""
    name = bound_namespace(plane, "org:ai")
    for user, role in (("vera", "view"), ("rita", "edit"), ("lea", "admin")):
        said = plane.api().post(
            f"{RBAC}/namespaces/{name}/rolebindings",
            {
                "metadata": {"name": user},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
            },
        )
        assert said.ok, said.message
    deadline = time.monotonic() + 30
    while plane.api("lea").get(path("Run", name)).status != 200:  # roles are aggregated by a controller, soon
        assert time.monotonic() < deadline, "our roles never reached view, edit and admin"
        time.sleep(0.1)
    return name


def submits(api: Api, namespace: str) -> int:
    return api.post(path("Run", namespace), thing("Run", RUN, name=f"run-{uuid.uuid4().hex[:6]}")).status


def writes_budget(api: Api, namespace: str) -> int:
    return api.post(path("Budget", namespace), thing("Budget", BUDGET, name=f"b-{uuid.uuid4().hex[:6]}")).status


@table(
    "user reads runs budgets",
    {
        "a stranger does nothing": ("eve", 403, 403, 403),
        "a reader reads": ("vera", 200, 403, 403),
        "a researcher submits runs and writes no Budgets": ("rita", 200, 201, 403),
        "a leader of a team writes Budgets too": ("lea", 200, 201, 201),
    },
)
def test_roles_of_kubernetes_are_enough(
    plane: Plane, home: str, user: str, reads: int, runs: int, budgets: int
) -> None:
    api = plane.api(user)
    for kind in ("Run", "Budget", "Lease", "Reservation"):
        assert api.get(path(kind, home)).status == reads
    assert submits(api, home) == runs
    assert writes_budget(api, home) == budgets


def test_a_researcher_scales_and_cancels_his_runs(plane: Plane, home: str) -> None:
    rita = plane.api("rita")
    assert rita.post(path("Run", home), thing("Run", RUN, name="wide")).ok
    said = rita.patch(path("Run", home, "wide", "scale"), {"spec": {"replicas": 32}})
    assert said.ok, said.message
    assert rita.get(path("Run", home, "wide")).body["spec"]["malleable"]["desiredTotalGPUs"] == 32
    assert rita.delete(path("Run", home, "wide")).ok


@pytest.mark.parametrize("user", ["vera", "rita", "lea"])
def test_nobody_in_a_namespace_writes_what_is_the_controllers(plane: Plane, home: str, user: str) -> None:
    for kind in ("Lease", "Reservation"):
        assert plane.api(user).post(path(kind, home), thing(kind, {}, name="x")).status == 403
    for kind in ("ResolverOutcome", "LedgerEntry"):
        assert plane.api(user).get(path(kind)).status == 403, "what lies outside of namespaces needs a role out there"


def may(plane: Plane, verb: str, resource: str, *where: str) -> bool:
    """Whether the controller may, by its role."""
    asked = plane.kubectl("auth", "can-i", verb, resource, *where, "--as", CONTROLLER, check=False)
    return asked.stdout.strip() == "yes"


GROUP = "rq.davidlangworthy.io"


@table(
    "verb resource where",
    {
        "appends to the ledger": ("create", f"ledgerentries.{GROUP}", ()),
        "folds old entries away": ("delete", f"ledgerentries.{GROUP}", ()),
        "opens leases": ("create", f"leases.{GROUP}", ("-A",)),
        "closes leases": ("patch", f"leases.{GROUP}/status", ("-A",)),
        "tells how runs stand": ("patch", f"runs.{GROUP}/status", ("-A",)),
        "keeps its finalizer on runs": ("patch", f"runs.{GROUP}", ("-A",)),
        "makes pods": ("create", "pods", ("-A",)),
        "binds pods": ("create", "pods/binding", ("-A",)),
        "sees nodes": ("watch", "nodes", ()),
        "sees who owns namespaces": ("list", "namespaces", ()),
        "tells the pods of runs who is in": ("create", "configmaps", ("-A",)),
        "remembers what it told": ("get", "configmaps", ("-n", NAMESPACE)),
        "writes events": ("create", "events.events.k8s.io", ("-A",)),
        "is elected": ("update", "leases.coordination.k8s.io", ("-n", NAMESPACE)),
    },
)
def test_the_controller_may_do_its_work(plane: Plane, verb: str, resource: str, where: tuple[str, ...]) -> None:
    assert may(plane, verb, resource.partition("/")[0], *where, *_subresource(resource))


@table(
    "verb resource where",
    {
        "reads no secrets": ("get", "secrets", ("-A",)),
        "reads no settings of others": ("get", "configmaps", ("-A",)),
        "changes no nodes": ("patch", "nodes", ()),
        "binds no owners": ("patch", "namespaces", ()),
        "is no administrator": ("administer", f"owners.{GROUP}", ()),
        "submits no runs": ("create", f"runs.{GROUP}", ("-A",)),
        "writes no budgets": ("patch", f"budgets.{GROUP}", ("-A",)),
        "deletes no leases": ("delete", f"leases.{GROUP}", ("-A",)),
        "rewrites no ledger": ("patch", f"ledgerentries.{GROUP}", ()),
        "runs nothing in pods": ("create", "pods/exec", ("-A",)),
        "gives no rights": ("create", "clusterrolebindings", ()),
        "is not elected elsewhere": ("update", "leases.coordination.k8s.io", ("-n", "kube-system")),
    },
)
def test_the_controller_may_do_no_more(plane: Plane, verb: str, resource: str, where: tuple[str, ...]) -> None:
    assert not may(plane, verb, resource.partition("/")[0], *where, *_subresource(resource))


def _subresource(resource: str) -> tuple[str, ...]:
    _, slash, name = resource.partition("/")
    return ("--subresource", name) if slash else ()
