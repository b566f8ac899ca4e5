"""Pods that go: how long they have, what they still hold until they are gone, and when a run that failed is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.record import short
from fairlease.runtime.clock import pause_ms

if TYPE_CHECKING:
    from fairlease.local.processes.pods import PodSpec
    from fairlease.model.lease import Lease


class Patience(NamedTuple):
    """How long pods have to end and to start, in milliseconds, and how long a run rests after its first failure.

    Opportunistic work has less to end in: who needs its GPUs waits for it.
    """

    grace_ms: int
    opportunistic_ms: int
    backoff_ms: int
    bind_ms: int

    def of(self, lease: Lease) -> int:
        """How long the pod of a lease has."""
        return min(self.grace_ms, self.opportunistic_ms) if lease.opportunistic else self.grace_ms

    def pause(self, failures: int) -> int:
        """How long a run rests that failed so often before: twice as long each time. It holds no GPUs meanwhile."""
        return pause_ms(self.backoff_ms, failures)


class HeldPlace(NamedTuple):
    """Which rank of which attempt a pod is."""

    run: str
    attempt: int
    rank: int


class Termination(NamedTuple):
    """What pods without a lease still hold: slots, and their ranks' places."""

    slots: set[tuple[str, int]]
    places: dict[str, list[HeldPlace]]

    def frees(self, gang: list[Lease], starting: list[Lease]) -> bool:
        """Whether nothing is left that a gang's pods would meet."""
        if any((lease.node, slot) in self.slots for lease in gang for slot in lease.slots):
            return False
        first, ranks = gang[0], {lease.rank for lease in starting}
        held = self.places.get(short(first.run), [])
        return not any(place.attempt != first.attempt or place.rank in ranks for place in held)


def place_of(spec: PodSpec) -> HeldPlace:
    """Which rank a pod is, as its environment tells."""
    return HeldPlace(spec.env["FAIRLEASE_RUN"], int(spec.env["FAIRLEASE_ATTEMPT"]), int(spec.env["RANK"]))
