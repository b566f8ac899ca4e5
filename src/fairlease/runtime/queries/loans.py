"""Loans: both sides of them, and whom a run may ask, as backends tell it; and what changes when somebody wants it otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlease.engine.place.plan import least_width
from fairlease.model.amount import gpu_hours
from fairlease.model.record import Key, short
from fairlease.report import lending
from fairlease.report.explain import visits

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.ledger.state.state import State
    from fairlease.model.budget import BudgetSpec, Envelope
    from fairlease.model.run import Funding, RunSpec
    from fairlease.runtime.queries.history import SubmittedRun
    from fairlease.scheduler import Scheduler

View = dict[str, Any]


def borrowed_view(state: State, whose: Callable[[str], bool], now: int) -> View:
    """What runs of some owners have borrowed, from whom and until when."""
    loans = [loan for account in state.accounts.values() for loan in lending.loans(state, account, now)]
    mine = sorted(
        (loan for loan in loans if whose(loan.borrower)), key=lambda loan: (loan.since, loan.run, loan.budget)
    )
    return {"loans": [lending.loan_view(loan) for loan in mine]}


def sponsors_view(scheduler: Scheduler, asked: SubmittedRun, now: int) -> View:
    """Whom a run may borrow from, what each has lent it, and what each would lend now."""
    state, spec = scheduler.state, asked.spec
    run = state.runs.get(asked.run)
    if run is None:
        visited, held = [], dict[str, int]()
        bill = {} if asked.ending is None else asked.ending.ended.bill.sponsors
    else:
        visited = visits(state, scheduler.engine.family, run, max(now, state.at), least_width(spec))
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
    return {"name": short(asked.run), "owner": spec.owner, **terms(funding), "sponsors": rows}


def changed_view(run: Key, before: RunSpec, funding: Funding) -> View:
    """What became of a change of whom a run may ask."""
    return {"name": short(run), "owner": before.owner, "changed": funding != before.funding, **terms(funding)}


def terms(funding: Funding) -> View:
    """On which terms a run borrows."""
    return {
        "allowBorrow": funding.allow_borrow,
        "maxBorrowGPUs": funding.max_borrow_gpus,
        "sponsorNames": list(funding.sponsors),
    }


def with_sponsor(funding: Funding, owner: str, most: int | None) -> Funding:
    """One more owner to borrow from, the last to be asked; `most`: GPUs that may be borrowed from all, where it is to change."""
    sponsors = tuple(dict.fromkeys((*funding.sponsors, owner)))
    limit = funding.max_borrow_gpus if most is None else most
    return replace(funding, allow_borrow=True, sponsors=sponsors, max_borrow_gpus=limit)


def without_sponsor(funding: Funding, owner: str) -> Funding:
    """One owner less to borrow from."""
    return replace(funding, sponsors=tuple(each for each in funding.sponsors if each != owner))


def withheld(spec: BudgetSpec, only: str | None, *, recall: bool) -> BudgetSpec:
    """The Budget with lending stopped; a recall lends nothing at all, which leaves running loans without cover."""

    def stopped(envelope: Envelope) -> Envelope:
        if only not in (None, envelope.name):
            return envelope
        most = 0 if recall else envelope.lending.max_concurrency
        return replace(envelope, lending=replace(envelope.lending, allow=False, max_concurrency=most))

    return replace(spec, envelopes=tuple(stopped(each) for each in spec.envelopes))


def stopped_view(state: State, budget: Key, changed: list[str], only: str | None, now: int) -> View:
    """What a Budget that stopped lending still has lent."""
    told = lending.lent_view(state, budget, now)
    left = [loan for each in told["envelopes"] if only in (None, each["name"]) for loan in each["loans"]]
    return {"budget": told["name"], "envelopes": changed, "loans": left}
