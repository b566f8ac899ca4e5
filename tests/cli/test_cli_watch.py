"""Watching, waiting, following logs: what is told when, and how it ends."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ask
from tests.cli.fake import FakeDaemon, ahead, status_of
from tests.cli.test_cli_pipes import on_terminal


def film(fake: FakeDaemon, *statuses: dict[str, Any]) -> None:
    """Let the run be in each of these states in turn, one more at every `wait`."""
    seq = 0

    def wait(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal seq
        seq = min(seq + 1, len(statuses) - 1)
        return {"head": {"seq": 7 + seq, "hash": "00"}}

    def show(args: dict[str, Any]) -> dict[str, Any]:
        spec = {"owner": "org:team-a", "resources": {"gpuType": "H100-80GB", "totalGPUs": 8}}
        name = args["run"].partition("/")[2]
        return {"name": name, "namespace": "default", "by": "ada", "spec": spec, "status": statuses[seq]}

    fake.answers |= {"wait": wait, "show": show}


PENDING, RUNNING = status_of("Pending", "NoRoom", "no room"), status_of("Running")
COMPLETED, FAILED = status_of("Completed", "Completed"), status_of("Failed", "Fail", "rank 0 ended with exit code 1")


def test_a_pipe_gets_a_line_for_each_change(fake: FakeDaemon, ask: Ask) -> None:
    film(fake, PENDING, PENDING, RUNNING, RUNNING, COMPLETED)
    result = ask("watch", "train", "--until-done")
    assert result.exit_code == 0
    assert [line.split()[1:3] for line in result.stdout.splitlines()] == [
        ["train", "Pending"],
        ["train", "Running"],
        ["train", "Completed"],
    ]
    assert "NoRoom   no room" in result.stdout


def test_a_pipe_is_told_the_date_of_a_run_that_waits_and_when_it_moves(fake: FakeDaemon, ask: Ask) -> None:
    dated = [status_of("Pending", "Reserved", "no room", earliestStart=ahead(hours)) for hours in (20, 30)]
    film(fake, *dated, RUNNING, COMPLETED)
    told = ask("watch", "train", "--until-done").stdout.splitlines()
    assert [line.split()[2] for line in told] == ["Pending", "Pending", "Running", "Completed"]
    assert f"starts in 20h, by {ahead(20)}" in told[0]
    assert f"starts in 30h, by {ahead(30)}" in told[1]


def test_a_terminal_counts_down_while_nothing_happens(fake: FakeDaemon) -> None:
    asked = 0

    def wait(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        time.sleep(1.1)
        return {"head": {"seq": 7 if asked < 3 else 8, "hash": "00" if asked > 2 else "ab" * 32}}

    def show(_: dict[str, Any]) -> dict[str, Any]:
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun + 100))
        status = status_of("Pending", "Reserved", earliestStart=date) if asked < 3 else COMPLETED
        spec = {"owner": "org:team-a", "resources": {"gpuType": "H100-80GB", "totalGPUs": 8}}
        return {"name": "train", "namespace": "default", "by": "ada", "spec": spec, "status": status}

    begun = time.time()
    fake.answers |= {"wait": wait, "show": show}
    told = on_terminal("watch", "train", "--until-done", "--no-color", COLUMNS="120")
    counted = [int(each) for each in re.findall(r"in (\d+)s", told)]
    assert len(set(counted)) >= 3, told
    assert counted == sorted(counted, reverse=True)
    assert len(fake.sent("show")) == 2, "only what changed was asked for again"


def test_a_run_that_fails_is_the_answer_no(fake: FakeDaemon, ask: Ask) -> None:
    film(fake, RUNNING, FAILED)
    assert ask("watch", "train", "--until-done").exit_code == 1


def test_changes_are_json_lines_for_programs(fake: FakeDaemon, ask: Ask) -> None:
    film(fake, RUNNING, COMPLETED)
    lines = ask("watch", "train", "--until-done", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["status"]["phase"] for line in lines] == ["Running", "Completed"]


def test_no_change_falls_between_looking_and_waiting(fake: FakeDaemon, ask: Ask) -> None:
    film(fake, RUNNING, COMPLETED)
    ask("watch", "train", "--until-done")
    assert [verb for verb, _ in fake.asked][:3] == ["status", "show", "wait"], "the head is older than what was shown"
    assert fake.sent("wait")[0]["seq"] == 7


def test_watching_all_leaves_out_what_is_past(fake: FakeDaemon, ask: Ask) -> None:
    runs = fake.answers["list"]["runs"]
    ended = [{**run, "status": COMPLETED} for run in runs]
    answers = iter([{"runs": runs}, {"runs": ended}])
    fake.answers["list"] = lambda _: next(answers)
    told = ask("watch", "--until-done").stdout
    assert "broken" not in told
    assert [line.split()[1] for line in told.splitlines()] == ["train", "sweep", "eval"] * 2


def test_submit_can_wait_for_the_end(fake: FakeDaemon, ask: Ask, run_file: Path) -> None:
    film(fake, PENDING, RUNNING, FAILED)
    result = ask("submit", "-f", str(run_file), "--wait")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].startswith("run/small submitted")
    assert "Failed" in result.stdout.splitlines()[-1]


def test_submit_that_waits_gives_programs_one_answer(fake: FakeDaemon, ask: Ask, run_file: Path) -> None:
    film(fake, PENDING, RUNNING, COMPLETED)
    answer = json.loads(ask("submit", "-f", str(run_file), "--wait", "-o", "json").stdout)
    assert [run["status"]["phase"] for run in answer["runs"]] == ["Completed", "Completed"]


# --- logs --------------------------------------------------------------------------------------------------------------


def files(tmp_path: Path, **texts: str) -> list[dict[str, Any]]:
    """Log files by `r<rank>a<attempt>`."""
    found = []
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        found.append({"rank": int(name[1]), "attempt": int(name[3]), "path": str(path)})
    return found


def test_one_rank_is_printed_as_it_is(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    fake.answers["logs"] = {"files": files(tmp_path, r0a1="one\ntwo without an end"), "ended": True}
    assert ask("logs", "train").stdout == "one\ntwo without an end"


def test_several_ranks_are_told_apart(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    fake.answers["logs"] = {"files": files(tmp_path, r0a1="a\nb\n", r1a1="c"), "ended": True}
    assert ask("logs", "train").stdout == "[0] a\n[0] b\n[1] c\n"


def test_the_last_attempt_is_meant_where_none_is_named(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    fake.answers["logs"] = {"files": files(tmp_path, r0a1="old\n", r0a2="new\n"), "ended": True}
    assert ask("logs", "train").stdout == "new\n"
    ask("logs", "train", "--attempt", "1", "--rank", "0")
    assert fake.sent("logs")[-1] == {"run": "default/train", "rank": 0, "attempt": 1}


def test_following_prints_what_comes_until_the_end(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    path, seq = tmp_path / "log", 7

    def wait(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal seq
        seq += 1
        with path.open("a") as file:
            file.write(f"line {seq}\n")
        return {"head": {"seq": seq, "hash": "00"}}

    def logs(_: dict[str, Any]) -> dict[str, Any]:
        return {"files": [{"rank": 0, "attempt": 1, "path": str(path)}] if seq > 8 else [], "ended": seq >= 10}

    fake.answers |= {"wait": wait, "logs": logs}
    assert ask("logs", "-f", "train").stdout == "line 8\nline 9\nline 10\n"


def test_a_file_that_is_not_ours_is_asked_of_the_daemon(
    fake: FakeDaemon, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers["logs"] = {"files": files(tmp_path, r0a1="secret"), "ended": True}
    texts = {0: {"text": "granted\n", "next": 8, "ended": True}, 8: {"text": "", "next": 8, "ended": True}}
    fake.answers["logs.read"] = lambda args: texts[args["offset"]]

    def closed(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", closed)
    assert ask("logs", "train").stdout == "granted\n"


def test_a_run_that_wrote_nothing_says_so(fake: FakeDaemon, ask: Ask) -> None:
    result = ask("logs", "eval")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "eval has written nothing\n")
    assert fake.sent("logs")
