"""Whole objects in the shape of Kubernetes: what stands in a file that `apply` or `submit` is given.

Our own kinds are read strictly: an unknown field is a mistake that would otherwise be believed to work. Nodes and
metadata belong to Kubernetes, which has many fields more than we read, so there only what we read is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fairlease.model import rules
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.document import Findings, Invalid, Problem, Trail, load
from fairlease.model.lease_api import LeaseSpec, LeaseStatus
from fairlease.model.node import GPU_RESOURCE, Node
from fairlease.model.partial import known
from fairlease.model.reading import Foreign, Reader, Wrong, nearest
from fairlease.model.record import DEFAULT_NAMESPACE, Key, Record, key
from fairlease.model.reservation import OutcomeSpec, ReservationSpec
from fairlease.model.run import RunSpec

API_VERSION = "rq.davidlangworthy.io/v1"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class BudgetObject(Record, frozen=True, kw_only=True):
    """A Budget, by its key."""

    key: Key
    spec: BudgetSpec


class RunObject(Record, frozen=True, kw_only=True):
    """A Run, by its key; `gpusPerPod` is settled."""

    key: Key
    spec: RunSpec


class NodeObject(Record, frozen=True, kw_only=True):
    """A Node."""

    node: Node


class ReservationObject(Record, frozen=True, kw_only=True):
    """A Reservation, by its key."""

    key: Key
    spec: ReservationSpec


class LeaseObject(Record, frozen=True, kw_only=True):
    """A Lease, by its key, and how it ended, if it did."""

    key: Key
    spec: LeaseSpec
    status: LeaseStatus | None = None


class OutcomeObject(Record, frozen=True, kw_only=True):
    """A ResolverOutcome, by its key."""

    key: Key
    spec: OutcomeSpec


AnyObject = BudgetObject | RunObject | NodeObject | ReservationObject | LeaseObject | OutcomeObject


# ----------------------------------------------------------------------------------------- the forms in which they come


class Metadata(Foreign, frozen=True, kw_only=True):
    """What we read of an object's metadata."""

    name: str
    namespace: str = DEFAULT_NAMESPACE

    def key(self) -> Key:
        """The key that it makes."""
        return key(self.name, self.namespace)


class _RunMetadata(Metadata, frozen=True, kw_only=True):
    """The same, with a name that is a little shorter."""


class _BudgetForm(Record, frozen=True, kw_only=True):
    metadata: Metadata
    spec: BudgetSpec


class _RunForm(Record, frozen=True, kw_only=True):
    metadata: _RunMetadata
    spec: RunSpec


class _ReservationForm(Record, frozen=True, kw_only=True):
    metadata: Metadata
    spec: ReservationSpec


class _LeaseForm(Record, frozen=True, kw_only=True):
    metadata: Metadata
    spec: LeaseSpec
    status: LeaseStatus | None = None


class _OutcomeForm(Record, frozen=True, kw_only=True):
    metadata: Metadata
    spec: OutcomeSpec


class _NodeMetadata(Foreign, frozen=True, kw_only=True):
    name: str
    labels: dict[str, str] = {}


class _TaintForm(Foreign, frozen=True, kw_only=True):
    key: str = ""


class _ConditionForm(Foreign, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class _NodeSpecForm(Foreign, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[_TaintForm, ...] = ()


class _NodeStatusForm(Foreign, frozen=True, kw_only=True):
    capacity: dict[str, Any] = {}
    allocatable: dict[str, Any] = {}
    conditions: tuple[_ConditionForm, ...] = ()


class _NodeForm(Foreign, frozen=True, kw_only=True):
    metadata: _NodeMetadata
    spec: _NodeSpecForm = _NodeSpecForm()
    status: _NodeStatusForm = _NodeStatusForm()


def _gpus_are_counted(status: _NodeStatusForm) -> Iterator[Wrong]:
    for name in ("capacity", "allocatable"):
        given = known(status, name, {}).get(GPU_RESOURCE)
        if given is not None and rules.gpu_quantity(given) is None:
            yield Wrong((name, GPU_RESOURCE), given, "expected a whole number of GPUs")


def _what_it_follows_is_named_once(form: _RunForm) -> Iterator[Wrong]:
    anyone = key(known(form, "metadata.name", "it"), form.metadata.namespace)
    for wrong in rules.what_it_follows_is_named_once(anyone, form.spec):
        yield wrong._replace(path=("spec", *wrong.path))


def _it_follows_others(form: _RunForm) -> Iterator[Wrong]:
    for wrong in rules.what_it_follows_is_another(form.metadata.key(), form.spec):
        yield wrong._replace(path=("spec", *wrong.path))


_BESIDE = ("apiVersion", "kind", "status")
"""Fields that a form does not read: the kind is known by then, and a status is not for people to write."""

_READER = Reader(
    {
        **rules.CHECKS,
        Metadata: {"name": rules.a_name, "namespace": rules.a_namespace},
        _RunMetadata: {"name": rules.a_run_name, "namespace": rules.a_namespace},
        _NodeMetadata: {"name": rules.a_node_name},
    },
    {
        **rules.RULES,
        _NodeStatusForm: (_gpus_are_counted,),
        _RunForm: (_what_it_follows_is_named_once, _it_follows_others),
    },
)


# -------------------------------------------------------------------------------------------------------------- reading


def read_objects(text: str, source: str) -> list[AnyObject]:
    """The objects of a text, one or several documents, Lists taken apart; raises `Invalid` with all that is wrong."""
    findings = Findings(text, source)
    objects: list[AnyObject] = []
    documents = load(text, source)
    if not documents:
        raise Invalid([Problem(source, None, "", None, "nothing in it; expected objects, such as a Run or a Budget")])
    for document in documents:
        for raw, trail in _items(document.value, document.trail, findings):
            found = read_object(raw, trail, findings)
            if found is not None:
                objects.append(found)
    findings.settle()
    return objects


def read_object(raw: object, trail: Trail, findings: Findings) -> AnyObject | None:
    """One object, or None and the reasons in `findings`."""
    if not isinstance(raw, dict):
        findings.refuse(trail, raw, "expected an object with apiVersion, kind, metadata and spec")
        return None
    version, kind = raw.get("apiVersion"), raw.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        _refuse_kind(kind, trail, findings)
        return None
    expected, make = _KINDS[kind]
    if version is None:
        findings.add((trail, "apiVersion"), f"missing; expected {expected}")
    elif version != expected:
        findings.refuse((trail, "apiVersion"), version, f"expected {expected} for a {kind}")
    return make(raw, trail, findings)


def read_config(text: str, source: str) -> Config:
    """The settings in a configuration file; an empty one leaves all defaults. Raises `Invalid`."""
    findings = Findings(text, source)
    documents = load(text, source)
    for extra in documents[1:]:
        findings.add(extra.trail, "expected one document")
    config = _READER.read(Config, documents[0].value, documents[0].trail, findings) if documents else Config()
    findings.settle()
    assert config is not None, "what cannot be read has left a finding"
    return config


def _items(raw: dict[Any, Any], trail: Trail, findings: Findings) -> Iterator[tuple[object, Trail]]:
    """An object itself, or what a List holds (`kubectl get -o yaml` prints one)."""
    kind = raw.get("kind")
    if kind != "List" and not (isinstance(kind, str) and kind.removesuffix("List") in _KINDS and kind not in _KINDS):
        yield raw, trail
        return
    items = raw.get("items")
    if not isinstance(items, list):
        findings.refuse((trail, "items"), items, "expected a list of objects")
        return
    for index, item in enumerate(items):
        yield item, ((trail, "items"), index)


def _refuse_kind(kind: object, trail: Trail, findings: Findings) -> None:
    known = tuple(_KINDS)
    if kind is None:
        findings.add((trail, "kind"), f"missing; expected one of {', '.join(known)}")
    elif kind == "Scenario":
        findings.refuse((trail, "kind"), kind, "a Scenario is not applied but played: fairlease simulate FILE")
    else:
        meant = nearest(kind, known) if isinstance(kind, str) else None
        hint = f"did you mean {meant}?" if meant else f"expected one of {', '.join(known)}"
        findings.refuse((trail, "kind"), kind, f"unknown kind; {hint}")


def _budget(raw: object, trail: Trail, findings: Findings) -> BudgetObject | None:
    form = _READER.read(_BudgetForm, raw, trail, findings, _BESIDE)
    return None if form is None else BudgetObject(key=form.metadata.key(), spec=form.spec)


def _run(raw: object, trail: Trail, findings: Findings) -> RunObject | None:
    form = _READER.read(_RunForm, raw, trail, findings, _BESIDE)
    return None if form is None else RunObject(key=form.metadata.key(), spec=rules.filled(form.spec))


def _reservation(raw: object, trail: Trail, findings: Findings) -> ReservationObject | None:
    form = _READER.read(_ReservationForm, raw, trail, findings, _BESIDE)
    return None if form is None else ReservationObject(key=form.metadata.key(), spec=form.spec)


def _lease(raw: object, trail: Trail, findings: Findings) -> LeaseObject | None:
    form = _READER.read(_LeaseForm, raw, trail, findings, _BESIDE)
    return None if form is None else LeaseObject(key=form.metadata.key(), spec=form.spec, status=form.status)


def _outcome(raw: object, trail: Trail, findings: Findings) -> OutcomeObject | None:
    form = _READER.read(_OutcomeForm, raw, trail, findings, _BESIDE)
    return None if form is None else OutcomeObject(key=form.metadata.key(), spec=form.spec)


def _node(raw: object, trail: Trail, findings: Findings) -> NodeObject | None:
    form = _READER.read(_NodeForm, raw, trail, findings, _BESIDE)
    if form is None:
        return None
    gpus = rules.gpu_quantity(form.status.capacity.get(GPU_RESOURCE)) or 0
    usable = rules.gpu_quantity(form.status.allocatable.get(GPU_RESOURCE))
    node = Node(
        name=form.metadata.name,
        labels=form.metadata.labels,
        gpus=gpus,
        healthy_gpus=usable if usable is not None and usable < gpus else None,
        cordoned=form.spec.unschedulable,
        ready=all(each.status == "True" for each in form.status.conditions if each.type == "Ready"),
        fenced=any(each.key == OUT_OF_SERVICE for each in form.spec.taints),
    )
    return NodeObject(node=node)


_KINDS: dict[str, tuple[str, Callable[[object, Trail, Findings], AnyObject | None]]] = {
    "Budget": (API_VERSION, _budget),
    "Run": (API_VERSION, _run),
    "Reservation": (API_VERSION, _reservation),
    "Lease": (API_VERSION, _lease),
    "ResolverOutcome": (API_VERSION, _outcome),
    "Node": ("v1", _node),
}
