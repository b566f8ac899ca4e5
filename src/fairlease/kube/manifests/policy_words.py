"""The words in which policies are said: who asks, which namespace is bound to whom, which marks and which GPUs an object bears."""

from __future__ import annotations

from typing import NamedTuple

from fairlease.kube.api.annotation_commands import DRILL
from fairlease.kube.api.resource import PREFIX
from fairlease.kube.manifests.crd import GROUP, VERSION
from fairlease.model.node import GPU_RESOURCE

NAMESPACE = "fairlease-system"
ACCOUNT = "fairlease-controller"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
CONTROLLERS = "fairlease:controllers"
SCHEDULER = "fairlease"
OWNER = f"{PREFIX}owner"


VENDOR = GPU_RESOURCE.partition("/")[0] + "/"
BY_CLASS = "deviceclass.resource.kubernetes.io/"
"""Kubernetes makes a claim of its own for who asks for a class of devices as if it were a resource."""
OWN_KINDS = ("leases", "reservations", "resolveroutcomes", "ledgerentries")
CLEANERS = ("namespace-controller", "generic-garbage-collector")
"""Controllers of Kubernetes that take away what lies in a namespace that goes."""


class Rule(NamedTuple):
    """What must hold, and what to say where it does not: a sentence, or an expression that makes one."""

    expression: str
    message: str
    made: str = ""
    reason: str = "Forbidden"


class On(NamedTuple):
    """On what a policy looks."""

    group: str
    version: str
    operations: tuple[str, ...]
    resources: tuple[str, ...]


class Policy(NamedTuple):
    """One policy, and its binding to the whole cluster."""

    name: str
    on: tuple[On, ...]
    variables: dict[str, str]
    rules: tuple[Rule, ...]


def ours(operations: tuple[str, ...], *resources: str) -> On:
    """Kinds of ours."""
    return On(GROUP, VERSION, operations, resources)


def core(operations: tuple[str, ...], *resources: str) -> On:
    """Kinds of Kubernetes itself."""
    return On("", "v1", operations, resources)


WRITES = ("CREATE", "UPDATE")
IS_CONTROLLER = f"request.userInfo.username == '{CONTROLLER}' || '{CONTROLLERS}' in request.userInfo.groups"
IS_ADMINISTRATOR = f"authorizer.group('{GROUP}').resource('owners').check('administer').allowed()"
IS_CLEANER = " || ".join(
    f"request.userInfo.username == 'system:serviceaccount:kube-system:{each}'" for each in CLEANERS
)
PLACES_ANYWHERE = "authorizer.group('').resource('pods').subresource('binding').check('create').allowed()"
"""Schedulers may bind in every namespace; what a tenant was given holds in his own."""

REPORTS_ANYWHERE = "authorizer.group('').resource('pods').subresource('status').check('update').allowed()"
"""So may the controllers of Kubernetes that write the statuses of pods whose nodes cannot."""

BOUND = f"""
    namespaceObject != null && has(namespaceObject.metadata.annotations)
    && '{OWNER}' in namespaceObject.metadata.annotations ? namespaceObject.metadata.annotations['{OWNER}'] : ''
"""


def marks(whose: str, kind: str) -> str:
    """The labels or annotations of an object that the system reads, as a list of texts that can be compared.

    One of them is for everybody who may edit the object: it asks for a drill.
    """
    there = f"{whose} != null && has({whose}.metadata.{kind})"
    of_ours = f"key.startsWith('{PREFIX}') && key != '{DRILL}'"
    found = f"{whose}.metadata.{kind}.map(key, {of_ours}, key + '=' + {whose}.metadata.{kind}[key])"
    return f"{there} ? {found} : []"


MARKS = {
    "labels": marks("object", "labels"),
    "oldLabels": marks("oldObject", "labels"),
    "annotations": marks("object", "annotations"),
    "oldAnnotations": marks("oldObject", "annotations"),
}
MARKS_ARE_KEPT = """
    variables.labels.all(each, each in variables.oldLabels) && variables.oldLabels.all(each, each in variables.labels)
    && variables.annotations.all(each, each in variables.oldAnnotations)
    && variables.oldAnnotations.all(each, each in variables.annotations)
"""


def devices(key: str) -> str:
    """Whether a resource is a GPU, a part of one, or a device that a claim would bring."""
    return f"({key}.startsWith('{VENDOR}') || {key}.startsWith('{BY_CLASS}'))"


def gpus(whose: str, containers: str) -> str:
    """What containers ask for of devices: a list of texts, empty where they ask for none."""
    path = f"{whose}.spec.{containers}"
    there = f"{whose} != null && has({whose}.spec) && has({path})"
    parts = []
    for part in ("limits", "requests"):
        asks = f"has(c.resources) && has(c.resources.{part})"
        wanted = f"c.resources.{part}.map(key, {devices('key')} && string(c.resources.{part}[key]) != '0', "
        parts.append(f"({asks} ? {wanted} c.name + ' ' + key + '=' + string(c.resources.{part}[key])) : [])")
    return f"({there} ? {path}.map(c, {' + '.join(parts)}).filter(each, size(each) > 0) : [])"


def all_gpus(whose: str) -> str:
    """The same of all containers of a pod."""
    return " + ".join(gpus(whose, each) for each in ("containers", "initContainers", "ephemeralContainers"))
