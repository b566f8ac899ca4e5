"""The daemon: one thread, one loop, and the ledger's word before every deed.

    gather    requests that came in, ends of processes that were seen, timers that fell due
    tick      one decision over all of them, one append: the commit
    answer    those who asked, now that it is true
    act       make the processes be as the state says (`processes`), which may be the next thing to report

The daemon may die between any two of its instructions. What was not appended never happened, and its caller got no answer; what
was appended is acted upon by the next daemon, because acting is nothing but the comparison of ledger and machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlease import __version__
from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.protocol import Conflict, Entry
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_file import Damaged
from fairlease.local.daemon.catchup import End, catch_up, reopened
from fairlease.local.daemon.config import METRICS_PORT
from fairlease.local.daemon.machine import node_commands
from fairlease.local.daemon.notifier import Notifier
from fairlease.local.processes.environment import pod_id
from fairlease.local.processes.pods import Pods
from fairlease.local.processes.processes import Ears, Processes
from fairlease.local.processes.termination import Patience
from fairlease.local.socket.access import Access
from fairlease.local.socket.answers import Answers, Build, Services
from fairlease.local.socket.protocol import Error, Fault, fault
from fairlease.local.socket.server import Server, ServerRefusal
from fairlease.model.amount import format_instant
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.report.story import Storyteller
from fairlease.runtime.beacon import Beacon
from fairlease.runtime.clock import LedgerClock
from fairlease.runtime.forecast_refresh import Refresh
from fairlease.runtime.http_endpoints import Page, Pages
from fairlease.runtime.metrics import MACHINE, Metrics, pending_by_cause
from fairlease.runtime.queries.history import RunHistory
from fairlease.scheduler import Scheduler, Tick, calm_collector

if TYPE_CHECKING:
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from fairlease.engine.refusal import Refusal
    from fairlease.ledger.state.state import State
    from fairlease.local.daemon.config import Settings
    from fairlease.local.daemon.machine import Hardware
    from fairlease.local.processes.processes import ProcessReport
    from fairlease.model.record import Key

COMMANDS_MAX = 4_000
"""Commands in one tick, unless one request alone brings more: others wait their turn, the loop must not stand still."""

LINES_MAX = 50
"""Runs submitted in one entry that get a line of the log each; more get one together. The ledger names them all."""

LOOPBACK = "127.0.0.1"
IDLE_S = 60.0
AGAIN_S = 0.2
FAILED_S = 0.5
LOOK_S = 0.05
END_S = 30.0


Ready = Callable[[list[str]], None]


class TimedStore(SqliteStore):
    """The ledger's store, which knows how long its last append took."""

    append_s = 0.0

    def append(self, expected_seq: int, at: int, events: tuple[ev.AnyEvent, ...]) -> Entry:
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


class Daemon:
    """The scheduler of one machine."""

    def __init__(self, settings: Settings, hardware: Hardware, log: FilteringBoundLogger) -> None:
        self.settings = settings
        self.log = log
        self.store = TimedStore(settings.ledger, restored=settings.restored)
        self.scheduler = Scheduler(self.store)
        self.store.check_open(lease for run in self.scheduler.state.runs.values() for lease in run.leases.values())
        self.scheduler.engine.observes_starts = True
        calm_collector()
        self.hardware = hardware
        self.metrics = Metrics(self.scheduler.state, MACHINE)
        self.past = RunHistory(self.scheduler, settings.ledger)
        self.access = Access(settings.machine.users, settings.machine.admins)
        self._clock = LedgerClock(lambda ms: log.warning("the clock was set back; time goes on steadily", behind_ms=ms))
        self.started_at = self.now()
        self.metrics_url: str | None = None
        self.metrics_problem: str | None = None
        self.ledger_problem: str | None = None
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._stop = False
        self._ending: asyncio.Task[None] | None = None
        self._jobs: list[PendingRequest] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._all_gone: list[asyncio.Future[None]] = []
        self._teller = Storyteller()
        self._not_before = 0.0
        self._refresh = Refresh()
        self._telling: asyncio.Task[None] | None = None
        self._heard: float | None = None
        ears = Ears(self._loop.add_reader, self._loop.remove_reader)
        pods = Pods(settings.home, sys.executable)
        machine = settings.machine
        grace_ms, opportunistic_ms = machine.grace, settings.policy.opportunistic_grace
        patience = Patience(grace_ms, opportunistic_ms, machine.retry_backoff, machine.bind_deadline)
        self.processes = Processes(pods, ears, self._wake.set, patience, log)
        self.past.starting = self.processes.starting
        self.pods = pods
        self.processes.devices = hardware.devices
        self.metrics.remember(self.scheduler)
        self.notifier = Notifier(self.scheduler, self.past, self.processes, pods, settings, self.now, self.metrics, log)
        self.beacon = Beacon(settings.machine.beacon, self.scheduler.state, self.now, self.metrics, log)
        answers = Answers(
            Services(
                ledger=settings.ledger,
                scheduler=self.scheduler,
                history=self.past,
                access=self.access,
                pods=pods,
                processes=self.processes,
                beacon=self.beacon,
                now=self.now,
                do=self.do,
                changed=self.changed,
                health=self.health,
                damaged=self.damaged,
                notices=self.notifier.last,
                closing=lambda: self.closing,
                ended=self.ended,
                stop=self.stop,
            )
        )
        self._server = Server(settings.socket, self.access, answers.answer, self._report)
        self._pages = Pages({"/metrics": self._scrape, "/healthz": lambda: Page(b"ok\n")})

    def now(self) -> int:
        """Wall-clock milliseconds that never run backwards nor stand still, whatever is done to the machine's clock."""
        return self._clock.now(self.scheduler.state.at)

    def health(self) -> dict[str, Any]:
        """How the daemon is, as `status` shows it."""
        state, head, settings = self.scheduler.state, self.scheduler.head, self.settings
        pending = sum(pending_by_cause(state).values())
        nodes = state.capacity.nodes.values()
        return {
            "pid": os.getpid(),
            "version": __version__,
            "startedAt": format_instant(self.started_at),
            "now": format_instant(self.now()),
            "home": str(settings.home),
            "socket": str(settings.socket),
            "metrics": self.metrics_url,
            "metricsProblem": self.metrics_problem,
            "head": {"seq": head.seq, "hash": head.hash},
            "ledgerProblem": self.ledger_problem,
            "startProblem": self.processes.problem,
            "nodes": len(nodes),
            "gpus": sum(node.peak for node in nodes),
            "freeGPUs": sum(node.room for node in nodes),
            "runs": {Phase.PENDING.value: pending, Phase.RUNNING.value: len(state.runs) - pending},
            "notifications": self.notifier.sums()._asdict(),
            "reservations": reservation_counts(state),
        }

    # --- life ----------------------------------------------------------------------------------------------------------

    async def run(self, ready: Ready) -> None:
        """Live until told to stop. `ready` is called when the socket answers, with what is not as it should be."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        try:
            await self.beacon.open()
            self._catch_up(self.processes.recorded_ends(self.scheduler.state))
            told = node_commands(self.scheduler.state, self.settings.policy, self.hardware)
            self._tick([*reopened(self.scheduler.state), *told])
            await self._server.start()
            await self._offer_metrics()
            head = self.scheduler.head
            self.log.info(
                "up", pid=os.getpid(), version=__version__, home=str(self.settings.home), seq=head.seq, hash=head.hash
            )
            amiss = [] if self.metrics_problem is None else [self.metrics_problem]
            ready([*amiss, *await asyncio.to_thread(self.access.strangers)])
            self._telling = self._loop.create_task(self.notifier.live())
            await self._live()
        finally:
            self.beacon.close()
            if self._telling is not None:
                self._telling.cancel()
            await self.notifier.close()
            await self._server.close()
            self._pages.close()
            self._put_away()
            self.log.info("down", seq=self.scheduler.head.seq, hash=self.scheduler.head.hash)

    def stop(self) -> None:
        """Stop soon; work goes on without us."""
        self._stop = self.closing = True
        self._wake.set()
        _release(self._waiters)

    async def ended(self, begin: bool) -> None:  # noqa: FBT001 - the verb `stop` hands on its argument
        """Wait until all work has been ended, where that is under way or to be begun: who only stops must not cut it short."""
        if begin:
            self._ending = self._ending or self._loop.create_task(self._end_all())
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end_all(self) -> None:
        """Cancel every run and wait until its processes are gone."""
        self.closing = True
        await self.do(lambda _: [cmd.Cancel(run=run) for run in self.scheduler.state.runs])
        gone = self._loop.create_future()
        self._all_gone.append(gone)
        self._wake.set()
        await asyncio.wait([gone], timeout=self.settings.machine.grace / 1000 + END_S)

    async def do(self, build: Build) -> list[Refusal | None]:
        """Have commands decided in the next tick; gives the answer to each once it is in the ledger."""
        job = PendingRequest(build, self._loop.create_future())
        self._jobs.append(job)
        self._wake.set()
        return await job.future

    async def changed(self, seq: int, timeout_s: float) -> None:
        """Wait until the ledger is longer than `seq`."""
        until = time.monotonic() + timeout_s
        while self.scheduler.head.seq <= seq and not self._stop and (left := until - time.monotonic()) > 0:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left)
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def _offer_metrics(self) -> None:
        asked = self.settings.machine.metrics_port
        port = METRICS_PORT if asked is None else asked
        if port == 0:
            return
        try:
            await self._pages.start(LOOPBACK, port)
        except OSError as error:
            if asked is not None:
                raise
            why = error.strerror or str(error)
            self.metrics_problem = f"no metrics: port {port} cannot be had ({why}); choose one with --metrics-port"
            self.log.warning("no metrics", port=port, error=str(error))
            return
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"

    def _scrape(self) -> Page:
        self.metrics.gauges["ledger_bytes"].set(_bytes_of(self.settings.ledger))
        return self.metrics.scrape(self.scheduler, self.now())

    def _put_away(self) -> None:
        _release(self._waiters)
        for job in self._jobs:
            job.fail(ServerRefusal(fault(Fault.Stopping, "the daemon stops")))
        try:
            self.scheduler.save_snapshot(force=True)
        except (sqlite3.Error, OSError, Damaged) as error:
            self.log.warning("no snapshot", error=str(error))
        self.store.close()

    # --- the loop ------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        reports = self.processes.reconcile(self.scheduler.state)
        while not self._stop:
            if not (reports or self._jobs):
                await self._sleep()
            if not reports and self.processes.next_look_ms() == 0:  # work that ended comes before its deadline
                reports = self.processes.recorded_ends(self.scheduler.state)
            told = self._turn(reports)
            if not reports:
                await asyncio.sleep(0)  # who asked is answered before work is started; who waits for an end, afterwards
            reports = self.processes.reconcile(self.scheduler.state)
            if self.metrics.changes.waiting:
                self.metrics.changes.look(lambda lease: self.pods.runs(pod_id(lease)))
            if self.processes.idle:
                _release(self._all_gone)
            # Those who write meanwhile share the next append; where nothing can be written, there is no hurry.
            await asyncio.sleep(0 if told else FAILED_S)
            self._forecast()

    async def _sleep(self) -> None:
        """Until a request, the end of a process, a timer, or a look that is due."""
        waits = [IDLE_S]
        timer = self.scheduler.next_timer()
        if timer is not None:
            due_s = (timer - self.now() + 1) / 1000  # a millisecond late rather than one early
            waits.append(max(due_s, self._not_before - time.monotonic(), 0.001))
        look_ms = self.processes.next_look_ms()
        if look_ms is not None:
            waits.append(max(look_ms / 1000, 0.001))
        if (refresh_s := self._refresh.wait_s()) is not None:
            waits.append(max(refresh_s, 0.001))
        if self.metrics.changes.waiting:
            waits.append(LOOK_S)
        handle = self._loop.call_later(min(waits), self._wake.set)
        await self._wake.wait()
        self._wake.clear()
        handle.cancel()
        await asyncio.sleep(0)  # ends that are heard of together with a timer come before it

    def _turn(self, reports: list[ProcessReport]) -> bool:
        """One tick over all that is there; where it fails, each request by itself, so that one bad egg spoils no other."""
        before = self.scheduler.head.seq
        jobs, size = self._take()
        observed = [report.command for report in reports]
        try:
            self._catch_up(reports)
            present = [*reopened(self.scheduler.state), *(each.command for each in reports if each.at_ms is None)]
            self._tick([*present, *(each for job in jobs for each in job.commands)], jobs, len(present))
        except Conflict:
            self.log.critical("another writer appended to the ledger; stepping down")
            self._fail(jobs, ServerRefusal(fault(Fault.Stopping, "another writer appended to the ledger")))
            raise
        except Damaged as error:
            self._fail(jobs, ServerRefusal(self.damaged(str(error))))
        except (sqlite3.Error, OSError) as error:
            self.log.exception("nothing was decided: the ledger cannot be written")
            self.ledger_problem = f"the last entry could not be written: {error}"
            self._fail(jobs, ServerRefusal(fault(Fault.Unavailable, f"the ledger cannot be written: {error}")))
        except Exception:
            self.log.exception("nothing was decided: a tick failed", commands=size)
            self._one_by_one(jobs, observed)
        else:
            written = self.scheduler.head.seq > before
            self.ledger_problem = None if written else self.ledger_problem
            return not observed or written
        return False

    def damaged(self, told: str) -> Error:
        """Write nothing more: the file is not as it was written. What runs goes on, and the state as it was last known is shown."""
        if self.ledger_problem != told:
            self.log.critical("the ledger is damaged: nothing more is written", problem=told)
        self.store.damage = self.ledger_problem = told
        return fault(Fault.Damaged, f"{told}; nothing more is written")

    def _forecast(self) -> None:
        """Say when those who wait will start, where facts changed since it was last said and it is time."""
        if not self._refresh.due() or self._stop or self.store.damage is not None:
            return
        begun = time.monotonic()
        try:
            self._decide(self.now(), [cmd.Forecast()])
        except Conflict:
            self.log.critical("another writer appended to the ledger; stepping down")
            raise
        except Exception:
            self.log.exception("no forecast was made")
        self._refresh.made(begun)

    def _one_by_one(self, jobs: list[PendingRequest], observed: list[cmd.AnyCommand]) -> None:
        for commands, owners in [([each], []) for each in observed] + [(job.commands, [job]) for job in jobs]:
            try:
                self._tick(commands, owners, 0 if owners else 1)
            except Exception as error:
                self.log.exception("a request failed", commands=[type(each).__name__ for each in commands[:5]])
                self._fail(owners, error)

    def _take(self) -> tuple[list[PendingRequest], int]:
        """The requests of the next tick. Each makes its commands now, knowing the names that those before it take."""
        taken: set[Key] = set()
        jobs: list[PendingRequest] = []
        size = 0
        while self._jobs and size < COMMANDS_MAX:
            job = self._jobs.pop(0)
            if job.future.done():
                continue  # the caller went before its turn
            try:
                job.commands = job.build(taken)
            except Exception as error:  # noqa: BLE001 - a refusal, or a fault that is the request's own
                job.fail(error)
                continue
            jobs.append(job)
            size += len(job.commands)
        return jobs, size

    def _catch_up(self, reports: list[ProcessReport]) -> None:
        """Decide what was seen late as of when it was: ends with a time of their own, and the timers around them."""
        for report in reports:
            self.log.info("seen", command=repr(report.command), message=report.message)
        at = self.scheduler.state.at
        ends = [End(self._clock.at(each.at_ms, at), each.command) for each in reports if each.at_ms is not None]
        catch_up(self.scheduler, ends, self.now(), self._decide)

    def _decide(self, at: int, commands: list[cmd.AnyCommand]) -> Tick:
        begun = time.perf_counter()
        self.scheduler.engine.beacon = self.beacon.value(at, commands)
        tick = self.scheduler.tick(at, *commands)
        heard, self._heard = begun if self._heard is None else self._heard, None
        self._keep(tick, time.perf_counter() - begun, heard)
        return tick

    def _tick(self, commands: list[cmd.AnyCommand], jobs: list[PendingRequest] | None = None, skip: int = 0) -> None:
        """One decision at the present time, and its answers."""
        self._heard = min((job.received for job in jobs or []), default=None)
        tick = self._decide(self.now(), [*commands, cmd.TimePassed()])
        timer = self.scheduler.next_timer()
        if tick.entry is None and timer is not None and timer <= self.now():
            self._not_before = time.monotonic() + AGAIN_S  # a timer that changes nothing must not spin
        at = skip
        for job in jobs or []:
            job.done(list(tick.decision.answers[at : at + len(job.commands)]))
            at += len(job.commands)
            for each in job.commands:
                if isinstance(each, cmd.Submit):
                    self.metrics.admitted(time.perf_counter() - job.received)

    def _keep(self, tick: Tick, seconds: float, heard: float) -> None:
        """Everybody who follows the ledger learns of the entry. It is true by now, whatever goes wrong with the telling."""
        try:
            self.metrics.ticked(tick, seconds, heard)
            if tick.entry is not None:
                if self.scheduler.state.queue:
                    self._refresh.call_for()
                self.past.follow(tick.entry)
                self.metrics.appended(self.store.append_s)
                self._tell(tick, tick.entry, seconds)
                self.notifier.follow(tick.entry)
                self.beacon.look()
                self.scheduler.save_snapshot()
        except Exception:
            self.log.exception("an entry was not told", seq=self.scheduler.head.seq)
        _release(self._waiters)

    def _tell(self, tick: Tick, entry: Entry, seconds: float) -> None:
        """Log every decision, with its counters, and every change of anything else."""
        took_ms = round(seconds * 1000, 3)
        for run, broken in tick.decision.faults.items():
            self.log.error("internal error", run=run, message=broken.message, traceback=broken.traceback, seq=entry.seq)
        for each in tick.decision.tries:
            result = "started" if each.result is Reason.Start else "waits"
            told = {"reason": each.result.value, "counters": each.tally, "seq": entry.seq, "ms": took_ms}
            self.log.info("decision", run=each.run, runs=each.runs, result=result, **told)
        submitted = [event.run for event in entry.events if isinstance(event, ev.RunSubmitted)]
        if len(submitted) > LINES_MAX:
            self.log.info("submitted", runs=len(submitted), first=submitted[0], last=submitted[-1], seq=entry.seq)
        for event in entry.events:
            if isinstance(event, ev.RunSubmitted) and len(submitted) > LINES_MAX:
                continue
            if isinstance(event, ev.RunDeferred) and len(event.runs) > 1:
                self.log.info(
                    "event",
                    object="Run",
                    runs=len(event.runs),
                    first=event.runs[0],
                    reason=event.reason.value,
                    message=event.message,
                    seq=entry.seq,
                )
                continue
            for line in self._teller.tell(entry.at, event):
                words = {"reason": line.reason, "message": line.message}
                self.log.info("event", object=line.object, warning=line.warning, seq=entry.seq, **words)

    def _fail(self, jobs: list[PendingRequest], error: Exception) -> None:
        for job in jobs:
            job.fail(error)

    def _report(self, error: BaseException) -> None:
        self.log.error("a request was not answered", exc_info=error)


def reservation_counts(state: State) -> dict[str, Any]:
    """How many reservations are in force, by state, and the date of the next that is to be kept."""
    holds = [run.hold for run in state.runs.values() if run.hold is not None]
    dates = [hold.earliest_start for hold in holds if hold.holds]
    counts = Counter(hold.state.value for hold in holds)
    return {**counts, "next": format_instant(min(dates)) if dates else None}


def _bytes_of(ledger: Path) -> int:
    total = 0
    for path in (ledger, ledger.with_name(f"{ledger.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _release(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


async def serve(settings: Settings, hardware: Hardware, log: Any, ready: Ready) -> None:  # noqa: ANN401 - structlog's
    """Run a daemon until it is told to stop."""
    daemon = Daemon(settings, hardware, log)
    await daemon.run(ready)
