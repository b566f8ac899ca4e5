"""Resolution by hand: what an administrator is told of what was freed, or would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.ledger.state import events as ev
from fairlease.model.record import short
from fairlease.report import views

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.model.reservation import ByHand

View = dict[str, Any]
REASON_MAX = 200


def consequences(events: Iterable[ev.AnyEvent], asked: ByHand) -> View:
    """The record, what becomes of those who gave way, and who started on what came free; no record where all was free already."""
    outcome, after, started = None, dict[str, str](), list[View]()
    for event in events:
        if isinstance(event, ev.OutcomeRecorded) and event.outcome.by_hand == asked and outcome is None:
            outcome = event
        elif outcome is None:
            continue
        elif isinstance(event, ev.RunRequeued):
            after[event.run] = "asks again"
        elif isinstance(event, ev.RunEnded):
            after[event.run] = event.phase.value
        elif isinstance(event, ev.LeasesOpened):
            gpus = sum(len(cell.slots) for cell in event.cells)
            nodes = list(dict.fromkeys(cell.node for cell in event.cells))
            started.append({"run": short(event.run), "gpus": gpus, "nodes": nodes})
    if outcome is None:
        return {"outcome": None, "cuts": [], "started": []}
    cuts = [
        {
            "run": short(cut.run),
            "gpus": cut.gpus,
            "leases": list(cut.leases),
            "reason": cut.reason.value,
            "then": after.get(cut.run, "goes on"),
        }
        for cut in outcome.outcome.actions
    ]
    return {"outcome": views.outcome_object(outcome.name, outcome.outcome), "cuts": cuts, "started": started}
