"""Events: what happened, told at the objects it happened to. One for each change, never one for each try.

The sentences are those of `explain` and of the log (`engine.story`). Their names follow from the entry, so that none is told
twice. What concerns the whole cluster many times over is left to statuses: that five thousand nodes are ready is no news.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.engine.story import Line, Storyteller
from fairlease.kube.names import event_name
from fairlease.kube.resource import BUDGETS, EVENTS, NODES, OUTCOMES, RUNS
from fairlease.ledger import event as ev
from fairlease.model.amount import format_instant
from fairlease.model.config import Config
from fairlease.model.record import Key, key, split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fairlease.ledger.store import Entry

ALIKE_MAX = 100
"""Runs that are told one by one of one event that concerns them all; where there are more, their statuses tell it."""

NOTE_MAX = 1_024
_KINDS = {each.kind: each for each in (RUNS, BUDGETS, NODES, OUTCOMES)}
_ELSEWHERE = "default"
"""Where the Events of objects without a namespace lie."""


class Tiding(NamedTuple):
    """One Event, and the namespace it lies in."""

    namespace: str
    name: str
    body: dict[str, Any]


class Crier:
    """Makes Events of entries."""

    def __init__(self, reporter: str, config: Config) -> None:
        self._teller = Storyteller()
        self._teller.tell(0, ev.Configured(config=config))
        self._reporter = reporter

    def tell(self, entry: Entry, uids: Mapping[Key, str]) -> Iterator[Tiding]:
        """The Events of an entry; `uids` are those of the Runs, by key."""
        index = 0
        for event in entry.events:
            lines = self._teller.tell(entry.at, event)
            if isinstance(event, ev.RunDeferred) and len(event.runs) > ALIKE_MAX:
                continue
            if isinstance(event, ev.RunSubmitted) or (
                isinstance(event, ev.NodeSet) and not any(x.warning for x in lines)
            ):
                continue
            for line in [*lines, *_to_the_claim(event, lines)]:
                index += 1
                made = self._event(line, entry.seq, index, uids)
                if made is not None:
                    yield made

    def _event(self, line: Line, seq: int, index: int, uids: Mapping[Key, str]) -> Tiding | None:
        kind, _, about = line.object.partition("/")
        what = _KINDS.get(kind)
        if what is None:
            return None
        namespace, name = split(key(about)) if what.namespaced else ("", about)
        where = namespace or _ELSEWHERE
        regarding = {"apiVersion": what.api_version, "kind": kind, "name": name}
        if namespace:
            regarding["namespace"] = namespace
        uid = uids.get(Key(about), "") if what is RUNS else ""
        if uid:
            regarding["uid"] = uid
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": event_name(name, seq, index), "namespace": where},
            "eventTime": _micro(line.at),
            "reportingController": "fairlease",
            "reportingInstance": self._reporter[:128],
            "action": line.reason,
            "reason": line.reason,
            "type": "Warning" if line.warning else "Normal",
            "note": line.message[:NOTE_MAX],
            "regarding": regarding,
        }
        return Tiding(where, str(body["metadata"]["name"]), body)  # type: ignore[index]  # it is a dict, above


def _to_the_claim(event: ev.AnyEvent, lines: list[Line]) -> list[Line]:
    """Who others gave way to learns of it too, by name."""
    claim = event.outcome.claim if isinstance(event, ev.OutcomeRecorded) else None
    if claim is None:
        return []
    return [line._replace(object=f"Run/{claim.namespace}/{claim.name}") for line in lines]


def _micro(at: int) -> str:
    text = format_instant(at).removesuffix("Z")
    head, _, ms = text.partition(".")
    return f"{head}.{ms or '000'}000Z"
