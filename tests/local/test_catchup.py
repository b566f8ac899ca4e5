"""What happened while the daemon was away, or slow, is decided as of when it happened."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.stage import Stage, daemon, run_object, until

from fairlease.model.amount import parse_instant
from fairlease.runtime.clock import LedgerClock

MS = 1_000_000


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with daemon(tmp_path / "home") as stage:
        yield stage


def lease_ms(stage: Stage, run: str) -> list[int]:
    """How long each lease of a run was."""
    found = stage.call("leases", run=run)["leases"]
    return [
        parse_instant(each["status"]["endTime"]) - parse_instant(each["spec"]["interval"]["start"]) for each in found
    ]


def test_work_that_ended_in_time_while_the_daemon_was_away_did_not_overrun(stage: Stage) -> None:
    asked = run_object("quick", 4, "sleep 0.8", gpusPerPod=2, runtime={"maxDuration": "2s"})
    stage.call("submit", objects=[asked])
    until(lambda: len(stage.supervisors()) == 2)
    stage.kill()
    until(lambda: not stage.supervisors())
    time.sleep(2.5)
    stage.start()
    assert stage.ends("quick")["phase"] == "Completed"
    assert all(800 <= length < 1_800 for length in lease_ms(stage, "quick"))
    stage.audited()


def test_work_that_overran_while_the_daemon_was_away_pays_up_to_its_limit(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("long", 8, "sleep 60", runtime={"maxDuration": "1s"})])
    until(stage.processes)
    stage.kill()
    time.sleep(2)
    assert stage.processes()
    stage.start()
    assert stage.ends("long")["reason"] == "TimeLimit"
    assert lease_ms(stage, "long") == [1_000]
    until(lambda: not stage.processes())
    stage.audited()


def test_work_that_failed_while_the_daemon_was_away_pays_up_to_its_first_failure(stage: Stage) -> None:
    script = "[ $RANK = 0 ] || exec sleep 2; sleep 0.5; exit 3"
    stage.call("submit", objects=[run_object("bad", 4, script, gpusPerPod=2)])
    until(lambda: len(stage.supervisors()) == 2)
    stage.kill()
    until(lambda: not stage.supervisors())
    stage.start()
    assert stage.ends("bad")["message"].endswith("rank 0 failed with exit code 3")
    assert all(500 <= length < 1_500 for length in lease_ms(stage, "bad"))


def test_a_run_that_waited_while_the_daemon_was_away_starts_when_it_is_back(stage: Stage) -> None:
    first = run_object("first", 8, "sleep 0.5")
    second = run_object("second", 8, "sleep 0.3", runtime={"maxDuration": "1500ms"})
    retried = run_object("retried", 8, "[ $FAIRLEASE_ATTEMPT = 2 ]", runtime={"retries": 1})
    stage.call("submit", objects=[first, second, retried])
    until(stage.supervisors)
    stage.kill()
    until(lambda: not stage.supervisors())
    time.sleep(2.5)
    stage.start()
    assert stage.ends("second")["phase"] == "Completed", "nobody pays for time in which nobody could launch it"
    assert stage.ends("retried")["attempt"] == 2
    assert all(length < 1_200 for run in ("first", "second") for length in lease_ms(stage, run))
    assert stage.call("status")["freeGPUs"] == 8
    stage.audited()


def test_a_daemon_that_was_stopped_for_a_while_decides_as_of_the_times_that_passed(stage: Stage) -> None:
    objects = [
        run_object("ends", 4, "sleep 0.5", runtime={"maxDuration": "1500ms"}),
        run_object("overruns", 4, "sleep 60", runtime={"maxDuration": "1s"}),
    ]
    stage.call("submit", objects=objects)
    until(lambda: len(stage.supervisors()) == 2)
    assert stage.process is not None
    stage.process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    stage.process.send_signal(signal.SIGCONT)
    assert stage.ends("ends")["phase"] == "Completed"
    assert stage.ends("overruns")["reason"] == "TimeLimit"
    assert lease_ms(stage, "overruns") == [1_000]
    assert all(500 <= length < 1_300 for length in lease_ms(stage, "ends"))
    stage.audited()


class Clocks:
    """Two clocks to be set by hand."""

    def __init__(self) -> None:
        self.wall_ms = 100_000
        self.steady_ms = 7
        self.warnings: list[int] = []
        self.clock = LedgerClock(self.warnings.append, lambda: self.wall_ms * MS, lambda: self.steady_ms * MS)

    def after(self, ms: int) -> int:
        self.wall_ms += ms
        self.steady_ms += ms
        return self.clock.now(0)


def test_the_clock_goes_on_steadily_while_the_wall_is_behind() -> None:
    clocks = Clocks()
    assert clocks.after(0) == 100_000
    clocks.wall_ms -= 60_000
    assert [clocks.after(500), clocks.after(500)] == [100_500, 101_000]
    assert clocks.warnings == [60_000]
    assert clocks.clock.at(clocks.wall_ms - 200, 0) == 100_800, "as long ago as the wall says"
    clocks.wall_ms += 90_000
    assert clocks.after(0) == clocks.wall_ms == 131_000
    clocks.wall_ms -= 5_000
    clocks.after(0)
    assert clocks.warnings == [60_000, 5_000]


def test_the_clock_begins_with_a_ledger_that_is_ahead_of_the_wall() -> None:
    clocks = Clocks()
    assert clocks.clock.now(500_000) == 500_000
    clocks.steady_ms += 30
    assert clocks.clock.now(500_000) == 500_030
    assert clocks.clock.at(0, 500_000) == 500_000, "nothing new is older than the ledger's last entry"
    assert clocks.warnings == [400_000]
