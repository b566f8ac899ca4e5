"""Statuses as objects carry them: the engine's views, with what only Kubernetes asks for, and what to compare them by.

A status is written when something in it changed besides the hours, which change all the time; the hours are as of then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.model.amount import format_instant
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.report.views import View, budget_status, ended_status, run_status, starting_words

if TYPE_CHECKING:
    from fairlease.engine.refusal import Refusal
    from fairlease.ledger.state.capacity import Capacity
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.store.protocol import Ending
    from fairlease.model.record import Key
    from fairlease.model.run import RunSpec
    from fairlease.scheduler import Decider

_PASSING = frozenset(
    {"gpuHours", "consumedGPUHours", "committedGPUHours", "updatedAt", "countdownSeconds", "lastTransitionTime"}
)
"""Fields that change without anything having happened."""

_COUNTDOWN = "countdownSeconds"
COUNTDOWN_S = 60
"""How far a countdown may be off before it is written again, where its date is near."""


def live_report(
    run: RunState, now: int, generation: int, capacity: Capacity, *, message: str, problem: str, on_nodes: int
) -> View:
    """How a run that lives stands, and why. It is Running once all its pods are on their nodes, and not before."""
    view = run_status(run, now, capacity, message)
    pods = sum(1 for lease in run.leases.values() if lease.rank >= 0)
    if run.phase is Phase.RUNNING and on_nodes < pods:
        view["phase"] = Phase.PENDING.value
        view["message"] = starting_words(on_nodes, pods)
        for condition in view["conditions"]:
            if condition["type"] == "Running":
                condition |= {"status": "False", "reason": Reason.Starting.value, "message": view["message"]}
    if problem:
        view["message"] = f"{view['message']}; {problem}" if view.get("message") else problem
    return _of(view, generation)


def ended_report(spec: RunSpec, submitted_at: int, ending: Ending, generation: int, told: str = "") -> View:
    """How a run that is over ended; `told` is what the API server said, where it was the cause."""
    view = ended_status(spec, submitted_at, ending)
    if told:
        view["message"] = "; ".join(part for part in (view.get("message"), told) if part)
    return _of(view, generation)


def refused_report(refusal: Refusal, now: int, generation: int) -> View:
    """A Run that was never taken into the ledger: why not."""
    message = f"{refusal.message}; {refusal.reason.remedy}"
    told = [("Failed", "True"), ("Running", "False"), ("Completed", "False")]
    conditions = [
        {
            "type": kind,
            "status": holds,
            "reason": refusal.reason.value,
            "message": message,
            "lastTransitionTime": format_instant(now),
        }
        for kind, holds in told
    ]
    view: View = {"phase": Phase.FAILED.value, "reason": refusal.reason.value, "message": message}
    return _of({**view, "conditions": conditions}, generation)


def budget_report(decider: Decider, budget: Key, now: int, generation: int, before: View) -> View:
    """What a Budget has spent, promised and left; `before` is its status as we wrote it last."""
    view = budget_status(decider.state, decider.engine.family, budget, now)
    return _of({**view, "conditions": _since(view["conditions"], before, now)}, generation)


def refused_budget(refusal: Refusal, now: int, generation: int, before: View) -> View:
    """A Budget that counts for nothing: why."""
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": refusal.reason.value,
        "message": f"{refusal.message}; {refusal.reason.remedy}",
        "lastTransitionTime": format_instant(now),
    }
    return _of({"conditions": _since([condition], before, now)}, generation)


def _since(conditions: list[View], before: View, now: int) -> list[View]:
    """The same, each since it turned. What money stands for turns with other Budgets, with loans and with the hours that pass.

    So the status itself is what remembers it; one that was never written begins as the ledger tells.
    """
    known = {each["type"]: each for each in before.get("conditions") or ()}
    turned = {"lastTransitionTime": format_instant(now)} if known else {}
    found = []
    for each in conditions:
        last = known.get(each["type"])
        stays = last is not None and last["status"] == each["status"]
        found.append({**each, **({"lastTransitionTime": last["lastTransitionTime"]} if last and stays else turned)})
    return found


def _of(view: View, generation: int) -> View:
    conditions = [{**each, "observedGeneration": generation} for each in view["conditions"]]
    return {**view, "conditions": conditions, "observedGeneration": generation}


def alike(one: View, other: View) -> bool:
    """Whether two statuses say the same, whatever the hour; a countdown may be off by a tenth, or by a minute."""
    return bool(_lasting(one) == _lasting(other)) and _near(one.get(_COUNTDOWN), other.get(_COUNTDOWN))


def _near(one: int | None, other: int | None) -> bool:
    return one is None or other is None or abs(one - other) <= max(COUNTDOWN_S, max(one, other) // 10)


def _lasting(value: Any) -> Any:  # noqa: ANN401 - any part of a status
    """What lasts of a status; absent, null and empty are the same to a reader, and the server drops some of them."""
    if isinstance(value, dict):
        kept = {name: _lasting(each) for name, each in value.items() if name not in _PASSING}
        return {name: each for name, each in kept.items() if each not in (None, "", [], {})}
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    return value
