"""What is told, from entries and from the state alone: no clock, no delivery, the same answer for ever."""

from __future__ import annotations

import pytest
from tests.engine.build import FLAVOR, HOUR, MINUTE, T0, World, budget, envelope, node, run

import fairlease.report.preemption_warnings
from fairlease.engine import command as cmd
from fairlease.engine.forecast.remedies import Remedies
from fairlease.engine.preempt.odds import odds
from fairlease.ledger.state.events import OutcomeRecorded
from fairlease.ledger.store import snapshot
from fairlease.model.amount import DAY
from fairlease.model.budget import OnExhaustion
from fairlease.model.config import Config
from fairlease.model.record import key, short
from fairlease.model.reservation import OutcomeSpec
from fairlease.reason import Reason
from fairlease.report.explain import explain
from fairlease.report.notices import Notice, NoticeKind, of_entry
from fairlease.report.preemption_warnings import coming, ending, stages
from fairlease.runtime.notify.webhook import body_of

BUDGETS = [budget(owner, envelope(concurrency=64)) for owner in ("alpha", "beta", "gamma")]


def told(world: World, after: int = 0) -> list[Notice]:
    """All that the entries behind one number have to tell; asked entry by entry, as they came."""
    found = []
    for entry in world.store.entries(after):
        found += of_entry(world.scheduler.engine, entry, lambda name: f"owner of {name}")
    return found


def kinds(world: World, after: int = 0) -> list[str]:
    return [notice.kind.value for notice in told(world, after)]


def outcome_of(world: World) -> OutcomeSpec:
    """The first one."""
    events = (event for entry in world.store.entries(0) for event in entry.events)
    return next(event.outcome for event in events if isinstance(event, OutcomeRecorded))


def ahead(world: World, *words: str) -> list[Notice]:
    """What is told of cuts that come, at the stages of these words that have begun."""
    now, engine = world.now, world.scheduler.engine
    due = [
        stage for stage in stages(world.scheduler.state) if stage.since <= now and stage.word in (words or ("notice",))
    ]
    return [found for stage in due if (found := coming(engine, stage, now)) is not None]


# --- what happened -----------------------------------------------------------------------------------------------------


def test_a_reservation_that_needs_a_cut_tells_how_many_gpus_where_and_when() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("old", run("beta", 8, pod=8))
    head = world.scheduler.head.seq
    world.submit("big", run("alpha", 8, pod=8))
    (notice,) = told(world, head)
    assert (notice.kind, notice.claim, notice.gpus) == (NoticeKind.DEFICIT_FORECAST, key("big"), 8)
    assert notice.due == world.now + 15 * MINUTE
    assert notice.text == f"big lacks 8 × {FLAVOR}: unless they come free, others give way at 2026-01-05T00:15:00Z"
    assert notice.owner == "owner of default/big"


def test_a_reservation_that_rests_on_hard_facts_needs_no_cut_and_tells_of_none() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("old", run("beta", 8, pod=8, max_duration=5 * MINUTE))
    world.submit("big", run("alpha", 8, pod=8))
    assert kinds(world) == []


def test_nobody_is_warned_of_a_date_by_which_the_claim_will_have_failed() -> None:
    """Its date is behind its latestStart: nobody gives way on it, and what would change that is another latestStart."""
    world = World(node("a0"), node("a1"), *BUDGETS)
    world.submit("old", run("beta", 8, pod=8))
    world.submit("older", run("beta", 8, pod=8))
    world.wait(HOUR)
    head, soon = world.scheduler.head.seq, world.now + 10 * MINUTE
    world.submit("late", run("alpha", 8, pod=8, latest_start=soon))
    world.submit("next", run("gamma", 8, pod=8, latest_start=world.now + 15 * MINUTE))
    state, family = world.scheduler.state, world.scheduler.engine.family
    assert {short(each.key): each.hold.earliest_start for each in state.holds.values() if each.hold} == {
        "late": world.now + 15 * MINUTE,
        "next": world.now + 15 * MINUTE,
    }
    assert {stage.claim for stage in stages(state)} == {key("next")}
    assert [notice.run for notice in told(world, head)] == [key("next")]
    assert odds(world.scheduler.engine, world.run("late")) is None
    remedies = [explain(state, family, world.run(name), world.now).of(world.run(name))[1] for name in ("late", "next")]
    assert remedies == [Reason.LatestStartPassed.remedy, Reason.Reserved.remedy]
    world.wait(15 * MINUTE)
    assert (world.how("late"), world.how("next")) == ("LatestStartPassed", "Running")


def test_what_a_claim_will_lack_is_foretold_as_its_outcome_says_it() -> None:
    """Who surely ends before is not counted; whose window closes is: it goes on, overdrawn, and gives way on the day."""
    soon = envelope(concurrency=8, end=T0 + 10 * MINUTE)
    world = World(node("a0"), node("a1"), node("a2"), *BUDGETS, budget("delta", soon))
    world.submit("old", run("beta", 8, pod=8))
    world.submit("brief", run("beta", 8, pod=8, max_duration=10 * MINUTE))
    world.submit("closing", run("delta", 8, pod=8))
    head = world.scheduler.head.seq
    world.submit("big", run("alpha", 24, pod=8))
    (notice,) = told(world, head)
    assert (notice.kind, notice.gpus) == (NoticeKind.DEFICIT_FORECAST, 16)
    world.wait(15 * MINUTE)
    outcome = outcome_of(world)
    assert outcome.deficit_gpus == 16
    assert {short(cut.run): cut.reason for cut in outcome.actions} == {
        "closing": Reason.ReclaimOverdrawn,
        "old": Reason.RandomPreempt,
    }


def test_a_run_that_started_when_it_asked_is_not_told_so_and_one_that_waited_is() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("first", run("alpha", 8, pod=8, max_duration=HOUR))
    world.submit("next", run("alpha", 8, pod=8, max_duration=HOUR))
    world.end("first")
    started = [notice for notice in told(world) if notice.kind is NoticeKind.RUN_STARTED]
    assert [(notice.key, notice.gpus) for notice in started] == [("RunStarted/default/next#1", 8)]


def test_a_cut_tells_by_whom_how_in_which_outcome_and_what_becomes_of_the_run() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("careful", run("beta", 8, pod=8, checkpoint=MINUTE))
    head = world.scheduler.head.seq
    world.submit("big", run("alpha", 8, pod=8))
    world.wait(20 * MINUTE)
    assert [each for each in kinds(world, head) if each != "DeficitForecast"] == [
        "ReservationActive", "RunCut", "RunStarted"
    ]  # fmt: skip
    (cut,) = [notice for notice in told(world) if notice.kind is NoticeKind.RUN_CUT]
    assert cut.text == "careful lost 8 GPUs to big (RandomPreempt; outcome-1); it asks again"
    assert (cut.run, cut.claim, cut.outcome, cut.gpus) == (key("careful"), key("big"), "outcome-1", 8)


def test_an_elastic_run_that_only_shrinks_is_told_that_it_goes_on() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("wide", run("beta", 8, elastic=(4, 8, 4)))
    world.submit("big", run("alpha", 4, pod=4))
    world.wait(16 * MINUTE)
    (cut,) = [notice for notice in told(world) if notice.kind is NoticeKind.RUN_CUT]
    assert cut.text == "wide lost 4 GPUs to big (Shrink; outcome-1); it goes on with the rest"


def test_drained_work_is_told_when_it_ends_and_then_that_it_did() -> None:
    drained = envelope(max_gpu_hours=8 * HOUR, on_exhaustion=OnExhaustion.DRAIN)
    world = World(node("a0"), budget("alpha", drained))
    world.submit("long", run("alpha", 8, pod=8, checkpoint=2 * MINUTE))
    world.wait(HOUR)
    coming_cut = next(notice for notice in told(world) if notice.kind is NoticeKind.CUT_COMING)
    assert coming_cut.due == world.now + 2 * MINUTE
    assert [(risk.run, risk.gpus, risk.odds) for risk in coming_cut.runs] == [(key("long"), 8, 1.0)]
    assert ending(world.scheduler.state) == {key("long"): world.now + 2 * MINUTE}
    world.wait(3 * MINUTE)
    assert kinds(world)[-1] == "RunCut"
    assert ending(world.scheduler.state) == {}


def test_a_notice_has_the_same_key_whenever_it_is_asked_for_and_no_two_share_one() -> None:
    world = World(node("a0"), *BUDGETS)
    for number in range(3):
        world.submit(f"old-{number}", run("beta", 2, pod=2))
    world.submit("big", run("alpha", 8, pod=8))
    world.wait(40 * MINUTE)
    first = [notice.key for notice in told(world)]
    world.restart()
    assert [notice.key for notice in told(world)] == first
    assert len(set(first)) == len(first) > 4


# --- cuts that come ----------------------------------------------------------------------------------------------------


def test_all_who_stand_in_the_lottery_are_told_at_notice_and_again_shortly_before() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("one", run("beta", 4, pod=4))
    world.submit("two", run("gamma", 4, pod=4))
    world.submit("big", run("alpha", 8, pod=8))
    (notice,) = ahead(world)
    assert notice.key == "CutComing/default/big-reservation/notice"
    assert notice.concerns == (key("one"), key("two"))
    assert {risk.reason.value for risk in notice.runs} == {"RandomPreempt"}
    assert notice.due == world.now + 15 * MINUTE
    assert ahead(world, "soon") == []
    world.wait(13 * MINUTE)
    (again,) = ahead(world, "soon")
    assert (again.key, again.due) == ("CutComing/default/big-reservation/soon", notice.due)
    assert again.text == notice.text.replace(" lacks ", " still lacks "), "told twice, it is told apart"
    world.wait(3 * MINUTE)
    assert ahead(world, "notice", "soon") == []


def test_spares_and_width_that_go_before_the_lottery_are_told_as_certain() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("wide", run("beta", 8, elastic=(4, 8, 4)))
    world.submit("rigid-later", run("alpha", 4, pod=4))
    (notice,) = ahead(world)
    assert [(risk.run, risk.reason.value, risk.gpus, risk.odds) for risk in notice.runs] == [
        (key("wide"), "Shrink", 4, 1.0)
    ]


def test_who_is_certain_to_be_cut_is_told_apart_from_whom_the_lottery_may_draw() -> None:
    world = World(*(node(f"a{number}") for number in range(4)), *BUDGETS, budget("delta"))
    world.submit("host", run("beta", 8, pod=8, spares=8))
    world.submit("one", run("beta", 8, pod=8))
    world.submit("two", run("gamma", 8, pod=8))
    world.submit("big", run("alpha", 16, pod=8))
    (notice,) = ahead(world)
    date = "2026-01-05T00:15:00Z"
    lots = "may be cut then, as the lot falls: two (50.0%), host whole (25.0%), one (25.0%)"
    assert notice.text == f"big lacks 16 GPUs at {date}; certain to be cut then, as things stand: host; {lots}"
    assert [(short(risk.run), risk.reason.value, risk.gpus, risk.odds) for risk in notice.runs] == [
        ("host", "DropSpare", 8, 0.75), ("two", "RandomPreempt", 8, 0.5),
        ("host", "RandomPreempt", 16, 0.25), ("one", "RandomPreempt", 8, 0.25),
    ]  # fmt: skip


def test_odds_that_were_counted_say_in_how_many_draws() -> None:
    world = World(*(node(f"a{number}") for number in range(16)), *BUDGETS)
    for number in range(16):
        world.submit(f"r{number}", run(("beta", "gamma")[number % 2], 8, pod=8))
    world.submit("big", run("alpha", 8, pod=8))
    (notice,) = ahead(world)
    assert "; may be cut then, as the lot falls (1000 draws counted): r" in notice.text
    assert notice.text.endswith(" and 11 more")
    assert sum(risk.odds or 0 for risk in notice.runs) == pytest.approx(1)


def test_of_too_few_draws_no_odds_are_told_but_who_goes_before_any_draw_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who looks ahead between two decisions has no time for many."""
    monkeypatch.setattr(fairlease.report.preemption_warnings, "EFFORT_BRIEF", 1)
    world = World(*(node(f"a{number}") for number in range(4)), *BUDGETS)
    world.tick(cmd.Configure(Config(min_runtime=HOUR)))
    world.submit("one", run("beta", 8, pod=8))
    world.submit("two", run("gamma", 8, pod=8))
    world.wait(HOUR)
    world.submit("wide", run("beta", 16, elastic=(8, 16, 8)))  # too young to be drawn
    world.submit("big", run("alpha", 16, pod=8))
    (notice,) = ahead(world)
    assert notice.text.endswith(
        "certain to be cut then, as things stand: wide; may be cut then, as the lot falls: one, two"
    )
    assert {(short(risk.run), risk.odds) for risk in notice.runs} == {("wide", 1.0), ("one", None), ("two", None)}


def test_what_a_reservation_lacks_is_the_same_whoever_tells_it() -> None:
    """Half of each node is free: two pods of 8 lack 8 GPUs each, whole pods, not the 4 and 4 that somebody holds."""
    world = World(node("a0"), node("a1"), *BUDGETS)
    for number in range(2):
        world.submit(f"half-{number}", run("beta", 4, pod=4, location={"fabric.domain": "A"}))
        world.submit(f"rest-{number}", run("gamma", 4, pod=4))
    for number in range(2):
        world.end(f"rest-{number}")
    world.submit("big", run("alpha", 16, pod=8))
    (reserved,) = [each for each in told(world) if each.kind is NoticeKind.DEFICIT_FORECAST]
    (cut,) = ahead(world)
    engine = world.scheduler.engine.twin()
    engine.now = world.now
    row = Remedies(engine).of(world.run("big"))
    world.wait(16 * MINUTE)
    outcome = outcome_of(world)
    assert [(each.group, each.gpus) for each in outcome.deficits] == [(0, 8), (1, 8)]
    assert reserved.gpus == cut.gpus == row.deficit_gpus == outcome.deficit_gpus == 16


def test_who_has_no_notice_is_warned_of_a_date_by_hard_facts_and_nobody_of_one_that_needs_no_cut() -> None:
    """Opportunistic work gives way at once when the rest comes free; where there is room beside it nobody is in danger."""
    world = World(node("a0"), node("a1"), *BUDGETS)
    world.submit("guest", run("beta", 8, pod=8, opportunistic=True))
    world.submit("brief", run("beta", 8, pod=8, max_duration=10 * MINUTE))
    world.submit("big", run("alpha", 16, pod=8))
    (notice,) = ahead(world)
    assert notice.text.endswith("lacks 8 GPUs at 2026-01-05T00:10:00Z; certain to be cut then, as things stand: guest")
    soon = budget("delta", envelope(concurrency=8, start=T0 + 10 * MINUTE))
    world = World(node("a0"), node("a1"), *BUDGETS, soon)
    world.submit("guest", run("beta", 8, pod=8, opportunistic=True))
    world.submit("later", run("delta", 8, pod=8))
    assert (ahead(world), odds(world.scheduler.engine, world.run("later"))) == ([], None)
    world.wait(10 * MINUTE)
    assert (world.how("guest"), world.how("later")) == ("Running", "Running")


def test_work_that_surely_ends_before_the_date_is_not_threatened() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("brief", run("beta", 4, pod=4, max_duration=10 * MINUTE))
    world.submit("long", run("gamma", 4, pod=4))
    world.submit("big", run("alpha", 8, pod=8))
    (notice,) = ahead(world)
    assert notice.concerns == (key("long"),)


def test_a_message_names_a_hundred_runs_at_most_and_each_run_only_itself() -> None:
    world = World(*(node(f"a{number}") for number in range(16)), budget("beta", envelope(concurrency=128)), BUDGETS[0])
    for number in range(128):
        world.submit(f"r{number}", run("beta", 1))
    world.submit("big", run("alpha", 8, pod=8))
    (notice,) = ahead(world)
    assert len(notice.runs) == 128
    body = body_of(notice)
    assert (len(body["runs"]), body["moreRuns"]) == (100, 28)
    (own,) = body_of(notice, key("r7"))["runs"]
    assert own == {"run": "default/r7", "reason": "RandomPreempt", "gpus": 1}


def test_looking_ahead_changes_nothing() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("brief", run("beta", 4, pod=4, max_duration=10 * MINUTE))
    world.submit("long", run("gamma", 4, pod=4))
    world.submit("big", run("alpha", 8, pod=8))
    state, head = world.scheduler.state, world.scheduler.head
    before = snapshot.take(state, head).body
    assert ahead(world)
    assert snapshot.take(state, head).body == before


def test_nobody_is_told_of_cuts_where_notice_is_never() -> None:
    world = World(node("a0"), *BUDGETS)
    world.tick(cmd.Configure(Config(notice=None)))
    world.submit("old", run("beta", 8, pod=8))
    world.submit("big", run("alpha", 8, pod=8))
    assert list(stages(world.scheduler.state)) == []
    assert kinds(world) == []


def test_a_cut_that_is_far_off_is_told_only_at_its_notice() -> None:
    opens = World(node("a0")).now + 3 * HOUR
    world = World(node("a0"), budget("alpha", envelope(start=opens, end=opens + DAY)), *BUDGETS[1:])
    world.submit("old", run("beta", 8, pod=8))
    world.submit("big", run("alpha", 8, pod=8))
    assert kinds(world) == ["DeficitForecast"]
    assert ahead(world) == []
    world.wait(3 * HOUR - 15 * MINUTE)
    assert [notice.due for notice in ahead(world)] == [opens]


def test_a_run_that_passed_its_latest_start_is_told_so_once_with_what_became_of_its_date() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("old", run("beta", 8, pod=8))
    head = world.scheduler.head.seq
    world.submit("late", run("alpha", 8, pod=8, latest_start=world.now + 10 * MINUTE))
    world.submit("poor", run("nobody", 8, pod=8, latest_start=world.now + 10 * MINUTE))
    world.wait(HOUR)
    late, poor = [each for each in told(world, head) if each.kind is NoticeKind.LATEST_START_PASSED]
    remedy = "submit it again with a later runtime.latestStart"
    assert late.text == (
        f"late could not start by its latestStart: it has ended, and its reservation is canceled; {remedy}"
    )
    assert poor.text == f"poor could not start by its latestStart: it has ended; {remedy}"
    assert (late.run, late.owner, late.concerns) == (key("late"), "owner of default/late", (key("late"),))


def test_a_warning_expires_when_what_it_warns_of_has_come_and_what_happened_never_does() -> None:
    world = World(node("a0"), *BUDGETS)
    world.submit("old", run("beta", 8, pod=8))
    world.submit("big", run("alpha", 8, pod=8))
    (coming_cut,) = ahead(world)
    assert coming_cut.due is not None
    assert (coming_cut.expired(coming_cut.due - 1), coming_cut.expired(coming_cut.due)) == (False, True)
    world.wait(20 * MINUTE)
    later = [each.kind for each in told(world) if not each.expired(world.now)]
    assert later == [NoticeKind.RESERVATION_ACTIVE, NoticeKind.RUN_CUT, NoticeKind.RUN_STARTED]
