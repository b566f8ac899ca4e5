"""Answers on a cluster: what each verb of `kubectl runs` does, and what it shows, in the words of the local daemon's answers.

What objects tell is read from objects, since everybody in a namespace may read those. What only the ledger tells is left to
`kube.derived`, which is heavier to load, and asks for the right to read the ledger.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.refused import Refused, lacks_rights, name_key, no_run, not_installed, policy_said
from fairlease.kube.api.resource import LEASES, OUTCOMES, RESERVATIONS, RESERVATIONS_OVER, RUNS, OwnSeen
from fairlease.kube.commands.following import Following
from fairlease.model.amount import parse_instant
from fairlease.model.owner import at_or_below
from fairlease.model.record import Key, key, short, split
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.runtime.queries.history import ended_words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from fairlease.kube.commands.ledger_queries import LedgerQueries
    from fairlease.kube.ledger.archive import Archive

Answer = dict[str, Any]
OVER = (Phase.COMPLETED.value, Phase.FAILED.value)
NOT_SEEN = "the controller has not looked at it yet"
FIRST_LOOK_S = 3.0
"""How long a submit waits to tell what the controller made of it."""
PATIENCE_S = 2.0
"""How long a request that found no server is tried again: somebody waits for the answer."""


class ClusterAnswers:
    """The verbs, as one identity. `namespace` is None where all are meant."""

    def __init__(self, api: Api, namespace: str | None, archive: Archive | None = None) -> None:
        self._api, self._namespace, self._archive = api, namespace, archive
        self._following = Following(api)
        self._derived: LedgerQueries | None = None
        self._changing: dict[str, Callable[..., Awaitable[Answer]]] = {}
        self._verbs: dict[str, Callable[..., Awaitable[Answer]]] = {
            "submit": self.submit,
            "list": self.list_runs,
            "show": self.show,
            "cancel": self.cancel,
            "leases": self.leases,
            "reservations": self.reservations,
            "outcomes": self.outcomes,
            "status": self.status,
            "wait": self.wait,
        }

    async def answer(self, verb: str, args: dict[str, Any]) -> Answer:
        """The result of a verb; what was left out is None. Raises what `kube` raises, and `Refused`."""
        given = {name: value for name, value in args.items() if value is not None}
        if verb in self._verbs:
            return await self._verbs[verb](**given)
        if verb in self._from_ledger().verbs:
            return await self._from_ledger().verbs[verb](**given)
        return await self._changes()[verb](**given)

    def _changes(self) -> dict[str, Callable[..., Awaitable[Answer]]]:
        if not self._changing:
            from fairlease.kube.commands.annotation_requests import AnnotationRequests  # noqa: PLC0415 - as below
            from fairlease.kube.commands.spec_edits import SpecEdits  # noqa: PLC0415 - the same

            present = self._from_ledger().present
            self._changing = SpecEdits(self._api, present).verbs | AnnotationRequests(self._api, present).verbs
        return self._changing

    def _from_ledger(self) -> LedgerQueries:
        if self._derived is None:
            from fairlease.kube.commands.ledger_queries import LedgerQueries  # noqa: PLC0415 - the engine, which most verbs do not need

            self._derived = LedgerQueries(self._api, self._namespace, self._archive, self.find)
        return self._derived

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
        rows = [row_of(each) for each in found if owner is None or at_or_below(str(each.spec.get("owner", "")), owner)]
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

    async def find(self, name: Key) -> OwnSeen | None:
        """A Run's object, or None."""
        namespace, run = split(name)
        known = self._following.known(namespace)
        if known is not None:
            return known.get(name) or self._following.gone.get(name)
        try:
            return await self._api.get(RUNS, run, namespace, into=OwnSeen)
        except ApiError as error:
            if not error.not_found or not_installed(error):
                raise
            return None

    async def show(self, run: str) -> Answer:
        """One run as its object."""
        name = name_key(run)
        seen = await self.find(name)
        if seen is None:
            raise no_run(name)
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
            and (wanted.owner is None or at_or_below(each.spec["owner"], wanted.owner))
            and _open_within(each, _instant(wanted.since), _instant(wanted.until))
        ]
        rows.sort(key=lambda row: (row["spec"]["interval"]["start"], row["name"]))
        return {"leases": rows[: wanted.limit]}

    async def reservations(
        self,
        run: str | None = None,
        namespace: str | None = None,
        limit: int = 100,
        *,
        all: bool = False,  # noqa: A002 - its name in the protocol
    ) -> Answer:
        """Reservations in force, the earliest date first; with `all` those that are over too, in the order of their making."""
        fields = "" if all else ",".join(f"status.state!={each}" for each in RESERVATIONS_OVER)
        where = namespace if run is None else split(name_key(run))[0]
        if run is not None:
            if await self.find(name_key(run)) is None:
                raise no_run(name_key(run))
            fields = ",".join(filter(None, (fields, f"spec.runRef.name={_selector(split(name_key(run))[1])}")))
        found = (await self._api.list(RESERVATIONS, where, into=OwnSeen, fields=fields)).items
        if all:
            found.sort(key=lambda each: (each.metadata.creation_timestamp, each.metadata.name))
        else:
            found.sort(key=lambda each: (each.spec["earliestStart"], each.metadata.name))
        rows = [reservation_of(each) for each in (found[-limit:] if all else found[:limit])]
        return {"reservations": rows}

    async def outcomes(self, name: str | None = None, run: str | None = None, limit: int = 100) -> Answer:
        """Resolutions in their order: one, those that a run had a part in, or the last of all."""
        found = (await self._api.list(OUTCOMES, into=OwnSeen)).items
        found.sort(key=lambda each: (len(each.metadata.name), each.metadata.name))  # they are numbered
        rows: list[Answer] = [{"name": each.metadata.name, "spec": each.spec} for each in found]
        if run is not None:
            rows = [row for row in rows if name_key(run) in _parties(row["spec"])]
        if name is not None:
            rows = [row for row in rows if row["name"] == name]
            if not rows:
                raise Refused(Reason.NotFound, f"there is no outcome {name[:80]}")
        return {"outcomes": rows[-limit:]}

    # --- asking and ending -----------------------------------------------------------------------------------------------

    async def submit(self, objects: list[Any]) -> Answer:
        """Make Runs. All are shown to the server first, which takes all or refuses them by name."""
        bodies = [placed(each, self._namespace) for each in objects]
        names = [key(each["metadata"]["name"], each["metadata"]["namespace"]) for each in bodies]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Refused(Reason.AlreadyExists, f"{', '.join(twice)}: more than once in what was given")
        refusals = await asyncio.gather(*(self._refusal(each) for each in bodies))
        if any(refusals):
            raise _refusal_of(bodies, refusals)
        made: list[Key] = []
        for name, each in zip(names, bodies, strict=True):
            with _noted("submitted", made):
                await self._api.create(RUNS, each, split(name)[0])
            made.append(name)
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
                found = await asyncio.gather(*(self.find(name) for name in waiting))
            except (ApiError, Unreachable):
                break  # who may write but not read learns no more; and what is submitted is submitted
            looked = {name: seen for name, seen in zip(waiting, found, strict=True) if seen is not None and seen.status}
            statuses |= {name: status_of(seen) for name, seen in looked.items()}
            waiting = [name for name in waiting if name not in looked]
        return [{"name": short(name), "status": status} for name, status in statuses.items()]

    async def cancel(self, runs: list[str]) -> Answer:
        """End runs by deleting their objects, which stay until their leases are closed. Ended ones are left, as a record."""
        names = list(dict.fromkeys(name_key(name) for name in runs))
        found = [(name, await self._standing(name)) for name in names]
        chosen = [name for name, status in found if status["phase"] not in OVER]
        if not chosen:
            raise Refused(Reason.Terminal, ended_words(found, len(found)))
        for number, name in enumerate(chosen):
            namespace, run = split(name)
            with _noted("canceled", chosen[:number]):
                await self._api.delete(RUNS, run, namespace)
        return {"canceled": [short(name) for name in chosen]}

    async def _standing(self, name: Key) -> Answer:
        """The status of a run that is there; who may delete and not read is believed."""
        try:
            seen = await self.find(name)
        except ApiError as error:
            if not lacks_rights(error):
                raise
            return {"phase": ""}
        if seen is None:
            raise no_run(name)
        return status_of(seen)

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
        """What the server can choose by; it knows no owner above another."""
        return {"spec.paidByBudget": self.budget, "spec.paidByEnvelope": self.envelope}


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


def _parties(spec: Answer) -> set[Key]:
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


@contextmanager
def _noted(what: str, done: Sequence[Key]) -> Iterator[None]:
    """Where one of several things fails, say what was done before."""
    try:
        yield
    except (ApiError, Unreachable) as error:
        if done:
            error.add_note(f"{what} before that: {', '.join(map(short, done))}")
        raise


def _refusal_of(bodies: list[Answer], refusals: Sequence[ApiError | None]) -> Exception:
    """Why nothing was submitted: a right that is missing, or each mistake with its run."""
    found = [
        (body["metadata"]["name"], error) for body, error in zip(bodies, refusals, strict=True) if error is not None
    ]
    unfit = next((error for _, error in found if lacks_rights(error)), found[0][1])
    if lacks_rights(unfit) or len(bodies) == 1:
        return unfit
    problems = [f"{name}: {policy_said(error) or error.message}" for name, error in found]
    return Refused(
        Reason.InvalidRequest,
        f"{len(problems)} of {len(bodies)} runs were refused; nothing was submitted",
        problems=tuple(problems),
    )


def _instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)


def _selector(value: str) -> str:
    """A value as a field selector takes it, whatever was typed."""
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def _open_within(seen: OwnSeen, since: int | None, until: int | None) -> bool:
    """Whether a lease was open at some instant of [since, until)."""
    start, end = parse_instant(seen.spec["interval"]["start"]), seen.status.get("endTime")
    return (until is None or start < until) and (since is None or end is None or parse_instant(end) > since)
