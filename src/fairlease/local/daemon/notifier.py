"""Notifier: tells people and programs what the engine has to tell, beside the loop that decides.

Notices come from the entries of the ledger as they are appended, and from looks at the state: at reservations that come, at money
that runs low. All are kept in the outbox before anybody is told, each with the addresses it goes to: the webhook, the operator's
command (as the user of the run that it is about), a signal to the run's processes. What cannot be delivered is tried again, later
each time, and given up in the end; a crash loses nothing and repeats at most what was under way.

The file that every pod finds in FAIRLEASE_NOTICE_FILE is no delivery but a picture: while a cut of its run comes it is there, and
tells when; when the danger is over it is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.local.processes.environment import notice_environment
from fairlease.local.processes.processes import account_of
from fairlease.model.amount import DAY
from fairlease.model.record import Key, short
from fairlease.model.writing import write
from fairlease.report import notices as nt
from fairlease.runtime.notify import webhook
from fairlease.runtime.notify.alert_rules import IDLE_S, AlertRules
from fairlease.runtime.notify.dispatcher import WEBHOOK, WEBHOOK_TRIES, Channel, Dispatcher, RecipientGone, together
from fairlease.runtime.notify.outbox import Address, Delivery, Outbox, Sums
from fairlease.runtime.notify.webhook import DeliveryRefusal, body_of
from fairlease.runtime.processes.hook import call
from fairlease.runtime.processes.login import base_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from fairlease.ledger.store.protocol import Entry
    from fairlease.local.daemon.config import Settings
    from fairlease.local.processes.pods import Pods
    from fairlease.local.processes.processes import Processes
    from fairlease.runtime.metrics import Metrics
    from fairlease.runtime.queries.history import RunHistory
    from fairlease.scheduler import Scheduler

COMMAND, SIGNAL = "command", "signal"
CHANNELS = {WEBHOOK: Channel(1, WEBHOOK_TRIES, in_order=True), COMMAND: Channel(4, 5), SIGNAL: Channel(8, 3)}
"""A webhook gets notices in their order."""

COMMAND_S = 30.0
MARK_EVERY = 1_000
AGAIN_S = 1.0
PAUSE_S = 0.05
"""Between two looks, whatever happens: the loop is there to decide."""
BACKLOG_MAX = 10_000


class Notifier:
    """The notices of one daemon."""

    def __init__(
        self,
        scheduler: Scheduler,
        past: RunHistory,
        processes: Processes,
        pods: Pods,
        settings: Settings,
        now: Callable[[], int],
        metrics: Metrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._scheduler, self._past, self._now = scheduler, past, now
        self._processes, self._pods = processes, pods
        self._settings = settings.machine.notify
        self._log = log
        self._outbox = Outbox(settings.outbox)
        self._marked = 0
        self._backlog: list[nt.Notice] = []
        self._shown: dict[str, bytes] | None = None
        self._wake = asyncio.Event()
        self._stopped = False
        self._lookout = AlertRules(scheduler, now, self._owner_of)
        self._courier = Dispatcher(self._outbox, CHANNELS, self._send, now, self._wake.set, metrics, log)
        metrics.watch_pending(lambda: self.sums().pending)
        self._catch_up()

    def _catch_up(self) -> None:
        """Raise what the last daemon appended and did not come to tell."""
        mark, head = self._outbox.mark(), self._scheduler.head.seq
        if mark is None or mark > head:  # the first of its kind, or another's ledger was put here
            self._outbox.put([], self._now(), head)
            mark = head
        self._marked = mark
        for entry in self._scheduler.store.entries(after=mark):
            self.follow(entry)

    # --- raising -------------------------------------------------------------------------------------------------------

    def follow(self, entry: Entry) -> None:
        """An entry was appended."""
        self._backlog += self._lookout.follow(entry)
        if self._backlog or entry.seq - self._marked >= MARK_EVERY:
            self._marked = entry.seq
            self._flush()
        self._wake.set()

    def _raise(self, found: list[nt.Notice]) -> None:
        self._backlog += found
        if self._backlog:
            self._flush()

    def _flush(self) -> None:
        """Write down what was raised; a disk that takes nothing is asked again, and the mark waits with it."""
        found, self._backlog = self._backlog[-BACKLOG_MAX:], []
        try:
            self._put(found, self._marked)
        except sqlite3.Error:
            self._backlog = found + self._backlog
            self._log.exception("notices could not be written down", notices=len(found))

    def _owner_of(self, run: Key) -> str:
        asked = self._past.find(run)
        return "" if asked is None else asked.spec.owner

    def _put(self, found: list[nt.Notice], mark: int | None = None) -> None:
        raised = together([(each, self._addresses(each)) for each in found])
        for each in self._outbox.put(raised, self._now(), mark):
            self._log.info("notice", kind=each.kind.value, key=each.key, message=each.text)

    def _addresses(self, notice: nt.Notice) -> list[Address]:
        told = self._settings
        if told.kinds and notice.kind not in told.kinds:
            return []
        found = [] if told.webhook is None else [Address(WEBHOOK)]
        if told.command:
            found += [Address(COMMAND, run) for run in notice.concerns] or [Address(COMMAND)]
        if told.signal is not None and notice.kind is nt.NoticeKind.CUT_COMING:
            found += [Address(SIGNAL, run) for run in notice.concerns]
        return found

    # --- looking -------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Look, tell, wait for what comes next; until the daemon stops."""
        while not self._stopped:
            self._wake.clear()
            try:
                wait_s = await self._turn()
            except Exception:  # noqa: BLE001 - it is logged, and tried again: telling must not end because one thing cannot be told
                self._log.exception("notices could not be told")
                wait_s = AGAIN_S
            await asyncio.sleep(PAUSE_S)
            try:
                async with asyncio.timeout(max(wait_s, 0.01)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Stop telling; what is not delivered yet is for the next daemon."""
        self._stopped = True
        self._wake.set()
        await self._courier.close()
        self._outbox.close()

    async def _turn(self) -> float:
        """One look at everything; gives the seconds until something may be due."""
        waits = [IDLE_S]
        if self._backlog:
            self._flush()
            waits.append(AGAIN_S)
        while (stage := self._lookout.next_stage(waits)) is not None:
            found = self._lookout.look_ahead(stage)
            self._raise([] if found is None else [found])
            await asyncio.sleep(0)  # one rehearsal at a time: whoever asks something comes in between
        alarms, again_s = self._lookout.look_at_money()
        self._raise(alarms)
        waits.append(again_s)
        self._draw()
        waits.append(self._courier.pump())
        return min(waits)

    # --- the files of pods ---------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Make every pod's file say what comes."""
        wanted: dict[str, bytes] = {}
        pods = self._processes.pods_by_run()
        for run, picture in self._lookout.pictures().items():
            wanted.update(dict.fromkeys(pods.get(short(run), ()), msgspec.json.encode(picture.told(run))))
        if wanted != self._shown:
            self._pods.show_notices(wanted)
            self._shown = wanted

    # --- delivering ----------------------------------------------------------------------------------------------------

    def sums(self) -> Sums:
        """How deliveries stand; what was given up is told for a day."""
        try:
            return self._outbox.sums(self._now() - DAY)
        except sqlite3.Error as error:
            return Sums(0, 0, f"the outbox cannot be read: {error}")

    def last(self, limit: int, run: Key | None) -> list[dict[str, Any]]:
        """The latest notices as they are shown, with what became of their deliveries."""
        return [_view(notice, deliveries) for notice, deliveries in self._outbox.last(limit, run)]

    async def _send(self, delivery: Delivery) -> None:
        notice, (channel, run) = delivery.notice, delivery.address
        told = self._settings
        if channel == WEBHOOK and told.webhook is not None:
            await webhook.post(told.webhook, notice)
            return
        if channel == COMMAND and told.command:
            await self._call(notice, Key(run), told.command)
        elif channel == SIGNAL and told.signal is not None:
            self._signal(Key(run), signal.Signals[told.signal])
        else:
            raise RecipientGone("unaddressed")  # the configuration has changed since

    async def _call(self, notice: nt.Notice, run: Key, command: tuple[str, ...]) -> None:
        asked = self._past.find(run) if run else None
        try:
            user = None if asked is None else account_of(asked.by)
        except LookupError as error:
            raise DeliveryRefusal(f"{short(run)}: {error}", for_good=True) from None
        environment = base_environment(user, os.environ) | notice_environment(notice, run)
        done = await call(command, environment, user, COMMAND_S, msgspec.json.encode(body_of(notice, run)))
        if done.code:
            raise DeliveryRefusal(f"the command failed: {done.err or f'exit code {done.code}'}", for_good=False)

    def _signal(self, run: Key, number: signal.Signals) -> None:
        pods = self._processes.pods_by_run().get(short(run))
        if not pods:
            raise RecipientGone("gone")
        if not sum(self._pods.signal(pod, number) for pod in pods):
            raise RecipientGone("unheard")


def _view(notice: nt.Notice, deliveries: list[tuple[str, str, str]]) -> dict[str, Any]:
    view = write(notice)
    if deliveries:
        view["deliveries"] = [
            {"channel": channel, "state": state} | ({"run": short(Key(run))} if run else {})
            for channel, run, state in deliveries
        ]
    return view
