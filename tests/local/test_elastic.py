"""Elastic runs as real processes: groups go and come, the others stay, and all can read who is in."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.stage import Stage, run_object, until
from tests.local.test_swaps import FOR_EVER, alive, begun, closures, machine, said

from fairlease.local.socket.protocol import CallFailed

LISTENS = """
import json, os, signal, time
def heard(*_):
    with open(os.environ["FAIRLEASE_MEMBERS"]) as file:
        print("heard", json.load(file)["generation"], flush=True)
signal.signal(signal.SIGUSR1, heard)
print("began", os.environ["RANK"], os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with machine(tmp_path / "home", growCooldown="200ms") as stage:
        yield stage


def elastic(script: str = FOR_EVER, **spec: object) -> dict[str, Any]:
    """Up to eight GPUs in groups of two, a pod each."""
    widths = {"minTotalGPUs": 2, "maxTotalGPUs": 8, "stepGPUs": 2}
    shape: dict[str, object] = {"gpusPerPod": 2, "locality": {"groupGPUs": 2}, "malleable": widths}
    return run_object("wide", 8, script, **{**shape, **spec})


def members(stage: Stage) -> dict[str, Any]:
    path = stage.home / "members" / "default+wide+1.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def ranks(stage: Stage) -> list[int]:
    return [member["rank"] for member in members(stage)["members"]]


def test_shrinking_ends_the_highest_groups_with_grace_and_touches_no_other(stage: Stage, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saves = f"trap 'echo $RANK >> {saved}; exit 0' TERM; while true; do sleep 0.05; done"
    stage.call("submit", objects=[elastic(f"echo $RANK $$; {saves}")])
    first = begun(stage, "wide", 4)
    told = stage.call("resize", run="wide", to=4, narrower=True)
    assert (told["before"]["allocated"], told["width"]) == (8, {"allocated": 4, "desired": 4})
    until(lambda: len(stage.supervisors()) == 2)
    assert sorted(saved.read_text().split()) == ["2", "3"], "who goes may save its work"
    assert [alive(line[1]) for line in first] == [True, True, False, False]
    assert closures(stage, "wide") == ["Shrink", "Shrink"]
    assert (ranks(stage), members(stage)["worldSize"], members(stage)["generation"]) == ([0, 1], 2, 2)
    stage.audited()


def test_growth_starts_only_the_ranks_that_are_missing(stage: Stage) -> None:
    stage.call("submit", objects=[elastic()])
    first = begun(stage, "wide", 4)
    stage.call("resize", run="wide", by=6, narrower=True)
    until(lambda: len(stage.supervisors()) == 1)
    stage.call("resize", run="wide", to=6)
    until(lambda: len(said(stage, "wide", 2)) == 2)
    assert [len(said(stage, "wide", rank)) for rank in range(4)] == [1, 2, 2, 1]
    assert said(stage, "wide", 0) == [first[0]]
    assert said(stage, "wide", 2)[1][0] == "2/3", "it learns the world as it is when it starts"
    assert said(stage, "wide", 2)[1][3] == first[2][3], "and meets the others where they are"
    assert stage.call("show", run="wide")["status"]["width"]["allocated"] == 6
    stage.audited()


def test_who_asked_for_a_signal_gets_one_at_each_change_and_reads_who_is_in(stage: Stage) -> None:
    command = [sys.executable, "-c", LISTENS]
    stage.call("submit", objects=[elastic(command=command, env={"FAIRLEASE_SIGNAL": "SIGUSR1"})])
    begun(stage, "wide", 4)
    stage.call("resize", run="wide", to=4)
    for rank in (0, 1):
        until(lambda rank=rank: ["heard", "2"] in said(stage, "wide", rank))  # type: ignore[misc]  # bound at once
    stage.call("resize", run="wide", to=6)
    until(lambda: ["heard", "3"] in said(stage, "wide", 0))
    assert [line[0] for line in said(stage, "wide", 2)].count("heard") == 0, "who is new has read it"
    stage.call("nodes.set", nodes=[members(stage)["members"][2]["node"]], wish="fail")
    until(lambda: ["heard", "4"] in said(stage, "wide", 0))
    assert ranks(stage) == [0, 1], "without a spare the group is lost, and the run goes on"
    assert stage.call("show", run="wide")["status"]["attempt"] == 1


def test_nobody_dies_of_a_signal_that_it_does_not_listen_to(stage: Stage) -> None:
    stage.call("submit", objects=[elastic(env={"FAIRLEASE_SIGNAL": "SIGUSR2"})])
    first = begun(stage, "wide", 4)
    stage.call("resize", run="wide", to=4)
    until(lambda: len(stage.supervisors()) == 2)
    time.sleep(0.2)
    assert [alive(line[4]) for line in first] == [True, True, False, False]
    stage.runs("wide")


def test_a_signal_is_found_by_the_process_below_the_shell_that_listens(stage: Stage, tmp_path: Path) -> None:
    program = tmp_path / "listens.py"
    program.write_text(LISTENS)
    script = f"{sys.executable} {program}; echo over"
    stage.call("submit", objects=[elastic(script, env={"FAIRLEASE_SIGNAL": "SIGUSR1"})])
    begun(stage, "wide", 4)
    stage.call("resize", run="wide", to=6)
    until(lambda: ["heard", "2"] in said(stage, "wide", 0))
    assert "over" not in stage.output("wide")


def test_generations_go_on_counting_over_a_restart_and_ranks_are_told_again(stage: Stage) -> None:
    command = [sys.executable, "-c", LISTENS]
    stage.call("submit", objects=[elastic(command=command, env={"FAIRLEASE_SIGNAL": "SIGUSR1"})])
    begun(stage, "wide", 4)
    stage.call("resize", run="wide", to=6)
    until(lambda: ["heard", "2"] in said(stage, "wide", 0))
    stage.kill()
    stage.start()
    until(lambda: said(stage, "wide", 0).count(["heard", "2"]) == 2)
    stage.call("resize", run="wide", to=4)
    until(lambda: ["heard", "3"] in said(stage, "wide", 0))


def test_the_members_of_an_attempt_are_forgotten_with_its_last_process(stage: Stage) -> None:
    stage.call("submit", objects=[elastic()])
    begun(stage, "wide", 4)
    assert members(stage)["generation"] == 1
    stage.call("cancel", runs=["wide"])
    until(lambda: not list((stage.home / "members").iterdir()))


def test_a_signal_that_means_something_else_is_refused_by_name(stage: Stage) -> None:
    with pytest.raises(CallFailed) as refused:
        stage.call("submit", objects=[elastic(env={"FAIRLEASE_SIGNAL": "SIGKILL"})])
    assert refused.value.exit == 2
    assert "SIGKILL" in refused.value.error.message
    assert "SIGUSR1" in refused.value.error.message


def test_widths_off_the_grid_are_refused_with_the_nearest_and_exit_code_two(stage: Stage) -> None:
    stage.call("submit", objects=[elastic(), run_object("rigid", 2, "true")])
    home = ["--home", str(stage.home)]

    def fairlease(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "fairlease", *words, *home], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    code, told = fairlease("shrink", "wide", "--to", "5")
    assert (code, "nearest: 4 and 6" in told) == (2, True), told
    code, told = fairlease("shrink", "wide", "--by", "8")
    assert (code, "nearest: 2" in told) == (2, True), told
    code, told = fairlease("resize", "wide", "--to", "10")
    assert (code, "nearest: 8" in told) == (2, True), told
    code, told = fairlease("shrink", "rigid", "--to", "1")
    assert (code, "rigid" in told) == (2, True), told
    assert fairlease("shrink", "wide")[0] == fairlease("shrink", "wide", "--to", "2", "--by", "2")[0] == 2
    assert fairlease("shrink", "nobody", "--to", "2")[0] == 2
    assert fairlease("shrink", "wide", "--by", "4") == (0, "run/wide 8 → 4 GPUs, 4 desired\n")
    code, told = fairlease("shrink", "wide", "--to", "6")
    assert (code, "fairlease resize wide --to 6" in told) == (2, True), told
