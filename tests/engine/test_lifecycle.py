"""How runs wait, start, end and come again (SEMANTICS §2, §8), and what may never happen to them."""

from __future__ import annotations

from tests.engine.build import HOUR, MINUTE, T0, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.ledger.store import snapshot
from fairlease.model.config import Config
from fairlease.model.record import key
from fairlease.model.run import OnPreempt
from fairlease.reason import Reason

ORG = budget("org", envelope(concurrency=512))


# --- names -------------------------------------------------------------------------------------------------------------


def test_lease_names_carry_run_attempt_and_counter_and_never_come_again() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 2, retries=2))
    world.end("r", exit_code=1)
    world.end("r", exit_code=1)
    names = [row.lease.name for row in world.leases("r", open_only=False)]
    assert names == ["r-1-0", "r-1-1", "r-2-0", "r-2-1", "r-3-0", "r-3-1"]


def test_a_name_is_never_used_twice_even_after_the_end() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 1))
    world.end("r")
    answer = world.tick(cmd.Submit(key("r"), run("org", 1))).decision.answers[0]
    assert answer is not None
    assert answer.reason is Reason.AlreadyExists


def test_runs_of_one_name_in_two_namespaces_are_two_runs() -> None:
    world = World(node("a0"), ORG)
    world.submit("here/r", run("org", 1))
    world.submit("there/r", run("org", 1))
    world.end("here/r")
    assert (world.how("here/r"), world.how("there/r")) == ("Completed", "Running")


# --- ends --------------------------------------------------------------------------------------------------------------


def test_work_that_ends_well_completes_the_run_and_frees_its_gpus_and_money() -> None:
    world = World(node("a0"), budget("org", envelope(concurrency=8)))
    world.submit("r", run("org", 8))
    world.submit("next", run("org", 8))
    world.end("r")
    assert (world.how("r"), world.how("next")) == ("Completed", "Running")


def test_a_failed_pod_ends_the_attempt_and_stops_charging_at_once() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8))
    world.wait(HOUR)
    world.tick(cmd.PodFailed(key("r"), 1, 3, 137))
    world.wait(HOUR)
    assert world.how("r") == "Fail"
    assert world.account("org").consumed(world.now) == 8 * HOUR


def test_retries_are_for_failed_work_and_are_counted() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8, retries=1))
    world.end("r", exit_code=1)
    assert (world.how("r"), world.run("r").attempt) == ("Running", 2)
    world.end("r", exit_code=1)
    assert world.how("r") == "Fail"


def test_terminal_is_terminal_whatever_is_reported_later() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8, retries=5))
    world.tick(cmd.Cancel(key("r")))
    before = snapshot.freeze(world.scheduler.state)
    late = (cmd.WorkEnded(key("r"), 1, 1), cmd.PodFailed(key("r"), 1, 0), cmd.Cancel(key("r")))
    done = world.tick(*late)
    assert [answer.reason for answer in done.decision.answers if answer] == [Reason.Terminal] * 3
    assert done.entry is None
    assert snapshot.freeze(world.scheduler.state) == before


def test_a_report_about_an_attempt_that_is_over_changes_nothing() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8, retries=1))
    world.end("r", exit_code=1)
    assert world.tick(cmd.WorkEnded(key("r"), 1, 0)).entry is None
    assert world.how("r") == "Running"


def test_a_run_past_its_limit_ends_at_its_exact_time() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8, max_duration=HOUR))
    world.wait(3 * HOUR)
    assert world.how("r") == "TimeLimit"
    assert {row.end for row in world.leases("r", open_only=False)} == {T0 + HOUR}


def test_the_limit_counts_per_attempt() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8, max_duration=HOUR, retries=1))
    world.wait(50 * MINUTE)
    world.end("r", exit_code=1)
    world.wait(50 * MINUTE)
    assert world.how("r") == "Running"


# --- waiting -----------------------------------------------------------------------------------------------------------


def test_a_later_run_may_pass_an_earlier_one_that_does_not_fit() -> None:
    world = World(node("a0"), ORG)
    world.submit("half", run("org", 4))
    assert world.submit("big", run("org", 8)) == "Reserved"
    assert world.submit("endless", run("org", 4)) == "Reserved"
    assert world.submit("small", run("org", 4, max_duration=10 * MINUTE)) == "Running"


def test_runs_alike_start_in_the_order_of_asking() -> None:
    world = World(node("a0"), ORG)
    world.submit("now", run("org", 8))
    for name in ("first", "second", "third"):
        world.submit(name, run("org", 8))
    world.end("now")
    assert [world.how(name) for name in ("first", "second", "third")] == ["Running", "Reserved", "Reserved"]


def test_a_requeued_attempt_goes_to_the_back_of_the_queue() -> None:
    world = World(node("a0"), ORG)
    world.submit("again", run("org", 8, retries=1))
    world.submit("next", run("org", 8, retries=1))
    world.end("again", exit_code=1)
    assert (world.how("again"), world.how("next")) == ("Reserved", "Running")


def test_a_latest_start_that_passes_ends_the_run_and_those_that_follow_it() -> None:
    world = World(node("a0"), ORG)
    world.submit("now", run("org", 8))
    world.submit("late", run("org", 8, latest_start=T0 + 10 * MINUTE))
    world.submit("then", run("org", 8, after=["late"], latest_start=T0 + 10 * MINUTE))
    world.wait(10 * MINUTE)
    assert (world.how("late"), world.how("then")) == ("LatestStartPassed", "UpstreamFailed")


def test_a_run_may_start_at_its_latest_start_exactly() -> None:
    world = World(node("a0"), ORG)
    world.submit("now", run("org", 8, max_duration=HOUR))
    world.submit("late", run("org", 8, latest_start=T0 + HOUR))
    world.wait(HOUR)
    assert world.how("late") == "Running"


def test_a_run_does_not_start_late_because_its_timer_was_late() -> None:
    world = World(node("a0"), ORG)
    world.submit("now", run("org", 8))
    world.submit("late", run("org", 8, latest_start=T0 + HOUR))
    world.oversleep(2 * HOUR)
    world.end("now")
    assert world.how("late") == "LatestStartPassed"


def test_the_latest_start_counts_for_the_first_attempt_only() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8, latest_start=T0 + HOUR, retries=1))
    world.wait(2 * HOUR)
    world.end("r", exit_code=1)
    assert world.how("r") == "Running"


# --- following ---------------------------------------------------------------------------------------------------------


def test_a_run_waits_for_all_that_it_follows_even_before_they_exist() -> None:
    world = World(node("a0"), ORG)
    assert world.submit("last", run("org", 1, after=["one", "two"])) == "Following"
    world.submit("one", run("org", 1))
    world.submit("two", run("org", 1))
    world.end("one")
    assert world.how("last") == "Following"
    world.end("two")
    assert world.how("last") == "Running"


def test_a_failure_ends_all_that_follow_it_down_the_line() -> None:
    world = World(node("a0"), ORG)
    world.submit("a", run("org", 1))
    world.submit("b", run("org", 1, after=["a"]))
    world.submit("c", run("org", 1, after=["b"]))
    world.end("a", exit_code=1)
    assert (world.how("b"), world.how("c")) == ("UpstreamFailed", "UpstreamFailed")
    assert world.submit("d", run("org", 1, after=["a"])) == "UpstreamFailed"


def test_a_follower_in_one_namespace_does_not_hide_its_like_in_another() -> None:
    world = World(node("a0"), ORG)
    world.submit("x/up", run("org", 1))
    world.end("x/up")
    world.submit("now", run("org", 8))
    assert world.submit("x/r", run("org", 8, after=["up"])) == "Reserved"
    assert world.submit("y/r", run("org", 8, after=["up"])) == "Following"
    world.end("now")
    assert world.how("x/r") == "Running"


# --- nodes -------------------------------------------------------------------------------------------------------------


def test_a_failed_node_ends_the_attempt_and_on_preempt_decides() -> None:
    world = World(node("a0"), node("a1"), node("a2"), ORG)
    world.submit("fails", run("org", 8, 4))
    world.submit("again", run("org", 8, 8, on_preempt=OnPreempt.REQUEUE))
    world.tick(cmd.FailNode("a0"), cmd.FailNode("a1"))
    assert (world.how("fails"), world.how("again")) == ("NodeFailure", "Running")
    assert world.nodes("again") == ["a2"]


def test_a_node_that_held_only_a_spare_takes_only_the_spare_with_it() -> None:
    world = World(node("a0", 4), node("a1", 4), ORG)
    world.submit("r", run("org", 4, 4, group_gpus=4, spares=4))
    world.tick(cmd.FailNode("a1"))
    assert (world.how("r"), world.run("r").spare_gpus) == ("Running", 0)
    assert world.closures("r") == {None, "NodeFailure"}


def test_a_cordon_or_a_brief_silence_is_no_failure() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8))
    world.write(node("a0", cordoned=True))
    world.write(node("a0", ready=False))
    world.wait(HOUR)
    assert world.how("r") == "Running"


def test_a_silent_node_fails_when_its_pods_are_dead_and_the_debounce_is_over() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8))
    world.write(node("a0", ready=False, pods_dead=True))
    world.wait(59_999)
    assert world.how("r") == "Running"
    world.wait(1)
    assert world.how("r") == "NodeFailure"


def test_a_longer_debounce_holds_for_nodes_that_are_silent_already() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8))
    world.write(node("a0", ready=False, pods_dead=True))
    world.tick(cmd.Configure(Config(node_debounce=10 * MINUTE)))
    world.wait(9 * MINUTE)
    assert world.how("r") == "Running"
    world.wait(MINUTE)
    assert world.how("r") == "NodeFailure"


def test_a_fenced_node_fails_at_once_and_is_used_again_when_it_returns() -> None:
    world = World(node("a0"), ORG)
    world.submit("r", run("org", 8, on_preempt=OnPreempt.REQUEUE))
    world.write(node("a0", fenced=True))
    assert world.how("r") == "NoRoom"
    world.write(node("a0"))
    assert world.how("r") == "Running"


# --- looking ahead and starting again ----------------------------------------------------------------------------------


def test_a_look_ahead_at_cuts_and_requeues_leaves_no_trace() -> None:
    world = World(node("a0"), ORG, budget("lab"))
    world.submit("wait", run("org", 8, opportunistic=True, checkpoint=MINUTE))
    world.submit("also", run("org", 8, opportunistic=True, checkpoint=MINUTE))
    before = snapshot.freeze(world.scheduler.state)
    with world.scheduler.what_if(
        world.now, cmd.WorkEnded(key("wait"), 1, 0), cmd.Submit(key("claim"), run("lab", 8))
    ) as seen:
        assert any(isinstance(event, ev.RunRequeued | ev.LeasesOpened) for event in seen.events)
    assert snapshot.freeze(world.scheduler.state) == before
    queue = world.scheduler.state.queue
    assert [run.key for shape in queue.shapes.values() for run in shape.runs.values()] == ["default/also"]


def test_a_restart_changes_nothing_that_follows() -> None:
    heads = []
    for restarts in (False, True):
        world = World(node("a0"), node("a1"), budget("org", envelope(max_gpu_hours=40 * HOUR)), budget("lab"))
        for step in range(6):
            world.submit(
                f"r{step}", run("org", 4, opportunistic=step % 2 == 0, checkpoint=MINUTE, max_duration=3 * HOUR)
            )
            world.submit(f"l{step}", run("lab", 4, 4))
            world.wait(HOUR)
            if restarts:
                world.scheduler.save_snapshot(force=step % 2 == 0)
                world.restart()
        heads.append(world.store.head().hash)
    assert heads[0] == heads[1]
