"""Names of runs that ended: kept for a while, then free, and never the cause that two leases have one name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import T0, World, budget, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.audit.audit import audit
from fairlease.ledger.state.names import NUMBERS_PER_LIFE, EndedNames
from fairlease.ledger.state.undo import UndoLog
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.model.amount import DAY, HOUR
from fairlease.model.record import key
from fairlease.reason import Reason
from fairlease.runtime.queries.history import RunHistory, look_back


def a_long_life() -> World:
    """A run that completes, and another of its name a month later."""
    world = World(node("n"), budget("a"))
    world.submit("r", run("a", 8))
    world.now += HOUR
    world.end("r")
    world.now += 30 * DAY - 1
    refusal = world.tick(cmd.Submit(key("r"), run("a", 4))).decision.answers[0]
    assert refusal is not None
    assert refusal.reason is Reason.AlreadyExists
    world.now += 1
    world.submit("r", run("a", 2))
    return world


def test_a_name_is_free_again_after_its_retention_and_leases_are_told_apart() -> None:
    world = a_long_life()
    world.now += HOUR
    world.end("r")
    rows = list(world.scheduler.store.leases(LeaseQuery(run=key("r"))))
    numbers = (*range(8), NUMBERS_PER_LIFE, NUMBERS_PER_LIFE + 1)
    assert [row.lease.name for row in rows] == [f"r-1-{number}" for number in numbers]
    assert audit(world.scheduler.store.entries()).ok


def test_answers_about_the_past_tell_both_apart() -> None:
    world = a_long_life()
    asked = RunHistory(world.scheduler).find(key("r"))
    assert asked is not None
    assert (asked.spec.resources.total_gpus, asked.ending) == (2, None)
    world.now += HOUR
    world.end("r")
    later, first = look_back(world.scheduler.store, 10, 0)
    assert (later.spec.resources.total_gpus, later.submitted_at) == (2, T0 + HOUR + 30 * DAY)
    assert (first.spec.resources.total_gpus, first.submitted_at) == (8, T0)


def test_a_run_that_is_forgotten_can_still_be_found() -> None:
    world = World(node("n"), budget("a"))
    world.submit("r", run("a", 8))
    world.end("r")
    for day in range(40):
        world.now += DAY
        world.submit(f"d{day}", run("a", 8))
        world.end(f"d{day}")
    state = world.scheduler.state
    assert key("r") not in state.ended
    assert len(state.ended) <= 34
    assert state.queue.following == {}
    found = RunHistory(world.scheduler).find(key("r"))
    assert found is not None
    assert found.ending is not None
    twin = snapshot.thaw(snapshot.freeze(state))
    assert snapshot.freeze(twin) == snapshot.freeze(state)
    assert audit(world.scheduler.store.entries()).ok


def test_what_is_forgotten_in_a_trial_is_known_again_after_it() -> None:
    names, undo = EndedNames(), UndoLog()
    for day in range(28):
        names.forget(undo, day * DAY, 30 * DAY)
        names.add(undo, key(f"r{day}"), day * DAY, completed=day % 2 == 0)
    before = names.freeze()
    with undo.trial():
        names.forget(undo, 57 * DAY, 30 * DAY, used=key("r27"))
        assert key("r27") not in names
        names.add(undo, key("late"), 57 * DAY, completed=False)
        names.forget(undo, 200 * DAY, 30 * DAY)
        assert (len(names), names.life) == (0, 2)
    assert names.freeze() == before
    assert [names.completed(key(f"r{day}")) for day in range(29)] == [True, False] * 14 + [None]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.booleans()), max_size=60))
def test_every_name_is_kept_for_its_retention_and_little_longer(ends: list[tuple[int, int, bool]]) -> None:
    names, undo, now, known = EndedNames(), UndoLog(), 0, dict[int, tuple[int, bool]]()
    lives: dict[int, int] = {}
    for wait, number, completed in ends:
        now += wait * HOUR
        run, before = key(f"r{number}"), known.get(number)
        taken = names.taken(run, now, 3 * DAY)
        assert taken or before is None or now >= before[0] + 3 * DAY, "it is taken as long as it is kept"
        assert not taken or (before is not None and now < before[0] + 3 * DAY + 8 * HOUR), "a tenth longer at most"
        if not taken:
            names.forget(undo, now, 3 * DAY, used=run)
            assert before is None or names.life > lives[number], "between two of one name lies another life"
            lives[number] = names.life
            names.add(undo, run, now, completed=completed)
            known[number] = now, completed
        for other, (at, how) in known.items():
            if now < at + 3 * DAY:
                assert names.completed(key(f"r{other}")) is how
        twin = EndedNames()
        twin.thaw(names.freeze())
        assert twin.freeze() == names.freeze()
        assert all(twin.completed(key(f"r{each}")) == names.completed(key(f"r{each}")) for each in range(10))


def test_lives_are_few_however_many_names_are_forgotten() -> None:
    names, undo = EndedNames(), UndoLog()
    for hour in range(365 * 24):
        names.forget(undo, hour * HOUR, 30 * DAY)
        names.add(undo, key(f"r{hour}"), hour * HOUR, completed=True)
    assert names.life <= 365 / 3
    assert len(names) <= 34 * 24
    assert len(b"".join(each for _, each in names.freeze()[2])) <= 34 * 24 * 8


def test_who_is_canceled_while_it_follows_leaves_nothing_behind() -> None:
    world = World(node("n"), budget("a"))
    world.submit("r", run("a", 8, after=("later",)))
    assert world.scheduler.state.queue.following
    world.tick(cmd.Cancel(key("r")))
    assert world.scheduler.state.queue.following == {}
