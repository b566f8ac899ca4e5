"""What the pods of a run wrote, from the pods' log subresource: all there is, or as it comes, until the run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.names import ATTEMPT, RANK, RUN, label_value, run_of
from fairlease.kube.api.refused import no_run
from fairlease.kube.api.resource import PODS, RUNS, Meta, OwnSeen
from fairlease.model.record import Key, short, split
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.runtime.requests import Refused

if TYPE_CHECKING:
    from collections.abc import Coroutine

LOOK_S = 1.0
SILENT_S = 7 * 86_400.0
"""How long a pod may write nothing before its log is given up."""
_OVER = (Phase.COMPLETED.value, Phase.FAILED.value)
_DEFAULT = "kubectl.kubernetes.io/default-container"

Put = Callable[[bytes], None]


class _LogContainer(msgspec.Struct, frozen=True):
    name: str = ""


class _LogPodSpec(msgspec.Struct, frozen=True):
    containers: tuple[_LogContainer, ...] = ()


class _LogPodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class LogPod(msgspec.Struct, frozen=True):
    """What is read of a pod to read its log."""

    metadata: Meta
    spec: _LogPodSpec = _LogPodSpec()
    status: _LogPodStatus = _LogPodStatus()

    @property
    def rank(self) -> int:
        """Which of the gang; a placeholder of a spare has none."""
        return _number(self.metadata.labels.get(RANK, ""))

    @property
    def attempt(self) -> int:
        """Of which attempt."""
        return _number(self.metadata.labels.get(ATTEMPT, ""))

    @property
    def wrote(self) -> bool:
        """Whether it can have written anything."""
        return self.status.phase not in ("", "Pending")

    def path(self, container: str, *, follow: bool) -> str:
        """Where its log is."""
        first = self.metadata.annotations.get(_DEFAULT) or (
            self.spec.containers[0].name if self.spec.containers else ""
        )
        asked = {"container": container or first, "follow": "true" if follow else ""}
        query = urlencode({name: value for name, value in asked.items() if value})
        return f"{PODS.path(self.metadata.namespace, self.metadata.name, 'log')}?{query}"


class PodLogs:
    """The logs of one run: of the attempt that was asked for, else of the last and what follows it."""

    def __init__(self, api: Api, run: Key, rank: int | None, attempt: int | None, container: str, put: Put) -> None:
        self._api, self._run, self._put = api, run, put
        self._rank, self._attempt, self._container = rank, attempt, container
        self._first: int | None = attempt
        self._begun: dict[str, asyncio.Task[None]] = {}
        self.printed = 0

    async def read(self) -> None:
        """Print all there is."""
        pods = await self._pods()
        for pod in pods:
            if pod.wrote:
                text = await self._api.text(pod.path(self._container, follow=False))
                self._lines(self._prefix(pod, pods), text.encode())

    async def follow(self) -> None:
        """Print what comes, until the run has ended and its pods have written all."""
        try:
            while True:
                over = await self._over()
                pods = await self._pods()
                for pod in pods:
                    if pod.wrote and pod.metadata.uid not in self._begun:
                        work = self._stream(pod, self._prefix(pod, pods))
                        self._begun[pod.metadata.uid] = asyncio.create_task(work)
                for task in self._begun.values():
                    if task.done():
                        task.result()
                if over and all(task.done() for task in self._begun.values()):
                    return
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._begun.values():
                task.cancel()

    async def _stream(self, pod: LogPod, prefix: bytes) -> None:
        rest = b""
        async with self._api.stream(pod.path(self._container, follow=True), {}) as wire:
            while part := await self._part(wire.read(SILENT_S)):
                head, newline, tail = (rest + part).rpartition(b"\n")
                rest = tail
                if newline:
                    self._lines(prefix, head + newline)
        self._lines(prefix, rest)

    async def _part(self, reading: Coroutine[None, None, bytes]) -> bytes:
        try:
            return await reading
        except Unreachable:
            return b""  # the node went away; what it had sent is printed

    def _lines(self, prefix: bytes, text: bytes) -> None:
        """Print; a line that was never finished ends here where another rank's may follow."""
        if text:
            self.printed += len(text)
            self._put(b"".join(prefix + line + b"\n" for line in text.splitlines()) if prefix else text)

    def _prefix(self, pod: LogPod, pods: list[LogPod]) -> bytes:
        return f"[{pod.rank}] ".encode() if len({each.rank for each in pods}) > 1 else b""

    async def _over(self) -> bool:
        namespace, name = split(self._run)
        try:
            seen = await self._api.get(RUNS, name, namespace, into=OwnSeen)
        except ApiError as error:
            if not error.not_found:
                raise
            if not self._begun:
                raise no_run(self._run) from None
            return True
        return seen.status.get("phase") in _OVER

    async def _pods(self) -> list[LogPod]:
        """The pods whose logs were asked for, in the order of attempts and ranks."""
        namespace, name = split(self._run)
        found = await self._api.list(PODS, namespace, into=LogPod, labels=f"{RUN}={label_value(name)}")
        mine = [
            each for each in found.items if run_of(each.metadata.annotations, namespace) == self._run and each.rank >= 0
        ]
        if not mine and not self._begun:
            await self._over()  # says so where there is no such run
        if self._first is None and mine:
            self._first = max(each.attempt for each in mine)
        chosen = [each for each in mine if each.attempt >= (self._first or 0) and self._rank in (None, each.rank)]
        if self._attempt is not None:
            chosen = [each for each in chosen if each.attempt == self._attempt]
        if mine and not chosen:
            ranks, attempts = (sorted({getattr(each, part) for each in mine}) for part in ("rank", "attempt"))
            remedy = f"it has ranks {ranks[0]} to {ranks[-1]}, attempts {attempts[0]} to {attempts[-1]}"
            raise Refused(Reason.NotFound, f"{short(self._run)} has no such rank or attempt", remedy)
        return sorted(chosen, key=lambda each: (each.attempt, each.rank))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1
