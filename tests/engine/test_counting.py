"""What counting tells needs no trial: whom a cut would help, and who stands in whose way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.engine.build import HOUR, MINUTE, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.engine.preempt.resolve import resolve
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.runs import Standings
from fairlease.ledger.state.state import State
from fairlease.ledger.state.undo import Trial
from fairlease.ledger.store import snapshot
from fairlease.model.config import Config
from fairlease.model.record import key
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason


@contextmanager
def trials(state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Trial]]:
    """The trials that are made meanwhile."""
    made: list[Trial] = []

    def trial() -> Trial:
        made.append(State.trial(state))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(state, "trial", trial)
        yield made


def test_slots_that_are_promised_to_who_asked_earlier_do_not_count_as_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first claim has a lien on two of the four nodes; a cut there does not help the second, whoever is drawn."""
    world = World(*(node(f"n{number}") for number in range(4)), *(budget(owner) for owner in "abcd"))
    for number in range(4):
        world.submit(f"r{number}", run("abcd"[number], 8, 8))
    world.wait(HOUR)
    world.submit("first", run("a", 16, 8))
    world.submit("second", run("b", 8, 8))
    first, second = world.run("first").hold, world.run("second").hold
    assert first is not None
    assert second is not None
    assert not first.lien.keys() & second.lien.keys()
    free = {world.nodes(f"r{number}")[0]: f"r{number}" for number in range(4)}
    allowed = {key(name) for lying, name in free.items() if lying not in first.lien}
    state, family = world.scheduler.state, world.scheduler.engine.family
    for beacon in map(str, range(16)):
        with trials(state, monkeypatch) as made:
            found = resolve(state, family, world.run("second"), world.now + 16 * MINUTE, 0, due=True, beacon=beacon)
        assert found is not None
        assert {victim.run for victim in found.victims} <= allowed
        assert len(made) == 1, "it was counted, and then verified once"


def test_who_would_not_fit_if_all_without_a_claim_were_gone_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(*(node(f"n{number}") for number in range(4)), budget("a"), budget("b"))
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("rider", run("a", 8, 8, opportunistic=True))
    world.submit("small", run("b", 8, 8))
    world.submit("large", run("b", 16, 8))
    with trials(world.scheduler.state, monkeypatch) as made:
        assert world.submit("all", run("a", 24, 8)) == "Reserved"
    assert len(made) == 1, "the tick itself"
    with trials(world.scheduler.state, monkeypatch) as made:
        assert world.submit("some", run("b", 8, 8)) == "Running"
    assert len(made) > 1, "where it may help, it is tried"
    assert world.closures("rider") == {"ReclaimOpportunistic"}


def _standings(standings: Standings) -> list[dict[str, list[int]]]:
    kinds = (standings.near, standings.far, standings.blocked)
    return [{flavor: list(runs) for flavor, runs in kind.items() if runs} for kind in kinds]


def _seen(state: State) -> tuple[object, ...]:
    holds = sorted(each for each, run in state.runs.items() if run.hold is not None)
    return snapshot.derived(state), holds, sorted(state.holds), _standings(state.standings), state.timers.next()


def test_reservations_that_are_set_aside_at_once_are_gone_as_if_each_had_been_canceled() -> None:
    world = World(*(node(f"n{number}") for number in range(2)), budget("a"), budget("b", envelope(concurrency=8)))
    world.tick(cmd.Configure(Config(notice=None)))
    for number in range(12):
        world.submit(f"r{number}", run("a", 8, 8))
    world.submit("poor", run("b", 8, 8))
    world.wait(MINUTE)
    world.write(budget("b", envelope(concurrency=4)))
    state = world.scheduler.state
    assert any(not run.hold.holds for run in state.holds.values() if run.hold is not None), "one is blocked"
    assert _standings(state.standings)[1], "and some are far"
    kept, before = {key("r3"), key("r9")}, _seen(state)
    trial = state.trial()
    for each in [each for each in state.holds if each not in kept]:
        state.apply(world.now, ev.ReservationTurned(run=each, state=ReservationState.CANCELED, reason=Reason.Notice))
    one_by_one, dirty = _seen(state), state.dirty.flavors
    trial.undo()
    trial = state.trial()
    state.pretend_reserved(kept)
    assert _seen(state) == one_by_one
    assert state.dirty.flavors == dirty
    trial.undo()
    assert _seen(state) == before
