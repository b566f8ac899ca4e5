"""Loans: the verbs about money between owners. Who lends and borrows is for everybody to see.

Changing what is there is reading, then writing: one such change at a time, so that none is lost between two others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.engine import lending
from fairlease.engine.explain import visits
from fairlease.engine.plan import least_width
from fairlease.local import requests as rq
from fairlease.local.access import covers
from fairlease.model.amount import gpu_hours
from fairlease.model.record import Key, short, split
from fairlease.model.rules import an_owner
from fairlease.reason import Reason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from fairlease.local.access import Caller
    from fairlease.local.daemon import Daemon
    from fairlease.model.budget import BudgetSpec, Envelope
    from fairlease.model.run import Funding, RunSpec

Result = dict[str, Any]
Verb = tuple[type[rq.Args], "Callable[[Caller, Any], Awaitable[Result]]"]


class Loans:
    """The verbs `sponsors` and those of `budgets` that are about lending."""

    def __init__(self, daemon: Daemon, spec_of: Callable[[Key], RunSpec], edits: asyncio.Lock) -> None:
        self._daemon = daemon
        self._scheduler = daemon.scheduler
        self._spec_of = spec_of
        self._edits = edits

    @property
    def verbs(self) -> dict[str, Verb]:
        """What can be asked."""
        return {
            "budgets.lent": (rq.SomeBudget, self.lent),
            "budgets.borrowed": (rq.Borrower, self.borrowed),
            "budgets.stop-lending": (rq.StopLending, self.stop_lending),
            "sponsors.list": (rq.OneRun, self.sponsors),
            "sponsors.add": (rq.Sponsor, self.add_sponsor),
            "sponsors.remove": (rq.Sponsor, self.remove_sponsor),
        }

    # --- both sides of a loan ------------------------------------------------------------------------------------------

    async def lent(self, _: Caller, args: rq.SomeBudget) -> Result:
        """What Budgets have lent, to whom and until when, against their lending caps."""
        state = self._scheduler.state
        names = sorted(state.budgets, key=split)
        if args.budget is not None:
            names = [self._known(args.budget)]
        return {"budgets": [lending.lent_view(state, budget, self._daemon.now()) for budget in names]}

    async def borrowed(self, _: Caller, args: rq.Borrower) -> Result:
        """What runs have borrowed, from whom and until when."""
        state, now = self._scheduler.state, self._daemon.now()
        loans = [loan for account in state.accounts.values() for loan in lending.loans(state, account, now)]
        mine = [loan for loan in loans if args.owner is None or covers(args.owner, loan.borrower)]
        return {
            "loans": [
                lending.loan_view(loan) for loan in sorted(mine, key=lambda loan: (loan.since, loan.run, loan.budget))
            ]
        }

    async def stop_lending(self, caller: Caller, args: rq.StopLending) -> Result:
        """Lend nothing more; loans that run stay, or are called back."""
        rq.check(self._daemon.access.may_govern(caller, "write Budgets"))
        changed: list[str] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            budget = self._known(args.budget)
            spec = self._scheduler.state.budgets[budget]
            names = [each.name for each in spec.envelopes]
            if args.envelope is not None and args.envelope not in names:
                message = f"{short(budget)} has no envelope {args.envelope}; it has {', '.join(names)}"
                raise rq.refused(Reason.NotFound, message)
            after = _withheld(spec, args.envelope, recall=args.recall)
            pairs = zip(spec.envelopes, after.envelopes, strict=True)
            changed[:] = [each.name for before, each in pairs if before != each]
            return [cmd.SetBudget(budget=budget, spec=after)]

        async with self._edits:
            await self._daemon.do(build)
        state, now = self._scheduler.state, self._daemon.now()
        view = lending.lent_view(state, self._known(args.budget), now)
        left = [loan for each in view["envelopes"] if args.envelope in (None, each["name"]) for loan in each["loans"]]
        return {"budget": view["name"], "envelopes": changed, "loans": left}

    def _known(self, name: str) -> Key:
        budget = rq.name_key(name)
        if budget not in self._scheduler.state.budgets:
            raise rq.refused(Reason.NotFound, f"there is no Budget {short(budget)}")
        return budget

    # --- sponsors ------------------------------------------------------------------------------------------------------

    async def sponsors(self, _: Caller, args: rq.OneRun) -> Result:
        """Whom a run may borrow from, what each has lent it, and what each would lend now."""
        name = rq.name_key(args.run)
        spec = self._spec_of(name)
        run = self._scheduler.state.runs.get(name)
        state, now = self._scheduler.state, max(self._daemon.now(), self._scheduler.state.at)
        asked = [] if run is None else visits(state, self._scheduler.engine.family, run, now, least_width(spec))
        bill = self._over(name) if run is None else run.bill(now).sponsors
        held = {} if run is None else {owner: meter.rate for owner, meter in run.sponsors.items()}
        funding = spec.funding
        owners = [*funding.sponsors, *sorted(bill.keys() - set(funding.sponsors))]
        rows = []
        for owner in owners:
            answers = [each for each in asked if each.owner == owner]
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
        return {"name": short(name), "owner": spec.owner, **_terms(funding), "sponsors": rows}

    def _over(self, run: Key) -> dict[str, int]:
        """What each sponsor lent to a run that has ended."""
        asked = self._daemon.past.find(run)
        return {} if asked is None or asked.ending is None else asked.ending.ended.bill.sponsors

    async def add_sponsor(self, caller: Caller, args: rq.Sponsor) -> Result:
        """Let a run borrow from one more owner; what waits is tried again at once."""
        wrong = an_owner(args.owner)
        if wrong is not None:
            raise rq.refused(Reason.InvalidRequest, f"owner: {args.owner[:80]!r}: {wrong}", remedy="name an owner")
        if args.max_gpus is not None and args.max_gpus < 0:
            raise rq.refused(Reason.InvalidRequest, f"max: {args.max_gpus} is negative", remedy="give a number of GPUs")

        def added(funding: Funding) -> Funding:
            most = funding.max_borrow_gpus if args.max_gpus is None else args.max_gpus
            sponsors = tuple(dict.fromkeys((*funding.sponsors, args.owner)))
            return replace(funding, allow_borrow=True, sponsors=sponsors, max_borrow_gpus=most)

        return await self._refund(caller, args, added)

    async def remove_sponsor(self, caller: Caller, args: rq.Sponsor) -> Result:
        """Let a run borrow no more from an owner; what it has borrowed stays until it ends."""

        def removed(funding: Funding) -> Funding:
            if args.owner not in funding.sponsors:
                message = f"{args.owner} is no sponsor of {args.run}; it has {', '.join(funding.sponsors) or 'none'}"
                raise rq.refused(Reason.NotFound, message)
            return replace(funding, sponsors=tuple(each for each in funding.sponsors if each != args.owner))

        return await self._refund(caller, args, removed)

    async def _refund(self, caller: Caller, args: rq.Sponsor, change: Callable[[Funding], Funding]) -> Result:
        name = rq.name_key(args.run)
        owner = self._spec_of(name).owner
        rq.check(self._daemon.access.may_spend(caller, owner))
        told: list[bool] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            before = self._spec_of(name).funding
            after = change(before)
            told[:] = [after != before]
            return [cmd.SetFunding(run=name, funding=after)]

        async with self._edits:
            for refusal in await self._daemon.do(build):
                rq.check(refusal)
        return {"name": short(name), "owner": owner, "changed": told[0], **_terms(self._spec_of(name).funding)}


def _terms(funding: Funding) -> Result:
    return {
        "allowBorrow": funding.allow_borrow,
        "maxBorrowGPUs": funding.max_borrow_gpus,
        "sponsorNames": list(funding.sponsors),
    }


def _withheld(spec: BudgetSpec, only: str | None, *, recall: bool) -> BudgetSpec:
    """The Budget with lending stopped; a recall lends nothing at all, which leaves running loans without cover."""

    def stopped(envelope: Envelope) -> Envelope:
        if only not in (None, envelope.name):
            return envelope
        most = 0 if recall else envelope.lending.max_concurrency
        return replace(envelope, lending=replace(envelope.lending, allow=False, max_concurrency=most))

    return replace(spec, envelopes=tuple(stopped(each) for each in spec.envelopes))
