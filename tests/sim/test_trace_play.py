"""A replay does what a cluster would do, and its report says what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sim.traces import helios, public, quotas

from fairlease.engine.forecast.calibration import Sample, calibrate
from fairlease.ledger.audit.audit import audit
from fairlease.ledger.store.memory import MemoryStore
from fairlease.model.amount import DAY, HOUR, MINUTE, SECOND
from fairlease.replay.cluster import read_budgets, read_nodes
from fairlease.replay.formats import read_trace
from fairlease.replay.play import IDLE_TICKS_MAX, POLICY, ReplayStage, TracePlay
from fairlease.replay.report import LARGE, compare, report, series, thrashing
from fairlease.replay.trace import Asker, Limits, Trace, TraceJob, read_limits

START = 1_600_000_000_000
Job = tuple[int, str, int, int]
"""(minute of asking, owner, GPUs, minutes on the machine)"""


def trace_of(*jobs: Job) -> Trace:
    made = [
        TraceJob(
            name=f"job-{number}",
            asked=START + minute * MINUTE,
            owner=f"org:{owner}",
            gpus=gpus,
            duration=minutes * MINUTE,
        )
        for number, (minute, owner, gpus, minutes) in enumerate(jobs)
    ]
    return Trace("made.csv", "philly", tuple(made), 0)


def played(
    trace: Trace,
    nodes: str = "1x8",
    budgets: str = "one",
    *,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    store: MemoryStore | None = None,
    cluster: str | None = None,
    forecasts: int = 0,
) -> TracePlay:
    plan = read_nodes(nodes, trace, limits, 4)
    asker = Asker(max(pool.gpus for pool in plan.pools), limits)
    money = read_budgets(budgets, trace, asker, plan.gpus, cluster)
    play = TracePlay(trace, ReplayStage(plan, money, asker, POLICY, forecasts), store)
    play.play(lambda _done: None)
    return play


def told(*jobs: Job, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - as `played` takes it
    return report(played(trace_of(*jobs), **more))


def test_a_run_waits_for_the_one_before_it_and_the_report_says_how_long() -> None:
    found = told((0, "a", 8, 60), (30, "b", 8, 60))
    assert found["owners"]["org:a"]["waitSeconds"]["mean"] == 0
    assert found["owners"]["org:b"]["waitSeconds"] == {"mean": 1800, "median": 1800, "p95": 1800, "max": 1800}
    assert found["owners"]["org:b"]["slowdown"]["mean"] == 1.5
    assert found["waits"]["waitSeconds"]["mean"] == 900
    assert found["waits"]["gpuHours"] == 16
    assert found["runs"] == {"asked": 2, "ended": {"Completed": 2}, "waiting": {}}
    assert found["backfill"]["runs"] == 0


def test_work_shorter_than_ten_minutes_counts_as_ten_in_a_slowdown() -> None:
    found = told((0, "a", 8, 30), (0, "b", 8, 1))
    assert found["owners"]["org:b"]["slowdown"]["mean"] == pytest.approx(3.1)


def test_a_run_that_surely_ends_in_time_starts_past_an_earlier_one_and_is_backfill() -> None:
    jobs: list[Job] = [(0, "a", 4, 60), (1, "b", 8, 60), (2, "c", 4, 10), (90, "c", 1, 1)]
    assert told(*jobs)["backfill"]["runs"] == 0, "without a limit nobody knows when it ends"
    found = told(*jobs, limits=read_limits("exact"))
    assert found["backfill"] == {"runs": 1, "share": 0.25, "pastRoom": 1, "sharePastRoom": 0.25}
    assert found["owners"]["org:b"]["waitSeconds"]["mean"] == 59 * 60


def test_a_run_that_waits_for_money_is_passed_but_not_for_room() -> None:
    jobs = trace_of((0, "a", 4, 60), (1, "a", 4, 60), (2, "b", 2, 60), (70, "b", 2, 60))
    found = report(played(jobs, "2x8", "fair"))
    assert found["backfill"]["runs"] == 0, "both have the money for all they ask at once"
    tight = trace_of((0, "a", 8, 60), (1, "a", 8, 60), (2, "b", 8, 120))
    found = report(played(tight, "2x8", "fair"))
    assert (found["backfill"]["runs"], found["backfill"]["pastRoom"]) == (1, 0)


def test_siblings_use_what_others_leave_only_with_family_money() -> None:
    jobs = trace_of((0, "a", 8, 60), (1, "a", 8, 60), (70, "b", 8, 120))
    alone, shared = (report(played(jobs, "2x8", budgets)) for budgets in ("fair", "family"))
    assert alone["owners"]["org:a"]["waitSeconds"]["max"] == 59 * 60
    assert shared["owners"]["org:a"]["waitSeconds"]["max"] == 0


def test_utilisation_is_exact_until_the_last_asking_and_over_the_whole() -> None:
    found = told((0, "a", 8, 60), (120, "a", 4, 60))
    assert found["utilisation"]["whileAsked"] == pytest.approx(0.5)
    assert found["utilisation"]["whole"] == pytest.approx(0.5)
    assert found["cluster"]["load"] == pytest.approx(0.75)
    drawn = series(played(trace_of((0, "a", 8, 60), (120, "a", 4, 60))))
    assert drawn["stepSeconds"] == 60
    assert drawn["utilisation"][:60] == [1.0] * 60
    assert drawn["utilisation"][60:120] == [0.0] * 60
    assert drawn["utilisation"][120:] == [0.5] * 60


def test_the_queue_is_counted_in_runs_and_in_gpus() -> None:
    found = told((0, "a", 8, 60), (0, "b", 8, 60), (0, "b", 4, 60))
    assert found["queue"] == {"runsMean": 1.0, "runsMax": 2, "gpusMean": pytest.approx((12 + 4) / 3, abs=0.01)}


def test_a_run_that_never_fits_is_told_with_its_cause_and_stops_nobody() -> None:
    found = told((0, "a", 128, 60), (1, "b", 8, 60))
    assert found["runs"]["waiting"] == {"NeverFits": 1}
    assert found["owners"]["org:a"]["neverStarted"] == 1
    assert found["owners"]["org:b"]["waitSeconds"]["mean"] == 0
    assert found["sizes"][LARGE]["runs"] == 1


def test_a_time_limit_ends_what_runs_longer() -> None:
    found = report(played(trace_of((0, "a", 8, 60)), limits=read_limits("factor:0.5")))
    assert found["runs"]["ended"] == {"TimeLimit": 1}
    assert found["waits"]["gpuHours"] == 4
    exact = report(played(trace_of((0, "a", 8, 60)), limits=read_limits("exact")))
    assert exact["runs"]["ended"] == {"Completed": 1}


def test_a_quota_that_falls_cuts_whoever_is_in_the_way_of_a_funded_run(tmp_path: Path) -> None:
    jobs = ("1,ann,vcA,0,8,1,172800,COMPLETED", "2,ann,vcA,1,8,1,172800,COMPLETED", "3,bob,vcB,90000,8,1,3600,FAILED")
    days = (
        "V,vcA,2020-07-01,2020-07-01,16",
        "V,vcA,2020-07-02,2020-07-30,8",
        "V,vcB,2020-07-01,2020-07-01,0",
        "V,vcB,2020-07-02,2020-07-30,8",
    )
    trace = read_trace(helios(tmp_path, *jobs), "helios", "2020-07-01T00:00:00Z")
    store = MemoryStore()
    play = played(trace, "2x8", str(quotas(tmp_path, *days)), store=store)
    found, lost = report(play), 8 * 89_999 / 3600
    assert "traces tell of no checkpoints" in thrashing(found)
    assert "notice" not in thrashing(found), "no notice would have spared it"
    assert found["preemptions"] == {
        "total": 1,
        "byReason": {"ReclaimOverdrawn": 1},
        "runs": 1,
        "mostOfOneRun": 1,
        "gpuHoursLost": pytest.approx(lost, abs=0.001),
        "lostShare": round(lost / (lost + 8 * (48 + 48 + 1)), 4),
    }
    assert found["owners"]["org:vcB"]["waitSeconds"]["max"] == 0
    assert found["owners"]["org:vcA"]["preemptions"] == 1
    assert found["runs"]["ended"] == {"Completed": 2, "Fail": 1}, "and the one that was cut was done in the end"
    assert audit(store.entries()).ok


def test_a_replay_is_the_same_each_time_and_on_any_store() -> None:
    jobs = trace_of(*((number % 97, f"o{number % 5}", 1 << number % 5, 5 + number % 40) for number in range(300)))
    ordered = jobs._replace(jobs=tuple(sorted(jobs.jobs, key=lambda job: job.asked)))
    store = MemoryStore()
    first, second = played(ordered, "4x8", "fair", store=store), played(ordered, "4x8", "fair")
    assert report(first) == report(second)
    assert first.scheduler.head == second.scheduler.head == store.head()
    assert audit(store.entries()).ok


def test_what_was_used_and_waited_for_agrees_with_the_ledger() -> None:
    jobs = trace_of(*((number, f"o{number % 3}", 1 + number % 12, 5 + number * 7 % 90) for number in range(200)))
    store = MemoryStore()
    play = played(jobs, "3x8", "family", store=store)
    endings = {ending.ended.run: ending for ending in store.endings()}
    for run, seen in play.watch.runs.items():
        ending = endings[run]
        bill = ending.ended.bill
        assert seen.used == bill.owned + bill.shared
        assert (seen.started, seen.ended) == (ending.ended.started_at, ending.at)
    busy = sum(bucket.busy for bucket in play.watch.buckets)
    assert busy == sum(seen.used for seen in play.watch.runs.values())
    waited = sum(bucket.waiting_runs for bucket in play.watch.buckets)
    assert waited == sum(seen.wait for seen in play.watch.runs.values())


def test_a_thin_begin_of_a_record_does_not_make_the_rest_look_like_less_load() -> None:
    hour = 3600
    steady = [(1000 * hour + number * hour, "a", 8, 10 * hour) for number in range(199)]
    trace = trace_of((0, "a", 8, 1005 * hour), *steady)
    assert Asker(8, Limits()).demand(trace) == pytest.approx(8 * (198 * 10 + 9 + 4) / 197)
    assert read_nodes("auto:1", trace, Limits(), 4).nodes == 11


def test_a_cluster_is_sized_by_the_load_and_holds_the_largest_job() -> None:
    jobs = trace_of((0, "a", 8, 600), (100, "a", 8, 500))
    assert read_nodes("auto:0.5", jobs, Limits(), 4).nodes == 22
    assert read_nodes("auto:100", trace_of((0, "a", 60, 1), (9999, "a", 1, 1)), Limits(), 4).nodes == 8
    pools = read_nodes("a:2x8,b:3x4", jobs, Limits(), 2)
    assert (pools.nodes, pools.gpus) == (5, 28)
    domains = [command.node.labels["fabric.domain"] for command in pools.commands()]  # type: ignore[union-attr]  # all are SetNode
    assert domains == ["a-d0000", "a-d0000", "b-d0000", "b-d0000", "b-d0001"]


@pytest.mark.parametrize(
    "text", ["", "8", "0x8", "8x0", "a:1x8,a:1x8", "1x8,2x8", "auto", "auto:0", "A:1x8", "9999999x9999"]
)
def test_nodes_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|name|more than"):
        read_nodes(text, trace_of((0, "a", 8, 60)), Limits(), 4)


def test_two_replays_of_one_trace_stand_side_by_side() -> None:
    jobs = trace_of((0, "a", 72, 60), (1, "b", 72, 60))
    small, large = report(played(jobs, "9x8")), report(played(jobs, "18x8"))
    beside = compare(small, large)
    assert beside["waitMeanSecondsLarge"] == {"before": 1770.0, "after": 0.0, "change": -1770.0}
    assert beside["utilisation"]["change"] == pytest.approx(-0.5)
    with pytest.raises(ValueError, match="same jobs"):
        compare(small, told((0, "a", 8, 60)))


def test_forecasts_are_scored_by_what_really_happened() -> None:
    samples = [
        Sample("org:a", 0, 10 * MINUTE, 30 * MINUTE, 50 * MINUTE, 20 * MINUTE),
        Sample("org:a", 0, 10 * MINUTE, 30 * MINUTE, 50 * MINUTE, 60 * MINUTE),
        Sample("org:b", 0, 2 * HOUR, 3 * HOUR, 2 * DAY, DAY),
        Sample("org:b", 0, DAY, 2 * DAY, 3 * DAY, HOUR),
    ]
    found = calibrate(samples)
    assert (found["forecasts"], found["insideP10P90"], found["beforeP50"], found["beforeP90"]) == (4, 0.5, 0.5, 0.75)
    assert found["owners"]["org:a"]["meanAbsoluteErrorSeconds"] == 20 * MINUTE // SECOND
    assert list(found["horizons"]) == ["under 1h", "1h to 6h", "over 1d"]
    assert "forecast" not in report(played(trace_of((0, "a", 8, 60))))


def test_a_replay_forecasts_those_who_wait_and_scores_it() -> None:
    jobs = trace_of(*((number, "a", 8, 10) for number in range(12)))
    play = played(jobs, "1x8", forecasts=2)
    told = report(play)["forecast"]
    assert told["forecasts"] == 5  # every second of the eleven that wait
    assert told["meanAbsoluteErrorSeconds"] >= 0
    assert told["errorBelowLastTwo"] is not None


def test_those_who_would_wait_for_ever_are_given_up() -> None:
    play = played(trace_of((0, "a", 128, 60)))
    assert play.watch.waiting_runs == 1
    assert IDLE_TICKS_MAX < 1_000_000


def test_the_helios_trace_replays_with_its_quotas_and_passes_the_audit() -> None:
    trace = read_trace(public("helios_venus_2vc_sept2020_jobs.csv"), "helios")
    store = MemoryStore()
    play = played(trace, "22x8", str(public("helios_vc_quota_runs.csv")), store=store, cluster="Venus")
    found = report(play)
    assert found["runs"]["asked"] == 1867
    assert found["runs"]["waiting"] == {}
    assert found["utilisation"]["whileAsked"] > 0.9
    assert audit(store.entries()).ok


@pytest.mark.parametrize(
    ("name", "form", "nodes", "budgets", "jobs"),
    [
        ("philly_jobs.csv.gz", "philly", "auto:0.9", "fair", 82_247),
        ("swf_sdsc_sp2_first4961.swf.gz", "swf", "16x8", "one", 4_606),
    ],
)
def test_the_public_traces_are_read_whole_and_their_beginning_replayed(
    name: str, form: str, nodes: str, budgets: str, jobs: int
) -> None:
    trace = read_trace(public(name), form)
    assert len(trace.jobs) == jobs
    assert list(trace.jobs) == sorted(trace.jobs, key=lambda job: job.asked)
    found = report(played(trace.first(500), nodes, budgets))
    assert found["runs"]["asked"] == 500
    assert found["waits"]["neverStarted"] == 0
