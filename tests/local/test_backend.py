"""What the engine decides, seen on a machine: several nodes, spares, work that gives way, nodes that go."""

from __future__ import annotations

import time
from pathlib import Path

from tests.local.stage import daemon, run_object, until

from fairlease.model.amount import format_instant, parse_instant

TWO_NODES = "nodes: [{name: a, gpus: 4}, {name: b, gpus: 4}]\nflavor: H100\nmetricsPort: 0\ngrace: 500ms\n"


def test_a_gang_over_two_nodes_knows_its_nodes(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TWO_NODES)
    with daemon(tmp_path / "home", config=str(config), gpus=None) as stage:
        script = "echo $FAIRLEASE_NODE $NODE_RANK/$NNODES $LOCAL_RANK/$LOCAL_WORLD_SIZE $RANK/$WORLD_SIZE"
        stage.call("submit", objects=[run_object("wide", 8, script, gpusPerPod=2)])
        assert stage.ends("wide")["phase"] == "Completed"
        assert [stage.output("wide", rank).split() for rank in range(4)] == [
            ["a", "0/2", "0/2", "0/4"],
            ["a", "0/2", "1/2", "1/4"],
            ["b", "1/2", "0/2", "2/4"],
            ["b", "1/2", "1/2", "3/4"],
        ]


def test_a_node_that_is_configured_away_takes_its_work_along(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TWO_NODES)
    with daemon(tmp_path / "home", config=str(config), gpus=None) as stage:
        stage.call("submit", objects=[run_object(name, 4, "sleep 60") for name in ("first", "second")])
        until(lambda: len(stage.supervisors()) == 2)
        stage.stop()
        config.write_text(TWO_NODES.replace(", {name: b, gpus: 4}", ""))
        stage.start()
        assert stage.ends("second")["reason"] == "NodeFailure"
        stage.runs("first")
        until(lambda: len(stage.supervisors()) == 1)
        assert [node["name"] for node in stage.call("nodes")["nodes"]] == ["a"]
        stage.audited()


def test_a_machine_declared_smaller_is_smaller_once_it_is_idle(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        stage.stop()
        stage.told["gpus"] = 4
        stage.start()
        assert stage.call("status")["freeGPUs"] == 4
        stage.call("submit", objects=[run_object("fits", 4, "true")])
        assert stage.ends("fits")["phase"] == "Completed"


def test_spares_hold_their_gpus_and_run_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        run = run_object("careful", 4, "sleep 60", gpusPerPod=2, sparesPerGroup=2, locality={"groupGPUs": 4})
        stage.call("submit", objects=[run])
        until(lambda: len(stage.supervisors()) == 2)
        roles = sorted(lease["spec"]["slice"]["role"] for lease in stage.call("leases", run="careful")["leases"])
        assert roles == ["Active", "Active", "Spare"]
        assert stage.call("status")["freeGPUs"] == 2
        assert len(stage.call("logs", run="careful")["files"]) == 2
        time.sleep(0.2)
        assert len(stage.supervisors()) == 2


def test_opportunistic_work_ends_before_the_funded_work_on_its_gpus_begins(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with daemon(tmp_path / "home") as stage:
        guest = f"trap 'sleep 0.3; echo guest left >> {diary}; exit 0' TERM; echo in; while :; do sleep 0.02; done"
        stage.call("submit", objects=[run_object("guest", 8, guest, opportunistic=True)])
        until(lambda: stage.output("guest"))
        stage.call("submit", objects=[run_object("host", 8, f"echo host came >> {diary}")])
        assert stage.ends("guest")["reason"] == "ReclaimOpportunistic"
        assert stage.ends("host")["phase"] == "Completed"
        assert diary.read_text() == "guest left\nhost came\n"
        stage.audited()


def test_a_run_follows_another_and_fails_with_it(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        stage.call(
            "submit",
            objects=[
                run_object("one", 1, "sleep 0.2"),
                run_object("two", 1, "true", follow={"after": ["one"]}),
                run_object("bad", 1, "exit 1"),
                run_object("after-bad", 1, "true", follow={"after": ["bad"]}),
            ],
        )
        assert stage.ends("two")["phase"] == "Completed"
        assert stage.ends("after-bad")["reason"] == "UpstreamFailed"
        assert stage.call("status")["runs"] == {"Pending": 0, "Running": 0}


def test_a_run_that_cannot_start_in_time_fails_by_the_clock(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        soon = format_instant(time.time_ns() // 1_000_000 + 700)
        late = run_object("late", 8, "true", runtime={"latestStart": soon})
        stage.call("submit", objects=[run_object("blocks", 8, "sleep 60"), late])
        assert stage.ends("late")["reason"] == "LatestStartPassed"
        stage.runs("blocks")


def test_stopping_with_all_work_leaves_an_empty_machine(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        stage.call("submit", objects=[run_object("a", 8, "sleep 60"), run_object("b", 8, "sleep 60")])
        until(lambda: len(stage.supervisors()) == 1)
        assert stage.call("stop", end=True)["left"] is False
        assert stage.process is not None
        assert stage.process.wait(10) == 0
        assert not stage.supervisors()
        assert not stage.processes()
        stage.start()
        assert stage.ends("b")["reason"] == "Canceled"


def test_a_run_that_fails_rests_longer_each_time_and_holds_nothing_meanwhile(tmp_path: Path) -> None:
    with daemon(tmp_path / "home", backoff=400) as stage:
        stage.call("submit", objects=[run_object("shaky", 8, "[ $FAIRLEASE_ATTEMPT = 3 ]", runtime={"retries": 2})])
        until(lambda: stage.call("show", run="shaky")["status"]["attempt"] == 2)
        status = stage.call("show", run="shaky")["status"]
        assert status["phase"] == "Pending"
        assert {each["reason"] for each in status["conditions"]} == {"BackOff"}
        assert stage.call("status")["freeGPUs"] == 8, "its GPUs are for others while it rests"
        stage.kill()
        stage.start()
        assert stage.ends("shaky")["phase"] == "Completed"
        leases = stage.call("leases", run="shaky")["leases"]
        starts = [parse_instant(each["spec"]["interval"]["start"]) for each in leases]
        ends = [parse_instant(each["status"]["endTime"]) for each in leases]
        assert starts[1] - ends[0] >= 400
        assert starts[2] - ends[1] >= 800
        stage.audited()


def test_a_run_that_rests_can_be_canceled_and_never_comes_back(tmp_path: Path) -> None:
    with daemon(tmp_path / "home", backoff=300) as stage:
        stage.call("submit", objects=[run_object("shaky", 1, "exit 3", runtime={"retries": 5})])
        until(lambda: stage.call("show", run="shaky")["status"]["attempt"] == 2)
        stage.call("cancel", runs=["shaky"])
        time.sleep(0.5)
        assert stage.call("show", run="shaky")["status"]["reason"] == "Canceled"
        stage.audited()
