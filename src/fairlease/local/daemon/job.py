"""What the daemon's loop works through: requests that change something, and the store that takes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlease.engine import command as cmd
from fairlease.ledger.store.sqlite import SqliteStore

if TYPE_CHECKING:
    import asyncio

    from fairlease.engine.refusal import Refusal
    from fairlease.ledger.state.events import AnyEvent
    from fairlease.ledger.store.protocol import Entry
    from fairlease.model.record import Key

Build = Callable[[set["Key"]], list[cmd.AnyCommand]]
"""Makes the commands of a request from the names that the tick has given away so far."""


class TimedStore(SqliteStore):
    """The ledger's store, which knows how long its last append took."""

    append_s = 0.0

    def append(self, expected_seq: int, at: int, events: tuple[AnyEvent, ...]) -> Entry:
        """Append, and keep the time."""
        begun = time.perf_counter()
        entry = super().append(expected_seq, at, events)
        self.append_s = time.perf_counter() - begun
        return entry


class PendingRequest:
    """One request that changes something: its commands are made when its turn comes, from the state as it is then."""

    def __init__(self, build: Build, future: asyncio.Future[list[Refusal | None]]) -> None:
        self.build = build
        self.future = future
        self.received = time.perf_counter()
        self.commands: list[cmd.AnyCommand] = []

    def fail(self, error: Exception) -> None:
        """Tell the caller, unless it went."""
        if not self.future.done():
            self.future.set_exception(error)

    def done(self, answers: list[Refusal | None]) -> None:
        """Tell the caller, unless it went."""
        if not self.future.done():
            self.future.set_result(answers)
