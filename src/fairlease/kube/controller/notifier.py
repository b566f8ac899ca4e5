"""Notifier: tells people what the engine has to tell, as Events on the objects concerned, and to a webhook where one is named.

What is told is what is told on one machine (`backend.lookout`), and so is how (`backend.courier`). An Event's name follows from the
notice's key, so that a second controller, or this one after a crash, finds it there. Events live for an hour; what was told, and up
to which entry, is therefore kept in a ConfigMap beside the controller as well. It is no part of the ledger: a lost one costs
notices told twice.

The pods of a run that may be cut are shown when, for as long as that is so (`kube.rendezvous`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.resource import BUDGETS, CONFIG_MAPS, EVENTS, RUNS, Resource
from fairlease.kube.api.wire_types import ConfigSeen
from fairlease.kube.projection.event_recorder import happening
from fairlease.report import notices as nt
from fairlease.runtime.notify import webhook
from fairlease.runtime.notify.alert_rules import IDLE_S, AlertRules
from fairlease.runtime.notify.dispatcher import WEBHOOK, WEBHOOK_TRIES, Channel, Dispatcher, RecipientGone, together
from fairlease.runtime.notify.outbox import Address, Delivery, Outbox
from fairlease.runtime.notify.webhook import DeliveryRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from structlog.typing import FilteringBoundLogger

    from fairlease.kube.api.cache import ClusterCache
    from fairlease.kube.api.connection import Api
    from fairlease.kube.projection.projector import Projector
    from fairlease.kube.settings import ClusterSettings
    from fairlease.ledger.store.protocol import Entry
    from fairlease.runtime.metrics import Metrics
    from fairlease.scheduler import Decider

EVENT = "event"
CHANNELS = {EVENT: Channel(8, 30), WEBHOOK: Channel(1, WEBHOOK_TRIES, in_order=True)}
MEMORY = "fairlease-notices"
"""The ConfigMap that remembers what was told."""
KEYS_MAX = 1_000
"""Keys that it remembers, the latest."""
REMEMBER_S = 5.0
AGAIN_S, PAUSE_S = 2.0, 0.1
BACKLOG_MAX = 10_000

BY_STORY = frozenset(
    {
        nt.NoticeKind.RUN_STARTED,
        nt.NoticeKind.RESERVATION_BLOCKED,
        nt.NoticeKind.LATEST_START_PASSED,
        nt.NoticeKind.OVERDRAWN,
        nt.NoticeKind.HOURS_USED_UP,
    }
)
"""Kinds that are no Events of their own: the Event of what happened says the same, at the same object (`kube.tidings`)."""
QUIET = frozenset({nt.NoticeKind.RESERVATION_ACTIVE, nt.NoticeKind.RUN_STARTED})


class Memory(msgspec.Struct, frozen=True):
    """What the ConfigMap holds."""

    mark: int
    told: list[tuple[str, int]]


class ClusterNotifier:
    """The notices of one leadership. `turn` is called while nothing is being decided; deliveries go on beside the loop."""

    def __init__(
        self,
        api: Api,
        sight: ClusterCache,
        decider: Decider,
        projector: Projector,
        now: Callable[[], int],
        settings: ClusterSettings,
        metrics: Metrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._api, self._sight, self._now, self._settings, self._log = api, sight, now, settings, log
        self._rendezvous = projector.gangs.rendezvous
        self._outbox = Outbox(":memory:")
        self._lookout = AlertRules(decider, now, projector.owner_of)
        self._courier = Dispatcher(self._outbox, CHANNELS, self._send, now, self._soon, metrics, log)
        self._seq = decider.head.seq
        self._remembered: Memory | None = None
        self._remember_at = self._turn_at = self._looked_at = 0.0
        self._changed = True
        self._closed = False
        self._saving: asyncio.Task[None] | None = None
        metrics.watch_pending(self._pending)

    def _soon(self) -> None:
        self._turn_at = 0.0
        self._sight.wake.set()

    def _pending(self) -> int:
        return 0 if self._closed else self._outbox.sums(0).pending

    # --- beginning and end -----------------------------------------------------------------------------------------------

    async def open(self, entries: Iterable[Entry]) -> None:
        """Take over from whoever led before: what was appended and not told is told now."""
        memory = await self._read()
        if memory is None or memory.mark > self._seq:  # the first of its kind, or another's ledger was put here
            return
        kept = [nt.Notice(key=key, kind=nt.NoticeKind.RUN_STARTED, at=at, text="") for key, at in reversed(memory.told)]
        self._outbox.put([(each, []) for each in kept], self._now())
        self._remembered = memory
        for entry in entries:
            if entry.seq > memory.mark:
                self._raise(self._lookout.follow(entry))

    async def close(self) -> None:
        """Finish what is nearly done, and remember what was told."""
        await self._courier.close()
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)
        await self._save(self._memory())

    async def stop(self) -> None:
        """Tell nothing more, at once."""
        self._closed = True
        await self._courier.close()
        if self._saving is not None:
            self._saving.cancel()
        self._outbox.close()

    async def _read(self) -> Memory | None:
        try:
            found = await self._api.get(CONFIG_MAPS, MEMORY, self._settings.namespace, into=ConfigSeen)
            return msgspec.json.decode(found.data.get("told", ""), type=Memory)
        except ApiError as error:
            if not error.not_found:
                self._log.warning("what was told before cannot be read", error=str(error))
        except (Unreachable, msgspec.DecodeError) as error:
            self._log.warning("what was told before cannot be read", error=str(error))
        return None

    # --- raising ---------------------------------------------------------------------------------------------------------

    def follow(self, entry: Entry) -> None:
        """An entry was appended."""
        self._seq = entry.seq
        self._turn_at = 0.0
        try:
            self._raise(self._lookout.follow(entry))
        except Exception:  # noqa: BLE001 - it is true by now, whatever goes wrong with the telling
            self._log.exception("an entry was not told", seq=entry.seq)

    def _raise(self, found: list[nt.Notice]) -> None:
        raised = together([(each, list(self._addresses(each))) for each in found[-BACKLOG_MAX:]])
        for each in self._outbox.put(raised, self._now()):
            self._turn_at, self._changed = 0.0, True
            self._log.info("notice", kind=each.kind.value, key=each.key, message=each.text)

    def _addresses(self, notice: nt.Notice) -> Iterator[Address]:
        told = self._settings.cluster.notify
        if notice.kind not in BY_STORY:
            yield from (Address(EVENT, run) for run in notice.concerns)
            if notice.budget is not None and notice.run is None:
                yield Address(EVENT)
        if (told.webhook or told.webhook_file) and (not told.kinds or notice.kind in told.kinds):
            yield Address(WEBHOOK)

    def turn(self, *, busy: bool) -> None:
        """Look at what comes and at money, and send what is due. While decisions wait (`busy`) nothing is thought through."""
        if self.wait_s() > 0:
            return
        self._looked_at = time.monotonic()
        try:
            self._turn_at = self._looked_at + self._look(busy=busy)
            self._remember()
        except Exception:  # noqa: BLE001 - telling must not end, nor anything else, because one thing cannot be told
            self._log.exception("notices could not be told")
            self._turn_at = time.monotonic() + AGAIN_S

    def _look(self, *, busy: bool) -> float:
        waits = [IDLE_S]
        if not busy:
            stage = self._lookout.next_stage(waits)
            if stage is not None:
                found = self._lookout.look_ahead(stage)
                self._raise([] if found is None else [found])
                waits.append(0.0)  # one rehearsal at a time: what is to be decided comes in between
            alarms, again_s = self._lookout.look_at_money()
            self._raise(alarms)
            waits.append(again_s)
            self._draw()
        else:
            waits.append(AGAIN_S)
        waits.append(self._courier.pump())
        if self._changed:
            waits.append(max(self._remember_at - time.monotonic(), 0.1))
        return min(waits)

    def wait_s(self) -> float:
        """Seconds until the next turn may bring something. There is a pause between two: the loop is there to decide."""
        return max(0.0, max(self._turn_at, self._looked_at + PAUSE_S) - time.monotonic())

    def _draw(self) -> None:
        """Have the pods of every run shown what comes."""
        pictures, shown = self._lookout.pictures(), self._rendezvous.pictures
        changed = {run for run in pictures.keys() | shown.keys() if pictures.get(run) != shown.get(run)}
        if changed:
            self._rendezvous.pictures = pictures
            self._sight.marks.written_runs |= changed
            self._sight.wake.set()

    # --- delivering ------------------------------------------------------------------------------------------------------

    async def _send(self, delivery: Delivery) -> None:
        notice, (channel, run) = delivery.notice, delivery.address
        if channel == WEBHOOK:
            await webhook.post(self._url(), notice)
        elif run:
            await self._tell(notice, RUNS, run)
        elif notice.budget is not None:
            await self._tell(notice, BUDGETS, notice.budget)

    def _url(self) -> str:
        """Where to: as it was told, or as a file (of a Secret, which may be renewed) says now."""
        told = self._settings.cluster.notify
        if told.webhook_file is None:
            return told.webhook or ""
        try:
            url = Path(told.webhook_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise DeliveryRefusal(f"the webhook's address cannot be read: {error}", for_good=False) from None
        if not url.startswith(("http://", "https://")):
            raise DeliveryRefusal(f"{told.webhook_file} holds no address of a webhook", for_good=False)
        return url

    async def _tell(self, notice: nt.Notice, what: Resource, about: str) -> None:
        """Write the Event. One that is there was told before; where the namespace goes, nobody is left to be told."""
        seen = (self._sight.runs if what is RUNS else self._sight.budgets).objects.get(about)
        if seen is None:
            raise RecipientGone("gone")
        meta = seen.metadata
        warning = notice.kind not in QUIET
        body = happening(
            what, meta, event_name(meta.name, notice.key), notice.at, notice.kind.value, notice.text,
            self._settings.identity, warning=warning,
        )  # fmt: skip
        try:
            await self._api.create(EVENTS, body, meta.namespace)
        except ApiError as error:
            if not error.already_exists:
                raise DeliveryRefusal(f"the Event could not be written: {error}", for_good=False) from None
        except Unreachable as error:
            raise DeliveryRefusal(f"the Event could not be written: {error}", for_good=False) from None

    # --- remembering -----------------------------------------------------------------------------------------------------

    def _memory(self) -> Memory:
        """What was told, the latest; while something is on its way, up to no entry further than before."""
        told = [(notice.key, notice.at) for notice, sent in self._outbox.last(KEYS_MAX) if _over(sent)]
        before = self._remembered
        return Memory(before.mark if self._pending() and before is not None else self._seq, told)

    def _remember(self) -> None:
        """Keep it where the next one finds it, not oftener than every few seconds."""
        if not self._changed or time.monotonic() < self._remember_at or self._saving is not None:
            return
        memory, before = self._memory(), self._remembered
        self._changed = bool(self._pending())
        self._remember_at = time.monotonic() + REMEMBER_S
        if before is not None and memory.told == before.told:
            return
        self._saving = asyncio.create_task(self._save(memory))
        self._saving.add_done_callback(self._saved)

    def _saved(self, _: asyncio.Task[None]) -> None:
        self._saving = None

    async def _save(self, memory: Memory) -> None:
        data = {"told": msgspec.json.encode(memory).decode()}
        namespace = self._settings.namespace
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MEMORY}, "data": data}
        try:
            try:
                await self._api.patch(CONFIG_MAPS, MEMORY, {"data": data}, namespace)
            except ApiError as error:
                if not error.not_found:
                    raise
                with suppress(ApiError):
                    await self._api.create(CONFIG_MAPS, body, namespace)
        except (ApiError, Unreachable) as error:
            self._log.warning("what was told cannot be remembered", error=str(error))
            return
        self._remembered = memory


def event_name(about: str, key: str) -> str:
    """The name of the Event of a notice: the same for the same key, whoever tells it."""
    return f"{about[:200].rstrip('-.')}.{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _over(sent: list[tuple[str, str, str]]) -> bool:
    return all(state != "pending" for _, _, state in sent)
