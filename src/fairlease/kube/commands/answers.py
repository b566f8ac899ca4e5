"""Answers on a cluster: what each verb of `kubectl runs` does, and what it shows, in the words of the local daemon's answers.

What objects tell is read from objects, since everybody in a namespace may read those. What only the ledger tells is left to
`ledger_queries`, which is heavier to load, and asks for the right to read the ledger.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.refused import lacks_rights, name_key, no_run, not_installed, policy_said
from fairlease.kube.api.resource import LEASES, OUTCOMES, RESERVATIONS, RESERVATIONS_OVER, RUNS, OwnSeen
from fairlease.kube.commands.following import Following
from fairlease.kube.commands.objects import (
    OVER,
    Answer,
    open_within,
    parties,
    placed,
    reservation_of,
    row_of,
    selector,
    status_of,
)
from fairlease.model.record import Key, key, short, split
from fairlease.reason import Reason
from fairlease.runtime import requests as rq
from fairlease.runtime.requests import Refused, concerns, read_args

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from fairlease.kube.ledger.archive import Archive

    Verb = tuple[type[rq.Args], Callable[[Any], Awaitable[Answer]]]

FIRST_LOOK_S = 3.0
"""How long a submit waits to tell what the controller made of it."""
PATIENCE_S = 2.0
"""How long a request that found no server is tried again: somebody waits for the answer."""


class ClusterAnswers:
    """The verbs, as one identity. `namespace` is None where all are meant."""

    def __init__(self, api: Api, namespace: str | None, archive: Archive | None = None) -> None:
        self._api, self._namespace, self._archive = api, namespace, archive
        self._following = Following(api)
        self._heavy: dict[str, Verb] = {}
        self._verbs: dict[str, Verb] = {
            "submit": (rq.Objects, self.submit),
            "list": (rq.ListArgs, self.list_runs),
            "show": (rq.OneRun, self.show),
            "cancel": (rq.Runs, self.cancel),
            "leases": (rq.Leases, self.leases),
            "reservations": (rq.ReservationsArgs, self.reservations),
            "outcomes": (rq.Outcomes, self.outcomes),
            "status": (rq.Args, self.status),
            "wait": (rq.Wait, self.wait),
        }

    async def answer(self, verb: str, args: dict[str, Any]) -> Answer:
        """The result of a verb; what was left out is None. Raises what `kube` raises, and `Refused`."""
        given = {name: value for name, value in args.items() if value is not None}
        for name in (given.get("run"), given.get("budget"), *given.get("runs", ())):
            if name is not None:
                name_key(name)  # what cannot be a name never gets into the path of a request
        kind, work = self._verbs[verb] if verb in self._verbs else self._ledger_verbs()[verb]
        return await work(read_args(kind, given))

    def _ledger_verbs(self) -> dict[str, Verb]:
        if not self._heavy:
            from fairlease.kube.commands.annotation_requests import AnnotationRequests  # noqa: PLC0415 - as below
            from fairlease.kube.commands.ledger_queries import LedgerQueries  # noqa: PLC0415 - the engine, which most verbs do not need
            from fairlease.kube.commands.spec_edits import SpecEdits  # noqa: PLC0415 - the same

            ledger = LedgerQueries(self._api, self._namespace, self._archive, self.find)
            edits, requests = SpecEdits(self._api, ledger.present), AnnotationRequests(self._api, ledger.present)
            self._heavy = ledger.verbs | edits.verbs | requests.verbs
        return self._heavy

    # --- objects ---------------------------------------------------------------------------------------------------------

    async def list_runs(self, args: rq.ListArgs) -> Answer:
        """Runs that live, in the order of asking; then those that ended, the latest first."""
        found = await self._runs(args.namespace or self._namespace)
        rows = [row_of(each) for each in found if concerns(args.owner, str(each.spec.get("owner", "")))]
        if args.phase is not None:
            rows = [row for row in rows if row["status"]["phase"] == args.phase]
        living = [row for row in rows if row["status"]["phase"] not in OVER]
        over = [row for row in rows if row["status"]["phase"] in OVER]
        living.sort(key=lambda row: (row["status"].get("submittedAt") or "~", row["name"]))
        over.sort(key=lambda row: (row["status"].get("endedAt") or "", row["name"]), reverse=True)
        return {"runs": (living + (over if args.all or args.phase in OVER else []))[: args.limit]}

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

    async def show(self, args: rq.OneRun) -> Answer:
        """One run as its object."""
        name = name_key(args.run)
        seen = await self.find(name)
        if seen is None:
            raise no_run(name)
        return {
            "name": short(name),
            "namespace": seen.metadata.namespace,
            "spec": seen.spec,
            "status": status_of(seen, gone=name in self._following.gone),
        }

    async def leases(self, args: rq.Leases) -> Answer:
        """Leases, in the order of opening. The server knows no owner above another, and no time."""
        query, namespace = args.query(), self._namespace
        chosen = {"spec.paidByBudget": args.budget, "spec.paidByEnvelope": args.envelope}
        if query.run is not None:
            namespace, chosen["spec.runRef.name"] = split(query.run)
        fields = [f"{name}={selector(value)}" for name, value in chosen.items() if value is not None]
        if query.open is not None:
            fields.append("status.closed!=true" if query.open else "status.closed=true")
        found = await self._api.list(LEASES, namespace, into=OwnSeen, fields=",".join(fields))
        rows: list[Answer] = [
            {"name": short(Key(each.metadata.key)), "spec": each.spec, "status": each.status or {"closed": False}}
            for each in found.items
            if (query.node is None or query.node in each.spec["slice"]["gpus"])
            and concerns(query.owner, each.spec["owner"])
            and open_within(each, query.since, query.until)
        ]
        rows.sort(key=lambda row: (row["spec"]["interval"]["start"], row["name"]))
        return {"leases": rows[: query.limit]}

    async def reservations(self, args: rq.ReservationsArgs) -> Answer:
        """Reservations in force, the earliest date first; with `all` those that are over too, in the order of their making."""
        fields, where = [f"status.state!={each}" for each in RESERVATIONS_OVER if not args.all], args.namespace
        if args.run is not None:
            name = name_key(args.run)
            if await self.find(name) is None:
                raise no_run(name)
            where, run = split(name)
            fields.append(f"spec.runRef.name={selector(run)}")
        found = (await self._api.list(RESERVATIONS, where, into=OwnSeen, fields=",".join(fields))).items
        if args.all:
            found.sort(key=lambda each: (each.metadata.creation_timestamp, each.metadata.name))
        else:
            found.sort(key=lambda each: (each.spec["earliestStart"], each.metadata.name))
        return {"reservations": list(map(reservation_of, found[-args.limit :] if args.all else found[: args.limit]))}

    async def outcomes(self, args: rq.Outcomes) -> Answer:
        """Resolutions in their order: one, those that a run had a part in, or the last of all."""
        found = (await self._api.list(OUTCOMES, into=OwnSeen)).items
        found.sort(key=lambda each: (len(each.metadata.name), each.metadata.name))  # they are numbered
        rows: list[Answer] = [{"name": each.metadata.name, "spec": each.spec} for each in found]
        if args.run is not None:
            rows = [row for row in rows if name_key(args.run) in parties(row["spec"])]
        if args.name is not None:
            rows = [row for row in rows if row["name"] == args.name]
            if not rows:
                raise Refused(Reason.NotFound, f"there is no outcome {args.name[:80]}")
        return {"outcomes": rows[-args.limit :]}

    # --- asking and ending -----------------------------------------------------------------------------------------------

    async def submit(self, args: rq.Objects) -> Answer:
        """Make Runs. All are shown to the server first, which takes all or refuses them by name."""
        bodies = [placed(each, self._namespace) for each in args.objects]
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

    async def cancel(self, args: rq.Runs) -> Answer:
        """End runs by deleting their objects, which stay until their leases are closed. Ended ones are left, as a record."""
        names = list(dict.fromkeys(name_key(name) for name in args.runs))
        found = [(name, await self._standing(name)) for name in names]
        chosen = [name for name, status in found if status["phase"] not in OVER]
        if not chosen:
            from fairlease.runtime.edits import all_ended  # noqa: PLC0415 - the engine, for a refusal that is rare

            raise all_ended(found, len(found))
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

    async def status(self, _: rq.Args) -> Answer:
        """Where the changes that were seen stand."""
        return {"head": {"seq": self._following.changes}}

    async def wait(self, args: rq.Wait) -> Answer:
        """Return when runs changed after `seq`, or time is over."""
        await self._following.wait(self._namespace, args.seq, args.timeout_ms / 1000)
        return await self.status(args)

    async def close(self) -> None:
        """Follow nothing any more."""
        await self._following.close()


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
