"""Promises: the auditor's own books of reservations, kept from the events alone.

A run has one reservation in force at most; its date lies ahead when it is given and moves only with a reason; it is over before the
run starts or ends; and nobody who asked later takes a slot under its lien unless it surely ends by its date or is opportunistic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fairlease.ledger.state import events as ev
from fairlease.model.record import Key
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.sim.auditor.bookkeeper import AuditedRun, Held

_MOVES = (
    Reason.NotServed,
    Reason.TooYoung,
    Reason.SliceTaken,
    Reason.SliceLost,
    Reason.MoneyBack,
    Reason.Nearer,
    Reason.Sooner,
)


@dataclass(slots=True)
class PromisedStart:
    """One reservation in force."""

    name: str
    date: int
    lien: dict[str, int]
    cut_from: int | None
    alone: bool = False
    state: ReservationState = ReservationState.PENDING


@dataclass(slots=True)
class Promises:
    """Every reservation in force, and every name one ever had."""

    of: dict[Key, PromisedStart] = field(default_factory=dict)
    names: set[tuple[str, str]] = field(default_factory=set)

    def made(self, event: ev.ReservationMade, at: int, notice: int | None) -> Iterator[str]:
        """Hear of a new one, or of a move; who is cut for it has had `notice`, counted from the first on."""
        before = self.of.get(event.run)
        any_time = event.reason in (Reason.WindowClosed, Reason.Leaving)
        if (before is not None) != (event.reason in _MOVES) and not any_time:
            yield f"{event.name} was given for {event.reason.value}, and there was {before}"
        kept = before is not None and before.cut_from == event.cut_from
        if event.cut_from is not None and not kept and (notice is None or event.cut_from < at + notice):
            yield f"{event.name} would cut from {event.cut_from} on, without notice"
        namespace = event.run.partition("/")[0]
        if (namespace, event.name) in self.names:
            yield f"a reservation {event.name} was there before"
        self.names.add((namespace, event.name))
        tried = event.reason in (
            Reason.NotServed,
            Reason.TooYoung,
        )  # What was due, and could not be served, has to wait.
        if event.earliest_start < at + tried:
            yield f"{event.name} is for {event.earliest_start}, which is not ahead of {at}"
        if bool(event.lien) != bool(event.domains):
            yield f"{event.name} has a lien without a domain, or a domain without a lien"
        alone = event.basis is Reason.Leaving
        self.of[event.run] = PromisedStart(event.name, event.earliest_start, event.lien, event.cut_from, alone)

    def comes_free(self, run: Key) -> bool:
        """Whether others are leaving GPUs for a run alone."""
        return run in self.of and self.of[run].alone

    def turned(self, event: ev.ReservationTurned, at: int, *, punctual: bool) -> Iterator[str]:
        """Hear that one fell due, lost its money or is over."""
        promise = self.of.get(event.run)
        if promise is None:
            yield f"{event.run} has no reservation that could be {event.state.value}"
            return
        promise.state = event.state
        if event.state is ReservationState.ACTIVE and (at < promise.date or (punctual and at != promise.date)):
            yield f"{promise.name} is due at {at}, not at {promise.date}"
        if event.state not in (ReservationState.ACTIVE, ReservationState.BLOCKED, ReservationState.PENDING):
            del self.of[event.run]

    def trespasses(
        self, run: AuditedRun, opened: list[Held], runs: dict[Key, AuditedRun], *, growing: bool
    ) -> Iterator[str]:
        """Slots that a run took though another's lien was on them."""
        for other, promise in self.of.items():
            passes = run.deadline is not None and run.deadline <= promise.date and not growing
            passes = (passes or run.spec.opportunistic) and not promise.alone
            earlier = runs[other].order < run.order or growing or promise.alone
            if promise.state is ReservationState.BLOCKED or other == run.key or passes or not earlier:
                continue
            for lease in opened:
                if any(promise.lien.get(lease.node, 0) >> slot & 1 for slot in lease.slots):
                    yield f"{lease.name} lies on {lease.node} under the lien of {promise.name}"

    def may_cut(self, run: Key, at: int) -> bool:
        """Whether funded work may be cut for a run: it has a date, that date has come, and the notice is over."""
        promise = self.of.get(run)
        due = promise is not None and promise.state is ReservationState.ACTIVE and promise.date <= at
        return due and promise is not None and promise.cut_from is not None and promise.cut_from <= at

    def amiss(self, run: AuditedRun, *, opens: bool) -> Iterator[str]:
        """When all is settled: who waits for GPUs has a date, and who is not asked for has none.

        Who waits for money holds nothing, unless a window `opens` later that may bring it.
        """
        promise = self.of.get(run.key)
        holds = promise is not None and promise.state is not ReservationState.BLOCKED
        if run.phase is not Phase.PENDING or run.spec.opportunistic:
            if promise is not None:
                yield f"{run.key} is {run.phase.value} and has {promise.name}"
        elif run.reason is Reason.Reserved and not holds:
            yield f"{run.key} is told that it has a date, and has {promise}"
        elif run.reason is not Reason.Reserved and holds and not opens and not self.comes_free(run.key):
            yield f"{run.key} waits for {run.reason.value} and holds {promise}"

    def overdue(self, now: int) -> Iterator[str]:
        """Reservations whose date passed and nothing came of it."""
        for run, promise in self.of.items():
            if promise.alone:
                continue
            if promise.state is not ReservationState.BLOCKED and promise.date <= now:
                yield f"{promise.name} of {run} was due at {promise.date} and is {promise.state.value}"
