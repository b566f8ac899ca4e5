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
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlease.engine import notice as nt
from fairlease.engine.alarms import alarms
from fairlease.engine.coming import Stage, coming, ending, stages
from fairlease.local import webhook
from fairlease.local.environment import base_environment, notice_environment
from fairlease.local.hook import call
from fairlease.local.outbox import Address, Delivery, Outbox, Sums
from fairlease.local.processes import account_of
from fairlease.local.webhook import Refusal, body_of
from fairlease.model.amount import DAY, MINUTE, SECOND, format_instant
from fairlease.model.record import Key, short
from fairlease.model.writing import write

if TYPE_CHECKING:
    from fairlease.ledger.store import Entry
    from fairlease.local.daemon import Daemon

WEBHOOK, COMMAND, SIGNAL = "webhook", "command", "signal"
AT_ONCE = {WEBHOOK: 1, COMMAND: 4, SIGNAL: 8}
"""Deliveries over a channel that may be under way together; a webhook gets them in their order."""

TRIES_MAX = {WEBHOOK: 30, COMMAND: 5, SIGNAL: 3}
FIRST_WAIT_MS = SECOND // 2
LAST_WAIT_MS = 5 * MINUTE
LATE_MS = MINUTE
"""So long after a cut was due nobody need be told any more that it comes."""

COMMAND_S = 30.0
MANY = 20
"""Notices of one kind and one entry that a webhook gets one by one; more come as one."""

MARK_EVERY = 1_000
LOOK_EVERY_S = 1.0
IDLE_S = 60.0
AGAIN_S = 1.0
CLOSE_S = 1.0
PAUSE_S = 0.05
"""Between two looks, whatever happens: the loop is there to decide."""
BACKLOG_MAX = 10_000


class Gone(Exception):  # noqa: N818 - it says what happened
    """There is nobody to be told any more; the word says why."""


class _Picture(NamedTuple):
    """What a pod's file says."""

    due: int
    claim: Key | None
    text: str


class Notifier:
    """The notices of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._settings = daemon.settings.machine.notify
        self._scheduler = daemon.scheduler
        self._log = daemon.log
        self._outbox = Outbox(daemon.settings.outbox)
        self._marked = 0
        self._backlog: list[nt.Notice] = []
        self._shown: dict[str, bytes] | None = None
        self._wake = asyncio.Event()
        self._stopped = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._told: set[str] = set()
        self._looked: set[tuple[str, str]] = set()
        self._dangers: dict[str, nt.Notice] = {}
        self._look_at_s = 0.0
        self._alarm_at: int | None = 0
        self._channel_at: dict[str, int] = {}
        daemon.metrics.watch_pending(lambda: self.sums().pending)
        self._catch_up()

    def _catch_up(self) -> None:
        """Raise what the last daemon appended and did not come to tell."""
        mark, head = self._outbox.mark(), self._scheduler.head.seq
        if mark is None or mark > head:  # the first of its kind, or another's ledger was put here
            self._outbox.put([], self._daemon.now(), head)
            mark = head
        self._marked = mark
        for entry in self._scheduler.store.entries(after=mark):
            self.follow(entry)

    # --- raising -------------------------------------------------------------------------------------------------------

    def follow(self, entry: Entry) -> None:
        """An entry was appended."""
        self._backlog += nt.of_entry(self._scheduler.state, entry, self._owner_of)
        if self._backlog or entry.seq - self._marked >= MARK_EVERY:
            self._marked = entry.seq
            self._flush()
        self._alarm_at = 0
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
        asked = self._daemon.past.find(run)
        return "" if asked is None else asked.spec.owner

    def _put(self, found: list[nt.Notice], mark: int | None = None) -> None:
        raised = [(each, self._addresses(each)) for each in found]
        if len(found) > MANY and self._settings.webhook is not None:
            raised = _together(raised)
        for each in self._outbox.put(raised, self._daemon.now(), mark):
            self._log.info("notice", kind=each.kind.value, key=each.key, message=each.text)

    def _addresses(self, notice: nt.Notice) -> list[Address]:
        told = self._settings
        if told.kinds and notice.kind not in told.kinds:
            return []
        found = [] if told.webhook is None else [Address(WEBHOOK)]
        if told.command:
            found += [Address(COMMAND, run) for run in notice.concerns] or [Address(COMMAND)]
        if told.signal is not None and notice.kind is nt.Kind.CUT_COMING:
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
        tasks = list(self._tasks.values())
        if tasks:  # what is nearly done need not be done again
            await asyncio.wait(tasks, timeout=CLOSE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outbox.close()

    async def _turn(self) -> float:
        """One look at everything; gives the seconds until something may be due."""
        waits = [IDLE_S]
        if self._backlog:
            self._flush()
            waits.append(AGAIN_S)
        while (stage := self._next_stage(waits)) is not None:
            self._look_ahead(stage)
            await asyncio.sleep(0)  # one rehearsal at a time: whoever asks something comes in between
        waits.append(self._look_at_money())
        self._draw()
        waits.append(self._pump())
        return min(waits)

    def _next_stage(self, waits: list[float]) -> Stage | None:
        """A reservation of which it is time to tell, the last of its stages that has come."""
        now, found, names = self._daemon.now(), dict[str, Stage](), set[str]()
        for stage in stages(self._scheduler.state):
            names.add(stage.name)
            if stage.since <= now:
                found[stage.name] = stage
            else:
                waits.append((stage.since - now) / 1000)
        self._dangers = {name: each for name, each in self._dangers.items() if name in names}
        self._looked = {each for each in self._looked if each[0] in names}
        fresh = [stage for stage in found.values() if (stage.name, stage.word) not in self._looked]
        return min(fresh, key=lambda stage: stage.due, default=None)

    def _look_ahead(self, stage: Stage) -> None:
        self._looked.add((stage.name, stage.word))
        found = coming(self._scheduler.engine, stage, self._daemon.now())
        self._dangers.pop(stage.name, None)
        if found is not None:
            self._dangers[stage.name] = found
            self._raise([found])

    def _look_at_money(self) -> float:
        """Look where something changed or a threshold is reached, not oftener than once a second."""
        now, soon_s = self._daemon.now(), self._look_at_s - time.monotonic()
        if self._alarm_at is None or self._alarm_at > now:
            return IDLE_S if self._alarm_at is None else (self._alarm_at - now) / 1000
        if soon_s > 0:
            return soon_s
        self._look_at_s = time.monotonic() + LOOK_EVERY_S
        found = alarms(self._scheduler.state, now)
        self._alarm_at = found.again_at
        fresh = [each for each in found.notices if each.key not in self._told]
        self._told.update(each.key for each in fresh)
        self._raise(fresh)
        return IDLE_S if found.again_at is None else max(0.0, (found.again_at - now) / 1000)

    # --- the files of pods ---------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Make every pod's file say what comes."""
        pictures: dict[Key, _Picture] = {
            run: _Picture(due, None, "its money no longer covers it")
            for run, due in ending(self._scheduler.state).items()
        }
        for danger in sorted(self._dangers.values(), key=lambda each: each.due or 0, reverse=True):
            for run in danger.concerns:
                if danger.due is not None and (run not in pictures or danger.due < pictures[run].due):
                    pictures[run] = _Picture(danger.due, danger.claim, danger.text)
        wanted: dict[str, bytes] = {}
        pods = self._daemon.processes.pods_by_run()
        for run, picture in pictures.items():
            told = {"kind": nt.Kind.CUT_COMING.value, "run": short(run), "due": format_instant(picture.due)}
            if picture.claim is not None:
                told["claim"] = short(picture.claim)
            body = msgspec.json.encode(told | {"text": picture.text})
            wanted.update(dict.fromkeys(pods.get(short(run), ()), body))
        if wanted != self._shown:
            self._daemon.pods.show_notices(wanted)
            self._shown = wanted

    # --- delivering ----------------------------------------------------------------------------------------------------

    def sums(self) -> Sums:
        """How deliveries stand; what was given up is told for a day."""
        try:
            return self._outbox.sums(self._daemon.now() - DAY)
        except sqlite3.Error as error:
            return Sums(0, 0, f"the outbox cannot be read: {error}")

    def last(self, limit: int, run: Key | None) -> list[tuple[nt.Notice, list[tuple[str, str, str]]]]:
        """The latest notices."""
        return self._outbox.last(limit, run)

    def _pump(self) -> float:
        """Begin what is due and may be under way; gives the seconds until more is due."""
        now, waits = self._daemon.now(), [IDLE_S]
        for channel, at_once in AT_ONCE.items():
            resumes = self._channel_at.get(channel, 0)
            if resumes > now:
                waits.append((resumes - now) / 1000)
                continue
            busy = len(self._tasks)
            for delivery in self._outbox.pending(channel, at_once + busy):
                if delivery.due > now:
                    waits.append((delivery.due - now) / 1000)
                elif delivery.number not in self._tasks and self._busy(channel) < at_once:
                    task = asyncio.get_running_loop().create_task(self._deliver(delivery), name=channel)
                    self._tasks[delivery.number] = task
        return min(waits)

    def _busy(self, channel: str) -> int:
        return sum(task.get_name() == channel for task in self._tasks.values())

    async def _deliver(self, delivery: Delivery) -> None:
        kind = delivery.notice.kind.value
        try:
            result, error = "delivered", ""
            try:
                await self._send(delivery)
            except Gone as why:
                result = str(why)
            except Refusal as refusal:
                error = str(refusal)
                last = refusal.for_good or delivery.tries + 1 >= TRIES_MAX[delivery.address.channel]
                result = "failed" if last else "retried"
            if result == "retried":
                self._postpone(delivery, error)
            else:
                self._outbox.settle(delivery, result, error)
            self._daemon.metrics.notified(kind, result)
            if error:
                self._log.warning("notice not delivered", key=delivery.notice.key, result=result, error=error)
        except sqlite3.Error:
            self._log.exception("a delivery could not be noted")
            self._channel_at[delivery.address.channel] = self._daemon.now() + LAST_WAIT_MS
        finally:
            self._tasks.pop(delivery.number, None)
            self._wake.set()

    def _postpone(self, delivery: Delivery, error: str) -> None:
        wait_ms = min(LAST_WAIT_MS, FIRST_WAIT_MS << min(delivery.tries, 20))
        due = self._daemon.now() + wait_ms
        if delivery.address.channel == WEBHOOK:  # all wait behind it: what one did not reach the next will not either
            self._channel_at[WEBHOOK], due = due, delivery.due
        self._outbox.postpone(delivery, due, error)

    async def _send(self, delivery: Delivery) -> None:
        notice, (channel, run) = delivery.notice, delivery.address
        told = self._settings
        if channel == WEBHOOK and told.webhook is not None:
            await webhook.post(told.webhook, notice)
            return
        if notice.kind is nt.Kind.CUT_COMING and notice.due is not None and self._daemon.now() > notice.due + LATE_MS:
            raise Gone("late")
        if channel == COMMAND and told.command:
            await self._call(notice, Key(run), told.command)
        elif channel == SIGNAL and told.signal is not None:
            self._signal(Key(run), signal.Signals[told.signal])
        else:
            raise Gone("unaddressed")  # the configuration has changed since

    async def _call(self, notice: nt.Notice, run: Key, command: tuple[str, ...]) -> None:
        asked = self._daemon.past.find(run) if run else None
        try:
            user = None if asked is None else account_of(asked.by)
        except LookupError as error:
            raise Refusal(f"{short(run)}: {error}", for_good=True) from None
        environment = base_environment(user, os.environ) | notice_environment(notice, run)
        done = await call(command, environment, user, COMMAND_S, msgspec.json.encode(body_of(notice, run)))
        if done.code:
            raise Refusal(f"the command failed: {done.err or f'exit code {done.code}'}", for_good=False)

    def _signal(self, run: Key, number: signal.Signals) -> None:
        pods = self._daemon.processes.pods_by_run().get(short(run))
        if not pods:
            raise Gone("gone")
        if not sum(self._daemon.pods.signal(pod, number) for pod in pods):
            raise Gone("unheard")


def _together(raised: list[tuple[nt.Notice, list[Address]]]) -> list[tuple[nt.Notice, list[Address]]]:
    """What would be a flood of messages becomes one of each kind."""
    kinds: dict[nt.Kind, list[nt.Notice]] = {}
    for notice, addresses in raised:
        if Address(WEBHOOK) in addresses:
            kinds.setdefault(notice.kind, []).append(notice)
    many = {kind: found for kind, found in kinds.items() if len(found) > MANY}
    kept = [
        (each, [to for to in addresses if each.kind not in many or to.channel != WEBHOOK]) for each, addresses in raised
    ]
    return kept + [(_digest(kind, found), [Address(WEBHOOK)]) for kind, found in many.items()]


def _digest(kind: nt.Kind, found: list[nt.Notice]) -> nt.Notice:
    text = f"{len(found)} × {kind.value}, the first: {found[0].text}"
    dues = [each.due for each in found if each.due is not None]
    return nt.Notice(
        key=f"{found[0].key}/and-{len(found) - 1}-more",
        kind=kind,
        at=found[0].at,
        text=text,
        due=min(dues, default=None),
        gpus=sum(each.gpus for each in found),
    )


def notice_view(notice: nt.Notice, deliveries: list[tuple[str, str, str]]) -> dict[str, Any]:
    """A notice as it is shown, with what became of its deliveries."""
    view = write(notice)
    if deliveries:
        view["deliveries"] = [
            {"channel": channel, "state": state} | ({"run": short(Key(run))} if run else {})
            for channel, run, state in deliveries
        ]
    return view
