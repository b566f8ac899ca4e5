"""Counterfactuals: whatever is said to start a run starts it when it is really done, and asking changes nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import HOUR, MINUTE, LocationPolicy, World, budget, envelope, lending, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.memory import MemoryStore
from fairlease.model.budget import Sharing
from fairlease.model.record import Key, key
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason
from fairlease.report.counterfactuals import Also, ChangeKind, Counterfactual, SuggestedChange
from fairlease.scheduler import Scheduler
from fairlease.sim.random.play import RandomFilm

WISH = key("wish")


def changes(world: World, spec: RunSpec) -> dict[ChangeKind, SuggestedChange]:
    """What would help a run that is asked for now, by kind; each that starts at once is submitted, and must start."""
    found = Counterfactual(world.scheduler.engine, WISH, spec, world.now).changes()
    for change in found:
        if change.trial.starts and change.kind is not ChangeKind.WAIT:
            with world.scheduler.what_if(world.now, cmd.Submit(WISH, change.spec)):
                assert world.scheduler.state.runs[WISH].phase is Phase.RUNNING, change
    return {change.kind: change for change in found}


def test_fewer_gpus_are_as_many_as_would_start_now() -> None:
    world = World(node("a0"), node("a1"), budget("org:x"))
    assert world.submit("other", run("org:x", 5)) == "Running"
    found = changes(world, run("org:x", 16))
    assert (found[ChangeKind.FEWER_GPUS].before, found[ChangeKind.FEWER_GPUS].after) == (16, 11)
    assert found[ChangeKind.FEWER_GPUS].trial.at == world.now


def test_a_run_that_never_fits_is_told_what_would_fit() -> None:
    world = World(node("a0"), node("b0", domain="B"), budget("org:x"))
    asked = Counterfactual(world.scheduler.engine, WISH, run("org:x", 16, 8, group_gpus=16), world.now)
    assert asked.base.reason is Reason.NeverFits
    found = changes(world, run("org:x", 16, 8, group_gpus=16))
    assert found[ChangeKind.SMALLER_GROUPS].after == 8
    assert found[ChangeKind.FEWER_GPUS].after == 8


def test_groups_that_may_spread_and_spares_that_are_left_out_help() -> None:
    world = World(node("a0"), node("b0", domain="B"), budget("org:x"))
    together = run("org:x", 16, 8, group_gpus=8, allow_cross_group_spread=False)
    assert changes(world, together)[ChangeKind.SPREAD].trial.starts
    spared = run("org:x", 8, 4, group_gpus=8, spares=4)
    found = changes(world, spared)
    assert (found[ChangeKind.FEWER_SPARES].before, found[ChangeKind.FEWER_SPARES].after) == (4, 0)


def test_a_limit_that_ends_before_a_lien_falls_due_is_round_and_leaves_time_to_submit_it() -> None:
    world = World(node("a0"), budget("org:x"), budget("org:y"))
    assert world.submit("running", run("org:x", 4, max_duration=90 * MINUTE)) == "Running"
    assert world.submit("waiting", run("org:y", 8)) == "Reserved"
    shorter = changes(world, run("org:x", 4, max_duration=6 * HOUR))[ChangeKind.SHORTER]
    assert shorter.after == 10 * MINUTE, "the notice of the run that waits is 15 minutes"
    world.wait(MINUTE)
    assert world.submit("wish", shorter.spec) == "Running"


def test_a_limit_without_a_minute_of_slack_is_not_told() -> None:
    world = World(node("a0"), budget("org:x"), budget("org:y"))
    assert world.submit("running", run("org:x", 4, max_duration=90 * MINUTE)) == "Running"
    assert world.submit("waiting", run("org:y", 8)) == "Reserved"
    world.wait(13 * MINUTE + 30_000)
    assert ChangeKind.SHORTER not in changes(world, run("org:x", 4, max_duration=6 * HOUR))


def test_another_place_and_a_wish_instead_of_a_condition_help() -> None:
    world = World(node("a0"), node("e0", region="east", domain="E"), budget("org:x"))
    assert world.submit("there", run("org:x", 8, location={"region": "west"})) == "Running"
    wish = run("org:x", 8, location={"region": "west"}, location_policy=LocationPolicy.REQUIRE)
    found = changes(world, wish)
    assert found[ChangeKind.ELSEWHERE].after == "east"
    assert found[ChangeKind.PREFER].trial.starts


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
    assert [change.after for change in found if change.kind is ChangeKind.BORROW] == [["rich:a"]]
    assert ChangeKind.OPPORTUNISTIC in changes(world, run("org:x", 8))


def loans(world: World, spec: RunSpec) -> list[SuggestedChange]:
    """Whom to borrow from, in the order told."""
    found = Counterfactual(world.scheduler.engine, WISH, spec, world.now).changes()
    return [change for change in found if change.kind is ChangeKind.BORROW]


def test_lenders_who_have_nothing_left_take_nobodys_turn() -> None:
    poor = [budget(f"a:poor{number}", envelope("l", 2, lending=lending())) for number in range(12)]
    rich = budget("z:rich", envelope("l", 16, lending=lending()))
    world = World(node("a0"), budget("org:x", envelope("own", 4)), *poor, rich)
    assert [change.after for change in loans(world, run("org:x", 8))] == [["z:rich"]]


def test_lenders_are_told_the_nearest_first_then_by_name_whatever_order_they_came_in() -> None:
    lends = envelope("l", 16, sharing=Sharing.NONE, lending=lending())
    own = budget("org:a:x", envelope("own", 4, sharing=Sharing.NONE))
    others = [budget(owner, lends) for owner in ("b:y", "b:x", "org", "org:a:w", "org:a", "org:b:z")]
    head = budget("org:b", envelope("h", 1))
    wanted = ["org:a", "org:a:w", "org", "org:b:z", "b:x", "b:y"]
    for order in (others, others[::-1]):
        found = loans(World(node("a0"), own, *order, head), run("org:a:x", 8))
        assert [change.after for change in found] == [[owner] for owner in wanted]


def test_borrowing_tells_all_that_it_needs_and_names_nobody_twice() -> None:
    lender = budget("rich:a", envelope("l", 16, lending=lending()))
    world = World(node("a0"), budget("org:x", envelope("own", 4)), lender, budget("rich:b", *lender.envelopes))
    (named, *others) = loans(world, run("org:x", 8, sponsors=("rich:a",)))
    assert (named.field, named.before, named.after, others) == ("funding.allowBorrow", False, True, [])
    assert named.spec.funding.sponsors == ("rich:a",)
    assert named.trial.lenders == {"rich:a"}
    new = loans(world, run("org:x", 8))
    assert [(change.after, change.also) for change in new] == [
        ([owner], (Also("funding.allowBorrow", before=False, after=True),)) for owner in ("rich:a", "rich:b")
    ]


def test_a_limit_on_loans_is_raised_as_far_as_it_must_be_and_no_further() -> None:
    lender = budget("rich:a", envelope("l", 16, lending=lending()))
    world = World(node("a0"), budget("org:x", envelope("own", 4)), lender)
    (more,) = loans(world, run("org:x", 7, sponsors=("rich:a",), allow_borrow=True, max_borrow_gpus=1))
    assert (more.field, more.before, more.after) == ("funding.maxBorrowGPUs", 1, 3)
    (new,) = loans(world, run("org:x", 7, max_borrow_gpus=1))
    assert (new.field, new.after) == ("funding.sponsors", ["rich:a"])
    assert new.also == (Also("funding.allowBorrow", False, True), Also("funding.maxBorrowGPUs", 1, 3))


def test_several_lenders_are_named_together_only_where_none_is_enough() -> None:
    small = [budget(f"rich:{name}", envelope("l", 2, lending=lending())) for name in "abc"]
    world = World(node("a0"), budget("org:x", envelope("own", 4)), *small)
    assert [change.after for change in loans(world, run("org:x", 8))] == [["rich:a", "rich:b"]]


def test_who_would_not_lend_anything_is_not_told_though_naming_it_lets_an_ancestor_lend() -> None:
    world = World(
        node("a0"),
        budget("org:a:x", envelope("own", 4)),
        budget("org", envelope("l", 16, lending=lending())),
        budget("b:z", envelope("l", 16, lending=lending(max_concurrency=0))),
    )
    assert [change.after for change in loans(world, run("org:a:x", 8))] == [["org"]]


def test_a_pod_that_no_node_holds_is_told_the_size_that_one_would() -> None:
    world = World(node("a0"), node("a1"), budget("org:x"))
    found = changes(world, run("org:x", 16, 16))
    assert (found[ChangeKind.SMALLER_PODS].before, found[ChangeKind.SMALLER_PODS].after) == (16, 8)
    smaller = found[ChangeKind.FEWER_GPUS]
    assert (smaller.after, smaller.also) == (8, (Also("gpusPerPod", 16, 8),))


def test_what_lacks_money_and_would_fit_nowhere_is_told_both() -> None:
    world = World(node("a0"), budget("org:x", envelope("e", 4)))
    assert world.submit("beyond", run("org:x", 16, 16)) == "ConcurrencyCapExceeded"
    told = world.scheduler.state.runs[key("beyond")].message
    assert "16 of 16 GPUs find no payer" in told
    assert "besides, no node could hold a pod of 16 GPUs: ask for fewer GPUs, smaller pods" in told
    assert changes(world, run("org:x", 16, 16))[ChangeKind.FEWER_GPUS].after == 4
    assert world.submit("fits", run("org:x", 8, 8)) == "ConcurrencyCapExceeded"
    assert "besides" not in world.scheduler.state.runs[key("fits")].message


def test_of_many_other_places_those_with_room_are_tried_first() -> None:
    full = [node(f"n{number:02}", domain=f"d{number:02}") for number in range(12)]
    world = World(*full, budget("org:x", envelope("e", 1000)))
    for number in range(11):
        place = {"fabric.domain": f"d{number:02}"}
        there = run("org:x", 8, location=place, location_policy=LocationPolicy.REQUIRE)
        assert world.submit(f"r{number}", there) == "Running"
    wish = run("org:x", 8, location={"fabric.domain": "d00"}, location_policy=LocationPolicy.REQUIRE)
    assert changes(world, wish)[ChangeKind.ELSEWHERE].after == "d11"


def test_waiting_is_enough_where_a_limit_gives_the_money_back() -> None:
    world = World(node("a0"), node("a1"), budget("org:x", envelope("e", 8)))
    assert world.submit("first", run("org:x", 8, max_duration=2 * HOUR)) == "Running"
    world.wait(30 * MINUTE)
    found = changes(world, run("org:x", 8))
    assert found[ChangeKind.WAIT].trial.at == world.now + 90 * MINUTE


def test_an_elastic_run_is_told_the_minimum_at_which_it_would_begin() -> None:
    world = World(node("a0"), budget("org:x"))
    assert world.submit("other", run("org:x", 4)) == "Running"
    found = changes(world, run("org:x", 8, elastic=(6, 8, 2)))
    assert (found[ChangeKind.LOWER_MINIMUM].before, found[ChangeKind.LOWER_MINIMUM].after) == (6, 4)


def test_a_run_that_waits_already_is_thought_of_as_asked_for_again() -> None:
    world = World(node("a0"), budget("org:x"))
    assert world.submit("other", run("org:x", 4)) == "Running"
    spec = run("org:x", 8)
    assert world.submit("wish", spec) == "Reserved"
    found = Counterfactual(world.scheduler.engine, WISH, spec, world.now).changes()
    assert {ChangeKind.FEWER_GPUS: 4}.items() <= {each.kind: each.after for each in found}.items()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_in_random_worlds_what_is_said_to_start_starts_and_asking_changes_nothing(seed: int) -> None:
    film = RandomFilm(seed)
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
            assert change.trial.at < asked.base.at or change.kind is ChangeKind.WAIT
            if change.trial.starts and change.kind is not ChangeKind.WAIT:
                assert really(film, each.key, change.spec) is Phase.RUNNING, change


def really(film: RandomFilm, old: Key, spec: RunSpec) -> Phase:
    """Do it on a ledger of its own: cancel, and submit again with the change."""
    store = MemoryStore()
    for entry in film.store.entries():
        store.append(entry.seq - 1, entry.at, entry.events)
    scheduler = Scheduler(store)
    again = Key(f"{old}-again")
    scheduler.tick(film.now, cmd.Cancel(old), cmd.Submit(again, spec))
    return scheduler.state.runs[again].phase
