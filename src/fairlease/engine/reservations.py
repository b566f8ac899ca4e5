"""Reservations as their objects: a fold over the ledger that keeps every one ever made, the superseded ones as history."""

from __future__ import annotations

from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

from fairlease.ledger import event as ev
from fairlease.model.amount import SECOND, format_instant
from fairlease.model.record import Key, split
from fairlease.model.reservation import ReservationState

if TYPE_CHECKING:
    from collections.abc import Iterator

View = dict[str, Any]


class Reservations:
    """All reservations that some events tell of, in the order in which they were made."""

    def __init__(self) -> None:
        self._all: list[tuple[ev.ReservationMade, View]] = []
        self._latest: dict[Key, int] = {}

    @singledispatchmethod
    def fold(self, event: object) -> None:
        """Take in one event; most tell nothing of reservations."""

    @fold.register
    def _(self, event: ev.ReservationMade) -> None:
        before = self._latest.get(event.run)
        if before is not None and self._all[before][1]["state"] in _IN_FORCE:
            self._all[before][1].update(_status(ReservationState.SUPERSEDED, event.reason.value, event.message))
        self._latest[event.run] = len(self._all)
        self._all.append((event, _status(ReservationState.PENDING, event.basis.value, event.message)))

    @fold.register
    def _(self, event: ev.ReservationTurned) -> None:
        self._all[self._latest[event.run]][1].update(_status(event.state, event.reason.value, event.message))

    def objects(self, now: int) -> Iterator[View]:
        """Every reservation as its object."""
        return (_object(made, status, now) for made, status in self._all)

    def of(self, run: Key, now: int) -> View | None:
        """The reservation of a run that is in force, or else its last."""
        place = self._latest.get(run)
        return None if place is None else _object(*self._all[place], now)


_IN_FORCE = tuple(
    state.value for state in (ReservationState.PENDING, ReservationState.ACTIVE, ReservationState.BLOCKED)
)


def _status(state: ReservationState, reason: str, message: str) -> View:
    return {"state": state.value, "reason": reason, "message": message}


def _object(made: ev.ReservationMade, status: View, now: int) -> View:
    namespace, run = split(made.run)
    told = {name: value for name, value in status.items() if value}
    if status["state"] in _IN_FORCE:
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
