"""Who is who in the tests on Kubernetes, and namespaces bound to owners."""

from __future__ import annotations

import uuid
from typing import Any

from tools.controlplane import Api, Plane

from fairlease.kube.crd import GROUP, KINDS, VERSION
from fairlease.kube.policy import CONTROLLER, OWNER

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
