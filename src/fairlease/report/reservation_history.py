"""Reservations as their objects: a fold over the ledger that keeps every one ever made, the superseded ones as history."""

from __future__ import annotations

from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

from fairlease.ledger.state import events as ev
from fairlease.model.amount import SECOND, format_instant
from fairlease.model.record import split
from fairlease.model.reservation import IN_FORCE, ReservationState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key

View = dict[str, Any]

IN_FORCE_WORDS = tuple(state.value for state in IN_FORCE)


class ReservationHistory:
    """All reservations that some events tell of, in the order in which they were made."""

    def __init__(self) -> None:
        self._all: list[tuple[ev.ReservationMade, View]] = []
        self._latest: dict[Key, int] = {}
        self._forecasts: dict[Key, View] = {}
        self._at = 0

    def take(self, at: int, event: ev.AnyEvent) -> None:
        """Take in one event of an entry."""
        self._at = at
        self._fold(event)

    @singledispatchmethod
    def _fold(self, event: object) -> None:
        """Most events tell nothing of reservations."""

    @_fold.register
    def _(self, event: ev.ReservationMade) -> None:
        before = self._latest.get(event.run)
        if before is not None and self._all[before][1]["state"] in IN_FORCE_WORDS:
            self._all[before][1].update(_status(ReservationState.SUPERSEDED, event.reason.value, event.message))
        self._latest[event.run] = len(self._all)
        status = _status(ReservationState.PENDING, event.basis.value, event.message)
        if (
            event.run in self._forecasts
        ):  # a date that moved does not undo what is foreseen; `asOf` tells how old that is
            status["forecast"] = self._forecasts[event.run]
        self._all.append((event, status))

    @_fold.register
    def _(self, event: ev.ReservationTurned) -> None:
        self._all[self._latest[event.run]][1].update(_status(event.state, event.reason.value, event.message))

    @_fold.register
    def _(self, event: ev.Forecasted) -> None:
        for each in event.runs:
            told = self._forecasts[each.run] = forecast_view(self._at, each)
            place = self._latest.get(each.run)
            if place is not None and self._all[place][1]["state"] in IN_FORCE_WORDS:
                self._all[place][1]["forecast"] = told

    @_fold.register
    def _(self, event: ev.RunDeferred) -> None:
        for run in () if event.reason.transient else event.runs:  # What was foreseen has nothing to rest on any more.
            if self._forecasts.pop(run, None) is not None and run in self._latest:
                self._all[self._latest[run]][1].pop("forecast", None)

    @_fold.register
    def _(self, event: ev.LeasesOpened) -> None:
        self._forecasts.pop(event.run, None)  # it came true, or did not: the next wait is another one

    def objects(self, now: int) -> Iterator[View]:
        """Every reservation as its object."""
        return (_object(made, status, now) for made, status in self._all)

    def of(self, run: Key, now: int) -> View | None:
        """The reservation of a run that is in force, or else its last."""
        place = self._latest.get(run)
        return None if place is None else _object(*self._all[place], now)


def forecast_view(at: int, told: ev.Foreseen) -> View:
    """A forecast as a status shows it. `confidence`: the share of starts lately that came between P10 and P90."""
    view: View = {
        "p10": format_instant(told.p10),
        "p50": format_instant(told.p50),
        "p90": format_instant(told.p90),
        "asOf": format_instant(at),
        "source": told.source.value,
        "why": told.why,
        "confidence": None if told.confidence is None else told.confidence / 100,
    }
    if told.scope:
        view |= {"deficitGPUs": told.deficit_gpus, "scope": told.scope, "remedies": list(told.remedies)}
    return view


def _status(state: ReservationState, reason: str, message: str) -> View:
    return {"state": state.value, "reason": reason, "message": message}


def in_force(run: RunState, now: int) -> View | None:
    """The reservation in force of a run that lives, as its object, from the state alone: no history is read."""
    hold = run.hold
    if hold is None:
        return None
    reason = hold.basis if hold.state is ReservationState.PENDING else hold.reason
    status = _status(hold.state, reason.value, hold.message)
    if run.foreseen is not None and hold.holds:
        status["forecast"] = forecast_view(*run.foreseen)
    return _object(hold.made(run.key), status, now)


def _object(made: ev.ReservationMade, status: View, now: int) -> View:
    namespace, run = split(made.run)
    told = {name: value for name, value in status.items() if value}
    if status["state"] in IN_FORCE_WORDS and status["state"] != ReservationState.BLOCKED.value:  # blocked: no date
        told["countdownSeconds"] = max(0, made.earliest_start - now) // SECOND
    return {
        "name": made.name if namespace == "default" else f"{namespace}/{made.name}",
        "spec": {
            "runRef": {"namespace": namespace, "name": run},
            "intendedSlice": {"domain": ",".join(made.domains), "nodes": list(made.lien)},
            "payingEnvelopes": list(made.envelopes),
            "earliestStart": format_instant(made.earliest_start),
        },
        "status": told,
    }
