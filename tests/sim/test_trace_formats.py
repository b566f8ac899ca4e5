"""The readers of public traces: what they take from a line, and what they say of one that makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.traces import HELIOS, PHILLY, helios, philly, quotas, swf

from fairlease.model.amount import HOUR, SECOND, parse_instant
from fairlease.model.document import Invalid
from fairlease.replay.cluster import read_quotas
from fairlease.replay.formats import processors_apart, read_trace
from fairlease.replay.trace import Asker, Limits, TraceJob, pods_of, read_limits

GOOD_HELIOS = "1,ann,vcA,0,8,1,60,COMPLETED"
GOOD_SWF = "1 100 5 3600 8 -1 -1 8 7200 -1 1 3 74 -1 1 -1 -1 -1"


def job(gpus: int, nodes: int | None = None) -> TraceJob:
    return TraceJob(name="job-1", asked=0, owner="org:a", gpus=gpus, duration=HOUR, nodes=nodes, limit=2 * HOUR)


def test_philly_jobs_come_in_the_order_of_their_rank(tmp_path: Path) -> None:
    trace = read_trace(philly(tmp_path, [(0, "a", 8, 60), (5, "b", 1, 30), (5, "a", 2, 10)]), "philly")
    assert [each.name for each in trace.jobs] == ["job-100", "job-101", "job-102"]
    assert [each.owner for each in trace.jobs] == ["org:a", "org:b", "org:a"]
    assert trace.begin == parse_instant("2017-10-09T00:00:00Z")
    assert trace.end - trace.begin == 5 * SECOND
    assert [each.duration for each in trace.jobs] == [60 * SECOND, 30 * SECOND, 10 * SECOND]


def test_helios_jobs_keep_user_nodes_and_how_they_ended(tmp_path: Path) -> None:
    rows = (GOOD_HELIOS, "2,bob,vcB,90,16,2,5,FAILED", "3,bob,vcB,91,16,2,5,CANCELLED", "4,ann,vcA,92,1,1,5,NODE_FAIL")
    trace = read_trace(helios(tmp_path, *rows), "helios")
    assert [each.exit_code for each in trace.jobs] == [0, 1, 130, 1]
    assert [each.user for each in trace.jobs] == ["ann", "bob", "bob", "ann"]
    assert [each.nodes for each in trace.jobs] == [1, 2, 2, 1]
    assert trace.begin == parse_instant("2020-09-01T00:00:00Z")
    later = read_trace(helios(tmp_path, *rows), "helios", "2020-07-01T00:00:00Z")
    assert later.begin == parse_instant("2020-07-01T00:00:00Z")


def test_swf_jobs_take_their_start_from_the_header_and_their_limit_from_the_request(tmp_path: Path) -> None:
    trace = read_trace(swf(tmp_path, GOOD_SWF), "swf")
    (only,) = trace.jobs
    assert only == TraceJob(
        name="job-1",
        asked=(893466664 + 100) * SECOND,
        owner="org:g74",
        gpus=8,
        duration=HOUR,
        nodes=8,
        limit=2 * HOUR,
        user="u3",
    )


def test_swf_jobs_that_never_ran_are_left_out_and_counted(tmp_path: Path) -> None:
    never = "2 101 5 -1 -1 -1 -1 8 7200 -1 5 3 74 -1 1 -1 -1 -1"
    sizeless = "3 102 5 60 -1 -1 -1 -1 7200 -1 1 3 74 -1 1 -1 -1 -1"
    nameless = "4 103 5 60 4 -1 -1 -1 -1 -1 0 -1 -1 -1 1 -1 -1 -1"
    trace = read_trace(swf(tmp_path, GOOD_SWF, never, sizeless, nameless), "swf")
    assert trace.left_out == 2
    last = trace.jobs[-1]
    assert (last.gpus, last.limit, last.user, last.owner, last.exit_code) == (4, None, None, "org:unknown", 1)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("1,ann,vcA,soon,8,1,60,COMPLETED", "submit_s", "soon"),
        ("1,ann,vcA,0,0,1,60,COMPLETED", "gpus", "0"),
        ("1,ann,vcA,0,-8,1,60,COMPLETED", "gpus", "-8"),
        ("1,ann,vcA,0,99999999999999999999,1,60,COMPLETED", "gpus", "99999999999999999999"),
        ("1,ann,vcA,0,8,0,60,COMPLETED", "nodes", "0"),
        ("1,ann,vcA,0,8,1,-60,COMPLETED", "duration_s", "-60"),
        ("1,ann,vcA,0,8,1,nan,COMPLETED", "duration_s", "nan"),
        ("1,ann,vcA,0,8,1,60,LOST", "state", "LOST"),
        ("1,ann,vc A,0,8,1,60,COMPLETED", "vc", "vc A"),
        ("1,,vcA,0,8,1,60,COMPLETED", "user", ""),
        ("9,ann,vcA,0,8,1,60,COMPLETED", "job_id", "9"),
        ("1,ann,vcA,0,8,1", "duration_s", ""),
    ],
)
def test_a_line_that_makes_no_sense_is_told_with_file_line_column_and_value(
    tmp_path: Path, row: str, column: str, value: str
) -> None:
    path = helios(tmp_path, "9,ann,vcA,0,8,1,60,COMPLETED", row)
    with pytest.raises(Invalid) as error:
        read_trace(path, "helios")
    (problem,) = error.value.problems
    assert (problem.source, problem.line) == (str(path), 3)
    assert problem.field == column or len(row.split(",")) != len(HELIOS.split(","))
    assert value in str(problem)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("1 100 5 3600 8", "allocated"),
        ("x 100 5 3600 8 -1 -1 8 7200 -1 1 3 74 -1 1 -1 -1 -1 9", "think"),
        ("1 soon 5 3600 8 -1 -1 8 7200 -1 1 3 74 -1 1 -1 -1 -1", "submit"),
        ("1 100 5 3600 8 -1 -1 eight 7200 -1 1 3 74 -1 1 -1 -1 -1", "requested processors"),
        ("1 100 5 -5 8 -1 -1 8 7200 -1 1 3 74 -1 1 -1 -1 -1", "run time"),
    ],
)
def test_a_bad_line_of_a_workload_log_is_told_by_the_name_of_its_field(tmp_path: Path, row: str, column: str) -> None:
    with pytest.raises(Invalid) as error:
        read_trace(swf(tmp_path, row), "swf")
    (problem,) = error.value.problems
    assert (problem.line, problem.field) == (5, column)


def test_a_file_that_is_no_trace_says_what_was_expected(tmp_path: Path) -> None:
    wrong = philly(tmp_path, [], heading="a,b,c")
    with pytest.raises(Invalid, match="src_row: no such column"):
        read_trace(wrong, "philly")
    with pytest.raises(Invalid, match="no jobs in it"):
        read_trace(philly(tmp_path, [], heading=PHILLY), "philly")
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_trace(tmp_path / "nothing.csv", "helios")
    torn = tmp_path / "torn.gz"
    torn.write_bytes(philly(tmp_path, [(0, "a", 8, 60)]).read_bytes()[:40])
    with pytest.raises(Invalid, match="cannot be read"):
        read_trace(torn, "philly")


@pytest.mark.parametrize(
    ("gpus", "nodes", "pods"),
    [(1, None, (1, 1)), (8, None, (1, 8)), (12, None, (2, 6)), (9, None, (2, 5)), (128, 16, (16, 8)), (8, 4, (4, 2))],
)
def test_a_job_is_spread_evenly_over_as_few_nodes_as_hold_it(
    gpus: int, nodes: int | None, pods: tuple[int, int]
) -> None:
    assert pods_of(job(gpus, nodes), 8) == pods


def test_a_job_that_tells_too_few_nodes_is_spread_over_as_many_as_it_needs() -> None:
    assert pods_of(job(64, 1), 8) == (8, 8)


@pytest.mark.parametrize(
    ("text", "limit"), [("trace", 2 * HOUR), ("none", None), ("exact", HOUR), ("factor:1.5", 5_400_000)]
)
def test_limits_come_from_the_trace_or_from_what_really_happened(text: str, limit: int | None) -> None:
    assert Asker(8, read_limits(text)).spec(job(8)).runtime.max_duration == limit


@pytest.mark.parametrize("text", ["", "factor", "factor:0", "factor:-1", "factor:inf", "twice"])
def test_limits_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="factor"):
        read_limits(text)


def test_jobs_that_are_alike_share_one_spec() -> None:
    asker = Asker(8, Limits())
    assert asker.spec(job(8)) is asker.spec(job(8))
    assert asker.spec(job(16)).resources.total_gpus == 16


def test_quotas_hold_from_midnight_and_only_changes_are_told(tmp_path: Path) -> None:
    trace = read_trace(helios(tmp_path, GOOD_HELIOS, "2,bob,vcB,90,16,2,5,FAILED"), "helios", "2020-07-20T12:00:00Z")
    path = quotas(
        tmp_path,
        "Venus,vcA,2020-07-01,2020-07-20,16",
        "Venus,vcA,2020-07-21,2020-07-30,16",
        "Venus,vcA,2020-07-31,2020-08-30,8",
        "Venus,vcB,2020-07-01,2020-07-21,0",
        "Venus,vcB,2020-07-22,2020-08-30,48",
        "Venus,vcC,2020-07-01,2020-08-30,99",
        "Venus,total,2020-07-01,2020-08-30,200",
        "Earth,vcA,2020-07-01,2020-08-30,1",
    )
    assert read_quotas(str(path), "Venus", trace) == [
        (parse_instant("2020-07-20T12:00:00Z"), {"org:vcA": 16, "org:vcB": 0}),
        (parse_instant("2020-07-22T00:00:00Z"), {"org:vcB": 48}),
        (parse_instant("2020-07-31T00:00:00Z"), {"org:vcA": 8}),
    ]
    with pytest.raises(Invalid, match="the file has Venus, Earth"):
        read_quotas(str(path), None, trace)
    with pytest.raises(Invalid, match="no quota for org:vcB"):
        read_quotas(str(path), "Earth", trace)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("Venus,vcA,2020-07-32,2020-08-01,8", "date_from"),
        ("Venus,vcA,2020-07-02,2020-07-01,8", "date_to"),
        ("Venus,vcA,2020-07-01,2020-07-02,-8", "gpus"),
        ("Venus,vcA,2020-07-01,2020-07-02", "gpus"),
    ],
)
def test_a_quota_that_makes_no_sense_is_told_with_its_line(tmp_path: Path, row: str, column: str) -> None:
    trace = read_trace(helios(tmp_path, GOOD_HELIOS), "helios")
    with pytest.raises(Invalid) as error:
        read_quotas(str(quotas(tmp_path, row)), "Venus", trace)
    (problem,) = error.value.problems
    assert (problem.line, problem.field) == (2, column)


@pytest.mark.parametrize(("processors", "pods"), [(1, 1), (64, 64), (66, 33), (300, 75), (97, 97), (512, 64)])
def test_processors_of_a_workload_log_are_placed_apart(processors: int, pods: int) -> None:
    assert processors_apart(processors) == pods
