"""One leadership: a ledger that was opened, a state, and the loop that decides, appends and projects, until it is lost.

    gather    what was marked as seen or changed, compared with the state, becomes commands; timers that fell due
    tick      one decision over all of them, and one append: the commit
    project   objects that are not as the ledger says are written

Nothing else changes the state, and nothing is projected while a decision waits for its append: what is written is always true.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.engine import command as cmd
from fairlease.kube.api.annotation_commands import FRESH_MS
from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.controller.notifier import ClusterNotifier
from fairlease.kube.controller.observation import Observer, instant
from fairlease.kube.ledger.archive import BadArchive, HistoryMissing, read_events, read_past
from fairlease.kube.projection.projector import Projector, Remarks
from fairlease.kube.projection.tombstones import Tombstones
from fairlease.ledger.state import events as ev
from fairlease.reason import Reason
from fairlease.runtime.beacon import Beacon
from fairlease.runtime.clock import LedgerClock
from fairlease.runtime.forecast_refresh import Refresh
from fairlease.scheduler import Decider, Tick, beginning

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from fairlease.kube.api.cache import ClusterCache
    from fairlease.kube.api.connection import Api
    from fairlease.kube.ledger.archive import Archive
    from fairlease.kube.ledger.journal import Journal
    from fairlease.kube.settings import ClusterSettings
    from fairlease.ledger.store.protocol import Entry, Snapshot
    from fairlease.model.record import Key
    from fairlease.runtime.metrics import Metrics

COMMANDS_MAX = 4_000
"""Commands in one tick: what is more waits for the next, the loop must not stand still."""

COMPARE_S = 180.0
"""How often everything is compared, marked or not."""

FORECAST_S = 5.0
"""Between two forecasts: each that moved something is an entry, and so an object in etcd."""

AGAIN_S = 0.2
LAST_S = 5.0
SNAPSHOT_BYTES = 128 << 20
"""Bytes of entries after which a snapshot is due, however few they are: etcd holds no more than some gigabytes."""
LOOK_S = 0.1
"""Between two looks at whether the pod of a rank that was taken over runs: that is no news to anything but a metric."""
SNAPSHOT_AGAIN_S = 30.0
SNAPSHOT_LATE_S = 300.0
LINES_MAX = 50


class _Due(NamedTuple):
    """A snapshot that is to be kept; how many bytes of entries it stands for, and when waiting for it is worth a word."""

    snapshot: Snapshot
    size: int
    late_at: float


class LeaderLoop:
    """The scheduler of a cluster, for as long as it leads."""

    def __init__(
        self,
        api: Api,
        journal: Journal,
        sight: ClusterCache,
        settings: ClusterSettings,
        metrics: Metrics,
        log: FilteringBoundLogger,
        archive: Archive | None,
    ) -> None:
        self._api, self._journal, self._sight, self._settings = api, journal, sight, settings
        self._metrics, self._log, self._archive = metrics, log, archive
        self.decider = Decider(journal)
        begins, since = beginning(journal)
        chronicle = Tombstones(begins, journal.entries(since))
        self._chronicle = chronicle
        self._remarks, backoff_ms = Remarks(), settings.cluster.retry_backoff
        self._observer = Observer(self.decider.state, sight, chronicle, self._remarks, self.now, backoff_ms)
        self.projector = Projector(api, sight, self.decider, chronicle, self._remarks, settings, metrics, log)
        self._clock = LedgerClock(lambda ms: log.warning("the clock was set back; time goes on steadily", behind_ms=ms))
        self._stopping = False
        self._not_before = 0.0
        self._since = since
        self._saved = (since - settings.cluster.snapshot_every if journal.rebuilt else since, 0)
        """The entry of the last snapshot that the next start can read, and the bytes behind it; without one, one is due at once."""
        self._due: _Due | None = None
        self._compare_at = self._snapshot_at = 0.0
        self._refresh = Refresh(FORECAST_S)
        self._notifier = ClusterNotifier(api, sight, self.decider, self.projector, self.now, settings, metrics, log)
        self._beacon = Beacon(settings.cluster.beacon, self.decider.state, self.now, metrics, log)
        self._by_hand: list[cmd.AnyCommand] = []
        """What administrators asked to be freed, while the beacon is asked for it: nobody else waits for that."""
        self._hearing: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()
        self.decided = asyncio.Event()
        metrics.follow(self.decider.state)

    def now(self) -> int:
        """Wall-clock milliseconds that never run backwards."""
        return self._clock.now(self.decider.state.at)

    def stop(self) -> None:
        """Decide nothing more; what is being appended is finished."""
        self._stopping = True
        self._sight.wake.set()

    async def run(self) -> None:
        """Decide until told to stop. Raises `Conflict` where another has appended."""
        self.projector.writer.start()
        try:
            await self._notifier.open(self._journal.entries(self._since))
            await self._beacon.open()
            if self._observer.asks_lately():
                self._chronicle.recall(await read_events(self._api, self.now() - 2 * FRESH_MS))
            self._look_at_everything()
            while not self._stopping:
                self._sight.wake.clear()
                await self._tick(self._gather())
                self.decided.set()
                if time.monotonic() >= self._compare_at:
                    self._look_at_everything()
                self.projector.turn(self.now())
                self._look_back()
                self._keep_snapshot()
                await self._foresee()
                self._notifier.turn(busy=self._sight.marks.news())
                if self._metrics.changes.waiting:
                    self._metrics.changes.look(self._sight.runs_on)
                if self.projector.sweeping:
                    await asyncio.sleep(0)
                elif not self._sight.marks.news():
                    await self._sleep()
            await self._last_snapshot()
            await self._notifier.close()
        finally:
            self._beacon.close()
            await self._notifier.stop()
            await self.projector.writer.stop()
            for task in self._aside | ({self._hearing} if self._hearing is not None else set()):
                task.cancel()

    def _look_at_everything(self) -> None:
        self._compare_at = time.monotonic() + COMPARE_S
        self._sight.mark_all()
        marks = self._sight.marks
        marks.nodes |= self._observer.lost_nodes()
        marks.runs |= self._observer.lost_runs()
        marks.reports |= self.decider.state.runs.keys()
        marks.budgets |= {each for each in self.decider.state.budgets if each not in self._sight.budgets.objects}
        self.projector.mark_all()
        self.projector.look_for_lost()

    async def _foresee(self) -> None:
        """Say when those who wait will start, where facts changed and nothing more urgent is to be decided."""
        if not self._refresh.due(busy=self._sight.marks.news()):
            return
        begun = time.monotonic()
        await self._decide([cmd.Forecast()])
        self._refresh.made(begun)

    async def _sleep(self) -> None:
        """Until something is seen, a write is done, a timer falls due, or a forecast is."""
        waits = [max(0.0, self._compare_at - time.monotonic()), max(self._notifier.wait_s(), 0.001)]
        if (refresh_s := self._refresh.wait_s()) is not None:
            waits.append(max(refresh_s, 0.001))
        if self._metrics.changes.waiting:
            waits.append(LOOK_S)
        timer = self.decider.next_timer()
        if timer is not None:
            due_s = (timer - self.now() + 1) / 1000  # a millisecond late rather than one early
            waits.append(max(due_s, self._not_before - time.monotonic(), 0.001))
        try:
            async with asyncio.timeout(min(waits)):
                await self._sight.wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(0)  # what came together is decided together

    # --- one tick --------------------------------------------------------------------------------------------------------

    def _gather(self) -> list[cmd.AnyCommand]:
        """What is to be decided: everything that is marked, as far as one tick goes."""
        marks, observer = self._sight.marks, self._observer
        held = self._settings.hold or self._sight.held
        if held != observer.held:
            observer.held = held
            marks.nodes.update(self._sight.nodes.objects)
        commands: list[cmd.AnyCommand] = []
        if self.decider.state.at == 0 or self.decider.state.config != self._settings.policy:
            commands.append(cmd.Configure(config=self._settings.policy))
        nodes, marks.nodes = marks.nodes, set()
        budgets, marks.budgets = marks.budgets, set()
        reports, marks.reports = marks.reports, set()
        commands += observer.nodes(nodes)
        commands += observer.budgets(budgets)
        commands += observer.reports(reports, self.projector.gangs)
        if marks.asked:
            marks.asked = False
            self._by_hand += observer.resolutions()
            if self._by_hand and self._hearing is None and (heard := self._beacon.hear()) is not None:
                self._hearing = heard
                heard.add_done_callback(lambda _: self._sight.wake.set())
        if self._hearing is None or self._hearing.done():
            commands += self._by_hand
            self._by_hand, self._hearing = [], None
        runs, marks.runs = marks.runs, set()
        asked = list(observer.runs(runs))
        if len(commands) + len(asked) > COMMANDS_MAX:
            kept = max(1, COMMANDS_MAX - len(commands))
            later = cmd.Submit | cmd.Cancel | cmd.Resize | cmd.SetFunding | cmd.Drill
            marks.runs |= {each.run for each in asked[kept:] if isinstance(each, later)}
            asked = asked[:kept]
        return [*commands, *asked]

    async def _tick(self, commands: list[cmd.AnyCommand]) -> None:
        timer = self.decider.next_timer()
        due = timer is not None and timer <= self.now() and time.monotonic() >= self._not_before
        if not commands and not due:
            return
        if not await self._decide([*commands, cmd.TimePassed()]):
            for each in commands:  # one bad egg spoils no other
                await self._decide([each])

    async def _decide(self, commands: list[cmd.AnyCommand]) -> bool:
        """Decide and append; says whether it could be decided. What cannot is a fault of ours, and is logged."""
        begun = time.perf_counter()
        try:
            at = self.now()
            self.decider.engine.beacon = self._beacon.value(at, commands)
            proposal = self.decider.propose(at, *commands)
        except Exception:  # noqa: BLE001 - a fault of ours in one place must not stop everybody
            named = [type(each).__name__ for each in commands[:5]]
            self._log.exception("nothing was decided: a tick failed", commands=len(commands), first=named)
            return False
        decided = time.perf_counter()
        events = proposal.decision.events
        try:
            entry = await self._journal.append(self.decider.head.seq, proposal.at, events) if events else None
        except BaseException:
            self.decider.undo(proposal)
            raise
        tick = self.decider.keep(proposal, entry)
        for command, answer in zip(commands, proposal.decision.answers, strict=True):
            self._observer.answered(command, answer)
        timer = self.decider.next_timer()
        if entry is None and timer is not None and timer <= self.now():
            self._not_before = time.monotonic() + AGAIN_S  # a timer that changes nothing must not spin
        self._metrics.ticked(tick, time.perf_counter() - begun, begun)
        if entry is not None:
            self._metrics.appended(time.perf_counter() - decided)
            self.projector.follow(entry)
            self._notifier.follow(entry)
            self._beacon.look()
            if self.decider.state.queue:
                self._refresh.call_for()
            self._tell(tick, entry, commands, decided - begun)
        return True

    def _tell(self, tick: Tick, entry: Entry, commands: list[cmd.AnyCommand], seconds: float) -> None:
        """Log every decision, with its counters."""
        told: dict[str, Any] = {"seq": entry.seq, "commands": len(commands), "events": len(entry.events)}
        self._log.info("entry", **told, ms=round(seconds * 1000, 3))
        for run, fault in tick.decision.faults.items():
            self._log.error("internal error", run=run, message=fault.message, traceback=fault.traceback, seq=entry.seq)
        for each in tick.decision.tries[:LINES_MAX]:
            result = "started" if each.result is Reason.Start else "waits"
            self._log.info(
                "decision", run=each.run, runs=each.runs, result=result, reason=each.result.value, counters=each.tally
            )
        for event in entry.events[:LINES_MAX]:
            if isinstance(event, ev.RunEnded):
                self._log.info("ended", run=event.run, reason=event.reason.value, message=event.message)
        submitted = {each.run for each in commands if isinstance(each, cmd.Submit)}
        for event in entry.events if submitted else ():
            if isinstance(event, ev.RunSubmitted):
                self._metrics.admitted(self._age_s(event.run))

    def _age_s(self, run: str) -> float:
        """Seconds since a Run was made, as far as the API server's clock tells."""
        seen = self._sight.runs.objects.get(run)
        made = 0 if seen is None else instant(seen.metadata.creation_timestamp)
        return max(0.0, (self.now() - made) / 1000) if made else 0.0

    # --- beside the loop -------------------------------------------------------------------------------------------------

    def _look_back(self) -> None:
        """Where objects tell of ends that the entries at hand do not, read the whole past, once."""
        runs, self._remarks.unknown = self._remarks.unknown, set()
        leases, self.projector.lost_leases = self.projector.lost_leases, set()
        if runs or leases:
            self._beside(self._read_past(runs, leases))

    async def _read_past(self, runs: set[Key], leases: set[Key]) -> None:
        try:
            past = await read_past(self._api, self._archive)
        except (HistoryMissing, ApiError, Unreachable) as error:
            self._log.warning(
                "objects without an end stay as they are", runs=len(runs), leases=len(leases), error=str(error)
            )
            return
        self._chronicle.look_up(past, runs, leases)
        self._sight.marks.runs |= runs
        self._sight.marks.written_runs |= runs | self._chronicle.closed.keys()
        self._sight.wake.set()

    def _keep_snapshot(self) -> None:
        """A snapshot where one is due. It is taken at once, and kept when all that ended before it stands in objects.

        Who starts from it is told nothing of what ended before: that must have been written by then.
        """
        now, (saved, saved_bytes) = time.monotonic(), self._saved
        if self._aside or now < self._snapshot_at:
            return
        if self._due is None:
            behind, size = self.decider.head.seq - saved, self._journal.size
            if behind < self._settings.cluster.snapshot_every and size - saved_bytes < SNAPSHOT_BYTES:
                return
            taken = self.decider.due_snapshot(force=True)
            self._due = None if taken is None else _Due(taken, size, now + SNAPSHOT_LATE_S)
        if self._due is None:
            return
        if not self._untold(self._due.snapshot.seq):
            self._beside(self._save(self._due))
        elif now > self._due.late_at:
            self._due = self._due._replace(late_at=now + SNAPSHOT_LATE_S)
            first = self._chronicle.told_before()
            self._log.warning("a snapshot waits until what ended is written to objects", untold_since=first)

    def _untold(self, seq: int) -> bool:
        """Whether something that ended up to an entry may not stand in its object yet."""
        first = self._chronicle.told_before()
        return first is not None and first <= seq

    async def _last_snapshot(self) -> None:
        """Who stops in order spares the next one the reading, if that is quickly done."""
        if self._untold(self.decider.head.seq):
            self._log.info("stops before everything is written; the next one goes on")
            return
        due = self.decider.due_snapshot(force=True)
        if due is not None:
            with suppress(TimeoutError, ApiError, Unreachable):
                async with asyncio.timeout(LAST_S):
                    await self._journal.save_snapshot(due)

    async def _save(self, kept: _Due) -> None:
        due = kept.snapshot
        self._snapshot_at = time.monotonic() + SNAPSHOT_AGAIN_S  # where it fails
        try:
            await self._journal.save_snapshot(due)
            self.decider.saved(due)
            self._saved, self._due, self._snapshot_at = (due.seq, kept.size), None, 0.0
            tidied = await self._journal.tidy()
            self._log.info("snapshot", seq=due.seq, archived=tidied.archived, removed=tidied.removed)
        except (ApiError, Unreachable, OSError, BadArchive) as error:
            self._log.warning("no snapshot", seq=due.seq, error=str(error))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
