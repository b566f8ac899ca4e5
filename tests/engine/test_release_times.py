"""What is certain of a later day: who has no claim to its GPUs any more by then, asked of one lease or played for all."""

from __future__ import annotations

from tests.engine.build import HOUR, MINUTE, T0, World, budget, envelope, node, run
from tests.engine.test_due_date import odds_of

from fairlease.engine.reserve.release_times import EVER, NEVER, ReleaseTimes, play
from fairlease.ledger.state.events import OutcomeRecorded
from fairlease.ledger.store import snapshot
from fairlease.model.budget import OnExhaustion
from fairlease.model.record import key


def all_kinds() -> World:
    """Each way to go: by a deadline, by a window under Hold and under Drain, whole, in part, and not at all."""
    drain = OnExhaustion.DRAIN
    world = World(
        *(node(f"n{number}") for number in range(8)),
        budget("held", envelope(end=T0 + 20 * MINUTE)),
        budget("drained", envelope(end=T0 + 20 * MINUTE, on_exhaustion=drain)),
        budget("both", envelope("brief", 4, end=T0 + 30 * MINUTE), envelope("long", 4)),
        budget("elastic", envelope("brief", 4, end=T0 + 30 * MINUTE), envelope("long", 4)),
        budget("spared", envelope("a", 4), envelope("brief", 4, end=T0 + 40 * MINUTE)),
        budget("safe", envelope(max_gpu_hours=HOUR)),
    )
    world.submit("limited", run("safe", 4, 4, max_duration=10 * MINUTE))
    world.submit("held", run("held", 8, 8))
    world.submit("drained", run("drained", 8, 8, checkpoint=5 * MINUTE))
    world.submit("both", run("both", 8, 4))
    world.submit("elastic", run("elastic", 8, 4, elastic=(4, 8, 4)))
    world.submit("spared", run("spared", 4, 4, group_gpus=4, spares=4))
    world.submit("safe", run("safe", 1, 1))
    world.submit("rider", run("held", 4, 4, opportunistic=True))
    return world


def test_a_lease_goes_at_its_deadline_when_its_window_closes_with_its_rigid_run_or_not_at_all() -> None:
    world = all_kinds()
    certain = ReleaseTimes(world.scheduler.state)
    found = {
        name: sorted(certain.free_from(lease) for lease in world.run(name).leases.values())
        for name in ("limited", "held", "drained", "both", "elastic", "spared", "safe", "rider")
    }
    assert found == {
        "limited": [T0 + 10 * MINUTE],
        "held": [T0 + 20 * MINUTE],
        "drained": [T0 + 20 * MINUTE],
        "both": [T0 + 30 * MINUTE] * 2,
        "elastic": [T0 + 30 * MINUTE, NEVER],
        "spared": [T0 + 40 * MINUTE] * 2,  # Its spare's money ends then, and a rigid run goes whole.
        "safe": [NEVER],  # Its hours would run out; but who else spends them is not certain.
        "rider": [EVER],
    }


def test_what_is_played_until_a_day_is_what_is_told_of_each_lease() -> None:
    world = all_kinds()
    state = world.scheduler.state
    before, leases = snapshot.freeze(state), [lease for each in state.running() for lease in each.leases.values()]
    for minutes in range(0, 50, 5):
        when = T0 + minutes * MINUTE
        told = {(lease.run, lease.name) for lease in leases if ReleaseTimes(state).free_from(lease) <= when}
        trial = state.trial()
        play(state, when)
        left = ReleaseTimes(state)
        open_then = {(lease.run, lease.name): lease for each in state.running() for lease in each.leases.values()}
        played = {
            (lease.run, lease.name)
            for lease in leases
            if (lease.run, lease.name) not in open_then or left.free_from(lease) == EVER
        }
        if minutes in (20, 25):
            assert (key("drained") in state.runs and bool(world.run("drained").leases)) is (minutes == 20)
        trial.undo()
        assert played == told, f"after {minutes} minutes"
    assert snapshot.freeze(state) == before


def test_overdrawn_work_that_others_leave_room_by_then_stands_in_the_lottery_like_anybody() -> None:
    """One owner's money was cut in half: the younger run is overdrawn until the older one reaches its limit, before the date."""
    world = World(*(node(f"n{number}") for number in range(4)), budget("a", envelope(concurrency=16)), budget("b"))
    world.submit("brief", run("a", 8, 8, max_duration=70 * MINUTE))
    world.submit("late", run("a", 8, 8))
    world.submit("one", run("b", 8, 8))
    world.submit("two", run("b", 8, 8))
    world.wait(HOUR)
    world.write(budget("a", envelope(concurrency=8)), budget("c"))
    assert world.overdrawn() == {"late"}
    assert world.submit("claim", run("c", 24, 8)) == "Reserved"
    assert (hold := world.run("claim").hold) is not None
    assert hold.earliest_start == T0 + 75 * MINUTE
    found = odds_of(world, "claim")
    assert found is not None
    assert found.chances == {key("late"): 0.75, key("one"): 0.625, key("two"): 0.625}
    world.wait(15 * MINUTE)
    assert world.how("claim") == "Running"
    (outcome,) = [event.outcome for event in world.told(OutcomeRecorded)]
    assert outcome.lottery is not None
    assert [token.run for token in outcome.lottery.tokens] == [key("late"), key("one"), key("two")]


def test_work_that_ends_before_the_day_is_paid_for_until_it_ends_and_no_longer() -> None:
    """The claim's own money pays for work that ends before its date: counted to that date, too few hours were left."""
    money = envelope(max_gpu_hours=(4 * 10 + 8 * 60) * MINUTE)
    world = World(node("n1"), node("n2", 4), budget("a", money), budget("b"))
    world.submit("old", run("b", 8, 8))
    world.wait(HOUR)
    world.submit("brief", run("a", 4, 4, max_duration=10 * MINUTE))
    assert world.submit("claim", run("a", 8, 8, max_duration=HOUR)) == "Reserved"
    assert (hold := world.run("claim").hold) is not None
    assert hold.earliest_start == T0 + 75 * MINUTE
    found = odds_of(world, "claim")
    assert found is not None
    assert found.chances == {key("old"): 1.0}
    world.wait(15 * MINUTE)
    assert world.how("claim") == "Running"


def test_a_window_that_moved_on_covers_again_when_it_opens_until_it_closes() -> None:
    world = World(node("n"), budget("a"))
    world.submit("work", run("a", 8, 8))
    world.write(budget("a", envelope(start=T0 + 5 * MINUTE, end=T0 + 10 * MINUTE)))
    state = world.scheduler.state
    found = []
    for minutes in (3, 7, 12):
        trial = state.trial()
        play(state, T0 + minutes * MINUTE)
        found.append(world.overdrawn())
        trial.undo()
    assert found == [{"work"}, set(), {"work"}]
