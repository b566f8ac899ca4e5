"""Who leads: one of several controllers, by a `coordination.k8s.io` Lease.

A candidate never compares clocks with the holder. It notes when, by its own steady clock, it saw the Lease change, and takes over
once it has not changed for `lease_s`. The holder renews it every `retry_s` and stops deciding when it could not for `renew_s`,
which is shorter: it knows of its own end before another begins.

A leader that was frozen may still believe. That is no danger: whoever appends to the ledger second loses the race, and steps down
(`kube.journal`). The election only keeps two controllers from working against each other; it does not keep the ledger right.

The libraries tried (lightkube, the official client) have no election, or one that compares the holder's clock with its own.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.resource import ELECTION_LEASES

LEASE_S = 15.0
RENEW_S = 10.0
RETRY_S = 2.0


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str
    namespace: str
    resource_version: str = ""


class _Lease(msgspec.Struct, rename="camel"):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class Election:
    """One candidate. `await acquire()`, then `await hold()`, which returns when leadership is lost; `release()` at the end."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        retry_s: float = RETRY_S,
    ) -> None:
        assert retry_s < renew_s < lease_s, "a holder must know of its end before another begins"
        self.identity = identity
        self.leading = False
        self.holder: str | None = None
        self._api = api
        self._where = (namespace, name)
        self._lease_s, self._renew_s, self._retry_s = lease_s, renew_s, retry_s
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed = 0.0

    async def acquire(self) -> None:
        """Wait until we lead."""
        while not await self._try():  # noqa: ASYNC110 - what we wait for happens on the server
            await asyncio.sleep(self._retry_s)

    async def hold(self) -> None:
        """Renew; return once we no longer lead, or can no longer be sure that we do."""
        loop = asyncio.get_running_loop()
        while self.leading:
            await asyncio.sleep(self._retry_s)
            left_s = self._renewed + self._renew_s - loop.time()
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    self.leading = await self._try() or (self.holder == self.identity and left_s > self._retry_s)
            except TimeoutError:
                self.leading = False

    async def release(self) -> None:
        """Let go at once, so that the next one need not wait; where that fails, it waits as after a crash."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = await self._read()
            if lease is not None and lease.spec.holder_identity == self.identity:
                lease.spec.holder_identity = ""
                lease.spec.lease_duration_seconds = 1
                await self._write(lease)
        except (ApiError, Unreachable):
            return

    async def _try(self) -> bool:
        """Take or renew the Lease, if it is ours, nobody's, or has not changed for too long; says whether we now lead."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            lease = await self._read()
            if lease is None:
                await self._api.ask("POST", ELECTION_LEASES.path(self._where[0]), msgspec.json.encode(self._fresh()))
                return self._leads(begun)
            self.holder = lease.spec.holder_identity or None
            if self.holder != self.identity and not self._abandoned(lease, begun):
                self.leading = False
                return False
            self._claim(lease)
            await self._write(lease)
        except (ApiError, Unreachable):
            return False  # somebody was faster, or nobody can be reached: it is tried again either way
        return self._leads(begun)

    def _abandoned(self, lease: _Lease, now: float) -> bool:
        """Whether the Lease has no holder, or one that has not been heard of for as long as we have listened."""
        version, since = self._seen
        if lease.metadata.resource_version != version:
            self._seen = (lease.metadata.resource_version, now)
            since = now
        waits_s = max(self._lease_s, float(lease.spec.lease_duration_seconds or 0))
        return not lease.spec.holder_identity or now - since >= waits_s

    def _leads(self, since: float) -> bool:
        self.leading, self.holder, self._renewed = True, self.identity, since
        return True

    def _claim(self, lease: _Lease) -> None:
        now = _microtime()
        if lease.spec.holder_identity != self.identity:
            lease.spec.acquire_time = now
            lease.spec.lease_transitions = (lease.spec.lease_transitions or 0) + 1
        lease.spec.holder_identity = self.identity
        lease.spec.lease_duration_seconds = max(1, round(self._lease_s))
        lease.spec.renew_time = now

    def _fresh(self) -> _Lease:
        namespace, name = self._where
        lease = _Lease(_Meta(name, namespace))
        self._claim(lease)
        return lease

    async def _read(self) -> _Lease | None:
        namespace, name = self._where
        try:
            return msgspec.json.decode(await self._api.ask("GET", ELECTION_LEASES.path(namespace, name)), type=_Lease)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _write(self, lease: _Lease) -> None:
        """Put it, only where it is still the one that we read."""
        namespace, name = self._where
        written: Any = msgspec.json.encode(lease)
        await self._api.ask("PUT", ELECTION_LEASES.path(namespace, name), written)


def _microtime() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
