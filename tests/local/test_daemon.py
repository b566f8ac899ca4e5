"""The daemon through its socket: a real process each time, real work, real ends."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.stage import Stage, budget_object, daemon, placed, run_object, until

from fairlease.local.daemon.config import load_settings
from fairlease.local.daemon.launch import NotUp, down, holder, up
from fairlease.local.socket.protocol import EXIT_NO_DAEMON, CallFailed, Client
from fairlease.runtime.metrics import MACHINE, METRICS, PREFIX


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with daemon(tmp_path / "home") as stage:
        yield stage


def refusal(stage: Stage, verb: str, **args: object) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        stage.call(verb, **args)
    return caught.value


def test_a_submitted_run_is_executed_with_its_environment_and_its_logs(stage: Stage) -> None:
    script = "echo $RANK/$WORLD_SIZE $CUDA_VISIBLE_DEVICES $FAIRLEASE_RUN $MASTER_ADDR:$MASTER_PORT $COLOR; pwd"
    asked = run_object("train", 8, script, gpusPerPod=2, env={"COLOR": "red"}, workdir="/usr")
    answer = stage.call("submit", objects=[asked])
    (run,) = answer["runs"]
    assert (run["name"], run["status"]["phase"], placed(run["status"])) == ("train", "Pending", True)
    assert run["status"]["message"] == "starting: 0 of 4 pods"
    assert stage.ends("train")["phase"] == "Completed"
    said = [stage.output("train", rank).split() for rank in range(4)]
    ports = {words[3] for words in said}
    assert len(ports) == 1
    assert [words[:3] + words[4:] for words in said] == [
        [f"{rank}/4", f"{2 * rank},{2 * rank + 1}", "train", "red", "/usr"] for rank in range(4)
    ]
    until(lambda: stage.call("logs", run="train")["ended"])
    assert stage.call("logs.read", run="train", attempt=1, rank=1)["text"].startswith("1/4")
    assert not stage.processes()
    stage.audited()


def test_two_gangs_that_need_all_gpus_run_one_after_the_other(stage: Stage, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    script = f"echo $FAIRLEASE_RUN begins >> {diary}; sleep 0.3; echo $FAIRLEASE_RUN ends >> {diary}"
    answer = stage.call("submit", objects=[run_object(name, 8, script) for name in ("first", "second")])
    assert [placed(run["status"]) for run in answer["runs"]] == [True, False]
    explained = stage.call("explain", run="second")
    assert explained["verdict"] == "Reserved"
    assert explained["reservation"]["status"]["reason"] == "Notice"
    assert explained["domains"][0]["freeGPUs"] == 0
    stage.ends("second")
    assert diary.read_text().split("\n")[:4] == ["first begins", "first ends", "second begins", "second ends"]
    story = [line["reason"] for line in stage.call("explain", run="second")["story"]]
    assert [reason for reason in story if reason != "Forecast"] == [
        "Submitted", "Reserved", "Reserved", "Start", "Start", "Started", "Completed", "Completed",
    ]  # fmt: skip


def test_one_bad_run_in_a_request_refuses_all_of_it_by_name(stage: Stage) -> None:
    good, idle = run_object("good", 1, "true"), run_object("idle", 1, "true")
    del idle["spec"]["command"]
    refused = refusal(stage, "submit", objects=[good, idle])
    assert refused.error.reason == "InvalidRequest"
    assert "idle: spec.command" in refused.error.message
    assert refused.error.problems[0]["field"] == "spec.command"
    assert refusal(stage, "show", run="good").error.reason == "NotFound"
    stage.call("submit", objects=[good])
    assert refusal(stage, "submit", objects=[run_object("other", 1, "true"), good]).error.reason == "AlreadyExists"
    assert refusal(stage, "show", run="other").error.reason == "NotFound"


def test_a_run_that_nobody_pays_for_waits_with_its_cause(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("poor", 1, "true", owner="org:else")])
    explained = stage.call("explain", run="poor")
    assert explained["verdict"] == "NoEnvelope"
    stage.call("budgets.apply", objects=[budget_object("else", "org:else")])
    assert stage.ends("poor")["phase"] == "Completed"


def test_who_asks_for_more_than_all_the_money_there_is_is_not_told_to_wait(stage: Stage) -> None:
    stage.call("budgets.apply", objects=[budget_object("small", "org:small", concurrency=4)])
    stage.call("submit", objects=[run_object("beyond", 6, "true", owner="org:small", gpusPerPod=1)])
    told, eta = stage.call("explain", run="beyond"), stage.call("eta", run="beyond")["runs"][0]
    assert (told["cover"][0]["reason"], told["cover"][0]["paysGPUs"]) == ("ConcurrencyCapExceeded", 4)
    assert told["message"].startswith(
        "2 of 6 GPUs find no payer, and 2 would find none if nothing else ran: ask for fewer"
    )
    for remedy in (told["remedy"], told["cover"][0]["remedy"], eta["remedy"]):
        assert "wait" not in remedy
        assert "ask for fewer GPUs" in remedy
    (listed,) = stage.call("eta")["runs"]
    assert (eta["message"], listed["message"], listed["remedy"]) == (told["message"], told["message"], "")

    stage.call("budgets.apply", objects=[budget_object("small", "org:small", concurrency=6)])
    assert stage.ends("beyond")["phase"] == "Completed"


def test_a_domain_whose_money_is_in_use_is_not_called_out_of_scope(stage: Stage) -> None:
    stage.call("budgets.apply", objects=[budget_object("small", "org:small", concurrency=4)])
    objects = [run_object(name, 4, "sleep 60", owner="org:small") for name in ("holds", "waits")]
    stage.call("submit", objects=objects)
    told = stage.call("explain", run="waits")
    assert [(each["freeGPUs"], each["reason"]) for each in told["domains"]] == [(4, "ConcurrencyCapExceeded")]
    assert "wait for runs on this money" in told["cover"][0]["remedy"]


def test_a_plan_tells_what_would_happen_and_writes_nothing(stage: Stage) -> None:
    before = stage.call("status")["head"]
    plan = stage.call("plan", object=run_object("maybe", 4, "true", runtime={"maxDuration": "2h"}))
    assert (plan["verdict"], plan["starts"], plan["width"], plan["nodes"]) == ("Start", True, 4, ["local"])
    assert plan["worstCase"] == {"gpus": 4, "hours": 2, "gpuHours": 8, "perAttempt": False}
    again = run_object("again", 4, "true", runtime={"maxDuration": "2h", "retries": 1})
    assert stage.call("plan", object=again)["worstCase"]["perAttempt"]
    assert [(payer["budget"], payer["class"], payer["gpus"]) for payer in plan["payers"]] == [("rai", "owned", 4)]
    assert stage.call("plan", object=run_object("huge", 16, "true"))["verdict"] == "NeverFits"
    assert stage.call("status")["head"] == before
    assert stage.call("cover", object=run_object("maybe", 4, "true"))["cover"][0]["reason"] == "Chosen"


def test_canceled_work_hears_sigterm_and_is_killed_after_its_grace(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("grace: 400ms\nflavor: H100\ngpus: 8\nmetricsPort: 0\n")
    with daemon(tmp_path / "home", config=str(config)) as stage:
        polite = "trap 'echo goodbye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        stubborn = "trap 'echo never' TERM; echo ready; while :; do sleep 0.02; done"
        stage.call("submit", objects=[run_object("polite", 4, polite), run_object("stubborn", 4, stubborn)])
        until(lambda: stage.output("polite") and stage.output("stubborn"))
        begun = time.monotonic()
        assert stage.call("cancel", runs=["polite", "stubborn"]) == {"canceled": ["polite", "stubborn"]}
        assert stage.ends("stubborn")["reason"] == "Canceled"
        until(lambda: not stage.processes())
        assert 0.3 < time.monotonic() - begun < 3
        assert stage.output("polite").endswith("goodbye\n")
        assert stage.output("stubborn").endswith("never\n")
        assert refusal(stage, "cancel", runs=["polite"]).error.reason == "Terminal"


def test_new_work_waits_until_the_old_process_has_left_its_gpus(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("grace: 1s\nnodes: [{name: box, gpus: 8, flavor: H100}]\nmetricsPort: 0\n")
    diary = tmp_path / "diary"
    with daemon(tmp_path / "home", config=str(config), gpus=None) as stage:
        slow = f"trap 'sleep 0.5; echo left >> {diary}; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        stage.call("submit", objects=[run_object("slow", 8, slow), run_object("next", 8, f"echo came >> {diary}")])
        until(lambda: stage.output("slow"))
        stage.call("cancel", runs=["slow"])
        assert placed(stage.call("show", run="next")["status"]), "the ledger has moved on"
        stage.ends("next")
        assert diary.read_text().split() == ["left", "came"]


def test_work_past_its_time_limit_is_ended(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("long", 8, "sleep 60", runtime={"maxDuration": "500ms"})])
    assert stage.ends("long")["reason"] == "TimeLimit"
    until(lambda: not stage.processes())
    (lease,) = stage.call("leases", run="long")["leases"]
    assert lease["status"]["closureReason"] == "TimeLimit"


def test_a_failed_rank_ends_its_gang_and_the_retry_completes(stage: Stage, tmp_path: Path) -> None:
    script = f"[ $FAIRLEASE_ATTEMPT = 2 ] || {{ [ $RANK = 1 ] && exit 7; sleep 60; }}; touch {tmp_path}/done-$RANK"
    stage.call("submit", objects=[run_object("brittle", 8, script, gpusPerPod=4, runtime={"retries": 1})])
    status = stage.ends("brittle")
    assert (status["phase"], status["attempt"]) == ("Completed", 2)
    told = [line["message"] for line in stage.call("explain", run="brittle")["story"]]
    assert any("rank 1 failed with exit code 7" in message for message in told)
    assert not (tmp_path / "done-2").exists()
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}
    assert len(stage.call("logs", run="brittle")["files"]) == 4
    until(lambda: not stage.processes())


def test_work_that_cannot_be_executed_fails_and_says_so(stage: Stage) -> None:
    wrong = run_object("wrong", 1, "")
    wrong["spec"]["command"] = ["/no/such/program"]
    stage.call("submit", objects=[wrong])
    status = stage.ends("wrong")
    assert (status["phase"], status["reason"]) == ("Failed", "Fail")
    assert "127" in status["message"]
    assert "/no/such/program" in stage.output("wrong")


def test_work_goes_on_without_the_daemon_and_is_adopted_again(stage: Stage, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.02; done; echo done"
    stage.call("submit", objects=[run_object("steady", 8, script), run_object("queued", 8, "true")])
    stage.runs("steady")
    pids = stage.processes()
    head = stage.call("status")["head"]
    stage.stop()
    assert set(pids) & set(stage.processes()), "stopping the daemon ends no work"
    stage.start()
    assert stage.call("status")["head"] == head, "a restart is no event"
    assert stage.phase("steady") == "Running"
    go.touch()
    assert stage.ends("queued")["phase"] == "Completed"
    assert stage.output("steady") == "done\n"
    stage.audited()


def test_work_that_ended_while_the_daemon_was_away_is_settled_at_its_return(stage: Stage, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.02; done"
    stage.call("submit", objects=[run_object("fine", 4, script), run_object("bad", 4, f"{script}; exit 3")])
    until(lambda: len(stage.supervisors()) == 2)
    stage.kill()
    go.touch()
    until(lambda: not stage.supervisors())
    stage.start()
    assert stage.ends("fine")["phase"] == "Completed"
    assert stage.ends("bad")["message"].endswith("rank 0 failed with exit code 3")
    stage.audited()


def test_after_a_restart_of_the_machine_a_run_with_checkpoints_asks_again(stage: Stage, tmp_path: Path) -> None:
    script = f"[ $FAIRLEASE_ATTEMPT = 2 ] || sleep 60; touch {tmp_path}/resumed"
    objects = [
        run_object("resumes", 4, script, runtime={"checkpoint": "1m"}),
        run_object("fails", 4, "sleep 60"),
    ]
    stage.call("submit", objects=objects)
    until(lambda: len(stage.processes()) >= 2)
    stage.clear()
    until(lambda: not stage.processes())
    for started in (stage.home / "pods").glob("*/started"):
        started.write_text("another-boot")
    stage.start()
    assert stage.ends("resumes")["attempt"] == 2
    assert (tmp_path / "resumed").exists()
    assert stage.ends("fails")["reason"] == "NodeFailure"
    stage.audited()


def test_a_lost_supervisor_fails_the_run_and_leaves_no_process(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("orphan", 8, "setsid sleep 60 & sleep 60")])
    until(lambda: len(stage.processes()) >= 2)
    for pid in stage.supervisors():
        os.kill(pid, 9)
    status = stage.ends("orphan")
    assert (status["reason"], status["message"]) == ("Fail", "rank 0 failed with exit code 137")
    until(lambda: not stage.processes())
    until(lambda: stage.call("logs", run="orphan")["ended"])


def test_metrics_show_what_was_really_done(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with daemon(tmp_path / "home", metrics_port=port) as stage:
        stage.call("budgets.apply", objects=[budget_object("rai", maxGPUHours=100)])
        stage.call("submit", objects=[run_object("one", 8, "sleep 60"), run_object("two", 8, "true")])
        stage.call("plan", object=run_object("three", 4, "true"))
        stage.runs("one")
        url = stage.call("status")["metrics"]
        text = urllib.request.urlopen(url).read().decode()  # noqa: S310 - our own address
        assert 'fairlease_pending_runs{cause="Reserved"} 1.0' in text
        assert 'fairlease_reservations{state="Pending"} 1.0' in text
        assert "fairlease_running_runs 1.0" in text
        assert 'fairlease_budget_concurrency_used{budget="rai",envelope="main"} 8.0' in text
        stage.call("cancel", runs=["one"])
        stage.ends("two")
        text = urllib.request.urlopen(url).read().decode()  # noqa: S310 - our own address
        values = dict(re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE))
        known = {**METRICS, **MACHINE}
        silent = {name for name in known if not any(key.startswith(PREFIX + name) for key in values)}
        quiet = {"notifications_total", "beacon_reads_total", "elastic_width_current", "borrowing_denied_total"}
        assert silent <= quiet | {"pending_runs"}, "nobody waits, is told, draws, grows or is denied a loan"
        assert values['fairlease_run_admissions_total{result="Start"}'] == "2.0"
        assert values['fairlease_run_admissions_total{result="Reserved"}'] == "1.0"
        assert values["fairlease_reservation_delay_seconds_count"] == "1.0"
        assert values['fairlease_leases_closed_total{reason="Canceled"}'] == "1.0"
        assert values['fairlease_leases_closed_total{reason="Completed"}'] == "1.0"
        assert values["fairlease_admission_latency_seconds_count"] == "2.0"
        assert values["fairlease_leases_open"] == "0.0"
        assert values['fairlease_budget_headroom_gpus{budget="rai",envelope="main"}'] == "64.0"
        assert 0 < float(values['fairlease_budget_gpu_hours_used{budget="rai",envelope="main"}']) < 1
        assert values["fairlease_ledger_entries"] == str(float(stage.call("status")["head"]["seq"]))
        assert urllib.request.urlopen(url.replace("metrics", "healthz")).read() == b"ok\n"  # noqa: S310 - our own address
        for path, data, code in (("/metrics", b"x", 405), ("/secrets", None, 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url.replace("/metrics", path), data=data)  # noqa: S310 - our own address
            assert refused.value.code == code
            refused.value.close()


def test_a_thousand_runs_in_one_request_are_one_entry(stage: Stage) -> None:
    objects = [run_object(f"small-{number}", 1, "sleep 60") for number in range(1000)]
    begun = time.monotonic()
    answer = stage.call("submit", objects=objects)
    assert time.monotonic() - begun < 5
    assert len(answer["runs"]) == 1000
    assert len({run["status"]["submittedAt"] for run in answer["runs"]}) == 1
    until(lambda: stage.call("status")["runs"] == {"Pending": 992, "Running": 8})
    assert len(stage.call("list", limit=20)["runs"]) == 20
    stage.call("cancel", runs=[f"small-{number}" for number in range(1000)])
    assert stage.call("status")["runs"] == {"Pending": 0, "Running": 0}
    begun = time.monotonic()
    assert len(stage.call("list", all=True, phase="Failed", limit=1000)["runs"]) == 1000
    assert time.monotonic() - begun < 2
    stage.audited()


def test_the_list_of_the_past_survives_a_restart_in_order(stage: Stage) -> None:
    for number in range(4):
        stage.call("submit", objects=[run_object(f"old-{number}", 1, "true")])
        stage.ends(f"old-{number}")
    stage.kill()
    stage.start()
    stage.call("submit", objects=[run_object("new", 1, "true"), run_object("lives", 1, "sleep 60")])
    stage.ends("new")
    names = [run["name"] for run in stage.call("list", all=True, limit=4)["runs"]]
    assert names == ["lives", "new", "old-3", "old-2"]
    names = [run["name"] for run in stage.call("list", all=True)["runs"]]
    assert names == ["lives", "new", "old-3", "old-2", "old-1", "old-0"]
    assert [run["name"] for run in stage.call("list")["runs"]] == ["lives"]
    assert stage.call("show", run="old-1")["outcome"]["phase"] == "Completed"


def test_generated_names_count_on_from_those_that_were(stage: Stage) -> None:
    again = [run_object("probe", 1, "true")] * 2
    assert [run["name"] for run in stage.call("submit", objects=again, generateName=True)["runs"]] == [
        "probe-1",
        "probe-2",
    ]
    assert [run["name"] for run in stage.call("submit", objects=again[:1], generateName=True)["runs"]] == ["probe-3"]


def test_waiting_for_the_ledger_ends_with_the_next_entry(stage: Stage) -> None:
    seq = stage.call("status")["head"]["seq"]
    begun = time.monotonic()
    assert stage.call("wait", seq=seq, timeoutMs=200)["head"]["seq"] == seq
    assert 0.2 <= time.monotonic() - begun < 2
    stage.call("submit", objects=[run_object("quick", 1, "sleep 0.3")])
    assert stage.call("wait", seq=seq + 1, timeoutMs=10_000)["head"]["seq"] == seq + 2


def test_the_books_show_who_pays_for_what(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("paid", 4, "sleep 60")])
    (row,) = stage.call("who-pays", owner="org:ai")["runs"]
    assert (row["name"], row["payers"][0]["envelope"], row["payers"][0]["gpus"]) == ("paid", "main", 4)
    assert stage.call("who-pays", owner="org:a")["runs"] == []
    (budget,) = stage.call("budgets.list")["budgets"]
    assert budget["status"]["headroom"][0]["concurrency"] == 60
    assert stage.call("nodes")["nodes"][0]["free"] == [4, 5, 6, 7]
    exported = stage.call("export", what="leases")
    assert exported["rows"] == 1
    assert exported["csv"].splitlines()[1].startswith("paid-1-0,default,paid,org:ai:rai,1,0,0,Active,local,0 1 2 3,4,")
    assert stage.call("budgets.remove", budget="rai") == {"removed": "rai"}
    assert refusal(stage, "budgets.remove", budget="rai").error.reason == "NotFound"


def test_the_log_tells_every_decision_with_its_counters(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        stage.call("submit", objects=[run_object("poor", 1, "true", owner="org:else")])
        text = (tmp_path / "home.err").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    (decision,) = [line for line in lines if line["event"] == "decision"]
    assert decision.pop("ms") > 0
    assert decision.pop("timestamp")
    assert decision == {
        "event": "decision",
        "level": "info",
        "run": "default/poor",
        "runs": 1,
        "result": "waits",
        "reason": "NoEnvelope",
        "counters": {},
        "seq": 3,
    }


def test_up_answers_when_the_socket_does_and_refuses_a_second_daemon(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home", gpus=2, flavor="H100", metrics_port=0)
    held, left_open = os.pipe()
    os.set_inheritable(left_open, True)
    pid = up(settings)
    os.close(left_open)
    assert os.read(held, 1) == b"", "the daemon let go of what its caller had open"
    os.close(held)
    try:
        client = Client(settings.socket)
        assert client.call("status")["pid"] == pid == holder(settings.home)
        with pytest.raises(NotUp, match=f"already \\(process {pid}\\)"):
            up(settings)
        client.call("budgets.apply", objects=[budget_object("rai")])
        client.call("submit", objects=[run_object("work", 2, "sleep 60")])
    finally:
        assert down(settings.home, end=True) == pid
    assert holder(settings.home) is None
    assert Stage(settings.home).processes() == []
    with pytest.raises(CallFailed) as gone:
        client.call("status")
    assert gone.value.exit == EXIT_NO_DAEMON
    assert "fairlease up" in gone.value.error.message
    assert '"event": "down"' in settings.log.read_text()


def test_up_without_gpus_says_how_to_declare_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotUp, match="--gpus"):
        up(load_settings(home=tmp_path / "home", metrics_port=0))


def test_a_daemon_that_is_told_nothing_keeps_the_nodes_it_had(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("stays", 8, "sleep 60")])
    stage.kill()
    stage.told["gpus"] = None
    stage.start()
    assert stage.call("status")["gpus"] == 8
    stage.runs("stays")


def test_a_long_home_can_be_reached_all_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("far/" * 30)
    deep.mkdir(parents=True)
    with daemon(deep / "home") as stage:
        assert stage.call("status")["you"]["admin"]
