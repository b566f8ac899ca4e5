"""Answers on a cluster: what each verb of `kubectl runs` does, and what it shows, in the words of the local daemon's answers.

What objects tell is read from objects, since everybody in a namespace may read those: runs and leases. What only the ledger tells
(a plan, an explanation, who pays, free slots) is derived again from the LedgerEntries, with the engine's own code, on the caller's
machine: nobody is asked but the API server, nothing is written, and the caller's rights are all the rights there are.
"""

from __future__ import annotations

import asyncio
import io
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.engine import view
from fairlease.kube.audit import audit_cluster
from fairlease.kube.connection import Api, ApiError
from fairlease.kube.following import Following
from fairlease.kube.history import read_past
from fairlease.kube.observe import instant, read
from fairlease.kube.refused import Refused, lacks_rights, name_key
from fairlease.kube.resource import BUDGETS, EVENTS, LEASES, RUNS, Meta
from fairlease.kube.seen import OwnSeen
from fairlease.ledger.export import export
from fairlease.ledger.store import LeaseQuery
from fairlease.model.amount import parse_instant
from fairlease.model.objects import RunObject
from fairlease.model.record import Key, key, short, split
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.scheduler import Scheduler
from fairlease.theatre.inquiry import Inquiry
from fairlease.theatre.past import Past

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fairlease.kube.archive import Archive

Answer = dict[str, Any]
OVER = (Phase.COMPLETED.value, Phase.FAILED.value)
NOT_SEEN = "the controller has not looked at it yet"
FIRST_LOOK_S = 3.0
"""How long a submit waits to tell what the controller made of it."""
PATIENCE_S = 2.0
"""How long a request that found no server is tried again: somebody waits for the answer."""


class Answers:
    """The verbs, as one identity. `namespace` is None where all are meant."""

    def __init__(self, api: Api, namespace: str | None, archive: Archive | None = None) -> None:
        self._api, self._namespace, self._archive = api, namespace, archive
        self._following = Following(api)
        self._known: tuple[Scheduler, Past] | None = None
        self._verbs: dict[str, Callable[..., Awaitable[Answer]]] = {
            "submit": self.submit,
            "plan": self.plan,
            "list": self.list_runs,
            "show": self.show,
            "explain": self.explain,
            "cancel": self.cancel,
            "budgets.list": self.budgets,
            "leases": self.leases,
            "who-pays": self.who_pays,
            "nodes": self.nodes,
            "status": self.status,
            "wait": self.wait,
            "audit": self.audit,
            "export": self.export,
        }

    async def answer(self, verb: str, args: dict[str, Any]) -> Answer:
        """The result of a verb; what was left out is None. Raises what `kube` raises, and `Refused`."""
        return await self._verbs[verb](**{name: value for name, value in args.items() if value is not None})

    # --- the ledger ----------------------------------------------------------------------------------------------------

    async def _ledger(self) -> tuple[Scheduler, Past]:
        """The state that the entries fold to, and what they tell of the past; read once."""
        if self._known is None:
            scheduler = Scheduler(await read_past(self._api, self._archive))
            self._known = scheduler, Past(scheduler)
        return self._known

    async def plan(self, object: Any) -> Answer:  # noqa: ANN401, A002 - an object of a file, by its name in the protocol
        """What would come of submitting a run: the server's rules are asked by a dry run, the rest is thought through here.

        Who may not submit may still ask.
        """
        body = self._placed(object)
        try:
            await self._api.create(RUNS, body, body["metadata"]["namespace"], dry_run=True)
        except ApiError as error:
            if not (lacks_rights(error) or error.already_exists):
                raise
        scheduler, _ = await self._ledger()
        return Inquiry(scheduler).plan(_run_of(body), "", _now(scheduler))

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
            return Inquiry(scheduler).explanation(asked, status, now)
        if seen is None:
            raise _no_run(name)
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
            "remedy": "" if known is None else known.remedy,
            "story": await self._events(name),
        }

    async def _events(self, name: Key) -> list[Answer]:
        """What Events tell of a run, for who may read them."""
        namespace, run = split(name)
        try:
            found = await self._api.list(
                EVENTS, namespace, into=_Event, fields=f"regarding.name={run},regarding.kind=Run"
            )
        except ApiError:
            return []
        told = sorted(found.items, key=lambda each: (each.at, each.metadata.name))
        return [{"at": each.at, "type": each.type, "reason": each.reason, "message": each.note} for each in told]

    async def who_pays(self, run: str | None = None, owner: str | None = None) -> Answer:
        """Who pays, and has paid, for a run or for all of an owner that hold GPUs."""
        scheduler, past = await self._ledger()
        inquiry, now = Inquiry(scheduler), _now(scheduler)
        if run is not None:
            asked = past.find(name_key(run))
            if asked is None:
                raise _no_run(name_key(run))
            return {"runs": [inquiry.payers(asked.run, asked.spec.owner, now)]}
        names = inquiry.holding(lambda each: owner is None or below(owner, each))
        return {"runs": [inquiry.payers(name, scheduler.state.runs[name].spec.owner, now) for name in names]}

    async def nodes(self) -> Answer:
        """Every node, and what is free in each domain."""
        scheduler, _ = await self._ledger()
        return {"nodes": view.node_views(scheduler.state), "domains": view.domain_views(scheduler.state)}

    async def budgets(self) -> Answer:
        """Budgets with what they have spent, promised and left: by the ledger up to now, or else as their statuses last told."""
        try:
            scheduler, _ = await self._ledger()
        except ApiError as error:
            if not lacks_rights(error):
                raise
            found = await self._api.list(BUDGETS, self._namespace, into=OwnSeen)
            return {"budgets": [_budget(each) for each in found.items]}
        return {"budgets": Inquiry(scheduler).budgets(_now(scheduler))}

    async def export(self, what: str, since: str | None = None, until: str | None = None) -> Answer:
        """Leases or charges as CSV text."""
        scheduler, _ = await self._ledger()
        out = io.BytesIO()
        query = LeaseQuery(since=_instant(since), until=_instant(until))
        rows = export(what, scheduler.store.leases(query), _now(scheduler), out)
        return {"csv": out.getvalue().decode(), "rows": rows}

    async def audit(self) -> Answer:
        """Prove the ledger, and compare the objects with it."""
        return await audit_cluster(self._api, self._archive)

    # --- objects ---------------------------------------------------------------------------------------------------------

    async def list_runs(
        self,
        owner: str | None = None,
        phase: str | None = None,
        namespace: str | None = None,
        limit: int = 100,
        *,
        all: bool = False,  # noqa: A002 - its name in the protocol
    ) -> Answer:
        """Runs that live, in the order of asking; then those that ended, the latest first."""
        found = await self._runs(namespace or self._namespace)
        rows = [row_of(each) for each in found if owner is None or below(owner, str(each.spec.get("owner", "")))]
        if phase is not None:
            rows = [row for row in rows if row["status"]["phase"] == phase]
        living = [row for row in rows if row["status"]["phase"] not in OVER]
        over = [row for row in rows if row["status"]["phase"] in OVER]
        living.sort(key=lambda row: (row["status"].get("submittedAt") or "~", row["name"]))
        over.sort(key=lambda row: (row["status"].get("endedAt") or "", row["name"]), reverse=True)
        return {"runs": (living + (over if all or phase in OVER else []))[:limit]}

    async def _runs(self, namespace: str | None) -> Iterable[OwnSeen]:
        known = self._following.known(namespace)
        return (await self._api.list(RUNS, namespace, into=OwnSeen)).items if known is None else known.values()

    async def _find(self, name: Key) -> OwnSeen | None:
        namespace, run = split(name)
        known = self._following.known(namespace)
        if known is not None:
            return known.get(name) or self._following.gone.get(name)
        try:
            return await self._api.get(RUNS, run, namespace, into=OwnSeen)
        except ApiError as error:
            if not error.not_found or not error.reason == "NotFound" or "requested resource" in error.message:
                raise
            return None

    async def show(self, run: str) -> Answer:
        """One run as its object."""
        name = name_key(run)
        seen = await self._find(name)
        if seen is None:
            raise _no_run(name)
        return {
            "name": short(name),
            "namespace": seen.metadata.namespace,
            "spec": seen.spec,
            "status": status_of(seen, gone=name in self._following.gone),
        }

    async def leases(self, **asked: Any) -> Answer:  # noqa: ANN401 - read as `_Leases`
        """Leases, in the order of opening."""
        wanted = msgspec.convert(asked, _Leases)
        namespace, chosen = self._namespace, wanted.selector()
        if wanted.run is not None:
            namespace, chosen["spec.runRef.name"] = split(name_key(wanted.run))
        fields = [f"{name}={_selector(value)}" for name, value in chosen.items() if value is not None]
        if wanted.open is not None:
            fields.append("status.closed!=true" if wanted.open else "status.closed=true")
        found = await self._api.list(LEASES, namespace, into=OwnSeen, fields=",".join(fields))
        rows: list[Answer] = [
            {"name": short(Key(each.metadata.key)), "spec": each.spec, "status": each.status or {"closed": False}}
            for each in found.items
            if (wanted.node is None or wanted.node in each.spec["slice"]["gpus"])
            and _open_within(each, _instant(wanted.since), _instant(wanted.until))
        ]
        rows.sort(key=lambda row: (row["spec"]["interval"]["start"], row["name"]))
        return {"leases": rows[: wanted.limit]}

    # --- asking and ending -----------------------------------------------------------------------------------------------

    def _placed(self, raw: Any) -> Answer:  # noqa: ANN401 - an object of a file
        """An object in its namespace: its own, or the one that was asked for; both at once have to agree."""
        metadata = raw["metadata"]
        own, asked = metadata.get("namespace"), self._namespace
        if own and asked and own != asked:
            message = f"{metadata['name']} says namespace {own}, and the command {asked}"
            raise Refused(Reason.InvalidRequest, message, "leave one of them out")
        body: Answer = {**raw, "metadata": {**metadata, "namespace": own or asked}}
        return body

    async def submit(self, objects: list[Any]) -> Answer:
        """Make Runs. All are shown to the server first, which takes all or refuses them by name."""
        bodies = [self._placed(each) for each in objects]
        refusals = await asyncio.gather(*(self._refusal(each) for each in bodies))
        if any(refusals):
            raise next(each for each in refusals if each) if len(bodies) == 1 else _together(bodies, refusals)
        made: list[Key] = []
        for each in bodies:
            metadata = each["metadata"]
            try:
                await self._api.create(RUNS, each, metadata["namespace"])
            except Exception as error:
                error.add_note(f"submitted before that: {', '.join(map(short, made)) or 'nothing'}")
                raise
            made.append(key(metadata["name"], metadata["namespace"]))
        return {"runs": await self._first_look(made)}

    async def _refusal(self, body: Answer) -> ApiError | None:
        try:
            await self._api.create(RUNS, body, body["metadata"]["namespace"], dry_run=True)
        except ApiError as error:
            return error
        return None

    async def _first_look(self, names: list[Key]) -> list[Answer]:
        """How runs stand after the first decision, if it comes soon and we may see it."""
        statuses: dict[Key, Answer] = {name: status_of(None) for name in names}
        waiting, until = list(names), time.monotonic() + FIRST_LOOK_S
        while waiting and time.monotonic() < until:
            await asyncio.sleep(0.1)
            try:
                found = await asyncio.gather(*(self._find(name) for name in waiting))
            except ApiError:
                break  # who may write but not read learns no more
            looked = {name: seen for name, seen in zip(waiting, found, strict=True) if seen is not None and seen.status}
            statuses |= {name: status_of(seen) for name, seen in looked.items()}
            waiting = [name for name in waiting if name not in looked]
        return [{"name": short(name), "status": status} for name, status in statuses.items()]

    async def cancel(self, runs: list[str]) -> Answer:
        """End runs by deleting their objects, which stay until their leases are closed. Ended ones are left, as a record."""
        names = list(dict.fromkeys(name_key(name) for name in runs))
        found = [await self._phase(name) for name in names]
        chosen = [name for name, phase in zip(names, found, strict=True) if phase not in OVER]
        if not chosen:
            raise Refused(Reason.Terminal, f"{', '.join(map(short, names))}: ended already")
        for name in chosen:
            namespace, run = split(name)
            await self._api.delete(RUNS, run, namespace)
        return {"canceled": [short(name) for name in chosen]}

    async def _phase(self, name: Key) -> str:
        """The phase of a run that is there; who may delete and not read is believed."""
        try:
            seen = await self._find(name)
        except ApiError as error:
            if not lacks_rights(error):
                raise
            return ""
        if seen is None:
            raise _no_run(name)
        return str(status_of(seen)["phase"])

    # --- following -------------------------------------------------------------------------------------------------------

    async def status(self) -> Answer:
        """Where the changes that were seen stand."""
        return {"head": {"seq": self._following.changes}}

    async def wait(self, seq: int, timeoutMs: int) -> Answer:  # noqa: N803 - its name in the protocol
        """Return when runs changed after `seq`, or time is over."""
        await self._following.wait(self._namespace, seq, timeoutMs / 1000)
        return await self.status()

    async def close(self) -> None:
        """Follow nothing any more."""
        await self._following.close()


# --- parts of answers ----------------------------------------------------------------------------------------------------


class _Leases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which leases; instants are RFC 3339."""

    run: str | None = None
    node: str | None = None
    owner: str | None = None
    budget: str | None = None
    envelope: str | None = None
    open: bool | None = None
    since: str | None = None
    until: str | None = None
    limit: int = 100

    def selector(self) -> dict[str, str | None]:
        """What the server can choose by."""
        return {"spec.owner": self.owner, "spec.paidByBudget": self.budget, "spec.paidByEnvelope": self.envelope}


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    metadata: Meta
    type: str = ""
    reason: str = ""
    note: str = ""
    event_time: str | None = None
    deprecated_last_timestamp: str | None = None

    @property
    def at(self) -> str:
        """When it happened, as far as it says."""
        return self.event_time or self.deprecated_last_timestamp or self.metadata.creation_timestamp


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


def cause_of(status: Answer) -> str:
    """In one word, why a run is as it is: how it ended, or the first condition that does not hold."""
    if status.get("reason"):
        return str(status["reason"])
    conditions = status.get("conditions") or ()
    first = next((each for each in conditions if each.get("status") == "False" and each["type"] != "Completed"), None)
    running = status["phase"] == Phase.RUNNING.value
    return Reason.Bound.value if running else str(first["reason"]) if first else Reason.Submitted.value


def below(owner: str, other: str) -> bool:
    """Whether `other` is `owner` or stands below it."""
    return other == owner or other.startswith(f"{owner}:")


def _budget(seen: OwnSeen) -> Answer:
    name = short(Key(seen.metadata.key))
    return {"name": name, "owner": seen.spec.get("owner", ""), "spec": seen.spec, "status": seen.status}


def _run_of(body: Answer) -> RunObject:
    metadata = body["metadata"]
    found = read(OwnSeen(Meta(metadata["name"], metadata["namespace"]), spec=body["spec"]), "Run")
    if not isinstance(found, RunObject):
        raise Refused(Reason.InvalidRequest, getattr(found, "message", "it is no Run"))
    return found


def _together(bodies: list[Answer], refusals: list[ApiError | None]) -> Refused:
    problems = [
        f"{body['metadata']['name']}: {error.message}"
        for body, error in zip(bodies, refusals, strict=True)
        if error is not None
    ]
    return Refused(
        Reason.InvalidRequest,
        f"{len(problems)} of {len(bodies)} runs were refused; nothing was submitted",
        problems=tuple(problems),
    )


def _no_run(name: Key) -> Refused:
    return Refused(Reason.NotFound, f"there is no run {name}")


def _now(scheduler: Scheduler) -> int:
    return max(int(time.time() * 1000), scheduler.state.at)


def _instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)


def _selector(value: str) -> str:
    """A value as a field selector takes it, whatever was typed."""
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def _open_within(seen: OwnSeen, since: int | None, until: int | None) -> bool:
    """Whether a lease was open at some instant of [since, until)."""
    start, end = instant(seen.spec["interval"]["start"]), seen.status.get("endTime")
    return (until is None or start < until) and (since is None or end is None or instant(end) > since)
