"""Answers derived from the ledger: the LedgerEntries are folded again, with the engine's own code, on the caller's machine.

Nobody is asked but the API server, nothing is written, and the caller's rights are all the rights there are. Who may not read the
ledger, which is one for the whole cluster, is told what objects tell, as far as they do.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.refused import lacks_rights, name_key, no_run
from fairlease.kube.api.resource import BUDGETS, RESERVATIONS, RUNS, Meta, OwnSeen, Resource
from fairlease.kube.commands.objects import Answer, budget_of, cause_of, placed, spec_of, status_of
from fairlease.kube.ledger.archive import read_past, read_recent
from fairlease.model.objects import RunObject
from fairlease.model.record import Key, short, split
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.runtime import requests as rq
from fairlease.runtime.queries import runs
from fairlease.runtime.queries.facts import Facts, PastNeeded
from fairlease.runtime.queries.history import RunHistory
from fairlease.runtime.queries.verbs import QUERIES
from fairlease.runtime.requests import Refused
from fairlease.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlease.kube.ledger.archive import Archive

    Find = Callable[[Key], Awaitable[OwnSeen | None]]

PROGRAM = "kubectl runs"
EVENTS = Resource("", "v1", "events", "Event")
"""The same as those of `events.k8s.io`, under the name that the role `view` lets one read."""


class LedgerQueries:
    """Those verbs. `namespace` is None where all are meant; `find` looks up a Run's object."""

    def __init__(self, api: Api, namespace: str | None, archive: Archive | None, find: Find) -> None:
        self._api, self._namespace, self._archive, self._find = api, namespace, archive, find
        self._now_known: Scheduler | None = None
        self._known: tuple[Scheduler, RunHistory] | None = None
        self.verbs: dict[str, tuple[type[rq.Args], Callable[[Any], Awaitable[Answer]]]] = {
            verb: (query.args, partial(self._folded, verb)) for verb, query in QUERIES.items()
        }
        self.verbs |= {
            "plan": (rq.OneObject, self.plan),
            "explain": (rq.OneRun, self.explain),
            "eta": (rq.Eta, self.eta),
            "cover": (rq.RunOrObject, self.cover),
            "budgets.list": (rq.Args, self.budgets),
            "audit": (rq.Args, self.audit),
        }

    async def _folded(self, verb: str, args: Any) -> Answer:  # noqa: ANN401 - the arguments of that verb
        """A verb's answer from the state as it is, or where it is about what is over, from the whole past."""
        query = QUERIES[verb]
        facts = await self._facts(past=query.past)
        try:
            found = query.answer(facts, args)
        except PastNeeded:
            facts = await self._facts(past=True)
            found = query.answer(facts, args)
        return found if isinstance(found, dict) else found(facts.scheduler.store)

    async def _facts(self, *, past: bool = False) -> Facts:
        if past and self._known is None:
            scheduler = self._now_known = Scheduler(await read_past(self._api, self._archive))
            self._known = scheduler, RunHistory(scheduler)
        scheduler, history = (await self.present(), None) if self._known is None else self._known
        return Facts(scheduler, history, max(int(time.time() * 1000), scheduler.state.at), PROGRAM)

    async def present(self) -> Scheduler:
        """The state that the entries fold to, for questions about now; read once."""
        if self._now_known is None:
            self._now_known = Scheduler(await read_recent(self._api, self._archive))
        return self._now_known

    # --- runs ------------------------------------------------------------------------------------------------------------

    async def plan(self, args: rq.OneObject) -> Answer:
        """What would come of submitting a run: the server's rules are asked by a dry run, the rest is thought through here.

        Who may not submit may still ask.
        """
        body = placed(args.object, self._namespace)
        try:
            await self._api.create(RUNS, body, body["metadata"]["namespace"], dry_run=True)
        except ApiError as error:
            if not (lacks_rights(error) or error.already_exists):
                raise
        return runs.plan(await self._facts(), _run_of(body), "")

    async def cover(self, args: rq.RunOrObject) -> Answer:
        """Who would pay for a run, or for one that might be."""
        if args.run is not None:
            return await self._folded("cover", rq.OneRun(args.run))
        item = _run_of(placed(args.object, self._namespace))
        return {"cover": runs.cover_of(await self._facts(), item.key, item.spec)}

    async def explain(self, args: rq.OneRun) -> Answer:
        """Why a run is as it is; for whom may not read the ledger, as far as its object and its Events tell."""
        name = name_key(args.run)
        seen = await self._find(name)
        try:
            told = await self._folded("explain", args)
        except ApiError as error:
            if seen is None or not lacks_rights(error):
                raise
            return await self._told_by_objects(name, seen)
        except Refused as refused:
            if seen is None or refused.reason is not Reason.NotFound:
                raise
            return await self._told_by_objects(name, seen)
        return told if seen is None else told | {"status": status_of(seen)}

    async def _told_by_objects(self, name: Key, seen: OwnSeen) -> Answer:
        status = status_of(seen)
        cause = cause_of(status)
        told = {"name": short(name), "status": status, "verdict": cause.pop("reason")}
        return told | cause | {"story": await self._events(name)}

    async def _events(self, name: Key) -> list[Answer]:
        """What Events tell of a run, for who may read them."""
        namespace, run = split(name)
        try:
            found = await self._api.list(
                EVENTS, namespace, into=_StoredEvent, fields=f"involvedObject.name={run},involvedObject.kind=Run"
            )
        except ApiError as error:
            if not lacks_rights(error):
                raise
            return []
        told = sorted(found.items, key=lambda each: (each.at, each.metadata.name))
        return [{"at": each.at, "type": each.type, "reason": each.reason, "message": each.message} for each in told]

    async def eta(self, args: rq.Eta) -> Answer:
        """When a run starts; who may not read the ledger is told what the run's Reservation tells."""
        try:
            return await self._folded("eta", args)
        except ApiError as error:
            if args.run is None or not lacks_rights(error):
                raise
            return {"runs": [await self._reserved(name_key(args.run))]}

    async def _reserved(self, name: Key) -> Answer:
        """What the objects tell of a run's start."""
        seen = await self._find(name)
        if seen is None:
            raise no_run(name)
        status = status_of(seen)
        told: Answer = {"name": short(name), "owner": seen.spec.get("owner", ""), "phase": status["phase"]}
        held = status.get("pendingReservation")
        if held is not None:
            found = await self._api.get(RESERVATIONS, held, split(name)[0], into=OwnSeen)
            state = found.status.get("state", "")
            blocked = state == ReservationState.BLOCKED.value
            told["reservation"] = {
                "name": held,
                "state": state,
                "earliestStart": None if blocked else found.spec["earliestStart"],
                "basis": found.status.get("reason", ""),
                **({"message": found.status.get("message", "")} if blocked else {}),
            }
            if found.status.get("forecast"):
                return told | {"forecast": found.status["forecast"]}
        if status["phase"] == Phase.PENDING.value:
            told |= cause_of(status)
        return told

    # --- the rest --------------------------------------------------------------------------------------------------------

    async def budgets(self, args: rq.Args) -> Answer:
        """Budgets with what they have spent, promised and left: by the ledger up to now, or else as their statuses last told."""
        try:
            return await self._folded("budgets.list", args)
        except ApiError as error:
            if not lacks_rights(error):
                raise
            found = await self._api.list(BUDGETS, self._namespace, into=OwnSeen)
            return {"budgets": list(map(budget_of, found.items))}

    async def audit(self, _: rq.Args) -> Answer:
        """Prove the ledger, and compare the objects with it."""
        from fairlease.kube.commands.audit import audit_cluster  # noqa: PLC0415 - it alone needs the whole projection

        return await audit_cluster(self._api, self._archive)


class _StoredEvent(msgspec.Struct, frozen=True, rename="camel"):
    metadata: Meta
    type: str = ""
    reason: str = ""
    message: str = ""
    event_time: str | None = None
    last_timestamp: str | None = None

    @property
    def at(self) -> str:
        """When it happened, as far as it says."""
        return self.event_time or self.last_timestamp or self.metadata.creation_timestamp


def _run_of(body: Answer) -> RunObject:
    metadata = body["metadata"]
    return spec_of(OwnSeen(Meta(metadata["name"], metadata["namespace"]), spec=body["spec"]), RunObject)
