"""What people change on a cluster: edits of specs, by their own rights, of which the controller hears like of any other.

So nothing is needed between the caller and the API server, and what these verbs do `kubectl edit`, `kubectl scale` and GitOps do
as well. The answer tells what came of it: the controller says in the status which generation of the spec it has looked at.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.refused import Refused, name_key, no_run
from fairlease.kube.api.resource import BUDGETS, RUNS, OwnSeen, Resource
from fairlease.kube.commands.answers import OVER, Answer, status_of
from fairlease.kube.controller.observation import read
from fairlease.model.objects import BudgetObject, RunObject
from fairlease.model.record import Key, short, split
from fairlease.model.rules import an_owner
from fairlease.model.writing import write
from fairlease.reason import Reason
from fairlease.runtime.queries.loans import changed_view, stopped_view, with_sponsor, withheld, without_sponsor
from fairlease.runtime.queries.width import WidthChange, WidthRefusal, WidthRequest, wanted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlease.model.run import Funding, RunSpec
    from fairlease.scheduler import Scheduler

LOOK_S = 5.0
"""How long somebody waits to hear what the controller made of an edit."""
PAUSE_S = 0.1
TRIES = 5
"""Times that an edit is made anew because somebody else edited the object in between."""


class SpecEdits:
    """Those verbs. `present` reads the ledger, for whom may."""

    def __init__(self, api: Api, present: Callable[[], Awaitable[Scheduler]]) -> None:
        self._api, self._present = api, present
        self.verbs: dict[str, Callable[..., Awaitable[Answer]]] = {
            "resize": self.resize,
            "sponsors.add": self.add_sponsor,
            "sponsors.remove": self.remove_sponsor,
            "budgets.stop-lending": self.stop_lending,
        }

    # --- width -----------------------------------------------------------------------------------------------------------

    async def resize(self, run: str, to: int | None = None, by: int | None = None, *, narrower: bool = False) -> Answer:
        """Set the width that an elastic run would like to have; the API server refuses one that is not on its step grid."""
        name, asked = name_key(run), WidthRequest(to, by, narrower)
        before: list[WidthChange] = []

        def change(seen: OwnSeen) -> Answer:
            before[:] = [_width(seen)]
            found = wanted(name, _spec_of(seen), before[0], asked, "kubectl runs")
            if isinstance(found, WidthRefusal):
                raise Refused(*found)
            return {"spec": {"malleable": {"desiredTotalGPUs": found}}}

        seen = await self._edited_run(name, change)
        return {"name": short(name), "before": before[0].view(), "width": _width(seen).view()}

    # --- money -----------------------------------------------------------------------------------------------------------

    async def add_sponsor(self, run: str, owner: str, maxGpus: int | None = None) -> Answer:  # noqa: N803 - as in the protocol
        """Let a run borrow from one more owner; what waits is tried again at once."""
        wrong = an_owner(owner)
        if wrong is not None:
            raise Refused(Reason.InvalidRequest, f"owner: {owner[:80]!r}: {wrong}", "name an owner")
        return await self._refund(run, lambda funding: with_sponsor(funding, owner, maxGpus))

    async def remove_sponsor(self, run: str, owner: str) -> Answer:
        """Let a run borrow no more from an owner; what it has borrowed stays until it ends."""

        def removed(funding: Funding) -> Funding:
            if owner not in funding.sponsors:
                message = f"{owner} is no sponsor of {run}; it has {', '.join(funding.sponsors) or 'none'}"
                raise Refused(Reason.NotFound, message)
            return without_sponsor(funding, owner)

        return await self._refund(run, removed)

    async def _refund(self, run: str, change: Callable[[Funding], Funding]) -> Answer:
        name = name_key(run)
        told: list[Answer] = []

        def edit(seen: OwnSeen) -> Answer:
            before = _spec_of(seen)
            after = change(before.funding)
            told[:] = [changed_view(name, before, after)]
            return {"spec": {"funding": {**write(after), "sponsors": list(after.sponsors)}}}

        await self._edited_run(name, edit)
        return told[0]

    async def stop_lending(self, budget: str, envelope: str | None = None, *, recall: bool = False) -> Answer:
        """Lend nothing more; loans that run stay, or are called back."""
        name = name_key(budget)
        changed: list[str] = []

        def edit(seen: OwnSeen) -> Answer:
            found = read(seen, "Budget")
            if not isinstance(found, BudgetObject):
                raise Refused(Reason.InvalidRequest, getattr(found, "message", "it is no Budget"))
            names = [each.name for each in found.spec.envelopes]
            if envelope is not None and envelope not in names:
                message = f"{short(name)} has no envelope {envelope}; it has {', '.join(names)}"
                raise Refused(Reason.NotFound, message)
            after = withheld(found.spec, envelope, recall=recall)
            changed[:] = [
                one.name for one, other in zip(after.envelopes, found.spec.envelopes, strict=True) if one != other
            ]
            lending = {each.name: write(each.lending) for each in after.envelopes if each.name in changed}
            raw = [
                {**each, "lending": lending.get(each["name"], each.get("lending"))} for each in seen.spec["envelopes"]
            ]
            return {
                "spec": {
                    "envelopes": [{key: value for key, value in each.items() if value is not None} for each in raw]
                }
            }

        await self._edited(BUDGETS, name, edit, f"there is no Budget {short(name)}")
        scheduler = await self._present()
        now = max(int(time.time() * 1000), scheduler.state.at)
        return stopped_view(scheduler.state, name, changed, envelope, now)

    # --- edits -----------------------------------------------------------------------------------------------------------

    async def _edited_run(self, name: Key, change: Callable[[OwnSeen], Answer]) -> OwnSeen:
        def checked(seen: OwnSeen) -> Answer:
            if status_of(seen)["phase"] in OVER:
                raise Refused(Reason.Terminal, f"{short(name)} has ended already")
            return change(seen)

        return await self._edited(RUNS, name, checked, no_run(name).message)

    async def _edited(self, what: Resource, name: Key, change: Callable[[OwnSeen], Answer], missing: str) -> OwnSeen:
        """Change an object as it is now, whoever else edits it; gives it as it stands once the controller has looked."""
        namespace, short_name = split(name)
        for left in reversed(range(TRIES)):
            try:
                seen = await self._api.get(what, short_name, namespace, into=OwnSeen)
                body = change(seen)
                body["metadata"] = {"resourceVersion": seen.metadata.resource_version}
                await self._api.patch(what, short_name, body, namespace)
            except ApiError as error:
                if error.not_found:
                    raise Refused(Reason.NotFound, missing) from None
                if not (error.conflict and left):
                    raise
                continue
            break
        return await self._looked_at(what, name)

    async def _looked_at(self, what: Resource, name: Key) -> OwnSeen:
        """An object once its controller has seen the edit; where that takes long, as it is by then."""
        namespace, short_name = split(name)
        until = time.monotonic() + LOOK_S
        while True:
            seen = await self._api.get(what, short_name, namespace, into=OwnSeen)
            if seen.status.get("observedGeneration") == seen.metadata.generation or time.monotonic() > until:
                return seen
            await asyncio.sleep(PAUSE_S)


def _spec_of(seen: OwnSeen) -> RunSpec:
    found = read(seen, "Run")
    if not isinstance(found, RunObject):
        raise Refused(Reason.InvalidRequest, getattr(found, "message", "it is no Run"))
    return found.spec


def _width(seen: OwnSeen) -> WidthChange:
    told = seen.status.get("width") or {}
    return WidthChange.of(_spec_of(seen), int(told.get("allocated") or 0))
