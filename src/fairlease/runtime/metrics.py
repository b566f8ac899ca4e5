"""Metrics: what was done, counted when it was done, and how things stand, read when somebody asks.

`METRICS` is what every backend shows; `MACHINE` and `CLUSTER` are what one of them adds. The reference page is made from these
lists. Counters follow the entries of the ledger, never a plan; gauges are set from the state at each scrape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlease.ledger.state import events as ev
from fairlease.model.amount import HOUR, SECOND
from fairlease.model.lease import Fund, Role
from fairlease.model.record import short
from fairlease.model.reservation import IN_FORCE
from fairlease.reason import COVER_CAUSES, Reason
from fairlease.report.views import budget_status
from fairlease.runtime.http_endpoints import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlease.engine.cover.family import Family
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key
    from fairlease.scheduler import Decider, Scheduler, Tick

CHANGE_METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "spares_allocated_total": ("counter", (), "GPUs that were taken as spares."),
    "spares_active": ("gauge", (), "GPUs that are held as spares."),
    "spares_swaps_total": ("counter", (), "Ranks that spares took over from failed nodes."),
    "filler_preemptions_total": ("counter", (), "Attempts of opportunistic work that gave way to others."),
    "elastic_grows_total": ("counter", (), "Times that an elastic run grew."),
    "elastic_shrinks_total": ("counter", (), "Times that an elastic run gave up width."),
    "elastic_width_current": ("gauge", ("flavor",), "GPUs that elastic runs hold, spares apart."),
    "borrowing_attempts_total": ("counter", (), "Answers to runs that asked lenders: with a loan, or without."),
    "borrowing_denied_total": (
        "counter",
        ("cause",),
        "Runs that may borrow and were told that nobody pays for their start or growth, by the cause they were told.",
    ),
    "borrowed_gpus_current": ("gauge", (), "GPUs that are lent, spares included."),
    "borrowed_gpu_hours_total": ("counter", (), "GPU-hours of loans, over the whole ledger."),
    "swap_decided_seconds": ("histogram", (), "From the word that a node failed to the swap on the disk."),
    "swap_running_seconds": ("histogram", (), "From the word that a node failed to the rank's process on the spare."),
}

_GAVE_WAY = (Reason.ReclaimOpportunistic, Reason.ReclaimedBySpare)
_ASKED = (Reason.Start, Reason.Grow)
PATIENCE_S = 600.0
"""A swap whose process has not come by then is not waited for any more."""


class ChangeMetrics:
    """Counts, measures and reads them."""

    def __init__(
        self,
        state: State,
        counters: Mapping[str, Counter],
        gauges: Mapping[str, Gauge],
        histograms: Mapping[str, Histogram],
    ) -> None:
        self._state = state
        self._counters, self._gauges, self._histograms = counters, gauges, histograms
        self._lent_ms = 0
        self._starting: list[tuple[Lease, float]] = []

    # --- what was done -------------------------------------------------------------------------------------------------

    def appended(self, events: tuple[ev.AnyEvent, ...], heard: float) -> None:
        """An entry is on the disk; what led to it was heard of at `heard`, by the clock of `time.perf_counter`."""
        grown: set[Key] = set()
        shrunk: set[Key] = set()
        swapped = False
        for event in events:
            if isinstance(event, ev.LeasesOpened):
                self._opened(event)
                if event.reason is Reason.Grow:
                    grown.add(event.run)
                elif event.reason is Reason.Swap:
                    swapped = True
                    self._swapped(event, heard)
            elif isinstance(event, ev.LeasesClosed):
                if event.reason is Reason.Shrink:
                    shrunk.add(event.run)
                elif event.reason in _GAVE_WAY:
                    self._counters["filler_preemptions_total"].inc()
            elif isinstance(event, ev.RunDeferred):
                for run in event.runs:
                    self._denied(run, event.reason)
            elif isinstance(event, ev.GrowthDeferred):
                self._denied(event.run, event.reason)
        self._counters["elastic_grows_total"].inc(len(grown))
        self._counters["elastic_shrinks_total"].inc(len(shrunk))
        if swapped:
            self._histograms["swap_decided_seconds"].observe(time.perf_counter() - heard)

    def _opened(self, event: ev.LeasesOpened) -> None:
        spares = sum(len(cell.slots) for cell in event.cells if cell.role is Role.SPARE)
        self._counters["spares_allocated_total"].inc(spares)
        if event.reason in _ASKED and any(payer.fund is Fund.BORROWED for payer in event.payers):
            self._counters["borrowing_attempts_total"].inc()

    def _denied(self, name: Key, reason: Reason) -> None:
        """A run that may borrow was told that its money does not do: then all whom it may ask were asked."""
        run = self._state.runs.get(name)
        if run is None or reason not in COVER_CAUSES:
            return
        if run.spec.funding.allow_borrow and run.spec.funding.sponsors:
            self._counters["borrowing_attempts_total"].inc()
            self._counters["borrowing_denied_total"].labels(reason.value).inc()

    def _swapped(self, event: ev.LeasesOpened, heard: float) -> None:
        self._counters["spares_swaps_total"].inc(len(event.cells))
        run = self._state.runs.get(event.run)
        numbers = {cell.number for cell in event.cells}
        for lease in () if run is None else run.leases.values():
            if int(lease.name.rpartition("-")[2]) in numbers:
                self._starting.append((lease, heard))

    @property
    def waiting(self) -> bool:
        """Whether the process of a rank that was taken over has not been seen yet."""
        return bool(self._starting)

    def look(self, runs: Callable[[Lease], bool]) -> None:
        """See which of the ranks that were taken over run by now; whose process does not come is given up after a while."""
        now = time.perf_counter()
        waiting, self._starting = self._starting, []
        for lease, heard in waiting:
            if runs(lease):
                self._histograms["swap_running_seconds"].observe(now - heard)
            elif now - heard <= PATIENCE_S:
                self._starting.append((lease, heard))

    # --- how things stand ----------------------------------------------------------------------------------------------

    def scrape(self, now: int) -> None:
        """Read the gauges from the state."""
        state = self._state
        self._gauges["spares_active"].set(sum(account.gpus["spare"] for account in state.accounts.values()))
        self._gauges["borrowed_gpus_current"].set(state.loans.gpus)
        widths: dict[str, int] = {}
        for run in state.runs.values():
            if run.spec.malleable is not None and run.leases:
                flavor = run.spec.resources.gpu_type
                widths[flavor] = widths.get(flavor, 0) + run.width
        gauge = self._gauges["elastic_width_current"]
        gauge.clear()
        for flavor, gpus in widths.items():
            gauge.labels(flavor).set(gpus)
        lent_ms = sum(account.lent.until(now) for account in state.accounts.values())
        self._counters["borrowed_gpu_hours_total"].inc(max(0, lent_ms - self._lent_ms) / HOUR)
        self._lent_ms = max(self._lent_ms, lent_ms)


PREFIX = "fairlease_"
_RESOLVED = {
    "resolver_spares_dropped_total": Reason.DropSpare,
    "resolver_shrinks_total": Reason.Shrink,
    "resolver_lottery_draws_total": Reason.RandomPreempt,
}
_PACKED = {Reason.Start: "placed", Reason.NoRoom: "NoRoom", Reason.NeverFits: "NeverFits"}
_DELAYS = (0.0, 1.0, 10.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0)
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
    "internal_errors_total": Metric(
        "counter", (), "Faults of the scheduler while it handled a run; the run is left alone."
    ),
    "forecasts_total": Metric("counter", (), "Forecasts of starts that were written down."),
    "forecast_starts": Metric("gauge", (), "Starts that forecasts are judged by: the latest 500 that had one."),
    "forecast_share": Metric(
        "gauge", ("part",), "Share of these inside P10 to P90, before P50, before P90; good are 0.8, 0.5 and 0.9."
    ),
    "forecast_error_seconds": Metric(
        "gauge",
        ("by",),
        "Mean absolute error of P50 over these, and of the baseline: a play with the last two durations.",
    ),
    "resolver_invocations_total": Metric("counter", (), "Resolutions that were carried out: others' work gave way."),
    "resolver_spares_dropped_total": Metric("counter", (), "Spares that were closed for a claim."),
    "resolver_shrinks_total": Metric("counter", (), "Cuts that took a step of width from an elastic run."),
    "resolver_lottery_draws_total": Metric(
        "counter", (), "Runs that were drawn and cut; who was drawn and given back is not counted."
    ),
    "beacon_reads_total": Metric("counter", ("result",), "Readings of the lottery's beacon: read or failed."),
    "reservations": Metric("gauge", ("state",), "Reservations in force, by state."),
    "reservation_delay_seconds": Metric(
        "histogram", (), "From the date a run was first promised to its start; 0 where it started by then."
    ),
    **{name: Metric(*row) for name, row in CHANGE_METRICS.items()},
    "notifications_total": Metric(
        "counter",
        ("kind", "result"),
        "Tries to deliver a notice: delivered, retried, failed (given up), expired (what it warns of has come), or nobody left to "
        "tell (gone, unheard).",
    ),
    "notifications_pending": Metric("gauge", (), "Deliveries of notices that are not done yet."),
    "gpus": Metric("gauge", (), "GPUs of all nodes."),
    "gpus_free": Metric("gauge", (), "GPUs that no lease holds and new work could take."),
    "ledger_entries": Metric("gauge", (), "Number of the ledger's last entry."),
    "ledger_append_seconds": Metric("histogram", (), "What one append takes until it is durable."),
}

MACHINE = {
    "ledger_bytes": Metric("gauge", (), "Bytes of the ledger on the disk, its log included."),
}
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
    """The numbers of one scheduler, in a registry of its own; `more` are those of its backend."""

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
                buckets = _DELAYS if name == "reservation_delay_seconds" else _SECONDS
                self._histograms[name] = Histogram(full, told, labels, registry=self.registry, buckets=buckets)
        self._promised = Promised()
        self.follow(state)

    # --- what was done -------------------------------------------------------------------------------------------------

    def ticked(self, tick: Tick, seconds: float, heard: float) -> None:
        """One tick was kept; what it was about was heard of at `heard`."""
        self._histograms["decision_seconds"].observe(seconds)
        for each in tick.decision.tries:
            if (result := _PACKED.get(each.result)) is not None:
                self.counters["pack_results_total"].labels(result).inc()
        for event in tick.decision.events:
            self._count(event)
            self._count_resolution(event)
            delay_ms = None if tick.entry is None else self._promised.fold(event, tick.entry.at)
            if delay_ms is not None:
                self._histograms["reservation_delay_seconds"].observe(delay_ms / 1000)

        self.changes.appended(tick.decision.events, heard)

    def remember(self, scheduler: Scheduler) -> None:
        """Learn from the ledger what runs that wait were promised before this daemon came up."""
        for run in scheduler.state.holds:
            for moment in scheduler.store.story(run):
                self._promised.fold(moment.event, moment.at)

    def notified(self, kind: str, result: str) -> None:
        """A delivery was tried."""
        self.counters["notifications_total"].labels(kind, result).inc()

    def watch_pending(self, count: Callable[[], int]) -> None:
        """Where to ask how many deliveries are not done."""
        self.gauges["notifications_pending"].set_function(count)

    def beacon(self, result: str) -> None:
        """The beacon was read, or could not be."""
        self.counters["beacon_reads_total"].labels(result).inc()

    def _count_resolution(self, event: ev.AnyEvent) -> None:
        """What a resolution did: it stands in the entry together with the cuts, so that what is counted was done."""
        if not isinstance(event, ev.OutcomeRecorded):
            return
        actions = event.outcome.actions
        self.counters["resolver_invocations_total"].inc()
        for name, reason in _RESOLVED.items():
            done = [each for each in actions if each.reason is reason]
            spares = reason is Reason.DropSpare
            self.counters[name].inc(sum(len(each.leases) for each in done) if spares else len(done))

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
        elif isinstance(event, ev.RunQuarantined):
            self.counters["internal_errors_total"].inc()
        elif isinstance(event, ev.Forecasted):
            self.counters["forecasts_total"].inc(len(event.runs))

    # --- how things stand ----------------------------------------------------------------------------------------------

    def follow(self, state: State) -> None:
        """Count on from this state: another ledger's, or the same after others have led."""
        self._open = {run.key: len(run.leases) for run in state.runs.values() if run.leases}
        self.changes = ChangeMetrics(state, self.counters, self.gauges, self._histograms)

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
        self._forecasts(state)
        self._reservations(state)
        self.changes.scrape(now)
        self._budgets(state, decider.engine.family, now)

    def _runs(self, state: State) -> None:
        waiting, pending = self.gauges["pending_runs"], 0
        waiting.clear()
        for cause, count in pending_by_cause(state).items():
            waiting.labels(cause.value).set(count)
            pending += count
        self.gauges["running_runs"].set(len(state.runs) - pending)

    def _forecasts(self, state: State) -> None:
        scored, share, error = (
            state.waits.scored,
            self.gauges["forecast_share"],
            self.gauges["forecast_error_seconds"],
        )
        self.gauges["forecast_starts"].set(len(scored))
        share.clear()
        error.clear()
        if not scored:
            return
        share.labels("inside").set(sum(row.inside for row in scored) / len(scored))
        share.labels("before_p50").set(sum(row.before_p50 for row in scored) / len(scored))
        share.labels("before_p90").set(sum(row.before_p90 for row in scored) / len(scored))
        error.labels("forecast").set(sum(row.error for row in scored) / len(scored) / SECOND)
        compared = [row.baseline_error for row in scored if row.baseline_error is not None]
        if compared:
            error.labels("last_two").set(sum(compared) / len(compared) / SECOND)

    def _reservations(self, state: State) -> None:
        counts = dict.fromkeys(IN_FORCE, 0)
        for run in state.holds.values():
            if run.hold is not None:
                counts[run.hold.state] += 1
        for each, count in counts.items():
            self.gauges["reservations"].labels(each.value).set(count)

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


class Promised:
    """The first date that each waiting run was given, by which its start is judged, however often the date moved since."""

    def __init__(self) -> None:
        self._dates: dict[Key, int] = {}

    def fold(self, event: ev.AnyEvent, at: int) -> int | None:
        """Take in one event; gives by how many ms a run starts later than promised, where this is its start."""
        if isinstance(event, ev.ReservationMade):
            self._dates.setdefault(event.run, event.earliest_start)
        elif isinstance(event, ev.RunRequeued | ev.RunEnded):
            self._dates.pop(event.run, None)
        elif isinstance(event, ev.LeasesOpened) and event.run in self._dates:
            return max(0, at - self._dates.pop(event.run))
        return None


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
    if starting := sum(run.starting for run in state.runs.values()):
        counts[Reason.Starting] = starting
    return counts
