"""Pods as real processes: each test starts some, looks at them from outside, and ends them by pid."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlease.local.environment import user_of
from fairlease.local.pods import MARGIN_MS, Exited, How, Loss, Lost, NotStarted, Observation, Pods, PodSpec, Running
from fairlease.theatre import shim

NOBODY = 65534
PATIENCE_S = 15.0
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 and "CI" not in os.environ, reason="only root can start work as another user"
)

LAUNCHER = """
import sys
from pathlib import Path
import msgspec
from fairlease.local.pods import Pods, PodSpec
pods = Pods(Path(sys.argv[1]), sys.executable)
spec = msgspec.json.decode(sys.argv[2], type=PodSpec)
print("ready", flush=True)
pods.prepare(spec)
pods.launch(spec.id)
sys.stdin.read()
"""
"""Stands for the daemon: it prepares and launches one pod, and is there to be killed."""

TRACED = """
import os, signal, sys
def die_at(line_number):
    count, me = 0, os.getpid()
    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_code.co_filename.endswith(("local/pods.py", "theatre/shim.py")):
            return None
        if event == "line" and os.getpid() == me:
            count += 1
            if count == line_number:
                os.kill(me, signal.SIGKILL)
        return trace
    sys.settrace(trace)
"""
"""Kills the process that calls it before a given line of our code, counted as they are executed."""

DOOMED_LAUNCHES = f"""{TRACED}
from pathlib import Path
import msgspec
from fairlease.local.pods import Pods, PodSpec
pods = Pods(Path(sys.argv[1]), sys.executable)
for number, line in enumerate(sys.stdin):
    child = os.fork()
    if child == 0:
        die_at(2 * number + 1)
        spec = msgspec.json.decode(line, type=PodSpec)
        pods.prepare(spec)
        pods.launch(spec.id)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""

DOOMED_SHIM = f"""#!{sys.executable} -IS
{TRACED}
import runpy
sys.argv = sys.argv[3:]
with open(sys.argv[1] + "/die-at") as file:
    die_at(int(file.read()))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Stands for the interpreter, so that the supervisor itself dies at a chosen line."""


UNPRIVILEGED_SHIM = f"""#!{sys.executable} -IS
import runpy, sys
sys.argv, sys.modules["ctypes"] = sys.argv[3:], None
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Stands for an interpreter that cannot ask the kernel for anything, so not for the care of orphans either."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    """Makes the pods of a daemon; afterwards none of their processes is left."""
    made: list[Pods] = []

    def make(folder: str = "state", script: str | None = None) -> Pods:
        interpreter = tmp_path / f"python{len(made)}"
        interpreter.write_text(script or "")
        interpreter.chmod(0o755)
        made.append(Pods(tmp_path / folder, str(interpreter) if script else sys.executable))
        return made[-1]

    yield make
    for pods in made:
        for name in pods.known():
            until(lambda pods=pods, name=name: pods.terminate(name, 0) is None)  # type: ignore[misc]  # mypy: no lambda
            pods.forget(name)


@pytest.fixture
def pods(daemon: Callable[..., Pods]) -> Pods:
    return daemon()


def until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.005)


def spec(pods: Pods, name: str, *command: str, **fields: object) -> PodSpec:
    given: dict[str, object] = {
        "id": name,
        "command": command,
        "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "GREETING": "hello"},
        "log": str(pods.log_of(name)),
        "node": "n0",
        "slots": (0,),
        "workdir": "/",
        "graceMs": 10_000,
    }
    return msgspec.convert({**given, **fields}, PodSpec)


def start(pods: Pods, name: str, script: str, **fields: object) -> None:
    pods.prepare(spec(pods, name, "/bin/sh", "-c", script, **fields))
    pods.launch(name)


def end_of(pods: Pods, name: str) -> Exited:
    until(lambda: isinstance(pods.observe(name), Exited | Lost))
    seen = pods.observe(name)
    assert isinstance(seen, Exited)
    return seen


def said(pods: Pods, name: str) -> str:
    return pods.log_of(name).read_text()


def pids(pods: Pods, name: str, count: int) -> list[int]:
    """The pids that a work has told in its log, once there are so many."""
    until(lambda: pods.log_of(name).exists() and len(said(pods, name).split()) == count)
    return [int(word) for word in said(pods, name).split()]


def gone(pid: int) -> bool:
    process = shim.look(pid)
    return process is None or process.ended


def supervisor(pods: Pods, name: str) -> int:
    until(lambda: isinstance(pods.observe(name), Running))
    return int(json.loads((pods.root / "pods" / name / shim.ALIVE).read_text())["shim"]["pid"])


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


def test_another_daemon_adopts_what_a_killed_one_has_started(pods: Pods) -> None:
    script = "echo began; sleep 0.5; exit 7"
    given = msgspec.json.encode(spec(pods, "p", "/bin/sh", "-c", script)).decode()
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(pods.root), given], stdin=subprocess.PIPE) as daemon:
        until(lambda: isinstance(pods.observe("p"), Running))
        running = pods.observe("p")
        daemon.kill()
    assert pods.known() == ["p"]
    assert pods.observe("p") == running, "the same process, by pid and start time"
    handle = pods.wait_fd("p")
    assert handle is not None
    assert select.select([handle], [], [], 0)[0] == []
    assert select.select([handle], [], [], PATIENCE_S)[0] == [handle]
    os.close(handle)
    assert end_of(pods, "p").code == 7
    assert pods.wait_fd("p") is None
    assert said(pods, "p") == "began\n"


def test_a_doubled_launch_runs_the_work_once(pods: Pods) -> None:
    daemons = [Pods(pods.root, sys.executable) for _ in range(8)]
    pods.prepare(spec(pods, "p", "/bin/sh", "-c", "echo ran; sleep 0.3"))
    for daemon in daemons:
        daemon.launch("p")
        daemon.launch("p")
    assert end_of(pods, "p").code == 0
    for daemon in daemons:
        until(lambda daemon=daemon: daemon._own_child("p") is None)  # type: ignore[misc]  # mypy cannot infer such a lambda
        daemon.launch("p")
    for daemon in daemons:
        until(lambda daemon=daemon: daemon._own_child("p") is None)  # type: ignore[misc]  # mypy cannot infer such a lambda
    assert said(pods, "p") == "ran\n"


def recover(pods: Pods, wanted: PodSpec) -> Observation:
    """What a daemon does with a pod that it finds: prepare and launch again, whatever it sees, and wait."""
    pods.prepare(wanted)
    pods.launch(wanted.id)
    until(lambda: isinstance(pods.observe(wanted.id), Exited | Lost))
    return pods.observe(wanted.id)


def test_a_daemon_killed_at_random_instants_leaves_one_copy_after_recovery(pods: Pods) -> None:
    dice = random.Random(8)
    for number in range(32):
        wanted = spec(pods, f"p{number}", "/bin/sh", "-c", "echo ran; exit 4")
        given = msgspec.json.encode(wanted).decode()
        command = [sys.executable, "-c", LAUNCHER, str(pods.root), given]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
            assert daemon.stdout is not None
            daemon.stdout.readline()
            time.sleep(dice.uniform(0, 0.06))
            daemon.kill()
        seen = recover(pods, wanted)
        assert isinstance(seen, Exited)
        assert (seen.code, said(pods, wanted.id)) == (4, "ran\n")


def test_a_daemon_killed_at_any_line_leaves_one_copy_after_recovery(pods: Pods) -> None:
    killed = 0
    command = [sys.executable, "-W", "ignore", "-c", DOOMED_LAUNCHES, str(pods.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as forge:
        assert forge.stdin is not None
        assert forge.stdout is not None
        for number in range(200):
            wanted = spec(pods, f"p{number}", "/bin/sh", "-c", "echo ran; exit 4")
            forge.stdin.write(msgspec.json.encode(wanted) + b"\n")
            forge.stdin.flush()
            died = forge.stdout.readline().strip() != b"0"
            assert recover(pods, wanted) == end_of(pods, wanted.id)
            assert said(pods, wanted.id) == "ran\n"
            if not died:
                break
            killed += 1
    assert 20 < killed < 200, "every other line was tried, up to the last"


def test_a_supervisor_killed_at_any_line_never_runs_the_work_twice(pods: Pods, daemon: Callable[..., Pods]) -> None:
    doomed = daemon(script=DOOMED_SHIM)
    seen = []
    for line in range(1, 400, 13):
        name = f"p{line}"
        wanted = spec(pods, name, "/bin/sh", "-c", "echo ran; sleep 0.02; exit 4")
        doomed.prepare(wanted)
        (pods.root / "pods" / name / "die-at").write_text(str(line))
        doomed.launch(name)
        until(lambda name=name: doomed._own_child(name) is None)  # type: ignore[misc]  # mypy cannot infer such a lambda
        outcome = recover(pods, wanted)
        ran = pods.log_of(name).exists() and said(pods, name)
        if isinstance(outcome, Exited):
            assert (outcome.code, ran) == (4, "ran\n")
        else:
            until(lambda name=name: pods.sweep(name) == 0)  # type: ignore[misc]  # mypy cannot infer such a lambda
            assert ran in ("", "ran\n", False)
        assert pods._left_behind(name) == []
        seen.append(type(outcome))
    changes = [kind for before, kind in zip([None, *seen], seen, strict=False) if kind is not before]
    assert changes == [Exited, Lost, Exited], "launched again, up to the line where it may have run; then over"


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
