"""Who may do what, told to the API server itself (SEMANTICS §9): ValidatingAdmissionPolicies and bindings, `config/policy/`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import fields

from fairlease.kube.api.annotation_commands import DRILL, RESOLVE, RESOLVE_BY
from fairlease.kube.api.names import NAMESPACE, OWNER, RUN, SCHEDULER
from fairlease.kube.api.resource import PREFIX
from fairlease.kube.manifests.crd import GROUP, VERSION
from fairlease.model import rules
from fairlease.model.node import GPU_RESOURCE
from fairlease.model.run import Malleable, RunSpec

ACCOUNT = "fairlease-controller"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
CONTROLLERS = "fairlease:controllers"


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


def _asks(containers: str, key: str) -> str:
    """Whether a container of a template asks for a resource of which something holds."""
    found = " || ".join(
        f"(has(c.resources.{part}) && c.resources.{part}.exists(key, {key}))" for part in ("limits", "requests")
    )
    there = f"has(variables.pod.{containers})"
    return f"{there} ? variables.pod.{containers}.exists(c, has(c.resources) && ({found})) : false"


_SPENDING = Policy(
    name="fairlease-spending",
    on=(ours(WRITES, "runs", "budgets"),),
    variables={
        "owner": BOUND,
        "same": "request.operation == 'UPDATE' && object.spec == oldObject.spec",
        "after": "has(object.spec.follow) && has(object.spec.follow.after) ? object.spec.follow.after : []",
        "keys": "variables.after.map(each, each.contains('/') ? each : object.metadata.namespace + '/' + each)",
    },
    rules=(
        Rule(
            "variables.same || variables.owner != ''",
            "the namespace is bound to no owner",
            f"'the namespace ' + request.namespace + ' is bound to no owner: an administrator sets its annotation {OWNER}'",
        ),
        Rule(
            """variables.same || variables.owner == '' || object.spec.owner == variables.owner
            || object.spec.owner.startsWith(variables.owner + ':')""",
            "spec.owner: expected the owner of the namespace, or one below it",
            """'spec.owner: expected ' + variables.owner + ', to which the namespace is bound, or an owner below it; found '
            + object.spec.owner""",
        ),
        Rule(
            """variables.same || object.metadata.name == ''
            || !(object.metadata.namespace + '/' + object.metadata.name in variables.keys)""",
            "spec.follow.after: expected runs other than itself",
            reason="Invalid",
        ),
        Rule(
            "variables.same || variables.keys.all(each, variables.keys.exists_one(other, other == each))",
            "spec.follow.after: expected each run once, with or without its namespace",
            reason="Invalid",
        ),
    ),
)

_FAMILIES = Policy(
    name="fairlease-families",
    on=(ours(WRITES, "budgets"),),
    variables={
        "owner": BOUND,
        "above": "object.spec.owner.substring(0, object.spec.owner.contains(':') ? object.spec.owner.lastIndexOf(':') : 0)",
        "parents": "has(object.spec.parents) ? object.spec.parents : []",
        "old": "oldObject != null && has(oldObject.spec.parents) ? oldObject.spec.parents : []",
    },
    rules=(
        Rule(
            f"""variables.parents.all(each, each == variables.above || each == variables.owner || each in variables.old
                || each.startsWith(variables.owner + ':')) || {IS_ADMINISTRATOR}""",
            "spec.parents: parents pay for their children, so only administrators of Fairlease name those of other families",
        ),
    ),
)

_TEMPLATES = Policy(
    name="fairlease-templates",
    on=(ours(WRITES, "runs"),),
    variables={
        "template": "has(object.spec.template) ? object.spec.template : {}",
        "metadata": "has(variables.template.metadata) ? variables.template.metadata : {}",
        "pod": "has(variables.template.spec) ? variables.template.spec : {}",
        "init": _asks("initContainers", devices("key")),
        "parts": _asks("containers", f"{devices('key')} && key != '{GPU_RESOURCE}'"),
    },
    rules=(
        Rule(
            f"""(!has(variables.metadata.labels) || !variables.metadata.labels.exists(key, key.startsWith('{PREFIX}')))
            && (!has(variables.metadata.annotations)
                || !variables.metadata.annotations.exists(key, key.startsWith('{PREFIX}')))""",
            f"spec.template.metadata: labels and annotations that begin with {PREFIX} are set by the controller only",
        ),
        Rule(
            "!has(variables.pod.nodeName)",
            "spec.template.spec.nodeName: where a pod runs is for Fairlease to decide; say spec.locality.location",
        ),
        Rule(
            f"!has(variables.pod.schedulerName) || variables.pod.schedulerName == '{SCHEDULER}'",
            f"spec.template.spec.schedulerName: expected {SCHEDULER}, or nothing",
        ),
        Rule(
            "!variables.init",
            "spec.template.spec.initContainers: expected no GPUs there; containers share those of the pod",
        ),
        Rule(
            "!variables.parts",
            f"spec.template.spec.containers: expected no devices but {GPU_RESOURCE}; no other stands in the ledger",
        ),
        Rule(
            "!has(variables.pod.schedulingGates)",
            "spec.template.spec.schedulingGates: a run waits before it is paid for, not after; say spec.follow",
        ),
        Rule(
            "!has(variables.pod.resourceClaims)",
            "spec.template.spec.resourceClaims: devices of claims stand in no ledger; ask for GPUs by spec.gpusPerPod",
        ),
    ),
)

_MAY_CHANGE = ("funding", "malleable")
_WIDTHS = tuple(f"malleable.{field.encode_name}" for field in fields(Malleable) if field.name != "desired_total_gpus")


def _differs(path: str) -> str:
    """A list with the path of a field of a spec, where it is not as it was; else an empty one."""
    there = {
        whose: " && ".join(
            f"has({whose}.spec.{'.'.join(path.split('.')[: end + 1])})" for end in range(path.count(".") + 1)
        )
        for whose in ("object", "oldObject")
    }
    now, before = there["object"], there["oldObject"]
    same = f"(({now}) == ({before}) && (!({now}) || object.spec.{path} == oldObject.spec.{path}))"
    return f"({same} ? [] : ['spec.{path}'])"


_HAS_WANTED = "has({0}.spec.malleable) && has({0}.spec.malleable.desiredTotalGPUs)"
_ELASTIC = "object.spec.malleable"

_EDITS = Policy(
    name="fairlease-edits",
    on=(ours(("UPDATE",), "runs"),),
    variables={
        "resized": f"""({_HAS_WANTED.format("object")}) && !(({_HAS_WANTED.format("oldObject")})
            && oldObject.spec.malleable.desiredTotalGPUs == {_ELASTIC}.desiredTotalGPUs)""",
        "least": f"variables.resized ? {_ELASTIC}.minTotalGPUs : 1",
        "step": f"variables.resized ? {_ELASTIC}.stepGPUs : 1",
        "wanted": f"variables.resized ? {_ELASTIC}.desiredTotalGPUs : 1",
        "top": f"""variables.resized
            ? variables.least + ({_ELASTIC}.maxTotalGPUs - variables.least) / variables.step * variables.step : 1""",
        "below": """variables.wanted <= variables.least ? variables.least : variables.wanted >= variables.top ? variables.top
            : variables.least + (variables.wanted - variables.least) / variables.step * variables.step""",
        "changed": " + ".join(
            map(
                _differs,
                (*(field.encode_name for field in fields(RunSpec) if field.encode_name not in _MAY_CHANGE), *_WIDTHS),
            )
        ),
    },
    rules=(
        Rule(
            "variables.changed.size() == 0",
            "of a Run only spec.funding and spec.malleable.desiredTotalGPUs may change",
            """variables.changed.join(', ') + ': of a Run only spec.funding and spec.malleable.desiredTotalGPUs may change;'
            + ' for anything else submit another Run'""",
            reason="Invalid",
        ),
        Rule(
            "variables.wanted == variables.below",
            "spec.malleable.desiredTotalGPUs: expected a width on the step grid",
            """'spec.malleable.desiredTotalGPUs: ' + string(variables.wanted) + ' GPUs are not on the step grid; nearest: '
            + string(variables.below) + (variables.below < variables.wanted && variables.below < variables.top
            ? ' and ' + string(variables.below + variables.step) : '')""",
            reason="Invalid",
        ),
    ),
)

_OWN = Policy(
    name="fairlease-written-by-controller",
    on=(
        ours(WRITES, *OWN_KINDS, *(f"{each}/status" for each in OWN_KINDS), "runs/status", "budgets/status"),
        ours(("DELETE",), *OWN_KINDS),
    ),
    variables={
        "controller": IS_CONTROLLER,
        "cleans": f"request.operation == 'DELETE' && request.resource.resource != 'ledgerentries' && ({IS_CLEANER})",
        "repairs": f"request.operation == 'DELETE' && request.resource.resource != 'ledgerentries' && {IS_ADMINISTRATOR}",
    },
    rules=(
        Rule(
            "variables.controller || variables.cleans || variables.repairs",
            "written by the controller only",
            """request.resource.resource + (has(request.subResource) && request.subResource != '' ? '/' + request.subResource : '')
            + ' are written by the controller of Fairlease only'""",
        ),
    ),
)

_MARKED = Policy(
    name="fairlease-marks",
    on=(
        core(WRITES, "pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding", "bindings"),
        core(WRITES, "services", "services/status", "configmaps"),
        ours(WRITES, "runs", "budgets"),
    ),
    variables={"controller": IS_CONTROLLER, **MARKS},
    rules=(
        Rule(
            f"variables.controller || ({MARKS_ARE_KEPT})",
            f"metadata: labels and annotations that begin with {PREFIX} are set by the controller of Fairlease only",
        ),
    ),
)

_CONFIG_MAPS = Policy(
    name="fairlease-config-maps",
    on=(core(WRITES, "configmaps"),),
    variables={"controller": IS_CONTROLLER, **MARKS},
    rules=(
        Rule(
            f"""!variables.controller || request.namespace == '{NAMESPACE}'
            || (size(variables.labels) > 0 && (request.operation == 'CREATE' || size(variables.oldLabels) > 0))""",
            "the controller of Fairlease writes no ConfigMaps but those of runs",
        ),
    ),
)

_OWNERS = Policy(
    name="fairlease-owners",
    on=(core(WRITES, "namespaces", "namespaces/status", "namespaces/finalize"),),
    variables={
        **MARKS,
        "owner": f"""has(object.metadata.annotations) && '{OWNER}' in object.metadata.annotations
            ? object.metadata.annotations['{OWNER}'] : ''""",
        "asks": f"variables.annotations.exists(each, each.startsWith('{RESOLVE}=') && !(each in variables.oldAnnotations))",
    },
    rules=(
        Rule(
            f"!variables.asks || '{RESOLVE_BY}=' + request.userInfo.username in variables.annotations",
            f"metadata.annotations[{RESOLVE_BY}]: expected the name of who asks",
        ),
        Rule(
            f"({MARKS_ARE_KEPT}) || {IS_ADMINISTRATOR}",
            f"metadata: labels and annotations that begin with {PREFIX} are set by administrators of Fairlease only",
        ),
        Rule(
            f"variables.owner == '' || variables.owner.matches('^({rules.OWNER.pattern})$')",
            f"metadata.annotations[{OWNER}]: expected an owner: names joined by ':', such as org:ai:rai",
        ),
    ),
)

_GPU_PODS = Policy(
    name="fairlease-gpu-pods",
    on=(core(WRITES, "pods", "pods/ephemeralcontainers", "pods/resize"),),
    variables={
        "free": f"({BOUND}) == '' || ({IS_CONTROLLER})",
        "gpus": all_gpus("object"),
        "oldGPUs": all_gpus("oldObject"),
        "create": "request.operation == 'CREATE'",
    },
    rules=(
        Rule(
            "variables.free || variables.gpus == variables.oldGPUs",
            "this namespace gets GPUs through Fairlease only: submit a Run instead of a pod with GPUs",
        ),
        Rule(
            "variables.free || !variables.create || !has(object.spec.resourceClaims)",
            "spec.resourceClaims: this namespace gets devices through Fairlease only: submit a Run",
        ),
        Rule(
            f"""variables.free || !variables.create || !has(object.spec.schedulerName)
            || object.spec.schedulerName != '{SCHEDULER}'""",
            f"spec.schedulerName: pods for {SCHEDULER} are made by its controller only: submit a Run",
        ),
        Rule(
            f"""variables.free || !variables.create || !has(object.spec.nodeName) || object.spec.nodeName == ''
            || {PLACES_ANYWHERE}""",
            "spec.nodeName: in this namespace only schedulers choose nodes",
        ),
    ),
)


def _told(whose: str, field: str) -> str:
    there = f"has({whose}.status) && has({whose}.status.{field})"
    return f"({there} ? {whose}.status.{field} : [])"


def _phase(whose: str) -> str:
    return f"(has({whose}.status) && has({whose}.status.phase) ? {whose}.status.phase : '')"


_ENDS = ("containerStatuses", "initContainerStatuses")

_POD_REPORTS = Policy(
    name="fairlease-pod-reports",
    on=(core(("UPDATE",), "pods/status"),),
    variables={
        "ours": f"has(oldObject.metadata.annotations) && '{RUN}' in oldObject.metadata.annotations",
        "same": " && ".join(
            [f"{_phase('object')} == {_phase('oldObject')}"]
            + [f"{_told('object', each)} == {_told('oldObject', each)}" for each in _ENDS]
        ),
    },
    rules=(
        Rule(
            f"""!variables.ours || variables.same || 'system:nodes' in request.userInfo.groups || ({IS_CONTROLLER})
            || {REPORTS_ANYWHERE}""",
            "status: how the pods of a run fare is told by their nodes, and decides who pays",
        ),
    ),
)

_BINDINGS = Policy(
    name="fairlease-bindings",
    on=(core(("CREATE",), "pods/binding", "bindings"),),
    variables={"owner": BOUND, "controller": IS_CONTROLLER},
    rules=(
        Rule(
            f"variables.owner == '' || variables.controller || {PLACES_ANYWHERE}",
            "in this namespace only schedulers bind pods to nodes",
        ),
    ),
)

POLICIES = (
    _SPENDING, _FAMILIES, _TEMPLATES, _EDITS, _OWN, _MARKED, _CONFIG_MAPS, _OWNERS, _GPU_PODS, _POD_REPORTS, _BINDINGS,
)  # fmt: skip


def _plain(expression: str) -> str:
    return " ".join(expression.split())


def policy(policy: Policy) -> dict[str, Any]:
    """The ValidatingAdmissionPolicy."""
    watched = [
        {
            "apiGroups": [each.group],
            "apiVersions": [each.version],
            "operations": list(each.operations),
            "resources": list(each.resources),
        }
        for each in policy.on
    ]
    validations = []
    for rule in policy.rules:
        made = {"expression": _plain(rule.expression), "message": rule.message, "reason": rule.reason}
        validations.append({**made, "messageExpression": _plain(rule.made)} if rule.made else made)
    variables = [{"name": name, "expression": _plain(each)} for name, each in policy.variables.items()]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy.name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": watched},
            "variables": variables,
            "validations": validations,
        },
    }


def binding(policy: Policy) -> dict[str, Any]:
    """Its binding: everywhere, and with force."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": policy.name},
        "spec": {"policyName": policy.name, "validationActions": ["Deny"]},
    }


def policies() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each policy with its binding, and the name of their file."""
    for each in POLICIES:
        yield f"{each.name.removeprefix('fairlease-')}.yaml", [policy(each), binding(each)]
