"""Changes to what runs: an elastic run's width, a swap that is rehearsed, and what administrators say of nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.local.processes.environment import pod_id
from fairlease.local.processes.pods import Exited, Lost, Running
from fairlease.local.socket import requests as rq
from fairlease.model.lease import Lease, Role
from fairlease.model.record import Key, short
from fairlease.reason import Reason
from fairlease.runtime.queries.width import ANOTHER, WidthChange, WidthRefusal, WidthRequest, wanted

if TYPE_CHECKING:
    from fairlease.engine.refusal import Refusal
    from fairlease.local.daemon.daemon import Daemon
    from fairlease.local.socket.access import Caller
    from fairlease.runtime.queries.history import SubmittedRun as Found

Result = dict[str, Any]
Verb = tuple[type[rq.Args], Callable[["Caller", Any], Awaitable[Result]]]

DRILL_S = 60.0
"""How long a drill waits for the process on the spare: longer than any usual grace of whoever lies there."""
LOOK_S = 0.005

WISHES: dict[str, dict[str, bool]] = {
    "fail": {"fenced": True},
    "return": {"fenced": False},
    "cordon": {"cordoned": True},
    "uncordon": {"cordoned": False},
}
"""What administrators can say of a node, and what is then true of it. To fail it is to fence it: nothing runs there any more."""


class ResizeArgs(rq.Args, frozen=True):
    """A width to have, or a number of GPUs to give back. `narrower`: it must not become wider."""

    run: str
    to: int | None = None
    by: int | None = None
    narrower: bool = False


class DrillArgs(rq.Args, frozen=True):
    """Whose swap to rehearse; no rank: any."""

    run: str
    rank: int | None = None


class NodesArgs(rq.Args, frozen=True):
    """Nodes, and what is said of them."""

    nodes: list[str]
    wish: str


class Changes:
    """The verbs that change what runs."""

    def __init__(self, daemon: Daemon, found: Callable[[Key], Found]) -> None:
        self._daemon = daemon
        self._state = daemon.scheduler.state
        self._found = found
        self.verbs: dict[str, Verb] = {
            "resize": (ResizeArgs, self.resize),
            "drill": (DrillArgs, self.drill),
            "nodes.set": (NodesArgs, self.set_nodes),
        }

    def _may_change(self, caller: Caller, name: str) -> Key:
        """The run, where the caller may do with it what its owner may."""
        asked = self._found(rq.name_key(name))
        rq.check(self._daemon.access.may_cancel(caller, asked.run, asked.spec.owner, asked.by))
        return asked.run

    # --- width ---------------------------------------------------------------------------------------------------------

    async def resize(self, caller: Caller, args: ResizeArgs) -> Result:
        """Set the width that an elastic run would like to have; what is too much goes at once."""
        asked = WidthRequest(args.to, args.by, args.narrower)
        name = self._may_change(caller, args.run)
        before: list[WidthChange] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            run = self._state.runs.get(name)
            if run is None:
                raise rq.refused(Reason.Terminal, f"{short(name)} has ended already")
            before[:] = [WidthChange.of(run.spec, run.width)]
            found = wanted(name, run.spec, before[0], asked, "fairlease")
            if isinstance(found, WidthRefusal):
                raise rq.refused(found.reason, found.message, remedy=found.remedy)
            return [cmd.Resize(run=name, desired=found)]

        for refusal in await self._daemon.do(build):
            _check_width(refusal)
        run = self._state.runs.get(name)
        after = before[0] if run is None else WidthChange.of(run.spec, run.width)
        return {"name": short(name), "before": before[0].view(), "width": after.view()}

    # --- drill ---------------------------------------------------------------------------------------------------------

    async def drill(self, caller: Caller, args: DrillArgs) -> Result:
        """Rehearse a swap, and tell how long it took until it was decided and until the rank's process ran on the spare."""
        name = self._may_change(caller, args.run)
        old: dict[int, Lease] = {}
        begun = time.perf_counter()

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            run = self._state.runs.get(name)
            old.update({} if run is None else {lease.rank: lease for lease in run.leases.values() if lease.rank >= 0})
            return [cmd.Drill(run=name, rank=args.rank)]

        for refusal in await self._daemon.do(build):
            rq.check(refusal)
        decided_ms = _ms_since(begun)
        run = self._state.runs[name]
        fresh = {lease.serial: lease for lease in run.leases.values() if lease.reason is Reason.Swap}
        newest = max(serial for serial, lease in fresh.items() if lease.role is Role.ACTIVE)
        new = fresh[newest]
        lost = old[new.rank]
        kept = [lease.node for serial, lease in fresh.items() if serial > newest and lease.role is Role.SPARE]
        result: Result = {
            "name": short(name),
            "attempt": new.attempt,
            "rank": new.rank,
            "from": {"node": lost.node, "slots": list(lost.slots)},
            "to": {"node": new.node, "slots": list(new.slots)},
            "spare": kept[0] if kept else None,
            "decidedMs": decided_ms,
        }
        return result | await self._run_again(lost, new, begun)

    async def _run_again(self, lost: Lease, new: Lease, begun: float) -> Result:
        """When the old process was gone and the new one ran; None for what has not come about."""
        told: Result = {"goneMs": None, "runningMs": None}
        while told["runningMs"] is None and time.perf_counter() - begun < DRILL_S:
            await asyncio.sleep(LOOK_S)
            if told["goneMs"] is None and self._daemon.pods.spec_of(pod_id(lost)) is None:
                told["goneMs"] = _ms_since(begun)
            seen = self._daemon.pods.observe(pod_id(new))
            if isinstance(seen, Running | Exited):
                told["runningMs"] = _ms_since(begun)
            run = self._state.runs.get(new.run)
            if isinstance(seen, Lost) or run is None or new.name not in run.leases:
                break
        return told

    # --- nodes ---------------------------------------------------------------------------------------------------------

    async def set_nodes(self, caller: Caller, args: NodesArgs) -> Result:
        """Do with nodes as an administrator says; several at once are one decision."""
        if args.wish not in WISHES:
            message = f"wish: {args.wish[:40]!r} is none of {', '.join(WISHES)}"
            raise rq.refused(Reason.InvalidRequest, message, remedy="name one of them")
        rq.check(self._daemon.access.may_govern(caller, f"{args.wish} nodes"))
        names = list(dict.fromkeys(args.nodes))
        changed: list[Result] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            known = self._state.capacity.nodes
            unknown = [name for name in names if name not in known]
            if unknown or not names:
                told = f"there is no node {unknown[0]}" if unknown else "no node was named"
                raise rq.refused(Reason.NotFound, told, remedy=f"there are {', '.join(sorted(known)[:20])}")
            nodes = {name: replace(known[name].node, **WISHES[args.wish]) for name in names}
            changed[:] = [{"name": name, "changed": nodes[name] != known[name].node} for name in names]
            return [cmd.SetNode(node=node) for node in nodes.values()]

        for refusal in await self._daemon.do(build):
            rq.check(refusal)
        return {"wish": args.wish, "nodes": changed}


def _ms_since(begun: float) -> float:
    return round((time.perf_counter() - begun) * 1000, 1)


def _check_width(refusal: Refusal | None) -> None:
    if refusal is not None and refusal.reason is Reason.InvalidRequest:
        raise rq.refused(refusal.reason, refusal.message, remedy=ANOTHER)
    rq.check(refusal)
