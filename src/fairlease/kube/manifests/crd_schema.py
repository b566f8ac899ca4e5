"""From records to structural schemas: types, units, defaults and the checks on single fields.

Our own walk and not msgspec's JSON schema: there an `Instant` is an integer, here it is the RFC 3339 text that people write, and
what the API server wants (no references, no titles, flags instead of numbers) is another dialect anyway. Checks come from the
same table as those of the reader (`fairlease.model.rules.CHECKS`), each with its twin; one without a twin cannot be generated.

Sizes are bounded, which the reader does not ask for: the API server must know what a rule may cost before it takes it.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlease.kube.manifests.crd_rules import CONTAINERS_MAX, POSITIVE_DURATION, RULES_OF
from fairlease.kube.manifests.crd_words import field_words, words
from fairlease.model import rules
from fairlease.model.amount import HOUR
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope, Lending
from fairlease.model.ledger_entry import LedgerEntrySpec
from fairlease.model.node import GPU_RESOURCE
from fairlease.model.reading import Check
from fairlease.model.record import Reason, Record, Unit
from fairlease.model.run import Follow, Funding, Locality, RunSpec

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
