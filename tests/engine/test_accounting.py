"""Time and money (SEMANTICS §4): hours, commitments, windows, and what is overdrawn."""

from __future__ import annotations

from tests.engine.build import HOUR, MINUTE, T0, World, budget, cap, envelope, lending, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.model.budget import OnExhaustion, PreActivation
from fairlease.model.record import key
from fairlease.model.run import OnPreempt

NODES = tuple(node(f"a{each}") for each in range(4))
DRAIN = OnExhaustion.DRAIN


def test_a_run_with_a_limit_commits_its_worst_case_and_gives_back_the_rest() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=16 * HOUR)))
    world.submit("r", run("org", 8, max_duration=2 * HOUR))
    assert world.account("org").committed(world.now, 0) == 16 * HOUR
    assert world.submit("next", run("org", 1, max_duration=HOUR)) == "IntegralCapExceeded"
    world.wait(30 * MINUTE)
    assert (world.account("org").consumed(world.now), world.account("org").committed(world.now, 0)) == (
        4 * HOUR,
        12 * HOUR,
    )
    world.end("r")
    assert world.how("next") == "Running"
    assert world.account("org").committed(world.now, 0) == HOUR, "the next run's; what the first did not use is free"


def test_a_run_without_a_limit_keeps_a_quantum_committed_ahead_of_it() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=8 * HOUR)))
    world.submit("r", run("org", 8))
    world.wait(20 * MINUTE)
    quantum = world.scheduler.state.config.commit_quantum
    assert world.account("org").committed(world.now, quantum) == 8 * 15 * MINUTE
    assert world.account("org").consumed(world.now) == 8 * 20 * MINUTE


def test_a_run_commits_its_whole_worst_case_also_behind_the_end_of_the_window() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=8 * HOUR, end=T0 + HOUR)))
    assert world.submit("long", run("org", 8, max_duration=10 * HOUR)) == "IntegralCapExceeded"
    assert world.submit("short", run("org", 8, max_duration=HOUR)) == "Running"
    assert world.account("org").committed(world.now, 0) == 8 * HOUR


def test_a_window_that_closed_has_nothing_promised() -> None:
    world = World(*NODES, budget("org", envelope(end=T0 + HOUR)))
    world.submit("r", run("org", 8, max_duration=10 * HOUR))
    world.wait(2 * HOUR)
    assert world.account("org").committed(world.now, 0) == 0


def test_spares_count_against_hours_and_are_reported_apart() -> None:
    world = World(*NODES, budget("org"))
    world.submit("r", run("org", 4, 4, group_gpus=4, spares=4))
    world.wait(HOUR)
    assert world.account("org").consumed(world.now) == 8 * HOUR
    bill = world.run("r").bill(world.now)
    assert (bill.owned, bill.spares) == (4 * HOUR, 4 * HOUR)


def test_a_bill_has_each_gpu_hour_in_exactly_one_class() -> None:
    world = World(*NODES, budget("org", envelope(concurrency=2)), budget("org:a", envelope(concurrency=2)),
                  budget("rich", envelope(lending=lending())))  # fmt: skip
    world.submit("r", run("org:a", 6, allow_borrow=True, sponsors=("rich",)))
    world.wait(HOUR)
    world.write(budget("org:a", envelope(concurrency=1)))
    world.wait(HOUR)
    bill = world.run("r").bill(world.now)
    assert (bill.owned, bill.shared, bill.borrowed, bill.overdrawn) == (2 * HOUR, 4 * HOUR, 4 * HOUR, 2 * HOUR)
    assert bill.sponsors == {"rich": 4 * HOUR}


def test_an_edit_of_the_window_counts_what_was_consumed_inside_it() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=100 * HOUR)))
    world.submit("r", run("org", 8))
    world.wait(2 * HOUR)
    world.end("r")
    world.wait(HOUR)
    assert world.account("org").consumed(world.now) == 16 * HOUR
    world.write(budget("org", envelope(max_gpu_hours=100 * HOUR, start=T0 + HOUR)))
    assert world.account("org").consumed(world.now) == 8 * HOUR
    world.write(budget("org", envelope(max_gpu_hours=100 * HOUR, end=T0 + 30 * MINUTE)))
    assert world.account("org").consumed(world.now) == 4 * HOUR
    world.write(budget("org", envelope(max_gpu_hours=100 * HOUR)))
    assert world.account("org").consumed(world.now) == 16 * HOUR


def test_an_envelope_that_is_removed_and_comes_back_remembers_its_past() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=10 * HOUR)))
    world.submit("r", run("org", 8, max_duration=HOUR))
    world.wait(HOUR)
    world.tick(cmd.RemoveBudget(key("org")))
    world.write(budget("org", envelope(max_gpu_hours=10 * HOUR)))
    assert world.account("org").consumed(world.now) == 8 * HOUR
    assert world.submit("next", run("org", 8, max_duration=HOUR)) == "IntegralCapExceeded"


def test_the_oldest_work_is_covered_first_and_the_next_is_tried() -> None:
    world = World(*NODES, budget("org", envelope(concurrency=20)))
    for name, gpus in (("old", 8), ("middle", 8), ("young", 4)):
        world.submit(name, run("org", gpus))
    world.write(budget("org", envelope(concurrency=12)))
    assert world.overdrawn() == {"middle"}
    world.write(budget("org", envelope(concurrency=8)))
    assert world.overdrawn() == {"middle", "young"}
    world.write(budget("org", envelope(concurrency=20)))
    assert world.overdrawn() == set()


def test_a_closed_window_leaves_all_overdrawn_and_a_moved_one_covers_again() -> None:
    world = World(*NODES, budget("org", envelope(end=T0 + HOUR)))
    world.submit("r", run("org", 8))
    world.wait(HOUR)
    assert world.overdrawn() == {"r"}
    assert world.submit("late", run("org", 1)) == "WindowClosed"
    world.write(budget("org", envelope(end=T0 + 3 * HOUR)))
    assert world.overdrawn() == set()
    assert world.how("late") == "Running"


def test_used_up_hours_leave_all_overdrawn_at_their_exact_time() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=8 * HOUR)))
    world.submit("r", run("org", 8))
    world.wait(2 * HOUR)
    lost = world.told(ev.CoverLost)
    assert [(each.run, each.reason.value) for each in lost] == [("default/r", "IntegralCapExceeded")]
    assert world.run("r").bill(world.now).overdrawn == 8 * HOUR
    world.write(budget("org", envelope(max_gpu_hours=80 * HOUR)))
    assert world.overdrawn() == set()


def test_an_aggregate_cap_of_hours_runs_out_at_its_exact_time() -> None:
    early = envelope("early", end=T0 + HOUR)
    late = envelope("late", start=T0 + 2 * HOUR, pre_activation=PreActivation(allow_admission=True))
    limit = cap("both", ["early", "late"], max_gpu_hours=16 * HOUR)
    world = World(*NODES, budget("org", early, late, aggregate_caps=(limit,)))
    world.submit("r1", run("org", 8))
    world.write(budget("org", early, late, aggregate_caps=(limit,)))
    with_late = budget("org", envelope("early", 1, end=T0 + HOUR), late, aggregate_caps=(limit,))
    world.write(with_late)
    world.submit("r2", run("org", 8))
    world.wait(10 * HOUR)
    turned = [entry.at for entry in world.store.entries() for each in entry.events
              if isinstance(each, ev.EnvelopeTurned) and each.cap == "both"]  # fmt: skip
    assert turned == [T0 + 3 * HOUR], "8 hours in the first hour, 8 in the hour after the second window opened"


def test_an_aggregate_cap_is_not_told_exhausted_because_its_timer_was_late() -> None:
    """A member's window closes first and stops counting; the timer set before that must not be believed."""
    limit = cap("c", ["e"], max_gpu_hours=16 * HOUR)
    world = World(*NODES, budget("org", envelope(end=T0 + HOUR), aggregate_caps=(limit,)))
    world.submit("r", run("org", 8))
    world.now += 5 * HOUR
    world.tick(cmd.TimePassed())
    assert [(each.cap, each.turn.value) for each in world.told(ev.EnvelopeTurned)] == [("", "closed")]


def test_an_envelope_that_lost_its_hours_cap_is_never_told_exhausted() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=8 * HOUR)))
    world.submit("r", run("org", 8))
    world.write(budget("org", envelope()))
    world.wait(2 * HOUR)
    assert world.told(ev.EnvelopeTurned) == []
    assert world.overdrawn() == set()


def test_a_removed_envelope_leaves_its_work_overdrawn_for_good() -> None:
    world = World(*NODES, budget("org", envelope("a"), envelope("b")))
    world.submit("r", run("org", 8))
    world.write(budget("org", envelope("b")))
    assert world.overdrawn() == {"r"}
    world.submit("other", run("org", 8))
    world.end("other")
    assert world.overdrawn() == {"r"}
    assert world.told(ev.CoverRegained) == []


def test_held_work_goes_on_until_somebody_funded_needs_its_gpus() -> None:
    world = World(*NODES[:2], budget("org"), budget("lab"))
    world.submit("r", run("org", 16, 8))
    world.write(budget("org", envelope(concurrency=8)))
    world.wait(5 * HOUR)
    assert world.how("r") == "Running"
    assert world.submit("claim", run("lab", 8, 8)) == "Running"
    assert world.how("r") == "ReclaimOverdrawn"
    assert world.closures("r") == {"ReclaimOverdrawn"}
    assert [each.run for each in world.told(ev.OutcomeRecorded)[0].outcome.actions] == ["default/r"]


def test_drained_work_ends_after_its_checkpoint_grace() -> None:
    world = World(*NODES, budget("org", envelope(end=T0 + HOUR, on_exhaustion=DRAIN)))
    world.submit("r", run("org", 8, checkpoint=10 * MINUTE, on_preempt=OnPreempt.FAIL))
    world.wait(HOUR + 9 * MINUTE)
    assert world.how("r") == "Running"
    world.wait(MINUTE)
    assert world.how("r") == "BudgetExhausted"


def test_room_that_comes_back_before_the_grace_is_over_saves_drained_work() -> None:
    world = World(*NODES, budget("org", envelope(end=T0 + HOUR, on_exhaustion=DRAIN)))
    world.submit("r", run("org", 8, checkpoint=10 * MINUTE))
    world.wait(HOUR + 5 * MINUTE)
    world.write(budget("org", envelope(end=T0 + 5 * HOUR, on_exhaustion=DRAIN)))
    world.wait(HOUR)
    assert world.how("r") == "Running"


def test_an_elastic_run_gives_up_overdrawn_groups_and_ends_on_its_grid() -> None:
    world = World(*NODES, budget("org", envelope(on_exhaustion=DRAIN)))
    world.submit("r", run("org", 24, 4, elastic=(8, 24, 8)))
    world.write(budget("org", envelope(concurrency=20, on_exhaustion=DRAIN)))
    assert world.run("r").width == 16, "one group of 4 is half a step: another goes with it"
    world.write(budget("org", envelope(concurrency=2, on_exhaustion=DRAIN)))
    assert world.how("r") == "BudgetExhausted"


def test_a_claim_takes_only_the_overdrawn_groups_it_needs() -> None:
    world = World(*NODES[:2], budget("org"), budget("lab"))
    world.submit("r", run("org", 16, 4, elastic=(4, 16, 4)))
    world.write(budget("org", envelope(concurrency=2)))
    world.submit("claim", run("lab", 4, 4))
    assert world.how("claim") == "Running"
    assert (world.how("r"), world.run("r").width) == ("Running", 12)


def test_opportunistic_work_gives_way_at_once_with_a_record() -> None:
    world = World(*NODES[:1], budget("org"), budget("lab"))
    world.submit("free", run("org", 8, opportunistic=True, checkpoint=MINUTE))
    assert world.submit("claim", run("lab", 4)) == "Running"
    assert world.how("free") == "NoRoom"
    assert world.run("free").attempt == 2
    kinds = [type(event).__name__ for event in [*world.store.entries()][-1].events]
    assert kinds.index("OutcomeRecorded") < kinds.index("LeasesClosed")


def test_nobody_is_cut_for_a_claim_that_would_not_fit_anyway() -> None:
    world = World(*NODES[:2], budget("org"), budget("lab"))
    world.submit("funded", run("lab", 8, 8))
    world.submit("free", run("org", 8, 8, opportunistic=True))
    assert world.submit("claim", run("lab", 16, 8)) == "Reserved"
    assert world.how("free") == "Running"


def test_a_window_that_opens_as_other_work_starts_still_wakes_all_who_wait() -> None:
    """A run that ends at the very instant lets one waiting run start on the new window; the other must not be forgotten."""
    world = World(*NODES[:2], budget("org", envelope("now", 8), envelope("soon", 16, start=T0 + HOUR)))
    world.submit("first", run("org", 8, 8))
    world.submit("second", run("org", 8, 8))
    world.submit("third", run("org", 8, 8, expected_duration=HOUR))
    world.now = T0 + HOUR
    world.end("first")
    world.restart()
    world.wait(0)
    assert (world.how("second"), world.how("third")) == ("Running", "Running")
    assert [each.turn.value for each in world.told(ev.EnvelopeTurned)] == ["opened"]


def test_who_is_late_to_be_told_of_the_time_starts_nobody_on_hours_that_are_promised() -> None:
    """What one run used past its deadline is no credit for another's."""
    hours = envelope(max_gpu_hours=40 * HOUR)
    world = World(node("n", 8), node("m", 8), budget("org:a", hours))
    assert world.submit("short", run("org:a", 8, max_duration=HOUR)) == "Running"
    assert world.submit("long", run("org:a", 4, max_duration=5 * HOUR)) == "Running"
    world.oversleep(2 * HOUR)
    assert world.submit("greedy", run("org:a", 4, max_duration=2 * HOUR)) == "IntegralCapExceeded"
    assert world.how("short") == "TimeLimit"
