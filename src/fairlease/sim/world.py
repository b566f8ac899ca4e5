"""World: the backend of virtual time. It plays a scenario on the real engine, with the real ledger.

At one instant: ends of work, then timers, each at its exact time, then steps in file order, each settled; then what is expected
of that instant is checked. The world knows what the engine must not: how long work really takes.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.engine.forecast import forecast
from fairlease.ledger.state import events as ev
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Ending
from fairlease.model.amount import MINUTE
from fairlease.model.objects import BudgetObject, NodeObject, RunObject
from fairlease.model.reservation import ByHand
from fairlease.report.reservation_history import ReservationHistory
from fairlease.report.story import StoryLine
from fairlease.scheduler import Scheduler, Tick
from fairlease.sim import scenario as sc
from fairlease.sim.work import Jobs

if TYPE_CHECKING:
    from fairlease.model.node import Node
    from fairlease.model.record import Key
    from fairlease.sim.scenario import Scenario, Step


FORECAST_EVERY = 5 * MINUTE
"""How often forecasts are made anew, at most."""

FORECAST_RUNS_MAX = 200
"""Living runs up to which whoever begins to wait is forecast at once."""

FORECAST_SHARE = 8
"""In a larger world, how many may live for each tick since the last round. A round looks at all that wait or run, and costs no more
than an eighth of that many ticks, so that a film of thousands spends no more on forecasts than on what happens."""


class World:
    """A cluster, its teams, and what happens to them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.store = MemoryStore()
        self.scheduler = Scheduler(self.store)
        self.jobs = Jobs()
        self.now = scenario.start
        self.nodes: dict[str, Node] = {}
        self.submissions: dict[Key, tuple[int, ev.RunSubmitted]] = {}
        self.endings: dict[Key, Ending] = {}
        self.outcomes: list[ev.OutcomeRecorded] = []
        self.reservations = ReservationHistory()
        self.faults: list[str] = []
        self.internal_errors: list[str] = []
        self._forecast_seq = 0
        self._forecast_at = scenario.start
        self._ticks = 0
        self.refusals: list[StoryLine] = []

    def set_up(self) -> None:
        """The world as it is before anything happens."""
        self.nodes = {node.name: node for node in self.scenario.nodes}
        nodes = [cmd.SetNode(node) for node in self.scenario.nodes]
        budgets = [cmd.SetBudget(budget, spec) for budget, spec in self.scenario.budgets]
        self._tick(cmd.Configure(self.scenario.config), *nodes, *budgets)

    def next_event(self) -> int | None:
        """When something happens by itself: work ends, or a timer falls due."""
        times = [when for when in (self.jobs.next(), self.scheduler.next_timer()) if when is not None]
        return min(times, default=None)

    def advance(self, now: int) -> None:
        """Let everything happen that is due by itself at `now`."""
        self.now = now
        while True:
            due, gone = self.jobs.due(now), self.jobs.gone(now)
            if due or gone:
                ends = [cmd.WorkEnded(run, job.attempt, job.exit_code) for run, job in due]
                self._tick(*ends, *(cmd.PodsGone(run, names) for run, names in gone))
                continue
            timer = self.scheduler.next_timer()
            if timer is None or timer > now:
                return
            self._tick(cmd.TimePassed())

    def take(self, step: Step) -> None:
        """One step of the film, and what follows from it at once."""
        for kind, group in groupby(step.actions, type):
            if kind is sc.Restart:
                self._restart()
            else:
                self._tick(*(command for action in group for command in self._commands(action)))
            self.advance(self.now)

    def forecast(self, *, looked_at: bool = False) -> None:
        """Who waits and has no forecast yet gets one; the others, where facts changed, every few minutes.

        In a large world not at every step, yet always before somebody looks at it.
        """
        state, seq = self.scheduler.state, self.scheduler.head.seq
        if seq == self._forecast_seq or not (state.queue or state.queue.resting):
            return
        waiting = forecast.waiting(state)
        if len(state.runs) > FORECAST_RUNS_MAX and not looked_at and self._ticks * FORECAST_SHARE < len(state.runs):
            return
        self._ticks = 0
        if self.now - self._forecast_at >= FORECAST_EVERY:
            self._forecast_at = self.now
            self._tick(cmd.Forecast())
        elif fresh := tuple(run for run in waiting if state.runs[run].foreseen is None):
            self._tick(cmd.Forecast(fresh))
        self._forecast_seq = self.scheduler.head.seq

    def _commands(self, action: sc.Action) -> list[cmd.AnyCommand]:
        if isinstance(action, sc.Submission):
            return [self._submit(action)]
        if isinstance(action, sc.NodeChange):
            return [self._node(action.event, name) for name in action.nodes]
        if isinstance(action, sc.BudgetChange):
            return [cmd.SetBudget(action.budget, action.spec)]
        if isinstance(action, sc.Cancellation):
            return [cmd.Cancel(action.run)]
        if isinstance(action, sc.Shrink):
            return [cmd.Resize(action.run, action.to)]
        if isinstance(action, sc.ResolveStep):
            return [_by_hand(action)]
        return self._report(action)

    def _report(self, action: sc.Action) -> list[cmd.AnyCommand]:
        if isinstance(action, sc.Completion):
            return [cmd.WorkEnded(action.run, self._attempt(action.run), action.exit_code)]
        if isinstance(action, sc.PodFailure):
            return [cmd.PodFailed(action.run, self._attempt(action.run), action.rank)]
        assert isinstance(action, sc.Application), "reading lets no other action through"
        return self._objects(action.item)

    def _submit(self, each: sc.Submission) -> cmd.AnyCommand:
        if each.work is not None:
            self.jobs.add(each.run, each.work, each.spec.runtime.checkpoint)
        return cmd.Submit(each.run, each.spec, graceful=each.work is not None and each.work.leaves != 0)

    def _objects(self, item: BudgetObject | RunObject | NodeObject) -> list[cmd.AnyCommand]:
        """What applying an object means; of a run that lives, its desired width and its funding can be edited."""
        if isinstance(item, BudgetObject):
            return [cmd.SetBudget(item.key, item.spec)]
        if isinstance(item, NodeObject):
            self.nodes[item.node.name] = item.node
            return [cmd.SetNode(item.node)]
        live = self.scheduler.state.runs.get(item.key)
        if live is None:
            return [cmd.Submit(item.key, item.spec)]
        edits: list[cmd.AnyCommand] = [cmd.SetFunding(item.key, item.spec.funding)]
        if item.spec.malleable is not None:
            edits.append(cmd.Resize(item.key, item.spec.malleable.desired))
        return edits

    def _node(self, event: sc.NodeEvent, name: str) -> cmd.AnyCommand:
        if event is sc.NodeEvent.FAILS:
            self.nodes[name] = replace(self.nodes[name], ready=False)
            return cmd.FailNode(name)
        self.nodes[name] = replace(self.nodes[name], **_CHANGES[event])
        return cmd.SetNode(self.nodes[name])

    def _attempt(self, run: Key) -> int:
        live = self.scheduler.state.runs.get(run)
        return 0 if live is None else live.attempt

    def _tick(self, *commands: cmd.AnyCommand) -> None:
        tick = self.scheduler.tick(self.now, *commands)
        self.internal_errors += [f"{run}: {fault.traceback}" for run, fault in tick.decision.faults.items()]
        self._ticks += 1
        for command, answer in zip(commands, tick.decision.answers, strict=True):
            if isinstance(command, cmd.Resize) and answer is not None:
                about, reason = f"Run/{command.run}", answer.reason.value
                self.refusals.append(StoryLine(self.now, about, warning=True, reason=reason, message=answer.message))
        self._follow(tick)

    def _follow(self, tick: Tick) -> None:
        """Let the work follow what was decided."""
        if tick.entry is None:
            return
        at = tick.entry.at
        resized: dict[Key, None] = {}
        for event in tick.entry.events:
            if isinstance(event, ev.LeasesOpened | ev.LeasesClosed | ev.LeasesLeaving):
                resized[event.run] = None
            self._steer(at, event)
            if isinstance(event, ev.RunSubmitted):
                self.submissions[event.run] = (at, event)
            elif isinstance(event, ev.DesiredSet):
                since, asked = self.submissions[event.run]
                self.submissions[event.run] = since, replace(asked, spec=asked.spec.resized(event.gpus))
            elif isinstance(event, ev.FundingSet):
                since, asked = self.submissions[event.run]
                self.submissions[event.run] = since, replace(asked, spec=asked.spec.funded(event.funding))
            elif isinstance(event, ev.RunEnded):
                self.endings[event.run] = Ending(seq=tick.entry.seq, at=at, ended=event)
            elif isinstance(event, ev.OutcomeRecorded):
                self.outcomes.append(event)
            self.reservations.take(at, event)
        for run in resized:
            live = self.scheduler.state.runs.get(run)
            if live is not None and live.leases:
                self.jobs.width(run, live.attempt, at, live.width)

    def _steer(self, at: int, event: ev.AnyEvent) -> None:
        """Have work leave, stop or be forgotten."""
        if isinstance(event, ev.LeasesLeaving):
            self.jobs.leave(event.run, event.names, at, event.until)
        elif isinstance(event, ev.RunRequeued | ev.RunEnding):
            self.jobs.stop(event.run, at)
        elif isinstance(event, ev.RunEnded):
            self.jobs.forget(event.run)

    def _restart(self) -> None:
        """Throw the engine away and build it from the ledger: nothing may change."""
        before, indexes = snapshot.freeze(self.scheduler.state), snapshot.derived(self.scheduler.state)
        self.scheduler = Scheduler(self.store)
        after = self.scheduler.state
        if snapshot.freeze(after) != before or snapshot.derived(after) != indexes:
            self.faults.append(
                f"the state rebuilt from the ledger at entry {self.scheduler.head.seq} differs from the live one"
            )


_CHANGES: dict[sc.NodeEvent, dict[str, bool]] = {
    sc.NodeEvent.RETURNS: {"ready": True, "pods_dead": False, "fenced": False},
    sc.NodeEvent.CORDONED: {"cordoned": True},
    sc.NodeEvent.UNCORDONED: {"cordoned": False},
    sc.NodeEvent.NOT_READY: {"ready": False},
    sc.NodeEvent.PODS_DEAD: {"pods_dead": True},
}


def _by_hand(action: sc.ResolveStep) -> cmd.Resolve:
    asked = ByHand(
        by=action.by,
        reason=action.reason,
        gpus=action.gpus,
        gpus_per_pod=action.gpus_per_pod,
        group_gpus=action.group_gpus,
    )
    return cmd.Resolve(action.scope.flavor, action.scope.location, asked)
