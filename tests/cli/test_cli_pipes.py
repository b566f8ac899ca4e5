"""Terminals and pipes: colour and motion for people, plain lines for programs, and no noise when a reader goes away."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.fake import FakeDaemon, run_row, status_of

FAIRLEASE = (sys.executable, "-m", "fairlease")


def on_terminal(*args: str, **env: str) -> str:
    """What a command prints on a terminal."""
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [*FAIRLEASE, *args], stdout=inner, stderr=inner, env=os.environ | {"COLUMNS": "120", "TERM": "xterm"} | env
    ) as child:
        os.close(inner)
        parts = []
        try:
            while part := os.read(outer, 65536):
                parts.append(part)
        except OSError:
            pass  # Linux says so when the other side of a terminal is gone.
        child.wait()
    os.close(outer)
    return b"".join(parts).decode()


@pytest.fixture(autouse=True)
def no_wish_about_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "args", [("list",), ("explain", "eval"), ("budgets", "usage"), ("nodes",), ("audit",)], ids=" ".join
)
def test_a_pipe_gets_no_colour(fake: FakeDaemon, args: tuple[str, ...]) -> None:
    done = subprocess.run([*FAIRLEASE, *args], capture_output=True, text=True, check=False)
    assert done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert fake.asked


@pytest.mark.parametrize("args", [("list",), ("explain", "eval"), ("budgets", "usage")], ids=" ".join)
def test_a_terminal_gets_colour_unless_refused(fake: FakeDaemon, args: tuple[str, ...]) -> None:
    assert "\x1b[" in on_terminal(*args)
    assert "\x1b[" not in on_terminal(*args, "--no-color")
    assert "\x1b[" not in on_terminal(*args, NO_COLOR="1")
    assert "\x1b[" not in on_terminal(*args, "-o", "json")
    assert fake.asked


def test_a_table_fits_the_terminal(fake: FakeDaemon) -> None:
    lines = on_terminal("list", "-o", "wide", "--no-color").splitlines()
    assert max(map(len, lines)) == 120
    assert fake.asked


def test_a_reader_that_goes_away_is_no_error(fake: FakeDaemon) -> None:
    fake.answers["list"] = {"runs": [run_row(f"run-{number}", status_of("Running")) for number in range(5_000)]}
    with subprocess.Popen([*FAIRLEASE, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline().startswith("NAME")
        child.stdout.close()
        told = child.stderr.read()
    assert child.returncode == 141
    assert "Traceback" not in told
    assert "BrokenPipe" not in told


def test_an_interrupted_watch_says_so_by_its_code(fake: FakeDaemon) -> None:
    def slow(_: dict[str, int]) -> dict[str, dict[str, int]]:
        time.sleep(30)
        return {"head": {"seq": 8}}

    fake.answers["wait"] = slow
    with subprocess.Popen([*FAIRLEASE, "watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert "train" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert "Traceback" not in child.stderr.read()
    assert child.returncode == 130


def test_a_watch_on_a_terminal_draws_a_table(fake: FakeDaemon) -> None:
    fake.answers["show"] = {
        "name": "train",
        "namespace": "default",
        "by": "ada",
        "spec": {"owner": "org:team-a", "resources": {"gpuType": "H100-80GB", "totalGPUs": 8}},
        "status": status_of("Completed", "Completed"),
    }
    told = on_terminal("watch", "train", "--until-done")
    assert "NAME" in told
    assert "Completed" in told
