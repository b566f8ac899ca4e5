"""Decide: what follows from a request, an observation, or the passing of time.

One call is one tick. Commands become events, events change the state at once, and then everything that could now come out
otherwise is settled. Nothing here knows a clock or does I/O: the caller hands in `now`, appends what comes out, and keeps or
undoes it. `decide` and `_settle` show the steps in the order in which they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.command import (
    AnyCommand,
    Drill,
    FailNode,
    Forecast,
    PodsGone,
    RemoveNode,
    SetNode,
    Submit,
    TimePassed,
)
from fairlease.engine.context import Decision, Engine, Try
from fairlease.engine.forecast import forecast
from fairlease.engine.refusal import Refusal
from fairlease.engine.reserve import pull_in, reservation
from fairlease.engine.tick import coverage, departures, drill, failover, growth, lifecycle
from fairlease.engine.tick.scheduling_pass import SchedulingPass, promote, woken
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.timers import Due
from fairlease.model.record import Key
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.ledger.state.runs import RunState

HANDLERS = lifecycle.HANDLERS | {Drill: drill.rehearse, PodsGone: departures.report}
_ABOUT_NODES = (SetNode, FailNode, RemoveNode)


def decide(engine: Engine, commands: tuple[AnyCommand, ...]) -> Decision:
    """One tick over `engine.state`, inside a trial that the caller keeps or undoes."""
    tries: list[Try] = []
    answers: list[Refusal | None] = []
    removed: set[str] = set()
    #  0  runs whose handling failed when this tick was tried before: they are left alone for a while
    for key, fault in engine.faults.items():
        lifecycle.quarantine(engine, key, fault.message)
    for command in commands:
        #  1  failed nodes: those that fail one after the other, in one tick, fail together
        if engine.state.dirty.failed and not _another_node(command, engine.state.dirty.failed):
            failover.recover(engine, removed)
        #  2  commands: requests and reports become facts, or refusals with a reason
        answer = _obey(engine, command, tries)
        answers.append(answer)
        if isinstance(command, RemoveNode) and answer is None:
            removed.add(command.node)
    failover.recover(engine, removed)
    #  3  timers of an earlier instant that nobody told of: nobody may start on what is over
    overdue = engine.state.timers.next()
    if overdue is not None and overdue < engine.now:
        _pass_time(engine, tries)
    _settle(engine, [], set(), tries)
    return Decision(tuple(engine.events), tuple(answers), tuple(tries), engine.faults)


def _settle(engine: Engine, due: list[RunState], cooled: set[Key], tries: list[Try]) -> None:
    """Follow every change to its end. Ends because starting only takes, and what it frees by preempting is finite.

    `due`: runs whose reservations fell due; `cooled`: elastic runs whose cooldown is over.
    """
    state, candidates = engine.state, growth.GrowthCandidates(cooled)
    while True:
        engine.subject = None
        #  4  coverage: units lose or regain their cover
        coverage.settle(engine)
        #  5  drains: overdrawn work under Drain whose grace is over ends
        if coverage.drain(engine):
            continue
        candidates.take(state.dirty)
        #  6  dates that facts have made sooner: those of whoever asked first, before later runs pass by the old date
        pull_in.lead(engine)
        #  7  pending runs that something could have helped, in order of asking; a later one may pass an earlier one
        SchedulingPass(engine, woken(engine, due), tries).go()
        due = []
        #  8  all other dates that facts have made sooner, and liens for those who asked next
        if not state.dirty and state.dirty.shaken:
            pull_in.follow(engine)
        if not state.dirty and state.standings.far and not engine.rehearses:
            promote(engine, tries)
        #  9  growth: elastic runs widen by a step, where their cooldown is over or something could have helped
        if not state.dirty:
            growth.settle(engine, candidates)
            candidates = growth.GrowthCandidates()
        if not state.dirty and not state.dirty.shaken:
            return


def _pass_time(engine: Engine, tries: list[Try]) -> None:
    """Everything that falls due up to now: deadlines, debounce, windows, hours, reservations, cooldowns; latest starts last."""
    state = engine.state
    due_runs: list[RunState] = []
    cooled: set[Key] = set()
    for due, subject in state.timers.due(engine.now):
        if state.timers.times.get((due, subject)) is None:
            continue
        if due is Due.DEADLINE:
            engine.subject = Key(subject[0])
            lifecycle.time_limit(engine, Key(subject[0]))
        elif due is Due.DEBOUNCE:
            lifecycle.fail_node(engine, subject[0])
        elif due in (Due.WINDOW, Due.EXHAUSTED, Due.CAP):
            _turn(engine, due, *subject)
        elif due is Due.RESERVATION:
            engine.subject = Key(subject[0])
            run = state.runs[engine.subject]
            reservation.settle(engine, run, ReservationState.ACTIVE, Reason.Due)
            due_runs.append(run)
        elif due is Due.RETRY:
            engine.emit(ev.BackoffEnded(run=Key(subject[0])))
        elif due is Due.GROW:
            cooled.add(Key(subject[0]))
    failover.recover(engine, set())
    _settle(engine, due_runs, cooled, tries)
    for due, subject in state.timers.due(engine.now):
        if due is Due.LATEST_START and Key(subject[0]) in state.runs:
            engine.subject = Key(subject[0])
            lifecycle.end_run(engine, state.runs[Key(subject[0])], Reason.LatestStartPassed)


def _obey(engine: Engine, command: AnyCommand, tries: list[Try]) -> Refusal | None:
    if isinstance(command, TimePassed):
        _pass_time(engine, tries)
        return None
    if isinstance(command, Forecast):
        overdue = engine.state.timers.next()
        if overdue is not None and overdue < engine.now:
            _pass_time(engine, tries)
        _settle(engine, [], set(), tries)
        engine.subject = None
        forecast.record(engine, command.runs)
        return None
    engine.subject = subject = getattr(command, "run", None)
    fault = None if subject is None else engine.faults.get(subject)
    if fault is not None and fault.request:
        return Refusal(Reason.InternalError, fault.message, {})
    engine.requested = True
    answer = HANDLERS[type(command)](engine, command)
    engine.requested = False
    if isinstance(command, Submit) and answer is None and fault is not None:
        lifecycle.quarantine(engine, command.run, fault.message)
    return answer


def _another_node(command: AnyCommand, failed: dict[str, None]) -> bool:
    """Whether a command is about a node that did not fail in this tick yet."""
    if not isinstance(command, _ABOUT_NODES):
        return False
    return (command.node.name if isinstance(command, SetNode) else command.node) not in failed


def _turn(engine: Engine, due: Due, budget: str, name: str) -> None:
    """A window opens or closes, or hours have run out."""
    if due is Due.CAP:
        engine.emit(ev.EnvelopeTurned(budget=Key(budget), cap=name, turn=ev.Turn.EXHAUSTED))
        return
    account = engine.state.account(Key(budget), name)
    terms = account.envelope
    assert terms is not None, "an envelope without terms has no timers"
    closed = terms.end is not None and terms.end <= engine.now
    turn = ev.Turn.CLOSED if closed else ev.Turn.OPENED
    if due is Due.EXHAUSTED:
        turn = ev.Turn.EXHAUSTED if account.exhausted(engine.now) else ev.Turn.LENT_OUT
    engine.emit(ev.EnvelopeTurned(budget=Key(budget), envelope=name, turn=turn))
