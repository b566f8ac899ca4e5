"""Runs followed for somebody who looks on: a copy of each namespace that was asked about, and a count of what changed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlease.kube.api.informer import Change, Informer, What
from fairlease.kube.api.resource import RUNS, OwnSeen
from fairlease.model.record import Key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlease.kube.api.connection import Api


class Following:
    """Begins when somebody first waits. `gone` has the last that was seen of runs that were deleted meanwhile."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._informers: dict[str | None, Informer[OwnSeen]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: set[str | None] = set()
        self._changed = asyncio.Event()
        self.changes = 0
        self.gone: dict[Key, OwnSeen] = {}

    def known(self, namespace: str | None) -> Mapping[str, OwnSeen] | None:
        """The runs of a namespace by key, where they are followed; None where they have to be read."""
        self._asked.add(namespace)
        for each in (namespace, None):
            informer = self._informers.get(each)
            if informer is not None and informer.synced.is_set():
                return informer.objects
        return None

    async def wait(self, namespace: str | None, seq: int, timeout_s: float) -> None:
        """Until something changed after the count was `seq`, or time is over. What was asked about so far is followed from now."""
        for each in {None} if None in self._asked else self._asked or {namespace}:
            if each not in self._informers:
                informer = self._informers[each] = Informer(self._api, RUNS, OwnSeen, self._on, namespace=each)
                self._tasks.append(asyncio.create_task(informer.run()))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.changes <= seq:
                    self._changed.clear()
                    await self._changed.wait()

    def _on(self, change: Change[OwnSeen]) -> None:
        name = Key(change.object.metadata.key)
        if change.what is What.DELETED:
            self.gone[name] = change.object
        else:
            self.gone.pop(name, None)
        self.changes += 1
        self._changed.set()

    async def close(self) -> None:
        """Follow nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
