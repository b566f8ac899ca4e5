"""Lifecycle: what each command does to a run, a node or a Budget, and how attempts end (SEMANTICS §2, §4, §8).

Terminal is terminal: a report about an attempt that is over, or about a run that ended, changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.engine import command as cmd
from fairlease.engine.preempt.drain import free_by_hand
from fairlease.engine.preempt.shrink import group_widths, nearest_widths, release
from fairlease.engine.preempt.victims import drained
from fairlease.engine.refusal import Refusal
from fairlease.engine.reserve import reservation
from fairlease.engine.tick.leaving import ask_to_leave, close
from fairlease.ledger.state import events as ev
from fairlease.model.amount import HOUR, MINUTE, format_instant
from fairlease.model.record import Key, key, short, split
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.engine.context import Engine
    from fairlease.engine.preempt.resolve import Resolution
    from fairlease.ledger.state.runs import RunState, Unit


QUARANTINE_FIRST, QUARANTINE_MAX = MINUTE, HOUR
"""How long a run is left alone after a fault in its handling; twice as long after each, up to the most."""


def _refuse(reason: Reason, message: str) -> Refusal:
    return Refusal(reason, message, {})


# --- requests --------------------------------------------------------------------------------------------------------------


def _configure(engine: Engine, command: cmd.Configure) -> None:
    if command.config != engine.state.config or engine.state.at == 0:
        engine.emit(ev.Configured(config=command.config))


def _set_budget(engine: Engine, command: cmd.SetBudget) -> None:
    if engine.state.budgets.get(command.budget) != command.spec:
        engine.emit(ev.BudgetSet(budget=command.budget, spec=command.spec))


def _remove_budget(engine: Engine, command: cmd.RemoveBudget) -> Refusal | None:
    if command.budget not in engine.state.budgets:
        return _refuse(Reason.NotFound, f"there is no Budget {short(command.budget)}")
    engine.emit(ev.BudgetRemoved(budget=command.budget))
    return None


def _submit(engine: Engine, command: cmd.Submit) -> Refusal | None:
    state = engine.state
    if state.name_taken(command.run, engine.now):
        return _refuse(
            Reason.AlreadyExists, f"a run {short(command.run)} exists already; {Reason.AlreadyExists.remedy}"
        )
    engine.emit(ev.RunSubmitted(run=command.run, spec=command.spec, by=command.by, graceful=command.graceful))
    run = state.runs[command.run]
    namespace, _ = split(command.run)
    upstream = [key(name, namespace) for name in command.spec.follow.after]
    latest = command.spec.runtime.latest_start
    if any(_failed(engine, each) for each in upstream):
        end_run(engine, run, Reason.UpstreamFailed)
    elif latest is not None and latest < engine.now:
        end_run(engine, run, Reason.LatestStartPassed)
    elif run.awaits:
        names = ", ".join(short(each) for each in run.awaits)
        engine.emit(ev.RunDeferred(runs=(run.key,), reason=Reason.Following, message=f"waits for {names} to complete"))
    return None


def _failed(engine: Engine, run: Key) -> bool:
    """Whether a run is over that others follow in vain."""
    live = engine.state.runs.get(run)
    return engine.state.ended.completed(run) is False or (live is not None and live.phase is Phase.FAILED)


def _cancel(engine: Engine, command: cmd.Cancel) -> Refusal | None:
    run = live(engine, command.run)
    if run is None:
        return gone(engine, command.run)
    if run.leases:
        ask_to_leave(engine, run, (), Reason.Canceled)
    end_run(engine, run, Reason.Canceled)
    return None


def _resize(engine: Engine, command: cmd.Resize) -> Refusal | None:
    run = live(engine, command.run)
    if run is None:
        return gone(engine, command.run)
    elastic, wanted = run.spec.malleable, command.desired
    if elastic is None:
        return _refuse(Reason.InvalidRequest, rigid(run.key, run.spec))
    if wanted not in elastic.grid:
        nearest = " and ".join(str(width) for width in nearest_widths(elastic, wanted))
        told = f"{wanted} GPUs are not on the step grid of {short(run.key)}; nearest: {nearest}"
        return _refuse(Reason.InvalidRequest, told)
    if wanted != elastic.desired:
        engine.emit(ev.DesiredSet(run=run.key, gpus=wanted))
    if run.width > wanted:
        going = release(run, group_widths(run), wanted) or frozenset()
        names = tuple(lease.name for lease in run.held if lease.group in going)
        if names:
            ask_to_leave(engine, run, names, Reason.Shrink)
    return None


def rigid(run: Key, spec: RunSpec) -> str:
    """Why a run that is not elastic gets no other width."""
    return f"{short(run)} is rigid: it is {spec.resources.total_gpus} GPUs wide or does not run"


def _set_funding(engine: Engine, command: cmd.SetFunding) -> Refusal | None:
    run = live(engine, command.run)
    if run is None:
        return gone(engine, command.run)
    if run.spec.funding != command.funding:
        engine.emit(ev.FundingSet(run=run.key, funding=command.funding))
    return None


def live(engine: Engine, name: Key) -> RunState | None:
    """A run that is not over."""
    run = engine.state.runs.get(name)
    return None if run is None or run.over else run


def gone(engine: Engine, run: Key) -> Refusal:
    """Why nothing can be done to a run that does not live."""
    if run in engine.state.ended or run in engine.state.runs:
        return _refuse(Reason.Terminal, f"{short(run)} has ended already")
    return _refuse(Reason.NotFound, f"there is no run {short(run)}")


# --- reports ---------------------------------------------------------------------------------------------------------------


def _work_started(engine: Engine, command: cmd.WorkStarted) -> Refusal | None:
    run = _running(engine, command.run, command.attempt)
    if run is None:
        return _refuse(Reason.Terminal, f"attempt {command.attempt} of {short(command.run)} is not running")
    if run.starting:
        engine.emit(ev.RunStarted(run=run.key))
    return None


def _start_failed(engine: Engine, command: cmd.StartFailed) -> Refusal | None:
    """Its pods do not start where they were placed: neither its own failure nor a preemption, so it asks again in any case."""
    run = _running(engine, command.run, command.attempt)
    if run is None:
        return _refuse(Reason.Terminal, f"attempt {command.attempt} of {short(command.run)} is not running")
    engine.emit(ev.LeasesClosed(run=run.key, reason=Reason.NotScheduled))
    _ask_again(engine, run, Reason.NotScheduled, command.message, command.retry_after)
    return None


def _work_ended(engine: Engine, command: cmd.WorkEnded) -> Refusal | None:
    run = _running(engine, command.run, command.attempt)
    if run is None:
        return _refuse(Reason.Terminal, f"attempt {command.attempt} of {short(command.run)} is not running")
    if command.exit_code == 0:
        close(engine, run, (), Reason.Completed)
        end_run(engine, run, Reason.Completed)
    else:
        close(engine, run, (), Reason.Fail)
        _fail_attempt(engine, run, f"the work ended with exit code {command.exit_code}", command.retry_after)
    return None


def _pod_failed(engine: Engine, command: cmd.PodFailed) -> Refusal | None:
    run = _running(engine, command.run, command.attempt)
    if run is None:
        return _refuse(Reason.Terminal, f"attempt {command.attempt} of {short(command.run)} is not running")
    if all(lease.rank != command.rank for lease in run.leases.values()):
        return _refuse(
            Reason.NotFound, f"{short(command.run)} has no pod of rank {command.rank} any more, or never had"
        )
    message = f"rank {command.rank} failed with exit code {command.exit_code}"
    ask_to_leave(engine, run, (), Reason.Fail, dead=command.rank)
    _fail_attempt(engine, run, message, command.retry_after)
    return None


def _running(engine: Engine, name: Key, attempt: int) -> RunState | None:
    run = engine.state.runs.get(name)
    return run if run is not None and run.phase is Phase.RUNNING and run.attempt == attempt else None


def _set_node(engine: Engine, command: cmd.SetNode) -> None:
    node = command.node
    known = engine.state.capacity.nodes.get(node.name)
    if known is None or known.node != node or (known.failed and node.ready and not node.fenced):
        engine.emit(ev.NodeSet(node=node))
    state = engine.state.capacity.nodes[node.name]
    since = state.not_ready_since
    silent = since is not None and node.pods_dead and engine.now >= since + engine.state.config.node_debounce
    if (node.fenced or silent) and not state.failed:
        fail_node(engine, node.name)


def _fail_node(engine: Engine, command: cmd.FailNode) -> Refusal | None:
    state = engine.state.capacity.nodes.get(command.node)
    if state is None:
        return _refuse(Reason.NotFound, f"there is no node {command.node}")
    if not state.failed:
        fail_node(engine, command.node)
    return None


def _remove_node(engine: Engine, command: cmd.RemoveNode) -> Refusal | None:
    if command.node not in engine.state.capacity.nodes:
        return _refuse(Reason.NotFound, f"there is no node {command.node}")
    fail_node(engine, command.node)
    return None


# --- how things end --------------------------------------------------------------------------------------------------------


def fail_node(engine: Engine, name: str) -> None:
    """A node counts as failed. What follows is `failover.recover`'s, once all that fail at this moment are known."""
    engine.emit(ev.NodeFailed(node=name))


def quarantine(engine: Engine, name: Key, message: str) -> None:
    """A fault while a run was handled: it holds no lien, and is left alone for a while, longer each time."""
    run = live(engine, name)
    if run is None:
        return
    until = engine.now + min(QUARANTINE_FIRST << min(run.faults, 16), QUARANTINE_MAX)
    reservation.settle(engine, run, ReservationState.BLOCKED, Reason.InternalError, message)
    engine.emit(ev.RunQuarantined(run=name, message=message, until=until))


def give_way_to_spare(engine: Engine, tenant: RunState, run: RunState) -> None:
    """Opportunistic work lies on a spare that is needed: its attempt is over, at once and whole."""
    ask_to_leave(engine, tenant, (), Reason.ReclaimedBySpare)
    preempt(engine, tenant, Reason.ReclaimedBySpare, f"a spare of {short(run.key)} was needed")


def time_limit(engine: Engine, name: Key) -> None:
    """A run reached its maxDuration."""
    run = engine.state.runs[name]
    ask_to_leave(engine, run, (), Reason.TimeLimit)
    end_run(engine, run, Reason.TimeLimit)


def drain(engine: Engine, unit: Unit) -> None:
    """Overdrawn work under Drain whose grace is over: a rigid run goes whole, an elastic one loses the group if it can."""
    run = engine.state.runs[Key(unit[0])]
    reason, message = Reason.BudgetExhausted, f"envelope {unit[2]} of Budget {short(Key(unit[1]))} no longer covers it"
    victim = drained(run, unit[3])
    ask_to_leave(engine, run, () if victim.whole else victim.names, reason)
    if victim.whole:
        preempt(engine, run, reason, message)


def cut(engine: Engine, resolution: Resolution) -> None:
    """Carry out a resolution: first its record, then the cuts."""
    engine.emit(resolution.record)
    outcome = resolution.record.outcome
    claim = outcome.claimant
    for victim in resolution.victims:
        ask_to_leave(engine, engine.state.runs[victim.run], victim.names, victim.reason, victim.seed)
        if victim.whole:
            message = f"gave way to {claim} ({resolution.record.name})"
            by = None if victim.seed is None or outcome.claim is None else outcome.claim.key
            preempt(engine, engine.state.runs[victim.run], victim.reason, message, by)


def _resolve(engine: Engine, command: cmd.Resolve) -> Refusal | None:
    """Free GPUs for an administrator; where enough are free already, nothing happens."""
    with engine.state.trial():
        engine.state.pretend_left()
        found = free_by_hand(engine.state, command, engine.now, engine.beacon)
    if isinstance(found, Refusal):
        return found
    if found is not None:
        cut(engine, found)
    return None


def preempt(engine: Engine, run: RunState, reason: Reason, message: str, by: Key | None = None) -> None:
    """An attempt was ended by others: `onPreempt` decides between another attempt and the end."""
    if run.spec.requeues:
        engine.emit(ev.RunRequeued(run=run.key, reason=reason, message=message, by=by))
    else:
        end_run(engine, run, reason, message)


def _fail_attempt(engine: Engine, run: RunState, message: str, pause: int) -> None:
    """Its own work failed: another attempt is asked for while retries are left, after a pause where the backend wants one."""
    if run.failures < run.spec.runtime.retries:
        _ask_again(engine, run, Reason.Fail, message, pause)
    else:
        end_run(engine, run, Reason.Fail, message)


def _ask_again(engine: Engine, run: RunState, reason: Reason, message: str, pause: int) -> None:
    """Another attempt, after a pause where there is to be one: what failed may fail again."""
    not_before = engine.now + pause if pause else None
    engine.emit(ev.RunRequeued(run=run.key, reason=reason, message=message, not_before=not_before))
    if not_before is not None:
        told = f"{message}; attempt {run.attempt} is asked for at {format_instant(not_before)}"
        waits = Reason.BackOff if reason is Reason.Fail else reason
        engine.emit(ev.RunDeferred(runs=(run.key,), reason=waits, message=told))


def end_run(engine: Engine, run: RunState, reason: Reason, message: str = "") -> None:
    """A run is over for good, and with it, if it failed, all that follow it."""
    todo = [(run, reason, message)]
    while todo:
        run, reason, message = todo.pop()
        if run.key not in engine.state.runs or run.over:
            continue
        reservation.settle(engine, run, ReservationState.CANCELED, reason)
        phase = Phase.COMPLETED if reason is Reason.Completed else Phase.FAILED
        followers = sorted(engine.state.queue.following.get(run.key, {}).values(), key=lambda each: each.order)
        if run.leaving:
            engine.emit(ev.RunEnding(run=run.key, phase=phase, reason=reason, message=message))
        else:
            _ended(engine, run, phase, reason, message)
        if phase is Phase.FAILED:
            told = f"{short(run.key)}, which it follows, failed"
            todo.extend((each, Reason.UpstreamFailed, told) for each in followers)


def end_if_left(engine: Engine, run: RunState) -> None:
    """A run that was over has ended when the last of its GPUs is free."""
    if run.over and not run.leaving:
        _ended(engine, run, run.phase, run.reason, run.message)


def _ended(engine: Engine, run: RunState, phase: Phase, reason: Reason, message: str) -> None:
    engine.emit(
        ev.RunEnded(
            run=run.key,
            phase=phase,
            reason=reason,
            message=message,
            attempt=run.attempt,
            bill=run.bill(engine.now),
            started_at=run.first_started_at,
        )
    )


HANDLERS: dict[type, Callable[[Engine, Any], Refusal | None]] = {
    cmd.Configure: _configure,
    cmd.SetNode: _set_node,
    cmd.FailNode: _fail_node,
    cmd.RemoveNode: _remove_node,
    cmd.SetBudget: _set_budget,
    cmd.RemoveBudget: _remove_budget,
    cmd.Submit: _submit,
    cmd.Cancel: _cancel,
    cmd.WorkStarted: _work_started,
    cmd.StartFailed: _start_failed,
    cmd.WorkEnded: _work_ended,
    cmd.PodFailed: _pod_failed,
    cmd.Resize: _resize,
    cmd.Resolve: _resolve,
    cmd.SetFunding: _set_funding,
}
