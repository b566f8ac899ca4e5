"""The CustomResourceDefinitions of our kinds (SEMANTICS §2), generated from the records: `config/crd/`.

Types, units, defaults and checks on single fields come from the records and the reader's own tables, descriptions from the
docstrings under the fields. What fields must be together is in CEL: the twin of each rule in `fairlease.model.rules.RULES`, and
what only a server can see. A rule without a twin cannot be generated.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from fairlease.kube.api.status_types import BudgetStatus, ReservationStatus, RunStatus
from fairlease.model import rules
from fairlease.model.amount import HOUR
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope, Lending
from fairlease.model.lease_api import LeaseSpec, LeaseStatus
from fairlease.model.ledger_entry import LedgerEntrySpec
from fairlease.model.node import GPU_RESOURCE
from fairlease.model.objects import API_VERSION
from fairlease.model.reading import Check
from fairlease.model.record import Reason, Record, Unit
from fairlease.model.reservation import OutcomeSpec, ReservationSpec
from fairlease.model.run import Follow, Funding, Locality, RunSpec


@cache
def field_words(kind: type[Record]) -> dict[str, str]:
    """What each field of a record means, by its name in Python; a field without words is a mistake."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef), kind
    words: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{kind.__name__}.{field.target.id} has no words under it"
            assert isinstance(text.value, ast.Constant), f"{kind.__name__}.{field.target.id} has no words under it"
            words[field.target.id] = " ".join(str(text.value.value).split())
    return words


def words(kind: type[Record]) -> str:
    """What a record means."""
    return " ".join((inspect.getdoc(kind) or "").split())


Schema = dict[str, Any]

INTEGER_MAX = 2**53 - 1
"""The largest integer that every client keeps exactly: to many of them all numbers of JSON are floating."""
TEXT_MAX = 253
MESSAGE_MAX = 4096
WORK_MAX = 131_072  # what Linux takes as one argument of a command
BODY_MAX = 1_000_000
"""Characters of a LedgerEntry's body: with its metadata it stays below etcd's limit of 1.5 MB even in the worst encoding."""

INSTANT = r"^(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-8]\d{3})-\d\d-\d\dT\d\d:\d\d:[0-5]\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"
DURATION = (
    r"^(\d{1,5}(\.\d{1,5})?d)?(\d{1,6}(\.\d{1,5})?h)?(\d{1,7}(\.\d{1,4})?m)?(\d{1,9}(\.\d{1,3})?s)?(\d{1,12}ms)?$"
)
"""Each part once, in order, and never finer than a millisecond: all that people write, and all of it the reader reads."""


def _pattern(regex: re.Pattern[str], longest: int = TEXT_MAX) -> Schema:
    return {"pattern": f"^({regex.pattern})$", "maxLength": longest}


def _reference() -> re.Pattern[str]:
    return re.compile(rf"({rules.NAMESPACE.pattern}/)?{rules.NAME.pattern}")


_TWINS: Mapping[Check, Schema] = {
    rules.more_than_nothing: {"minimum": 1},
    rules.not_empty: {"minLength": 1},
    rules.an_owner: _pattern(rules.OWNER),
    rules.an_owner_glob: _pattern(rules.OWNER_GLOB),
    rules.a_run_reference: _pattern(_reference(), rules.NAMESPACE_MAX + 1 + rules.RUN_NAME_MAX),
    rules.an_opening_reason: {"enum": [each.value for each in rules.OPENING]},
    rules.a_closure_reason: _pattern(rules.CLOSURE),
}

_KEYED = {"x-kubernetes-list-type": "map"}
_SET = {"x-kubernetes-list-type": "set"}
_SIZES: Mapping[tuple[type[Record], str], Schema] = {
    (BudgetSpec, "envelopes"): {**_KEYED, "x-kubernetes-list-map-keys": ["name"], "maxItems": 64},
    (BudgetSpec, "aggregate_caps"): {**_KEYED, "x-kubernetes-list-map-keys": ["name"], "maxItems": 16},
    (BudgetSpec, "parents"): {**_SET, "maxItems": 16},
    (AggregateCap, "envelopes"): {**_SET, "minItems": 1, "maxItems": 64},
    (Lending, "to"): {"maxItems": 64},
    (Funding, "sponsors"): {"maxItems": 32},
    (Follow, "after"): {**_SET, "maxItems": 64},
    (Envelope, "selector"): {"minProperties": 1, "maxProperties": 32},
    (Locality, "location"): {"maxProperties": 32},
    (RunSpec, "env"): {"maxProperties": 256},
}
"""How many there may be, and where each may be there only once."""

_TEXTS: Mapping[tuple[type[Record], str], int] = {
    (LedgerEntrySpec, "body"): BODY_MAX,
    (RunSpec, "command"): WORK_MAX,
    (RunSpec, "env"): WORK_MAX,
    (RunSpec, "workdir"): WORK_MAX,
}
"""Texts that may be longer than a name."""
_NAMES_MAX = 63


def record_schema(kind: type[Record], *, status: bool = False) -> Schema:
    """The structural schema of a record. In a status, what is not there may be written as null."""
    told = field_words(kind)
    properties: Schema = {}
    for field in msgspec.structs.fields(kind):
        check = rules.CHECKS.get(kind, {}).get(field.name)
        made = {"description": told[field.name], **_field(kind, field, check, status=status)}
        default = _default(field)
        if default is not None and not status:
            made["default"] = default
        if status and not field.required:
            made["nullable"] = True
        properties[field.encode_name] = made
    schema: Schema = {"description": words(kind), "type": "object", "properties": properties}
    required = [field.encode_name for field in msgspec.structs.fields(kind) if field.required]
    if required:
        schema["required"] = required
    return _with_rules(schema, RULES_OF.get(kind, ()))


def _with_rules(schema: Schema, found: typing.Iterable[Schema]) -> Schema:
    listed = [*schema.get("x-kubernetes-validations", ()), *found]
    return {**schema, "x-kubernetes-validations": listed} if listed else schema


def _field(kind: type[Record], field: msgspec.structs.FieldInfo, check: Check | None, *, status: bool) -> Schema:
    if (kind, field.name) == (RunSpec, "template"):
        return pod_template()
    made = _typed(field.type, check, status=status)
    if (kind, field.name) in _SIZES:
        made |= _SIZES[kind, field.name]
    if (kind, field.name) in _TEXTS:
        text = made.get("items") or made.get("additionalProperties") or made
        text["maxLength"] = _TEXTS[kind, field.name]
    if made.get("type") == "array" and field.name == "conditions":
        made |= {**_KEYED, "x-kubernetes-list-map-keys": ["type"]}
    return made


def _typed(hint: Any, check: Check | None, *, status: bool) -> Schema:  # noqa: ANN401, PLR0911 - one return for each kind of type, none of one type
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _unit(next(each for each in arguments[1:] if isinstance(each, Unit)), check)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [each for each in arguments if each is not type(None)]
        return _typed(inner, check, status=status)
    if origin is tuple:
        return {"type": "array", "items": _typed(arguments[0], check, status=status)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _typed(arguments[1], check, status=status)}
    if isinstance(hint, typing.NewType):
        return _typed(hint.__supertype__, check, status=status)
    if issubclass(hint, Record):
        return _nested(record_schema(hint, status=status))
    if hint is Reason:
        return {"type": "string", **(_TWINS[check] if check else {"pattern": "^[A-Za-z]+$", "maxLength": _NAMES_MAX})}
    if issubclass(hint, enum.Enum):
        return {"type": "string", "enum": [each.value for each in hint]}
    return _simple(hint, check, status=status)


def _nested(schema: Schema) -> Schema:
    """Inside a field the field's own words say more."""
    return {name: value for name, value in schema.items() if name != "description"}


def _simple(hint: type, check: Check | None, *, status: bool) -> Schema:
    twin = _TWINS[check] if check else {}
    if hint is bool:
        return {"type": "boolean", **twin}
    if hint is int:
        return {"type": "integer", "format": "int64", "minimum": 0, "maximum": INTEGER_MAX, **twin}
    if hint is float:
        return {"type": "number", "minimum": 0, **twin}
    assert hint is str, hint
    if status:
        return {"type": "string", "maxLength": MESSAGE_MAX, **twin}
    return {"type": "string", "maxLength": TEXT_MAX, "pattern": r"^[^\x00]*$", **twin}


def _unit(unit: Unit, check: Check | None) -> Schema:
    assert check in (None, rules.more_than_nothing), check
    if unit is Unit.INSTANT:
        return {"type": "string", "format": "date-time", "pattern": INSTANT}
    if unit is Unit.DURATION:
        made = {"type": "string", "pattern": DURATION, "minLength": 2, "maxLength": 64}
        return made if check is None else _with_rules(made, [POSITIVE_DURATION])
    assert unit is Unit.GPU_HOURS, unit
    assert check is None, check
    return {"type": "number", "minimum": 0, "maximum": INTEGER_MAX // HOUR}


def _default(field: msgspec.structs.FieldInfo) -> object:
    """A default that is worth showing: no empty lists, and records only for the defaults inside them."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if default is msgspec.NODEFAULT or default is None or default in ((), {}, ""):
        return None
    if isinstance(default, enum.Enum):
        return default.value
    if isinstance(default, Record):
        inside = [_default(each) for each in msgspec.structs.fields(type(default))]
        return {} if any(each is not None for each in inside) else None
    return default


def pod_template() -> Schema:
    """A pod template, of which we look at the GPU limits; the rest is for Kubernetes to judge when pods are made."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    whole = {"x-kubernetes-int-or-string": True, "pattern": "^[0-9]{1,16}$", "minimum": 0, "maximum": INTEGER_MAX}
    limits = {**free, "properties": {GPU_RESOURCE: whole}}
    resources = {**free, "properties": {"limits": limits, "requests": limits}}
    container = {**free, "properties": {"name": {"type": "string", "maxLength": _NAMES_MAX}, "resources": resources}}
    containers = {"type": "array", "items": container, "maxItems": CONTAINERS_MAX}
    metadata = {**free, "properties": {"labels": _texts(), "annotations": _texts(MESSAGE_MAX)}}
    name = {"type": "string", "maxLength": TEXT_MAX}
    places = {"nodeName": name, "schedulerName": name}
    spec = {**free, "properties": {"containers": containers, "initContainers": containers, **places}}
    return {**free, "properties": {"metadata": metadata, "spec": spec}}


def _texts(longest: int = TEXT_MAX) -> Schema:
    text = {"type": "string", "maxLength": longest}
    return {"type": "object", "additionalProperties": text, "maxProperties": 64}


Cel = dict[str, Any]


def cel(rule: str, message: str, field: str = "") -> Cel:
    """One rule of a schema: what must hold, what to say where it does not, and of which field."""
    made = {"rule": " ".join(rule.split()), "message": message}
    return {**made, "fieldPath": field} if field else made


POSITIVE_DURATION = cel("self.matches('[1-9]')", "expected more than 0, such as 90s, 15m or 1h30m")

CONTAINERS_MAX = 10
"""Containers of a template: a sum over a list of unknown length costs more than an API server allows, so it is written out."""


def _container_limit(index: int) -> str:
    limits = f"self.template.spec.containers[{index}].resources.limits"
    there = f"size(self.template.spec.containers) > {index} && has({limits.rpartition('.')[0]}) && has({limits})"
    gpu = f"{limits}.nvidia__dot__com__slash__gpu"
    return f"({there} && has({gpu}) ? int({gpu}) : 0)"


_HAS_CONTAINERS = "has(self.template) && has(self.template.spec) && has(self.template.spec.containers)"
_LIMIT = f"({_HAS_CONTAINERS} ? {' + '.join(map(_container_limit, range(CONTAINERS_MAX)))} : 0)"
"""The GPU limit of the template, summed over its containers."""

_WIDTHS = (
    "resources.totalGPUs",
    "locality.groupGPUs",
    "sparesPerGroup",
    "malleable.minTotalGPUs",
    "malleable.maxTotalGPUs",
    "malleable.stepGPUs",
    "malleable.desiredTotalGPUs",
)


def _whole(path: str, pod: str) -> str:
    """That a width is a multiple of a pod's GPUs, where there is one."""
    parts = path.split(".")
    there = [f"has(self.{'.'.join(parts[: end + 1])})" for end in range(len(parts))]
    return f"(!({' && '.join(there)}) || self.{path} % {pod} == 0)"


_RULE_TWINS: Mapping[str, tuple[Cel, ...]] = {
    "_the_selector_says_something": (),  # minProperties, below
    "_the_window_goes_forward": (
        cel("!has(self.start) || !has(self.end) || self.start < self.end", "expected a time after start", ".end"),
    ),
    "_the_hours_fit_in_the_window": (
        cel(
            """!has(self.start) || !has(self.end) || !has(self.maxGPUHours) || self.start >= self.end
            || self.maxGPUHours * 3600000.0 <=
               double(self.concurrency) * double((self.end - self.start).getMilliseconds()) + 0.5""",
            "expected at most concurrency × window",
            ".maxGPUHours",
        ),
    ),
    "_envelopes_are_named_apart": (),  # map
    "_parents_are_named_once": (),  # set
    "_caps_are_named_apart": (),  # map
    "_caps_are_over_envelopes_of_the_budget": (
        cel(
            """!has(self.aggregateCaps) || self.aggregateCaps.all(cap, cap.envelopes.all(name,
            has(self.envelopes) && self.envelopes.exists(envelope, envelope.name == name)))""",
            "expected envelopes of this Budget under each cap",
            ".aggregateCaps",
        ),
    ),
    "_caps_are_over_envelopes_of_their_flavor": (
        cel(
            """!has(self.aggregateCaps) || !has(self.envelopes) || self.aggregateCaps.all(cap, self.envelopes.all(envelope,
            envelope.flavor == cap.flavor || !(envelope.name in cap.envelopes)))""",
            "expected envelopes of the cap's own flavor under each cap",
            ".aggregateCaps",
        ),
    ),
    "_a_cap_is_over_something": (),  # minItems and set
    "_a_cap_bounds_something": (
        cel("has(self.maxConcurrency) || has(self.maxGPUHours)", "expected maxConcurrency or maxGPUHours"),
    ),
    "_the_least_is_not_above_the_most": (
        cel(
            "!has(self.malleable) || self.malleable.minTotalGPUs <= self.malleable.maxTotalGPUs",
            "expected at most maxTotalGPUs",
            ".malleable.minTotalGPUs",
        ),
    ),
    "_widths_are_between_the_least_and_the_most": (
        cel(
            """!has(self.malleable) || self.malleable.minTotalGPUs > self.malleable.maxTotalGPUs
            || (self.malleable.minTotalGPUs <= self.resources.totalGPUs
                && self.resources.totalGPUs <= self.malleable.maxTotalGPUs)""",
            "expected a total between malleable.minTotalGPUs and malleable.maxTotalGPUs",
            ".resources.totalGPUs",
        ),
        cel(
            """!has(self.malleable) || !has(self.malleable.desiredTotalGPUs)
            || self.malleable.minTotalGPUs > self.malleable.maxTotalGPUs
            || (self.malleable.minTotalGPUs <= self.malleable.desiredTotalGPUs
                && self.malleable.desiredTotalGPUs <= self.malleable.maxTotalGPUs)""",
            "expected a width between minTotalGPUs and maxTotalGPUs",
            ".malleable.desiredTotalGPUs",
        ),
    ),
    "_the_template_is_one_of_pods": (),  # its own schema
    "_the_template_agrees": (
        cel(
            f"!has(self.gpusPerPod) || [{_LIMIT}].all(limit, limit == 0 || limit == self.gpusPerPod)",
            "expected the GPU limit of the template",
            ".gpusPerPod",
        ),
    ),
    "_widths_are_whole_pods": (
        *(
            cel(
                f"!has(self.gpusPerPod) || {_whole(path, 'self.gpusPerPod')}",
                "expected a multiple of gpusPerPod",
                f".{path}",
            )
            for path in _WIDTHS
        ),
        cel(
            f"has(self.gpusPerPod) || [{_LIMIT}].all(pod, pod < 2 || ({' && '.join(_whole(each, 'pod') for each in _WIDTHS)}))",
            f"expected multiples of the template's GPU limit in {', '.join(_WIDTHS)}",
            ".resources.totalGPUs",
        ),
    ),
    "_variables_have_names": (
        cel(
            f"!has(self.env) || self.env.all(name, name.matches('^({rules.ENV_NAME.pattern})$') && size(name) <= 253)",
            "expected names of variables: letters, digits, '_', '-' and '.', no digit first",
            ".env",
        ),
    ),
    "_a_closed_lease_says_when_and_why": (
        cel("self.closed == has(self.endTime)", "a lease that is closed, and no other, says when", ".endTime"),
        cel(
            "self.closed == has(self.closureReason)", "a lease that is closed, and no other, says why", ".closureReason"
        ),
    ),
}

_API_RECORDS: tuple[type[Record], ...] = (Envelope, AggregateCap, BudgetSpec, RunSpec, LeaseSpec, LeaseStatus)


def _twins(kind: type[Record]) -> Iterator[Cel]:
    for rule in rules.RULES.get(kind, ()):
        yield from _RULE_TWINS[rule.__name__]


RULES_OF: Mapping[type[Record], tuple[Cel, ...]] = {kind: tuple(_twins(kind)) for kind in _API_RECORDS}
"""The rules on each record."""


def immutable(what: str) -> Cel:
    """A spec that is written once."""
    return cel("self == oldSelf", f"the spec of a {what} never changes")


RUN_ROOT = (
    cel(
        f"size(self.metadata.name) <= {rules.RUN_NAME_MAX}",
        f"expected a name of at most {rules.RUN_NAME_MAX} characters: names of leases and pods are made from it",
    ),
    cel(
        "!has(self.spec.follow) || !has(self.spec.follow.after) || !(self.metadata.name in self.spec.follow.after)",
        "expected runs other than itself",
        ".spec.follow.after",
    ),
)
LEASE_ROOT = (
    cel(
        "!has(oldSelf.status) || !oldSelf.status.closed || (has(self.status) && self.status == oldSelf.status)",
        "a closed Lease is never written again",
        ".status",
    ),
)


GROUP, VERSION = API_VERSION.split("/")


class Column(NamedTuple):
    """A column of `kubectl get`; a wide one shows with `-o wide`. Of a path with several values kubectl shows the first."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


class CustomKind(NamedTuple):
    """One kind of the API."""

    name: str
    plural: str
    short: tuple[str, ...]
    words: str
    spec: type[Record]
    columns: tuple[Column, ...]
    selectable: tuple[str, ...]
    status: type[Record] | None = None
    namespaced: bool = True
    frozen: bool = False
    rules: tuple[Cel, ...] = ()
    scale: bool = False
    exact: bool = False
    """Whether objects stay to the letter as they were written, with no default filled in: digests are taken over them."""


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

KINDS = (
    CustomKind(
        name="Budget",
        plural="budgets",
        short=("bud",),
        words="What an owner may spend: envelopes of GPUs over windows of time.",
        spec=BudgetSpec,
        status=BudgetStatus,
        columns=(
            Column("Owner", ".spec.owner"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Covered", '.status.conditions[?(@.type=="Covered")].status'),
            Column("Updated", ".status.updatedAt", "date"),
            Column("Headroom", ".status.headroom", wide=True),
            _AGE,
        ),
        selectable=(".spec.owner",),
    ),
    CustomKind(
        name="Run",
        plural="runs",
        short=("grun",),
        words="A gang of GPUs that starts whole or not at all: who pays, how many, how they lie, and the work.",
        spec=RunSpec,
        status=RunStatus,
        columns=(
            Column("Owner", ".spec.owner"),
            Column("Phase", ".status.phase"),
            Column("Reason", '.status.conditions[?(@.status!="True")].reason', wide=True),
            Column("Min", ".status.width.min", "integer"),
            Column("Now", ".status.width.allocated", "integer"),
            Column("Max", ".status.width.max", "integer"),
            Column("Started", ".status.startedAt", "date"),
            Column("ETA", ".status.earliestStart"),
            Column("Flavor", ".spec.resources.gpuType", wide=True),
            Column("Owned", ".status.funding.owned.gpus", "integer", wide=True),
            Column("Shared", ".status.funding.shared.gpus", "integer", wide=True),
            Column("Borrowed", ".status.funding.borrowed.gpus", "integer", wide=True),
            Column("Overdrawn", ".status.funding.overdrawn.gpus", "integer", wide=True),
            Column("Message", ".status.message", wide=True),
            _AGE,
        ),
        selectable=(".spec.owner", ".spec.resources.gpuType", ".status.phase"),
        rules=RUN_ROOT,
        scale=True,
    ),
    CustomKind(
        name="Reservation",
        plural="reservations",
        short=("resv",),
        words="A run's place in time: where and when it is going to start, and who is going to pay. Written by the controller.",
        spec=ReservationSpec,
        status=ReservationStatus,
        columns=(
            Column("Run", ".spec.runRef.name"),
            Column("State", ".status.state"),
            Column("Start", ".spec.earliestStart"),
            Column("P50", ".status.forecast.p50"),
            Column("Payers", ".spec.payingEnvelopes"),
            Column("Domain", ".spec.intendedSlice.domain", wide=True),
            Column("Reason", ".status.reason", wide=True),
            _AGE,
        ),
        selectable=(".spec.runRef.name", ".status.state"),
        frozen=True,
    ),
    CustomKind(
        name="Lease",
        plural="leases",
        short=("glease",),
        words="One pod's worth of GPUs on one node, one payer, one role; opened once, closed once. Written by the controller.",
        spec=LeaseSpec,
        status=LeaseStatus,
        columns=(
            Column("Run", ".spec.runRef.name"),
            Column("Owner", ".spec.owner"),
            Column("Role", ".spec.slice.role"),
            Column("Node", ".spec.slice.nodes[0]"),
            Column("Payer", ".spec.paidByEnvelope"),
            Column("Opened", ".spec.interval.start", "date"),
            Column("Closed", ".status.closureReason"),
            Column("Budget", ".spec.paidByBudget", wide=True),
            Column("Slots", ".spec.slice.gpus", wide=True),
            Column("Ended", ".status.endTime", "date", wide=True),
            _AGE,
        ),
        selectable=(
            ".spec.runRef.name",
            ".spec.owner",
            ".spec.slice.role",
            ".spec.paidByBudget",
            ".spec.paidByEnvelope",
            ".status.closed",
        ),
        frozen=True,
        rules=LEASE_ROOT,
    ),
    CustomKind(
        name="ResolverOutcome",
        plural="resolveroutcomes",
        short=("outcome",),
        words="Why others' work was cut, for whom, and out of which candidates: the record of one resolution.",
        spec=OutcomeSpec,
        columns=(
            Column("Claim", ".spec.claim.name"),
            Column("Flavor", ".spec.scope.flavor"),
            Column("Deficit", ".spec.deficitGPUs", "integer"),
            Column("At", ".spec.at", "date"),
        ),
        selectable=(".spec.claim.name",),
        namespaced=False,
        frozen=True,
        exact=True,
    ),
    CustomKind(
        name="LedgerEntry",
        plural="ledgerentries",
        short=("ledger",),
        words="One entry of the ledger: everything that one decision made true, chained to all entries before it.",
        spec=LedgerEntrySpec,
        columns=(
            Column("Seq", ".spec.seq", "integer"),
            Column("Role", ".spec.role"),
            Column("Hash", ".spec.hash"),
            Column("Parts", ".spec.parts", "integer", wide=True),
            Column("Writer", ".spec.writer", wide=True),
            _AGE,
        ),
        selectable=(".spec.role",),
        namespaced=False,
        frozen=True,
    ),
)


def definition(kind: CustomKind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    version: dict[str, Any] = {"name": VERSION, "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": _schema(kind)}
    subresources: dict[str, Any] = {"status": {}} if kind.status else {}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.malleable.desiredTotalGPUs",
            "statusReplicasPath": ".status.width.allocated",
        }
    if subresources:
        version["subresources"] = subresources
    version["additionalPrinterColumns"] = [_column(each) for each in kind.columns]
    version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    names = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": list(kind.short),
        "categories": ["fairlease"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def _schema(kind: CustomKind) -> Schema:
    spec = record_schema(kind.spec)
    if kind.exact:
        spec = _without_defaults(spec)
    if kind.frozen:
        spec["x-kubernetes-validations"] = [*spec.get("x-kubernetes-validations", ()), immutable(kind.name)]
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
    }
    if kind.status:
        # Whether a Lease is over is a fact and not an opinion: there, nothing may stand as null.
        properties["status"] = record_schema(kind.status, status=kind.status is not LeaseStatus)
    schema: Schema = {"description": kind.words, "type": "object", "properties": properties, "required": ["spec"]}
    return {**schema, "x-kubernetes-validations": list(kind.rules)} if kind.rules else schema


def _without_defaults(schema: Schema) -> Schema:
    return {
        name: _without_defaults(value) if isinstance(value, dict) else value
        for name, value in schema.items()
        if name != "default"
    }


def _column(column: Column) -> dict[str, Any]:
    made: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**made, "priority": 1} if column.wide else made


def definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every definition, with the name of its file."""
    for kind in KINDS:
        yield f"{kind.plural}.yaml", definition(kind)
