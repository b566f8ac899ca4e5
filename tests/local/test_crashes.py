"""The daemon dies as by SIGKILL at any line of our code, again and again, in the middle of its people's life."""

from __future__ import annotations

import hashlib
import random
import resource
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.local.stage import Stage, budget_object, daemon, run_object, until

from fairlease.local.socket.protocol import CallFailed

ROUNDS = 20
LINES_MAX = 2_500
ROUND_S = 1.0


def life(diary: Path, number: int) -> dict[str, object]:
    """Runs of several kinds; each rank writes down that it began, and how it went on."""
    begin = f"echo $FAIRLEASE_RUN $FAIRLEASE_ATTEMPT $RANK >> {diary};"
    name = f"run-{number}"
    kinds = (
        run_object(name, 4, f"{begin} sleep 0.2", gpusPerPod=2),
        run_object(name, 8, f"{begin} sleep 0.1", gpusPerPod=4),
        run_object(name, 2, f"{begin} [ $FAIRLEASE_ATTEMPT = 2 ] || exit 5", runtime={"retries": 1}),
        run_object(name, 2, f"{begin} sleep 60", runtime={"maxDuration": "300ms"}),
        run_object(name, 1, f"{begin} setsid sleep 60 & sleep 0.1"),
    )
    return kinds[number % len(kinds)]


EXPECTED = (("Completed", 1), ("Completed", 1), ("Completed", 2), ("Failed", 1), ("Completed", 1))


@pytest.mark.parametrize("seed", [20261116])
def test_no_crash_loses_doubles_or_orphans_any_work(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    diary = tmp_path / "diary"
    diary.touch()
    stage = Stage(tmp_path / "home")
    sent: list[int] = []
    try:
        stage.start()
        stage.call("budgets.apply", objects=[budget_object("rai")])
        stage.kill()
        for number in range(ROUNDS):
            stage.launch(doom=dice.randint(200, LINES_MAX))
            end = time.monotonic() + ROUND_S
            while time.monotonic() < end and stage.process is not None and stage.process.poll() is None:
                if number not in sent:
                    submit(stage, diary, number, sent)
                time.sleep(0.01)
            stage.kill()
        stage.start()
        for number in set(range(ROUNDS)) - set(sent):
            submit(stage, diary, number, sent)
        known = {run["name"] for run in stage.call("list", all=True, limit=1000)["runs"]}
        assert known == {f"run-{number}" for number in range(ROUNDS)}
        check_every_run(stage, diary)
        until(lambda: not stage.processes() and not stage.supervisors())
        assert list((stage.home / "pods").iterdir()) == []
        stage.audited()
        status = stage.call("status")
        assert (status["freeGPUs"], status["runs"]) == (8, {"Pending": 0, "Running": 0})
    finally:
        stage.clear()


def submit(stage: Stage, diary: Path, number: int, sent: list[int]) -> None:
    """Submit a run, not knowing when the daemon dies: what got no answer may or may not have been taken in."""
    try:
        stage.call("submit", objects=[life(diary, number)])
    except CallFailed as failed:
        if failed.error.reason != "AlreadyExists":
            return
    sent.append(number)


def check_every_run(stage: Stage, diary: Path) -> None:
    """Each run came to its end once, and each rank of each attempt was executed at most once."""
    for number in range(ROUNDS):
        status = stage.ends(f"run-{number}", patience_s=30)
        assert (status["phase"], status["attempt"]) == EXPECTED[number % len(EXPECTED)], (number, status)
        story = [line["message"] for line in stage.call("explain", run=f"run-{number}")["story"]]
        assert sum(" after " in message and "GPU-hours" in message for message in story) == 1
    begun = Counter(diary.read_text().splitlines())
    assert set(begun.values()) == {1}


def test_a_ledger_that_cannot_be_written_refuses_requests_and_loses_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        assert stage.process is not None
        go = tmp_path / "go"
        stage.call("submit", objects=[run_object("works", 4, f"until [ -e {go} ]; do sleep 0.02; done")])
        stage.runs("works")
        head = stage.call("status")["head"]
        _, hard = resource.prlimit(stage.process.pid, resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
        with pytest.raises(CallFailed) as refused:
            stage.call("submit", objects=[run_object("refused", 1, "true")])
        assert refused.value.error.reason == "Unavailable"
        assert "could not be written" in stage.call("status")["ledgerProblem"]
        go.touch()
        until(lambda: not stage.supervisors())
        assert stage.call("status")["head"] == head, "what cannot be written has not happened"
        assert stage.phase("works") == "Running"
        resource.prlimit(stage.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert stage.ends("works")["phase"] == "Completed"
        stage.call("submit", objects=[run_object("refused", 1, "true")])
        assert stage.ends("refused")["phase"] == "Completed"
        assert stage.call("status")["ledgerProblem"] is None
        stage.audited()


def test_a_snapshot_of_another_version_is_passed_over(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as stage:
        stage.call("submit", objects=[run_object("old", 1, "sleep 60")])
        head = stage.call("status")["head"]
        stage.stop()
        with closing(sqlite3.connect(stage.home / "ledger.db")) as db:
            (body,) = db.execute("SELECT body FROM snapshot ORDER BY seq DESC LIMIT 1").fetchone()
            other = msgspec.msgpack.encode({**msgspec.msgpack.decode(body), "forecasts": [[], []]})
            db.execute("UPDATE snapshot SET body = ?, digest = ?", (other, hashlib.sha256(other).digest()))
            db.commit()
        stage.start()
        stage.runs("old")
        assert stage.call("status")["head"]["seq"] >= head["seq"]
        stage.audited()
