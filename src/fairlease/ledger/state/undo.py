"""Try, look, undo: the log that lets the state be changed and put back.

Every mutable part of the state can say what it is (`save`) and become that again (`restore`). Before a part is changed it is
touched; while a trial is open, the first touch saves it. Dictionaries are changed through `put` and `pop`. Without an open trial
all of this costs a comparison. Trials nest: a resolver tries cuts inside a tick that may itself be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Saveable(Protocol):
    """A part of the state that can be put back."""

    def save(self) -> Any:  # noqa: ANN401 - each part knows its own shape; nobody else looks inside
        """What it is now."""

    def restore(self, saved: Any) -> None:  # noqa: ANN401 - as above
        """Become what it was."""


class UndoLog:
    """What must be called, last first, to go back to a mark."""

    __slots__ = ("_calls", "_saved", "_stack")

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] | None = None
        self._saved: set[int] = set()
        self._stack: list[set[int]] = []

    @property
    def recording(self) -> bool:
        """Whether a trial is open."""
        return self._calls is not None

    def touch(self, part: Saveable) -> None:
        """Announce a change of `part`."""
        if self._calls is not None and id(part) not in self._saved:
            self._saved.add(id(part))
            self._calls.append((part.restore, (part.save(),)))

    def put(self, mapping: dict[K, V], at: K, value: V) -> None:
        """`mapping[at] = value`."""
        if self._calls is not None:
            if at in mapping:
                self._calls.append((mapping.__setitem__, (at, mapping[at])))
            else:
                self._calls.append((mapping.__delitem__, (at,)))
        mapping[at] = value

    def pop(self, mapping: dict[K, V], at: K) -> V:
        """`mapping.pop(at)`."""
        value = mapping.pop(at)
        if self._calls is not None:
            self._calls.append((mapping.__setitem__, (at, value)))
        return value

    def put_all(self, mapping: dict[K, V], items: dict[K, V]) -> None:
        """`mapping.update(items)`, where none of these keys is there yet: one note for the leases of a whole gang."""
        if self._calls is not None:
            self._calls.append((_drop, (mapping, items)))
        mapping.update(items)

    def pop_all(self, mapping: dict[K, V], keys: Iterable[K]) -> dict[K, V]:
        """Take several keys away; returns what was there."""
        gone = {at: mapping.pop(at) for at in keys}
        if self._calls is not None:
            self._calls.append((mapping.update, (gone,)))
        return gone

    def later(self, call: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401 - handed through to `call`
        """Note the inverse of something just done."""
        if self._calls is not None:
            self._calls.append((call, arguments))

    def mark(self) -> int:
        """Open a trial."""
        if self._calls is None:
            self._calls = []
        self._stack.append(self._saved)
        self._saved = set()
        return len(self._calls)

    def rollback(self, mark: int) -> None:
        """Close the trial and put everything back as it was at `mark`."""
        calls = self._calls
        assert calls is not None, "a trial is open"
        while len(calls) > mark:
            call, arguments = calls.pop()
            call(*arguments)
        self._close()

    def keep(self) -> None:
        """Close the trial and let it stand; an outer trial can still undo it."""
        assert self._calls is not None, "a trial is open"
        self._close()

    def _close(self) -> None:
        self._saved = self._stack.pop()
        if not self._stack:
            self._calls = None
            self._saved = set()


def _drop(mapping: dict[K, V], items: dict[K, V]) -> None:
    for at in items:
        del mapping[at]
