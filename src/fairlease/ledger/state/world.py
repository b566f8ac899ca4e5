"""The world as the ledger tells it: its parts, and the primitives by which they change together.

Every primitive keeps all indexes that depend on it and notes its inverse, so that any change can be a trial. `ledger.state` says
which event uses which; nobody else changes anything here.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from fairlease.ledger.learning.durations import Durations, kinds_of
from fairlease.ledger.learning.waits import Waits
from fairlease.ledger.state.accounts import Account, AccountId
from fairlease.ledger.state.capacity import NodeState
from fairlease.ledger.state.ground import StateBase
from fairlease.ledger.state.loans import Loans
from fairlease.ledger.state.names import EndedNames
from fairlease.ledger.state.runs import Hold, Leaving, Meter, Queue, RunState, Signature, Standings, Unit
from fairlease.ledger.state.slots import bits_of
from fairlease.ledger.state.timers import Due
from fairlease.model.lease import Fund, Lease, Role
from fairlease.model.record import Key, key, split
from fairlease.model.reservation import NO_OUTCOME, ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope
    from fairlease.model.run import RunSpec

# In Python 3.11 a member of an enum is found far more slowly through its class than as a global.
ACTIVE, SPARE, LENT = Role.ACTIVE, Role.SPARE, Fund.BORROWED


class StateIndexes(StateBase):
    """All that is open, and how what is over ended."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[str, NodeState] = {}
        self.budgets: dict[Key, BudgetSpec] = {}
        self.budgets_version = 0
        self.accounts: dict[AccountId, Account] = {}
        self.runs: dict[Key, RunState] = {}
        self.ended = EndedNames()
        self.queue = Queue()
        self.holds: dict[Key, RunState] = {}
        self.claimants: dict[str, dict[Key, RunState]] = {}
        """By flavor: what runs and has a claim to its GPUs; `opportunistic` is what runs without."""
        self.opportunistic: dict[Key, RunState] = {}
        self.overdrawn: dict[Unit, int | None] = {}
        self.durations = Durations()
        self.waits = Waits()
        self.teaches = True
        """Whether what happens is learned from: not so in a rehearsal, which would only hear itself."""
        self.loans = Loans()
        self.hungry: dict[tuple[str, Signature], dict[Key, RunState]] = {}
        self.orders = 0
        self.serial = 0
        self.outcomes = 0
        self.last_outcome = NO_OUTCOME
        self.open_leases = 0
        self.pretends = False
        """Whether a trial shows what no event says: slots that are not free, reservations that are not there."""
        self.leaving: dict[int, Leaving] = {}
        """By serial: open leases whose work was asked to leave."""

    # --- money ---------------------------------------------------------------------------------------------------------

    def account(self, budget: Key, envelope: str) -> Account:
        """The books of an envelope; they are opened when it is first seen and never thrown away."""
        found = self.accounts.get((budget, envelope))
        if found is None:
            found = Account(budget, envelope)
            self.undo.put(self.accounts, found.id, found)
        return found

    def caps_over(self, account: Account) -> list[AggregateCap]:
        """The aggregate caps that count an envelope."""
        budget, name = account.id
        spec = self.budgets.get(Key(budget))
        if spec is None or not spec.aggregate_caps:
            return []
        return [cap for cap in spec.aggregate_caps if name in cap.envelopes]

    def _refit(self, account: Account, envelope: Envelope | None, owner: str) -> None:
        """Put an envelope's new terms on its books; what was spent and promised stays as it is."""
        self.undo.touch(account)
        account.envelope, account.owner, account.since = envelope, owner, self.at
        self.retime(account, afresh=True)
        self.dirty.accounts.add(account.id)

    def retime(self, account: Account, *, afresh: bool = False) -> None:
        """Set the timers of an envelope and of the caps over it, after a change of its terms (`afresh`) or of its use."""
        self._retime(Due.WINDOW, account.id, account.next_edge(self.at), afresh=afresh)
        self._retime(Due.EXHAUSTED, account.id, account.exhausts_at(self.at), afresh=afresh)
        for cap in self.caps_over(account):
            self._retime_cap(Key(account.id[0]), cap, afresh=afresh)

    def _retime_cap(self, budget: Key, cap: AggregateCap, *, afresh: bool = False) -> None:
        if cap.max_gpu_hours is None:
            return
        members = [self.account(budget, name) for name in cap.envelopes]
        left = cap.max_gpu_hours - sum(member.consumed(self.at) for member in members)
        rate = sum(member.usage.rate for member in members if member.inside_window(self.at))
        due = self.at - (-left // rate) if rate and left > 0 else None
        self._retime(Due.CAP, (budget, cap.name), due, afresh=afresh)

    def _retime(self, due: Due, subject: tuple[str, ...], when: int | None, *, afresh: bool) -> None:
        """Move a timer; one that is due and was not heard yet stays, whatever else happens at that instant."""
        before = self.timers.times.get((due, subject))
        if before != when and (afresh or before is None or before > self.at):
            self._timer(due, subject, when)

    # --- runs and leases -----------------------------------------------------------------------------------------------

    def name_taken(self, run: Key, now: int) -> bool:
        """Whether a name is a run's that lives, or that ended less than `nameRetention` ago."""
        return run in self.runs or self.ended.taken(run, now, self.config.name_retention)

    def upstream(self, run: RunState) -> tuple[Key, ...]:
        """The runs it follows that have not completed, as far as it is known: they live, or are still to come."""
        namespace, _ = split(run.key)
        wanted = [key(name, namespace) for name in run.spec.follow.after]
        return tuple(each for each in wanted if not self.ended.completed(each))

    def _ask(self, run: RunState) -> None:
        """Stand in the queue, or wait for the runs it follows."""
        following = self.queue.following
        for each in run.awaits:
            if each not in following:
                self.undo.put(following, each, {})
            self.undo.put(following[each], run.key, run)
        if not run.awaits:
            self._enqueue(run)

    def _unfollow(self, run: RunState, upstream: Key) -> None:
        """A run waits no more for one that it followed."""
        following = self.queue.following
        if run.key in following.get(upstream, {}):
            self.undo.pop(following[upstream], run.key)
            if not following[upstream]:
                self.undo.pop(following, upstream)

    def _start_by(self, run: RunState, when: int | None) -> None:
        """Set or drop the timer of a run that must start in time; nearly none must."""
        if run.spec.runtime.latest_start is not None:
            self._timer(Due.LATEST_START, (run.key,), when)

    def _set_latest_start(self, run: RunState) -> None:
        """The first attempt fails past its latest start; one that is left alone after a fault, when that is over."""
        latest = run.spec.runtime.latest_start
        if latest is not None and run.attempt == 1:
            self._start_by(run, max(latest, run.not_before or 0))

    def _set_deadline(self, run: RunState) -> None:
        """A run ends at its limit; one that is left alone after a fault, when that is over."""
        when = run.deadline if run.deadline is None or run.not_before is None else max(run.deadline, run.not_before)
        self._timer(Due.DEADLINE, (run.key,), when)

    def _rest(self, run: RunState) -> None:
        """Wait for the end of a pause, outside the queue."""
        self.undo.put(self.queue.resting, run.key, run)
        self._timer(Due.RETRY, (run.key,), run.not_before)

    def _rested(self, run: RunState) -> None:
        """The pause is over, or nobody waits for its end any more."""
        if run.key in self.queue.resting:
            self.undo.pop(self.queue.resting, run.key)
            self._timer(Due.RETRY, (run.key,), None)

    def _ask_again(self, run: RunState) -> None:
        """Stand in the queue when a pause is over and the GPUs of the attempt before are free."""
        self._ask(run) if run.not_before is None and not run.leaving else self._rest(run)

    def _leave(self, run: RunState, asked: list[Leaving]) -> None:
        """The work on these leases is leaving."""
        assert all(each.lease.role is not SPARE for each in asked), "a placeholder leaves at once"
        self.undo.put_all(run.leaving, {each.lease.name: each for each in asked})
        self.undo.put_all(self.leaving, {each.lease.serial: each for each in asked})

    def _repromise(self, account: Account, lease: Lease, before: int | None, until: int) -> None:
        """What a lease may still use up is what it needs to leave."""
        self.undo.touch(account)
        account.promise.change(-lease.gpus, before)
        account.promise.change(lease.gpus, until)
        if lease.payer.fund is LENT:
            self.undo.touch(account.lent_promise)
            account.lent_promise.change(-lease.gpus, before)
            account.lent_promise.change(lease.gpus, until)

    def _wake_claims(self, state: NodeState) -> None:
        """Slots are free that others left for a claim: it is tried, whoever stands before it in the queue."""
        for run in state.liens:
            hold = self.holds[run].hold
            if hold is not None and hold.exclusive:
                self.dirty.sliced.add(run)

    def _look_again(self, state: NodeState) -> None:
        """Slots of a node come free at another time than was thought."""
        if state.domain is not None:
            state.domain.touch(state)
            self.undo.later(state.domain.touch, state)
        self.dirty.shaken.update(state.liens)

    def _enqueue(self, run: RunState) -> None:
        self.queue.add(run, run.order)
        self.undo.later(self.queue.remove, run, run.order)
        self.dirty.arrived.setdefault(run.shape, []).append(run)

    def _dequeue(self, run: RunState) -> None:
        """Wait no more, neither in the queue nor for the runs it follows."""
        self._leave_queue(run)
        for each in run.awaits:
            self._unfollow(run, each)

    def _leave_queue(self, run: RunState) -> None:
        shape = self.queue.shapes.get(run.shape)
        if shape is not None and run.order in shape.runs:
            self.undo.later(self.queue.settle, run.shape, shape.reason)
            self.undo.later(self.queue.add, run, run.order)
            self.queue.remove(run, run.order)

    def _respec(self, run: RunState, spec: RunSpec) -> None:
        """A run asks for something else from now on: one that waits is tried again, and so is one that would like to grow."""
        waits = self.queue.has(run)
        if waits:
            self._dequeue(run)
        stalled = self.hungry.get((run.spec.resources.gpu_type, run.signature), {})
        if run.key in stalled:
            self.undo.pop(stalled, run.key)
        if run.hold is not None:
            self._stand(run, run.hold, stands=False)
        self.undo.later(run.ask_for, run.spec)  # before the queue is put back, which looks at it
        self.undo.touch(run)
        run.ask_for(spec)
        if run.hold is not None:
            self._stand(run, run.hold, stands=True)
        if waits:
            self._enqueue(run)
        run.stalled = None
        self._regrow(run)

    def revive(
        self,
        run: RunState,
        leases: tuple[Lease, ...],
        overdrawn: dict[Unit, int | None],
        leaving: tuple[Leaving, ...] = (),
    ) -> None:
        """A run as a snapshot knew it: waiting, or running with its leases; some of its work may be leaving."""
        self.runs[run.key] = run
        self._leave(run, list(leaving))
        self.open_leases += len(leaving)
        self._occupy([each.lease for each in leaving], held=True)
        for each in leaving:
            self._book(run, (each.lease,), sign=1, deadline=each.until, overdrawn=each.overdrawn)
        if run.over:
            return
        if run.phase is Phase.PENDING:
            self._set_latest_start(run)
            self._ask_again(run)
            return
        self._set_deadline(run)
        if run.not_before is not None:
            self._rest(run)
        self._running(run)[run.key] = run
        for unit, ends in overdrawn.items():
            run.overdrawn[unit] = self.overdrawn[unit] = ends
            self._timer(Due.DRAIN, tuple(map(str, unit)), ends)
        self.open_leases += len(leases)
        run.leases.update((lease.name, lease) for lease in leases)
        self._occupy(leases, held=True)
        self._widen(run, leases, sign=1)
        self._book(run, leases, sign=1, deadline=run.deadline)
        self._regrow(run)

    def wants_to_grow(self, run: RunState) -> bool:
        """Whether a run lives a step or more below the width it would like to have."""
        elastic = run.spec.malleable
        alive = run.phase is Phase.RUNNING and run.key in self.runs and not run.leaving and not run.awaited
        return elastic is not None and alive and run.width + elastic.step_gpus <= elastic.desired

    def _regrow(self, run: RunState) -> None:
        """Keep the timer of a run that waits for its cooldown, and the index of those that were told why they cannot grow."""
        if run.spec.malleable is None:
            return
        wants = self.wants_to_grow(run)
        cooling = wants and run.stalled is None
        self._timer(Due.GROW, (run.key,), run.changed_at + self.config.grow_cooldown if cooling else None)
        place = (run.spec.resources.gpu_type, run.signature)
        waits, stalled = self.hungry.get(place), wants and not cooling
        if stalled and (waits is None or run.key not in waits):
            self.undo.put(self.hungry.setdefault(place, {}), run.key, run)
        elif waits is not None and run.key in waits and not stalled:
            self.undo.pop(waits, run.key)

    def reserve(self, run: RunState, hold: Hold) -> None:
        """A run's reservation comes into force: its lien lies on its slots, and its date is a timer."""
        self.undo.put(self.holds, run.key, run)
        run.hold = hold
        self._stand(run, hold, stands=True)
        if not hold.holds:
            return
        for name, slots in hold.lien.items():
            self._lien(run.key, name, slots)
        if hold.state is ReservationState.PENDING:
            self._timer(Due.RESERVATION, (run.key,), hold.earliest_start)

    def _release(self, run: RunState) -> None:
        """A run's reservation is over."""
        hold = run.hold
        assert hold is not None, "only a reservation in force can be over"
        self._lift(run, hold)
        self.undo.pop(self.holds, run.key)
        self.undo.touch(run)
        run.hold = None

    def _lift(self, run: RunState, hold: Hold) -> None:
        """A reservation holds nothing any more: others may use its slots."""
        self._timer(Due.RESERVATION, (run.key,), None)
        self._stand(run, hold, stands=False)
        for name in hold.lien:
            self._lien(run.key, name, 0)

    def _stand(self, run: RunState, hold: Hold, *, stands: bool) -> None:
        """A reservation takes its place among those of its flavor, or gives it up."""
        standings, order, shape = self.standings, run.order, run.shape
        place = standings.of(run.spec.resources.gpu_type, hold)
        if stands and order not in place:
            place[order] = run
            self.undo.later(place.pop, order, None)
            if hold.holds:
                standings.enter(shape, order, run)
                self.undo.later(standings.leave, shape, order)
        elif not stands and order in place:
            del place[order]
            self.undo.later(place.__setitem__, order, run)
            if hold.holds:
                standings.leave(shape, order)
                self.undo.later(standings.enter, shape, order, run)

    def pretend_reserved(self, kept: Iterable[Key]) -> None:
        """Inside a trial: see the reservations as if only those `kept` were in force; the others, be they thousands, go at once."""
        assert self.undo.recording, "only a trial may pretend"
        self._set("pretends", value=True)
        holds = {each: self.holds[each] for each in kept}
        gone = [run for run in self.holds.values() if run.key not in holds]
        standings = Standings()
        for run in holds.values():
            if run.hold is not None:
                standings.of(run.spec.resources.gpu_type, run.hold)[run.order] = run
                if run.hold.holds:
                    standings.enter(run.shape, run.order, run)
        self._set("holds", holds)
        self._set("standings", standings)
        self._set("timers", self.timers.only(Due.RESERVATION, {(each,) for each in holds}))
        self.undo.later(_put_back, gone, [run.hold for run in gone])
        for run in gone:
            if run.hold is not None and run.hold.lien:
                for name in run.hold.lien:
                    self._lien(run.key, name, 0)
            run.hold = None

    def _lien(self, run: Key, name: str, slots: int) -> None:
        state = self.capacity.nodes.get(name)
        if state is None or state.liens.get(run, 0) == slots:
            return
        self.undo.later(self.capacity.set_lien, state, run, state.liens.get(run, 0))
        self.capacity.set_lien(state, run, slots)
        if not slots:
            self.dirty.flavors.add(self.capacity.flavor(state.node))
            self.dirty.shaken.update(state.liens)

    def _begin(self, run: RunState) -> None:
        self._dequeue(run)
        run.phase, run.reason, run.message, run.since = Phase.RUNNING, Reason.Bound, "", self.at
        run.tally = {}
        run.started_at = self.at
        if run.first_started_at is None:
            run.first_started_at = self.at
        if self.teaches:
            self.waits.started(self.undo, run, self.at)
            run.expected = self.expectation(run)
        limit = run.spec.runtime.max_duration
        run.deadline = None if limit is None else self.at + limit
        run.faults = 0
        self._set_deadline(run)
        self._start_by(run, None)
        self.undo.put(self._running(run), run.key, run)

    def stop_teaching(self) -> None:
        """Inside a trial: what happens from now on is a rehearsal, from which no forecast learns."""
        assert self.undo.recording, "only a trial may pretend"
        self._set("teaches", value=False)

    def _running(self, run: RunState) -> dict[Key, RunState]:
        """Where a run is listed while it runs."""
        return (
            self.opportunistic if run.spec.opportunistic else self.claimants.setdefault(run.spec.resources.gpu_type, {})
        )

    def _stop(self, run: RunState) -> None:
        """A run runs no more, if it did."""
        running = self._running(run)
        if run.key in running:
            self.undo.pop(running, run.key)

    def running(self) -> list[RunState]:
        """All that runs, in order of asking: an undone trial may shuffle a dictionary, and a restart begins another."""
        found = [run for runs in (*self.claimants.values(), self.opportunistic) for run in runs.values()]
        return sorted(found, key=attrgetter("order"))

    def _occupy(self, leases: Sequence[Lease], *, held: bool) -> None:
        """Take the slots of leases, or give them back."""
        capacity = self.capacity
        capacity.occupy(leases, held=held)
        self.undo.later(partial(capacity.occupy, leases, held=not held))
        nodes, flavor = capacity.nodes, capacity.labels.flavor
        shared = {lease.node for lease in leases if lease.role is not ACTIVE}
        for name in shared:
            self._host(nodes[name])
        touched = shared if held else {lease.node for lease in leases}
        if self.holds:
            self.dirty.shaken.update(*[nodes[lease.node].liens for lease in leases])
        self.dirty.flavors.update([nodes[name].node.labels.get(flavor, "") for name in touched])

    def pretend_free(self, name: str, free: int) -> None:
        """Inside a trial: see a node as if these slots were free, to ask what could then be placed."""
        assert self.undo.recording, "only a trial may pretend"
        self._set("pretends", value=True)
        state = self.capacity.nodes[name]
        self._slots(state, free, state.barred)

    def pretend_left(self) -> None:
        """Inside a trial: see the slots of work that is leaving as free, save those of a spare that it borrows."""
        bits: dict[str, int] = {}
        for each in self.leaving.values():
            bits[each.lease.node] = bits.get(each.lease.node, 0) | bits_of(each.lease.slots)
        for name, slots in bits.items():
            state = self.capacity.nodes[name]
            self.pretend_free(name, state.free | slots & ~state.spare)

    def _host(self, state: NodeState) -> None:
        """Keep the index of nodes on whose spares opportunistic work could lie."""
        name, offers = state.node.name, state.spare & ~state.tenant != 0
        if offers and name not in self.hosts:
            self.undo.put(self.hosts, name, state)
        elif not offers and name in self.hosts:
            self.undo.pop(self.hosts, name)

    def _widen(self, run: RunState, leases: Iterable[Lease], *, sign: int) -> None:
        """A run works on so many GPUs more, or fewer."""
        for lease in leases:
            if lease.role is SPARE:
                run.spare_gpus += sign * len(lease.slots)
            else:
                run.width += sign * len(lease.slots)

    def _book(
        self,
        run: RunState,
        leases: Iterable[Lease],
        *,
        sign: int,
        deadline: int | None,
        overdrawn: bool | None = None,
    ) -> list[Account]:
        """Put leases on the books of their payers and of the run, or take them off; returns the accounts.

        They may use up hours until `deadline`. `overdrawn` says in which class they are, where the run's units no longer do.
        Leases of one payer that are alike in role and cover are summed up first, so that a large gang costs little more than a pod.
        """
        alike: dict[tuple[int, bool, bool], list[Lease]] = {}
        owing = run.overdrawn
        for lease in leases:
            owes = (run.unit(lease) in owing if owing else False) if overdrawn is None else overdrawn
            kind = (id(lease.payer), lease.role is SPARE, owes)
            if kind in alike:
                alike[kind].append(lease)
            else:
                alike[kind] = [lease]
        touched: dict[AccountId, Account] = {}
        for (_, _, owes), group in alike.items():
            sample = group[0]
            account = self.account(sample.payer.budget, sample.payer.envelope)
            touched[account.id] = account
            self.undo.touch(account)
            if sign > 0:
                self.undo.put_all(account.open, {lease.serial: lease for lease in group})
            else:
                self.undo.pop_all(account.open, [lease.serial for lease in group])
            gpus = sign * sum([len(lease.slots) for lease in group])
            account.usage.change(gpus, self.at, account.edges)
            account.promise.change(gpus, deadline)
            account.used += 0 if sample.opportunistic else gpus
            if sample.payer.fund is LENT:
                self.undo.touch(account.lent)
                self.undo.touch(account.lent_promise)
                account.lent.change(gpus, self.at, account.edges)
                account.lent_promise.change(gpus, deadline)
                account.lent_used += 0 if sample.opportunistic else gpus
                self.loans.change(sample.payer.owner, run.spec.owner, gpus, self.undo)
            self._classify(run, account, sample, gpus, overdrawn=owes)
        return list(touched.values())

    def _classify(self, run: RunState, account: Account, lease: Lease, gpus: int, *, overdrawn: bool) -> None:
        """Count a lease's GPUs in the class they are in: in the envelope's usage and on the run's bill."""
        fund = lease.payer.fund
        if lease.role is SPARE:
            account.gpus["spare"] += gpus
            self._meter(run.meters, "spares", gpus)
            return
        kind = "overdrawn" if overdrawn else fund.value
        account.gpus["opportunistic" if lease.opportunistic and not overdrawn else kind] += gpus
        self._meter(run.meters, kind, gpus)
        if fund is LENT:
            self._meter(run.sponsors, lease.payer.owner, gpus)

    def _meter(self, meters: dict[str, Meter], name: str, gpus: int) -> None:
        meter = meters.get(name)
        if meter is None:
            meter = Meter()
            self.undo.put(meters, name, meter)
        else:
            self.undo.touch(meter)
        meter.change(gpus, self.at)

    def expectation(self, run: RunState) -> int:
        """How long a run will take at the most, nine times in ten, by what is known now."""
        return self.durations.high(kinds_of(run), run.spec.runtime.expected_duration)

    def _forget(self, run: RunState, unit: Unit) -> None:
        self.undo.pop(run.overdrawn, unit)
        self.undo.pop(self.overdrawn, unit)
        self._timer(Due.DRAIN, tuple(map(str, unit)), None)

    def _reclass(self, run: RunState, unit: Unit, *, overdrawn: bool) -> None:
        account = self.account(Key(unit[1]), unit[2])
        self.undo.touch(account)
        self.undo.touch(run)
        account.since = run.since = self.at
        for lease in run.leases.values():
            if run.unit(lease) == unit and lease.role is not Role.SPARE:
                self._classify(run, account, lease, -lease.gpus, overdrawn=not overdrawn)
                self._classify(run, account, lease, lease.gpus, overdrawn=overdrawn)


def _put_back(runs: list[RunState], holds: list[Hold | None]) -> None:
    for run, hold in zip(runs, holds, strict=True):
        run.hold = hold
