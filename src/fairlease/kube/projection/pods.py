"""The pods of a lease: its work from the template, or what keeps a spare's GPUs; and the Service by which ranks find each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairlease.kube.api import names
from fairlease.kube.api.names import SCHEDULER
from fairlease.kube.api.resource import PODS, RUNS, SERVICES
from fairlease.model.amount import SECOND
from fairlease.model.lease import Role
from fairlease.model.node import GPU_RESOURCE
from fairlease.model.record import Key, split
from fairlease.model.run import template_gpus
from fairlease.runtime.processes.rendezvous import PREFIX, identity, places

if TYPE_CHECKING:
    from fairlease.kube.settings import ClusterSettings
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.lease import Lease
    from fairlease.model.run import RunSpec

GRACE_S = 30
"""What Kubernetes gives a pod to end, unless it asks for more."""

LOCALHOST = "127.0.0.1"
TOLD, TOLD_AT = "fairlease-run", "/etc/fairlease"
"""The volume with what the pods of a run are told while they live, and where it is mounted."""
MEMBERS, NOTICE = "members.json", "notice.json"
FILES = {"FAIRLEASE_MEMBERS": f"{TOLD_AT}/{MEMBERS}", "FAIRLEASE_NOTICE_FILE": f"{TOLD_AT}/{NOTICE}"}
_TOLERATIONS = [{"key": GPU_RESOURCE, "operator": "Exists"}]
"""Nodes are often kept free of other work by a taint of this name."""

Body = dict[str, Any]


def meets(spec: RunSpec) -> bool:
    """Whether a run can ever have more than one pod: only then do ranks look for each other."""
    most = spec.resources.total_gpus if spec.malleable is None else spec.malleable.max_total_gpus
    return most > spec.pod_gpus


def pods_of(run: RunState, wanted: Sequence[Lease], uid: str, settings: ClusterSettings) -> dict[str, Body]:
    """The pods of some of a run's leases, by name. Who a rank is among the others follows from all leases that are open."""
    place_of = places(run.held)
    base = _base(run.spec, settings)
    made = {}
    for lease in wanted:
        place = place_of.get(lease.name)
        spec = _placeholder(lease, settings) if place is None else _work(run, lease, base, place, settings)
        template = {} if place is None else run.spec.template or {}
        made[lease.name] = {
            "apiVersion": PODS.api_version,
            "kind": PODS.kind,
            "metadata": _metadata(lease, template.get("metadata") or {}, uid),
            "spec": spec,
        }
    return made


def owned_by(run: Key, uid: str) -> Body:
    """The reference that makes an object go when its Run goes."""
    return {
        "apiVersion": RUNS.api_version, "kind": RUNS.kind, "name": split(run)[1], "uid": uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def marks_of(run: Key) -> Body:
    """The label that finds all objects of a run, and the annotation that names it."""
    name = split(run)[1]
    return {"labels": {names.RUN: names.label_value(name)}, "annotations": {names.RUN: name}}


def _metadata(lease: Lease, template: Mapping[str, Any], uid: str) -> Body:
    namespace, _ = split(lease.run)
    marks = marks_of(lease.run)
    ours = {names.ATTEMPT: str(lease.attempt), names.ROLE: lease.role.value}
    if lease.rank >= 0:
        ours[names.RANK] = str(lease.rank)
    told = {names.SLOTS: names.slots_text(lease), names.NODE: lease.node, names.OWNER: lease.owner}
    return {
        "name": lease.name,
        "namespace": namespace,
        "labels": {**(template.get("labels") or {}), **marks["labels"], **ours},
        "annotations": {**(template.get("annotations") or {}), **marks["annotations"], **told},
        "ownerReferences": [owned_by(lease.run, uid)],
    }


def _base(spec: RunSpec, settings: ClusterSettings) -> Body:
    """The template's pod as all ranks have it."""
    given: Body = dict((spec.template or {}).get("spec") or {})
    given |= {"schedulerName": SCHEDULER, "restartPolicy": "Never"}
    given.pop("nodeName", None)
    given["terminationGracePeriodSeconds"] = _grace_s(spec, given.get("terminationGracePeriodSeconds"), settings)
    given["tolerations"] = [*(given.get("tolerations") or ()), *_TOLERATIONS]
    containers = [dict(each) for each in given.get("containers") or ()]
    if containers and template_gpus(spec.template) is None:
        resources = dict(containers[0].get("resources") or {})
        resources["limits"] = {**(resources.get("limits") or {}), GPU_RESOURCE: str(spec.pod_gpus)}
        containers[0]["resources"] = resources
    given["containers"] = containers
    return given


def _grace_s(spec: RunSpec, asked: object, settings: ClusterSettings) -> object:
    """How long a pod may take to end: what it asks for, but nobody's next one waits for ever."""
    limit = settings.policy.opportunistic_grace if spec.opportunistic else settings.policy.max_grace
    if asked is None:
        asked = max(GRACE_S, (spec.runtime.checkpoint or 0) // SECOND)
    return min(asked, limit // SECOND) if isinstance(asked, int) else asked


def _work(run: RunState, lease: Lease, base: Body, place: Mapping[str, str], settings: ClusterSettings) -> Body:
    _, name = split(run.key)
    spec = dict(base)
    if meets(run.spec):
        spec |= {"hostname": names.host_name(lease.attempt, lease.rank), "subdomain": names.service_name(name)}
    spec["volumes"] = [*(base.get("volumes") or ()), _told_volume(name)]
    meeting = {"MASTER_ADDR": master_of(run), "MASTER_PORT": str(settings.cluster.master_port)}
    host = {"FAIRLEASE_HOST": names.host_name(lease.attempt, lease.rank)}
    ours = {**meeting, **place, **identity(lease, lease.name), **host}
    spec["containers"] = [_with_env(*_with_files(each, ours)) for each in base["containers"]]
    return spec


def master_of(run: RunState) -> str:
    """Where the ranks of a run meet: the first of them, under a name that it keeps wherever it goes."""
    return address_of(run, 0) if meets(run.spec) else LOCALHOST


def address_of(run: RunState, rank: int) -> str:
    """The name of a rank, which a swap keeps."""
    namespace, name = split(run.key)
    return f"{names.host_name(run.attempt, rank)}.{names.service_name(name)}.{namespace}.svc"


def _told_volume(run: str) -> Body:
    """What the pods of a run are told while they live; a kubelet keeps the files as the ConfigMap is."""
    return {"name": TOLD, "configMap": {"name": names.config_name(run), "optional": True}}


def _with_files(container: Mapping[str, Any], ours: Mapping[str, str]) -> tuple[Body, Mapping[str, str]]:
    """The container with those files and the variables that name them, unless it has something else at that path."""
    mounts = list(container.get("volumeMounts") or ())
    if any(each.get("mountPath", "").rstrip("/") == TOLD_AT for each in mounts):
        return dict(container), ours
    mount = {"name": TOLD, "mountPath": TOLD_AT, "readOnly": True}
    return {**container, "volumeMounts": [*mounts, mount]}, {**ours, **FILES}


def _with_env(container: Mapping[str, Any], ours: Mapping[str, str]) -> Body:
    own = [each for each in container.get("env") or () if not _set_by_us(each.get("name", ""), ours)]
    return {**container, "env": [*own, *({"name": name, "value": value} for name, value in ours.items())]}


def _set_by_us(name: str, ours: Mapping[str, str]) -> bool:
    return name in ours or name.startswith(PREFIX)


def _placeholder(lease: Lease, settings: ClusterSettings) -> Body:
    """A pod that does nothing but hold a spare's GPUs, so that no other scheduler hands them out."""
    assert lease.role is Role.SPARE, "what has no place among the ranks stands ready"
    container = {
        "name": "spare",
        "image": settings.cluster.pause_image,
        "resources": {"limits": {GPU_RESOURCE: str(lease.gpus)}},
    }
    return {
        "schedulerName": SCHEDULER,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": list(_TOLERATIONS),
        "containers": [container],
    }


def service_of(run: Key, uid: str) -> Body:
    """The headless Service: a name for every rank, from the moment its pod has an address."""
    namespace, name = split(run)
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": {
            "name": names.service_name(name),
            "namespace": namespace,
            **marks_of(run),
            "ownerReferences": [owned_by(run, uid)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": marks_of(run)["labels"],
        },
    }
