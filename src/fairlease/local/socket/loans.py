"""Loans: the verbs about money between owners. Who lends and borrows is for everybody to see.

Changing what is there is reading, then writing: one such change at a time, so that none is lost between two others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.engine import command as cmd
from fairlease.local.socket import requests as rq
from fairlease.model.owner import at_or_below
from fairlease.model.record import Key, short, split
from fairlease.model.rules import an_owner
from fairlease.reason import Reason
from fairlease.report import lending
from fairlease.runtime.queries import loans

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from fairlease.local.daemon.daemon import Daemon
    from fairlease.local.socket.access import Caller
    from fairlease.model.run import Funding, RunSpec

Result = dict[str, Any]
Verb = tuple[type[rq.Args], "Callable[[Caller, Any], Awaitable[Result]]"]


class LoanVerbs:
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
            "sponsors.add": (rq.SponsorArgs, self.add_sponsor),
            "sponsors.remove": (rq.SponsorArgs, self.remove_sponsor),
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
        owner = args.owner
        return loans.borrowed_view(
            self._scheduler.state, lambda other: owner is None or at_or_below(other, owner), self._daemon.now()
        )

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
            after = loans.withheld(spec, args.envelope, recall=args.recall)
            pairs = zip(spec.envelopes, after.envelopes, strict=True)
            changed[:] = [each.name for before, each in pairs if before != each]
            return [cmd.SetBudget(budget=budget, spec=after)]

        async with self._edits:
            await self._daemon.do(build)
        budget, now = self._known(args.budget), self._daemon.now()
        return loans.stopped_view(self._scheduler.state, budget, changed, args.envelope, now)

    def _known(self, name: str) -> Key:
        budget = rq.name_key(name)
        if budget not in self._scheduler.state.budgets:
            raise rq.refused(Reason.NotFound, f"there is no Budget {short(budget)}")
        return budget

    # --- sponsors ------------------------------------------------------------------------------------------------------

    async def sponsors(self, _: Caller, args: rq.OneRun) -> Result:
        """Whom a run may borrow from, what each has lent it, and what each would lend now."""
        name = rq.name_key(args.run)
        self._spec_of(name)
        asked = self._daemon.past.find(name)
        assert asked is not None, "its spec was found"
        return loans.sponsors_view(self._scheduler, asked, self._daemon.now())

    async def add_sponsor(self, caller: Caller, args: rq.SponsorArgs) -> Result:
        """Let a run borrow from one more owner; what waits is tried again at once."""
        wrong = an_owner(args.owner)
        if wrong is not None:
            raise rq.refused(Reason.InvalidRequest, f"owner: {args.owner[:80]!r}: {wrong}", remedy="name an owner")
        if args.max_gpus is not None and args.max_gpus < 0:
            raise rq.refused(Reason.InvalidRequest, f"max: {args.max_gpus} is negative", remedy="give a number of GPUs")

        return await self._refund(caller, args, lambda funding: loans.with_sponsor(funding, args.owner, args.max_gpus))

    async def remove_sponsor(self, caller: Caller, args: rq.SponsorArgs) -> Result:
        """Let a run borrow no more from an owner; what it has borrowed stays until it ends."""

        def removed(funding: Funding) -> Funding:
            if args.owner not in funding.sponsors:
                message = f"{args.owner} is no sponsor of {args.run}; it has {', '.join(funding.sponsors) or 'none'}"
                raise rq.refused(Reason.NotFound, message)
            return loans.without_sponsor(funding, args.owner)

        return await self._refund(caller, args, removed)

    async def _refund(self, caller: Caller, args: rq.SponsorArgs, change: Callable[[Funding], Funding]) -> Result:
        name = rq.name_key(args.run)
        rq.check(self._daemon.access.may_spend(caller, self._spec_of(name).owner))
        told: list[Result] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            before = self._spec_of(name)
            after = change(before.funding)
            told[:] = [loans.changed_view(name, before, after)]
            return [cmd.SetFunding(run=name, funding=after)]

        async with self._edits:
            for refusal in await self._daemon.do(build):
                rq.check(refusal)
        return told[0]
