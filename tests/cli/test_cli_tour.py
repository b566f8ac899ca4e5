"""The whole tour, with the real daemon, real processes and the real ledger: what a user does on the first day."""

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from tests.cli.machine import BUDGET, RUN, Machine

FORMATS = ("table", "wide", "json", "yaml")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        user = Machine(Path(folder))
        started = user.do("up", "--gpus", "8", "--flavor", "H100-80GB", "--metrics-port", "0")
        assert started.startswith("up (pid ")
        try:
            user.do("budgets", "apply", "-f", "-", stdin=BUDGET)
            yield user
        finally:
            user.do("down", "--end")


def test_a_first_day_from_budget_to_audit(machine: Machine) -> None:
    assert machine.submit("train", 4, "echo hello from $RANK; sleep 60").startswith(
        "run/train submitted, Pending: Starting: starting: 0 of 4 pods"
    )
    machine.runs("train")
    assert "run/large submitted, Pending: ConcurrencyCapExceeded" in machine.submit("large", 8, "true")
    rows = {line.split()[0]: line.split() for line in machine.do("list").splitlines()}
    assert rows["train"][1:4] == ["org:team-a", "Running", "4"]
    assert "team-a/west" in rows["train"]
    assert rows["large"][2:4] == ["Pending", "8"]
    assert rows["large"][-1] == "ConcurrencyCapExceeded"

    told = machine.do("explain", "large")
    assert told.startswith("large is Pending: ConcurrencyCapExceeded")
    assert "team-a/west" in told.partition("Money")[2]
    assert "local" in told.partition("Room")[2]
    assert "org:team-a asks for 8" in told.partition("Story")[2]

    (payer,) = machine.ask("who-pays", "train")["runs"][0]["payers"]
    assert (payer["envelope"], payer["class"], payer["gpus"]) == ("west", "owned", 4)
    leases = machine.ask("leases", "--run", "train", "--open")["leases"]
    assert sorted(slot for lease in leases for slot in lease["spec"]["slice"]["gpus"]["local"]) == [0, 1, 2, 3]
    assert machine.ask("nodes")["nodes"][0]["free"] == [4, 5, 6, 7]
    assert "4/6" in machine.do("budgets", "usage")

    wait_for_output(machine, "train", 4)
    assert machine.do("logs", "train", "--rank", "2") == "hello from 2\n"
    assert sorted(machine.do("logs", "train").splitlines()) == [f"[{rank}] hello from {rank}" for rank in range(4)]

    assert machine.do("cancel", "train", "large") == "run/train canceled\nrun/large canceled\n"
    assert "ended already" in machine.do("cancel", "train", code=2)
    assert machine.ask("show", "train")["status"]["reason"] == "Canceled"
    assert machine.ask("audit")["ok"] is True
    charges = list(csv.DictReader(io.StringIO(machine.do("export", "charges"))))
    assert [row["run"] for row in charges if row["run"] in ("train", "large")] == ["train"], (
        "who held nothing pays nothing"
    )


def wait_for_output(machine: Machine, run: str, ranks: int) -> None:
    until = time.monotonic() + 20
    while len(machine.do("logs", run).splitlines()) < ranks:
        assert time.monotonic() < until, "the processes never wrote"
        time.sleep(0.1)


@pytest.mark.parametrize("style", FORMATS)
def test_every_question_is_answered_in_every_format(machine: Machine, style: str) -> None:
    machine.submit(f"formats-{style}", 1, "sleep 60")
    name = f"formats-{style}"
    questions = [
        *(("status",), ("list",), ("list", "-A"), ("show", name), ("explain", name), ("cover", "--explain", name)),
        *(("who-pays", name), ("who-pays", "--owner", "org"), ("leases", "--since", "1h"), ("nodes",), ("audit",)),
        *(("budgets", "list"), ("budgets", "usage")),
    ]
    for question in questions:
        told = machine.inside(*question, "-o", style)
        assert told.strip(), question
        if style in ("json", "yaml"):
            assert isinstance(yaml.safe_load(told), dict), question
            assert (told.lstrip()[0] == "{") == (style == "json")
        assert "\x1b" not in told
    assert name in machine.inside("cancel", name, "-o", style)


def test_a_plan_quotes_and_writes_nothing(machine: Machine, tmp_path: Path) -> None:
    before = machine.ask("status")["head"]
    for gpus, code in ((2, 0), (7, 1)):
        (tmp_path / "run.yaml").write_text(RUN.format(name=f"quoted-{gpus}", gpus=gpus, script="true"))
        (plan,) = machine.ask("plan", "-f", str(tmp_path / "run.yaml"), code=code)["plans"]
        assert plan["starts"] is (code == 0)
        assert plan["worstCase"] == {"gpus": gpus, "hours": 1, "gpuHours": gpus, "perAttempt": False}
    assert "would not start: ConcurrencyCapExceeded" in machine.do("plan", "-f", str(tmp_path / "run.yaml"), code=1)
    assert machine.ask("status")["head"] == before


def test_a_command_runs_and_ends_as_its_run_does(machine: Machine) -> None:
    done = machine.popen(
        "run", "--gpus", "2", "--gpus-per-pod", "2", "--env", "WORD=hi", "--", "sh", "-c", "echo $WORD; pwd"
    )
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out.splitlines()) == (0, ["hi", str(Path.cwd())])
    assert "completed" in err
    failed = machine.popen("run", "--gpus", "1", "--", "sh", "-c", "exit 3")
    assert "exit code 3" in failed.communicate(timeout=60)[1]
    assert failed.returncode == 1


def test_submit_waits_for_the_end_of_all(machine: Machine) -> None:
    two = (
        RUN.format(name="wait-good", gpus=1, script="true")
        + "---\n"
        + RUN.format(name="wait-bad", gpus=1, script="exit 1")
    )
    told = machine.do("submit", "--wait", "-f", "-", stdin=two, code=1)
    last = {line.split()[1]: line.split()[2] for line in told.splitlines() if not line.startswith("run/")}
    assert last == {"wait-good": "Completed", "wait-bad": "Failed"}


def test_a_watch_tells_a_run_from_start_to_end(machine: Machine) -> None:
    machine.submit("watched", 1, "sleep 1.5")
    told = machine.do("watch", "watched", "--until-done", "-o", "json").splitlines()
    assert [json.loads(line)["status"]["phase"] for line in told][-2:] == ["Running", "Completed"]


def test_logs_are_followed_to_the_end(machine: Machine) -> None:
    machine.submit("followed", 1, "for n in 1 2 3; do echo line $n; sleep 0.3; done; printf end")
    assert machine.do("logs", "-f", "followed") == "line 1\nline 2\nline 3\nend"


def test_an_interrupted_run_goes_on(machine: Machine) -> None:
    done = machine.popen("run", "--gpus", "1", "--name", "goes-on", "--", "sh", "-c", "echo begun; sleep 60")
    assert done.stdout is not None
    assert done.stdout.readline() == "begun\n"
    done.send_signal(signal.SIGINT)
    _, err = done.communicate(timeout=20)
    assert done.returncode == 130
    assert "fairlease cancel goes-on" in err
    machine.runs("goes-on")
    machine.do("cancel", "goes-on")


def test_what_is_refused_names_its_reason(machine: Machine) -> None:
    machine.submit("taken", 1, "true")
    assert "AlreadyExists" in machine.do(
        "submit", "-f", "-", stdin=RUN.format(name="taken", gpus=1, script="x"), code=2
    )
    assert "NotFound" in machine.do("explain", "nobody", code=2)
    no_command = RUN.format(name="idle", gpus=1, script="x").rpartition("  command")[0]
    assert "idle: spec.command: missing" in machine.do("submit", "-f", "-", stdin=no_command, code=2)
    assert "already" in machine.do("up", "--gpus", "8", "--flavor", "H100-80GB", code=2)


def test_leases_are_found_by_every_filter(machine: Machine) -> None:
    machine.do("run", "--gpus", "1", "--name", "filtered", "--", "true")
    for wanted in (
        "--run=filtered",
        "--node=local",
        "--owner=org:team-a",
        "--budget=team-a",
        "--envelope=west",
        "--since=1h",
    ):
        names = [lease["name"] for lease in machine.ask("leases", wanted, "--closed", "--limit=10000")["leases"]]
        assert "filtered-1-0" in names, wanted
    for other in (
        "--owner=org:b",
        "--budget=b",
        "--envelope=e",
        "--until=2000-01-01T00:00:00Z",
    ):
        assert machine.ask("leases", other)["leases"] == [], other
    assert "did you mean filtered?" in machine.do("leases", "--run=filterd", code=2)
    assert "did you mean local?" in machine.do("leases", "--node=locale", code=2)
    for same in ("--owner=org", "--envelope=team-a/west", "--envelope=default/team-a/west"):
        names = [lease["name"] for lease in machine.ask("leases", same, "--closed", "--limit=10000")["leases"]]
        assert "filtered-1-0" in names, same
    assert "it has rank 0, attempt 1" in machine.do("logs", "filtered", "--rank=7", code=2)
    assert "it has rank 0, attempt 1" in machine.do("logs", "filtered", "--rank=0", "--attempt=3", "-f", code=2)


def test_the_ledger_is_audited_and_exported_from_its_file(machine: Machine, tmp_path: Path) -> None:
    machine.do("run", "--gpus", "2", "--name", "filed", "--", "true")
    ledger = str(machine.home / "ledger.db")
    by_daemon, by_file = machine.ask("audit"), machine.ask("audit", "--db", ledger)
    assert by_file["ok"] is True
    assert by_file["checks"] == by_daemon["checks"]
    out = tmp_path / "leases.csv"
    machine.do("export", "leases", "--db", ledger, "-O", str(out))
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert {row["rank"] for row in rows if row["run"] == "filed"} == {"0", "1"}
    told = {what: machine.do("export", what, "--db", ledger) for what in ("leases", "charges")}
    for what, by_file in told.items():
        assert machine.do("export", what).splitlines()[0] == by_file.splitlines()[0], (
            "one export, wherever it comes from"
        )
    sums = {what: Counter[str]() for what in told}
    for what, text in told.items():
        for row in csv.DictReader(io.StringIO(text)):
            sums[what][row["run"]] += int(row["gpuMilliseconds"])
    assert sums["leases"] == sums["charges"]


def test_a_forged_index_is_found_by_the_daemon_and_from_the_file(machine: Machine, tmp_path: Path) -> None:
    machine.do("run", "--gpus", "1", "--name", "forged", "--", "true")
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(machine.home / "ledger.db")) as ledger, closing(sqlite3.connect(copy)) as db:
        ledger.backup(db)
        db.execute("DROP TRIGGER lease_closed_kept")
        db.execute("UPDATE lease_closed SET at = at - 1 WHERE serial = 0")
        db.commit()
    said = machine.do("audit", "--db", str(copy), code=1)
    assert "indexesAgree" in said
    assert "the trigger lease_closed_kept is missing" in said
    assert "but table lease_closed says" in said
    assert machine.ask("audit")["checks"]["indexesAgree"] is True


def test_parquet_holds_the_same_rows_with_types(machine: Machine, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    machine.do("run", "--gpus", "1", "--name", "columns", "--", "true")
    out = tmp_path / "leases.parquet"
    machine.do("export", "leases", "--format", "parquet", "-O", str(out))
    rows = [row for row in parquet.read_table(out).to_pylist() if row["run"] == "columns"]
    assert [(row["gpus"], row["closure"]) for row in rows] == [(1, "Completed")]
    assert rows[0]["end"] >= rows[0]["start"]


@pytest.mark.parametrize("style", ["csv", "parquet"])
def test_an_export_into_a_device_or_a_pipe_leaves_it_there(machine: Machine, tmp_path: Path, style: str) -> None:
    pytest.importorskip("pyarrow")
    pipe, end = tmp_path / "pipe", {"csv": b"\n", "parquet": b"PAR1"}[style]
    os.mkfifo(pipe)
    writer = machine.popen("export", "leases", "--format", style, "-O", str(pipe))
    assert pipe.read_bytes().endswith(end)
    writer.communicate(timeout=60)
    assert (writer.returncode, pipe.is_fifo()) == (0, True), "written to, and not replaced"
    aside = tmp_path / "full"  # A way to the device by which it cannot be replaced, should that be tried.
    aside.symlink_to("/dev/full")
    assert "No space left" in machine.do("export", "leases", "--format", style, "-O", str(aside), code=74)
    assert Path("/dev/full").is_char_device()


def test_an_export_through_a_link_leaves_the_link(machine: Machine, tmp_path: Path) -> None:
    link, real = tmp_path / "latest.csv", tmp_path / "january.csv"
    link.symlink_to(real)
    machine.do("export", "charges", "-O", str(link))
    assert link.is_symlink()
    assert real.read_text().startswith("namespace,run,owner")


def test_a_report_is_asked_for_since_a_time_or_for_so_long(machine: Machine) -> None:
    for since in ("2026-01-01T00:00:00Z", "90m"):
        machine.do("forecast", "report", "--since", since)
    assert "is no time" in machine.do("forecast", "report", "--since", "yesterday", code=2)


def test_a_budget_is_changed_and_removed(machine: Machine) -> None:
    other = BUDGET.replace("team-a", "team-b")
    for change in ("created", "unchanged"):
        assert machine.do("budgets", "apply", "-f", "-", stdin=other) == f"budget/team-b {change}\n"
    changed = other.replace("concurrency: 6", "concurrency: 7")
    assert machine.do("budgets", "apply", "-f", "-", stdin=changed) == "budget/team-b updated\n"
    assert machine.do("budgets", "remove", "team-b") == "budget/team-b removed\n"
    assert "NotFound" in machine.do("budgets", "remove", "team-b", code=2)


def test_work_outlives_the_daemon_that_started_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        user = Machine(Path(folder))
        nodes = ("--nodes", "n0=4,n1=4", "--flavor", "H100-80GB", "--metrics-port", "0")
        user.do("up", *nodes)
        try:
            user.do("budgets", "apply", "-f", "-", stdin=BUDGET)
            user.submit("outlives", 2, f"sleep 2; echo done > {tmp_path / 'mark'}")
            assert "1 run goes on" in user.do("down")
            user.do("status", code=3)
            assert user.do("down") == "", "a daemon that is not there is as it should be"
            user.do("up", *nodes)
            assert [node["name"] for node in user.ask("nodes")["nodes"]] == ["n0", "n1"]
            user.do("watch", "outlives", "--until-done")
            assert (tmp_path / "mark").read_text() == "done\n"
        finally:
            user.do("down", "--end")


def test_a_directory_that_was_deleted_is_what_is_told(machine: Machine, tmp_path: Path) -> None:
    here = tmp_path / "gone"
    here.mkdir()
    (tmp_path / "run.yaml").write_text(RUN.format(name="lost", gpus=1, script="true"))
    script = 'rmdir "$0"; exec "$@"'
    for words in (["run", "--gpus", "1", "--", "true"], ["submit", "-f", str(tmp_path / "run.yaml")]):
        here.mkdir(exist_ok=True)
        command = ["sh", "-c", script, str(here), sys.executable, "-m", "fairlease", *words]
        done = subprocess.run(command, cwd=here, env=machine.env, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done
        assert "directory" in done.stderr
        assert "output" not in done.stderr


def test_what_no_node_could_ever_hold_is_refused_unless_nodes_are_waited_for(machine: Machine) -> None:
    told = machine.do("run", "--gpus", "2000000000", "--name", "vast", "--", "true", code=2)
    assert "NeverFits" in told
    assert "--wait-for-nodes" in told
    assert "NotFound" in machine.do("show", "vast", code=2)
    other = RUN.format(name="vast", gpus=1, script="true").replace("H100-80GB", "B200")
    assert "flavor B200" in machine.do("submit", "-f", "-", stdin=other, code=2)
    machine.do("run", "--gpus", "16", "--name", "vast", "--detach", "--wait-for-nodes", "--", "true")
    assert machine.ask("show", "vast")["status"]["phase"] == "Pending"
    machine.do("cancel", "vast")
    assert machine.do("submit", "-f", "-", "--wait-for-nodes", stdin=other.replace("vast", "vaster")).startswith(
        "run/vaster"
    )
    machine.do("cancel", "vaster")
