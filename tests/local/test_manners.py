"""How the daemon behaves towards its callers and its neighbours: bounded waits, right remedies, other people's files and ports."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.stage import Stage, daemon, run_object, until

from fairlease.local.daemon import daemon as daemon_module
from fairlease.local.daemon.config import load_settings
from fairlease.local.daemon.launch import NotUp, down, up
from fairlease.local.socket.access import ASK, Access, Caller
from fairlease.local.socket.objects import EXEC_BYTES_MAX, STRING_BYTES_MAX
from fairlease.local.socket.protocol import EXIT_NO_DAEMON, SLOW_S, TIMEOUT_S, TIMEOUT_VARIABLE, CallFailed, Client
from fairlease.runtime.requests import Refused, check


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with daemon(tmp_path / "home") as stage:
        yield stage


def test_a_daemon_that_is_stopped_keeps_nobody_waiting_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage.process is not None
    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.5")
    client = Client(stage.home / "fairlease.sock")
    stage.process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(CallFailed) as told:
        client.call("status")
    assert 0.4 < time.monotonic() - begun < 5
    with pytest.raises(CallFailed):
        client.call("wait", seq=0, timeoutMs=500)
    assert time.monotonic() - begun > 1.4, "a long poll waits for as long as it asked, and a margin"
    stage.process.send_signal(signal.SIGCONT)
    assert (told.value.error.reason, told.value.exit) == ("NoAnswer", EXIT_NO_DAEMON)
    assert "gave no answer in" in told.value.error.message
    assert client.call("status")["pid"] == stage.process.pid


@pytest.mark.parametrize("told", ["", "never", "-1", "inf", "nan"])
def test_a_patience_that_is_no_number_of_seconds_is_passed_over(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(TIMEOUT_VARIABLE, told)
    client = Client("/nowhere")
    assert (client._patience_s("list"), client._patience_s("audit")) == (TIMEOUT_S, SLOW_S["audit"])


def test_what_only_administrators_do_is_asked_of_an_administrator() -> None:
    somebody = Caller(4711, "bob", frozenset({"bob"}), admin=False, owners=())
    with pytest.raises(Refused) as refused:
        check(Access({}, ()).may_govern(somebody, "write Budgets"))
    assert refused.value.remedy == ASK
    with pytest.raises(Refused) as refused:
        check(Access({}, ()).may_spend(somebody, "org:ai"))
    assert "bind you" in refused.value.remedy


def test_a_second_daemon_leaves_the_log_of_the_first_alone(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home", gpus=2, flavor="H100", metrics_port=0)
    up(settings)
    try:
        before = settings.log.read_bytes()
        with pytest.raises(NotUp, match="already"):
            up(settings)
        assert settings.log.read_bytes() == before
        assert all(json.loads(line) for line in before.splitlines())
    finally:
        down(settings.home, end=True)


def test_a_metrics_port_that_is_taken_is_told_at_once_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(daemon_module, "METRICS_PORT", port)
        settings = load_settings(home=tmp_path / "home", gpus=2, flavor="H100")
        up(settings)
        try:
            assert f"no metrics: port {port}" in capsys.readouterr().err
            status = Client(settings.socket).call("status")
            assert status["metrics"] is None
            assert f"port {port}" in status["metricsProblem"]
        finally:
            down(settings.home, end=True)


def test_who_only_stops_the_daemon_waits_for_who_ends_all_work(stage: Stage) -> None:
    polite = "trap 'sleep 0.7; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    stage.call("submit", objects=[run_object("polite", 8, polite)])
    until(lambda: stage.output("polite"))
    answers: dict[bool, object] = {}

    def stop(end: bool) -> None:
        answers[end] = stage.call("stop", end=end)["left"]

    ending = threading.Thread(target=stop, args=(True,))
    ending.start()
    until(lambda: stage.phase("polite") == "Failed")
    stop(False)
    ending.join()
    assert answers == {True: False, False: False}
    assert stage.process is not None
    assert stage.process.wait(10) == 0
    assert not stage.processes()


def test_a_run_too_large_to_be_executed_is_refused_with_its_field(stage: Stage) -> None:
    wide = run_object("wide", 1, "true", env={f"V{number}": "x" * 100_000 for number in range(11)})
    long = run_object("long", 1, "true", env={"ONE": "x" * STRING_BYTES_MAX})
    wordy = run_object("wordy", 1, "true")
    wordy["spec"]["command"] += ["x" * 100] * (EXEC_BYTES_MAX // 100)
    for asked, field in ((wide, "spec.env"), (long, "spec.env.ONE"), (wordy, "spec.command")):
        with pytest.raises(CallFailed) as refused:
            stage.call("submit", objects=[asked])
        (problem,) = refused.value.error.problems
        assert problem["field"] == field
        assert "put them into a file" in problem["message"]
    almost = run_object("almost", 1, "true", env={f"V{number}": "x" * 100_000 for number in range(10)})
    stage.call("submit", objects=[almost])
    assert stage.ends("almost")["phase"] == "Completed"


def test_a_run_that_started_is_explained_as_of_its_start(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("work", 4, "sleep 60", gpusPerPod=2)])
    before = stage.call("explain", run="work")
    (payer,) = before["cover"]
    assert (payer["class"], payer["budget"], payer["envelope"], payer["paysGPUs"]) == ("owned", "rai", "main", 4)
    (domain,) = before["domains"]
    assert (domain["nodes"], domain["gpus"], domain["reason"]) == (["local"], 4, "Chosen")
    assert before["asOf"] == next(line["at"] for line in before["story"] if line["reason"] == "Start")
    stage.call("submit", objects=[run_object("more", 4, "sleep 60")])
    stage.call("cancel", runs=["work"])
    after = stage.call("explain", run="work")
    assert [after[name] for name in ("asOf", "cover", "domains")] == [
        before[name] for name in ("asOf", "cover", "domains")
    ]
    stage.call("submit", objects=[run_object("waits", 8, "true")])
    stage.call("cancel", runs=["waits"])
    assert "cover" not in stage.call("explain", run="waits"), "what never started was never paid for"


def test_no_question_changes_the_ledger(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("first", 8, "sleep 60"), run_object("second", 8, "sleep 60")])
    stage.runs("first")
    until(lambda: stage.call("reservations")["reservations"][0]["status"].get("forecast"))  # it is made once, by itself
    before = stage.call("status")["head"]
    wish = run_object("wish", 8, "true")
    asked: dict[str, list[dict[str, object]]] = {
        **{key: [{}] for key in ("status", "nodes", "leases", "notices", "outcomes", "audit", "budgets.list")},
        **{key: [{"run": "first"}, {"run": "second"}] for key in ("show", "explain")},
        "list": [{}, {"all": True}],
        "eta": [{}, {"run": "second"}],
        "forecast.report": [{}],
        "cover": [{"run": "second"}, {"object": wish}],
        "plan": [{"object": wish}],
        "who-pays": [{"run": "first"}],
        "reservations": [{}, {"all": True}, {"run": "second"}],
        "sponsors.list": [{"run": "second"}],
        "budgets.lent": [{}],
        "budgets.borrowed": [{}],
        "logs": [{"run": "first"}],
        "export": [{"what": "leases"}, {"what": "charges"}],
    }
    for verb, calls in asked.items():
        for args in calls:
            stage.call(verb, **args)
            assert stage.call("status")["head"] == before, verb


def test_a_run_is_told_what_happened_to_it_and_not_to_its_like(stage: Stage) -> None:
    alike = [run_object(name, 1, "sleep 60", owner="org:poor") for name in ("ask", "other")]
    stage.call("submit", objects=alike)
    for name in ("ask", "other"):
        told = [line["reason"] for line in stage.call("explain", run=name)["story"]]
        assert told == ["Submitted", "NoEnvelope"], "whatever words a reason is told in"


def test_a_user_or_group_that_the_machine_does_not_know_is_told_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "fairlease.yaml"
    config.write_text(
        "gpus: 1\nflavor: H100\nmetricsPort: 0\nadmins: [root, allice]\n"
        'users: {nobody: ["org:a"], "@root": ["org:b"], "@internes": ["org:c"]}\n'
    )
    settings = load_settings(config, home=tmp_path / "home")
    up(settings)
    try:
        told = capsys.readouterr().err
        assert "user allice" in told
        assert "group @internes" in told
        assert "nobody" not in told
        assert "@root" not in told
    finally:
        down(settings.home, end=True)


def test_nodes_that_failed_or_are_cordoned_count_for_what_could_ever_fit(tmp_path: Path) -> None:
    config = tmp_path / "fairlease.yaml"
    nodes = "[{name: n0, gpus: 4, domain: d}, {name: n1, gpus: 4, domain: d}]"
    config.write_text(f"flavor: H100\nmetricsPort: 0\nnodes: {nodes}\n")
    with daemon(tmp_path / "home", config=str(config), gpus=None, flavor=None, metrics_port=None) as stage:
        stage.call("nodes.set", nodes=["n0"], wish="fail")
        stage.call("nodes.set", nodes=["n1"], wish="cordon")
        whole = run_object("whole", 8, "true", gpusPerPod=4, locality={"groupGPUs": 8})
        (answer,) = stage.call("submit", objects=[whole])["runs"]
        assert answer["status"]["phase"] == "Pending"
        with pytest.raises(CallFailed) as refused:
            stage.call("submit", objects=[run_object("wider", 12, "true", gpusPerPod=4)])
        assert refused.value.error.reason == "NeverFits"
