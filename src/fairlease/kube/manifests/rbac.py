"""Roles: what readers, researchers, leaders of teams, administrators and the controller may do at all, `config/rbac/`.

The first three aggregate into Kubernetes' own `view`, `edit` and `admin`: whoever has those in a namespace needs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlease.kube.api.names import NAMESPACE
from fairlease.kube.manifests.crd import GROUP, KINDS
from fairlease.kube.manifests.policy import ACCOUNT

_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch", "delete")
_PROJECT = ("create", "update", "patch")
_PLURALS = tuple(kind.plural for kind in KINDS)
_STATUSES = tuple(f"{kind.plural}/status" for kind in KINDS if kind.status)

Manifest = dict[str, Any]


def _may(group: str, resources: tuple[str, ...], verbs: tuple[str, ...]) -> Manifest:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


def _role(name: str, *granted: Manifest, aggregate: str = "") -> Manifest:
    metadata: Manifest = {"name": name}
    if aggregate:
        metadata["labels"] = {f"rbac.authorization.k8s.io/aggregate-to-{aggregate}": "true"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": list(granted),
    }


VIEWER = _role("fairlease-viewer", _may(GROUP, (*_PLURALS, "runs/scale"), _READ), aggregate="view")
EDITOR = _role(
    "fairlease-editor",
    _may(GROUP, ("runs",), _WRITE),
    _may(GROUP, ("runs/scale",), ("update", "patch")),
    aggregate="edit",
)
ADMIN = _role("fairlease-admin", _may(GROUP, ("budgets",), _WRITE), aggregate="admin")
ADMINISTRATOR = _role(
    "fairlease-administrator",
    _may(GROUP, _PLURALS, _READ),
    _may(GROUP, ("runs", "budgets"), _WRITE),
    _may(GROUP, ("leases", "reservations", "resolveroutcomes"), ("delete",)),
    _may(GROUP, ("owners",), ("administer",)),
    _may("", ("namespaces",), (*_READ, "update", "patch")),
    _may("", ("events",), _READ),  # the answers to what they ask
)
CONTROLLER = _role(
    ACCOUNT,
    _may(GROUP, _PLURALS, _READ),
    _may(GROUP, ("leases", "reservations", "resolveroutcomes"), _PROJECT),
    _may(GROUP, ("ledgerentries",), ("create", "delete")),
    _may(GROUP, _STATUSES, ("update", "patch")),
    _may(GROUP, ("runs",), ("update", "patch")),  # its finalizer
    _may(GROUP, ("runs/finalizers",), ("update",)),  # owner references that block deletion
    _may("", ("nodes", "namespaces"), _READ),
    _may("", ("pods", "services"), (*_READ, "create", "update", "patch", "delete")),
    _may(
        "", ("configmaps",), ("create", "patch")
    ),  # one for each run; the policy `fairlease-config-maps` lets it touch no other
    _may("", ("pods/binding",), ("create",)),
    _may("events.k8s.io", ("events",), ("create", "patch")),
    _may("", ("events",), ("create", "patch")),
)
ELECTION = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": ACCOUNT, "namespace": NAMESPACE},
    "rules": [
        _may("coordination.k8s.io", ("leases",), ("get", "create", "update", "patch")),
        _may("", ("configmaps",), ("get", "create", "patch")),  # what notices were told
    ],
}


def _bound(kind: str, of: str) -> Manifest:
    metadata = {"name": ACCOUNT} if kind == "ClusterRoleBinding" else {"name": ACCOUNT, "namespace": NAMESPACE}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": of, "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }


def roles() -> Iterator[tuple[str, list[Manifest]]]:
    """The manifests, with the names of their files."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}}
    yield "namespace.yaml", [namespace]
    yield "people.yaml", [VIEWER, EDITOR, ADMIN, ADMINISTRATOR]
    yield (
        "controller.yaml",
        [account, CONTROLLER, _bound("ClusterRoleBinding", "ClusterRole"), ELECTION, _bound("RoleBinding", "Role")],
    )
