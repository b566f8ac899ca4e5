"""The projector: what the ledger says, written to objects, and written again wherever they are not as it says.

It compares, and writes what is missing or different; it remembers nothing that matters. After a crash at any point, a deletion
or an edit by anybody, the same comparison mends it. Each entry marks whose objects it changed; a look at everything comes at the
start of a leadership and every few minutes.

Specs are created, because they never change; a status is replaced whole by a JSON patch that names the object's uid. Server-side
apply would do the same for twice the API server's work (bench/cluster.py), and would leave what another manager has put beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlease.kube.api.annotation_commands import DONE, reply_name
from fairlease.kube.api.cache import ClusterCache, made_key
from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.names import ATTEMPT, NODE, ROLE, label_value, run_of
from fairlease.kube.api.resource import (
    BUDGETS,
    EVENTS,
    LEASES,
    NAMESPACES,
    OUTCOMES,
    RESERVATIONS,
    RESERVATIONS_OVER,
    RUNS,
    Meta,
    Resource,
)
from fairlease.kube.projection import statuses
from fairlease.kube.projection.event_recorder import EventRecorder, happening
from fairlease.kube.projection.gangs import Gangs
from fairlease.kube.projection.pods import marks_of
from fairlease.kube.projection.status_writer import StatusWriter
from fairlease.kube.projection.tombstones import Closed, Tombstones, lease_key, lease_spec
from fairlease.kube.projection.waiting_reasons import TERMS, WaitingReasons
from fairlease.kube.projection.write_queue import Target, WriteLane, WritePart
from fairlease.kube.projection.writer import Writer
from fairlease.model.lease import Role
from fairlease.model.record import Key, key, split
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.model.writing import write
from fairlease.reason import Reason
from fairlease.report.views import View

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from fairlease.engine.refusal import Refusal
    from fairlease.kube.api.annotation_commands import Reply
    from fairlease.kube.api.connection import Api
    from fairlease.kube.api.wire_types import OwnSeen
    from fairlease.kube.settings import ClusterSettings
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.store.protocol import Entry
    from fairlease.model.lease import Lease
    from fairlease.runtime.metrics import Metrics
    from fairlease.scheduler import Decider

PODS_PART, LEASES_PART, STATUS_PART, RESERVATIONS_PART, TIDINGS_PART = (
    "pods",
    "leases",
    "status",
    "reservations",
    "tidings",
)

SWEEP_S = 0.01
"""How long a look at everything goes on at a time: 20,000 runs take seconds, and what is new must not wait for them."""

_TIDINGS = WritePart(Key("events"), TIDINGS_PART)

Body = dict[str, Any]


class Remarks:
    """What is to be told at objects besides what entries tell of them."""

    def __init__(self) -> None:
        self.refused: dict[Key, Refusal] = {}
        """Runs that were turned away, for as long as they are there; Budgets likewise."""
        self.refused_budgets: dict[Key, Refusal] = {}
        self.notes: dict[Key, str] = {}
        """What is to be told at runs whose spec is no longer the one that was submitted."""
        self.unknown: set[Key] = set()
        """Runs that ended longer ago than the entries at hand tell."""
        self.replies: list[Reply] = []
        """What came of requests."""


class Projector:
    """Writes the objects of one leadership. `turn` is called while nothing is being decided, and never waits."""

    def __init__(
        self,
        api: Api,
        sight: ClusterCache,
        decider: Decider,
        chronicle: Tombstones,
        remarks: Remarks,
        settings: ClusterSettings,
        metrics: Metrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._api, self._sight, self._decider = api, sight, decider
        self._chronicle, self._remarks = chronicle, remarks
        self.writer = Writer(self._done, metrics, log)
        self.gangs = Gangs(api, sight, decider.state, settings, self.writer)
        self._crier = EventRecorder(settings.identity, decider.state.config)
        self._identity = settings.identity
        self._made = sight.made
        self._scribe = StatusWriter(api, self.writer, sight)
        self._wording = WaitingReasons(decider)
        self._sweep: dict[Key, None] = {}
        self.lost_leases: set[Key] = set()
        """Leases whose objects are open and whose end the entries at hand do not tell."""

    # --- what is to be looked at -----------------------------------------------------------------------------------------

    def follow(self, entry: Entry) -> None:
        """Mark what an entry changed, and tell of it."""
        touched = self._chronicle.follow(entry)
        marks = self._sight.marks
        marks.written_runs |= touched.runs
        marks.written_budgets |= touched.budgets
        if any(isinstance(event, TERMS) for event in entry.events):
            self._sweep |= dict.fromkeys(self._wording.doubt())
        nodes = self._decider.state.capacity.nodes
        for host in touched.hosts & nodes.keys():
            marks.written_runs |= {lease.run for lease in nodes[host].leases.values() if lease.role is Role.SPARE}
        for tiding in self._crier.tell(entry, self._sight.uid_of):
            self._scribe.create(WriteLane.EVENTS, _TIDINGS, EVENTS, tiding.namespace, tiding.name, tiding.body)

    def _reply(self, at: int) -> None:
        """Tell who asked for something what came of it, at the object where it was asked."""
        replies, self._remarks.replies = self._remarks.replies, []
        for each in replies:
            what = RUNS if "/" in each.about else NAMESPACES
            namespace, name = split(Key(each.about)) if what is RUNS else ("", each.about)
            about = Meta(name, namespace, self._sight.uid_of(what.kind, each.about))
            event = reply_name(name, each.request)
            refused = each.reason != DONE
            body = happening(what, about, event, at, each.reason, each.message, self._identity, warning=refused)
            where = str(body["metadata"]["namespace"])
            self._scribe.create(WriteLane.STATUS, _TIDINGS, EVENTS, where, event, body)

    def owner_of(self, run: Key) -> str:
        """Whose run it is, or was, as far as that is known."""
        live, final = self._decider.state.runs.get(run), self._chronicle.final.get(run)
        return live.spec.owner if live is not None else final.spec.owner if final is not None else ""

    def mark_all(self) -> None:
        """Look at every run that lives or has an object, by and by, and at every Budget."""
        everyone = self._sight.runs_seen() | self._decider.state.runs.keys() | self._chronicle.untold.keys()
        self._sweep |= dict.fromkeys(sorted(everyone))
        self._wording.doubt()
        self._sight.marks.written_budgets |= self._decider.state.budgets.keys()

    @property
    def sweeping(self) -> bool:
        """Whether some of everything is still to be looked at."""
        return bool(self._sweep)

    def _done(self, part: WritePart) -> None:
        if part.what == TIDINGS_PART:
            return
        marks = self._sight.marks
        if part.what == PODS_PART:
            marks.reports.add(part.of)
        (marks.written_budgets if part.what == BUDGETS.plural else marks.written_runs).add(part.of)
        self._sight.wake.set()

    def turn(self, now: int) -> None:
        """Write what is missing or different, of all that is marked."""
        self._reply(now)
        marks = self._sight.marks
        runs, marks.written_runs = marks.written_runs, set()
        budgets, marks.written_budgets = marks.written_budgets, set()
        for each in sorted(runs):
            self._sweep.pop(each, None)
            self._guarded(RUNS, each, now, self._run)
        until = time.perf_counter() + SWEEP_S
        while self._sweep and time.perf_counter() < until:
            each = next(iter(self._sweep))
            del self._sweep[each]
            self._guarded(RUNS, each, now, self._run)
        for each in sorted(budgets):
            self._guarded(BUDGETS, each, now, self._budget)
        for name, outcome in self._chronicle.outcomes.items():
            self._outcome(name, write(outcome.spec))

    def _guarded(self, what: Resource, name: Key, now: int, plan: Callable[[Key, int], None]) -> None:
        """One object of a shape that nobody thought of must not keep all others from being written."""
        try:
            plan(name, now)
        except Exception:  # noqa: BLE001 - see above
            self.writer.fault(name, what.plural)

    # --- runs ------------------------------------------------------------------------------------------------------------

    def _run(self, name: Key, now: int) -> None:
        run, seen = self._decider.state.runs.get(name), self._sight.runs.objects.get(name)
        if not self.writer.busy(WritePart(name, LEASES_PART)):
            self._leases(name, run)
        if not self.writer.busy(WritePart(name, PODS_PART)):
            self.gangs.plan(name, run, seen, WritePart(name, PODS_PART))
        asked = self.writer.asked
        self._reservations(name, now)
        told = not self.writer.busy(WritePart(name, RESERVATIONS_PART)) and self.writer.asked == asked
        if seen is None:
            self._scribe.forget(Target(RUNS.plural, name))
        elif not any(self.writer.busy(WritePart(name, what)) for what in (STATUS_PART, PODS_PART, LEASES_PART)):
            asked = self.writer.asked
            self._status(name, run, seen, now)
            told = told and (run is not None or self.writer.asked == asked)
            self._finalizer(name, run, seen)
        else:
            told = told and run is not None
        if told:
            self._chronicle.told(name)
        if run is None:
            self._wording.forget(name)
        if run is None and seen is None and name not in self._chronicle.untold:
            self._chronicle.forget(name)
            self.writer.forget(name)

    def _status(self, name: Key, run: RunState | None, seen: OwnSeen, now: int) -> None:
        wanted = self._wanted_status(name, run, seen, now)
        if wanted is not None:
            self._scribe.report(RUNS, WritePart(name, STATUS_PART), seen, wanted)

    def _wanted_status(self, name: Key, run: RunState | None, seen: OwnSeen, now: int) -> View | None:
        generation = seen.metadata.generation
        refusal = self._remarks.refused.get(name)
        if refusal is not None:
            return statuses.refused_report(refusal, now, generation)
        if run is not None:
            problem = self.writer.problem(name)
            note = self._remarks.notes.get(name)
            if note is not None:
                generation = seen.status.get("observedGeneration") or 0
                problem = problem or note
            message, on_nodes = self._wording.of(run, now), self.gangs.on_nodes(run)
            return statuses.live_report(
                run,
                now,
                generation,
                self._decider.state.capacity,
                message=message,
                problem=problem,
                on_nodes=on_nodes,
            )
        if name not in self._decider.state.ended or not self._final(name, seen):
            return None
        final = self._chronicle.final[name]
        told = self.gangs.refusals.get(name, "")
        return statuses.ended_report(final.spec, final.submitted_at, final.ending, generation, told)

    def _final(self, name: Key, seen: OwnSeen) -> bool:
        """Whether it is known how a run ended; where its status says that it did, that is enough."""
        if name in self._chronicle.final:
            return True
        over = Phase.COMPLETED if self._decider.state.ended.completed(name) else Phase.FAILED
        if seen.status.get("phase") != over.value:
            self._remarks.unknown.add(name)
        return False

    def _finalizer(self, name: Key, run: RunState | None, seen: OwnSeen) -> None:
        """A Run stays until its leases are closed and its pods are gone; nobody else's finalizers are touched."""
        leaving = seen.metadata.deletion_timestamp is not None
        if run is not None and not leaving:
            self._scribe.finalize(WritePart(name, STATUS_PART), seen, stays=True)
        elif run is None and leaving and not self.gangs.alive(name):
            self._scribe.finalize(WritePart(name, STATUS_PART), seen, stays=False)

    # --- leases ----------------------------------------------------------------------------------------------------------

    def _leases(self, name: Key, run: RunState | None) -> None:
        namespace, _ = split(name)
        part = WritePart(name, LEASES_PART)
        there, made = self._sight.leases.objects, self._made
        for lease in () if run is None else run.held:
            full = lease_key(lease)
            if full not in there and made.get(made_key(LEASES, full)) is None:
                self._scribe.create(WriteLane.LEASES, part, LEASES, namespace, lease.name, _lease_object(lease))
        for lease_name, closed in list(self._chronicle.closed.get(name, {}).items()):
            self._close(part, key(lease_name, namespace), name, closed)

    def _close(self, part: WritePart, full: Key, run: Key, closed: Closed) -> None:
        namespace, name = split(full)
        operations = [{"op": "add", "path": "/status", "value": closed.status}]

        async def patch() -> bool:
            try:
                await self._api.patch(LEASES, name, operations, namespace, sub="status")
            except ApiError as error:
                if not error.not_found:
                    raise
                return False
            return True

        async def act() -> None:
            """Write the end; a lease that was never written, or was deleted, is written whole, while its namespace is there."""
            if not await patch() and namespace in self._sight.namespaces.objects:
                await self._scribe.created(LEASES, namespace, _lease_object(closed.lease))
                await patch()
            self._made.add(made_key(LEASES, f"{full} closed"))
            self._closed(run, name)

        self.writer.write(WriteLane.LEASES, part, Target(LEASES.plural, f"{full} closed"), act)

    def _closed(self, run: Key, name: str) -> None:
        waiting = self._chronicle.closed.get(run, {})
        waiting.pop(name, None)
        if not waiting:
            self._chronicle.closed.pop(run, None)

    def look_for_lost(self) -> None:
        """Find objects of leases that are closed by now: their end is in the entries at hand, or further back."""
        state = self._decider.state
        for full, seen in self._sight.leases.objects.items():
            run = run_of(seen.metadata.annotations, seen.metadata.namespace)
            held = state.runs.get(run) if run else None
            name = seen.metadata.name
            if run is None or (held is not None and name in held.leases) or name in self._chronicle.closed.get(run, {}):
                continue
            if self._made.get(made_key(LEASES, f"{full} closed")) is not None:
                continue  # closed just now, and not seen yet
            self.lost_leases.add(Key(full))
        for reservation in list(self._sight.reservations.objects.values()):
            self._lost_reservation(reservation)

    def _lost_reservation(self, seen: OwnSeen) -> None:
        """A reservation that looks as if it were in force, of which the ledger knows nothing any more: it is over."""
        run = run_of(seen.metadata.annotations, seen.metadata.namespace)
        kept = None if run is None else self._chronicle.reservations.get(run)
        known = () if kept is None else {split(key(each["name"]))[1] for each in kept.objects(0)}
        if run is None or seen.metadata.name in known:
            return
        state = ReservationState.CANCELED if kept is None else ReservationState.SUPERSEDED
        status = {
            "state": state.value,
            "reason": Reason.Canceled.value,
            "message": "the ledger holds another by now, or none",
        }
        self._scribe.report(RESERVATIONS, WritePart(run, RESERVATIONS_PART), seen, status)

    # --- other objects ---------------------------------------------------------------------------------------------------

    def _budget(self, name: Key, now: int) -> None:
        seen = self._sight.budgets.objects.get(name)
        part = WritePart(name, BUDGETS.plural)
        if seen is None:
            self._scribe.forget(Target(BUDGETS.plural, name))
            return
        if self.writer.busy(part):
            return
        refusal, generation = self._remarks.refused_budgets.get(name), seen.metadata.generation
        before = self._scribe.last(BUDGETS, seen)
        if refusal is not None:
            self._scribe.report(BUDGETS, part, seen, statuses.refused_budget(refusal, now, generation, before))
        elif name in self._decider.state.budgets:
            report = statuses.budget_report(self._decider, name, now, generation, before)
            self._scribe.report(BUDGETS, part, seen, report)

    def _outcome(self, name: str, spec: Body) -> None:
        async def act() -> None:
            await self._scribe.created(OUTCOMES, None, body)
            self._chronicle.outcomes.pop(name, None)

        body = {"apiVersion": OUTCOMES.api_version, "kind": OUTCOMES.kind, "metadata": {"name": name}, "spec": spec}
        self.writer.write(WriteLane.LEASES, WritePart(Key(name), TIDINGS_PART), Target(OUTCOMES.plural, name), act)

    def _reservations(self, name: Key, now: int) -> None:
        kept, part = self._chronicle.reservations.get(name), WritePart(name, RESERVATIONS_PART)
        if kept is None or self.writer.busy(part):
            return
        namespace, _ = split(name)
        for view in kept.objects(now):
            full = key(view["name"], namespace)
            there = self._sight.reservations.objects.get(full)
            if there is not None:
                self._scribe.report(RESERVATIONS, part, there, view["status"])
            elif namespace in self._sight.namespaces.objects and self._made.get(made_key(RESERVATIONS, full)) is None:
                self._reserve(part, full, name, view)

    def _reserve(self, part: WritePart, full: Key, run: Key, view: View) -> None:
        """Make a reservation that is in force and not there; one that is over is written once, and then left to history."""
        namespace, name = split(full)
        target, status = Target(RESERVATIONS.plural, full), view["status"]
        over = status["state"] in RESERVATIONS_OVER
        if over and self._scribe.has_told(target):
            return
        body = {
            "apiVersion": RESERVATIONS.api_version,
            "kind": RESERVATIONS.kind,
            "metadata": {"name": name, "namespace": namespace, **marks_of(run)},
            "spec": view["spec"],
        }
        operations = [{"op": "add", "path": "/status", "value": status}]

        async def act() -> None:
            await self._scribe.created(RESERVATIONS, namespace, body)
            try:
                await self._api.patch(RESERVATIONS, name, operations, namespace, sub="status")
            except ApiError as error:
                if not error.not_found:  # its namespace is going, or somebody took it away at once
                    raise
            if over:
                self._scribe.note(target, status)
            elif full not in self._sight.reservations.objects:
                self._made.add(made_key(RESERVATIONS, full))

        self.writer.write(WriteLane.STATUS, part, target, act)


def _lease_object(lease: Lease) -> Body:
    namespace, _ = split(lease.run)
    marks = marks_of(lease.run)
    labels = {ATTEMPT: str(lease.attempt), ROLE: lease.role.value, NODE: label_value(lease.node)}
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {
            "name": lease.name,
            "namespace": namespace,
            "labels": {**marks["labels"], **labels},
            "annotations": marks["annotations"],
        },
        "spec": lease_spec(lease),
    }
