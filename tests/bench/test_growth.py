"""What a decision costs does not grow with what does not concern it.

Work is counted in calls, of Python functions and of built-in ones, not in seconds: the same commands make the same calls on every
machine, however busy it is. One test looks at the clock, because a call can hide a long loop; it compares medians, and tries again.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from bench.admission import Bench, Case
from bench.forecast import full as full_of
from bench.loop import Load, Loop
from bench.packing import full
from bench.resolver import due, reclaim, scattered, surrounded
from bench.swap import filled
from bench.synthetic import DOMAIN_NODES, asked, budget, cluster, request, run_key
from msgspec.structs import replace
from tests.engine import build

from fairlease.engine import command as cmd
from fairlease.ledger.state.state import State
from fairlease.model.amount import HOUR, MINUTE
from fairlease.model.config import Config
from fairlease.model.record import Key
from fairlease.reason import Reason
from fairlease.scheduler import Scheduler

if TYPE_CHECKING:
    from _typeshed import TraceFunction

NODES = 320
BASE = Case(100, 0, nodes=NODES)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted here is a decision, not the proof of its indexes."""
    monkeypatch.setattr(State, "checking", False)


def calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls, once warm."""
    counted = 0

    def count(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    work()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def steps(work: Callable[[], object]) -> int:
    """How many instructions of Python `work` takes, once warm: a loop that calls nothing shows here."""
    counted = 0

    def count(frame: FrameType, event: str, _what: object) -> TraceFunction:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return count

    work()
    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted


def decision(case: Case) -> int:
    """The work of one admission decision."""
    return calls(Bench(case).once)


@pytest.mark.parametrize(
    ("case", "factor"),
    [
        pytest.param(Case(100, 3_000, nodes=NODES), 1.1, id="thirty times as many leases are over"),
        pytest.param(Case(1_000, 0, nodes=NODES), 1.5, id="ten times as many leases are open"),
        pytest.param(Case(100, 0, nodes=4 * NODES), 1.1, id="four times as many nodes"),
        pytest.param(Case(100, 0, nodes=NODES, budgets=500), 1.1, id="ten times as many budgets"),
        pytest.param(Case(100, 0, nodes=NODES, pending=300), 1.1, id="a queue of hundreds, no two alike"),
    ],
)
def test_an_admission_costs_what_it_costs_in_a_small_world(case: Case, factor: float) -> None:
    assert decision(case) <= factor * decision(BASE)


def test_a_refusal_on_a_full_cluster_looks_at_domains_and_not_at_nodes() -> None:
    submission = asked(2, request(3, 128, pod=2, group=32))

    def work(nodes: int) -> int:
        scheduler = full(nodes, 7)
        return calls(lambda: _refused(scheduler, submission))

    further = (640 - 64) // DOMAIN_NODES
    assert work(640) - work(64) < further * DOMAIN_NODES, "less than a call for each node more"


def _refused(scheduler: Scheduler, submission: cmd.Submit) -> None:
    with scheduler.what_if(scheduler.state.at + 1, submission) as decision:
        assert decision.tries[-1].result is Reason.Reserved


def queue(pending: int, *, distinct: bool) -> Scheduler:
    """A full cluster, and runs that wait for half of it."""
    scheduler = cluster(64, 10)
    at = scheduler.state.at
    for number in range(64):
        scheduler.tick(at, asked(number, request(number % 10, 8)))
    for number in range(64, 64 + pending):
        limit = HOUR + (number if distinct else 0)
        who = number % 10 if distinct else 0
        scheduler.tick(at, asked(number, request(who, 256, group=32, limit=limit)))
    assert len(scheduler.state.queue.shapes) == (pending if distinct else 1)
    return scheduler


@pytest.mark.parametrize("distinct", [pytest.param(True, id="no two alike"), pytest.param(False, id="all alike")])
def test_an_end_does_not_wake_a_queue_that_it_gives_no_room(distinct: bool) -> None:
    def work(pending: int) -> int:
        scheduler = queue(pending, distinct=distinct)
        return calls(lambda: _ended(scheduler))

    assert work(400) <= 1.05 * work(64), "the first 64 have a slice, whose dates are looked at again"


def _ended(scheduler: Scheduler) -> None:
    with scheduler.what_if(scheduler.state.at + 1, cmd.WorkEnded(run_key(3), 1, 0)) as decision:
        assert not decision.tries, "nobody was tried in vain"


def test_an_end_does_not_wake_those_who_wait_behind_a_lien() -> None:
    def work(pending: int) -> int:
        scheduler = cluster(64, 10)
        at = scheduler.state.at
        scheduler.tick(at, cmd.Configure(Config(notice=None)))
        for number in range(64):
            scheduler.tick(at, asked(number, request(number % 10, 8)))
        scheduler.tick(at, asked(64, request(0, 512, group=32)))
        for number in range(65, 65 + pending):
            scheduler.tick(at, asked(number, request(number % 10, 8, limit=1_000 * HOUR + number)))
        assert len(scheduler.state.queue.shapes) == 1 + pending
        return calls(lambda: _ended(scheduler))

    assert work(200) <= 1.2 * work(20)


def test_one_more_of_many_that_wait_alike_costs_no_more_than_the_second() -> None:
    def work(pending: int) -> int:
        scheduler = queue(pending, distinct=False)
        submission = asked(9_999, request(0, 256, group=32, limit=HOUR))
        return calls(lambda: _refused(scheduler, submission))

    assert work(400) <= 1.1 * work(2)


def test_who_waits_for_money_costs_nothing_when_one_of_many_alike_takes_the_place_of_another() -> None:
    def work(pending: int) -> int:
        scheduler = cluster(64, 1)
        at, given = scheduler.state.at, budget(0, hours=False)
        envelopes = tuple(replace(each, concurrency=8) for each in given.spec.envelopes)
        scheduler.tick(at, cmd.SetBudget(given.budget, replace(given.spec, envelopes=envelopes)))
        for number in range(pending):
            scheduler.tick(at, asked(number, request(0, 8)))
        assert len(scheduler.state.queue.shapes) == 1
        return steps(lambda: _replaced(scheduler))

    assert work(1_000) <= 1.1 * work(100)


def _replaced(scheduler: Scheduler) -> None:
    with scheduler.what_if(scheduler.state.at + 1, cmd.WorkEnded(run_key(0), 1, 0)) as decision:
        results = [each.result for each in decision.tries]
        assert results == [Reason.Start, Reason.ConcurrencyCapExceeded]


@pytest.mark.parametrize("capped", [pytest.param(False, id="each for itself"), pytest.param(True, id="under one cap")])
def test_envelopes_in_a_chain_cost_no_more_than_a_look_of_each_pod_at_each_of_them(capped: bool) -> None:
    def work(links: int) -> int:
        scheduler = chain(links, capped=capped)
        return calls(lambda: _started(scheduler, asked(0, build.run("org", links))))

    few, many = work(12), work(24)
    assert many <= 2 * 2 * few, "twice as many pods, and twice as many envelopes"


def chain(links: int, *, capped: bool) -> Scheduler:
    """Envelopes of one GPU, each for two nodes: one that the envelope before it may pay for, too, and one for the next."""
    nodes = [build.node(f"n{at}", labels={"even": f"{at // 2}", "odd": f"{(at + 1) // 2}"}) for at in range(links + 1)]
    selectors = [{"odd": f"{(at + 1) // 2}"} if at % 2 else {"even": f"{at // 2}"} for at in range(links)]
    envelopes = [build.envelope(f"e{at:02d}", 1, selector=selector) for at, selector in enumerate(selectors)]
    caps = [build.cap("all", [each.name for each in envelopes], max_concurrency=links)] if capped else []
    return build.World(*nodes, build.budget("org", *envelopes, aggregate_caps=tuple(caps))).scheduler


def _started(scheduler: Scheduler, submission: cmd.Submit) -> None:
    with scheduler.what_if(scheduler.state.at + 1, submission) as decision:
        assert [each.result for each in decision.tries] == [Reason.Start]


def test_a_run_costs_as_much_after_a_thousand_others_as_at_first() -> None:
    loop = Loop(Load(0, gap=10 * MINUTE, nodes=64))
    at = loop.scheduler.state.at

    def batch() -> None:
        nonlocal at
        for _ in range(100):
            at += loop.load.gap
            loop.step(at)

    for _ in range(3):
        batch()
    before = calls(batch)
    for _ in range(8):
        batch()
    after = calls(batch)
    assert loop.done > 1_000
    assert after <= 1.15 * before


def test_the_clock_agrees_that_the_past_costs_nothing() -> None:
    worlds = {"new": Bench(BASE), "old": Bench(Case(100, 3_000, nodes=NODES))}
    ratios = []
    for _ in range(5):
        for bench in worlds.values():
            bench.decided.clear()
        for _ in range(40):
            for bench in worlds.values():
                bench.once()
        ratios.append(statistics.median(worlds["old"].decided) / statistics.median(worlds["new"].decided))
        if ratios[-1] <= 2:
            return
    pytest.fail(f"the same decision takes {min(ratios):.1f} times as long after 3,000 leases, five times over")


def test_a_swap_costs_the_same_under_ten_times_as_many_leases() -> None:
    few, many = (_swap(leases) for leases in (180, 1_800))
    assert many <= 1.1 * few


def _swap(leases: int) -> int:
    scheduler = filled(leases)
    run = next(iter(scheduler.state.runs.values()))

    def fail() -> None:
        with scheduler.what_if(scheduler.state.at + MINUTE, cmd.FailNode(run.held[0].node)) as decision:
            assert Reason.Swap in {event.reason for event in decision.events if hasattr(event, "reason")}

    return calls(fail)


def test_a_forecast_behind_thousands_costs_what_it_costs_behind_hundreds() -> None:
    def work(pending: int) -> int:
        scheduler = cluster(16, 10)
        at = scheduler.state.at
        scheduler.tick(at, cmd.Configure(Config(notice=None)))
        for number in range(16 + pending):
            scheduler.tick(at, asked(number, request(number % 10, 8)))
        assert len(scheduler.state.holds) == pending
        return calls(lambda: _forecast(scheduler, run_key(15 + pending)))

    assert work(2_000) <= 1.2 * work(200)


def test_a_round_of_forecasts_grows_with_the_logarithm_of_what_is_open() -> None:
    few, many = (calls(partial(_forecast, full_of(leases, 50))) for leases in (100, 1_000))
    assert many <= math.log(1_000) / math.log(100) * few


def _forecast(scheduler: Scheduler, *runs: Key) -> None:
    with scheduler.what_if(scheduler.state.at + 1, cmd.Forecast(runs)) as decision:
        assert decision.events, "there was something to tell"


def test_to_reclaim_from_opportunistic_work_grows_no_faster_than_the_work() -> None:
    few, many = (calls(partial(reclaim, scattered(nodes))) for nodes in (32, 128))
    assert many <= 4 * few


def test_a_resolution_costs_the_same_in_a_cluster_of_twice_the_size_where_the_claim_does_not_look() -> None:
    few, many = (calls(partial(due, surrounded(outside))) for outside in (256, 1_024))
    assert many <= 1.05 * few
