"""Courier: carries notices from the outbox to those who are to hear of them, over channels that the backend knows.

What cannot be delivered, whatever the cause, is tried again, later each time, and given up in the end; a crash loses nothing that
the outbox remembers, and repeats at most what was under way. A warning that could not be delivered in time is dropped.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.amount import MINUTE, SECOND
from fairlease.report import notices as nt
from fairlease.runtime.notify.outbox import Address, Delivery, Outbox
from fairlease.runtime.notify.webhook import DeliveryRefusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from fairlease.runtime.metrics import Metrics

WEBHOOK = "webhook"
WEBHOOK_TRIES = 30
FIRST_WAIT_MS = SECOND // 2
LAST_WAIT_MS = 5 * MINUTE
MANY = 20
"""Notices of one kind and one entry that a webhook gets one by one; more come as one."""
EXPIRED = "expired"
"""What becomes of a warning whose time has passed."""
IDLE_S = 60.0
CLOSE_S = 1.0


class RecipientGone(Exception):  # noqa: N818 - it says what happened
    """There is nobody to be told any more; the word says why."""


class Channel(NamedTuple):
    """How many deliveries may be under way together, how often one is tried, and whether all wait behind one that failed."""

    at_once: int
    tries_max: int
    in_order: bool = False


class Dispatcher:
    """Delivers; `send` raises `Refusal` where it could not, and `Gone` where there is nobody any more."""

    def __init__(
        self,
        outbox: Outbox,
        channels: dict[str, Channel],
        send: Callable[[Delivery], Awaitable[None]],
        now: Callable[[], int],
        wake: Callable[[], None],
        metrics: Metrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._outbox, self._channels, self._send, self._now, self._wake = outbox, channels, send, now, wake
        self._metrics, self._log = metrics, log
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._resumes: dict[str, int] = {}

    def pump(self) -> float:
        """Begin what is due and may be under way; gives the seconds until more is due."""
        now, waits = self._now(), [IDLE_S]
        for name, channel in self._channels.items():
            resumes = self._resumes.get(name, 0)
            if resumes > now:
                waits.append((resumes - now) / 1000)
                continue
            busy = len(self._tasks)
            for delivery in self._outbox.pending(name, channel.at_once + busy):
                if delivery.due > now:
                    waits.append((delivery.due - now) / 1000)
                elif delivery.number not in self._tasks and self._busy(name) < channel.at_once:
                    task = asyncio.get_running_loop().create_task(self._deliver(delivery), name=name)
                    self._tasks[delivery.number] = task
        return min(waits)

    async def close(self) -> None:
        """Stop; what is not delivered yet is for whoever comes next."""
        tasks = list(self._tasks.values())
        if tasks:  # what is nearly done need not be done again
            await asyncio.wait(tasks, timeout=CLOSE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _busy(self, channel: str) -> int:
        return sum(task.get_name() == channel for task in self._tasks.values())

    async def _deliver(self, delivery: Delivery) -> None:
        kind, channel = delivery.notice.kind.value, self._channels[delivery.address.channel]
        try:
            result, error = await self._tried(delivery, channel.tries_max)
            if result == "retried":
                self._postpone(delivery, error, in_order=channel.in_order)
            else:
                self._outbox.settle(delivery, result, error, self._now())
            self._metrics.notified(kind, result)
            if error or result == EXPIRED:
                self._log.warning("notice not delivered", key=delivery.notice.key, result=result, error=error)
        except sqlite3.Error:
            self._log.exception("a delivery could not be noted")
            self._resumes[delivery.address.channel] = self._now() + LAST_WAIT_MS
        finally:
            self._tasks.pop(delivery.number, None)
            self._wake()

    async def _tried(self, delivery: Delivery, tries_max: int) -> tuple[str, str]:
        """What came of one try, and what went wrong with it."""
        if delivery.notice.expired(self._now()):
            return EXPIRED, ""
        try:
            await self._send(delivery)
        except RecipientGone as why:
            return str(why), ""
        except DeliveryRefusal as refusal:
            error, for_good = str(refusal), refusal.for_good
        except Exception as fault:  # noqa: BLE001 - it is logged; one that nobody thought of must not be tried without end
            self._log.exception("a delivery failed", key=delivery.notice.key)
            error, for_good = f"{type(fault).__name__}: {fault}", False
        else:
            return "delivered", ""
        return ("failed" if for_good or delivery.tries + 1 >= tries_max else "retried"), error

    def _postpone(self, delivery: Delivery, error: str, *, in_order: bool) -> None:
        wait_ms = min(LAST_WAIT_MS, FIRST_WAIT_MS << min(delivery.tries, 20))
        due = self._now() + wait_ms
        if in_order:  # all wait behind it: what one did not reach the next will not either
            self._resumes[delivery.address.channel], due = due, delivery.due
        self._outbox.postpone(delivery, due, error)


def together(raised: list[tuple[nt.Notice, list[Address]]]) -> list[tuple[nt.Notice, list[Address]]]:
    """What would be a flood of messages to a webhook becomes one of each kind."""
    if len(raised) <= MANY:
        return raised
    kinds: dict[nt.NoticeKind, list[nt.Notice]] = {}
    for notice, addresses in raised:
        if Address(WEBHOOK) in addresses:
            kinds.setdefault(notice.kind, []).append(notice)
    many = {kind: found for kind, found in kinds.items() if len(found) > MANY}
    kept = [
        (each, [to for to in addresses if each.kind not in many or to.channel != WEBHOOK]) for each, addresses in raised
    ]
    return kept + [(_digest(kind, found), [Address(WEBHOOK)]) for kind, found in many.items()]


def _digest(kind: nt.NoticeKind, found: list[nt.Notice]) -> nt.Notice:
    text = f"{len(found)} × {kind.value}, the first: {found[0].text}"
    dues = [each.due for each in found if each.due is not None]
    return nt.Notice(
        key=f"{found[0].key}/and-{len(found) - 1}-more",
        kind=kind,
        at=found[0].at,
        text=text,
        due=max(dues, default=None),  # as long as one of them is to come, it is worth a word
        gpus=sum(each.gpus for each in found),
    )
