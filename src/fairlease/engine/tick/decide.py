"""Decide: what follows from a request, an observation, or the passing of time.

One call is one tick. Commands become events, events change the state at once, and then everything that could now come out
otherwise is settled: cover that was lost or regained, work whose grace is over, runs that wait. Nothing here knows a clock or does
I/O: the caller hands in `now`, appends what comes out, and keeps or undoes it.

    1  commands           requests and reports become facts, or refusals with a reason
    2  timers             deadlines, debounce, windows, hours: on TimePassed, and wherever one of an earlier instant is due
    3  standing           units lose or regain their cover
    4  drains             overdrawn work under Drain whose grace is over ends
    5  pending runs       those that something could have helped, in order of asking; a later one may pass an earlier one. Dates
                          that facts have made sooner move: that of whoever asked first before all are tried, the others after
    6  growth             elastic runs widen by a step, where their cooldown is over or something could have helped
    7  latest starts      runs that could not start in time fail
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.command import AnyCommand, Drill, FailNode, Forecast, RemoveNode, SetNode, TimePassed
from fairlease.engine.cover.family import Family
from fairlease.engine.forecast import forecast
from fairlease.engine.place.bind import bind
from fairlease.engine.place.plan import Planner, widths
from fairlease.engine.preempt.resolve import resolve
from fairlease.engine.refusal import Refusal
from fairlease.engine.reserve import pull_in, reservation
from fairlease.engine.reserve.availability_cache import AvailabilityCache
from fairlease.engine.tick import drill, failover, growth, lifecycle, overdraft, scavenging
from fairlease.engine.tick.scheduling_pass import SchedulingPass, Try, Woken, promote
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.timers import Due
from fairlease.model.record import Key
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.preempt.resolve import Resolution
    from fairlease.ledger.state.accounts import Account
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State


class Decision(NamedTuple):
    """What one tick makes true, the answer to each command (None: done), and the counters of every try."""

    events: tuple[ev.AnyEvent, ...]
    answers: tuple[Refusal | None, ...]
    tries: tuple[Try, ...]


class Engine:
    """The rules, over one state. Between ticks it remembers nothing that the ledger does not tell.

    `beacon` is a public value that nobody here could know beforehand, where a backend has one: it enters every draw. One that
    `rehearses` plays what will come, inside a trial that is always undone, and spares itself what only matters where it counts.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.now = state.at
        self.events: list[ev.AnyEvent] = []
        self.tries: list[Try] = []
        self.due: list[RunState] = []
        self.beacon = ""
        self.rehearses = False
        self.horizon = AvailabilityCache()
        self.fallen: dict[str, bool] = {}
        self.notice = growth.GrowthCandidates()
        self._family: Family | None = None

    @property
    def family(self) -> Family:
        """The graph of owners, built anew when Budgets changed."""
        if self._family is None or self._family.version != self.state.budgets_version:
            self._family = Family(self.state)
        return self._family

    def twin(self) -> Engine:
        """Another over the same state, for what is thought through while this one decides."""
        twin = Engine(self.state)
        twin.now, twin.beacon, twin.rehearses, twin._family = self.now, self.beacon, True, self.family
        return twin

    def decide(self, now: int, commands: tuple[AnyCommand, ...]) -> Decision:
        """One tick. The state is left changed, inside a trial that the caller must `keep` or roll back."""
        self.now = max(now, self.state.at)
        self.events, self.tries, self.due, self.fallen, self.notice = [], [], [], {}, growth.GrowthCandidates()
        answers = tuple(self._obey(command) for command in commands)
        failover.recover(self)
        self._catch_up()
        return Decision(tuple(self.events), answers, tuple(self.tries))

    def emit(self, event: ev.AnyEvent) -> None:
        """Make something true."""
        self.state.apply(self.now, event)
        self.events.append(event)

    def _obey(self, command: AnyCommand) -> Refusal | None:
        """Nodes that fail one after the other, in one tick, fail together: what follows is decided when the last is known."""
        if self.fallen and not (
            isinstance(command, FailNode | RemoveNode | SetNode) and _node_of(command) not in self.fallen
        ):
            failover.recover(self)
        if isinstance(command, TimePassed):
            self._pass_time()
            return None
        if isinstance(command, Forecast):
            self._catch_up()
            forecast.record(self, command.runs)
            return None
        if isinstance(command, Drill):
            return drill.rehearse(self, command)
        return lifecycle.HANDLERS[type(command)](self, command)

    # --- 2 timers ------------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Follow every change, what fell due before now and was not told of first: nobody may start on what is over."""
        due = self.state.timers.next()
        if due is not None and due < self.now:
            self._pass_time()
        self.settle()

    def _pass_time(self) -> None:
        state = self.state
        for due, subject in state.timers.due(self.now):
            if state.timers.times.get((due, subject)) is None:
                continue
            if due is Due.DEADLINE:
                lifecycle.time_limit(self, Key(subject[0]))
            elif due is Due.DEBOUNCE:
                lifecycle.fail_node(self, subject[0])
            elif due in (Due.WINDOW, Due.EXHAUSTED, Due.CAP):
                self._turn(due, *subject)
            elif due is Due.RESERVATION:
                self._activate(state.runs[Key(subject[0])])
            elif due is Due.RETRY:
                self.emit(ev.BackoffEnded(run=Key(subject[0])))
            elif due is Due.GROW:
                self.notice.ripe.add(Key(subject[0]))
        failover.recover(self)
        self.settle()
        for due, subject in state.timers.due(self.now):
            if due is Due.LATEST_START and Key(subject[0]) in state.runs:
                lifecycle.end_run(self, state.runs[Key(subject[0])], Reason.LatestStartPassed)

    def _turn(self, due: Due, budget: str, name: str) -> None:
        if due is Due.CAP:
            self.emit(ev.EnvelopeTurned(budget=Key(budget), cap=name, turn=ev.Turn.EXHAUSTED))
            return
        account = self.state.account(Key(budget), name)
        terms = account.envelope
        assert terms is not None, "an envelope without terms has no timers"
        closed = terms.end is not None and terms.end <= self.now
        turn = ev.Turn.CLOSED if closed else ev.Turn.OPENED
        if due is Due.EXHAUSTED:
            turn = ev.Turn.EXHAUSTED if account.exhausted(self.now) else ev.Turn.LENT_OUT
        self.emit(ev.EnvelopeTurned(budget=Key(budget), envelope=name, turn=turn))

    def _activate(self, run: RunState) -> None:
        """A reservation is due: from now on the run may have others cut, once."""
        reservation.settle(self, run, ReservationState.ACTIVE, Reason.Due)
        self.due.append(run)

    # --- 3 to 6 --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Follow every change to its end. Ends because starting only takes, and what it frees by cutting is finite."""
        state = self.state
        while True:
            self._restand()
            if self._drain():
                continue
            self.notice.take(self)
            pull_in.lead(self)
            SchedulingPass(self, self._woken()).go()
            if not state.dirty and state.dirty.shaken:
                pull_in.follow(self)
            if not state.dirty and state.standings.far and not self.rehearses:
                promote(self)
            if not state.dirty:
                growth.settle(self)
            if not state.dirty and not state.dirty.shaken:
                return

    def _restand(self) -> None:
        state = self.state
        if not state.dirty.accounts:
            return
        budgets: dict[Key, dict[str, Account]] = {}
        for budget, name in state.dirty.accounts:
            budgets.setdefault(Key(budget), {})[name] = state.account(Key(budget), name)
        for unit in state.overdrawn:
            if unit[1] in budgets:
                budgets[Key(unit[1])][unit[2]] = state.account(Key(unit[1]), unit[2])
        for budget in sorted(budgets):
            accounts = budgets[budget]
            spec = state.budgets.get(budget)
            for envelope in () if spec is None else spec.envelopes:
                accounts[envelope.name] = state.account(budget, envelope.name)
            self._restand_budget(budget, [accounts[name] for name in sorted(accounts)])

    def _restand_budget(self, budget: Key, accounts: list[Account]) -> None:
        state = self.state
        known = [unit for unit in state.overdrawn if unit[1] == budget] if state.overdrawn else []
        if not known and not overdraft.tight(state, budget, accounts, self.now):
            return
        found = overdraft.uncovered(state, budget, accounts, self.now)
        for unit in sorted(known):
            if unit not in found:
                self.emit(ev.CoverRegained(run=Key(unit[0]), budget=Key(unit[1]), envelope=unit[2], group=unit[3]))
                self.notice.regained.add(Key(unit[0]))
        for unit, reason in found.items():
            ends = overdraft.grace_end(state, unit, self.now)
            before = state.overdrawn.get(unit, -1)
            if before == -1 or (before is None) != (ends is None):
                self.emit(
                    ev.CoverLost(
                        run=Key(unit[0]), budget=Key(unit[1]), envelope=unit[2], group=unit[3], reason=reason, ends=ends
                    )
                )

    def _drain(self) -> bool:
        """End work whose grace is over; one unit at a time, as ending it may give cover to others."""
        overdrawn = self.state.overdrawn
        over = [unit for unit, ends in overdrawn.items() if ends is not None and ends <= self.now] if overdrawn else []
        if not over:
            return False
        lifecycle.drain(self, min(over))
        return True

    def _woken(self) -> Woken:
        """Waiting runs that something since the last try could have helped; forgets what it was."""
        state, queue = self.state, self.state.queue
        dirty, state.dirty = state.dirty, type(state.dirty)()
        state.dirty.shaken = dirty.shaken
        due, self.due = self.due + [state.holds[key] for key in sorted(dirty.sliced) if key in state.holds], []
        if dirty.budgets:
            return Woken(list(queue.shapes.values()), [], dirty.arrived, due)
        found = {key: queue.shapes[key] for key in dirty.arrived if key in queue.shapes}
        if dirty.topology:
            found |= {
                key: each for key, each in queue.shapes.items() if each.sample.resources.gpu_type in dirty.topology
            }
        if dirty.lost:  # Those who wait for room may no longer be funded: they are told, room or not.
            asked = self.family.asked
            found |= {
                key: each for key, each in queue.shapes.items() if not asked(each.signature).isdisjoint(dirty.lost)
            }
        if dirty.accounts:
            family = self.family
            for signature, shapes in queue.others.items():
                if not family.asked(signature).isdisjoint(dirty.accounts):
                    found.update(shapes)
        flavors = queue.lines if dirty.accounts else dirty.flavors
        lines = [line for flavor in flavors for line in queue.lines.get(flavor, {}).values()]
        return Woken(list(found.values()), lines, dirty.arrived, due)

    def start(self, run: RunState) -> Refusal | None:
        """Cover, pack and bind, or say why not. Too late is too late, even where the timer that says so comes after us."""
        latest = run.spec.runtime.latest_start
        if latest is not None and latest < self.now and run.attempt == 1:
            lifecycle.end_run(self, run, Reason.LatestStartPassed)
            return None
        planner = Planner(self.state, self.family, run, self.now)
        refusal = planner.unfunded(told=not self.rehearses)
        if refusal is not None:
            return refusal
        plan = planner.widest()
        asked = widths(run.spec)[-1]
        if plan is None or plan.width < asked:
            resolution = self._resolve(run, 0 if plan is None else plan.width)
            if resolution is not None:
                lifecycle.cut(self, resolution)
                if (
                    self.state.overdrawn
                ):  # The money of those who gave way covers others again, who are not to be cut next.
                    self._restand()
                plan = Planner(self.state, self.family, run, self.now).widest(resolution.pods_max)
                assert plan is not None, "nobody is cut before it is verified that the claim then starts"
        opened = None if plan is None else bind(run, plan, Reason.Start)
        if run.spec.opportunistic and self.state.hosts and (plan is None or plan.width < asked):
            opened = scavenging.start_on_spares(self, run, 0 if plan is None else plan.width) or opened
        if opened is None:
            return self._wait_for_room(run, planner)
        self._open(run, opened)
        return None

    def _resolve(self, run: RunState, width: int) -> Resolution | None:
        """Whose work gives way so that a run starts, or starts wider; funded work does only where a reservation is due."""
        due = width == 0 and reservation.may_cut(run, self.now)
        if run.spec.opportunistic or not (due or self.state.opportunistic or self.state.overdrawn):
            return None
        return resolve(self.state, self.family, run, self.now, width, due=due, beacon=self.beacon)

    def _open(self, run: RunState, opened: ev.LeasesOpened) -> None:
        reservation.settle(self, run, ReservationState.RELEASED, Reason.Start)
        self.emit(opened)
        self.tries.append(Try(run.key, Reason.Start, 1, {}))
        for other in reservation.displaced(self, opened) if self.state.holds and not self.rehearses else ():
            reservation.make(
                self, other, Planner(self.state, self.family, other, self.now), Reason.SliceTaken, f"by {run.key}"
            )

    def _wait_for_room(self, run: RunState, planner: Planner) -> Refusal:
        """Why a funded run waits, and until when."""
        refusal = planner.roomless()
        if (
            refusal.reason is Reason.NoRoom
            and not run.spec.opportunistic
            and reservation.await_room(self, run, planner)
        ):
            return Refusal(Reason.Reserved, refusal.message, refusal.tally)
        return refusal


def _node_of(command: FailNode | RemoveNode | SetNode) -> str:
    return command.node.name if isinstance(command, SetNode) else command.node
