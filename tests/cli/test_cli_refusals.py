"""What goes wrong: one readable block on stderr, nothing on stdout, and an exit code that means something."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ask
from tests.cli.fake import FakeDaemon, RefusalError

from fairlease.cli.session import Session
from fairlease.local.daemon.config import default_home

RUN = """apiVersion: rq.davidlangworthy.io/v1
kind: Run
metadata: {name: train}
spec:
  owner: org:team-a
  resources: {gpuType: H100-80GB, totalGPUs: 8}
"""


def refuse(*args: Any, **more: Any) -> Any:  # noqa: ANN401 - whatever a refusal is made of
    def refused(_: dict[str, Any]) -> None:
        raise RefusalError(*args, **more)

    return refused


def test_without_a_daemon_the_exit_code_says_so(ask: Ask, tmp_path: Path) -> None:
    result = ask("list", "--home", str(tmp_path))
    assert result.exit_code == 3
    assert result.stdout == ""
    assert str(tmp_path / "fairlease.sock") in result.stderr
    assert "fairlease up" in result.stderr


def test_a_socket_of_the_dead_is_no_daemon(ask: Ask, tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "fairlease.sock"))
    assert ask("--home", str(tmp_path), "status").exit_code == 3


def test_what_is_not_allowed_has_its_own_code(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["cancel"] = refuse("Forbidden", "train belongs to org:x", 4, "ask an administrator to bind you")
    result = ask("cancel", "train")
    assert result.exit_code == 4
    assert result.stderr == "fairlease: train belongs to org:x\n  to mend it: ask an administrator to bind you\n"


def test_a_refusal_is_bad_input_and_not_the_answer_no(fake: FakeDaemon, ask: Ask) -> None:
    result = ask("show", "nobody")
    assert result.exit_code == 2
    assert result.stderr.startswith("fairlease: NotFound: there is no run nobody\n  to mend it: look at the list")
    assert fake.sent("show") == [{"run": "default/nobody"}]


def test_a_daemon_with_a_fault_is_told_apart(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["status"] = refuse("Broken", "something broke", 70, "look at the daemon's log")
    assert ask("status").exit_code == 70


def test_every_problem_the_daemon_found_is_told(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    problems = [
        {"source": "train", "field": "spec.command", "value": None, "message": "missing"},
        {"source": "train", "field": "spec.workdir", "value": '"x"', "message": "expected an absolute path"},
    ]
    fake.answers["submit"] = refuse("InvalidRequest", "train: spec.command: missing (and 1 more)", 2, "", problems)
    (tmp_path / "run.yaml").write_text(RUN)
    result = ask("submit", "-f", str(tmp_path / "run.yaml"))
    assert result.exit_code == 2
    assert "  train: spec.command: missing\n" in result.stderr
    assert '  train: spec.workdir: "x": expected an absolute path\n' in result.stderr


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: [1\nb: 2\n", 2, "not YAML"),
        (RUN.replace("owner:", "ownr:"), 5, "did you mean owner?"),
        (RUN.replace("totalGPUs: 8", "totalGPUs: 0"), 6, "expected more than 0"),
        (RUN.replace("totalGPUs: 8", "totalGPUs: -8"), 6, "-8"),
        (RUN + "---\n" + RUN.replace("kind: Run", "kind: Budget"), 9, "fairlease budgets apply"),
        (RUN.replace("kind: Run", "kind: Rune"), 2, "did you mean Run?"),
        (RUN.replace("metadata: {name: train}", "metadata: {}"), 3, "missing"),
        (RUN.replace("name: train", "name: Not A Name"), 3, "expected a name"),
        ("[]\n", 1, "expected a mapping"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(
    fake: FakeDaemon, ask: Ask, tmp_path: Path, text: str, line: int, told: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    for verb in ("submit", "plan"):
        result = ask(verb, "-f", str(path))
        assert result.exit_code == 2
        assert f"{path}:{line}: " in result.stderr
        assert told in result.stderr
        assert result.stdout == ""
    assert not fake.asked, "what is wrong is never sent"


def test_all_mistakes_of_all_files_are_told_at_once(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(RUN.replace("totalGPUs: 8", "totalGPUs: no"))
    result = ask("submit", "-f", str(tmp_path / "one"), "-f", str(tmp_path / "two"))
    assert "2 mistakes" in result.stderr
    assert f"{tmp_path / 'two'}:6" in result.stderr
    assert not fake.asked


@pytest.mark.parametrize("text", ["", "---\n---\n", "# nothing\n"])
def test_a_file_with_nothing_in_it_is_refused(fake: FakeDaemon, ask: Ask, text: str) -> None:
    result = ask("submit", "-f", "-", stdin=text)
    assert result.exit_code == 2
    assert "standard input" in result.stderr
    assert not fake.asked


def test_a_file_that_is_not_there_is_named(fake: FakeDaemon, ask: Ask) -> None:
    result = ask("budgets", "apply", "-f", "/nowhere/budgets.yaml")
    assert result.exit_code == 2
    assert "/nowhere/budgets.yaml: cannot be read: No such file or directory" in result.stderr
    assert not fake.asked


def test_standard_input_and_lists_are_read(fake: FakeDaemon, ask: Ask) -> None:
    listed = "apiVersion: v1\nkind: List\nitems:\n- " + RUN.replace("\n", "\n  ").rstrip() + "\n"
    result = ask("submit", "-n", "lab", "-f", "-", stdin=listed)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("run/train submitted, Pending: Reserved")
    (sent,) = fake.sent("submit")
    assert sent["objects"][0]["metadata"] == {"name": "train", "namespace": "lab"}


def test_work_from_a_file_starts_where_one_stands(
    fake: FakeDaemon, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for workdir, expected in (
        ("", tmp_path),
        ("  workdir: sub\n", tmp_path / "sub"),
        ("  workdir: /data\n", Path("/data")),
    ):
        ask("submit", "-f", "-", stdin=f"{RUN}  command: [./train]\n{workdir}")
        assert fake.sent("submit")[-1]["objects"][0]["spec"]["workdir"] == str(expected)


@pytest.mark.parametrize("args", [("who-pays", "a", "--owner", "b"), ("cover",), ("cancel",), ("submit",)])
def test_what_is_missing_or_too_much_is_bad_input(fake: FakeDaemon, ask: Ask, args: tuple[str, ...]) -> None:
    assert ask(*args).exit_code == 2
    assert not fake.asked


def test_a_ledger_that_is_none_is_refused_by_name(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "no.db").write_text("no ledger")
    for verb in (("audit",), ("export", "leases")):
        for path in ("no.db", "missing.db"):
            result = ask(*verb, "--db", str(tmp_path / path))
            assert result.exit_code == 2
            assert path in result.stderr


@pytest.mark.parametrize("nodes", ["n0", "n0=x", "n0=8,n0=8", "n0=0", "=8"])
def test_nodes_that_are_none_are_refused(ask: Ask, tmp_path: Path, nodes: str) -> None:
    result = ask("up", "--home", str(tmp_path / "home"), "--nodes", nodes)
    assert result.exit_code == 2
    assert nodes in result.stderr
    assert not (tmp_path / "home").exists()


def test_a_bad_configuration_is_told_with_its_line(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("gpus: 8\nflavour: H100\n")
    result = ask("up", "--home", str(tmp_path / "home"), "--config", str(tmp_path / "config.yaml"))
    assert result.exit_code == 2
    assert f"{tmp_path / 'config.yaml'}:2: flavour: " in result.stderr


def test_the_home_is_where_the_daemon_looks_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRLEASE_HOME", raising=False)
    assert Session().home_path() == default_home()
    monkeypatch.setenv("FAIRLEASE_HOME", str(tmp_path))
    assert Session().home_path() == default_home() == tmp_path
    monkeypatch.setenv("FAIRLEASE_SOCKET", "/run/other.sock")
    assert Session().socket_path() == Path("/run/other.sock")
    assert Session(home="/typed").socket_path() == Path("/typed/fairlease.sock")
    assert Session(home="/typed", socket="/s").socket_path() == Path("/s")


def test_who_has_no_daemon_asks_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRLEASE_HOME", raising=False)
    monkeypatch.delenv("FAIRLEASE_SOCKET", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setattr("fairlease.cli.session.SYSTEM_HOME", tmp_path / "system")
    own, system = tmp_path / "me/.local/state/fairlease/fairlease.sock", tmp_path / "system/fairlease.sock"
    assert Session().socket_path() == own, "where one's own would be"
    system.parent.mkdir()
    system.touch()
    assert Session().socket_path() == system
    own.parent.mkdir(parents=True)
    own.touch()
    assert Session().socket_path() == own


def test_no_traceback_whatever_answers_at_the_socket(tmp_path: Path) -> None:
    import socket
    import threading

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def babble() -> None:
            conn, _ = server.accept()
            with conn:
                conn.sendall(b"HTTP/1.1 400 Bad Request\n")

        thread = threading.Thread(target=babble)
        thread.start()
        env = os.environ | {"FAIRLEASE_SOCKET": str(tmp_path / "s")}
        done = subprocess.run(
            [sys.executable, "-m", "fairlease", "list"], env=env, capture_output=True, text=True, check=False
        )
        thread.join()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "speaks another language" in done.stderr
