"""Metrics of what changes while runs run: spares, swaps, elastic width, loans.

Counters follow appended entries, never plans; gauges are read from the state, so that they are right from the first scrape of a
new daemon on. Labels are flavors and causes: there are few of them, whatever people submit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairlease.ledger.state import events as ev
from fairlease.model.amount import HOUR
from fairlease.model.lease import Fund, Role
from fairlease.reason import COVER_CAUSES, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import Counter, Gauge, Histogram

    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key

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
