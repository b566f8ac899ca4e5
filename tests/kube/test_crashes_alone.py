"""Controllers, API servers and etcd that die or stand still in the middle of everything; and who takes over."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest
from tests.kube.stage import EXIT, RUN_FOR, Controller, Team, audited, eventually
from tests.kube.tenancy import controller as as_controller
from tests.kube.tenancy import path
from tools.controlplane import Plane

SETTINGS = "nodeDebounce: 1s\nretryBackoff: 2s\n"


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.4])
def test_a_controller_killed_in_the_middle_of_a_gang_leaves_nothing_half_made(
    cluster: Plane, mind: Controller, after_s: float
) -> None:
    team = Team(cluster, nodes=8)
    team.submit("gang", 64)
    eventually(team.leases)
    time.sleep(after_s)
    mind.kill()
    mind.start()
    status = team.reaches("gang", "Running")
    assert status["attempt"] == 1
    assert len(team.bound()) == len(team.leases()) == 64
    team.api.delete(path("Run", team.namespace, "gang"))
    eventually(team.closures)
    mind.kill()
    mind.start()
    eventually(lambda: len(team.closures()) == 64)
    eventually(lambda: not team.run("gang"))


def test_ends_that_nobody_saw_are_told_when_the_controller_returns(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster)
    team.submit("done", 2, marks={EXIT: "0", RUN_FOR: "2s"})
    team.submit("deleted", 2)
    team.reaches("done", "Running")
    team.reaches("deleted", "Running")
    mind.kill()
    eventually(
        lambda: (
            [pod["status"]["phase"] for name, pod in team.pods().items() if name.startswith("done")]
            == ["Succeeded"] * 2
        )
    )
    team.api.delete(path("Run", team.namespace, "deleted"))
    team.api.delete(f"/api/v1/nodes/{team.nodes[1]}")
    mind.start()
    team.reaches("done", "Completed")
    eventually(lambda: not team.run("deleted"))


def test_the_api_server_and_etcd_may_die_in_the_middle_of_gangs(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster, nodes=8)
    team.submit("one", 32)
    eventually(team.leases)
    cluster.apiserver.kill()
    cluster.apiserver.start()
    cluster.wait_ready()
    team.reaches("one", "Running")
    team.submit("two", 32)
    eventually(lambda: len(team.leases()) > 32)
    cluster.etcd.kill()
    cluster.etcd.start()
    cluster.wait_ready()
    eventually(lambda: team.api.get(path("Run", team.namespace, "two")).ok)
    team.reaches("two", "Running")
    assert len(team.bound()) == 64
    assert mind.alive


def test_the_second_controller_takes_over_in_time_and_nothing_is_doubled(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster, nodes=8)
    second = Controller(cluster, "two").start()
    decided = mind.told("decides")
    try:
        eventually(lambda: second.told("up"))
        time.sleep(3)
        assert not second.told("leads")
        team.submit("first", 32)
        eventually(team.leases)
        mind.freeze()
        begun = time.monotonic()
        team.submit("second", 32)
        eventually(lambda: second.told("decides"))
        assert time.monotonic() - begun < 20
        team.reaches("second", "Running")
        mind.thaw()
        team.reaches("first", "Running")
        team.submit("third", 1)
        eventually(lambda: team.phase("third") == "Pending")
        eventually(lambda: mind.told("leadership was lost") or mind.told("leads no more"))
        assert len(team.bound()) == len(team.leases()) == 64
        assert second.stop() == 0
        eventually(lambda: mind.told("decides")[len(decided) :])
    finally:
        mind.thaw()
        second.kill()


def test_a_controller_that_stopped_in_order_goes_on_from_its_snapshot(cluster: Plane, mind: Controller) -> None:
    team = Team(cluster)
    team.submit("short", 2, marks={EXIT: "0"})
    ended = team.reaches("short", "Completed")
    team.submit("long", 2)
    team.reaches("long", "Running")
    eventually(lambda: len(team.closures()) == 2)
    time.sleep(2)
    assert mind.stop() == 0
    heads = [each["spec"] for each in team.listed(path("LedgerEntry"))]
    assert any(each["role"] == "Snapshot" for each in heads)
    lie = {"status": {**ended, "phase": "Failed"}}
    assert as_controller(cluster).patch(path("Run", team.namespace, "short", "status"), lie).ok
    mind.start()
    team.submit("next", 2)
    team.reaches("next", "Running")
    eventually(lambda: team.phase("short") == "Completed")
    assert team.phase("long") == "Running"
    assert len(team.bound()) == 6


def test_health_and_metrics_are_served_by_those_who_lead_and_those_who_stand_by(
    cluster: Plane, mind: Controller
) -> None:
    assert mind.alive
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    other = Controller(cluster, "by-stander", "--metrics-port", str(port)).start()
    try:
        eventually(lambda: other.told("up"))
        eventually(lambda: _page(port, "/readyz") == (200, "standing by\n"))
        assert _page(port, "/healthz") == (200, "ok\n")
        text = _page(port, "/metrics")[1]
        assert "fairlease_leading 0.0" in text
        assert 'fairlease_watches_broken{kind="runs"} 0.0' in text
    finally:
        assert other.stop() == 0


def _page(port: int, where: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{where}") as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_whole_ledger_passes_the_audit_and_open_leases_are_as_it_says(cluster: Plane, mind: Controller) -> None:
    assert mind.stop() == 0
    report = audited(cluster)
    assert report.ok, report.findings
    assert report.leases > 200
