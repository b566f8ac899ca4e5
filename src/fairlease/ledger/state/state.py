"""What is true now: the fold of the ledger.

State changes only through `apply(at, event)`; replaying the log gives the live state. Indexes (free slots, money, open leases by
run, by node and by envelope, the queue, timers) are kept by `apply`, never recomputed by scanning. It holds what is open, plus
for what is over only how it ended: closed leases and old bills lie in the store. `trial` makes every change one
that can be undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.ledger.state import events as ev
from fairlease.ledger.state.capacity import NodeState
from fairlease.ledger.state.check import check
from fairlease.ledger.state.dirty import Dirty
from fairlease.ledger.state.lease_names import leases_of
from fairlease.ledger.state.names import NUMBERS_PER_LIFE
from fairlease.ledger.state.runs import Hold, Leaving, RunState, Unit
from fairlease.ledger.state.timers import Due
from fairlease.ledger.state.world import StateIndexes
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.model.budget import Envelope


_OWN_ENDS = (Reason.Completed, Reason.Fail, Reason.TimeLimit)


CHECKED_WHOLE = 256
"""A state of up to so many leases, runs and nodes is checked after every event, a larger one so much less often."""


class State(StateIndexes):
    """The world, and what each event does to it. `checking`: prove all indexes after every event; slow, for tests."""

    checking = False

    def __init__(self) -> None:
        super().__init__()
        self._unchecked = 0
        self._apply: dict[type, Callable[[Any], None]] = {
            ev.Configured: self._configured, ev.NodeSet: self._node_set, ev.NodeFailed: self._node_failed,
            ev.NodeRemoved: self._node_removed, ev.BudgetSet: self._budget_set, ev.BudgetRemoved: self._budget_removed,
            ev.RunSubmitted: self._run_submitted, ev.RunDeferred: self._run_deferred, ev.LeasesOpened: self._leases_opened,
            ev.LeasesClosed: self._leases_closed, ev.RunRequeued: self._run_requeued, ev.RunEnded: self._run_ended,
            ev.CoverLost: self._cover_lost, ev.CoverRegained: self._cover_regained, ev.EnvelopeTurned: self._envelope_turned,
            ev.OutcomeRecorded: self._outcome_recorded, ev.ReservationMade: self._reservation_made,
            ev.ReservationTurned: self._reservation_turned, ev.DesiredSet: self._desired_set,
            ev.LeasesLeaving: self._leases_leaving, ev.RunEnding: self._run_ending, ev.SwapAwaited: self._swap_awaited,
            ev.FundingSet: self._funding_set, ev.GrowthDeferred: self._growth_deferred, ev.Forecasted: self._forecasted,
            ev.BackoffEnded: self._backoff_ended, ev.RunQuarantined: self._run_quarantined,
            ev.RunStarted: self._run_started,
        }  # fmt: skip

    def apply(self, at: int, event: ev.AnyEvent) -> None:
        """Make one fact part of the state."""
        assert at >= self.at, "time does not run backwards in a ledger"
        if at != self.at:
            self.undo.later(self._set_time, self.at)
            self.at = at
        self._apply[type(event)](event)
        if self.checking:
            self._unchecked += CHECKED_WHOLE
            if self._unchecked >= self.open_leases + len(self.runs) + len(self.capacity.nodes):
                self.check()

    def check(self) -> None:
        """Prove every index against a scan; not while a trial pretends that things are otherwise than any event says."""
        self._unchecked = 0
        if not self.pretends:
            check(self)

    def settled(self) -> None:
        """Every entry of a ledger ends settled: nothing waits to be decided anew."""
        self.dirty = Dirty()

    # --- configuration and nodes ---------------------------------------------------------------------------------------

    def _configured(self, event: ev.Configured) -> None:
        before = self.config
        self._set("config", event.config)
        self.dirty.budgets |= before.commit_quantum != event.config.commit_quantum
        # Who waits has a date from now on, or none.
        self.dirty.budgets |= before.reservations != event.config.reservations
        if before.node_debounce != event.config.node_debounce:
            for state in self.capacity.nodes.values():
                self._debounce(state)
        if before.grow_cooldown != event.config.grow_cooldown:
            for run in self.runs.values():
                self.undo.touch(run)
                run.stalled = None  # whether its cooldown is over is another question now
                self._regrow(run)
        if event.config.labels != self.capacity.labels:
            nodes = list(self.capacity.nodes.values())
            for state in nodes:
                self._part(state)
            self.undo.later(setattr, self.capacity, "labels", self.capacity.labels)
            self.capacity.labels = event.config.labels
            for state in nodes:
                self._join(state)
                self._bar(state)

    def _node_set(self, event: ev.NodeSet) -> None:
        node = event.node
        state = self.capacity.nodes.get(node.name)
        if state is None:
            state = NodeState(node)
            self._join(state)
        else:
            self.undo.touch(state)
            state.failed = state.failed and not (node.ready and not node.fenced)
            self._replace(state, node)
        if node.ready != (state.not_ready_since is None):
            self.undo.touch(state)
            state.not_ready_since = None if node.ready else self.at
        self._bar(state)
        self._debounce(state)

    def _node_failed(self, event: ev.NodeFailed) -> None:
        state = self.capacity.nodes[event.node]
        self.undo.touch(state)
        state.failed = True
        self._timer(Due.DEBOUNCE, (event.node,), None)
        self._bar(state)
        self.dirty.failed[event.node] = None

    def _node_removed(self, event: ev.NodeRemoved) -> None:
        state = self.capacity.nodes[event.node]
        assert not state.leases, "leases on a node close before it goes"
        self._timer(Due.DEBOUNCE, (event.node,), None)
        self._part(state)

    # --- budgets -------------------------------------------------------------------------------------------------------

    def _budget_set(self, event: ev.BudgetSet) -> None:
        before = self.budgets.get(event.budget)
        self.undo.put(self.budgets, event.budget, event.spec)
        wanted: dict[str, Envelope | None] = {} if before is None else {each.name: None for each in before.envelopes}
        wanted |= {envelope.name: envelope for envelope in event.spec.envelopes}
        for name, terms in wanted.items():
            self._refit(self.account(event.budget, name), terms, event.spec.owner)
        for cap in () if before is None else before.aggregate_caps:
            self._timer(Due.CAP, (event.budget, cap.name), None)
        for cap in event.spec.aggregate_caps:
            self._retime_cap(event.budget, cap, afresh=True)
        self._budgets_changed()

    def _budget_removed(self, event: ev.BudgetRemoved) -> None:
        spec = self.undo.pop(self.budgets, event.budget)
        for envelope in spec.envelopes:
            self._refit(self.account(event.budget, envelope.name), None, spec.owner)
        for cap in spec.aggregate_caps:
            self._timer(Due.CAP, (event.budget, cap.name), None)
        self._budgets_changed()

    def _budgets_changed(self) -> None:
        """A version is never used twice, also when the change is undone: nobody may take one family for another."""
        self._next_version()
        self.undo.later(self._next_version)
        self.dirty.budgets = True

    def _next_version(self) -> None:
        self.budgets_version += 1

    def _envelope_turned(self, event: ev.EnvelopeTurned) -> None:
        if event.cap:
            cap = next(each for each in self.budgets[event.budget].aggregate_caps if each.name == event.cap)
            self._retime_cap(event.budget, cap, afresh=True)
            self.dirty.accounts.update((event.budget, name) for name in cap.envelopes)
            self.dirty.lost.update((event.budget, name) for name in cap.envelopes)
            return
        account = self.account(event.budget, event.envelope)
        self.retime(account, afresh=True)
        self.dirty.accounts.add(account.id)
        if event.turn is not ev.Turn.OPENED:
            self.dirty.lost.add(account.id)

    # --- runs ----------------------------------------------------------------------------------------------------------

    def _run_submitted(self, event: ev.RunSubmitted) -> None:
        self.ended.forget(self.undo, self.at, self.config.name_retention, used=event.run)
        run = RunState(event.run, event.spec, self.at, self.orders)
        run.number = run.reservations = self.ended.life * NUMBERS_PER_LIFE
        run.by, run.graceful = event.by, event.graceful
        run.awaits = self.upstream(run)
        self._set("orders", self.orders + 1)
        self.undo.put(self.runs, event.run, run)
        self._start_by(run, event.spec.runtime.latest_start)
        self._ask(run)

    def _run_deferred(self, event: ev.RunDeferred) -> None:
        for each in event.runs:
            run = self.runs[each]
            self.undo.touch(run)
            run.reason, run.message, run.tally, run.since = event.reason, event.message, event.tally, self.at
            if not event.reason.transient:  # What was foreseen has nothing to rest on any more.
                run.foreseen = None
            shape = self.queue.shapes.get(run.shape)
            if shape is not None and run.order in shape.runs:
                self.undo.later(self.queue.settle, run.shape, shape.reason)
                self.queue.settle(run.shape, event.reason)

    def _run_requeued(self, event: ev.RunRequeued) -> None:
        run = self.runs[event.run]
        assert not run.leases, "an attempt's leases close before the next attempt is asked for"
        if event.reason is Reason.Fail and self.teaches:
            self.durations.ended(self.undo, run, self.at)
        self.undo.touch(run)
        run.attempt += 1
        run.failures += event.reason is Reason.Fail
        run.phase, run.reason, run.message, run.since = Phase.PENDING, event.reason, event.message, self.at
        run.started_at = run.deadline = run.stalled = None
        run.number -= run.number % NUMBERS_PER_LIFE
        run.starting = False
        if event.by is not None:
            run.displaced_by = (*run.displaced_by, event.by)
        run.asked_at, run.order = self.at, self.orders
        self._set("orders", self.orders + 1)
        self._timer(Due.DEADLINE, (run.key,), None)
        self._regrow(run)
        self._stop(run)
        self._rested(run)
        run.not_before = event.not_before
        self._ask_again(run)

    def _backoff_ended(self, event: ev.BackoffEnded) -> None:
        run = self.runs[event.run]
        self._rested(run)
        self.undo.touch(run)
        run.not_before = None
        if run.phase is Phase.PENDING:
            self._set_latest_start(run)
            self._ask_again(run)
            return
        run.stalled = None
        self._set_deadline(run)
        self._regrow(run)

    def _run_quarantined(self, event: ev.RunQuarantined) -> None:
        """Who waits leaves the queue for a while; of what runs, all that falls due meanwhile waits."""
        run = self.runs[event.run]
        self._rested(run)
        if run.phase is Phase.PENDING:
            self._leave_queue(run)  # it still follows others, and fails with them
        self.undo.touch(run)
        run.faults += 1
        run.not_before = event.until
        run.message, run.since = event.message, self.at
        if run.phase is Phase.PENDING:
            run.reason, run.tally, run.foreseen = Reason.InternalError, {}, None
            self._set_latest_start(run)
        else:
            run.stalled = Reason.InternalError
            if run.deadline is not None and run.deadline < event.until:  # it may run, and be paid for, so much longer
                for lease in run.leases.values():
                    account = self.account(lease.payer.budget, lease.payer.envelope)
                    self._repromise(account, lease, run.deadline, event.until)
                run.deadline = event.until
            self._set_deadline(run)
            self._regrow(run)
            for unit, ends in list(run.overdrawn.items()):
                if ends is not None and ends < event.until:
                    self.undo.put(run.overdrawn, unit, event.until)
                    self.undo.put(self.overdrawn, unit, event.until)
                    self._timer(Due.DRAIN, tuple(map(str, unit)), event.until)
        self._rest(run)

    def _run_ending(self, event: ev.RunEnding) -> None:
        run = self.runs[event.run]
        assert run.leaving, "a run ends at once where nothing of it is leaving"
        assert not run.leases, "all that is left of a run that is over is leaving"
        self.undo.touch(run)
        self._finish(run, event.reason)
        run.phase, run.reason, run.message, run.since = event.phase, event.reason, event.message, self.at
        run.not_before, run.starting = None, False

    def _run_ended(self, event: ev.RunEnded) -> None:
        run = self.runs[event.run]
        assert not run.leases, "a run's leases close before it ends"
        assert not run.leaving, "what is leaving has left before the run ends"
        if not run.over:
            self._finish(run, event.reason)
        self.undo.pop(self.runs, event.run)
        self.ended.forget(self.undo, self.at, self.config.name_retention)
        self.ended.add(self.undo, event.run, self.at, completed=event.phase is Phase.COMPLETED)
        self._regrow(run)
        if event.phase is Phase.COMPLETED:
            for follower in list(self.queue.following.get(event.run, {}).values()):
                self._unfollow(follower, event.run)
                self.undo.touch(follower)
                follower.awaits = tuple(each for each in follower.awaits if each != event.run)
                if not follower.awaits and follower.not_before is None:
                    self._enqueue(follower)

    def _finish(self, run: RunState, reason: Reason) -> None:
        """A run neither runs nor waits any more."""
        assert run.hold is None, "a run's reservation is over before it ends"
        if self.teaches:
            self.waits.gone(self.undo, run.key)
            if reason in _OWN_ENDS:
                self.durations.ended(self.undo, run, self.at)
        self._dequeue(run)
        self._rested(run)
        self._timer(Due.DEADLINE, (run.key,), None)
        self._start_by(run, None)
        self._stop(run)

    # --- leases --------------------------------------------------------------------------------------------------------

    def _leases_opened(self, event: ev.LeasesOpened) -> None:
        run = self.runs[event.run]
        self.undo.touch(run)
        if run.phase is Phase.PENDING:
            self._begin(run)
            run.starting = event.starting
        opened, before = leases_of(event, run.spec, self.at, self.serial), run.width
        run.number = event.cells[-1].number + 1
        self._set("serial", self.serial + len(opened))
        self._set("open_leases", self.open_leases + len(opened))
        self.undo.put_all(run.leases, {lease.name: lease for lease in opened})
        self._occupy(opened, held=True)
        self._widen(run, opened, sign=1)
        for account in self._book(run, opened, sign=1, deadline=run.deadline):
            self.retime(account)
        self._resized(run, before, event.reason)

    def _run_started(self, event: ev.RunStarted) -> None:
        run = self.runs[event.run]
        self.undo.touch(run)
        run.starting = False

    def _leases_closed(self, event: ev.LeasesClosed) -> None:
        run = self.runs[event.run]
        self.undo.touch(run)
        assert event.names or not run.leaving, "where leases are leaving it is said which close"
        names, before = event.names or tuple(run.leases), run.width
        left = self._left(run, names) if run.leaving else []
        working = tuple(self.undo.pop_all(run.leases, [name for name in names if name in run.leases]).values())
        closed = (*working, *(each.lease for each in left))
        assert len(closed) == len(names), "a lease closes once"
        self._set("open_leases", self.open_leases - len(closed))
        self._occupy(closed, held=False)
        self._widen(run, working, sign=-1)
        touched = self._book(run, working, sign=-1, deadline=run.deadline)
        for each in left:
            touched += self._book(run, (each.lease,), sign=-1, deadline=each.until, overdrawn=each.overdrawn)
        for account in touched:
            self.retime(account)
            self.dirty.accounts.add(account.id)
        self._forget_units(run)
        freed = [each for each in run.awaited if each not in run.leases]
        for name in freed:
            self.undo.pop(run.awaited, name)
        self._resized(run, before, event.reason)
        if freed:  # it waits for no tenant any more, and may grow again
            self._regrow(run)
        for each in left:
            self._wake_claims(self.capacity.nodes[each.lease.node])
        if left and not run.leaving:
            self._all_left(run)

    def _left(self, run: RunState, names: tuple[str, ...]) -> list[Leaving]:
        """Those of some leases whose work was leaving, and is gone."""
        left = list(self.undo.pop_all(run.leaving, [name for name in names if name in run.leaving]).values())
        self.undo.pop_all(self.leaving, [each.lease.serial for each in left])
        return left

    def _all_left(self, run: RunState) -> None:
        """The last GPUs that a run was leaving are free: it may ask again, or grow."""
        if run.phase is Phase.PENDING:
            self._rested(run)
            self._ask_again(run)
        self._regrow(run)

    def _leases_leaving(self, event: ev.LeasesLeaving) -> None:
        run, before = self.runs[event.run], self.runs[event.run].width
        self.undo.touch(run)
        leases = tuple(self.undo.pop_all(run.leases, event.names).values())
        asked = [
            Leaving(
                lease=lease,
                since=self.at,
                until=event.until,
                reason=event.reason,
                seed=event.seed,
                overdrawn=run.unit(lease) in run.overdrawn,
            )
            for lease in leases
        ]
        self._leave(run, asked)
        self._widen(run, leases, sign=-1)
        for lease in leases:
            account = self.account(lease.payer.budget, lease.payer.envelope)
            self._repromise(account, lease, run.deadline, event.until)
            self.dirty.accounts.add(account.id)
            self._look_again(self.capacity.nodes[lease.node])
        self._forget_units(run)
        self._resized(run, before, event.reason)

    def _swap_awaited(self, event: ev.SwapAwaited) -> None:
        run = self.runs[event.run]
        for name, rank, payer in event.spares:
            self.undo.put(run.awaited, name, (rank, event.payers[payer]))
        self._regrow(run)

    def _forget_units(self, run: RunState) -> None:
        """A unit of cover without work is no more."""
        for unit in list(run.overdrawn):
            if not any(run.unit(lease) == unit for lease in run.leases.values()):
                self._forget(run, unit)

    def _resized(self, run: RunState, before: int, why: Reason) -> None:
        if run.width != before:
            run.resized(before, self.at, why)
            run.stalled = None
            self._regrow(run)

    def _desired_set(self, event: ev.DesiredSet) -> None:
        run = self.runs[event.run]
        self._respec(run, run.spec.resized(event.gpus))

    def _funding_set(self, event: ev.FundingSet) -> None:
        run = self.runs[event.run]
        self._respec(run, run.spec.funded(event.funding))

    def _growth_deferred(self, event: ev.GrowthDeferred) -> None:
        run = self.runs[event.run]
        self.undo.touch(run)
        run.stalled = event.reason
        self._regrow(run)

    # --- cover lost and regained ---------------------------------------------------------------------------------------

    def _cover_lost(self, event: ev.CoverLost) -> None:
        run = self.runs[event.run]
        unit: Unit = (event.run, event.budget, event.envelope, event.group)
        if unit not in run.overdrawn:
            self._reclass(run, unit, overdrawn=True)
        self.undo.put(run.overdrawn, unit, event.ends)
        self.undo.put(self.overdrawn, unit, event.ends)
        self._timer(Due.DRAIN, tuple(map(str, unit)), event.ends)
        self.dirty.flavors.add(run.spec.resources.gpu_type)

    def _cover_regained(self, event: ev.CoverRegained) -> None:
        run = self.runs[event.run]
        unit: Unit = (event.run, event.budget, event.envelope, event.group)
        self._reclass(run, unit, overdrawn=False)
        self._forget(run, unit)
        self.dirty.regained.add(run.key)

    def _outcome_recorded(self, event: ev.OutcomeRecorded) -> None:
        self._set("outcomes", self.outcomes + 1)
        self._set("last_outcome", ev.digest(event.outcome))

    # --- reservations --------------------------------------------------------------------------------------------------

    def _reservation_made(self, event: ev.ReservationMade) -> None:
        run = self.runs[event.run]
        if run.hold is not None:
            self._release(run)
        self.undo.touch(run)
        run.reservations += 1
        self.reserve(run, Hold(event, self.at, self.expectation(run)))

    def _reservation_turned(self, event: ev.ReservationTurned) -> None:
        run = self.runs[event.run]
        hold = run.hold
        assert hold is not None, "only a reservation in force can turn"
        if event.state is ReservationState.ACTIVE:
            self._timer(Due.RESERVATION, (run.key,), None)
        elif event.state is ReservationState.BLOCKED:
            self._lift(run, hold)
        else:
            self._release(run)
            return
        self.undo.touch(hold)
        hold.state, hold.reason, hold.message = event.state, event.reason, event.message
        if event.state is ReservationState.BLOCKED:
            self._stand(run, hold, stands=True)

    def _forecasted(self, event: ev.Forecasted) -> None:
        for foreseen in event.runs:
            run = self.runs[foreseen.run]
            self.undo.touch(run)
            run.foreseen = (self.at, foreseen)
            if run.foreseen_first is None:
                run.foreseen_first = run.foreseen
                self.waits.told(self.undo, run.key, self.at, foreseen)
