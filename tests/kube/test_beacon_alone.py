"""The beacon of a cluster's lottery: it enters the draw it is read for, stands in the ResolverOutcome, and never stops a draw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kube.conftest import CONFIG, told
from tests.kube.plugin import Person
from tests.kube.stage import Controller, Team, audited, eventually
from tests.kube.tenancy import path
from tests.local.mailbox import free_port, metric
from tools.controlplane import Plane

STRANGER = CONFIG.parent / "docs" / "verify_lottery.py"
NOTICE_S = 5.0
SETTINGS = f"notice: {NOTICE_S:.0f}s\nminRuntime: 0s\n"
PORT = free_port()


@contextmanager
def led(cluster: Plane, name: str, beacon: str = "", *flags: str) -> Iterator[Controller]:
    """A controller with a source for its beacon, in its settings or on its command line."""
    mind = told(cluster, name, f"{SETTINGS}{beacon}\n", "--metrics-port", str(PORT), *flags).start()
    try:
        yield mind
    finally:
        mind.stop()


def contended(cluster: Plane) -> Team:
    """A team whose two runs stand in the way of a third, which has a date."""
    team = Team(cluster)
    for name in ("one", "two"):
        team.submit(name, 8, pod=8)
        team.reaches(name, "Running")
    team.submit("claim", 8, pod=8)
    eventually(lambda: team.status("claim").get("pendingReservation"))
    return team


def drawn(team: Team) -> dict[str, Any]:
    """The object of the outcome by which the claim starts."""
    team.reaches("claim", "Running")

    def found() -> list[dict[str, Any]]:
        ours = {"namespace": team.namespace, "name": "claim"}
        return [each for each in team.listed(path("ResolverOutcome")) if each["spec"].get("claim") == ours]

    (outcome,) = eventually(found)
    return dict(outcome)


def beacon_of(outcome: dict[str, Any]) -> str:
    assert len(outcome["spec"]["lottery"]["tokens"]) == 2
    return str(outcome["spec"]["lottery"].get("beacon", ""))


def verified(file: Path, printed: str) -> subprocess.CompletedProcess[str]:
    """What the script for strangers says of what kubectl printed."""
    file.write_text(printed)
    return subprocess.run([sys.executable, "-I", STRANGER, file], capture_output=True, text=True, check=False)


def test_a_beacon_in_a_mounted_file_enters_the_draw_and_a_stranger_can_repeat_it(
    cluster: Plane, tmp_path: Path
) -> None:
    version, mount = tmp_path / "..version-1", tmp_path / "value"
    version.write_text("too-early\n")
    mount.symlink_to(version)  # as a kubelet mounts a ConfigMap
    with led(cluster, "with-a-file", "", "--beacon", str(mount)):
        team = contended(cluster)
        (tmp_path / "..version-2").write_text("  3f2a-drand-round-77\n")
        (tmp_path / "next").symlink_to(tmp_path / "..version-2")
        (tmp_path / "next").replace(mount)
        outcome = drawn(team)
        assert beacon_of(outcome) == "3f2a-drand-round-77"
        assert metric(f"http://127.0.0.1:{PORT}/metrics", 'beacon_reads_total{result="read"}') >= 1

        admin, name = Person(cluster, "admin", team.namespace), outcome["metadata"]["name"]
        assert "beacon:         3f2a-drand-round-77" in admin.sees("lottery", "verify", name)
        printed = admin.types("kubectl", "get", "resolveroutcomes", "-o", "json").stdout
        done = verified(tmp_path / "outcomes.json", printed)
        assert (done.returncode, "as recorded (1 of 2 tokens drawn)" in done.stdout) == (0, True), done.stdout
        forged = verified(tmp_path / "forged.json", printed.replace("drand-round-77", "drand-round-78"))
        assert (forged.returncode, "its seed does not follow from its inputs" in forged.stdout) == (1, True)
    assert audited(cluster).ok


def test_a_beacon_from_a_command_is_asked_for_once_ahead_of_the_draw(cluster: Plane, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    with led(cluster, "with-a-command", f"beacon: {{command: [/bin/sh, -c, 'echo x >> {asked}; echo round-4711']}}"):
        assert not asked.exists(), "nothing is due"
        assert beacon_of(drawn(contended(cluster))) == "round-4711"
        assert asked.read_text() == "x\n"


def test_a_draw_by_hand_on_a_cluster_has_its_beacon_and_keeps_nobody_waiting(cluster: Plane, tmp_path: Path) -> None:
    script = f"touch {tmp_path}/asked; while [ ! -e {tmp_path}/said ]; do sleep 0.1; done; echo round-4714"
    with led(cluster, "by-hand", f"beacon: {{command: [/bin/sh, -c, '{script}']}}"):
        team = Team(cluster)
        for name in ("one", "two"):
            team.submit(name, 8, pod=8)
            team.reaches(name, "Running")
        admin, flavor = Person(cluster, "admin", team.namespace), team.flavor
        asks = ThreadPoolExecutor(1).submit(
            admin.sees, "resolve", "--scope", f"flavor={flavor}", "--gpus", "8", "-o", "json"
        )
        eventually((tmp_path / "asked").exists)
        team.submit("meanwhile", 1)
        eventually(lambda: team.status("meanwhile").get("conditions"))
        assert not asks.done()
        (tmp_path / "said").touch()
        assert json.loads(asks.result(30))["outcome"]["spec"]["lottery"]["beacon"] == "round-4714"
        team.reaches("meanwhile", "Running")
    made = len(team.listed(path("ResolverOutcome")))
    with led(cluster, "by-hand-again"):  # which begins with the snapshot that the first one left
        team.submit("after", 1)
        team.reaches("after", "Running")
        assert len(team.listed(path("ResolverOutcome"))) == made, "what was freed by hand is not freed again"
    assert audited(cluster).ok


@pytest.mark.parametrize(
    ("name", "source"),
    {
        "no-file": "{file: /nonexistent/beacon}",
        "no-word": "{command: [/bin/sh, -c, 'echo two words']}",
        "no-end": "{command: [/bin/sleep, '600']}",
    }.items(),
)
def test_a_beacon_that_cannot_be_read_stops_no_draw_of_a_cluster_and_is_told(
    cluster: Plane, name: str, source: str
) -> None:
    with led(cluster, name, f"beacon: {source}") as mind:
        team = contended(cluster)
        begun = time.monotonic()
        assert beacon_of(drawn(team)) == ""
        assert time.monotonic() - begun < NOTICE_S + 10
        assert mind.told("no beacon: draws are made without one")
        assert metric(f"http://127.0.0.1:{PORT}/metrics", 'beacon_reads_total{result="failed"}') >= 1


def test_a_draw_that_fell_due_while_nobody_led_has_its_beacon_too(cluster: Plane) -> None:
    beacon = "beacon: {command: [/bin/echo, round-4712]}"
    with led(cluster, "before", beacon):
        team = contended(cluster)
    time.sleep(NOTICE_S)
    assert team.phase("claim") == "Pending"
    with led(cluster, "after", beacon):
        assert beacon_of(drawn(team)) == "round-4712"


def test_a_source_that_is_none_keeps_a_controller_from_starting_and_is_told_with_its_line(cluster: Plane) -> None:
    for name, source, problem in (
        ("neither", "{}", "beacon: expected a file or a command, one of the two"),
        ("both", "{file: /b, command: [/bin/b]}", "beacon: expected a file or a command, one of the two"),
        ("relative", "{file: b}", 'beacon.file: "b": expected an absolute path'),
        ("lost", "{command: [b]}", 'beacon.command[0]: "b": expected an absolute path'),
    ):
        mind = told(cluster, name, f"{SETTINGS}beacon: {source}\n").start()
        assert mind.process is not None
        assert mind.process.wait(30) == 2
        assert f"settings.yaml:3: {problem}" in mind.log.read_text()
