"""Try, look, undo: the log that lets the state be changed and put back.

Every mutable part of the state can say what it is (`save`) and become that again (`restore`). Before a part is changed it is
touched; while a trial is open, the first touch saves it. Dictionaries are changed through `put` and `pop`. Without an open trial
all of this costs a comparison. Trials nest: a resolver tries preemptions inside a tick that may itself be undone. The outermost
trial puts back everything, whatever was left open inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeVar

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

    def trial(self) -> Trial:
        """Open a trial: a context that puts everything back at its end, unless it was kept."""
        return Trial(self)

    def open(self) -> int:
        """A level more; returns where it begins."""
        if self._calls is None:
            self._calls = []
        self._stack.append(self._saved)
        self._saved = set()
        return len(self._calls)

    def put_back(self, depth: int, begins: int) -> None:
        """Undo all that came since a level began, with the levels inside it that a fault may have left open."""
        calls = self._calls
        assert calls is not None, "a trial is open"
        assert len(self._stack) >= depth, "this one is"
        while len(calls) > begins:
            call, arguments = calls.pop()
            call(*arguments)
        self.close(depth)

    def close(self, depth: int) -> None:
        """End a level and all inside it; what they did stands, and an outer trial can still undo it."""
        self._saved = self._stack[depth - 1]
        del self._stack[depth - 1 :]
        if not self._stack:
            self._calls = None
            self._saved = set()

    @property
    def depth(self) -> int:
        """How many trials are open."""
        return len(self._stack)


class Trial:
    """Changes that can be undone: `with state.trial() as trial:` puts everything back at its end unless `trial.keep()` was called.

    Where a trial outlives a block (a proposal that waits for its append) `keep` or `undo` ends it.
    """

    __slots__ = ("_begins", "_depth", "_log", "_open")

    def __init__(self, log: UndoLog) -> None:
        self._log = log
        self._begins = log.open()
        self._depth = log.depth
        self._open = True

    def keep(self) -> None:
        """Let it stand."""
        assert self._open, "a trial is ended once"
        assert self._log.depth == self._depth, "the innermost trial is ended first"
        self._open = False
        self._log.close(self._depth)

    def undo(self) -> None:
        """Put everything back as it was when the trial was opened."""
        assert self._open, "a trial is ended once"
        self._open = False
        self._log.put_back(self._depth, self._begins)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.undo()


def _drop(mapping: dict[K, V], items: dict[K, V]) -> None:
    for at in items:
        del mapping[at]
