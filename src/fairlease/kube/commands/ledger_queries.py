"""Answers derived from the ledger: the LedgerEntries are folded again, with the engine's own code, on the caller's machine.

Nobody is asked but the API server, nothing is written, and the caller's rights are all the rights there are. Who may not read the
ledger, which is one for the whole cluster, is told what objects tell, as far as they do.
"""

from __future__ import annotations

import io
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.refused import Refused, lacks_rights, name_key, no_run
from fairlease.kube.api.resource import BUDGETS, RESERVATIONS, RUNS, Meta, OwnSeen, Resource
from fairlease.kube.commands.answers import Answer, placed, status_of
from fairlease.kube.controller.observation import read
from fairlease.kube.ledger.archive import read_past, read_recent
from fairlease.ledger.store.export import export
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.model.amount import parse_instant
from fairlease.model.objects import RunObject
from fairlease.model.owner import at_or_below
from fairlease.model.record import Key, short, split
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.report import views
from fairlease.report.invoices import invoice
from fairlease.report.lending import lent_view
from fairlease.runtime.queries.forecasts import ForecastQueries, forecast_report
from fairlease.runtime.queries.history import RunHistory, SubmittedRun
from fairlease.runtime.queries.loans import borrowed_view, sponsors_view
from fairlease.runtime.queries.runs import RunQueries
from fairlease.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlease.kube.ledger.archive import Archive

    Find = Callable[[Key], Awaitable[OwnSeen | None]]


EVENTS = Resource("", "v1", "events", "Event")
"""The same as those of `events.k8s.io`, under the name that the role `view` lets one read."""


class LedgerQueries:
    """Those verbs. `namespace` is None where all are meant; `find` looks up a Run's object."""

    def __init__(self, api: Api, namespace: str | None, archive: Archive | None, find: Find) -> None:
        self._api, self._namespace, self._archive, self._find = api, namespace, archive, find
        self._now_known: Scheduler | None = None
        self._known: tuple[Scheduler, RunHistory] | None = None
        self.verbs: dict[str, Callable[..., Awaitable[Answer]]] = {
            "plan": self.plan,
            "explain": self.explain,
            "budgets.list": self.budgets,
            "budgets.lent": self.lent,
            "budgets.borrowed": self.borrowed,
            "sponsors.list": self.sponsors,
            "cover": self.cover,
            "eta": self.eta,
            "forecast.report": self.forecast_report,
            "who-pays": self.who_pays,
            "nodes": self.nodes,
            "audit": self.audit,
            "export": self.export,
        }

    async def present(self) -> Scheduler:
        """The state that the entries fold to, for questions about now; read once."""
        if self._now_known is None:
            self._now_known = Scheduler(await read_recent(self._api, self._archive))
        return self._now_known

    async def _ledger(self) -> tuple[Scheduler, RunHistory]:
        """The same with all that the entries tell of the past; read once."""
        if self._known is None:
            scheduler = self._now_known = Scheduler(await read_past(self._api, self._archive))
            self._known = scheduler, RunHistory(scheduler)
        return self._known

    async def plan(self, object: Any) -> Answer:  # noqa: ANN401, A002 - an object of a file, by its name in the protocol
        """What would come of submitting a run: the server's rules are asked by a dry run, the rest is thought through here.

        Who may not submit may still ask.
        """
        body = placed(object, self._namespace)
        try:
            await self._api.create(RUNS, body, body["metadata"]["namespace"], dry_run=True)
        except ApiError as error:
            if not (lacks_rights(error) or error.already_exists):
                raise
        scheduler = await self.present()
        return RunQueries(scheduler).plan(_run_of(body), "", _now(scheduler))

    async def explain(self, run: str) -> Answer:
        """Why a run is as it is; for whom may not read the ledger, as far as its object and its Events tell."""
        name = name_key(run)
        seen = await self._find(name)
        try:
            scheduler, past = await self._ledger()
        except ApiError as error:
            if seen is None or not lacks_rights(error):
                raise
            return await self._told_by_objects(name, seen)
        asked, now = past.find(name), _now(scheduler)
        if asked is not None:
            status = past.status(asked, now) if seen is None else status_of(seen)
            told = RunQueries(scheduler).explanation(asked, status, now)
            for each in told["preemptions"]:
                each["verify"] = f"kubectl runs lottery verify {each['outcome']}"
            return told
        if seen is None:
            raise no_run(name)
        return await self._told_by_objects(name, seen)

    async def _told_by_objects(self, name: Key, seen: OwnSeen) -> Answer:
        status = status_of(seen)
        cause = cause_of(status)
        known = Reason.__members__.get(cause)
        return {
            "name": short(name),
            "status": status,
            "verdict": cause,
            "message": status.get("message", ""),
            "remedy": "" if known is None else known.plain_remedy,
            "story": await self._events(name),
        }

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

    async def _asked(self, run: str) -> tuple[Scheduler, SubmittedRun]:
        """A run that the ledger tells of, whether it lives or not."""
        scheduler, past = await self._ledger()
        asked = past.find(name_key(run))
        if asked is None:
            raise no_run(name_key(run))
        return scheduler, asked

    # --- time ------------------------------------------------------------------------------------------------------------

    async def eta(self, run: str | None = None, owner: str | None = None, limit: int = 1) -> Answer:
        """When a run starts, thought through anew; or all that wait, as it was last written down.

        Who may not read the ledger is told what the run's Reservation tells.
        """
        try:
            scheduler = await self.present()
        except ApiError as error:
            if run is None or not lacks_rights(error):
                raise
            return {"runs": [await self._reserved(name_key(run))]}
        if run is None:
            return {"runs": ForecastQueries(scheduler).waiting(partial(_covers, owner), limit)}
        live = scheduler.state.runs.get(name_key(run))
        if live is None:
            scheduler, asked = await self._asked(run)
        else:
            asked = SubmittedRun(live.key, live.spec, live.submitted_at, live.by)
        return {"runs": [ForecastQueries(scheduler).of(asked, _now(scheduler))]}

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
            cause = cause_of(status)
            known = Reason.__members__.get(cause)
            remedy = "" if known is None else known.plain_remedy
            told |= {"reason": cause, "message": status.get("message", ""), "remedy": remedy}
        return told

    async def forecast_report(self, owner: str | None = None, since: str | None = None) -> Answer:
        """Whether forecasts kept their word, over the ledger's past."""
        scheduler, _ = await self._ledger()
        return forecast_report(scheduler.store.entries(), partial(_covers, owner), _instant(since))

    # --- money -----------------------------------------------------------------------------------------------------------

    async def who_pays(
        self,
        run: str | None = None,
        owner: str | None = None,
        payer: str | None = None,
        *,
        all: bool = False,  # noqa: A002 - its name in the protocol
        since: str | None = None,
        until: str | None = None,
    ) -> Answer:
        """Who pays, and has paid, for a run, or for runs of an owner, or out of a payer's money; all, or those that hold GPUs.

        Of a period, only what was used in it.
        """
        scheduler, _ = await self._ledger()
        first, last, now = _instant(since), _instant(until), _now(scheduler)
        query = LeaseQuery(owner=owner, payer=payer, since=first, until=last)
        past = all or run is not None or since is not None or until is not None
        if run is not None:
            _, asked = await self._asked(run)
            query = replace(query, run=asked.run)
        rows = scheduler.store.leases(query)
        living = {each.key for each in scheduler.state.runs.values() if each.leases}
        return invoice((row for row in rows if past or row.lease.run in living), now, first, last)

    async def lent(self, budget: str | None = None) -> Answer:
        """What Budgets have lent, to whom and until when, against their lending caps."""
        scheduler = await self.present()
        state = scheduler.state
        names = sorted(state.budgets, key=split) if budget is None else [_budget_key(scheduler, budget)]
        return {"budgets": [lent_view(state, each, _now(scheduler)) for each in names]}

    async def borrowed(self, owner: str | None = None) -> Answer:
        """What runs have borrowed, from whom and until when."""
        scheduler = await self.present()
        return borrowed_view(scheduler.state, partial(_covers, owner), _now(scheduler))

    async def sponsors(self, run: str) -> Answer:
        """Whom a run may borrow from, what each has lent it, and what each would lend now."""
        scheduler, asked = await self._asked(run)
        return sponsors_view(scheduler, asked, _now(scheduler))

    async def cover(self, run: str | None = None, object: Any = None) -> Answer:  # noqa: ANN401, A002 - an object of a file
        """Who would pay for a run."""
        if run is not None:
            scheduler, asked = await self._asked(run)
            return {"cover": RunQueries(scheduler).cover_of(asked.run, asked.spec, _now(scheduler))}
        scheduler, item = await self.present(), _run_of(placed(object, self._namespace))
        return {"cover": RunQueries(scheduler).cover_of(item.key, item.spec, _now(scheduler))}

    async def nodes(self) -> Answer:
        """Every node, and what is free in each domain."""
        scheduler = await self.present()
        return {"nodes": views.node_views(scheduler.state), "domains": views.domain_views(scheduler.state)}

    async def budgets(self) -> Answer:
        """Budgets with what they have spent, promised and left: by the ledger up to now, or else as their statuses last told."""
        try:
            scheduler = await self.present()
        except ApiError as error:
            if not lacks_rights(error):
                raise
            found = await self._api.list(BUDGETS, self._namespace, into=OwnSeen)
            return {"budgets": [_budget(each) for each in found.items]}
        return {"budgets": RunQueries(scheduler).budgets(_now(scheduler))}

    async def export(self, what: str, since: str | None = None, until: str | None = None) -> Answer:
        """Leases or charges as CSV text."""
        scheduler, _ = await self._ledger()
        out = io.BytesIO()
        query = LeaseQuery(since=_instant(since), until=_instant(until))
        rows = export(what, scheduler.store.leases(query), _now(scheduler), out)
        return {"csv": out.getvalue().decode(), "rows": rows}

    async def audit(self) -> Answer:
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


def cause_of(status: Answer) -> str:
    """In one word, why a run is as it is: how it ended, or the first condition that does not hold."""
    if status.get("reason"):
        return str(status["reason"])
    conditions = status.get("conditions") or ()
    first = next((each for each in conditions if each.get("status") == "False" and each["type"] != "Completed"), None)
    running = status["phase"] == Phase.RUNNING.value
    return Reason.Bound.value if running else str(first["reason"]) if first else Reason.Submitted.value


def _budget(seen: OwnSeen) -> Answer:
    name = short(Key(seen.metadata.key))
    return {"name": name, "owner": seen.spec.get("owner", ""), "spec": seen.spec, "status": seen.status}


def _run_of(body: Answer) -> RunObject:
    metadata = body["metadata"]
    found = read(OwnSeen(Meta(metadata["name"], metadata["namespace"]), spec=body["spec"]), "Run")
    if not isinstance(found, RunObject):
        raise Refused(Reason.InvalidRequest, getattr(found, "message", "it is no Run"))
    return found


def _covers(owner: str | None, other: str) -> bool:
    return owner is None or at_or_below(other, owner)


def _budget_key(scheduler: Scheduler, text: str) -> Key:
    name = name_key(text)
    if name not in scheduler.state.budgets:
        raise Refused(Reason.NotFound, f"there is no Budget {short(name)}")
    return name


def _now(scheduler: Scheduler) -> int:
    return max(int(time.time() * 1000), scheduler.state.at)


def _instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)
