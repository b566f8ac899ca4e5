"""What objects tell: our kinds as the API server has them, in the words of the other answers."""

from __future__ import annotations

from typing import Any, TypeVar

from fairlease.kube.api.resource import OwnSeen
from fairlease.model.amount import parse_instant
from fairlease.model.record import Key, key, short
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.runtime.requests import Refused

Answer = dict[str, Any]
OVER = (Phase.COMPLETED.value, Phase.FAILED.value)
NOT_SEEN = "the controller has not looked at it yet"
T = TypeVar("T")


def status_of(seen: OwnSeen | None, *, gone: bool = False) -> Answer:
    """The status of a Run; one that nobody looked at yet waits, one that was deleted before it ended was canceled."""
    status = (
        {"phase": Phase.PENDING.value, "message": NOT_SEEN, "conditions": []} if seen is None else dict(seen.status)
    )
    if not status.get("phase"):
        status |= {"phase": Phase.PENDING.value, "message": status.get("message") or NOT_SEEN}
    if gone and status["phase"] not in OVER:
        status |= {"phase": Phase.FAILED.value, "reason": Reason.Canceled.value, "message": "its object was deleted"}
    return status


def reservation_of(seen: OwnSeen) -> Answer:
    """A reservation as its object tells it; how long it is until its date is counted by who shows it."""
    status = seen.status or {"state": "Pending"}
    return {"name": short(Key(seen.metadata.key)), "spec": seen.spec, "status": status}


def parties(spec: Answer) -> set[Key]:
    """The runs that had a part in a resolution: who claimed, who gave way, who might have."""
    claim = spec.get("claim")
    claimed = {key(claim["name"], claim["namespace"])} if claim else set()
    return claimed | {Key(each) for each in spec.get("conflictSet", ())} | {Key(cut["run"]) for cut in spec["actions"]}


def row_of(seen: OwnSeen) -> Answer:
    """One line of a list."""
    resources = seen.spec.get("resources") or {}
    return {
        "name": short(Key(seen.metadata.key)),
        "namespace": seen.metadata.namespace,
        "owner": seen.spec.get("owner", ""),
        "gpuType": resources.get("gpuType"),
        "gpus": resources.get("totalGPUs"),
        "status": status_of(seen),
    }


def placed(raw: Any, namespace: str | None) -> Answer:  # noqa: ANN401 - an object of a file
    """An object in its namespace: its own, or the one that is meant where none is named."""
    metadata = raw["metadata"]
    body: Answer = {**raw, "metadata": {**metadata, "namespace": metadata.get("namespace") or namespace}}
    return body


def spec_of(seen: OwnSeen, kind: type[T]) -> T:
    """The object as the engine knows it; raises what is wrong with it."""
    from fairlease.kube.api.wire_types import read  # noqa: PLC0415 - the reader of objects, which who only lists does not need

    found = read(seen, kind.__name__.removesuffix("Object"))
    if not isinstance(found, kind):
        raise Refused(Reason.InvalidRequest, getattr(found, "message", f"it is no {kind.__name__}"))
    return found


def cause_of(status: Answer) -> Answer:
    """Why a run is as it is: how it ended, or the first condition that does not hold, with what would change it."""
    conditions = status.get("conditions") or ()
    first = next((each for each in conditions if each.get("status") == "False" and each["type"] != "Completed"), None)
    running = status["phase"] == Phase.RUNNING.value
    cause = Reason.Bound.value if running else str(first["reason"]) if first else Reason.Submitted.value
    cause = str(status.get("reason") or cause)
    known = Reason.__members__.get(cause)
    remedy = "" if known is None else known.plain_remedy
    return {"reason": cause, "message": status.get("message", ""), "remedy": remedy}


def budget_of(seen: OwnSeen) -> Answer:
    """A Budget as its object tells it."""
    name = short(Key(seen.metadata.key))
    return {"name": name, "owner": seen.spec.get("owner", ""), "spec": seen.spec, "status": seen.status}


def selector(value: str) -> str:
    """A value as a field selector takes it, whatever was typed."""
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def open_within(seen: OwnSeen, since: int | None, until: int | None) -> bool:
    """Whether a lease was open at some instant of [since, until)."""
    start, end = parse_instant(seen.spec["interval"]["start"]), seen.status.get("endTime")
    return (until is None or start < until) and (since is None or end is None or parse_instant(end) > since)
