"""A daemon for tests: a real process on a home of its own, ended by its pid, with no process of it left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fairlease.local.socket.protocol import CallFailed, Client
from fairlease.model.objects import API_VERSION

PATIENCE_S = 20.0
OWNER = "org:ai:rai"
T = TypeVar("T")

MAIN = """
import json, os, signal, sys
def die_at(number):
    count, ours = 0, ("/local/", "/fairlease/scheduler.py", "/ledger/sqlite")
    def trace(frame, event, argument):
        nonlocal count
        if not any(part in frame.f_code.co_filename for part in ours):
            return None
        if event == "line":
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
from fairlease.local.daemon.config import load_settings
from fairlease.local.daemon.launch import up
told = json.loads(sys.argv[1])
doom, backoff = told.pop("doom", 0), told.pop("backoff", None)
if doom:
    die_at(doom)
settings = load_settings(told.pop("config", None), **told)
if backoff is not None:
    from msgspec.structs import replace
    settings = replace(settings, machine=replace(settings.machine, retry_backoff=backoff))
up(settings, foreground=True)
"""


def run_object(name: str, gpus: int, script: str, **spec: object) -> dict[str, Any]:
    """A Run that executes a shell script in each pod; by default one pod."""
    owner = spec.pop("owner", OWNER)
    resources = {"gpuType": "H100", "totalGPUs": gpus}
    body = {"owner": owner, "resources": resources, "gpusPerPod": gpus, "command": ["/bin/sh", "-c", script], **spec}
    return {"apiVersion": API_VERSION, "kind": "Run", "metadata": {"name": name}, "spec": body}


def budget_object(name: str, owner: str = OWNER, concurrency: int = 64, **envelope: object) -> dict[str, Any]:
    main = {"name": "main", "flavor": "H100", "selector": {"region": "local"}, "concurrency": concurrency, **envelope}
    spec = {"owner": owner, "envelopes": [main]}
    return {"apiVersion": API_VERSION, "kind": "Budget", "metadata": {"name": name}, "spec": spec}


def placed(status: dict[str, Any]) -> bool:
    """Whether a run has its GPUs, be it that its processes still start."""
    return any(each["type"] == "Placed" and each["status"] == "True" for each in status["conditions"])


def until(true: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What a question gives once it gives something; fails after a while."""
    end = time.monotonic() + patience_s
    while not (found := true()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
    return found


class Stage:
    """One home, and the daemon that lives in it now and then."""

    def __init__(self, home: Path, **told: object) -> None:
        self.home = home
        """`backoff`: the first pause after a failure in ms (None: as configured)."""
        usual = {"home": str(home), "gpus": 8, "flavor": "H100", "metrics_port": 0, "backoff": 0}
        self.told: dict[str, Any] = {**usual, **told}
        self.client = Client(home / "fairlease.sock", timeout_s=PATIENCE_S)
        self.process: subprocess.Popen[bytes] | None = None
        self.call = self.client.call

    def start(self) -> Stage:
        """Start it and wait until it answers."""
        self.launch()
        until(self.answers)
        return self

    def launch(self, doom: int = 0) -> None:
        """Start it; `doom`: it dies as by SIGKILL before that many lines of our code were executed."""
        with (self.home.parent / f"{self.home.name}.err").open("ab") as errors:
            command = [sys.executable, "-c", MAIN, json.dumps({**self.told, "doom": doom})]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.home.parent / f"{self.home.name}.err").read_text()[-2000:]
        try:
            self.call("status")
        except CallFailed:
            return False
        return True

    def kill(self) -> None:
        """As by the power cut."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As by the service manager."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0

    def phase(self, run: str) -> str:
        return str(self.call("show", run=run)["status"]["phase"])

    def runs(self, run: str) -> None:
        """Wait until its processes were seen to run."""
        until(lambda: self.phase(run) == "Running")

    def ends(self, run: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The status of a run once it is over."""
        until(lambda: self.phase(run) in ("Completed", "Failed"), patience_s)
        status: dict[str, Any] = self.call("show", run=run)["status"]
        return status

    def output(self, run: str, rank: int = 0, attempt: int = 1) -> str:
        files = self.call("logs", run=run, rank=rank, attempt=attempt)["files"]
        path = Path(files[-1]["path"])
        return path.read_text() if path.exists() else ""

    def audited(self) -> None:
        report = self.call("audit")
        assert report["ok"], report["findings"]

    def processes(self) -> list[int]:
        """Every living process of a pod of this home."""
        mark = f"FAIRLEASE_POD_DIR={self.home}/".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = (folder / "environ").read_bytes()
                except OSError:
                    continue
                if any(each.startswith(mark) for each in environment.split(b"\0")):
                    found.append(int(folder.name))
        return found

    def supervisors(self) -> list[int]:
        """Every living supervisor of a pod of this home; its child is none, which looks like it until it becomes the work."""
        found: dict[int, int] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if any(word.startswith(f"{self.home}/pods/".encode()) for word in words):
                    found[int(folder.name)] = parent
        return [each for each, parent in found.items() if parent not in found]

    def clear(self) -> None:
        """End the daemon, then whatever it left, each by its pid."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in [*self.supervisors(), *self.processes()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@contextmanager
def daemon(home: Path, **told: object) -> Iterator[Stage]:
    """A daemon that is up, with a Budget that everybody of the owner spends."""
    stage = Stage(home, **told)
    try:
        stage.start()
        stage.call("budgets.apply", objects=[budget_object("rai")])
        yield stage
    finally:
        stage.clear()
