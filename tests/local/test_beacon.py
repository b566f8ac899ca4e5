"""The beacon, through a real daemon: it enters the draw that it is read for, stands in its record, and never stops one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from shutil import which

import pytest
import structlog
from structlog.testing import capture_logs
from tests.engine.build import HOUR, World, budget, envelope, node, run
from tests.local.mailbox import SLEEP, free_port, metric, told
from tests.local.stage import Stage, run_object

from fairlease.engine.preempt.lottery import seed_of
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.model.reservation import OutcomeSpec
from fairlease.runtime.beacon import Beacon, clean, read_file
from fairlease.runtime.metrics import MACHINE, Metrics
from fairlease.runtime.processes.hook import call
from fairlease.runtime.settings import BeaconSource


def drawn(stage: Stage) -> OutcomeSpec:
    """The outcome of the draw that lets a run start in the place of another."""
    stage.call("submit", objects=[run_object("old", 8, SLEEP)])
    stage.call("submit", objects=[run_object("big", 8, "sleep 30")])
    stage.runs("big")
    return outcome_of(stage)


def outcome_of(stage: Stage) -> OutcomeSpec:
    with SqliteStore(stage.home / "ledger.db", readonly=True) as store:
        events = [event for entry in store.entries() for event in entry.events]
    (outcome,) = [event.outcome for event in events if isinstance(event, ev.OutcomeRecorded)]
    return outcome


def assert_seeded(outcome: OutcomeSpec, beacon: str) -> None:
    lottery = outcome.lottery
    assert lottery is not None
    assert lottery.beacon == beacon
    assert lottery.seed == seed_of(outcome.reservation, outcome.at, lottery.conflict_digest, outcome.previous, beacon)


def test_a_beacon_in_a_file_enters_the_draw_as_it_is_when_it_falls_due(tmp_path: Path) -> None:
    file, port = tmp_path / "beacon", free_port()
    file.write_text("too-early\n")
    with told(tmp_path, f"beacon: {{file: {file}}}\n", metrics_port=port) as stage:
        file.write_text("  3f2a-drand-round-77\n")
        assert_seeded(drawn(stage), "3f2a-drand-round-77")
        assert metric(stage.call("status")["metrics"], 'beacon_reads_total{result="read"}') == 1
        stage.audited()


def test_a_beacon_from_a_command_is_asked_for_ahead_of_the_draw(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = f"echo x >> {asked}; echo round-4711"
    with told(tmp_path, f"beacon: {{command: [/bin/sh, -c, '{script}']}}\n") as stage:
        assert not asked.exists(), "nothing is due"
        assert_seeded(drawn(stage), "round-4711")
        assert asked.read_text() == "x\n"


@pytest.mark.parametrize(
    "source", ["{file: FOLDER/value}", "{command: [/bin/sh, -c, 'echo x >> FOLDER/asked; cat FOLDER/value']}"]
)
def test_a_draw_by_hand_has_its_beacon_too_and_a_dry_run_asks_for_none(tmp_path: Path, source: str) -> None:
    (tmp_path / "value").write_text("round-4713\n")
    with told(tmp_path, f"beacon: {source.replace('FOLDER', str(tmp_path))}\n", metrics_port=free_port()) as stage:
        stage.call("submit", objects=[run_object("one", 4, SLEEP), run_object("two", 4, SLEEP)])
        reads = 'beacon_reads_total{result="read"}'
        assert "beacon" not in stage.call("resolve", flavor="H100", gpus=4, dryRun=True)["outcome"]["spec"]["lottery"]
        assert metric(stage.call("status")["metrics"], reads) == 0
        outcome = stage.call("resolve", flavor="H100", gpus=4)["outcome"]
        assert outcome["spec"]["lottery"]["beacon"] == "round-4713"
        assert_seeded(outcome_of(stage), "round-4713")
        assert metric(stage.call("status")["metrics"], reads) == 1


@pytest.mark.parametrize(
    "source", ["{file: /nonexistent/beacon}", "{command: [/bin/false]}", "{command: [/bin/sh, -c, 'echo two words']}"]
)
def test_a_beacon_that_cannot_be_read_stops_no_draw_and_is_told(tmp_path: Path, source: str) -> None:
    port = free_port()
    with told(tmp_path, f"beacon: {source}\n", metrics_port=port) as stage:
        assert_seeded(drawn(stage), "")
        assert metric(stage.call("status")["metrics"], 'beacon_reads_total{result="failed"}') >= 1
    assert "no beacon: draws are made without one" in (tmp_path / "home.err").read_text()


def test_a_draw_that_fell_due_while_no_daemon_lived_has_its_beacon_too(tmp_path: Path) -> None:
    with told(tmp_path, "beacon: {command: [/bin/echo, round-4712]}\n") as stage:
        stage.call("submit", objects=[run_object("old", 8, SLEEP), run_object("big", 8, "sleep 30")])
        stage.kill()
        time.sleep(2.5)
        stage.start()
        stage.runs("big")
        assert_seeded(outcome_of(stage), "round-4712")


def test_a_command_that_hangs_delays_no_draw(tmp_path: Path) -> None:
    with told(tmp_path, "beacon: {command: [/bin/sleep, '600']}\n") as stage:
        begun = time.monotonic()
        assert_seeded(drawn(stage), "")
        assert time.monotonic() - begun < 8


def test_a_beacon_is_one_word_whatever_stands_around_it(tmp_path: Path) -> None:
    assert clean(b"\n  abc123 \n") == "abc123"
    for bad in (b"", b"a b", b"a\nb", b"x" * 257, b"\xff\xfe"):
        with pytest.raises(ValueError, match="is no beacon"):
            clean(bad)
    with pytest.raises(ValueError, match="not a plain file"):
        read_file(str(tmp_path))


def test_a_command_that_prints_without_end_takes_no_memory_and_is_ended(tmp_path: Path) -> None:
    script = f"""
import asyncio, resource
from fairlease.runtime.processes.hook import call
done = asyncio.run(call(("{which("yes")}", "no-beacon"), {{"PATH": "/bin"}}, None, 2.0))
print(done.code, done.err, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    code, *words, kilobytes = done.stdout.split()
    assert (code, " ".join(words)) == ("124", "it was ended after 2 s")
    assert int(kilobytes) < 100_000


def test_a_command_that_leaves_something_behind_is_waited_for_and_what_it_said_is_kept() -> None:
    script = "echo first; (sleep 0.3; echo second) & exit 3"
    begun = time.monotonic()
    done = asyncio.run(call(("/bin/sh", "-c", script), {"PATH": "/usr/bin:/bin"}, None, 20.0))
    assert (done.code, done.out, done.err) == (3, b"first\nsecond\n", "exit code 3: second")
    assert time.monotonic() - begun < 15


def test_where_no_process_can_be_had_draws_go_on_without_a_beacon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = World(node("n"), budget("org", envelope("e", 64)))
    for name in ("runs", "waits"):
        here.submit(name, run("org", 8, 8))
    state = here.scheduler.state
    assert state.holds, "one falls due"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    source, late = BeaconSource(command=("/bin/true",)), here.now + 1_000 * HOUR
    with capture_logs() as logs:
        beacon = Beacon(source, state, lambda: late, Metrics(state, MACHINE), structlog.get_logger())

        async def asked() -> str:
            await beacon.open()
            beacon.close()
            return beacon.value(late, ())

        assert asyncio.run(asked()) == ""
    assert "No such file or directory" in logs[0]["error"]
