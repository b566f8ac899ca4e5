"""A fault while one run is handled is that run's: it is left alone for a while, and the tick goes on for everybody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.build import HOUR, MINUTE, World, budget, node, run

from fairlease.engine import command as cmd
from fairlease.engine.tick import failover, growth, lifecycle, scheduling_pass
from fairlease.ledger.state import events as ev
from fairlease.ledger.store import snapshot
from fairlease.model.record import Key, key
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.report.notices import NoticeKind, of_entry
from fairlease.report.views import run_status
from fairlease.scheduler import Scheduler


def failing(monkeypatch: pytest.MonkeyPatch, module: object, name: str, bad: str) -> Callable[[], None]:
    """Let a step fail for one run, until what this returns is called."""
    real = getattr(module, name)

    def step(engine: object, subject: object, *more: object) -> object:
        found = subject if isinstance(subject, str) else subject.key  # type: ignore[attr-defined]  # a run, or its name
        if found == key(bad):
            raise ZeroDivisionError("as if")
        return real(engine, subject, *more)

    monkeypatch.setattr(module, name, step)
    return lambda: monkeypatch.setattr(module, name, real)


def faulty(*things: object) -> World:
    world = World(*things)  # type: ignore[arg-type]  # nodes and Budgets
    world.faulty = True
    return world


def test_a_fault_while_one_run_starts_leaves_everybody_else_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), budget("org"))
    heal = failing(monkeypatch, scheduling_pass, "start", "bad")
    assert world.submit("bad", run("org", 4, 4)) == "InternalError"
    assert world.submit("good", run("org", 4, 4)) == "Running"
    assert world.scheduler.state.undo.depth == 0
    heal()
    world.wait(2 * MINUTE)
    assert world.how("bad") == "Running"


def test_a_fault_of_a_due_reservation_stops_no_tick_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), node("b0", flavor="A100"), budget("org"))
    world.submit("holder", run("org", 8, 8))
    world.wait(HOUR)
    world.submit("claim", run("org", 8, 8))
    heal = failing(monkeypatch, scheduling_pass, "start", "claim")
    world.wait(16 * MINUTE)
    claim = world.run("claim")
    assert (claim.reason, claim.phase) == (Reason.InternalError, Phase.PENDING)
    assert claim.hold is not None
    assert (claim.hold.state, claim.hold.reason) == (ReservationState.BLOCKED, Reason.InternalError)
    assert not any(each.liens for each in world.scheduler.state.capacity.nodes.values())
    heal()
    world.wait(HOUR)
    assert world.run("claim").reason is not Reason.InternalError


def test_a_fault_is_tried_again_after_a_pause_that_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), budget("org"))
    failing(monkeypatch, scheduling_pass, "start", "bad")
    world.submit("bad", run("org", 4, 4))
    world.wait(8 * MINUTE)
    pauses = [
        event.until - entry.at
        for entry in world.store.entries()
        for event in entry.events
        if isinstance(event, ev.RunQuarantined)
    ]
    assert pauses == [MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE]


def test_a_run_that_could_not_be_handled_says_so_wherever_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), budget("org"))
    failing(monkeypatch, scheduling_pass, "start", "bad")
    world.submit("bad", run("org", 4, 4))
    view = run_status(world.run("bad"), world.now)
    assert "the scheduler failed to handle it (ZeroDivisionError)" in view["message"]
    assert any(each["reason"] == "InternalError" for each in view["conditions"])
    notices = [each for entry in world.store.entries() for each in of_entry(world.scheduler.engine, entry, str)]
    assert [(each.kind, each.run) for each in notices] == [(NoticeKind.INTERNAL_ERROR, key("bad"))]


def test_a_request_about_the_faulty_run_is_refused_and_others_in_the_tick_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = faulty(node("a0"), budget("org"))
    world.submit("bad", run("org", 4, 4))
    world.submit("good", run("org", 4, 4))

    def crash(*_: object) -> None:
        raise KeyError("as if")

    real = lifecycle.end_run
    monkeypatch.setattr(
        lifecycle,
        "end_run",
        lambda engine, each, *more: (crash if each.key == key("bad") else real)(engine, each, *more),
    )
    done = world.tick(cmd.Cancel(key("bad")), cmd.Cancel(key("good")))
    refused, answered = done.decision.answers
    assert refused is not None
    assert refused.reason is Reason.InternalError
    assert answered is None
    assert (world.how("bad"), world.how("good")) == ("Running", "Canceled")


def test_an_elastic_run_that_cannot_be_grown_for_a_fault_goes_on_and_others_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = faulty(node("a0"), node("a1"), budget("org"))
    world.submit("bad", run("org", 8, 4, elastic=(4, 8, 4), max_duration=HOUR))
    world.submit("good", run("org", 4, 4, elastic=(4, 8, 4)))
    heal = failing(monkeypatch, growth, "_grow", "bad")
    world.tick(cmd.Resize(key("bad"), 4), cmd.Resize(key("good"), 4))
    world.tick(cmd.Resize(key("bad"), 8), cmd.Resize(key("good"), 8))
    world.wait(2 * MINUTE)
    assert (world.run("bad").width, world.run("good").width) == (4, 8)
    assert world.run("bad").stalled is Reason.InternalError
    heal()
    world.wait(10 * MINUTE)
    assert world.run("bad").width == 8
    world.wait(HOUR)
    assert world.how("bad") == "TimeLimit"


def test_the_attempt_of_a_run_whose_recovery_fails_ends_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), node("a1"), budget("org"))
    world.submit("bad", run("org", 16, 8, elastic=(8, 16, 8)))

    def crash(*_: object) -> None:
        raise KeyError("as if")

    monkeypatch.setattr(failover, "fate_of", crash)
    world.tick(cmd.FailNode("a0"))
    assert world.how("bad") == "NodeFailure"
    assert world.scheduler.state.open_leases == 0


def test_a_time_limit_that_cannot_be_carried_out_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), budget("org"))
    world.submit("bad", run("org", 4, 4, max_duration=HOUR))
    heal = failing(monkeypatch, lifecycle, "time_limit", "bad")
    world.wait(HOUR)
    assert world.how("bad") == "Running"
    heal()
    world.wait(2 * MINUTE)
    assert world.how("bad") == "TimeLimit"


def test_a_state_with_a_run_left_alone_is_the_same_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), budget("org"))
    failing(monkeypatch, scheduling_pass, "start", "bad")
    world.submit("bad", run("org", 4, 4, latest_start=world.now + 30_000))
    before = snapshot.freeze(world.scheduler.state), snapshot.derived(world.scheduler.state)
    for forced in (False, True):
        world.scheduler.save_snapshot(force=forced)
        again = Scheduler(world.store)
        assert (snapshot.freeze(again.state), snapshot.derived(again.state)) == before


def test_a_fault_that_is_nobodys_undoes_the_whole_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    world = faulty(node("a0"), budget("org"))
    before = snapshot.freeze(world.scheduler.state)

    def crash(*_: object) -> None:
        raise KeyError("as if")

    monkeypatch.setattr("fairlease.engine.tick.coverage.settle", crash)
    with pytest.raises(KeyError):
        world.tick(cmd.SetBudget(Key("default/other"), budget("other")))
    assert snapshot.freeze(world.scheduler.state) == before
    assert world.scheduler.state.undo.depth == 0
