"""Answers: what each verb does for whom, and what it shows. Reading looks at the state; writing goes through the next tick."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlease import __version__
from fairlease.engine import command as cmd
from fairlease.engine.place.plan import never_fits
from fairlease.ledger.audit.audit import CHAIN
from fairlease.ledger.audit.audit_file import READABLE
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.ledger.store.sqlite_file import Damaged
from fairlease.local.daemon.children import audit_report, export_answer, forecast_answer, read_part
from fairlease.local.daemon.notifier import notice_view
from fairlease.local.processes.environment import log_id
from fairlease.local.socket import requests as rq
from fairlease.local.socket.changes import Changes
from fairlease.local.socket.contention import Contention
from fairlease.local.socket.loans import LoanVerbs
from fairlease.local.socket.protocol import Fault, Request, fault
from fairlease.local.socket.server import ServerRefusal
from fairlease.model.amount import format_instant
from fairlease.model.lease import Role
from fairlease.model.objects import RunObject
from fairlease.model.owner import at_or_below
from fairlease.model.record import Key, short, split
from fairlease.model.run import Phase
from fairlease.model.writing import write
from fairlease.reason import Reason
from fairlease.report import views
from fairlease.report.invoices import invoice, invoice_of_file
from fairlease.report.reservation_history import forecast_view
from fairlease.runtime.metrics import pending_by_cause
from fairlease.runtime.queries.forecasts import ForecastQueries
from fairlease.runtime.queries.history import ENDED_TOLD, ended_words
from fairlease.runtime.queries.runs import RunQueries

if TYPE_CHECKING:
    from fairlease.ledger.state.state import State
    from fairlease.local.daemon.daemon import Daemon
    from fairlease.local.socket.access import Caller
    from fairlease.runtime.queries.history import SubmittedRun

Result = dict[str, Any]
SECRET = ("command", "env", "workdir", "template")
YIELD_EVERY = 50
DAMAGE = (READABLE, CHAIN)
"""The checks of an audit that fail where the file's bytes are not as they were written."""
_PHASES = frozenset(phase.value for phase in Phase)


class Answers:
    """The verbs of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._scheduler = daemon.scheduler
        self._access = daemon.access
        self._past = daemon.past
        self._inquiry = RunQueries(daemon.scheduler)
        self._foresight = ForecastQueries(daemon.scheduler)
        self._children = asyncio.Lock()
        contention = Contention(daemon)
        self._edits = asyncio.Lock()
        self._numbers: dict[Key, int] = {}  # where to go on counting; forgetting it only costs counting again
        self._verbs: dict[str, tuple[type[rq.Args], Callable[[Caller, Any], Awaitable[Result]]]] = {
            "status": (rq.Args, self.status),
            "submit": (rq.Submission, self.submit),
            "plan": (rq.OneObject, self.plan),
            "list": (rq.ListArgs, self.list_runs),
            "show": (rq.OneRun, self.show),
            "explain": (rq.OneRun, self.explain),
            "eta": (rq.Eta, self.eta),
            "forecast.report": (rq.ReportArgs, self.forecast_report),
            "cover": (rq.RunOrObject, self.cover),
            "cancel": (rq.Runs, self.cancel),
            "budgets.apply": (rq.Objects, self.apply_budgets),
            "budgets.list": (rq.Args, self.list_budgets),
            "budgets.remove": (rq.OneBudget, self.remove_budget),
            "leases": (rq.Leases, self.leases),
            "notices": (rq.Notices, self.notices),
            "who-pays": (rq.WhoPays, self.who_pays),
            "nodes": (rq.Args, self.nodes),
            "reservations": (rq.ReservationsArgs, contention.reservations),
            "outcomes": (rq.Outcomes, contention.outcomes),
            "resolve": (rq.ResolveArgs, contention.resolve),
            "logs": (rq.Logs, self.logs),
            "logs.read": (rq.ReadLog, self.read_log),
            "wait": (rq.Wait, self.wait),
            "audit": (rq.Args, self.audit),
            "export": (rq.Export, self.export),
            "stop": (rq.Stop, self.stop),
            **LoanVerbs(daemon, lambda run: self._found(run).spec, self._edits).verbs,
        }
        self._verbs |= Changes(daemon, self._found).verbs

    async def answer(self, caller: Caller, request: Request) -> Result:
        """The result of a request; raises `Refused`."""
        found = self._verbs.get(request.verb)
        if found is None:
            raise ServerRefusal(fault(Fault.UnknownVerb, f"there is no verb {request.verb[:40]!r}"))
        kind, verb = found
        try:
            return await verb(caller, rq.read_args(kind, request.args))
        except Damaged as error:
            raise ServerRefusal(self._daemon.damaged(str(error))) from error

    # --- asking and ending ---------------------------------------------------------------------------------------------

    async def submit(self, caller: Caller, args: rq.Submission) -> Result:
        """Take in runs, all or none of them."""
        self._open_for_work()
        objects = await self._read(args)
        for each in objects:
            rq.check(self._access.may_spend(caller, each.spec.owner))
            why = "" if args.wait_for_nodes else never_fits(self._scheduler.state.capacity, each.spec)
            if why:
                message = f"{short(each.key)}: {why}"
                raise rq.refused(
                    Reason.NeverFits, message, remedy="ask for less, or wait for more with --wait-for-nodes"
                )
        names: list[Key] = []

        def build(taken: set[Key]) -> list[cmd.AnyCommand]:
            state, now, fresh = self._scheduler.state, self._daemon.now(), set[Key]()

            def exists(name: Key) -> bool:
                return state.name_taken(name, now) or name in taken or name in fresh

            names.clear()
            for each in objects:
                name = each.key
                if args.generate_name:
                    name, self._numbers[each.key] = rq.generated(name, exists, self._numbers.get(each.key, 1))
                if exists(name):
                    message = f"a run {short(name)} exists already; {Reason.AlreadyExists.remedy}"
                    raise rq.refused(Reason.AlreadyExists, message)
                fresh.add(name)
                names.append(name)
            taken |= fresh
            return [
                cmd.Submit(run=name, spec=each.spec, by=caller.name) for name, each in zip(names, objects, strict=True)
            ]

        for refusal in await self._daemon.do(build):
            rq.check(refusal)
        rows: list[Result] = []
        for index, name in enumerate(names, 1):
            rows.append({"name": short(name), "status": self._past.status(self._found(name), self._daemon.now())})
            if index % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return {"runs": rows}

    async def _read(self, args: rq.Objects) -> list[RunObject]:
        """Many objects are read beside the loop: others must not wait for them."""
        if len(args.objects) <= YIELD_EVERY:
            return rq.read_runs(args.objects, generate_name=args.generate_name)
        return await asyncio.to_thread(rq.read_runs, args.objects, generate_name=args.generate_name)

    async def cancel(self, caller: Caller, args: rq.Runs) -> Result:
        """End runs. Names that are wrong or another's refuse all; those that have ended already do not matter, unless all have."""
        runs = list(dict.fromkeys(rq.name_key(name) for name in args.runs))
        for index, run in enumerate(runs, 1):
            asked = self._found(run)
            rq.check(self._access.may_cancel(caller, run, asked.spec.owner, asked.by))
            if index % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        canceled: list[Key] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            canceled[:] = [run for run in runs if run in self._scheduler.state.runs]
            if not canceled:
                now = self._daemon.now()
                over = [(run, self._past.status(self._found(run), now)) for run in runs[:ENDED_TOLD]]
                raise rq.refused(Reason.Terminal, ended_words(over, len(runs)) or "no run was named")
            return [cmd.Cancel(run=run) for run in canceled]

        answers = await self._daemon.do(build)
        return {"canceled": [short(run) for run, refusal in zip(canceled, answers, strict=True) if refusal is None]}

    async def apply_budgets(self, caller: Caller, args: rq.Objects) -> Result:
        """Write Budgets, all or none of them."""
        rq.check(self._access.may_govern(caller, "write Budgets"))
        objects = rq.read_budgets(args.objects)
        changes: list[Result] = []

        def build(_: set[Key]) -> list[cmd.AnyCommand]:
            changes.clear()
            for each in objects:
                before = self._scheduler.state.budgets.get(each.key)
                change = "created" if before is None else "unchanged" if before == each.spec else "updated"
                changes.append({"name": short(each.key), "change": change})
            return [cmd.SetBudget(budget=each.key, spec=each.spec) for each in objects]

        async with self._edits:
            await self._daemon.do(build)
        return {"budgets": changes}

    async def remove_budget(self, caller: Caller, args: rq.OneBudget) -> Result:
        """Delete a Budget."""
        rq.check(self._access.may_govern(caller, "remove Budgets"))
        budget = rq.name_key(args.budget)
        for refusal in await self._daemon.do(lambda _: [cmd.RemoveBudget(budget=budget)]):
            rq.check(refusal)
        return {"removed": short(budget)}

    async def stop(self, caller: Caller, args: rq.Stop) -> Result:
        """Stop the daemon; `end`: and all work first."""
        rq.check(self._access.may_govern(caller, "stop the daemon"))
        await self._daemon.ended(begin=args.end)
        asyncio.get_running_loop().call_soon(self._daemon.stop)
        return {"stopping": True, "pid": os.getpid(), "left": not self._daemon.processes.idle}

    def _open_for_work(self) -> None:
        if self._daemon.closing:
            raise ServerRefusal(fault(Fault.Stopping, "the daemon stops and takes no more work"))

    # --- looking at runs -----------------------------------------------------------------------------------------------

    async def list_runs(self, _: Caller, args: rq.ListArgs) -> Result:
        """Runs, the living ones in order of asking, then those that ended, the latest first."""
        if args.phase is not None and args.phase not in _PHASES:
            message = f"phase: {args.phase!r} is none of {', '.join(sorted(_PHASES))}"
            raise rq.refused(Reason.InvalidRequest, message, remedy="name a phase, or none")
        limit, now = rq.bounded(args.limit), self._daemon.now()
        over = args.all or args.phase in (Phase.COMPLETED.value, Phase.FAILED.value)
        names = [run.key for run in sorted(self._scheduler.state.runs.values(), key=lambda run: run.order)]
        names += await self._past.ended(limit) if over else []
        rows: list[Result] = []
        for index, name in enumerate(names):
            if len(rows) >= limit:
                break
            asked = self._past.find(name)
            if asked is not None and _matches(asked, args):
                row = self._past.row(asked, now)
                if args.phase is None or row["status"]["phase"] == args.phase:
                    rows.append(row)
            if index % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
        return {"runs": rows}

    async def show(self, caller: Caller, args: rq.OneRun) -> Result:
        """One run, with what the caller may see of its spec."""
        asked = self._found(rq.name_key(args.run))
        spec = write(asked.spec)
        if not self._access.may_read_all(caller, asked.spec.owner, asked.by):
            spec = {name: value for name, value in spec.items() if name not in SECRET}
        result: Result = {
            "name": short(asked.run),
            "namespace": split(asked.run)[0],
            "by": asked.by,
            "spec": spec,
            "status": self._past.status(asked, self._daemon.now()),
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

    async def explain(self, _: Caller, args: rq.OneRun) -> Result:
        """Why a run is as it is."""
        asked = self._found(rq.name_key(args.run))
        now = self._daemon.now()
        return self._inquiry.explanation(asked, self._past.status(asked, now), now)

    async def eta(self, _: Caller, args: rq.Eta) -> Result:
        """When a run starts, thought through anew; or all that wait, as it was last written down."""
        now = self._daemon.now()
        if args.run is not None:
            return {"runs": [self._foresight.of(self._found(rq.name_key(args.run)), now)]}
        return {"runs": self._foresight.waiting(partial(_wanted, args.owner), rq.bounded(args.limit))}

    async def forecast_report(self, _: Caller, args: rq.ReportArgs) -> Result:
        """Whether forecasts kept their word, over the ledger's past."""
        since, whose = rq.instant("since", args.since), partial(_wanted, args.owner)
        async with self._children:
            return await asyncio.to_thread(forecast_answer, self._daemon.settings.ledger, whose, since)

    async def plan(self, caller: Caller, args: rq.OneObject) -> Result:
        """What would come of submitting a run; nothing is written."""
        (item,) = rq.read_runs([args.object])
        rq.check(self._access.may_spend(caller, item.spec.owner))
        return self._inquiry.plan(item, caller.name, self._daemon.now())

    async def cover(self, _: Caller, args: rq.RunOrObject) -> Result:
        """Who would pay for a run."""
        if (args.run is None) == (args.object is None):
            raise rq.refused(Reason.InvalidRequest, "name a run or send an object", remedy="do one of the two")
        now = self._daemon.now()
        if args.run is None:
            (item,) = rq.read_runs([args.object])
            return {"cover": self._inquiry.cover_of(item.key, item.spec, now)}
        asked = self._found(rq.name_key(args.run))
        return {"cover": self._inquiry.cover_of(asked.run, asked.spec, now)}

    async def who_pays(self, _: Caller, args: rq.WhoPays) -> Result:
        """Who pays, and has paid, for runs. The whole past is read beside the loop."""
        now = self._daemon.now()
        run = None if args.run is None else self._found(rq.name_key(args.run)).run
        since, until = rq.instant("since", args.since), rq.instant("until", args.until)
        query = LeaseQuery(run=run, owner=args.owner, payer=args.payer, since=since, until=until)
        if run is not None:
            return invoice(self._scheduler.store.leases(query), now, since, until)
        if args.all or since is not None or until is not None:
            async with self._children:
                return await asyncio.to_thread(invoice_of_file, self._daemon.settings.ledger, query, now)
        living = [each.key for each in self._scheduler.state.runs.values() if each.leases]
        queries = [replace(query, run=name) for name in living[: rq.LIMIT_MAX]]
        return invoice((row for each in queries for row in self._scheduler.store.leases(each)), now)

    def _found(self, run: Key) -> SubmittedRun:
        asked = self._past.find(run)
        if asked is None:
            raise rq.refused(Reason.NotFound, f"there is no run {short(run)}")
        return asked

    # --- output --------------------------------------------------------------------------------------------------------

    async def logs(self, caller: Caller, args: rq.Logs) -> Result:
        """Where the output of a run's ranks lies."""
        asked = self._readable(caller, args.run)
        files = [
            {"rank": rank, "attempt": attempt, "path": path}
            for attempt, rank, path in self._files(asked)
            if args.attempt in (None, attempt) and args.rank in (None, rank)
        ]
        return {"files": files, "ended": self._over(asked.run)}

    async def read_log(self, caller: Caller, args: rq.ReadLog) -> Result:
        """A part of one rank's output, for who may read it but not its file (a colleague's run)."""
        asked = self._readable(caller, args.run)
        over = self._over(asked.run)
        paths = [path for attempt, rank, path in self._files(asked) if (attempt, rank) == (args.attempt, args.rank)]
        if not paths:
            raise rq.refused(Reason.NotFound, f"{args.run} has no rank {args.rank} in attempt {args.attempt}")
        part = await asyncio.to_thread(read_part, paths[-1], max(0, args.offset))
        return {"text": part.decode(errors="replace"), "next": max(0, args.offset) + len(part), "ended": over}

    def _readable(self, caller: Caller, name: str) -> SubmittedRun:
        asked = self._found(rq.name_key(name))
        if not self._access.may_read_all(caller, asked.spec.owner, asked.by):
            message = f"{short(asked.run)} belongs to {asked.spec.owner}, to which {caller.name} is not bound"
            raise rq.refused(Reason.Forbidden, message)
        return asked

    def _files(self, asked: SubmittedRun) -> list[tuple[int, int, str]]:
        held = (row.lease for row in self._scheduler.store.leases(LeaseQuery(run=asked.run)))
        leases = [lease for lease in held if lease.start >= asked.submitted_at and lease.role is not Role.SPARE]
        ranks = {(lease.attempt, lease.rank): str(self._daemon.pods.log_of(log_id(lease))) for lease in leases}
        return [(attempt, rank, path) for (attempt, rank), path in ranks.items()]

    def _over(self, run: Key) -> bool:
        return run not in self._scheduler.state.runs and not self._daemon.processes.busy_with(run)

    # --- the rest ------------------------------------------------------------------------------------------------------

    async def status(self, caller: Caller, _: rq.Args) -> Result:
        """How the daemon is."""
        state, head, settings = self._scheduler.state, self._scheduler.head, self._daemon.settings
        pending = sum(pending_by_cause(state).values())
        nodes = state.capacity.nodes.values()
        return {
            "pid": os.getpid(),
            "version": __version__,
            "startedAt": format_instant(self._daemon.started_at),
            "now": format_instant(self._daemon.now()),
            "home": str(settings.home),
            "socket": str(settings.socket),
            "metrics": self._daemon.metrics_url,
            "metricsProblem": self._daemon.metrics_problem,
            "head": {"seq": head.seq, "hash": head.hash},
            "ledgerProblem": self._daemon.ledger_problem,
            "startProblem": self._daemon.processes.problem,
            "nodes": len(nodes),
            "gpus": sum(node.peak for node in nodes),
            "freeGPUs": sum(node.room for node in nodes),
            "runs": {Phase.PENDING.value: pending, Phase.RUNNING.value: len(state.runs) - pending},
            "notifications": self._daemon.notifier.sums()._asdict(),
            "reservations": reservation_counts(state),
            "you": {"user": caller.name, "admin": caller.admin, "owners": list(caller.owners)},
        }

    async def list_budgets(self, _: Caller, __: rq.Args) -> Result:
        """Every Budget, with what it has spent, promised and left."""
        return {"budgets": self._inquiry.budgets(self._daemon.now())}

    async def leases(self, _: Caller, args: rq.Leases) -> Result:
        """Leases, open and closed, in order of opening."""
        return {"leases": [views.lease_object(row) for row in self._scheduler.store.leases(rq.lease_query(args))]}

    async def notices(self, _: Caller, args: rq.Notices) -> Result:
        """What was told last, the latest first, and what became of each delivery."""
        run = None if args.run is None else self._found(rq.name_key(args.run)).run
        told = self._daemon.notifier.last(rq.bounded(args.limit), run)
        return {"notices": [notice_view(notice, deliveries) for notice, deliveries in told]}

    async def nodes(self, _: Caller, __: rq.Args) -> Result:
        """Every node, and what is free in each domain."""
        state = self._scheduler.state
        return {"nodes": views.node_views(state), "domains": views.domain_views(state)}

    async def wait(self, _: Caller, args: rq.Wait) -> Result:
        """The ledger's head, once it is past `seq` or the time is over."""
        await self._daemon.changed(args.seq, min(max(args.timeout_ms, 0), rq.WAIT_MS_MAX) / 1000)
        head = self._scheduler.head
        return {"head": {"seq": head.seq, "hash": head.hash}}

    async def audit(self, _: Caller, __: rq.Args) -> Result:
        """Prove the whole ledger, in another process; one audit at a time. Damage that it finds is damage for everybody."""
        async with self._children:
            report = await audit_report(self._daemon.settings.ledger)
        found = next((each["message"] for each in report["findings"] if each["claim"] in DAMAGE), None)
        if found is not None:
            ledger = str(self._daemon.settings.ledger)
            self._daemon.damaged(found if ledger in found else f"{ledger} is damaged: {found}")
        return report

    async def export(self, _: Caller, args: rq.Export) -> Result:
        """Leases or charges as CSV text; where it is written is for the caller's own rights to say."""
        since, until = rq.instant("since", args.since), rq.instant("until", args.until)
        if args.what not in ("leases", "charges"):
            raise rq.refused(Reason.InvalidRequest, f"what: {args.what[:40]!r} is neither leases nor charges")
        async with self._children:
            query = LeaseQuery(since=since, until=until)
            return await asyncio.to_thread(
                export_answer, self._daemon.settings.ledger, args.what, query, self._daemon.now()
            )


def _wanted(owner: str | None, other: str) -> bool:
    return owner is None or at_or_below(other, owner)


def reservation_counts(state: State) -> Result:
    """How many reservations are in force, by state, and the date of the next that is to be kept."""
    holds = [run.hold for run in state.runs.values() if run.hold is not None]
    counts: Result = {}
    for hold in holds:
        counts[hold.state.value] = counts.get(hold.state.value, 0) + 1
    dates = [hold.earliest_start for hold in holds if hold.holds]
    return {**counts, "next": format_instant(min(dates)) if dates else None}


def _matches(asked: SubmittedRun, args: rq.ListArgs) -> bool:
    return _wanted(args.owner, asked.spec.owner) and args.namespace in (
        None,
        split(asked.run)[0],
    )
