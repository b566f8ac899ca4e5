"""Pods that go: how long they have, and what they still hold until they are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.record import short

if TYPE_CHECKING:
    from fairlease.local.pods import PodSpec
    from fairlease.model.lease import Lease


class Graces(NamedTuple):
    """How long pods have to end, in milliseconds; opportunistic work has less: who needs its GPUs waits for it."""

    usual_ms: int
    opportunistic_ms: int

    def of(self, lease: Lease) -> int:
        """How long the pod of a lease has."""
        return min(self) if lease.opportunistic else self.usual_ms


class Place(NamedTuple):
    """Which rank of which attempt a pod is."""

    run: str
    attempt: int
    rank: int


class Leaving(NamedTuple):
    """What pods without a lease still hold: slots, and their ranks' places."""

    slots: set[tuple[str, int]]
    places: dict[str, list[Place]]

    def frees(self, gang: list[Lease], starting: list[Lease]) -> bool:
        """Whether nothing is left that a gang's pods would meet."""
        if any((lease.node, slot) in self.slots for lease in gang for slot in lease.slots):
            return False
        first, ranks = gang[0], {lease.rank for lease in starting}
        held = self.places.get(short(first.run), [])
        return not any(place.attempt != first.attempt or place.rank in ranks for place in held)


def place_of(spec: PodSpec) -> Place:
    """Which rank a pod is, as its environment tells."""
    return Place(spec.env["FAIRLEASE_RUN"], int(spec.env["FAIRLEASE_ATTEMPT"]), int(spec.env["RANK"]))
