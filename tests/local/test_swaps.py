"""Nodes fail under real processes: ranks come back on spares, and nobody else is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.local.stage import Stage, daemon, run_object, until

from fairlease.local.socket.protocol import CallFailed

BEGIN = 'echo "$RANK/$WORLD_SIZE $FAIRLEASE_HOST $FAIRLEASE_NODE $MASTER_ADDR:$MASTER_PORT $$";'
FOR_EVER = f"{BEGIN} exec sleep 300"


@contextmanager
def machine(home: Path, nodes: int = 4, gpus: int = 2, **settings: object) -> Iterator[Stage]:
    """A daemon with several nodes in one fabric domain."""
    declared = [{"name": f"n{index}", "gpus": gpus, "domain": "rack"} for index in range(nodes)]
    config = home.parent / "config.yaml"
    config.write_text(json.dumps({"flavor": "H100", "nodes": declared, "grace": "1s", **settings}))
    with daemon(home, config=str(config), gpus=None, flavor=None) as stage:
        yield stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with machine(tmp_path / "home") as stage:
        yield stage


def gang(name: str = "train", gpus: int = 4, script: str = FOR_EVER, **spec: object) -> dict[str, Any]:
    """One group with spares, in pods of two GPUs: a node each."""
    shape: dict[str, object] = {"gpusPerPod": 2, "locality": {"groupGPUs": gpus}, "sparesPerGroup": 2}
    return run_object(name, gpus, script, **{**shape, **spec})


def said(stage: Stage, run: str, rank: int) -> list[list[str]]:
    """What each process of a rank said when it began."""
    return [line.split() for line in stage.output(run, rank).splitlines()]


def begun(stage: Stage, run: str, ranks: int) -> list[list[str]]:
    """What the last process of every rank said, once all have begun."""
    until(lambda: all(said(stage, run, rank) for rank in range(ranks)))
    return [said(stage, run, rank)[-1] for rank in range(ranks)]


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def closures(stage: Stage, run: str) -> list[str]:
    found = stage.call("leases", run=run)["leases"]
    return sorted(each["status"]["closureReason"] for each in found if each["status"]["closed"])


def test_a_rank_whose_node_failed_comes_back_on_the_spare_as_itself(stage: Stage) -> None:
    stage.call("submit", objects=[gang()])
    first = begun(stage, "train", 2)
    stage.call("nodes.set", nodes=[first[1][2]], wish="fail")
    until(lambda: len(said(stage, "train", 1)) == 2)
    before, after = said(stage, "train", 1)
    assert (after[:2], after[3]) == (before[:2], before[3]), "rank, world size, name and meeting place are kept"
    assert after[2] != before[2]
    assert not alive(before[4])
    assert alive(after[4])
    assert said(stage, "train", 0) == [first[0]], "the other rank was not touched"
    assert alive(first[0][4])
    assert closures(stage, "train") == ["NodeFailure", "Swap"]
    assert stage.call("show", run="train")["status"]["attempt"] == 1
    stage.audited()


def test_a_rank_never_meets_a_copy_of_itself_on_the_spare(stage: Stage, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    clings = f'trap "" TERM; echo begin $$ >> {diary}; while true; do sleep 0.05; echo $$ >> {diary}; done'
    stage.call("submit", objects=[gang(gpus=2, script=clings)])
    until(diary.exists)
    node = stage.call("leases", run="train", open=True)["leases"][0]["spec"]["slice"]["nodes"][0]
    stage.call("nodes.set", nodes=[node], wish="fail")
    until(lambda: diary.read_text().count("begin") == 2)
    time.sleep(0.3)
    lines = diary.read_text().splitlines()
    second = max(index for index, line in enumerate(lines) if line.startswith("begin"))
    old = lines[0].split()[1]
    assert old not in lines[second:], "the old process wrote nothing after the new one began"


def test_a_burst_of_nodes_swaps_what_has_spares_and_requeues_the_rest(tmp_path: Path) -> None:
    with machine(tmp_path / "home", nodes=8) as stage:
        rich = gang("rich", sparesPerGroup=4)
        poor = gang("poor", sparesPerGroup=0, runtime={"checkpoint": "1s"})
        stage.call("submit", objects=[rich, poor])
        lost = {line[2] for run in ("rich", "poor") for line in begun(stage, run, 2)}
        assert len(lost) == 4
        stage.call("nodes.set", nodes=sorted(lost), wish="fail")
        until(lambda: all(len(said(stage, "rich", rank)) == 2 for rank in range(2)))
        assert not lost & {said(stage, "rich", rank)[1][2] for rank in range(2)}
        until(lambda: stage.call("show", run="poor")["status"]["attempt"] == 2)
        until(lambda: len(stage.supervisors()) == 4)
        until(lambda: stage.output("poor", 1, attempt=2))
        assert stage.call("show", run="rich")["status"]["attempt"] == 1
        stage.audited()


def test_a_daemon_killed_in_the_middle_of_a_swap_finishes_it_once(stage: Stage) -> None:
    stage.call("submit", objects=[gang()])
    first = begun(stage, "train", 2)
    node = first[1][2]
    stage.kill()
    for doom in range(1_400, 2_400, 70):
        stage.launch(doom=doom)
        end = time.monotonic() + 3
        while time.monotonic() < end and stage.process is not None and stage.process.poll() is None:
            try:
                stage.call("nodes.set", nodes=[node], wish="fail")
            except CallFailed:
                time.sleep(0.01)
        stage.kill()
    stage.start()
    stage.call("nodes.set", nodes=[node], wish="fail")
    until(lambda: len(said(stage, "train", 1)) == 2)
    time.sleep(0.3)
    assert [line[0] for line in said(stage, "train", 1)] == ["1/2", "1/2"], "once on each place, never twice"
    assert said(stage, "train", 0) == [first[0]]
    assert alive(first[0][4])
    assert closures(stage, "train") == ["NodeFailure", "Swap"]
    assert len(stage.supervisors()) == 2
    stage.audited()


def test_the_process_on_the_spare_killed_at_once_ends_the_attempt_like_any_other(stage: Stage) -> None:
    stage.call("submit", objects=[gang(runtime={"retries": 1})])
    first = begun(stage, "train", 2)
    stage.call("nodes.set", nodes=[first[1][2]], wish="fail")
    until(lambda: len(said(stage, "train", 1)) == 2)
    os.kill(int(said(stage, "train", 1)[1][4]), signal.SIGKILL)
    until(lambda: stage.call("show", run="train")["status"]["attempt"] == 2)
    stage.audited()


def test_a_failed_node_stays_failed_over_a_restart_until_it_returns(stage: Stage) -> None:
    stage.call("nodes.set", nodes=["n0", "n1", "n2"], wish="fail")
    stage.stop()
    stage.start()
    stage.call("submit", objects=[run_object("wide", 4, "true", gpusPerPod=2)])
    skipped = {node["name"]: node["skipped"] for node in stage.call("nodes")["nodes"]}
    assert skipped == {"n0": "NodeFailed", "n1": "NodeFailed", "n2": "NodeFailed", "n3": None}
    assert stage.phase("wide") == "Pending"
    stage.call("nodes.set", nodes=["n1"], wish="return")
    assert stage.ends("wide")["phase"] == "Completed"


def test_a_cordon_stays_over_a_restart_and_over_what_is_decided_late(stage: Stage) -> None:
    stage.call("nodes.set", nodes=["n0"], wish="cordon")
    first = run_object("first", 6, "sleep 0.3", gpusPerPod=2, locality={"groupGPUs": 6})
    second = run_object("second", 6, "true", gpusPerPod=2, locality={"groupGPUs": 6})
    stage.call("submit", objects=[first, second])
    until(lambda: len(stage.supervisors()) == 3)
    stage.kill()
    until(lambda: not stage.supervisors())
    time.sleep(1.5)
    stage.start()
    assert stage.ends("second")["phase"] == "Completed"
    nodes = {lease["spec"]["slice"]["nodes"][0] for lease in stage.call("leases")["leases"]}
    assert nodes == {"n1", "n2", "n3"}
    assert {node["name"]: node["skipped"] for node in stage.call("nodes")["nodes"]}["n0"] == "Cordoned"
    stage.call("nodes.set", nodes=["n0"], wish="uncordon")
    assert stage.call("status")["freeGPUs"] == 8


def test_a_tenant_on_a_spare_goes_within_its_short_grace_and_asks_again(tmp_path: Path) -> None:
    with machine(tmp_path / "home", grace="30s", opportunisticGrace="300ms") as stage:
        stage.call("submit", objects=[gang(gpus=6)])
        first = begun(stage, "train", 3)
        clings = 'trap "" TERM; echo began; while true; do sleep 0.1; done'
        guest = run_object("guest", 2, clings, opportunistic=True, runtime={"onPreempt": "Requeue"})
        stage.call("submit", objects=[guest])
        until(lambda: stage.output("guest"))
        begin = time.monotonic()
        stage.call("nodes.set", nodes=[first[2][2]], wish="fail")
        until(lambda: len(said(stage, "train", 2)) == 2)
        assert time.monotonic() - begin < 10, "nobody waits for the usual grace of half a minute"
        assert closures(stage, "guest") == ["ReclaimedBySpare"]
        assert stage.phase("guest") == "Pending"
        stage.audited()


def test_another_attempt_begins_only_when_the_last_process_of_the_one_before_is_gone(tmp_path: Path) -> None:
    with machine(tmp_path / "home", grace="2s") as stage:
        diary = tmp_path / "diary"
        saves = f"trap 'sleep 1; echo saved >> {diary}; exit 0' TERM; echo attempt $FAIRLEASE_ATTEMPT >> {diary};"
        script = f"{saves} while true; do sleep 0.05; done"
        stage.call("submit", objects=[gang(script=script, sparesPerGroup=0, runtime={"onPreempt": "Requeue"})])
        until(lambda: diary.exists() and diary.read_text().count("attempt 1") == 2)
        node = stage.call("leases", run="train", open=True)["leases"][0]["spec"]["slice"]["nodes"][0]
        stage.call("nodes.set", nodes=[node], wish="fail")
        until(lambda: diary.read_text().count("attempt 2") == 2)
        assert diary.read_text().splitlines() == ["attempt 1"] * 2 + ["saved"] + ["attempt 2"] * 2


def test_only_administrators_say_of_a_node_that_it_failed(stage: Stage) -> None:
    with pytest.raises(CallFailed) as refused:
        stage.call("nodes.set", nodes=["n9"], wish="fail")
    assert (refused.value.error.reason, refused.value.exit) == ("NotFound", 1)
    with pytest.raises(CallFailed) as refused:
        stage.call("nodes.set", nodes=["n0"], wish="explode")
    assert refused.value.exit == 2


# --- drill -------------------------------------------------------------------------------------------------------------


def test_a_drill_moves_a_rank_and_the_spare_changes_places_with_it(stage: Stage) -> None:
    stage.call("submit", objects=[gang()])
    first = begun(stage, "train", 2)
    told = stage.call("drill", run="train", rank=1)
    assert told["from"]["node"] == told["spare"] == first[1][2]
    assert 0 < told["decidedMs"] < told["runningMs"]
    assert told["goneMs"] is not None
    until(lambda: len(said(stage, "train", 1)) == 2)
    assert said(stage, "train", 1)[1][:2] == first[1][:2]
    assert said(stage, "train", 1)[1][2] == told["to"]["node"]
    assert said(stage, "train", 0) == [first[0]]
    assert {node["skipped"] for node in stage.call("nodes")["nodes"]} == {None}, "no node failed"
    spares = stage.call("show", run="train")["status"]["spares"]
    assert spares["groups"] == [{"group": 0, "wanted": 2, "held": 2, "ready": 2}]
    assert closures(stage, "train") == ["Swap", "Swap"]
    back = stage.call("drill", run="train", rank=1)
    assert back["to"]["node"] == first[1][2], "and back again"
    stage.audited()


def test_a_drill_from_a_cordoned_node_uses_the_spare_up_and_says_so(stage: Stage) -> None:
    stage.call("submit", objects=[gang()])
    first = begun(stage, "train", 2)
    stage.call("nodes.set", nodes=[first[0][2]], wish="cordon")
    assert stage.call("drill", run="train", rank=0)["spare"] is None
    with pytest.raises(CallFailed) as refused:
        stage.call("drill", run="train")
    assert (refused.value.error.reason, refused.value.exit) == ("NoSpare", 1)
    stage.audited()


def test_show_tells_per_group_which_spares_are_ready(stage: Stage) -> None:
    stage.call("submit", objects=[gang()])
    begun(stage, "train", 2)
    show = [sys.executable, "-m", "fairlease", "show", "train", "--home", str(stage.home)]
    assert "2 of 2 GPUs ready" in subprocess.run(show, capture_output=True, text=True, check=True).stdout
    held = {lease["spec"]["slice"]["nodes"][0] for lease in stage.call("leases", run="train", open=True)["leases"]}
    spare = held - {line[2] for line in begun(stage, "train", 2)}
    stage.call("nodes.set", nodes=sorted(spare), wish="fail")
    told = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert "0 of 2 GPUs ready" in told
    assert told.splitlines()[-1].split() == ["0", "2", "0", "0"]


def test_a_drill_of_what_waits_has_ended_or_is_not_there_is_refused(stage: Stage) -> None:
    objects = [run_object("done", 2, "true"), run_object("bare", 2, "sleep 60"), gang("huge", 64)]
    stage.call("submit", objects=objects, waitForNodes=True)
    stage.ends("done")
    found = {}
    for run, rank in (("done", None), ("bare", None), ("bare", 7), ("huge", None), ("nobody", None)):
        with pytest.raises(CallFailed) as refused:
            stage.call("drill", run=run, rank=rank)
        found[run, rank] = refused.value.error.reason
    assert list(found.values()) == ["Terminal", "NoSpare", "NotFound", "NoSpare", "NotFound"]
