"""What could be read of a record that holds mistakes, so that the rules can still judge the rest of it.

A rule need not say which fields it looks at: looking at one that could not be read raises `Unreadable`, and that rule is
passed over, so that none ever complains about a stand-in. A rule that judges many things one by one goes over them with
the helpers here, which leave out what could not be read and keep the rest.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from fairlease.model.record import Record

T = TypeVar("T")

BAD: Final = object()
"""What stands where a value could not be read."""


class Unreadable(Exception):  # noqa: N818 - it reads as what it says: the field is unreadable
    """A rule looked at something that could not be read, and so cannot judge."""


class Partial:
    """A record with mistakes in it: it has the fields and methods of its kind, but for the fields that are `bad`."""

    __slots__ = ("_bad", "_kind", "_values")

    def __init__(self, kind: type[Record], values: Mapping[str, Any], bad: Collection[str]) -> None:
        self._kind = kind
        self._values = values
        self._bad = bad

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the field is
        if name in self._bad:
            raise Unreadable(name)
        if name in self._values:
            return self._values[name]
        for field in msgspec.structs.fields(self._kind):
            if field.name == name:
                if field.default is not msgspec.NODEFAULT:
                    return field.default
                if field.default_factory is not msgspec.NODEFAULT:
                    return field.default_factory()
                raise Unreadable(name)
        return types.MethodType(getattr(self._kind, name), self)


class HoledList(tuple[Any, ...]):
    """A list in which some items could not be read; going over it plainly stops at the first of them."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return map(_whole, super().__iter__())


class HoledMapping(dict[Any, Any]):
    """A mapping in which some keys or values could not be read."""

    def __iter__(self) -> Iterator[Any]:
        return map(_whole, super().__iter__())

    def __getitem__(self, name: object) -> Any:  # noqa: ANN401 - as the value is
        return _whole(super().__getitem__(name))


def _whole(value: Any) -> Any:  # noqa: ANN401 - any value of a record
    if value is BAD:
        raise Unreadable
    return value


def whole(record: object) -> bool:
    """Whether all of a record could be read, and no rule has anything against it."""
    return not isinstance(record, Partial)


def readable(values: Iterable[T]) -> Iterator[tuple[int, T]]:
    """The items of a list, or the keys of a mapping, that could be read, each with its number."""
    if isinstance(values, HoledList):
        plain: Iterator[Any] = tuple.__iter__(values)
    elif isinstance(values, HoledMapping):
        plain = dict.__iter__(values)
    else:
        plain = iter(values)
    return ((index, each) for index, each in enumerate(plain) if each is not BAD)


def column(records: Iterable[Record], name: str) -> Iterator[tuple[int, Any]]:
    """One field of each record of a list, where it could be read, with the record's number."""
    for index, record in enumerate(records):
        value = known(record, name, BAD)
        if value is not BAD:
            yield index, value


def known(record: Record, path: str, otherwise: object = None) -> Any:  # noqa: ANN401 - as the field is
    """A field, or one further down (`resources.total_gpus`), and something else where it could not be read."""
    try:
        return attrgetter(path)(record)
    except Unreadable:
        return otherwise


def as_far(judged: Iterable[T]) -> Iterator[T]:
    """What a rule finds until it comes to something that could not be read."""
    try:
        yield from judged
    except Unreadable:
        return
