"""Notice: what people and programs are told without asking, as values.

Two sources, both pure. What happened is told from the events of one entry (`of_entry`). What comes is told from the state: work
that may be cut (`engine.coming`), money that runs low (`engine.alarms`). Each notice has a key: the same thing told again has the
same key, so that whoever delivers it, over however many restarts, can keep from repeating it. Backends deliver: to webhooks, hooks
and signals on one machine, as Events on Kubernetes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from fairlease.engine.place.plan import Planner
from fairlease.engine.preempt.resolve import deficit
from fairlease.engine.reserve.release_times import due_date
from fairlease.ledger.state import events as ev
from fairlease.model.amount import format_instant
from fairlease.model.record import Instant, Key, Reason, Record, short
from fairlease.model.reservation import ReservationState, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlease.engine.context import Engine
    from fairlease.ledger.store.protocol import Entry


class NoticeKind(enum.Enum):
    """What a notice is about."""

    DEFICIT_FORECAST = "DeficitForecast"
    CUT_COMING = "CutComing"
    RUN_CUT = "RunCut"
    RUN_STARTED = "RunStarted"
    RESERVATION_ACTIVE = "ReservationActive"
    RESERVATION_BLOCKED = "ReservationBlocked"
    LATEST_START_PASSED = "LatestStartPassed"
    INTERNAL_ERROR = "InternalError"
    OVERDRAWN = "Overdrawn"
    HOURS_LOW = "HoursLow"
    HOURS_USED_UP = "HoursUsedUp"
    WINDOW_ENDING = "WindowEnding"
    LENDING_CAP_NEAR = "LendingCapNear"


WARNINGS = frozenset({NoticeKind.DEFICIT_FORECAST, NoticeKind.CUT_COMING, NoticeKind.WINDOW_ENDING})
"""Kinds that are of no use when what they foretell has come. That hours run low stays true whenever they were to end."""


class Risk(Record, frozen=True, kw_only=True):
    """One run that may lose GPUs: how, how many, and with what chance (None: nobody counted)."""

    run: Key
    reason: Reason
    gpus: int
    odds: float | None = None


class Notice(Record, frozen=True, kw_only=True):
    """One thing that is told once. `due` is when what it foretells happens; `runs` are those it threatens."""

    key: str
    kind: NoticeKind
    at: Instant
    text: str
    run: Key | None = None
    owner: str = ""
    budget: Key | None = None
    envelope: str = ""
    due: Instant | None = None
    gpus: int = 0
    claim: Key | None = None
    outcome: str = ""
    runs: tuple[Risk, ...] = ()

    def expired(self, now: int) -> bool:
        """Whether it warns of what was to happen by now: who hears of it then would think that it is still to come."""
        return self.kind in WARNINGS and self.due is not None and self.due <= now

    @property
    def concerns(self) -> tuple[Key, ...]:
        """The runs to which it is addressed."""
        if self.runs:
            return tuple(dict.fromkeys(risk.run for risk in self.runs))
        return () if self.run is None else (self.run,)


def of_entry(engine: Engine, entry: Entry, owner_of: Callable[[Key], str]) -> list[Notice]:
    """What an entry has to tell. The engine's state is as it left it, or later: what is no longer true by then is not told."""
    return list(_Teller(engine, entry, owner_of).tell())


class _Teller:
    """Tells one entry."""

    def __init__(self, engine: Engine, entry: Entry, owner_of: Callable[[Key], str]) -> None:
        self.engine = engine
        self.state = engine.state
        self.entry = entry
        self.owner_of = owner_of
        events = entry.events
        self.arrived = {event.run for event in events if isinstance(event, ev.RunSubmitted)}
        self.over = {event.run: event for event in events if isinstance(event, ev.RunRequeued | ev.RunEnded)}

    def tell(self) -> Iterator[Notice]:
        for event in self.entry.events:
            if isinstance(event, ev.OutcomeRecorded):
                yield from self._cuts(event)
            elif isinstance(event, ev.LeasesOpened):
                yield from self._started(event)
            elif isinstance(event, ev.LeasesClosed):
                yield from self._drained(event)
            elif isinstance(event, ev.ReservationMade):
                yield from self._reserved(event)
            elif isinstance(event, ev.ReservationTurned):
                yield from self._turned(event)
            elif isinstance(event, ev.RunEnded) and event.reason is Reason.LatestStartPassed:
                yield self._too_late(event)
            elif isinstance(event, ev.RunQuarantined):
                yield self._quarantined(event)
            elif isinstance(event, ev.CoverLost):
                yield self._overdrawn(event)
            elif isinstance(event, ev.EnvelopeTurned) and event.turn is ev.Turn.EXHAUSTED:
                yield self._used_up(event)

    def _notice(self, kind: NoticeKind, subject: str, text: str, run: Key | None = None, **more: object) -> Notice:
        owner = "" if run is None else self.owner_of(run)
        told = {"key": f"{kind.value}/{subject}", "kind": kind, "at": self.entry.at, "text": text, "run": run}
        return Notice(**told, **({"owner": owner} | more))  # type: ignore[arg-type]  # fields by their names

    def _quarantined(self, event: ev.RunQuarantined) -> Notice:
        text = f"{short(event.run)}: {event.message}; it is left alone until {format_instant(event.until)}"
        return self._notice(NoticeKind.INTERNAL_ERROR, f"{event.run}/{self.entry.seq}", text, event.run)

    # --- cuts ----------------------------------------------------------------------------------------------------------

    def _cuts(self, event: ev.OutcomeRecorded) -> Iterator[Notice]:
        outcome = event.outcome
        claim = None if outcome.claim is None else outcome.claim.key
        losses: dict[Key, list[tuple[Reason, int]]] = {}
        for action in event.outcome.actions:
            losses.setdefault(action.run, []).append((action.reason, action.gpus))
        for run, lost in losses.items():
            gpus = sum(each[1] for each in lost)
            how = ", ".join(dict.fromkeys(reason.value for reason, _ in lost))
            text = f"{short(run)} lost {gpus} GPUs to {outcome.claimant} ({how}; {event.name}); {self._fate(run)}"
            yield self._notice(
                NoticeKind.RUN_CUT, f"{run}/{event.name}", text, run, gpus=gpus, claim=claim, outcome=event.name
            )

    def _drained(self, event: ev.LeasesClosed) -> Iterator[Notice]:
        if event.reason is not Reason.BudgetExhausted:
            return
        text = f"{short(event.run)} was cut: its money no longer covers it; {self._fate(event.run)}"
        yield self._notice(NoticeKind.RUN_CUT, f"{event.run}/{self.entry.seq}", text, event.run)

    def _fate(self, run: Key) -> str:
        over = self.over.get(run)
        if over is None:
            return "it goes on with the rest"
        return "it asks again" if isinstance(over, ev.RunRequeued) else "it has ended"

    # --- starts and reservations ---------------------------------------------------------------------------------------

    def _started(self, event: ev.LeasesOpened) -> Iterator[Notice]:
        """Who had to wait is told; who started when they asked knows it."""
        if event.reason is not Reason.Start or event.run in self.arrived:
            return
        gpus = sum(len(cell.slots) for cell in event.cells)
        nodes = len({cell.node for cell in event.cells})
        text = f"{short(event.run)} started: attempt {event.attempt}, {gpus} GPUs on {nodes} node{'s'[: nodes > 1]}"
        yield self._notice(NoticeKind.RUN_STARTED, f"{event.run}#{event.attempt}", text, event.run, gpus=gpus)

    def _reserved(self, event: ev.ReservationMade) -> Iterator[Notice]:
        """A reservation whose date rests on others giving way."""
        run = self.state.runs.get(event.run)
        hold = None if run is None else run.hold
        if run is None or hold is None or hold.name != event.name or hold.cut_from is None:
            return
        if hold.basis not in (Reason.Notice, Reason.WindowClosed):
            return
        with due_date(self.state, run, self.engine.now) as day:
            family = self.engine.family
            gpus = 0 if day is None or not day.noticed else deficit(Planner(self.state, family, run, day.at), family)
        if gpus == 0:
            return
        date = format_instant(event.earliest_start)
        text = f"{short(event.run)} lacks {gpus} × {Scope.of(run.spec).words}: unless they come free, others give way at {date}"
        more = {"due": event.earliest_start, "gpus": gpus, "claim": event.run}
        yield self._notice(NoticeKind.DEFICIT_FORECAST, run.reservation, text, event.run, **more)

    def _turned(self, event: ev.ReservationTurned) -> Iterator[Notice]:
        subject = f"{event.run}/{self.entry.seq}"
        if event.state is ReservationState.ACTIVE:
            yield self._notice(
                NoticeKind.RESERVATION_ACTIVE, subject, f"{short(event.run)}: its reservation is due", event.run
            )
        elif event.state is ReservationState.BLOCKED:
            text = f"{short(event.run)}: its reservation holds nothing any more ({event.reason.value}): {event.message}"
            yield self._notice(NoticeKind.RESERVATION_BLOCKED, subject, text, event.run)

    def _too_late(self, event: ev.RunEnded) -> Notice:
        waited = any(isinstance(each, ev.ReservationTurned) and each.run == event.run for each in self.entry.events)
        lost = ", and its reservation is canceled" if waited else ""
        text = f"{short(event.run)} could not start by its latestStart: it has ended{lost}; {event.reason.remedy}"
        return self._notice(NoticeKind.LATEST_START_PASSED, f"{event.run}/{self.entry.seq}", text, event.run)

    # --- money ---------------------------------------------------------------------------------------------------------

    def _overdrawn(self, event: ev.CoverLost) -> Notice:
        payer = f"{short(event.budget)}/{event.envelope}"
        subject = f"{event.run}/{event.budget}/{event.envelope}/{event.group}/{self.entry.seq}"
        money = {"budget": event.budget, "envelope": event.envelope}
        if event.ends is None:
            text = f"{short(event.run)} is overdrawn on {payer} ({event.reason.value}): it goes when somebody funded needs its GPUs"
            return self._notice(NoticeKind.OVERDRAWN, subject, text, event.run, **money)
        run = self.state.runs.get(event.run)
        gpus = 0 if run is None else sum(lease.gpus for lease in run.leases.values())
        risk = Risk(run=event.run, reason=Reason.BudgetExhausted, gpus=gpus, odds=1.0)
        text = f"{short(event.run)} ends at {format_instant(event.ends)}: {payer} no longer covers it ({event.reason.value})"
        return self._notice(
            NoticeKind.CUT_COMING, subject, text, event.run, due=event.ends, gpus=gpus, runs=(risk,), **money
        )

    def _used_up(self, event: ev.EnvelopeTurned) -> Notice:
        name = event.cap or event.envelope
        what = f"aggregate cap {event.cap}" if event.cap else f"envelope {event.envelope}"
        text = f"Budget {short(event.budget)}: the hours of {what} are used up"
        subject = f"{event.budget}/{name}/{self.entry.seq}"
        spec = self.state.budgets.get(event.budget)
        owner = "" if spec is None else spec.owner
        return self._notice(
            NoticeKind.HOURS_USED_UP, subject, text, owner=owner, budget=event.budget, envelope=event.envelope
        )
