"""From records to plain values in the API's shape: the inverse of `fairlease.model.reading`, from the same hints.

What a record leaves at its default is left out, so that a file that was read and written again has not grown.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import msgspec

from fairlease.model import amount
from fairlease.model.record import Key, Record, Unit

Write: TypeAlias = Callable[[Any], Any]

_UNITS: dict[Unit, Write] = {
    Unit.DURATION: amount.format_duration,
    Unit.INSTANT: amount.format_instant,
    Unit.GPU_HOURS: amount.gpu_hours,
    Unit.NOTICE: lambda ms: "never" if ms is None else amount.format_duration(ms),
}


def write(record: Record) -> dict[str, Any]:
    """A record as the API shows it; reading it gives the record back."""
    written = {}
    for name, api, default, writer in _fields(type(record)):
        value = getattr(record, name)
        if value != default:
            written[api] = writer(value)
    return written


@cache
def _fields(kind: type[Record]) -> tuple[tuple[str, str, object, Write], ...]:
    """Each field's name, its name in the API, its default (which equals nothing where there is none), its writer."""
    return tuple(
        (field.name, field.encode_name, _default(field), _writer(field.type)) for field in msgspec.structs.fields(kind)
    )


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _plain(kind: Any) -> bool:  # noqa: ANN401 - a type hint, as below
    """Whether the values of a record's fields are written as they are, all of them: then a lottery's thousands are at once."""
    if not (isinstance(kind, type) and issubclass(kind, Record)):
        return False
    return all(field.required and field.type in (str, int, bool, Key) for field in msgspec.structs.fields(kind))


def _writer(hint: Any) -> Write:  # noqa: ANN401 - a type hint is of no one type
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return next(_UNITS[each] for each in arguments[1:] if isinstance(each, Unit))
    if origin in (typing.Union, types.UnionType):
        return _writer(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        if _plain(arguments[0]):
            return lambda values: msgspec.to_builtins(list(values))
        item = _writer(arguments[0])
        return lambda values: [item(each) for each in values]
    if origin is dict:
        item = _writer(arguments[1])
        return lambda values: {key: item(each) for key, each in values.items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return write
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return lambda member: member.value
    return lambda value: value
