"""Every verb that only reads the ledger, written once: from the facts and the arguments to the answer.

Backends differ in where the facts come from, who may ask, and how answers travel. What goes through the whole past is left open as
a function of a store (`Later`): a daemon reads its file beside the loop that decides, whoever has all in memory does it at once.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from fairlease.engine.place.plan import least_width
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.export import export as export_to
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.model.amount import gpu_hours
from fairlease.model.record import short, split
from fairlease.reason import Reason
from fairlease.report import lending, views
from fairlease.report.explain import visits as ask_money
from fairlease.report.invoices import invoice
from fairlease.report.reservation_history import ReservationHistory, in_force
from fairlease.runtime import requests as rq
from fairlease.runtime.queries import runs
from fairlease.runtime.queries.facts import Facts
from fairlease.runtime.queries.forecasts import eta_of, etas, forecast_report
from fairlease.runtime.requests import Refused, bounded, concerns, instant

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from fairlease.ledger.store.protocol import Entry, Store

View = dict[str, Any]
Later = Callable[["Store"], View]
"""The rest of an answer, which goes through the whole past: to be asked of a store where nobody waits for it."""


# --- runs ----------------------------------------------------------------------------------------------------------------


def explain(facts: Facts, args: rq.OneRun) -> View:
    """Why a run is as it is."""
    asked = facts.run(args.run)
    status = facts.past.status(asked, facts.now)
    return runs.explanation(facts, asked, status)


def eta(facts: Facts, args: rq.Eta) -> View:
    """When a run starts, thought through anew; or all that wait, as it was last written down."""
    if args.run is not None:
        return {"runs": [eta_of(facts, facts.run(args.run))]}
    return {"runs": etas(facts, partial(concerns, args.owner), bounded(args.limit))}


def report(_: Facts, args: rq.ReportArgs) -> Later:
    """Whether forecasts kept their word, over the ledger's past."""
    since, whose = instant("since", args.since), partial(concerns, args.owner)
    return lambda store: forecast_report(store.entries(), whose, since)


def cover(facts: Facts, args: rq.OneRun) -> View:
    """Who would pay for a run that was submitted."""
    asked = facts.run(args.run)
    return {"cover": runs.cover_of(facts, asked.run, asked.spec)}


# --- money ---------------------------------------------------------------------------------------------------------------


def who_pays(facts: Facts, args: rq.WhoPays) -> View | Later:
    """Who pays, and has paid, for a run, or for runs of an owner, or out of a payer's money; all, or those that hold GPUs."""
    since, until, now = instant("since", args.since), instant("until", args.until), facts.now
    query = LeaseQuery(owner=args.owner, payer=args.payer, since=since, until=until)
    store, living = facts.store, facts.state.runs.values()
    if args.run is not None:
        return invoice(store.leases(replace(query, run=facts.run(args.run).run)), now, since, until)
    if args.all or since is not None or until is not None:
        return lambda store: invoice(store.leases(query), now, since, until)
    queries = [replace(query, run=each.key) for each in living if each.leases][: rq.LIMIT_MAX]
    return invoice((row for each in queries for row in store.leases(each)), now)


def budgets(facts: Facts, _: rq.Args) -> View:
    """Every Budget, with what it has spent, promised and left."""
    return {"budgets": runs.budgets(facts)}


def lent(facts: Facts, args: rq.SomeBudget) -> View:
    """What Budgets have lent, to whom and until when, against their lending caps."""
    state = facts.state
    names = sorted(state.budgets, key=split) if args.budget is None else [facts.budget(args.budget)]
    return {"budgets": [lending.lent_view(state, each, facts.now) for each in names]}


def borrowed(facts: Facts, args: rq.Borrower) -> View:
    """What runs have borrowed, from whom and until when."""
    state, now = facts.state, facts.now
    loans = [loan for account in state.accounts.values() for loan in lending.loans(state, account, now)]
    mine = [loan for loan in loans if concerns(args.owner, loan.borrower)]
    mine.sort(key=lambda loan: (loan.since, loan.run, loan.budget))
    return {"loans": [lending.loan_view(loan) for loan in mine]}


def sponsors(facts: Facts, args: rq.OneRun) -> View:
    """Whom a run may borrow from, what each has lent it, and what each would lend now."""
    asked, now, state = facts.run(args.run), facts.now, facts.state
    spec = asked.spec
    run = state.runs.get(asked.run)
    if run is None:
        visited, held = [], dict[str, int]()
        bill = {} if asked.ending is None else asked.ending.ended.bill.sponsors
    else:
        visited = ask_money(state, facts.scheduler.engine.family, run, max(now, state.at), least_width(spec))
        held = {owner: meter.rate for owner, meter in run.sponsors.items()}
        bill = run.bill(now).sponsors
    funding = spec.funding
    rows = []
    for owner in (*funding.sponsors, *sorted(bill.keys() - set(funding.sponsors))):
        answers = [each for each in visited if each.owner == owner]
        rooms = [each.room_gpus for each in answers]
        rows.append(
            {
                "owner": owner,
                "named": owner in funding.sponsors,
                "gpus": held.get(owner, 0),
                "gpuHours": gpu_hours(bill.get(owner, 0)),
                "roomGPUs": None if None in rooms else sum(room for room in rooms if room is not None),
                "answers": list(dict.fromkeys(each.reason.value for each in answers)),
            }
        )
    return {"name": short(asked.run), "owner": spec.owner, **lending.terms(funding), "sponsors": rows}


# --- the record ----------------------------------------------------------------------------------------------------------


def nodes(facts: Facts, _: rq.Args) -> View:
    """Every node, and what is free in each domain."""
    state = facts.state
    return {"nodes": views.node_views(state), "domains": views.domain_views(state)}


def leases(facts: Facts, args: rq.Leases) -> View:
    """Leases, open and closed, in order of opening."""
    return {"leases": [views.lease_object(row) for row in facts.store.leases(args.query())]}


def reservations(facts: Facts, args: rq.ReservationsArgs) -> View | Later:
    """Reservations in force, the earliest date first; with `all` those that are over too, in the order of their making."""
    now, limit, store = facts.now, bounded(args.limit), facts.store
    run = None if args.run is None else facts.run(args.run).run
    if not args.all:
        waiting = [each for each in facts.state.runs.values() if each.hold and run in (None, each.key)]
        waiting = [each for each in waiting if args.namespace in (None, split(each.key)[0])]
        waiting.sort(key=lambda each: (each.hold.earliest_start if each.hold else 0, each.order))
        return {"reservations": [in_force(each, now) for each in waiting[:limit]]}

    def told(events: Iterable[tuple[int, ev.AnyEvent]]) -> View:
        found = ReservationHistory()
        for at, event in events:
            found.take(at, event)
        objects = [each for each in found.objects(now) if args.namespace in (None, each["spec"]["runRef"]["namespace"])]
        return {"reservations": objects[-limit:]}

    if run is not None:
        return told((moment.at, moment.event) for moment in store.story(run))

    def whole(store: Store) -> View:
        entries: dict[int, Entry] = {}
        for kind in (ev.ReservationMade, ev.ReservationTurned, ev.Forecasted):
            entries |= {entry.seq: entry for entry in store.entries_with(kind, -1)}
        return told((entries[seq].at, event) for seq in sorted(entries) for event in entries[seq].events)

    return whole


def outcomes(facts: Facts, args: rq.Outcomes) -> View | Later:
    """Resolutions in their order: one, those that a run had a part in, or the last of all."""
    limit = bounded(args.limit)

    def told(events: Iterable[ev.AnyEvent]) -> View:
        recorded = [each for each in events if isinstance(each, ev.OutcomeRecorded) and args.name in (None, each.name)]
        if args.name is not None and not recorded:
            raise Refused(Reason.NotFound, f"there is no outcome {args.name[:80]}")
        return {"outcomes": [views.outcome_object(each.name, each.outcome) for each in recorded[-limit:]]}

    if args.run is not None:
        return told(moment.event for moment in facts.store.story(facts.run(args.run).run))
    text = f'"name":"{args.name}"' if args.name else ""
    return lambda store: told(
        event for entry in store.entries_with(ev.OutcomeRecorded, limit, text) for event in entry.events
    )


def export(facts: Facts, args: rq.Export) -> Later:
    """Leases or charges as CSV text; where it is written is for the caller's own rights to say."""
    query = LeaseQuery(since=instant("since", args.since), until=instant("until", args.until))
    if args.what not in ("leases", "charges"):
        raise Refused(Reason.InvalidRequest, f"what: {args.what[:40]!r} is neither leases nor charges")

    def written(store: Store) -> View:
        out = _Bounded(facts.bytes_max)
        rows = export_to(args.what, store.leases(query), facts.now, out)
        return {"csv": out.getvalue().decode(), "rows": rows}

    return written


class _Bounded(io.BytesIO):
    """Memory for one answer. A file has no such bound: `export --db` writes as much as there is."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self._most = most

    def write(self, part: ReadableBuffer, /) -> int:
        written = super().write(part)
        if self._most is not None and self.tell() > self._most:
            remedy = "ask for less with since and until, or read the file with --db"
            raise Refused(Reason.InvalidRequest, "the export is too large for one answer", remedy)
        return written


class Query(NamedTuple):
    """A verb that reads: its arguments, what answers it, and whether it is always about the past."""

    args: type[rq.Args]
    answer: Callable[[Facts, Any], View | Later]
    past: bool = False


QUERIES = {
    "explain": Query(rq.OneRun, explain, past=True),
    "eta": Query(rq.Eta, eta),
    "forecast.report": Query(rq.ReportArgs, report, past=True),
    "cover": Query(rq.OneRun, cover),
    "who-pays": Query(rq.WhoPays, who_pays, past=True),
    "budgets.list": Query(rq.Args, budgets),
    "budgets.lent": Query(rq.SomeBudget, lent),
    "budgets.borrowed": Query(rq.Borrower, borrowed),
    "sponsors.list": Query(rq.OneRun, sponsors),
    "nodes": Query(rq.Args, nodes),
    "leases": Query(rq.Leases, leases, past=True),
    "reservations": Query(rq.ReservationsArgs, reservations, past=True),
    "outcomes": Query(rq.Outcomes, outcomes, past=True),
    "export": Query(rq.Export, export, past=True),
}
