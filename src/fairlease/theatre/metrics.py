"""Metrics: what was done, counted when it was done, and how things stand, read when somebody asks.

`METRICS` is what every theatre shows; `MACHINE` and `CLUSTER` are what one of them adds. The reference page is made from these
lists. Counters follow the entries of the ledger, never a plan; gauges are set from the state at each scrape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlease.engine.view import budget_status
from fairlease.ledger import event as ev
from fairlease.model.record import short
from fairlease.reason import Reason
from fairlease.theatre.pages import Page

if TYPE_CHECKING:
    from fairlease.engine.family import Family
    from fairlease.ledger.state import State
    from fairlease.model.record import Key
    from fairlease.scheduler import Decider, Tick

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
    "admission_latency_seconds": Metric("histogram", (), "From a run's arrival to its first decision in the ledger."),
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
    "gpus": Metric("gauge", (), "GPUs of all nodes."),
    "gpus_free": Metric("gauge", (), "GPUs that no lease holds and new work could take."),
    "ledger_entries": Metric("gauge", (), "Number of the ledger's last entry."),
    "ledger_append_seconds": Metric("histogram", (), "What one append takes until it is durable."),
}

MACHINE = {"ledger_bytes": Metric("gauge", (), "Bytes of the ledger on the disk, its log included.")}
"""What the daemon of one machine adds."""

CLUSTER = {
    "leading": Metric("gauge", (), "1 where this controller decides, 0 where it stands by."),
    "held": Metric("gauge", (), "1 while the switch is on that stops new starts."),
    "writes_total": Metric("counter", ("kind", "result"), "Writes of objects: done, or failed and to be tried again."),
    "writes_waiting": Metric("gauge", (), "Writes that are under way or wait for their turn."),
    "unwritten_objects": Metric(
        "gauge", ("kind",), "Objects that could not be written the last time, and are tried again."
    ),
    "objects_seen": Metric("gauge", ("kind",), "Objects that the controller follows."),
    "objects_unreadable": Metric(
        "gauge", ("kind",), "Objects that are there and cannot be read; they are passed over."
    ),
    "watches_broken": Metric("gauge", ("kind",), "1 where nothing is heard of a kind at the moment."),
    "ledger_waiting_seconds": Metric("gauge", (), "How long an append has been waiting for the API server."),
    "node_events_ignored_total": Metric(
        "counter", (), "Changes of nodes that mean nothing to a decision, such as heartbeats."
    ),
}
"""What the controller of a cluster adds."""


class Metrics:
    """The numbers of one scheduler, in a registry of its own; `more` are those of its theatre."""

    def __init__(self, state: State, more: Mapping[str, Metric]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody asked for
        self.registry = CollectorRegistry()
        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, (kind, labels, told) in {**METRICS, **more}.items():
            full = PREFIX + name
            if kind == "counter":
                self.counters[name] = Counter(full, told, labels, registry=self.registry)
            elif kind == "gauge":
                self.gauges[name] = Gauge(full, told, labels, registry=self.registry)
            else:
                self._histograms[name] = Histogram(full, told, labels, registry=self.registry, buckets=_SECONDS)
        self.follow(state)

    # --- what was done -------------------------------------------------------------------------------------------------

    def ticked(self, tick: Tick, seconds: float) -> None:
        """One tick was kept."""
        self._histograms["decision_seconds"].observe(seconds)
        for each in tick.decision.tries:
            if (result := _PACKED.get(each.result)) is not None:
                self.counters["pack_results_total"].labels(result).inc()
        for event in tick.decision.events:
            self._count(event)

    def appended(self, seconds: float) -> None:
        """An entry is in the ledger."""
        self._histograms["ledger_append_seconds"].observe(seconds)

    def admitted(self, seconds: float) -> None:
        """A run got its first answer."""
        self._histograms["admission_latency_seconds"].observe(seconds)

    def _count(self, event: ev.AnyEvent) -> None:
        admissions = self.counters["run_admissions_total"]
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
            self.counters["leases_closed_total"].labels(event.reason.value).inc(closed)

    # --- how things stand ----------------------------------------------------------------------------------------------

    def follow(self, state: State) -> None:
        """Count on from this state: another ledger's, or the same after others have led."""
        self._open = {run.key: len(run.leases) for run in state.runs.values() if run.leases}

    def scrape(self, decider: Decider | None, now: int) -> Page:
        """All of it as text; who does not decide shows only what was counted."""
        if decider is not None:
            self._stand(decider, now)
        return Page(generate_latest(self.registry), kind=CONTENT_TYPE_LATEST)

    def _stand(self, decider: Decider, now: int) -> None:
        state, gauges = decider.state, self.gauges
        gauges["leases_open"].set(state.open_leases)
        gauges["ledger_entries"].set(decider.head.seq)
        nodes = state.capacity.nodes.values()
        gauges["gpus"].set(sum(node.peak for node in nodes))
        gauges["gpus_free"].set(sum(node.room for node in nodes))
        self._runs(state)
        self._budgets(state, decider.engine.family, now)

    def _runs(self, state: State) -> None:
        waiting, pending = self.gauges["pending_runs"], 0
        waiting.clear()
        for cause, count in pending_by_cause(state).items():
            waiting.labels(cause.value).set(count)
            pending += count
        self.gauges["running_runs"].set(len(state.runs) - pending)

    def _budgets(self, state: State, family: Family, now: int) -> None:
        names = (
            "budget_concurrency_used",
            "budget_gpu_hours_used",
            "budget_headroom_gpus",
            "budget_headroom_gpu_hours",
        )
        used, hours, room, room_hours = (self.gauges[name] for name in names)
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
    """How many runs wait for what: those in the queue by shape, those that follow others one by one."""
    counts: dict[Reason, int] = {}
    for shape in state.queue.shapes.values():
        counts[shape.reason] = counts.get(shape.reason, 0) + len(shape.runs)
    following: set[Key] = {run for followers in state.queue.following.values() for run in followers}
    if following:
        counts[Reason.Following] = len(following)
    return counts
