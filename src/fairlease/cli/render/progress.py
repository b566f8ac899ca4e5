"""A bar for what takes a while: on a terminal, and on stderr, so that a pipe stays clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


def wanted(progress: bool | None) -> bool:
    """Whether a bar is shown: on a terminal, unless it was refused."""
    return sys.stderr.isatty() and progress is not False


@contextmanager
def progress_bar(
    length: int, *, shown: bool, label: str = "", told: Callable[[int], str] | None = None
) -> Iterator[Callable[[int], None]]:
    """A bar of `length` behind its `label`, told how much is done; `told` says beside it what that is."""
    if not shown or length == 0:
        yield lambda _done: None
        return
    beside = None if told is None else lambda done: "" if done is None else told(done)
    with click.progressbar(length=length, label=label or None, file=sys.stderr, item_show_func=beside) as bar:
        yield lambda done: bar.update(done - bar.pos, done)
