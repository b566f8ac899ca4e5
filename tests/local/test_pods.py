"""Pods as real processes: each test starts some, looks at them from outside, and ends them by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.local.podstage import end_of, gone, pids, said, spec, start, supervisor, until

from fairlease.local.processes.environment import user_of
from fairlease.local.processes.pods import MARGIN_MS, How, Loss, Lost, NotStarted, Pods, Running
from fairlease.runtime.processes import shim

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 and "CI" not in os.environ, reason="only root can start work as another user"
)

UNPRIVILEGED_SHIM = f"""#!{sys.executable} -IS
import runpy, sys
sys.argv, sys.modules["ctypes"] = sys.argv[3:], None
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Stands for an interpreter that cannot ask the kernel for anything, so not for the care of orphans either."""


@pytest.mark.parametrize(
    ("script", "code", "how"),
    [("exit 0", 0, How.EXITED), ("exit 3", 3, How.EXITED), ("kill -9 $$", 137, How.SIGNALED)],
)
def test_the_end_tells_the_exit_code(pods: Pods, script: str, code: int, how: How) -> None:
    before_ms = time.time_ns() // 1_000_000
    start(pods, "p", script)
    seen = end_of(pods, "p")
    assert (seen.code, seen.how, seen.signal) == (code, how, 9 if code > 128 else None)
    assert before_ms <= seen.at_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    ("command", "workdir", "code"),
    [("/no/such/command", "/", 127), ("no-such-command", "/", 127), ("/etc/passwd", "/", 126), ("true", "/none", 126)],
)
def test_a_command_that_cannot_run_says_why(pods: Pods, command: str, workdir: str, code: int) -> None:
    pods.prepare(spec(pods, "p", command, workdir=workdir))
    pods.launch("p")
    seen = end_of(pods, "p")
    assert (seen.code, seen.how) == (code, How.NOT_EXECUTED)
    assert seen.message in said(pods, "p")
    assert (workdir if workdir != "/" else command) in seen.message


def test_output_and_environment_are_those_of_the_spec(pods: Pods, tmp_path: Path) -> None:
    start(pods, "p", "env; pwd; echo oops >&2; readlink /proc/self/fd/0", workdir=str(tmp_path))
    assert end_of(pods, "p").code == 0
    folder = pods.root / "pods" / "p"
    environment = [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "GREETING=hello",
        "FAIRLEASE_POD=p",
        f"FAIRLEASE_POD_DIR={folder}",
        f"FAIRLEASE_NOTICE_FILE={pods.root / 'notices' / 'p'}",
    ]
    lines = [line for line in said(pods, "p").splitlines() if not line.startswith("PWD=")]  # the shell's own
    assert sorted(lines) == sorted([*environment, str(tmp_path), "oops", "/dev/null"])
    assert pods.log_of("p").stat().st_mode & 0o777 == 0o600


def test_the_work_inherits_neither_files_nor_signal_habits(pods: Pods) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    start(pods, "p", "ls /proc/self/fd | wc -l; grep -E 'SigBlk' /proc/self/status; ps -o sid=,pgid= -p $$; echo $$")
    end_of(pods, "p")
    os.close(reader)
    os.close(writer)
    files, _, blocked, session, group, pid = said(pods, "p").split()
    assert (int(files), int(blocked, 16)) == (4, 0), "the standard three, and the one that `ls` reads"
    assert session == group == pid, "a process group and session of its own"


def test_work_that_handles_the_signal_ends_within_its_grace(pods: Pods) -> None:
    start(pods, "p", "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.02; done")
    until(lambda: pods.log_of("p").exists() and "ready" in said(pods, "p"))
    assert pods.terminate("p") is not None
    seen = end_of(pods, "p")
    assert (seen.code, seen.how) == (5, How.ENDED)
    assert "saved" in said(pods, "p")
    assert pods.terminate("p") is None


def test_work_that_ignores_the_signal_is_killed_after_its_grace(pods: Pods) -> None:
    start(pods, "p", "trap '' TERM; echo ready; while :; do sleep 0.02; done")
    until(lambda: pods.log_of("p").exists() and "ready" in said(pods, "p"))
    began = time.monotonic()
    pods.terminate("p", 400)
    seen = end_of(pods, "p")
    assert (seen.code, seen.signal, seen.how) == (137, signal.SIGKILL, How.ENDED)
    assert 0.4 <= time.monotonic() - began < 0.4 + MARGIN_MS / 1000


def test_a_later_call_brings_the_end_forward_and_never_back(pods: Pods) -> None:
    start(pods, "p", "trap '' TERM; echo ready; while :; do sleep 0.02; done")
    until(lambda: pods.log_of("p").exists() and "ready" in said(pods, "p"))
    first, later, now = pods.terminate("p", 5_000), pods.terminate("p", 60_000), pods.terminate("p", 0)
    assert first is not None
    assert later is not None
    assert now is not None
    assert now <= MARGIN_MS < later <= first
    assert end_of(pods, "p").code == 137


def test_the_grace_belongs_to_every_process_of_the_pod(pods: Pods) -> None:
    trainer = "trap 'sleep 0.3; echo checkpoint; exit' TERM; echo ready; while :; do sleep 0.02; done"
    start(pods, "p", f'/bin/sh -c "{trainer}" & wait')
    until(lambda: pods.log_of("p").exists() and "ready" in said(pods, "p"))
    pods.terminate("p")
    assert end_of(pods, "p").code == 143, "the shell died of the signal at once"
    assert "checkpoint" in said(pods, "p"), "the trainer below it had its time"


@pytest.mark.parametrize("ended", [False, True])
def test_a_daemonized_process_never_outlives_its_pod(pods: Pods, ended: bool) -> None:
    daemon = "(setsid sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 1; done' &)"
    start(
        pods,
        "p",
        f"{daemon}; {daemon}; (env -i setsid sh -c 'echo $$; exec sleep 300' &); sleep {300 if ended else 0.2}",
    )
    left = pids(pods, "p", 3)
    if ended:
        pods.terminate("p", 200)
    assert end_of(pods, "p").how is (How.ENDED if ended else How.EXITED)
    assert all(gone(pid) for pid in left)


def test_work_that_forks_without_end_is_ended(pods: Pods) -> None:
    script = "n=0; f() { n=$((n + 1)); [ $n -lt 400 ] && { f & }; sleep 300; }; f"
    start(pods, "p", script)
    time.sleep(0.1)
    pods.terminate("p", 0)
    assert end_of(pods, "p").code in (137, 143)
    assert not pods._left_behind("p")


def test_a_process_whose_first_thread_has_gone_is_ended_too(pods: Pods) -> None:
    exit_call = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    script = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(300,)).start(); "
        f"print('ready', flush=True); ctypes.CDLL(None).syscall({exit_call}, 0)"
    )
    pods.prepare(spec(pods, "p", sys.executable, "-c", script))
    pods.launch("p")
    until(lambda: pods.log_of("p").exists() and "ready" in said(pods, "p"))
    pods.terminate("p", 0)
    assert end_of(pods, "p").code in (143, 137)


def test_without_the_care_of_orphans_the_end_asks_for_a_sweep(daemon: Callable[..., Pods]) -> None:
    poor = daemon(script=UNPRIVILEGED_SHIM)
    start(poor, "p", "(setsid sh -c 'echo $$; exec sleep 300' &); sleep 0.2; exit 3")
    (orphan,) = pids(poor, "p", 1)
    seen = end_of(poor, "p")
    assert (seen.code, seen.tidy) == (3, False)
    assert not gone(orphan)
    until(lambda: poor.sweep("p") == 0)
    assert gone(orphan)


def test_a_killed_supervisor_takes_its_work_with_it_and_sweep_clears_the_rest(
    pods: Pods, daemon: Callable[..., Pods]
) -> None:
    others = daemon("others")
    orphan = "sh -c 'echo $$; exec sleep 300'"
    script = f"echo $$; (setsid {orphan} &); (env -i {orphan} &); (env -i setsid {orphan} &); sleep 300"
    start(pods, "p", script)
    start(others, "p", "echo $$; sleep 300")
    work, *orphans = pids(pods, "p", 4)
    until(lambda: isinstance(others.observe("p"), Running))
    with pytest.raises(ValueError, match="supervisor"):
        pods.sweep("p")
    os.kill(supervisor(pods, "p"), signal.SIGKILL)
    until(lambda: gone(work))
    assert pods.observe("p") == Lost(reason=Loss.SUPERVISOR_KILLED)
    assert not any(gone(pid) for pid in orphans)
    until(lambda: pods.sweep("p") == 0)
    assert all(gone(pid) for pid in orphans)
    assert isinstance(others.observe("p"), Running), "another daemon's pod of the same name is left alone"

    pods.launch("p")
    until(lambda: not pods._own_child("p"))
    assert isinstance(pods.observe("p"), Lost), "what may have run once never runs again"
    assert len(said(pods, "p").split()) == 4


def test_a_reused_pid_is_not_taken_for_the_work(pods: Pods) -> None:
    start(pods, "p", "sleep 300")
    os.kill(supervisor(pods, "p"), signal.SIGKILL)
    until(lambda: isinstance(pods.observe("p"), Lost))
    time.sleep(0.02)  # start times are told in hundredths of a second
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as innocent:
        alive = pods.root / "pods" / "p" / shim.ALIVE
        record = json.loads(alive.read_text())
        alive.write_text(json.dumps({**record, "pid": innocent.pid}))
        until(lambda: pods.sweep("p") == 0)
        spared = innocent.poll() is None
        innocent.kill()
    assert spared


def test_a_restart_of_the_machine_loses_the_work(pods: Pods) -> None:
    start(pods, "p", "exec sleep 300")  # nothing that could be left: sweep must not look for it
    os.kill(supervisor(pods, "p"), signal.SIGKILL)
    until(lambda: isinstance(pods.observe("p"), Lost))
    (pods.root / "pods" / "p" / shim.STARTED).write_text("the boot before this one")
    assert pods.observe("p") == Lost(reason=Loss.MACHINE_RESTARTED)
    assert pods.sweep("p") == 0


def test_a_stopped_supervisor_cannot_keep_its_work_alive(pods: Pods) -> None:
    start(pods, "p", "echo $$; trap '' TERM; while :; do sleep 0.02; done")
    (work,) = pids(pods, "p", 1)
    os.kill(supervisor(pods, "p"), signal.SIGSTOP)
    pods.terminate("p", 0)
    time.sleep(0.2)
    assert not gone(work)
    until(lambda: pods.terminate("p") is None)
    assert gone(work)
    assert end_of(pods, "p").code == 137


def test_a_pod_that_is_ended_before_it_starts_never_runs(pods: Pods) -> None:
    pods.prepare(spec(pods, "p", "/bin/sh", "-c", "echo ran"))
    assert pods.observe("p") == NotStarted()
    assert pods.terminate("p") is None
    assert (end_of(pods, "p").code, end_of(pods, "p").how) == (143, How.ENDED)
    pods.launch("p")
    until(lambda: not pods._own_child("p"))
    assert not pods.log_of("p").exists()

    pods.prepare(spec(pods, "r", "/bin/sh", "-c", "echo ran"))
    pods._deadline("r", 100)  # the daemon is killed in the middle of `terminate`
    pods.launch("r")
    assert end_of(pods, "r").code == 143
    assert not pods.log_of("r").exists()

    for number in range(12):  # and while its supervisor begins: either it never ran, or it was ended
        start(pods, f"q{number}", "sleep 300")
        time.sleep(number * 0.004)
        until(lambda number=number: pods.terminate(f"q{number}", 100) is None)  # type: ignore[misc]  # as above
        assert end_of(pods, f"q{number}").code == 143


def test_a_supervisor_that_cannot_begin_says_why(pods: Pods) -> None:
    pods.prepare(spec(pods, "p", "true"))
    (pods.root / "pods" / "p" / shim.SPEC).write_text('{"id": "p"}')
    pods.launch("p")
    until(lambda: not pods._own_child("p"))
    seen = pods.observe("p")
    assert isinstance(seen, NotStarted)
    assert seen.error == "KeyError: 'log'"
    pods.forget("p")


def test_what_was_prepared_first_holds_and_the_log_stays_ours(pods: Pods, tmp_path: Path) -> None:
    first = pods.prepare(spec(pods, "p", "true"))
    assert pods.prepare(spec(pods, "p", "false")) == first == pods.spec_of("p")
    for wrong in ({"log": str(tmp_path / "p.log")}, {"id": "../p"}, {"id": ""}, {"command": ()}):
        with pytest.raises(ValueError, match=r"log|id"):
            pods.prepare(spec(pods, **{"name": "q", **wrong}))  # type: ignore[arg-type]  # the wrong ones are the point
    assert pods.known() == ["p"]


def test_a_forgotten_pod_leaves_its_log_and_no_zombie(pods: Pods) -> None:
    start(pods, "p", "echo kept; sleep 300")
    until(lambda: pods.log_of("p").exists() and said(pods, "p"))
    with pytest.raises(ValueError, match="running"):
        pods.forget("p")
    child = pods._children["p"]
    pods.terminate("p", 0)
    end_of(pods, "p")
    pods.forget("p")
    assert (pods.known(), said(pods, "p")) == ([], "kept\n")
    until(lambda: pods.observe("p") == NotStarted() and shim.look(child) is None)


@AS_ROOT
def test_work_runs_as_its_user_with_nothing_of_root_left(pods: Pods) -> None:
    user = msgspec.to_builtins(user_of(NOBODY))
    start(pods, "p", "id -u; id -g; id -G; umask; cat $FAIRLEASE_POD_DIR/pod.json || echo denied", user=user)
    end_of(pods, "p")
    lines = said(pods, "p").splitlines()
    assert lines[:4] == ["65534", "65534", "65534", "0022"]
    assert lines[-1] == "denied"
    assert pods.log_of("p").stat().st_uid == NOBODY


@AS_ROOT
def test_work_of_a_user_cannot_touch_its_supervisor_or_others(pods: Pods) -> None:
    start(pods, "other", "echo $$; sleep 300")
    (other,) = pids(pods, "other", 1)
    kill = f"for pid in $PPID {other}; do kill -9 $pid || echo refused; done"
    script = f"{kill}; (echo -999 > /proc/self/oom_score_adj) || echo refused"
    start(pods, "p", script, user=msgspec.to_builtins(user_of(NOBODY)))
    assert end_of(pods, "p").how is How.EXITED
    assert said(pods, "p").split().count("refused") == 3
    assert isinstance(pods.observe("other"), Running)


@AS_ROOT
def test_a_killed_supervisor_takes_another_users_work_with_it(pods: Pods) -> None:
    start(
        pods,
        "p",
        "echo $$; (setsid sh -c 'echo $$; exec sleep 300' &); sleep 300",
        user=msgspec.to_builtins(user_of(NOBODY)),
    )
    work, orphan = pids(pods, "p", 2)
    os.kill(supervisor(pods, "p"), signal.SIGKILL)
    until(lambda: gone(work))
    until(lambda: pods.sweep("p") == 0)
    assert gone(orphan)
