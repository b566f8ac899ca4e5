"""Daemons and supervisors that die at any instant: the work of a pod runs once, and whoever comes next knows how it ended."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
from tests.local.podstage import PATIENCE_S, end_of, said, spec, until

from fairlease.local.processes.pods import Exited, Lost, Observation, Pods, PodSpec, Running

LAUNCHER = """
import sys
from pathlib import Path
import msgspec
from fairlease.local.processes.pods import Pods, PodSpec
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
        if not frame.f_code.co_filename.endswith(("local/processes/pods.py", "runtime/processes/shim.py")):
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
from fairlease.local.processes.pods import Pods, PodSpec
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
