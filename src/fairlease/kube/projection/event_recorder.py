"""Events: what happened, told at the objects it happened to. One for each change, never one for each try.

The sentences are those of `explain` and of the log (`engine.story`). Their names follow from the entry, so that none is told
twice. What concerns the whole cluster many times over is left to statuses: that five thousand nodes are ready is no news.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlease.kube.api.names import event_name
from fairlease.kube.api.resource import BUDGETS, EVENTS, NODES, OUTCOMES, RUNS, Meta, Resource
from fairlease.ledger.state import events as ev
from fairlease.model.amount import format_instant
from fairlease.model.config import Config
from fairlease.model.record import key, split
from fairlease.model.reservation import ReservationState
from fairlease.report.story import StoryLine, Storyteller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlease.ledger.store.protocol import Entry

ALIKE_MAX = 100
"""Runs that are told one by one of one event that concerns them all; where there are more, their statuses tell it."""

NOTE_MAX = 1_024
_KINDS = {each.kind: each for each in (RUNS, BUDGETS, NODES, OUTCOMES)}
_ELSEWHERE = "default"
"""Where the Events of objects without a namespace lie."""


class EventRecord(NamedTuple):
    """One Event, and the namespace it lies in."""

    namespace: str
    name: str
    body: dict[str, Any]


class EventRecorder:
    """Makes Events of entries."""

    def __init__(self, reporter: str, config: Config) -> None:
        self._teller = Storyteller()
        self._teller.tell(0, ev.Configured(config=config))
        self._reporter = reporter

    def tell(self, entry: Entry, uid_of: Callable[[str, str], str]) -> Iterator[EventRecord]:
        """The Events of an entry; `uid_of` knows the uid of an object by its kind and key, as `kubectl describe` wants it."""
        index = 0
        for event in entry.events:
            lines = self._teller.tell(entry.at, event)
            if isinstance(event, ev.RunDeferred) and len(event.runs) > ALIKE_MAX:
                continue
            if _told_otherwise(event) or (isinstance(event, ev.NodeSet) and not any(x.warning for x in lines)):
                continue
            for line in [*lines, *_to_the_claim(event, lines)]:
                index += 1
                made = self._event(line, entry.seq, index, uid_of)
                if made is not None:
                    yield made

    def _event(self, line: StoryLine, seq: int, index: int, uid_of: Callable[[str, str], str]) -> EventRecord | None:
        kind, _, about = line.object.partition("/")
        what = _KINDS.get(kind)
        if what is None:
            return None
        namespace, name = split(key(about)) if what.namespaced else ("", about)
        meta = Meta(name, namespace, uid_of(kind, about))
        body = happening(
            what,
            meta,
            event_name(name, seq, index),
            line.at,
            line.reason,
            line.message,
            self._reporter,
            warning=line.warning,
        )
        return EventRecord(body["metadata"]["namespace"], body["metadata"]["name"], body)


def happening(
    what: Resource, about: Meta, name: str, at: int, reason: str, message: str, reporter: str, *, warning: bool
) -> dict[str, Any]:
    """An Event at an object."""
    regarding = {"apiVersion": what.api_version, "kind": what.kind, "name": about.name}
    regarding |= {"namespace": about.namespace} if about.namespace else {}
    regarding |= {"uid": about.uid} if about.uid else {}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name, "namespace": about.namespace or _ELSEWHERE},
        "eventTime": _micro(at),
        "reportingController": "fairlease",
        "reportingInstance": reporter[:128],
        "action": reason,
        "reason": reason,
        "type": "Warning" if warning else "Normal",
        "note": message[:NOTE_MAX],
        "regarding": regarding,
    }


def _told_otherwise(event: ev.AnyEvent) -> bool:
    """What everybody knows who asked, and what a notice tells (`kube.notifier`) or a status with every change."""
    active = isinstance(event, ev.ReservationTurned) and event.state is ReservationState.ACTIVE
    return active or isinstance(event, ev.RunSubmitted | ev.Forecasted)


def _to_the_claim(event: ev.AnyEvent, lines: list[StoryLine]) -> list[StoryLine]:
    """Who others gave way to learns of it too, by name."""
    claim = event.outcome.claim if isinstance(event, ev.OutcomeRecorded) else None
    if claim is None:
        return []
    return [line._replace(object=f"Run/{claim.namespace}/{claim.name}") for line in lines]


def _micro(at: int) -> str:
    text = format_instant(at).removesuffix("Z")
    head, _, ms = text.partition(".")
    return f"{head}.{ms or '000'}000Z"
