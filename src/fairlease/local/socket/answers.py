"""Answers of a daemon: who may ask what, and how it is done.

What only reads (`runtime.queries`) is answered at once, and beside the loop where it goes through the whole past; what changes
something goes through the next tick.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.engine.place.plan import never_fits
from fairlease.ledger.audit.audit import CHAIN
from fairlease.ledger.audit.audit_file import READABLE
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_file import Damaged
from fairlease.local.processes.environment import log_id, pod_id
from fairlease.local.processes.pods import Exited, Lost, Running
from fairlease.local.socket.audit_child import audit_report
from fairlease.local.socket.objects import generated, read_budgets, read_runs
from fairlease.local.socket.protocol import Error, Fault, Request, fault
from fairlease.local.socket.server import ServerRefusal
from fairlease.model.amount import format_instant
from fairlease.model.lease import Role
from fairlease.model.record import Key, short, split
from fairlease.model.run import Phase
from fairlease.model.writing import write
from fairlease.reason import Reason
from fairlease.report.reservation_history import forecast_view
from fairlease.runtime import edits
from fairlease.runtime import requests as rq
from fairlease.runtime.queries import runs
from fairlease.runtime.queries.facts import Facts
from fairlease.runtime.queries.verbs import QUERIES, cover
from fairlease.runtime.requests import Refused, bounded, check, concerns, name_key

if TYPE_CHECKING:
    from pathlib import Path

    from fairlease.engine.refusal import Refusal
    from fairlease.local.processes.pods import Pods
    from fairlease.local.processes.processes import Processes
    from fairlease.local.socket.access import Access, Caller
    from fairlease.model.lease import Lease
    from fairlease.model.objects import RunObject
    from fairlease.runtime.beacon import Beacon
    from fairlease.runtime.queries.history import RunHistory, SubmittedRun
    from fairlease.scheduler import Scheduler

Result = dict[str, Any]
Verb = tuple[type[rq.Args], Callable[["Caller", Any], Awaitable[Result]]]
Build = Callable[[set[Key]], list[cmd.AnyCommand]]
"""Makes the commands of a request, when its turn comes, from the names that the tick has given away so far."""

SECRET = ("command", "env", "workdir", "template")
YIELD_EVERY = 50
WAIT_MS_MAX = 60_000
EXPORT_BYTES_MAX = 64 * 1024 * 1024
LOG_PART = 1 << 20
DRILL_S = 60.0
"""How long a drill waits for the process on the spare: longer than any usual grace of whoever lies there."""
LOOK_S = 0.005
DAMAGE = (READABLE, CHAIN)
"""The checks of an audit that fail where the file's bytes are not as they were written."""
_PHASES = frozenset(phase.value for phase in Phase)

WISHES: dict[str, dict[str, bool]] = {
    "fail": {"fenced": True},
    "return": {"fenced": False},
    "cordon": {"cordoned": True},
    "uncordon": {"cordoned": False},
}
"""What administrators can say of a node, and what is then true of it. To fail it is to fence it: nothing runs there any more."""


class Notices(rq.Args, frozen=True):
    """The latest notices, of one run or of all."""

    run: str | None = None
    limit: int = rq.LIMIT


class Logs(rq.Args, frozen=True):
    """Which ranks' output."""

    run: str
    attempt: int | None = None
    rank: int | None = None


class ReadLog(rq.Args, frozen=True):
    """A part of one rank's output."""

    run: str
    attempt: int
    rank: int
    offset: int = 0


class NodesArgs(rq.Args, frozen=True):
    """Nodes, and what is said of them."""

    nodes: list[str]
    wish: str


class Stop(rq.Args, frozen=True):
    """Whether work ends too."""

    end: bool = False


@dataclass(frozen=True, kw_only=True)
class Services:
    """What the verbs need of a daemon."""

    ledger: Path
    scheduler: Scheduler
    history: RunHistory
    access: Access
    pods: Pods
    processes: Processes
    beacon: Beacon
    now: Callable[[], int]
    do: Callable[[Build], Awaitable[list[Refusal | None]]]
    """Have commands decided in the next tick; gives the answer to each once it is in the ledger."""
    changed: Callable[[int, float], Awaitable[None]]
    """Wait until the ledger is longer than so many entries, or so many seconds are over."""
    health: Callable[[], Result]
    damaged: Callable[[str], Error]
    """Write nothing more: the ledger's file is not as it was written."""
    notices: Callable[[int, Key | None], list[Result]]
    closing: Callable[[], bool]
    ended: Callable[[bool], Awaitable[None]]
    """Wait until all work has been ended, where that is under way or to be begun."""
    stop: Callable[[], None]


class Answers:
    """The verbs of one daemon."""

    def __init__(self, services: Services) -> None:
        self._with = services
        self._scheduler, self._access, self._past = services.scheduler, services.access, services.history
        self._children = asyncio.Lock()
        self._edits = asyncio.Lock()  # one change of what is there at a time, so that none is lost between two others
        self._numbers: dict[Key, int] = {}  # where to go on counting; forgetting it only costs counting again
        self._verbs: dict[str, Verb] = {
            "status": (rq.Args, self.status),
            "submit": (rq.SubmitArgs, self.submit),
            "plan": (rq.OneObject, self.plan),
            "cover": (rq.RunOrObject, self.cover),
            "list": (rq.ListArgs, self.list_runs),
            "show": (rq.OneRun, self.show),
            "cancel": (rq.Runs, self.cancel),
            "drill": (rq.DrillArgs, self.drill),
            "budgets.apply": (rq.Objects, self.apply_budgets),
            "budgets.remove": (rq.OneBudget, self.remove_budget),
            "budgets.stop-lending": (rq.StopLending, self.stop_lending),
            "nodes.set": (NodesArgs, self.set_nodes),
            "resolve": (rq.ResolveArgs, self.resolve),
            "notices": (Notices, self.notices),
            "logs": (Logs, self.logs),
            "logs.read": (ReadLog, self.read_log),
            "wait": (rq.Wait, self.wait),
            "audit": (rq.Args, self.audit),
            "stop": (Stop, self.stop),
        }

    async def answer(self, caller: Caller, request: Request) -> Result:
        """The result of a request; raises `Refused` and `ServerRefusal`."""
        try:
            return await self._answer(caller, request)
        except Damaged as error:
            raise ServerRefusal(self._with.damaged(str(error))) from error

    async def _answer(self, caller: Caller, request: Request) -> Result:
        verb = request.verb
        if verb in self._verbs:
            kind, work = self._verbs[verb]
            return await work(caller, rq.read_args(kind, request.args))
        if verb in edits.RUN_EDITS:
            return await self._edit_run(caller, verb, request.args)
        if verb not in QUERIES:
            raise ServerRefusal(fault(Fault.UnknownVerb, f"there is no verb {verb[:40]!r}"))
        query = QUERIES[verb]
        found = query.answer(self._facts, rq.read_args(query.args, request.args))
        if isinstance(found, dict):
            return found
        async with self._children:
            return await asyncio.to_thread(self._beside, found)

    @property
    def _facts(self) -> Facts:
        return Facts(self._scheduler, self._past, self._with.now(), bytes_max=EXPORT_BYTES_MAX)

    def _beside(self, later: Callable[[SqliteStore], Result]) -> Result:
        """What goes through the whole past reads the file by itself, while the loop goes on."""
        with SqliteStore(self._with.ledger, readonly=True) as store:
            return later(store)

    # --- asking and ending ---------------------------------------------------------------------------------------------

    async def submit(self, caller: Caller, args: rq.SubmitArgs) -> Result:
        """Take in runs, all or none of them."""
        if self._with.closing():
            raise ServerRefusal(fault(Fault.Stopping, "the daemon stops and takes no more work"))
        objects = await self._read(args)
        for each in objects:
            check(self._access.may_spend(caller, each.spec.owner))
            why = "" if args.wait_for_nodes else never_fits(self._scheduler.state.capacity, each.spec)
            if why:
                remedy = "ask for less, or wait for more with --wait-for-nodes"
                raise Refused(Reason.NeverFits, f"{short(each.key)}: {why}", remedy)
        names: list[Key] = []

        def build(taken: set[Key]) -> list[cmd.AnyCommand]:
            state, now, fresh = self._scheduler.state, self._with.now(), set[Key]()

            def exists(name: Key) -> bool:
                return state.name_taken(name, now) or name in taken or name in fresh

            names.clear()
            for each in objects:
                name = each.key
                if args.generate_name:
                    name, self._numbers[each.key] = generated(name, exists, self._numbers.get(each.key, 1))
                if exists(name):
                    message = f"a run {short(name)} exists already; {Reason.AlreadyExists.remedy}"
                    raise Refused(Reason.AlreadyExists, message)
                fresh.add(name)
                names.append(name)
            taken |= fresh
            return [
                cmd.Submit(run=name, spec=each.spec, by=caller.name) for name, each in zip(names, objects, strict=True)
            ]

        await self._done(build)
        rows: list[Result] = []
        for index, name in enumerate(names, 1):
            rows.append({"name": short(name), "status": self._past.status(self._facts.run(name), self._with.now())})
            if index % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return {"runs": rows}

    async def _read(self, args: rq.Objects) -> list[RunObject]:
        """Many objects are read beside the loop: others must not wait for them."""
        if len(args.objects) <= YIELD_EVERY:
            return read_runs(args.objects, generate_name=args.generate_name)
        return await asyncio.to_thread(read_runs, args.objects, generate_name=args.generate_name)

    async def _done(self, build: Build, remedy: Callable[[], str | None] = lambda: None) -> None:
        """Have commands decided; raises the first refusal."""
        for refusal in await self._with.do(build):
            check(refusal, remedy() if refusal is not None and refusal.reason is Reason.InvalidRequest else None)

    async def cancel(self, caller: Caller, args: rq.Runs) -> Result:
        """End runs. Names that are wrong or another's refuse all; those that have ended already do not matter, unless all have."""
        runs = list(dict.fromkeys(name_key(name) for name in args.runs))
        for index, run in enumerate(runs, 1):
            self._changeable(caller, run)
            if index % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        canceled: list[Key] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            canceled[:] = [run for run in runs if run in self._scheduler.state.runs]
            if not canceled:
                now, facts = self._with.now(), self._facts
                over = [(run, self._past.status(facts.run(run), now)) for run in runs[: edits.ENDED_TOLD]]
                raise edits.all_ended(over, len(runs))
            return [cmd.Cancel(run=run) for run in canceled]

        answers = await self._with.do(build)
        return {"canceled": [short(run) for run, refusal in zip(canceled, answers, strict=True) if refusal is None]}

    def _changeable(self, caller: Caller, name: str) -> SubmittedRun:
        """A run with which the caller may do what its owner may."""
        asked = self._facts.run(name)
        check(self._access.may_cancel(caller, asked.run, asked.spec.owner, asked.by))
        return asked

    async def stop(self, caller: Caller, args: Stop) -> Result:
        """Stop the daemon; `end`: and all work first."""
        check(self._access.may_govern(caller, "stop the daemon"))
        await self._with.ended(args.end)
        asyncio.get_running_loop().call_soon(self._with.stop)
        return {"stopping": True, "pid": os.getpid(), "left": not self._with.processes.idle}

    # --- changing what is there ----------------------------------------------------------------------------------------

    async def _edit_run(self, caller: Caller, verb: str, raw: dict[str, Any]) -> Result:
        """Change what a run asks for: its width, or whom it may borrow from."""
        kind, edit = edits.RUN_EDITS[verb]
        args: Any = rq.read_args(kind, raw)
        if verb == "resize":
            name = self._changeable(caller, args.run).run
        else:
            asked = self._facts.run(args.run)
            check(self._access.may_spend(caller, asked.spec.owner))
            name = asked.run
        made: list[tuple[edits.Asked, edits.Edit]] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            before = self._asked(name)
            if before is None:
                raise edits.has_ended(name)
            made[:] = [(before, edit(before, args))]
            return [made[0][1].command]

        async with self._edits:
            await self._done(build, lambda: made[0][1].remedy)
        ((before, change),) = made
        return change.answer(self._asked(name) or before)

    def _asked(self, name: Key) -> edits.Asked | None:
        run = self._scheduler.state.runs.get(name)
        return None if run is None else edits.Asked(name, run.spec, run.width, "fairlease")

    async def apply_budgets(self, caller: Caller, args: rq.Objects) -> Result:
        """Write Budgets, all or none of them."""
        check(self._access.may_govern(caller, "write Budgets"))
        objects = read_budgets(args.objects)
        changes: list[Result] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            changes.clear()
            for each in objects:
                before = self._scheduler.state.budgets.get(each.key)
                change = "created" if before is None else "unchanged" if before == each.spec else "updated"
                changes.append({"name": short(each.key), "change": change})
            return [cmd.SetBudget(budget=each.key, spec=each.spec) for each in objects]

        async with self._edits:
            await self._done(build)
        return {"budgets": changes}

    async def remove_budget(self, caller: Caller, args: rq.OneBudget) -> Result:
        """Delete a Budget."""
        check(self._access.may_govern(caller, "remove Budgets"))
        budget = name_key(args.budget)
        await self._done(lambda _: [cmd.RemoveBudget(budget=budget)])
        return {"removed": short(budget)}

    async def stop_lending(self, caller: Caller, args: rq.StopLending) -> Result:
        """Lend nothing more; loans that run stay, or are called back."""
        check(self._access.may_govern(caller, "write Budgets"))
        changed: list[str] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            budget = self._facts.budget(args.budget)
            before = self._scheduler.state.budgets[budget]
            command = edits.stop_lending(budget, before, args)
            changed[:] = [each.name for each in edits.changed_envelopes(before, command.spec)]
            return [command]

        async with self._edits:
            await self._done(build)
        facts = self._facts
        return edits.stopped_view(self._scheduler.state, facts.budget(args.budget), changed, args, facts.now)

    async def set_nodes(self, caller: Caller, args: NodesArgs) -> Result:
        """Do with nodes as an administrator says; several at once are one decision."""
        if args.wish not in WISHES:
            message = f"wish: {args.wish[:40]!r} is none of {', '.join(WISHES)}"
            raise Refused(Reason.InvalidRequest, message, "name one of them")
        check(self._access.may_govern(caller, f"{args.wish} nodes"))
        names = list(dict.fromkeys(args.nodes))
        changed: list[Result] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            known = self._scheduler.state.capacity.nodes
            unknown = [name for name in names if name not in known]
            if unknown or not names:
                told = f"there is no node {unknown[0]}" if unknown else "no node was named"
                raise Refused(Reason.NotFound, told, f"there are {', '.join(sorted(known)[:20])}")
            nodes = {name: replace(known[name].node, **WISHES[args.wish]) for name in names}
            changed[:] = [{"name": name, "changed": nodes[name] != known[name].node} for name in names]
            return [cmd.SetNode(node=node) for node in nodes.values()]

        await self._done(build)
        return {"wish": args.wish, "nodes": changed}

    async def resolve(self, caller: Caller, args: rq.ResolveArgs) -> Result:
        """Free GPUs by hand; a dry run is the same decision, undone."""
        check(self._access.may_govern(caller, "resolve a scope by hand"))
        command = edits.resolve(args, caller.name)
        if args.dry_run:
            return edits.tried(self._scheduler, self._with.now(), command)
        if (heard := self._with.beacon.hear()) is not None:
            await heard
        before = self._scheduler.head.seq

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            nonlocal before
            before = self._scheduler.head.seq
            return [command]

        await self._done(build)
        events = [event for entry in self._scheduler.store.entries(before) for event in entry.events]
        return edits.consequences(events, command)

    # --- drill ---------------------------------------------------------------------------------------------------------

    async def drill(self, caller: Caller, args: rq.DrillArgs) -> Result:
        """Rehearse a swap, and tell how long it took until it was decided and until the rank's process ran on the spare."""
        name, state = self._changeable(caller, args.run).run, self._scheduler.state
        old: dict[int, Lease] = {}
        begun = time.perf_counter()

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            run = state.runs.get(name)
            old.update({} if run is None else {lease.rank: lease for lease in run.leases.values() if lease.rank >= 0})
            return [cmd.Drill(run=name, rank=args.rank)]

        await self._done(build)
        decided_ms = edits.ms_since(begun)
        fresh = {lease.serial: lease for lease in state.runs[name].leases.values() if lease.reason is Reason.Swap}
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
        pods = self._with.pods
        while told["runningMs"] is None and time.perf_counter() - begun < DRILL_S:
            await asyncio.sleep(LOOK_S)
            if told["goneMs"] is None and pods.spec_of(pod_id(lost)) is None:
                told["goneMs"] = edits.ms_since(begun)
            seen = pods.observe(pod_id(new))
            if isinstance(seen, Running | Exited):
                told["runningMs"] = edits.ms_since(begun)
            run = self._scheduler.state.runs.get(new.run)
            if isinstance(seen, Lost) or run is None or new.name not in run.leases:
                break
        return told

    # --- looking at runs -----------------------------------------------------------------------------------------------

    async def list_runs(self, _: Caller, args: rq.ListArgs) -> Result:
        """Runs, the living ones in order of asking, then those that ended, the latest first."""
        if args.phase is not None and args.phase not in _PHASES:
            message = f"phase: {args.phase!r} is none of {', '.join(sorted(_PHASES))}"
            raise Refused(Reason.InvalidRequest, message, "name a phase, or none")
        limit, now = bounded(args.limit), self._with.now()
        over = args.all or args.phase in (Phase.COMPLETED.value, Phase.FAILED.value)
        names = [run.key for run in sorted(self._scheduler.state.runs.values(), key=lambda run: run.order)]
        names += await self._past.ended(limit) if over else []
        rows: list[Result] = []
        for index, name in enumerate(names):
            if len(rows) >= limit:
                break
            asked = self._past.find(name)
            here = args.namespace in (None, split(name)[0])
            if asked is not None and here and concerns(args.owner, asked.spec.owner):
                row = self._past.row(asked, now)
                if args.phase is None or row["status"]["phase"] == args.phase:
                    rows.append(row)
            if index % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
        return {"runs": rows}

    async def show(self, caller: Caller, args: rq.OneRun) -> Result:
        """One run, with what the caller may see of its spec."""
        asked = self._facts.run(args.run)
        spec = write(asked.spec)
        if not self._access.may_read_all(caller, asked.spec.owner, asked.by):
            spec = {name: value for name, value in spec.items() if name not in SECRET}
        result: Result = {
            "name": short(asked.run),
            "namespace": split(asked.run)[0],
            "by": asked.by,
            "spec": spec,
            "status": self._past.status(asked, self._with.now()),
        }
        live = self._scheduler.state.runs.get(asked.run)
        if live is not None and live.foreseen is not None:
            result["forecast"] = forecast_view(*live.foreseen)
        if asked.ending is not None:
            ended = asked.ending.ended
            past = self._scheduler.store.leases(LeaseQuery(run=asked.run, limit=rq.LIMIT_MAX))
            result["status"]["leases"] = [row.lease.name for row in past]
            result["outcome"] = {
                "phase": ended.phase.value,
                "reason": ended.reason.value,
                "message": ended.message,
                "at": format_instant(asked.ending.at),
                "remedy": ended.reason.remedy,
            }
        return result

    async def plan(self, caller: Caller, args: rq.OneObject) -> Result:
        """What would come of submitting a run; nothing is written."""
        (item,) = read_runs([args.object])
        check(self._access.may_spend(caller, item.spec.owner))
        return runs.plan(self._facts, item, caller.name)

    async def cover(self, _: Caller, args: rq.RunOrObject) -> Result:
        """Who would pay for a run, or for one that might be."""
        if (args.run is None) == (args.object is None):
            raise Refused(Reason.InvalidRequest, "name a run or send an object", "do one of the two")
        if args.run is not None:
            return cover(self._facts, rq.OneRun(args.run))
        (item,) = read_runs([args.object])
        return {"cover": runs.cover_of(self._facts, item.key, item.spec)}

    # --- output --------------------------------------------------------------------------------------------------------

    async def logs(self, caller: Caller, args: Logs) -> Result:
        """Where the output of a run's ranks lies."""
        asked = self._readable(caller, args.run)
        files = [
            {"rank": rank, "attempt": attempt, "path": path}
            for (attempt, rank), path in self._files(asked).items()
            if args.attempt in (None, attempt) and args.rank in (None, rank)
        ]
        return {"files": files, "ended": self._over(asked.run)}

    async def read_log(self, caller: Caller, args: ReadLog) -> Result:
        """A part of one rank's output, for who may read it but not its file (a colleague's run)."""
        asked = self._readable(caller, args.run)
        over = self._over(asked.run)
        path = self._files(asked).get((args.attempt, args.rank))
        if path is None:
            raise Refused(Reason.NotFound, f"{args.run} has no rank {args.rank} in attempt {args.attempt}")
        part = await asyncio.to_thread(_read_part, path, max(0, args.offset))
        return {"text": part.decode(errors="replace"), "next": max(0, args.offset) + len(part), "ended": over}

    def _readable(self, caller: Caller, name: str) -> SubmittedRun:
        asked = self._facts.run(name)
        if not self._access.may_read_all(caller, asked.spec.owner, asked.by):
            message = f"{short(asked.run)} belongs to {asked.spec.owner}, to which {caller.name} is not bound"
            raise Refused(Reason.Forbidden, message)
        return asked

    def _files(self, asked: SubmittedRun) -> dict[tuple[int, int], str]:
        """By attempt and rank."""
        leases = (row.lease for row in self._scheduler.store.leases(LeaseQuery(run=asked.run)))
        return {
            (lease.attempt, lease.rank): str(self._with.pods.log_of(log_id(lease)))
            for lease in leases
            if lease.start >= asked.submitted_at and lease.role is not Role.SPARE
        }

    def _over(self, run: Key) -> bool:
        return run not in self._scheduler.state.runs and not self._with.processes.busy_with(run)

    # --- the rest ------------------------------------------------------------------------------------------------------

    async def status(self, caller: Caller, _: rq.Args) -> Result:
        """How the daemon is."""
        you = {"user": caller.name, "admin": caller.admin, "owners": list(caller.owners)}
        return {**self._with.health(), "you": you}

    async def notices(self, _: Caller, args: Notices) -> Result:
        """What was told last, the latest first, and what became of each delivery."""
        run = None if args.run is None else self._facts.run(args.run).run
        return {"notices": self._with.notices(bounded(args.limit), run)}

    async def wait(self, _: Caller, args: rq.Wait) -> Result:
        """The ledger's head, once it is past `seq` or the time is over."""
        await self._with.changed(args.seq, min(max(args.timeout_ms, 0), WAIT_MS_MAX) / 1000)
        head = self._scheduler.head
        return {"head": {"seq": head.seq, "hash": head.hash}}

    async def audit(self, _: Caller, __: rq.Args) -> Result:
        """Prove the whole ledger, in another process; one audit at a time. Damage that it finds is damage for everybody."""
        async with self._children:
            report = await audit_report(self._with.ledger)
        found = next((each["message"] for each in report["findings"] if each["claim"] in DAMAGE), None)
        if found is not None:
            ledger = str(self._with.ledger)
            self._with.damaged(found if ledger in found else f"{ledger} is damaged: {found}")
        return report


def _read_part(path: str, offset: int) -> bytes:
    """The next part of a log; nothing where there is none yet."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain read at an offset
            file.seek(offset)
            return file.read(LOG_PART)
    except FileNotFoundError:
        return b""
