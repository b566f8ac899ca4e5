"""Hypothesis strategies made from the type hints of records, so that a new field is tested without a word."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from fairlease.model.amount import DAY, HOUR, parse_instant
from fairlease.model.document import INTEGER_MAX
from fairlease.model.record import Record, Unit

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
INTEGERS = st.integers(0, INTEGER_MAX) | st.integers(0, 64)
DURATIONS = st.integers(0, 1_000 * 366 * DAY) | st.integers(0, HOUR)
UNITS: dict[Unit, st.SearchStrategy[Any]] = {
    Unit.DURATION: DURATIONS,
    Unit.NOTICE: st.none() | DURATIONS,
    Unit.INSTANT: st.integers(parse_instant("0001-01-01T00:00:00Z"), parse_instant("9000-01-01T00:00:00Z")),
    # Nine digits of a float hold every GPU-millisecond up to ten million GPUs for ten years, and whole hours without end.
    Unit.GPU_HOURS: st.integers(0, 10**15) | st.integers(0, INTEGER_MAX // HOUR).map(lambda hours: hours * HOUR),
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def values(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - a type hint is of no one type
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return next(UNITS[each] for each in arguments[1:] if isinstance(each, Unit))
    if origin in (typing.Union, types.UnionType):
        return st.none() | values(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, values(arguments[1]), max_size=3)
    if isinstance(hint, typing.NewType):
        return values(hint.__supertype__)
    if hint is Any:
        return ANYTHING
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    return records(hint) if issubclass(hint, Record) else {str: TEXT, int: INTEGERS, bool: st.booleans()}[hint]


def records(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Any record of a kind, whether its values make sense together or not."""
    fields = msgspec.structs.fields(kind)
    required = {field.name: values(field.type) for field in fields if field.required}
    optional = {field.name: values(field.type) for field in fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))
