"""EASY backfilling, by hand: who starts when on a few processors."""

from __future__ import annotations

from bench.easy import Easy, FlatJob
from bench.quality import Fared, Model, figures, measure

from fairlease.replay.trace import TraceJob


def job(number: int, asked: int, width: int, duration: int, limit: int | None = None) -> FlatJob:
    traced = TraceJob(f"job-{number}", asked, "org:a", width, duration, width, limit, "u1")
    return FlatJob(traced, width, duration, limit)


def starts(processors: int, *jobs: tuple[int, int, int, int | None]) -> list[int]:
    """When jobs start that are given as (asked, width, duration, limit)."""
    return Easy([job(number, *each) for number, each in enumerate(jobs)], processors).play()


def test_jobs_start_in_order_while_they_fit() -> None:
    assert starts(4, (0, 2, 10, 10), (1, 2, 10, 10), (2, 4, 5, 5)) == [0, 1, 11]


def test_a_job_that_ends_by_the_shadow_time_is_backfilled() -> None:
    assert starts(4, (0, 3, 10, 10), (1, 4, 5, 5), (2, 1, 8, 8), (3, 1, 8, 8)) == [0, 10, 2, 15]


def test_a_longer_job_is_backfilled_on_extra_processors_only() -> None:
    # At 10 the head takes three of four: one is extra, and the first long job has it.
    assert starts(4, (0, 2, 10, 10), (1, 3, 5, 5), (2, 1, 50, 50), (3, 1, 50, 50)) == [0, 10, 2, 15]


def test_the_head_starts_sooner_where_a_job_ends_before_its_limit() -> None:
    assert starts(2, (0, 2, 3, 100), (1, 2, 5, 5)) == [0, 3]


def test_a_job_without_a_limit_that_outlives_its_estimate_holds_the_head_up() -> None:
    hour = 3_600_000
    first = (0, 1, hour, None)
    taught = Easy([job(0, *first), job(1, hour, 2, 10 * hour, None), job(2, hour + 1, 2, 1, None)], 2).play()
    assert taught == [0, hour, 11 * hour]


def test_both_schedulers_run_the_same_jobs_of_a_log() -> None:
    found = measure(Model(7, 60, "auto:1.0", 16, 5.0).read(), "4x8")
    for telling in ("limits", "none", "exact"):
        ours, easy = found[telling]["engine"], found[telling]["easy"]
        assert {name: row["jobs"] for name, row in ours["sizes"].items()} == {
            name: row["jobs"] for name, row in easy["sizes"].items()
        }
        assert found[telling]["processors"] == 32


def test_waits_and_slowdowns_are_bounded_by_ten_seconds() -> None:
    fared = [Fared(0, 1, 0, 1_000), Fared(0, 1, 9_000, 10_000)]
    assert figures(fared, 1)["wait_s"] == 4.5
    assert figures(fared, 1)["bounded_slowdown"] == 1.0
