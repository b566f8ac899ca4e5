"""Auditor: an independent witness of a film, fed with nothing but the ledger's entries.

It believes no index. For every entry it asks whether what happened could happen: slots, gangs, domains, payers, caps, names, ends,
cuts; and when an instant is settled, whether the right work is overdrawn. Money is added up by the bookkeeper from the plain list
of all leases. A claim that does not hold becomes a `Violation`, with the entry it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.protocol import Entry
from fairlease.model.budget import OnExhaustion
from fairlease.model.lease import Fund, Role
from fairlease.model.record import Key, split
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.sim.auditor import admission, preemptions, quiescence, width_changes
from fairlease.sim.auditor.bookkeeper import AuditedRun, Departure, Held, Unit
from fairlease.sim.auditor.facts import AuditFacts, ChangeMoment, Fault

_FOR_GOOD = (
    Reason.Completed, Reason.Canceled, Reason.TimeLimit, Reason.LatestStartPassed, Reason.UpstreamFailed
)  # fmt: skip
"""Ends after which nobody asks whether there is another attempt."""

_ASKED = (
    Reason.Canceled, Reason.TimeLimit, Reason.Shrink, Reason.BudgetExhausted, Reason.RandomPreempt, Reason.ReclaimedBySpare,
    Reason.ReclaimOpportunistic, Reason.ReclaimOverdrawn,
)  # fmt: skip
"""Why work is asked to leave: its leases stay open until it has left."""


class Violation(NamedTuple):
    """A claim that does not hold: in which entry, which claim, and what was seen."""

    seq: int
    claim: str
    message: str


class Auditor(AuditFacts):
    """Everything the entries told so far. `punctual`: every timer was fired at its exact time, so ends can be exact too.

    `strict`: whoever plays the film says beforehand which nodes were `reported` gone, so no others may fail without a sign.
    """

    def __init__(self, *, punctual: bool = True, strict: bool = False) -> None:
        super().__init__()
        self.punctual = punctual
        self.strict = strict
        self.spans: dict[Unit, list[tuple[int, int | None]]] = {}
        self.names: set[tuple[str, str]] = set()
        self.violations: list[Violation] = []
        self.cuts = preemptions.Cuts()
        self.reported: set[str] = set()
        self._seq = self._asked = 0
        self._hear: dict[type, Callable[[Any], None]] = {
            ev.Configured: self._configured, ev.NodeSet: self._node_set, ev.NodeFailed: self._node_failed,
            ev.NodeRemoved: self._node_removed, ev.BudgetSet: self._budget_set, ev.BudgetRemoved: self._budget_removed,
            ev.RunSubmitted: self._submitted, ev.RunDeferred: self._deferred, ev.LeasesOpened: self._opened,
            ev.LeasesLeaving: self._leaving, ev.RunEnding: self._ending, ev.SwapAwaited: self._awaited,
            ev.LeasesClosed: self._closed, ev.RunRequeued: self._requeued, ev.RunEnded: self._ended,
            ev.CoverLost: self._lost, ev.CoverRegained: self._regained, ev.EnvelopeTurned: self._turned,
            ev.OutcomeRecorded: self._resolved, ev.ReservationMade: self._reserved,
            ev.ReservationTurned: self._reservation_turned, ev.DesiredSet: self._desired, ev.GrowthDeferred: self._stalled,
            ev.Forecasted: self._forecasted,
            ev.FundingSet: self._funded,
            ev.BackoffEnded: self._rested, ev.RunQuarantined: self._quarantined,
            ev.RunStarted: self._observed,
        }  # fmt: skip

    def witness(self, entry: Entry) -> None:
        """Hear one entry, event by event, and look at the whole when it is over."""
        self._check(entry.seq == self._seq + 1 and entry.at >= self.at, "chain", "entries follow each other in time")
        self._seq, self.at = entry.seq, entry.at
        self.cuts.begin()
        self.moment = ChangeMoment(len(self.names))
        for event in entry.events:
            self._hear[type(event)](event)
        self._whole()

    def settled(self, now: int) -> None:
        """When every timer up to `now` has fired: nothing is left that should have been decided."""
        self.at = max(self.at, now)
        self._blame(quiescence.faults(self))
        self._blame(width_changes.idle_faults(self, self.at))

    def _check(self, holds: bool, claim: str, message: str) -> None:  # noqa: FBT001 - it reads as a sentence: check that …
        if not holds:
            self.violations.append(Violation(self._seq, claim, message))

    def _blame(self, faults: Iterable[Fault]) -> None:
        for claim, message in faults:
            self._check(holds=False, claim=claim, message=message)

    def _whole(self) -> None:
        """What must hold after every entry: no slot doubled, gangs whole, nothing held by those who wait or are over."""
        self._blame(width_changes.whole_faults(self))
        self._blame(self.cuts.over(self))
        held: dict[tuple[str, int, bool], str] = {}
        fixed: set[tuple[str, int]] = set()
        tenants: list[Held] = []
        for run in self.runs.values():
            leases = run.open
            for lease in run.held:
                tenant = lease.role is Role.BORROWED
                tenants += [lease] if tenant else []
                for slot in lease.slots:
                    other = held.setdefault((lease.node, slot, tenant), lease.name)
                    self._check(other == lease.name, "slot", f"{other} and {lease.name} both hold {lease.node}#{slot}")
                    if lease.role is Role.ACTIVE:
                        fixed.add((lease.node, slot))
                self._check(lease.node in self.nodes, "node", f"{lease.name} lies on {lease.node}, which is gone")
                self._check(lease.node not in self.failed, "node", f"{lease.name} lies on failed {lease.node}")
            if run.phase is Phase.RUNNING:
                grid = width_changes.grid_of(run.spec, start=False)
                self._check(run.active_gpus in grid, "gang", f"{run.key} runs {run.width} GPUs wide")
                ranks = [each.rank for each in leases if each.role is not Role.SPARE]
                self._check(len(ranks) == len(set(ranks)), "gang", f"{run.key} has a rank twice")
            else:
                self._check(not leases, "gang", f"{run.key} is {run.phase.value} and holds leases")
        for lease in tenants:
            apart = not any((lease.node, slot) in fixed for slot in lease.slots)
            self._check(apart, "slot", f"{lease.name} lies on the slots of active work")

    # --- the world -----------------------------------------------------------------------------------------------------

    def _configured(self, event: ev.Configured) -> None:
        self.config = event.config
        self.books.quantum = event.config.commit_quantum

    def _node_set(self, event: ev.NodeSet) -> None:
        node = event.node
        if node.ready:
            self.silent.pop(node.name, None)
        else:
            self.silent.setdefault(node.name, self.at)
        self.nodes[node.name] = node
        self.peaks[node.name] = max(node.gpus, self.peaks.get(node.name, 0))
        if node.ready and not node.fenced:
            self.failed.discard(node.name)

    def _node_failed(self, event: ev.NodeFailed) -> None:
        """From an honest signal and no other: somebody reports it gone, it is fenced, or silent for long with its pods dead."""
        node, since = self.nodes.get(event.node), self.silent.get(event.node)
        self._check(node is not None, "node", f"{event.node} failed and is not known")
        dead = (
            node is not None and node.pods_dead and since is not None and since + self.config.node_debounce <= self.at
        )
        honest = event.node in self.reported or dead or (node is not None and node.fenced)
        self._check(honest or not self.strict, "node", f"{event.node} failed and nothing says so")
        self.failed.add(event.node)

    def _node_removed(self, event: ev.NodeRemoved) -> None:
        del self.nodes[event.node], self.peaks[event.node]
        self.silent.pop(event.node, None)
        self.failed.discard(event.node)

    def _budget_set(self, event: ev.BudgetSet) -> None:
        self.books.budgets[event.budget] = event.spec

    def _budget_removed(self, event: ev.BudgetRemoved) -> None:
        del self.books.budgets[event.budget]

    def _turned(self, event: ev.EnvelopeTurned) -> None:
        spec = self.books.budgets.get(event.budget)
        self._check(spec is not None, "turn", f"{event.budget} turned and is not known")
        if spec is None or event.turn not in (ev.Turn.EXHAUSTED, ev.Turn.LENT_OUT):
            return
        lent = event.turn is ev.Turn.LENT_OUT
        cap = next((each for each in spec.aggregate_caps if each.name == event.cap), None)
        terms = self.books.terms(event.budget, event.envelope)
        names = (event.envelope,) if cap is None else cap.envelopes
        bound = terms.lending if lent and terms is not None else terms if cap is None else cap
        limit = None if bound is None else bound.max_gpu_hours
        spent = self.books.consumed(self.at, event.budget, *names, lent=lent)
        self._check(limit is not None and spent >= limit, "turn", f"{event} at {spent} of {limit}")

    # --- runs ----------------------------------------------------------------------------------------------------------

    def _live(self, key: Key) -> AuditedRun:
        run = self.runs[key]
        self._check(not run.over, "terminal", f"{key} is over and is heard of again")
        return run

    def _submitted(self, event: ev.RunSubmitted) -> None:
        before = self.runs.get(event.run)
        free = before is None or (before.ended or self.at) + self.config.name_retention <= self.at
        self._check(free, "name", f"a run {event.run} was there before")
        self._asked += 1
        self.runs[event.run] = AuditedRun(event.run, event.spec, self.at, self._asked, graceful=event.graceful)

    def _deferred(self, event: ev.RunDeferred) -> None:
        for key in event.runs:
            run = self._live(key)
            self._check(run.phase is Phase.PENDING, "pending", f"{key} is {run.phase.value} and was deferred")
            run.reason = event.reason

    def _quarantined(self, event: ev.RunQuarantined) -> None:
        run = self._live(event.run)
        self._check(event.until > self.at, "quarantine", f"{run.key} is left alone until a time that has passed")
        run.rests_until = run.faulty_until = event.until
        for held in run.open:
            if held.deadline is not None and held.leaving is None:
                held.deadline = max(held.deadline, event.until)
        if run.phase is Phase.PENDING:
            run.reason = Reason.InternalError

    def _rested(self, event: ev.BackoffEnded) -> None:
        run = self._live(event.run)
        due = run.rests_until is not None and run.rests_until <= self.at
        self._check(due, "backoff", f"{run.key} was to rest until {run.rests_until}")
        run.rests_until = None

    def _observed(self, event: ev.RunStarted) -> None:
        run = self._live(event.run)
        self._check(run.phase is Phase.RUNNING, "start", f"{run.key} is {run.phase.value} and its pods run")

    def _requeued(self, event: ev.RunRequeued) -> None:
        run = self._live(event.run)
        self.moment.shrunk.pop(run.key, None)  # the groups of another attempt are other groups
        self._check(not run.open, "requeue", f"{run.key} was requeued holding leases")
        run.failures += event.reason is Reason.Fail
        allowed = run.failures <= run.spec.runtime.retries if event.reason is Reason.Fail else run.spec.requeues
        self._check(allowed, "requeue", f"{run.key} was requeued for {event.reason.value} though it may not be")
        run.phase, run.started, run.reason = Phase.PENDING, None, event.reason
        run.rests_until = event.not_before
        run.attempt += 1
        self._asked += 1
        run.order = self._asked

    def _ending(self, event: ev.RunEnding) -> None:
        run = self._live(event.run)
        self._check(bool(run.leaving), "terminal", f"{run.key} is over, leaves nothing, and has not ended")
        self._over_for_good(run, event)

    def _ended(self, event: ev.RunEnded) -> None:
        run = self.runs[event.run]
        self._check(not run.held, "terminal", f"{run.key} ended holding leases")
        self._check(run.ended is None, "terminal", f"{run.key} ended twice")
        run.ended = self.at
        self._check(
            event.attempt == run.attempt, "attempt", f"{run.key} ended in attempt {event.attempt} of {run.attempt}"
        )
        self._check(event.bill == self.bill(run), "bill", f"{run.key}: {event.bill} is not {self.bill(run)}")
        if run.over:
            same = (run.phase, run.reason) == (event.phase, event.reason)
            self._check(same, "terminal", f"{run.key} was {run.phase.value} and ended {event.phase.value}")
        else:
            self._over_for_good(run, event)

    def _over_for_good(self, run: AuditedRun, event: ev.RunEnding | ev.RunEnded) -> None:
        """A run neither runs nor waits any more, for a reason that is true."""
        self._check(not run.open, "terminal", f"{run.key} is over and works on")
        self._check(run.key not in self.promises.of, "reservation", f"{run.key} ended and is still expected")
        if event.reason is Reason.TimeLimit:
            due = -1 if run.deadline is None else max(run.deadline, run.faulty_until)
            exact = due == self.at if self.punctual else -1 < due <= self.at
            self._check(exact, "time limit", f"{run.key} ended at {self.at}, not {due}")
        if event.reason is Reason.LatestStartPassed:
            latest = run.spec.runtime.latest_start
            self._check(latest is not None and latest <= self.at, "latest start", f"{run.key} ended before {latest}")
        if event.reason is Reason.UpstreamFailed:
            above = [self.runs.get(each) for each in quiescence.upstream(run)]
            lost = any(each is not None and each.phase is Phase.FAILED for each in above)
            self._check(lost, "follow", f"{run.key} ended though none that it follows failed")
        self._check((event.phase is Phase.COMPLETED) == (event.reason is Reason.Completed), "terminal", f"{event}")
        retries = run.spec.runtime.retries
        last = run.failures >= retries if event.reason is Reason.Fail else not run.spec.requeues
        self._check(
            last or event.reason in _FOR_GOOD, "requeue", f"{run.key} ended for {event.reason.value}, and not for good"
        )
        run.phase, run.reason = event.phase, event.reason

    def _desired(self, event: ev.DesiredSet) -> None:
        run = self._live(event.run)
        elastic = run.spec.malleable
        grid = width_changes.grid_of(run.spec, start=False)
        self._check(
            elastic is not None and event.gpus in grid, "desired", f"{run.key} cannot be {event.gpus} GPUs wide"
        )
        if elastic is not None:
            run.spec = replace(run.spec, malleable=replace(elastic, desired_total_gpus=event.gpus))
        self.moment.resized.add(run.key)

    def _funded(self, event: ev.FundingSet) -> None:
        run = self._live(event.run)
        run.spec = replace(run.spec, funding=event.funding)

    def _stalled(self, event: ev.GrowthDeferred) -> None:
        self._blame(width_changes.told_faults(self, self._live(event.run), event))

    def bill(self, run: AuditedRun) -> ev.Bill:
        """What a run used up, lease by lease, each GPU-millisecond in one class."""
        sums = {"owned": 0, "shared": 0, "borrowed": 0, "overdrawn": 0, "spares": 0}
        sponsors: dict[str, int] = {}
        for lease in run.leases:
            total = lease.integral(0, self.at)
            if lease.role is Role.SPARE:
                sums["spares"] += total
                continue
            spans, asked = self.spans.get(lease.unit, []), lease.leaving
            until = self.at if asked is None else asked.since
            owed = sum(lease.integral(begin, min(until, self.at if end is None else end)) for begin, end in spans)
            owed += lease.integral(asked.since, self.at) if asked is not None and asked.overdrawn else 0
            sums["overdrawn"] += owed
            sums[lease.payer.fund.value] += total - owed
            if lease.payer.fund is Fund.BORROWED:
                sponsors[lease.payer.owner] = sponsors.get(lease.payer.owner, 0) + total
        return ev.Bill(**sums, sponsors=sponsors)

    # --- leases --------------------------------------------------------------------------------------------------------

    def _opened(self, event: ev.LeasesOpened) -> None:
        run = self._live(event.run)
        self._check(
            event.attempt == run.attempt, "attempt", f"{run.key} opens in attempt {event.attempt} of {run.attempt}"
        )
        if event.reason is Reason.Start:
            self._start(run)
        else:
            self._check(run.phase is Phase.RUNNING, "start", f"{run.key} is {run.phase.value} and changes")
        opened = [self._lease(run, event, cell) for cell in event.cells]
        self._blame(width_changes.tenant_faults(self, run, opened))
        self.books.leases += opened
        run.leases += opened
        if event.reason is Reason.Start:
            run.width, run.changed = sum(each.gpus for each in opened if each.role is not Role.SPARE), self.at
        if event.reason is Reason.Swap:
            self._blame(width_changes.swap_faults(self, run, opened))
            return
        if event.reason is Reason.Grow:
            self._blame(width_changes.growth_faults(self, run, opened))
        self._blame(admission.faults(self, run, event, opened))
        self._check(run.key not in self.promises.of, "reservation", f"{run.key} started and is still expected")
        for message in self.promises.trespasses(run, opened, self.runs, growing=event.reason is not Reason.Start):
            self._check(holds=False, claim="lien", message=message)

    def _start(self, run: AuditedRun) -> None:
        self._check(run.rests_until is None, "backoff", f"{run.key} starts while it rests")
        self._check(run.phase is Phase.PENDING and not run.held, "start", f"{run.key} starts and is {run.phase.value}")
        self._check(
            all(self._done(each) for each in quiescence.upstream(run)),
            "follow",
            f"{run.key} starts before those it follows",
        )
        latest = run.spec.runtime.latest_start
        timely = latest is None or run.attempt > 1 or self.at <= latest
        self._check(timely, "latest start", f"{run.key} starts after {latest}")
        run.phase, run.started, run.stalled = Phase.RUNNING, self.at, None

    def _reserved(self, event: ev.ReservationMade) -> None:
        run = self._live(event.run)
        self._check(
            run.phase is Phase.PENDING, "reservation", f"{run.key} is {run.phase.value} and has a date to start"
        )
        for message in self.promises.made(event, self.at, self.config.notice):
            self._check(holds=False, claim="reservation", message=message)

    def _reservation_turned(self, event: ev.ReservationTurned) -> None:
        for message in self.promises.turned(event, self.at, punctual=self.punctual):
            self._check(holds=False, claim="reservation", message=message)

    def _forecasted(self, event: ev.Forecasted) -> None:
        for row in event.runs:
            run = self.runs.get(row.run)
            waits = run is not None and not run.over and not run.open
            self._check(waits, "forecast", f"{row.run} was forecast, which does not wait")
            ordered = self.at <= row.p10 <= row.p50 <= row.p90
            self._check(ordered, "forecast", f"{row.run} is to start at {row.p10}, {row.p50}, {row.p90}")

    def _done(self, key: Key) -> bool:
        return key in self.runs and self.runs[key].phase is Phase.COMPLETED

    def _lease(self, run: AuditedRun, event: ev.LeasesOpened, cell: ev.Cell) -> Held:
        namespace, short = split(run.key)
        name = f"{short}-{event.attempt}-{cell.number}"
        self._check((namespace, name) not in self.names, "name", f"a lease {name} was there before")
        self.names.add((namespace, name))
        return Held(
            name=name, run=run.key, group=cell.group, rank=cell.rank, node=cell.node, slots=cell.slots, role=cell.role,
            payer=event.payers[cell.payer], serial=len(self.names), start=self.at, deadline=run.deadline,
            opportunistic=run.spec.opportunistic, elastic=run.spec.malleable is not None,
        )  # fmt: skip

    def _closed(self, event: ev.LeasesClosed) -> None:
        run = self.runs[event.run]
        going = [each for each in run.held if not event.names or each.name in event.names]
        self._check(
            len(going) == (len(event.names) or len(run.held)), "close", f"{run.key}: {event.names} are not all open"
        )
        self._check(bool(going), "close", f"{run.key} closes nothing")
        if event.reason is Reason.NodeFailure:
            there = all(each.node in self.failed for each in going)
            self._check(there, "close", f"{run.key} lost leases on nodes that did not fail")
        working = [each for each in going if each.leaving is None]
        for lease in going:
            self._has_left(run, lease, event)
        if working:
            self._live(run.key)
            hasty = run.graceful and event.reason in _ASKED and any(each.role is not Role.SPARE for each in working)
            self._check(not hasty, "leaving", f"{run.key} closed {event.reason.value} before its GPUs were free")
            self._give_up(run, event, working)
        for lease in going:
            lease.end = self.at
        self._uncover(run)

    def _has_left(self, run: AuditedRun, lease: Held, event: ev.LeasesClosed) -> None:
        """What was asked to leave closes for that, in time; a spare that was to take over does so, or is lost."""
        asked = lease.leaving
        if asked is not None and event.reason is not Reason.NodeFailure:
            same = (asked.reason, asked.seed) == (event.reason, event.seed)
            self._check(same, "leaving", f"{lease.name} was asked to leave for {asked.reason.value}: {event}")
            in_time = self.at <= asked.until or not self.punctual
            self._check(in_time, "leaving", f"{lease.name} was to be killed at {asked.until}")
        if lease.name in run.awaited:
            owed = run.awaited.pop(lease.name)
            if event.reason in (Reason.NodeFailure, Reason.Swap):
                self.moment.lost.setdefault(run.key, []).append(owed)

    def _leaving(self, event: ev.LeasesLeaving) -> None:
        run = self._live(event.run)
        going = [each for each in run.open if each.name in event.names]
        self._check(bool(going) and len(going) == len(event.names), "leaving", f"{event} names leases that do not work")
        self._check(run.graceful, "leaving", f"{run.key} needs no time to leave")
        placeholder = any(each.role is Role.SPARE for each in going)
        self._check(not placeholder, "leaving", f"{run.key} has a spare leave, which is a placeholder")
        grace = self.config.opportunistic_grace if run.spec.opportunistic else self.config.max_grace
        self._check(event.until == self.at + grace, "leaving", f"{run.key} may leave until {event.until}")
        self._give_up(run, event, going)
        for lease in going:
            owes = lease.unit in self.overdrawn
            lease.leaving = Departure(self.at, event.reason, event.seed, event.until, owes)
        self._uncover(run)

    def _give_up(self, run: AuditedRun, event: ev.LeasesClosed | ev.LeasesLeaving, going: list[Held]) -> None:
        """A run works no longer on some leases: for a cause, and with a record where another is it."""
        forced = event.reason is Reason.Shrink and self.cuts.names(run, going)
        self._blame(width_changes.closing_faults(self, run, event.reason, going, forced=forced))
        if forced or event.reason in preemptions.RECLAIMS:
            self._blame(self.cuts.closing(self, run, event, going))
        if event.reason is Reason.BudgetExhausted:
            over = any(
                ends is not None and ends <= self.at for unit, ends in self.overdrawn.items() if unit[0] == run.key
            )
            over = over or run.key in self.moment.drained  # its spares closed just before
            self.moment.drained.add(run.key)
            self._check(over, "drain", f"{run.key} was drained before its grace was over")
        self.moment.note(run, event.reason, going)

    def _uncover(self, run: AuditedRun) -> None:
        """A unit without work is no more."""
        for unit in [unit for unit in self.overdrawn if unit[0] == run.key]:
            if not any(each.unit == unit for each in run.open):
                self._cover(unit)

    def _awaited(self, event: ev.SwapAwaited) -> None:
        """Ranks that were lost in this entry are to run on spares that tenants are leaving."""
        run, lost = self._live(event.run), self.moment.lost.get(event.run, [])
        for name, rank, payer in event.spares:
            spare = next((each for each in run.open if each.name == name and each.role is Role.SPARE), None)
            owed = next((each for each in lost if each.rank == rank and each.payer == event.payers[payer]), None)
            if spare is None or owed is None or owed.group != spare.group or name in run.awaited:
                self._check(holds=False, claim="swap", message=f"{name} of {run.key} is to take over rank {rank}")
                continue
            lost.remove(owed)
            run.awaited[name] = owed

    def _resolved(self, event: ev.OutcomeRecorded) -> None:
        self._blame(self.cuts.recorded(self, event))

    # --- cover ---------------------------------------------------------------------------------------------------------

    def _lost(self, event: ev.CoverLost) -> None:
        unit: Unit = (event.run, event.budget, event.envelope, event.group)
        run, terms = self._live(event.run), self.books.terms(event.budget, event.envelope)
        held = any(each.unit == unit for each in run.open)
        self._check(held, "overdrawn", f"{unit} is overdrawn and holds nothing")
        drains = terms is not None and terms.on_exhaustion is OnExhaustion.DRAIN
        grace = self.at + (run.spec.runtime.checkpoint or 0) if drains else None
        self._check(event.ends == grace, "drain", f"{unit} is to end at {event.ends}, not {grace}")
        if unit not in self.overdrawn:
            self.spans.setdefault(unit, []).append((self.at, None))
        self.overdrawn[unit] = event.ends

    def _regained(self, event: ev.CoverRegained) -> None:
        unit: Unit = (event.run, event.budget, event.envelope, event.group)
        self._check(unit in self.overdrawn, "overdrawn", f"{unit} was not overdrawn and is covered again")
        self._cover(unit)

    def _cover(self, unit: Unit) -> None:
        if self.overdrawn.pop(unit, -1) != -1:
            begin, _ = self.spans[unit].pop()
            self.spans[unit].append((begin, self.at))
