"""From plain values to records: one reader per record type, compiled once from its type hints.

Our own and not msgspec's `convert`, which stops at the first mistake and knows neither paths nor `2h`: a person who
wrote a file wants all of its mistakes at once, each with its place and with what would be right. Rules are handed in as
tables (`fairlease.model.rules`): a check on a single field is compiled into the reader of that field; rules on a record
are asked of it even where fields of it are wrong, and pass over what could not be read (`fairlease.model.partial`). So a
mistake in one place hides none in another.
"""

from __future__ import annotations

import difflib
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from fairlease.model import amount
from fairlease.model.document import INTEGER_MAX, Findings, Step, Trail
from fairlease.model.partial import BAD, HoledList, HoledMapping, Partial, as_far, whole
from fairlease.model.record import Record, Unit


class Foreign(Record, frozen=True, kw_only=True):
    """A part of somebody else's API, of which we read some fields: the others are no mistake."""


class Wrong(NamedTuple):
    """What a rule has against a record: where in it, which value (None: a lack of one), and what would be right."""

    path: tuple[Step, ...]
    value: object
    message: str


Check: TypeAlias = Callable[[Any], str | None]
"""What is wrong with the value of one field, or None; where the field is a list, with each item of it."""
Rule: TypeAlias = Callable[[Any], Iterator[Wrong]]
"""All that is wrong with the fields of a record together; where it looks at one that could not be read, it ends."""
Read: TypeAlias = Callable[[object, Trail, Findings], object]
"""Turns a plain value into the one a record holds, or notes what is wrong and returns `BAD` or what it has of it."""

R = TypeVar("R", bound=Record)

_DEPTH_MAX = 100
_TEXT_MAX = 64
_NAME_MAX = 100
_HOURS_MAX = INTEGER_MAX // amount.HOUR
_FIRST_INSTANT = amount.parse_instant("0001-01-01T00:00:00Z")
_LAST_INSTANT = amount.parse_instant("9000-01-01T00:00:00Z")
"""A thousand years, the longest duration, before the last that a calendar can show."""


class Reader:
    """Reads records under a set of rules; without any, it only sees to types, which is what written records need."""

    def __init__(
        self,
        checks: Mapping[type[Record], Mapping[str, Check]] | None = None,
        rules: Mapping[type[Record], tuple[Rule, ...]] | None = None,
    ) -> None:
        self._checks = checks or {}
        self._rules = rules or {}
        self._compiled: dict[type[Record], _RecordReader] = {}

    def read(
        self, kind: type[R], raw: object, trail: Trail, findings: Findings, beside: Collection[str] = ()
    ) -> R | None:
        """The record that `raw` stands for, or None and the reasons in `findings`; keys in `beside` are for others."""
        record = self.glean(kind, raw, trail, findings, beside)
        return record if whole(record) else None

    def glean(self, kind: type[R], raw: object, trail: Trail, findings: Findings, beside: Collection[str] = ()) -> R:
        """As `read`, but where something is wrong, what could be read: to look at, under `as_far`, and not to keep."""
        return typing.cast("R", self._reader(kind)(raw, trail, findings, beside))

    def _reader(self, kind: type[Record]) -> _RecordReader:
        if kind not in self._compiled:
            checks = self._checks.get(kind, {})
            fields = msgspec.structs.fields(kind)
            unknown = checks.keys() - {field.name for field in fields}
            assert not unknown, f"{kind.__name__} has no field {unknown}, but a rule on it"
            reads = {field.encode_name: self._read(field.type, checks.get(field.name)) for field in fields}
            self._compiled[kind] = _RecordReader(kind, reads, self._rules.get(kind, ()))
        return self._compiled[kind]

    def _read(self, hint: Any, check: Check | None) -> Read:  # noqa: ANN401 - a type hint is of no one type
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            units = [each for each in arguments[1:] if isinstance(each, Unit)]
            return _checked(_UNITS[units[0]], _and_not_negative(check) if Unit.GPU_HOURS in units else check)
        if origin in (typing.Union, types.UnionType):
            (inner,) = [each for each in arguments if each is not type(None)]
            return self._read(inner, check)
        if origin is tuple:
            return _list_of(self._read(arguments[0], check))
        if origin is dict:
            return _free if arguments[1] is Any else _mapping_of(self._read(arguments[1], check))
        if isinstance(hint, typing.NewType):
            return self._read(hint.__supertype__, check)
        if issubclass(hint, Record):
            return self._reader(hint)
        if issubclass(hint, enum.Enum):
            return _checked(_one_of(hint), check)
        return _checked(_SIMPLE[hint], _and_not_negative(check) if hint is int else check)


class _RecordReader:
    """Reads one type of record."""

    def __init__(self, kind: type[Record], reads: Mapping[str, Read], rules: tuple[Rule, ...]) -> None:
        fields = msgspec.structs.fields(kind)
        self._kind = kind
        self._fields = {field.encode_name: (field.name, reads[field.encode_name]) for field in fields}
        self._required = [(field.name, field.encode_name) for field in fields if field.required]
        self._names = tuple(self._fields)
        self._all = frozenset(field.name for field in fields)
        self._foreign = issubclass(kind, Foreign)
        self._rules = rules

    def __call__(self, raw: object, trail: Trail, findings: Findings, beside: Collection[str] = ()) -> object:
        if type(raw) is not dict:
            findings.refuse(trail, raw, f"expected a mapping with {some(self._names)}")
            return Partial(self._kind, {}, self._all)
        before = len(findings)
        values: dict[str, Any] = {}
        bad: set[str] = set()
        fields = self._fields
        for key, each in raw.items():
            field = fields.get(key)
            if field is None:
                if key not in beside and not self._foreign:
                    self._unknown(key, raw, trail, findings, beside, bad)
            elif each is not None:  # `null` is how Kubernetes writes "not there".
                name, read = field
                value = read(each, (trail, key), findings)
                if value is BAD:
                    bad.add(name)
                else:
                    values[name] = value
        for name, api in self._required:
            if name not in values and name not in bad:
                bad.add(name)
                findings.add((trail, api), "missing")
        record = self._kind(**values) if len(findings) == before else Partial(self._kind, values, bad)
        for rule in self._rules:
            for path, given, message in as_far(rule(record)):
                place = extended(trail, path)
                findings.add(place, message) if given is None else findings.refuse(place, given, message)
                if len(path) == 1:  # One field is refused as a whole: rules further out need not look at it either.
                    bad.add(fields[str(path[0])][0])
        return record if len(findings) == before else Partial(self._kind, values, bad)

    def _unknown(
        self,
        key: object,
        raw: dict[Any, Any],
        trail: Trail,
        findings: Findings,
        beside: Collection[str],
        bad: set[str],
    ) -> None:
        """Say that a field is unknown; the one it was meant for is then neither missing nor left to its default."""
        names = (*beside, *self._names)
        findings.add((trail, str(key)), unknown(key, names))
        meant = nearest(key, names)
        if meant in self._fields and raw.get(meant) is None:
            bad.add(self._fields[meant][0])


def extended(trail: Trail, path: Iterable[Step]) -> Trail:
    """A trail further down."""
    for step in path:
        trail = (trail, step)
    return trail


def some(names: Iterable[str]) -> str:
    """Names in a sentence, not too many of them."""
    listed = list(names)
    few = 8
    return ", ".join(listed[:few]) + (", …" if len(listed) > few else "")


@lru_cache(maxsize=1024)
def nearest(name: object, names: tuple[str, ...]) -> str | None:
    """The one of some names that a misspelled one most likely means."""
    if not isinstance(name, str) or len(name) > _NAME_MAX:
        return None
    by_lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def unknown(name: object, names: tuple[str, ...]) -> str:
    """That a field is unknown, and which one was probably meant."""
    meant = nearest(name, names)
    return f"unknown field; did you mean {meant}?" if meant else f"unknown field; known here: {', '.join(names)}"


def _checked(read: Read, check: Check | None) -> Read:
    if check is None:
        return read

    def checked(raw: object, trail: Trail, findings: Findings) -> object:
        value = read(raw, trail, findings)
        if value is BAD:
            return BAD
        wrong = check(value)
        if wrong is not None:
            findings.refuse(trail, raw, wrong)
            return BAD
        return value

    return checked


def _not_negative(value: int) -> str | None:
    return "expected 0 or more" if value < 0 else None


def _and_not_negative(check: Check | None) -> Check:
    """A check that lets nothing negative pass, whatever else it asks: a negative amount would be credit."""
    return _not_negative if check is None else lambda value: check(value) or _not_negative(value)


def _text(raw: object, trail: Trail, findings: Findings) -> object:
    if type(raw) is str:
        if "\0" not in raw:
            return raw
        message = "expected text without NUL characters"
    elif isinstance(raw, bool | int | float):
        message = f"expected text: write {json.dumps(json.dumps(raw))}, with the quotes"
    else:
        message = "expected text"
    findings.refuse(trail, raw, message)
    return BAD


def _integer(raw: object, trail: Trail, findings: Findings) -> object:
    if type(raw) is int:
        if -INTEGER_MAX <= raw <= INTEGER_MAX:
            return raw
        message = f"integers go up to {INTEGER_MAX}"
    elif type(raw) is float and raw.is_integer():
        message = f"expected an integer: write {int(raw)}" if abs(raw) <= INTEGER_MAX else "expected a smaller integer"
    elif type(raw) is str and len(raw) <= _TEXT_MAX and raw.isascii() and raw.removeprefix("-").isdigit():
        message = f"expected an integer: write {int(raw)}, without quotes"
    else:
        message = "expected an integer"
    findings.refuse(trail, raw, message)
    return BAD


def _truth(raw: object, trail: Trail, findings: Findings) -> object:
    if type(raw) is bool:
        return raw
    findings.refuse(trail, raw, "expected true or false")
    return BAD


_duration_of = lru_cache(maxsize=4096)(amount.parse_duration)
_instant_of = lru_cache(maxsize=4096)(amount.parse_instant)


def _duration(raw: object, trail: Trail, findings: Findings, unit: Unit = Unit.DURATION) -> object:
    hint = ""
    if type(raw) is str and len(raw) <= _TEXT_MAX:
        try:
            return _duration_of(raw)
        except ValueError as error:
            detail = str(error).partition(repr(raw))[2].strip()
            hint = "" if detail.startswith("is not") else f"; this {detail}"
    elif type(raw) is int:
        if raw == 0:
            return 0
        if 0 < raw <= INTEGER_MAX:
            hint = f": write {raw}s if you mean seconds"
    findings.refuse(trail, raw, f"expected a {unit.value}{hint}")
    return BAD


def _notice(raw: object, trail: Trail, findings: Findings) -> object:
    return None if raw == "never" else _duration(raw, trail, findings, Unit.NOTICE)


def _instant(raw: object, trail: Trail, findings: Findings) -> object:
    message = f"expected an {Unit.INSTANT.value}"
    if type(raw) is str and len(raw) <= _TEXT_MAX:
        try:
            ms = _instant_of(raw)
        except (ValueError, OverflowError):
            ms = _FIRST_INSTANT - 1
        if _FIRST_INSTANT <= ms <= _LAST_INSTANT:
            return ms
        if ms > _LAST_INSTANT:
            message = f"expected a time up to {amount.format_instant(_LAST_INSTANT)}; for no end, leave it out"
    findings.refuse(trail, raw, message)
    return BAD


def _gpu_hours(raw: object, trail: Trail, findings: Findings) -> object:
    if isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) <= _HOURS_MAX:
        return amount.parse_gpu_hours(raw)
    findings.refuse(trail, raw, f"expected a {Unit.GPU_HOURS.value}, and at most {_HOURS_MAX}")
    return BAD


def _one_of(kind: type[enum.Enum]) -> Read:
    members = {each.value: each for each in kind}
    expected = f"expected one of {', '.join(members)}"

    def choice(raw: object, trail: Trail, findings: Findings) -> object:
        if type(raw) is str and raw in members:
            return members[raw]
        meant = nearest(raw, tuple(members)) if type(raw) is str else None
        findings.refuse(trail, raw, f"{expected}; did you mean {meant}?" if meant else expected)
        return BAD

    return choice


def _list_of(item: Read) -> Read:
    def listed(raw: object, trail: Trail, findings: Findings) -> object:
        if type(raw) is not list:
            findings.refuse(trail, raw, "expected a list")
            return BAD
        values = tuple([item(each, (trail, index), findings) for index, each in enumerate(raw)])
        return HoledList(values) if BAD in values else values

    return listed


def _mapping_of(item: Read) -> Read:
    def mapping(raw: object, trail: Trail, findings: Findings) -> object:
        if type(raw) is not dict:
            findings.refuse(trail, raw, "expected a mapping")
            return BAD
        values = {}
        for key, each in raw.items():
            place = (trail, str(key))
            name = _text(key, place, findings)
            values[name] = item(each, place, findings)
        return HoledMapping(values) if BAD in values or BAD in values.values() else values

    return mapping


def _free(raw: object, trail: Trail, findings: Findings) -> object:
    """A mapping that is handed on as it is, such as a pod template."""
    if type(raw) is dict:
        return _anything(raw, trail, findings)
    findings.refuse(trail, raw, "expected a mapping")
    return BAD


def _anything(raw: object, trail: Trail, findings: Findings, depth: int = 1) -> object:
    """What is handed on as it is: anything that JSON can hold, so that the ledger can keep it."""
    before = len(findings)
    if depth > _DEPTH_MAX:
        findings.add(trail, f"nested more than {_DEPTH_MAX} deep")
    elif type(raw) is dict:
        for key, each in raw.items():
            _text(key, (trail, str(key)), findings)
            _anything(each, (trail, str(key)), findings, depth + 1)
    elif type(raw) is list:
        for index, each in enumerate(raw):
            _anything(each, (trail, index), findings, depth + 1)
    elif type(raw) is int:
        _integer(raw, trail, findings)
    elif type(raw) is float and not math.isfinite(raw):
        findings.refuse(trail, raw, "expected a finite number")
    return raw if len(findings) == before else BAD


_SIMPLE: dict[Any, Read] = {str: _text, int: _integer, bool: _truth, Any: _anything}
_UNITS: dict[Unit, Read] = {
    Unit.DURATION: _duration,
    Unit.NOTICE: _notice,
    Unit.INSTANT: _instant,
    Unit.GPU_HOURS: _gpu_hours,
}
