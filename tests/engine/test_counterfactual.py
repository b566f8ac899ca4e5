"""Counterfactuals: whatever is said to start a run starts it when it is really done, and asking changes nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import HOUR, MINUTE, LocationPolicy, World, budget, envelope, lending, node, run

from fairlease.engine import command as cmd
from fairlease.engine.counterfactual import Change, Counterfactual, Kind
from fairlease.ledger import snapshot
from fairlease.ledger.memory import MemoryStore
from fairlease.model.record import Key, key
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason
from fairlease.scheduler import Scheduler
from fairlease.sim.trial import Film

WISH = key("wish")


def changes(world: World, spec: RunSpec) -> dict[Kind, Change]:
    """What would help a run that is asked for now, by kind; each that starts at once is submitted, and must start."""
    found = Counterfactual(world.scheduler.engine, WISH, spec, world.now).changes()
    for change in found:
        if change.trial.starts and change.kind is not Kind.WAIT:
            with world.scheduler.what_if(world.now, cmd.Submit(WISH, change.spec)):
                assert world.scheduler.state.runs[WISH].phase is Phase.RUNNING, change
    return {change.kind: change for change in found}


def test_fewer_gpus_are_as_many_as_would_start_now() -> None:
    world = World(node("a0"), node("a1"), budget("org:x"))
    assert world.submit("other", run("org:x", 5)) == "Running"
    found = changes(world, run("org:x", 16))
    assert (found[Kind.FEWER_GPUS].before, found[Kind.FEWER_GPUS].after) == (16, 11)
    assert found[Kind.FEWER_GPUS].trial.at == world.now


def test_a_run_that_never_fits_is_told_what_would_fit() -> None:
    world = World(node("a0"), node("b0", domain="B"), budget("org:x"))
    asked = Counterfactual(world.scheduler.engine, WISH, run("org:x", 16, 8, group_gpus=16), world.now)
    assert asked.base.reason is Reason.NeverFits
    found = changes(world, run("org:x", 16, 8, group_gpus=16))
    assert found[Kind.SMALLER_GROUPS].after == 8
    assert found[Kind.FEWER_GPUS].after == 8


def test_groups_that_may_spread_and_spares_that_are_left_out_help() -> None:
    world = World(node("a0"), node("b0", domain="B"), budget("org:x"))
    together = run("org:x", 16, 8, group_gpus=8, allow_cross_group_spread=False)
    assert changes(world, together)[Kind.SPREAD].trial.starts
    spared = run("org:x", 8, 4, group_gpus=8, spares=4)
    found = changes(world, spared)
    assert (found[Kind.FEWER_SPARES].before, found[Kind.FEWER_SPARES].after) == (4, 0)


def test_a_limit_that_ends_before_a_lien_falls_due_is_found_to_the_minute() -> None:
    world = World(node("a0"), budget("org:x"), budget("org:y"))
    assert world.submit("running", run("org:x", 4, max_duration=90 * MINUTE)) == "Running"
    assert world.submit("waiting", run("org:y", 8)) == "Reserved"
    shorter = changes(world, run("org:x", 4, max_duration=6 * HOUR))[Kind.SHORTER]
    assert shorter.after == 15 * MINUTE, "the notice of the run that waits"


def test_another_place_and_a_wish_instead_of_a_condition_help() -> None:
    world = World(node("a0"), node("e0", region="east", domain="E"), budget("org:x"))
    assert world.submit("there", run("org:x", 8, location={"region": "west"})) == "Running"
    wish = run("org:x", 8, location={"region": "west"}, location_policy=LocationPolicy.REQUIRE)
    found = changes(world, wish)
    assert found[Kind.ELSEWHERE].after == "east"
    assert found[Kind.PREFER].trial.starts


def test_only_lenders_who_admit_the_owner_and_have_room_are_named() -> None:
    lends = envelope("l", 16, lending=lending(to=("org:x",)))
    world = World(
        node("a0"),
        node("a1"),
        budget("org:x", envelope("own", 4)),
        budget("rich:a", lends),
        budget("rich:b", envelope("l", 16, lending=lending(to=("org:z",)))),
        budget("rich:c", envelope("l", 2, lending=lending())),
    )
    found = Counterfactual(world.scheduler.engine, WISH, run("org:x", 8), world.now).changes()
    assert [change.after for change in found if change.kind is Kind.BORROW] == [["rich:a"]]
    assert Kind.OPPORTUNISTIC in changes(world, run("org:x", 8))


def test_waiting_is_enough_where_a_limit_gives_the_money_back() -> None:
    world = World(node("a0"), node("a1"), budget("org:x", envelope("e", 8)))
    assert world.submit("first", run("org:x", 8, max_duration=2 * HOUR)) == "Running"
    world.wait(30 * MINUTE)
    found = changes(world, run("org:x", 8))
    assert found[Kind.WAIT].trial.at == world.now + 90 * MINUTE


def test_an_elastic_run_is_told_the_minimum_at_which_it_would_begin() -> None:
    world = World(node("a0"), budget("org:x"))
    assert world.submit("other", run("org:x", 4)) == "Running"
    found = changes(world, run("org:x", 8, elastic=(6, 8, 2)))
    assert (found[Kind.LOWER_MINIMUM].before, found[Kind.LOWER_MINIMUM].after) == (6, 4)


def test_a_run_that_waits_already_is_thought_of_as_asked_for_again() -> None:
    world = World(node("a0"), budget("org:x"))
    assert world.submit("other", run("org:x", 4)) == "Running"
    spec = run("org:x", 8)
    assert world.submit("wish", spec) == "Reserved"
    found = Counterfactual(world.scheduler.engine, WISH, spec, world.now).changes()
    assert {Kind.FEWER_GPUS: 4}.items() <= {each.kind: each.after for each in found}.items()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_in_random_worlds_what_is_said_to_start_starts_and_asking_changes_nothing(seed: int) -> None:
    film = Film(seed)
    film.open()
    for _ in range(40):
        film.play()
    scheduler = film.scheduler
    before = snapshot.freeze(scheduler.state), snapshot.derived(scheduler.state)
    waiting = [each for each in scheduler.state.runs.values() if each.phase is Phase.PENDING][:4]
    for each in waiting:
        asked = Counterfactual(scheduler.engine, each.key, each.spec, film.now)
        found = asked.changes()
        assert asked.tries < 150
        assert (snapshot.freeze(scheduler.state), snapshot.derived(scheduler.state)) == before
        for change in found:
            assert change.trial.at < asked.base.at or change.kind is Kind.WAIT
            if change.trial.starts and change.kind is not Kind.WAIT:
                assert really(film, each.key, change.spec) is Phase.RUNNING, change


def really(film: Film, old: Key, spec: RunSpec) -> Phase:
    """Do it on a ledger of its own: cancel, and submit again with the change."""
    store = MemoryStore()
    for entry in film.store.entries():
        store.append(entry.seq - 1, entry.at, entry.events)
    scheduler = Scheduler(store)
    again = Key(f"{old}-again")
    scheduler.tick(film.now, cmd.Cancel(old), cmd.Submit(again, spec))
    return scheduler.state.runs[again].phase
