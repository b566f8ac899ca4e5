"""Metrics: what was done, counted when it was done, and how things stand, read when somebody asks.

`METRICS` is the whole list, so that the reference page is made from it. Counters follow the entries of the ledger, never a plan;
gauges are set from the state at each scrape. They are served on loopback only, by the few lines of HTTP that takes.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlease.engine.view import budget_status
from fairlease.ledger import event as ev
from fairlease.model.record import short
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fairlease.engine.family import Family
    from fairlease.ledger.state import State
    from fairlease.model.record import Key
    from fairlease.scheduler import Scheduler, Tick

PREFIX = "fairlease_"
_PACKED = {Reason.Start: "placed", Reason.NoRoom: "NoRoom", Reason.NeverFits: "NeverFits"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metric(NamedTuple):
    """Kind, labels and meaning of one metric."""

    kind: str
    labels: tuple[str, ...]
    help: str


METRICS = {
    "run_admissions_total": Metric(
        "counter", ("result",), "Answers given to runs: Start, or the reason why one has to wait."
    ),
    "admission_latency_seconds": Metric(
        "histogram", (), "From a run's arrival at the socket to its first decision on the disk."
    ),
    "decision_seconds": Metric("histogram", (), "What one tick takes: deciding and appending, for all requests in it."),
    "leases_open": Metric("gauge", (), "Leases that are open."),
    "leases_closed_total": Metric("counter", ("reason",), "Leases that were closed, by reason."),
    "budget_concurrency_used": Metric("gauge", ("budget", "envelope"), "GPUs of an envelope that are in use."),
    "budget_gpu_hours_used": Metric(
        "gauge", ("budget", "envelope"), "GPU-hours that an envelope has paid for in its window."
    ),
    "budget_headroom_gpus": Metric(
        "gauge", ("budget", "envelope"), "GPUs that an envelope could still pay for at once."
    ),
    "budget_headroom_gpu_hours": Metric(
        "gauge", ("budget", "envelope"), "GPU-hours neither used nor promised; absent where there is no cap."
    ),
    "pending_runs": Metric("gauge", ("cause",), "Runs that wait, by the reason they were told."),
    "running_runs": Metric("gauge", (), "Runs that hold GPUs."),
    "pack_results_total": Metric("counter", ("result",), "Tries to find room: placed, NoRoom or NeverFits."),
    "gpus": Metric("gauge", (), "GPUs of this machine."),
    "gpus_free": Metric("gauge", (), "GPUs that no lease holds and new work could take."),
    "ledger_entries": Metric("gauge", (), "Number of the ledger's last entry."),
    "ledger_bytes": Metric("gauge", (), "Bytes of the ledger on the disk, its log included."),
    "ledger_append_seconds": Metric("histogram", (), "What one append takes until the disk has it."),
}


class Metrics:
    """The numbers of one daemon, in a registry of its own."""

    def __init__(self, state: State) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody asked for
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, (kind, labels, told) in METRICS.items():
            full = PREFIX + name
            if kind == "counter":
                self._counters[name] = Counter(full, told, labels, registry=self.registry)
            elif kind == "gauge":
                self._gauges[name] = Gauge(full, told, labels, registry=self.registry)
            else:
                self._histograms[name] = Histogram(full, told, labels, registry=self.registry, buckets=_SECONDS)
        self._open = {run.key: len(run.leases) for run in state.runs.values() if run.leases}

    # --- what was done -------------------------------------------------------------------------------------------------

    def ticked(self, tick: Tick, seconds: float) -> None:
        """One tick was kept."""
        self._histograms["decision_seconds"].observe(seconds)
        for each in tick.decision.tries:
            if (result := _PACKED.get(each.result)) is not None:
                self._counters["pack_results_total"].labels(result).inc()
        for event in tick.decision.events:
            self._count(event)

    def appended(self, seconds: float) -> None:
        """An entry is on the disk."""
        self._histograms["ledger_append_seconds"].observe(seconds)

    def admitted(self, seconds: float) -> None:
        """A run got its first answer."""
        self._histograms["admission_latency_seconds"].observe(seconds)

    def _count(self, event: ev.AnyEvent) -> None:
        admissions = self._counters["run_admissions_total"]
        if isinstance(event, ev.RunDeferred):
            admissions.labels(event.reason.value).inc(len(event.runs))
        elif isinstance(event, ev.LeasesOpened):
            self._open[event.run] = self._open.get(event.run, 0) + len(event.cells)
            if event.reason is Reason.Start:
                admissions.labels(event.reason.value).inc()
        elif isinstance(event, ev.LeasesClosed):
            held = self._open.pop(event.run, 0)
            closed = len(event.names) or held
            if held > closed:
                self._open[event.run] = held - closed
            self._counters["leases_closed_total"].labels(event.reason.value).inc(closed)

    # --- how things stand ----------------------------------------------------------------------------------------------

    def scrape(self, scheduler: Scheduler, ledger: Path, now: int) -> bytes:
        """All of it as text."""
        state, gauges = scheduler.state, self._gauges
        gauges["leases_open"].set(state.open_leases)
        gauges["ledger_entries"].set(scheduler.head.seq)
        gauges["ledger_bytes"].set(_bytes_of(ledger))
        nodes = state.capacity.nodes.values()
        gauges["gpus"].set(sum(node.peak for node in nodes))
        gauges["gpus_free"].set(sum(node.room for node in nodes))
        self._runs(state)
        self._budgets(state, scheduler.engine.family, now)
        return generate_latest(self.registry)

    def _runs(self, state: State) -> None:
        waiting, pending = self._gauges["pending_runs"], 0
        waiting.clear()
        for cause, count in pending_by_cause(state).items():
            waiting.labels(cause.value).set(count)
            pending += count
        self._gauges["running_runs"].set(len(state.runs) - pending)

    def _budgets(self, state: State, family: Family, now: int) -> None:
        names = (
            "budget_concurrency_used",
            "budget_gpu_hours_used",
            "budget_headroom_gpus",
            "budget_headroom_gpu_hours",
        )
        used, hours, room, room_hours = (self._gauges[name] for name in names)
        for gauge in (used, hours, room, room_hours):
            gauge.clear()
        for budget in state.budgets:
            status = budget_status(state, family, budget, now)
            for usage, left in zip(status["usage"], status["headroom"], strict=True):
                labels = short(budget), usage["name"]
                used.labels(*labels).set(state.account(budget, usage["name"]).used)
                hours.labels(*labels).set(usage["consumedGPUHours"])
                room.labels(*labels).set(left["concurrency"])
                if left["gpuHours"] is not None:
                    room_hours.labels(*labels).set(left["gpuHours"])


def pending_by_cause(state: State) -> dict[Reason, int]:
    """How many runs wait for what: those in the queue by shape, those that follow others, and those that rest, one by one."""
    counts: dict[Reason, int] = {}
    for shape in state.queue.shapes.values():
        counts[shape.reason] = counts.get(shape.reason, 0) + len(shape.runs)
    following: set[Key] = {run for followers in state.queue.following.values() for run in followers}
    if following:
        counts[Reason.Following] = len(following)
    if state.queue.resting:
        counts[Reason.BackOff] = len(state.queue.resting)
    return counts


def _bytes_of(ledger: Path) -> int:
    total = 0
    for path in (ledger, ledger.with_name(f"{ledger.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


# --- HTTP --------------------------------------------------------------------------------------------------------------

LOOPBACK = "127.0.0.1"
_HEAD_MAX = 8_192
_PATIENCE_S = 5.0


class Exporter:
    """Answers `GET /metrics` and `GET /healthz` on loopback, and nothing else."""

    def __init__(self, metrics: Metrics, scheduler: Scheduler, ledger: Path, now: Callable[[], int]) -> None:
        self._metrics, self._scheduler, self._ledger, self._now = metrics, scheduler, ledger, now
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Listen; OSError where the port is taken."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, port, limit=_HEAD_MAX)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, path, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b"", b""]
        path = path.split(b"?", 1)[0]
        if path not in (b"/metrics", b"/healthz"):
            return _page("404 Not Found", b"ask for /metrics or /healthz\n")
        if method != b"GET":
            return _page("405 Method Not Allowed", b"only GET\n", allow="Allow: GET\r\n")
        if path == b"/healthz":
            return _page("200 OK", b"ok\n")
        body = self._metrics.scrape(self._scheduler, self._ledger, self._now())
        return _page("200 OK", body, kind=CONTENT_TYPE_LATEST)


def _page(status: str, body: bytes, *, kind: str = "text/plain; charset=utf-8", allow: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{allow}Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
