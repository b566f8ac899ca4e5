"""A ledger that is gone, older than what was acknowledged, or damaged: nothing is begun anew, no process is touched."""

import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.machine import BUDGET, RUN, Machine

UP = ("up", "--gpus", "8", "--flavor", "H100-80GB", "--metrics-port", "0")


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A daemon with one run that never ends; afterwards neither is left."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        user = Machine(Path(folder))
        user.do(*UP)
        try:
            user.do("budgets", "apply", "-f", "-", stdin=BUDGET)
            user.submit("train", 2, "echo begun; exec sleep 600")
            user.runs("train")
            yield user
        finally:
            user.popen("down", "--end").communicate(timeout=60)
            for pid in workers(user):
                os.kill(pid, signal.SIGKILL)


def wait_for(true: object) -> None:
    end = time.monotonic() + 20
    while not true():  # type: ignore[operator]  # a lambda of each test
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


def workers(machine: Machine) -> list[int]:
    """The processes of all pods of this home."""
    mark, found = f"FAIRLEASE_POD_DIR={machine.home}/".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes() and b"sleep" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return sorted(found)


def kill(machine: Machine) -> None:
    """The daemon dies as by a power cut."""
    pid = machine.ask("status")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_a_ledger_that_was_moved_away_is_not_begun_anew(machine: Machine) -> None:
    before = workers(machine)
    machine.do("down")
    (machine.home / "ledger.db").rename(machine.home / "elsewhere.db")
    told = machine.do(*UP, code=2)
    assert str(machine.home / "ledger.db") in told
    assert "--new-ledger" in told
    assert workers(machine) == before
    assert not (machine.home / "ledger.db").exists()
    (machine.home / "elsewhere.db").rename(machine.home / "ledger.db")
    machine.do(*UP)
    machine.runs("train")
    assert workers(machine) == before


def test_each_trace_of_an_earlier_daemon_keeps_a_home_from_being_begun_anew(machine: Machine) -> None:
    machine.do("down")
    (machine.home / "ledger.db").unlink()
    for trace in ("ledger.db.anchor", "notices.db", "pods", "logs", "daemon.log"):
        assert str(machine.home / trace) in machine.do(*UP, code=2)
        path = machine.home / trace
        path.rename(path.with_name(f"{trace}.away"))


def test_a_lost_log_of_the_ledger_is_noticed_after_a_crash(machine: Machine) -> None:
    before = workers(machine)
    kill(machine)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (machine.home / name).unlink()
    told = machine.do(*UP, code=2)
    assert "ledger.db" in told
    assert "--restored" in told
    assert workers(machine) == before


def test_an_older_copy_is_taken_only_when_that_is_said(machine: Machine) -> None:
    machine.do("down")
    shutil.copy(machine.home / "ledger.db", machine.home / "backup.db")
    machine.do(*UP)
    seq = machine.ask("status")["head"]["seq"]
    machine.submit("later", 1, "true")
    machine.do("down", "--end")
    shutil.copy(machine.home / "backup.db", machine.home / "ledger.db")
    told = machine.do(*UP, code=2)
    assert "older" in told
    assert "--restored" in told
    machine.do(*UP, "--restored")
    assert machine.ask("status")["head"]["seq"] >= seq
    assert "NotFound" in machine.do("show", "later", code=2)
    assert machine.ask("audit")["ok"]


def test_the_ledger_of_another_home_is_refused(machine: Machine) -> None:
    machine.do("down")
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        other = Machine(Path(folder))
        other.do(*UP)
        for number in range(8):
            other.submit(f"run-{number}", 1, "true")
        other.do("down", "--end")
        shutil.copy(other.home / "ledger.db", machine.home / "ledger.db")
    assert "not the ledger" in machine.do(*UP, code=2)


def test_a_new_ledger_sets_the_old_one_aside(machine: Machine) -> None:
    assert "already" in machine.do(*UP, "--new-ledger", code=2)
    machine.do("down")
    assert "whole" in machine.do(*UP, "--new-ledger", code=2)
    (machine.home / "ledger.db").write_bytes(b"\xff" * 4096)
    machine.do(*UP, code=2)
    machine.do(*UP, "--new-ledger")
    assert machine.ask("list")["runs"] == []
    (aside,) = [path for path in machine.home.glob("ledger.db.lost-*") if path.suffix != ".anchor"]
    assert aside.read_bytes() == b"\xff" * 4096
    wait_for(lambda: not workers(machine))
    assert machine.ask("audit")["ok"]


def test_a_daemon_that_never_came_up_does_not_keep_the_next_from_starting(tmp_path: Path) -> None:
    user = Machine(tmp_path)
    if shutil.which("nvidia-smi") is None:
        assert "no GPUs" in user.do("up", "--metrics-port", "0", code=2)
    user.do(*UP)
    user.do("down", "--end")


def damage(ledger: Path, offset: int) -> None:
    """64 bytes of a file are no longer what was written."""
    with ledger.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 64)


def test_a_page_damaged_while_the_daemon_is_down_is_found_at_the_start(machine: Machine) -> None:
    before = workers(machine)
    machine.do("down")
    ledger = machine.home / "ledger.db"
    whole, pages = ledger.read_bytes(), ledger.stat().st_size // 2048
    for page in (0, 1, pages // 2, pages - 1):
        ledger.write_bytes(whole)
        damage(ledger, page * 2048 + (100 if page == 0 else 0))
        told = machine.do(*UP, code=2)
        assert "is damaged" in told
        assert "--restored" in told
        for verb in (("audit",), ("export", "leases")):
            done = machine.popen(*verb, "--db", str(ledger))
            _, said = done.communicate(timeout=60)
            assert done.returncode in (0, 1, 2), said
            assert "Traceback" not in said
    ledger.write_bytes(whole)
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute("DELETE FROM lease_open WHERE serial = 0")
    assert "train-1-0" in machine.do(*UP, code=2)
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute("INSERT INTO lease_open VALUES (0)")
    machine.do(*UP)
    assert workers(machine) == before
    assert machine.ask("audit")["ok"]


def test_a_page_damaged_under_the_daemon_ends_all_writing_and_no_work(machine: Machine) -> None:
    before = workers(machine)
    machine.do("down")
    machine.do(*UP)
    ledger = machine.home / "ledger.db"
    body = ledger.read_bytes()
    damage(ledger, body.index(b'"event":"BudgetSet"'))
    assert "BROKEN" in machine.do("audit", code=1)
    head = machine.ask("status")["head"]
    told = machine.do("submit", "-f", "-", stdin=RUN.format(name="more", gpus=1, script="true"), code=2)
    assert "Damaged" in told
    assert "--restored" in told
    assert "is damaged" in machine.ask("status")["ledgerProblem"]
    assert "train" in machine.do("list")
    assert workers(machine) == before
    os.kill(before[0], signal.SIGKILL)  # its end cannot be written, and is not forgotten
    time.sleep(1.5)
    assert machine.ask("status")["head"] == head
    assert machine.ask("show", "train")["status"]["phase"] == "Running"
    machine.do("down")
    ledger.write_bytes(body)
    machine.do(*UP)
    wait_for(lambda: machine.ask("show", "train")["status"]["phase"] == "Failed")
    assert machine.ask("audit")["ok"]
