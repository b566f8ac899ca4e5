"""Who is who in the tests on Kubernetes, and namespaces bound to owners."""

from __future__ import annotations

import uuid
from typing import Any

from tools.controlplane import Answer, Api, Plane

from fairlease.kube.api.names import OWNER
from fairlease.kube.manifests.crd import GROUP, KINDS, VERSION
from fairlease.kube.manifests.policy import CONTROLLER

SOMEONE = {"name": "c", "image": "example.invalid/x:1"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"

_PLURAL = {kind.name: kind for kind in KINDS}


def controller(plane: Plane) -> Api:
    """The controller's service account."""
    return plane.api(CONTROLLER, ("system:serviceaccounts", "system:authenticated"))


def bound_namespace(plane: Plane, owner: str | None) -> str:
    """A new namespace, bound to an owner by the administrator."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    annotations = {} if owner is None else {OWNER: owner}
    made = plane.api().post("/api/v1/namespaces", {"metadata": {"name": name, "annotations": annotations}})
    assert made.ok, made.message
    return name


def path(kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The address of our objects."""
    known = _PLURAL[kind]
    parts = ["apis", GROUP, VERSION, *(("namespaces", namespace) if known.namespaced else ()), known.plural]
    return "/" + "/".join([*parts, *filter(None, (name, subresource))])


def thing(kind: str, spec: dict[str, Any], name: str = "me", **metadata: Any) -> dict[str, Any]:  # noqa: ANN401 - metadata is of any shape
    """One of our objects."""
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def grant(plane: Plane, user: str, role: str, namespace: str = "", kind: str = "ClusterRole") -> None:
    """Bind a user to a role, in a namespace or everywhere."""
    where = f"{RBAC}/namespaces/{namespace}/rolebindings" if namespace else f"{RBAC}/clusterrolebindings"
    said = plane.api().post(
        where,
        {
            "metadata": {"name": f"{user}-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        },
    )
    assert said.ok or said.status == 409, said.message


def everything(plane: Plane, user: str, namespace: str) -> None:
    """All rights in one namespace."""
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    assert plane.api().post(f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": "all"}, "rules": rules}).ok
    grant(plane, user, "all", namespace, kind="Role")


def pod(name: str = "p", containers: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - a pod's spec is of any shape
    return {"metadata": {"name": name}, "spec": {"containers": containers or [SOMEONE], **spec}}


def pods(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(["/api/v1/namespaces", namespace, "pods", *filter(None, (name, subresource))])


def denied(said: Answer, words: str) -> None:
    assert said.status in (403, 422), said
    assert "ValidatingAdmissionPolicy" in said.message, said.message
    assert words in said.message, said.message
