"""What every store derives from an event by itself: the words for a closure, and the runs an event names.

The stores share it so that they give the same answers. (The audit's replay does not use it: a proof that shares code
with what it proves is none. `index_check` does: it proves that a file holds these answers, not that they are right.)
"""

from __future__ import annotations

from fairlease.ledger.state import events as ev
from fairlease.model.record import Key

_ONE_RUN = (
    ev.RunSubmitted, ev.LeasesOpened, ev.LeasesClosed, ev.RunRequeued, ev.RunEnded, ev.CoverLost, ev.CoverRegained,
    ev.ReservationMade, ev.ReservationTurned, ev.DesiredSet, ev.FundingSet, ev.GrowthDeferred, ev.BackoffEnded, ev.RunQuarantined,
    ev.RunStarted, ev.LeasesLeaving, ev.RunEnding, ev.SwapAwaited,
)  # fmt: skip


def closure_of(event: ev.LeasesClosed) -> str:
    """Why leases closed, as people see it; a draw names its seed, so that it can be looked up and drawn again."""
    return event.reason.value if event.seed is None else f"{event.reason.value}({event.seed})"


def runs_of(event: ev.AnyEvent) -> tuple[Key, ...]:
    """Every run an event names, each once. A resolution names its claim, its victims, and who might have been one."""
    if isinstance(event, _ONE_RUN):
        return (event.run,)
    if isinstance(event, ev.RunDeferred):
        return tuple(dict.fromkeys(event.runs))
    if isinstance(event, ev.Forecasted):
        return tuple(each.run for each in event.runs)
    if isinstance(event, ev.OutcomeRecorded):
        outcome = event.outcome
        claim = () if outcome.claim is None else (outcome.claim.key,)
        return tuple(dict.fromkeys((*claim, *outcome.conflict_set, *(cut.run for cut in outcome.actions))))
    return ()
