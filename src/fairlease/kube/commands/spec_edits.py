"""What people change on a cluster: edits of specs, by their own rights, of which the controller hears like of any other.

So nothing is needed between the caller and the API server, and what these verbs do `kubectl edit`, `kubectl scale` and GitOps do
as well. The answer tells what came of it: the controller says in the status which generation of the spec it has looked at.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlease.engine import command as cmd
from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.refused import name_key, no_run
from fairlease.kube.api.resource import BUDGETS, RUNS, OwnSeen, Resource
from fairlease.kube.commands.ledger_queries import PROGRAM
from fairlease.kube.commands.objects import OVER, Answer, spec_of, status_of
from fairlease.model.objects import BudgetObject, RunObject
from fairlease.model.record import Key, short, split
from fairlease.model.writing import write
from fairlease.reason import Reason
from fairlease.runtime import edits
from fairlease.runtime import requests as rq
from fairlease.runtime.requests import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
        self.verbs: dict[str, tuple[type[rq.Args], Callable[[Any], Awaitable[Answer]]]] = {
            verb: (args, partial(self._edit_run, edit)) for verb, (args, edit) in edits.RUN_EDITS.items()
        }
        self.verbs["budgets.stop-lending"] = (rq.StopLending, self.stop_lending)

    async def _edit_run(self, edit: Callable[[edits.Asked, Any], edits.Edit], args: Any) -> Answer:  # noqa: ANN401 - each verb's own
        """Change what a run asks for; the API server refuses a width that is not on its step grid."""
        name = name_key(args.run)
        made: list[edits.Edit] = []

        def change(seen: OwnSeen) -> Answer:
            if status_of(seen)["phase"] in OVER:
                raise edits.has_ended(name)
            made[:] = [edit(_asked(name, seen), args)]
            command = made[0].command
            if isinstance(command, cmd.Resize):
                return {"spec": {"malleable": {"desiredTotalGPUs": command.desired}}}
            funding = command.funding
            return {"spec": {"funding": {**write(funding), "sponsors": list(funding.sponsors)}}}

        seen = await self._edited(RUNS, name, change, no_run(name).message)
        return made[0].answer(_asked(name, seen))

    async def stop_lending(self, args: rq.StopLending) -> Answer:
        """Lend nothing more; loans that run stay, or are called back."""
        name = name_key(args.budget)
        lending: dict[str, Answer] = {}

        def change(seen: OwnSeen) -> Answer:
            before = spec_of(seen, BudgetObject).spec
            after = edits.stop_lending(name, before, args).spec
            lending.clear()
            lending.update({each.name: write(each.lending) for each in edits.changed_envelopes(before, after)})
            envelopes = seen.spec["envelopes"]
            changed = [
                {**each, "lending": lending[each["name"]]} if each["name"] in lending else each for each in envelopes
            ]
            return {"spec": {"envelopes": changed}}

        await self._edited(BUDGETS, name, change, f"there is no Budget {short(name)}")
        scheduler = await self._present()
        now = max(int(time.time() * 1000), scheduler.state.at)
        return edits.stopped_view(scheduler.state, name, list(lending), args, now)

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


def _asked(name: Key, seen: OwnSeen) -> edits.Asked:
    allocated = (seen.status.get("width") or {}).get("allocated")
    return edits.Asked(name, spec_of(seen, RunObject).spec, int(allocated or 0), PROGRAM)
