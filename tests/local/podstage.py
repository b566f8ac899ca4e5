"""What tests of pods share: pods that are started, looked at from outside, and waited for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msgspec

from fairlease.local.processes.pods import Exited, Lost, Pods, PodSpec, Running
from fairlease.runtime.processes import shim

PATIENCE_S = 15.0


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
