"""Forecasts of a real daemon: who waits is told when it will start, and what came of it can be asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.stage import Stage, budget_object, daemon, run_object, until


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with daemon(tmp_path / "home") as stage:
        yield stage


def fairlease(stage: Stage, *words: str) -> str:
    environment = {**os.environ, "FAIRLEASE_HOME": str(stage.home), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "fairlease", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_who_waits_is_told_when_it_will_start_and_the_report_scores_it(stage: Stage) -> None:
    limit = {"maxDuration": "1h"}
    stage.call("submit", objects=[run_object("long", 8, "sleep 60", runtime=limit), run_object("behind", 8, "true")])
    (row,) = until(lambda: [each for each in stage.call("eta")["runs"] if "forecast" in each])
    forecast = row["forecast"]
    assert row["name"] == "behind"
    assert forecast["asOf"] <= forecast["p10"] <= forecast["p50"] <= forecast["p90"]
    assert forecast["deficitGPUs"] == 8
    assert stage.call("show", run="behind")["forecast"]["p50"] == forecast["p50"]
    told = fairlease(stage, "eta", "behind")
    assert "P50:" in told
    assert "Source:" in told
    assert "behind" in fairlease(stage, "eta", "--all")
    assert "no run that was forecast" in fairlease(stage, "forecast", "report")
    stage.call("cancel", runs=["long"])
    stage.ends("behind")
    report = stage.call("forecast.report")
    assert report["forecasts"] == 1
    assert set(report["owners"]) == {"org:ai:rai"}
    assert "MEAN ERROR" in fairlease(stage, "forecast", "report", "-o", "wide")


def test_a_list_says_about_when_a_run_without_a_date_will_start(stage: Stage) -> None:
    stage.call("budgets.apply", objects=[budget_object("small", "org:small", concurrency=4)])
    spec = {"owner": "org:small", "runtime": {"maxDuration": "1h"}}
    stage.call("submit", objects=[run_object(name, 4, "sleep 60", **spec) for name in ("holds", "waits")])
    until(lambda: "forecast" in stage.call("list")["runs"][1])
    row = fairlease(stage, "list").splitlines()[-1]
    assert row.split()[0] == "waits"
    assert " ~in " in row


def test_who_submits_a_run_that_must_wait_reads_its_date_at_once(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("long", 8, "sleep 60")])
    words = ("--owner", "org:ai:rai", "--gpus", "8", "--detach", "--", "true")
    told = fairlease(stage, "run", "--name", "late", *words)
    date = stage.call("show", run="late")["status"]["earliestStart"]
    assert told.startswith("run/late submitted, Pending: Reserved: starts in ")
    assert f", by {date}: 8 GPUs are needed" in told


def test_a_running_run_learns_its_odds_of_being_cut(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("one", 8, "sleep 60"), run_object("claim", 8, "sleep 60")])
    odds = stage.call("eta", run="one")["runs"][0]["odds"]
    assert [(each["claim"], each["chance"], each["exact"]) for each in odds] == [("claim", 1.0, True)]
    assert "100.0%" in fairlease(stage, "eta", "one")
    (told,) = [line for line in fairlease(stage, "explain", "one").splitlines() if "may be cut" in line]
    assert told.endswith("for claim: 100.0%, exact")
    waits = fairlease(stage, "explain", "claim")
    assert re.search(r"^  likely: in .* \(P10 .*, P50 .*, P90 ", waits, re.MULTILINE), "one question, one command"
    assert "lacks 8 GPUs of H100; remedies: end the one run that is in question (8 GPUs)" in waits
    stage.call("cancel", runs=["claim"])
    stage.ends("claim")
    over = stage.call("eta", run="claim")["runs"][0]
    assert (over["owner"], over["ended"]["reason"]) == ("org:ai:rai", "Canceled")


def test_a_run_that_its_money_no_longer_covers_is_told_so_and_when_that_began(stage: Stage) -> None:
    drained = {"onExhaustion": "Drain"}
    stage.call("budgets.apply", objects=[budget_object("t", "org:t", concurrency=4, **drained)])
    spec = {"owner": "org:t", "gpusPerPod": 1, "runtime": {"checkpoint": "1h"}}
    stage.call("submit", objects=[run_object("train", 4, "sleep 60", **spec)])
    stage.runs("train")
    stage.call("budgets.apply", objects=[budget_object("t", "org:t", concurrency=2, **drained)])
    told = stage.call("explain", run="train")
    assert (told["verdict"], told["status"]["phase"]) == ("Overdrawn", "Running")
    assert told["message"].startswith("t/main no longer covers 4 of its GPUs: they end from 2")
    conditions = {each["type"]: each for each in told["status"]["conditions"]}
    assert conditions["Funded"]["message"] == told["message"]
    assert conditions["Running"]["lastTransitionTime"] == told["status"]["startedAt"]
    assert conditions["Funded"]["lastTransitionTime"] > conditions["Running"]["lastTransitionTime"]
    assert conditions["Failed"]["lastTransitionTime"] == told["status"]["submittedAt"]
