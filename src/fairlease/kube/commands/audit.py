"""The audit of a cluster: the ledger is proven from its entries, and then every object that tells of it is compared with it.

The entries are the truth; Leases, Reservations, ResolverOutcomes and statuses are what people look at. This derives what those
would have to say, with books that share nothing with the controller's memory, and names each that says something else.

A controller writes objects a moment after the entry that they tell of. So what differs is looked at again, entries and objects
anew, and only what differs every time is a finding. Objects of what is over may have been deleted by an administrator: they claim
nothing any more, and are only counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlease.kube.api.resource import BUDGETS, LEASES, OUTCOMES, RESERVATIONS, RUNS, OwnSeen
from fairlease.kube.api.wire_types import read
from fairlease.kube.ledger.archive import past_of, read_rows
from fairlease.kube.projection.statuses import alike, budget_report
from fairlease.kube.projection.tombstones import lease_key
from fairlease.ledger.audit.audit import scan
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.model.objects import BudgetObject
from fairlease.model.record import Key, key
from fairlease.model.run import Phase
from fairlease.model.writing import write
from fairlease.report.reservation_history import IN_FORCE_WORDS, ReservationHistory
from fairlease.report.views import lease_object, run_status
from fairlease.runtime.queries.history import RunHistory
from fairlease.scheduler import Scheduler

if TYPE_CHECKING:
    from fairlease.kube.api.connection import Api
    from fairlease.kube.api.resource import Resource
    from fairlease.kube.ledger.archive import Archive

CHECK = "objects"
LOOKS = 5
PAUSE_S = 1.0
_KINDS = (LEASES, RESERVATIONS, OUTCOMES, RUNS, BUDGETS)
_STANDING = ("state", "reason", "message")
_LIVING = ("attempt", "leases", "submittedAt", "startedAt", "deadline", "width", "pendingReservation", "earliestStart")
_ENDED = ("phase", "reason", "attempt", "submittedAt", "startedAt", "endedAt", "funding")

Objects = dict[str, OwnSeen]


class _Look(NamedTuple):
    """What one comparison found: sentences, and how many objects of things past are not there any more."""

    differs: list[str]
    compared: int
    absent: int


async def audit_cluster(api: Api, archive: Archive | None = None) -> dict[str, Any]:
    """The report of `ledger.audit`, with one check more; raises `HistoryMissing` where entries lie in an archive not shown."""
    rows = await read_rows(api, archive)
    report = scan(rows)
    answer: dict[str, Any] = msgspec.to_builtins(report)
    if not report.ok:
        return answer | {"checks": {**answer["checks"], CHECK: False}}  # there is nothing to compare objects with
    look = _compare(Scheduler(past_of(rows)), await _objects(api))
    stays = dict.fromkeys(look.differs)
    for _ in range(LOOKS - 1):
        if not stays:
            break
        await asyncio.sleep(PAUSE_S)
        objects = await _objects(api)
        look = _compare(Scheduler(past_of(await read_rows(api, archive))), objects)
        stays = {each: None for each in look.differs if each in stays}
    findings = [{"seq": answer["head"].get("seq", 0), "claim": CHECK, "objects": [], "message": each} for each in stays]
    return answer | {
        "ok": answer["ok"] and not stays,
        "checks": {**answer["checks"], CHECK: not stays},
        "findings": [*answer["findings"], *findings],
        "findingsTotal": report.findings_total + len(findings),
        "objects": look.compared,
        "absent": look.absent,
    }


async def _objects(api: Api) -> dict[Resource, Objects]:
    found = await asyncio.gather(*(api.list(kind, into=OwnSeen) for kind in _KINDS))
    return {
        kind: {each.metadata.key: each for each in listing.items} for kind, listing in zip(_KINDS, found, strict=True)
    }


def _compare(scheduler: Scheduler, objects: dict[Resource, Objects]) -> _Look:
    books = _Books(scheduler)
    differs = [
        *books.leases(objects[LEASES]),
        *books.reservations(objects[RESERVATIONS]),
        *books.outcomes(objects[OUTCOMES]),
        *books.runs(objects[RUNS]),
        *books.budgets(objects[BUDGETS]),
    ]
    return _Look(differs, sum(map(len, objects.values())), books.absent)


class _Books:
    """What objects would have to say."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._past = scheduler, RunHistory(scheduler)
        self._now = max(int(time.time() * 1000), scheduler.state.at)
        self.absent = 0

    def leases(self, found: Objects) -> Iterator[str]:
        """Every Lease object is a lease of the ledger, as it says; every open lease has its object."""
        known = set()
        for row in self._scheduler.store.leases(LeaseQuery()):
            name = lease_key(row.lease)
            known.add(name)
            there, wanted = found.get(name), lease_object(row)
            if there is None:
                self.absent += row.end is not None
                if row.end is None:
                    yield f"Lease {name} is open in the ledger and has no object"
                continue
            yield from _differing("Lease", name, there.spec, wanted["spec"])
            yield from _differing("Lease", name, {"closed": False} | there.status, wanted["status"], "status")
        yield from (f"Lease {name} is in no entry of the ledger" for name in found if name not in known)

    def reservations(self, found: Objects) -> Iterator[str]:
        """Every Reservation object was made by an entry and stands as entries left it."""
        made = ReservationHistory()
        for entry in self._scheduler.store.entries():
            for event in entry.events:
                made.take(entry.at, event)
        known = set()
        for view in made.objects(self._now):
            name = key(view["name"].rpartition("/")[2], view["spec"]["runRef"]["namespace"])
            known.add(name)
            there = found.get(name)
            if there is None:
                self.absent += 1
                continue
            yield from _differing("Reservation", name, there.spec, view["spec"])
            if view["status"]["state"] in IN_FORCE_WORDS or there.status:
                kept, told = (
                    {field: each.get(field) for field in _STANDING} for each in (there.status, view["status"])
                )
                yield from _differing("Reservation", name, kept, told, "status")
        yield from (f"Reservation {name} is in no entry of the ledger" for name in found if name not in known)

    def outcomes(self, found: Objects) -> Iterator[str]:
        """Every ResolverOutcome object tells what an entry resolved."""
        known = set()
        for entry in self._scheduler.store.entries():
            for event in entry.events:
                if isinstance(event, ev.OutcomeRecorded):
                    known.add(event.name)
                    there = found.get(event.name)
                    if there is None:
                        self.absent += 1
                    else:
                        yield from _differing("ResolverOutcome", event.name, there.spec, write(event.outcome))
        yield from (f"ResolverOutcome {name} is in no entry of the ledger" for name in found if name not in known)

    def runs(self, found: Objects) -> Iterator[str]:
        """A Run's status tells what the ledger tells of the run; every run that lives has its object."""
        for name, seen in found.items():
            asked = self._past.find(Key(name))
            if asked is None:
                if seen.status.get("phase") not in (None, Phase.PENDING.value, Phase.FAILED.value):
                    yield f"Run {name} says {seen.status['phase']}, and the ledger does not know it"
            elif not seen.status or (asked.ending is not None and not seen.status.get("submittedAt")):
                continue  # not written yet; or the object of a later run, refused because the name was used
            elif asked.ending is not None:
                wanted = self._past.status(asked, self._now)
                kept = {field: seen.status.get(field) for field in _ENDED}
                yield from _differing(
                    "Run", name, kept, {field: wanted.get(field) for field in _ENDED}, "status", exactly=True
                )
            else:
                yield from self._living(Key(name), seen)
        yield from (
            f"Run {name} lives in the ledger and has no object"
            for name in self._scheduler.state.runs
            if name not in found
        )

    def _living(self, name: Key, seen: OwnSeen) -> Iterator[str]:
        wanted = run_status(self._scheduler.state.runs[name], self._now)
        kept = {field: seen.status.get(field) for field in _LIVING}
        yield from _differing("Run", name, kept, {field: wanted.get(field) for field in _LIVING}, "status")
        yield from _differing("Run", name, seen.status.get("funding") or {}, wanted["funding"], "status.funding")
        shown = seen.status.get("phase")
        if shown != wanted["phase"] and (shown, wanted["phase"]) != (Phase.PENDING.value, Phase.RUNNING.value):
            yield f"Run {name}: status.phase is {shown}, and by the ledger {wanted['phase']}"

    def budgets(self, found: Objects) -> Iterator[str]:
        """A Budget's status tells what the ledger tells of it, and its spec is the one that decisions go by."""
        state = self._scheduler.state
        for name, seen in found.items():
            budget = Key(name)
            taken = seen.status.get("observedGeneration") == seen.metadata.generation
            if budget not in state.budgets or not taken:
                continue
            there = read(seen, "Budget")
            if isinstance(there, BudgetObject) and there.spec != state.budgets[budget]:
                yield f"Budget {name}: its spec is not the one in the ledger"
            wanted = budget_report(self._scheduler, budget, self._now, seen.metadata.generation, seen.status)
            yield from _differing("Budget", name, seen.status, wanted, "status")
        gone = (name for name in state.budgets if name not in found)
        yield from (f"Budget {name} is in the ledger and has no object" for name in gone)


def _differing(
    kind: str, name: str, there: dict[str, Any], wanted: dict[str, Any], part: str = "spec", *, exactly: bool = False
) -> Iterator[str]:
    """Name each field that says something else; hours that pass count only `exactly`."""
    for field in sorted(there.keys() | wanted.keys()):
        one, other = {field: there.get(field)}, {field: wanted.get(field)}
        same = _filled(one) == _filled(other) if exactly else alike(one, other)
        if not same:
            yield f"{kind} {name}: {part}.{field} is {_shown(there.get(field))}, and by the ledger {_shown(wanted.get(field))}"


def _filled(value: Any) -> Any:  # noqa: ANN401 - any part of a status
    """Absent, null and empty are the same to a reader, and a whole number is the same with a point."""
    if isinstance(value, dict):
        kept = {name: _filled(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each not in (None, "", [], {})}
    return [_filled(each) for each in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:  # noqa: ANN401 - any part of an object
    text = msgspec.json.encode(value).decode()
    most = 120
    return text if len(text) <= most else f"{text[:most]}…"
