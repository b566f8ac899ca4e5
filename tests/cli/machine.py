"""A machine of its own for a test of the command line: real daemon, real processes, real ledger."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fairlease.cli.main import cli

BUDGET = """apiVersion: rq.davidlangworthy.io/v1
kind: Budget
metadata: {name: team-a}
spec:
  owner: org:team-a
  envelopes: [{name: west, flavor: H100-80GB, selector: {region: "*"}, concurrency: 6, maxGPUHours: 100}]
"""
RUN = """apiVersion: rq.davidlangworthy.io/v1
kind: Run
metadata: {{name: {name}}}
spec:
  owner: org:team-a
  resources: {{gpuType: H100-80GB, totalGPUs: {gpus}}}
  runtime: {{maxDuration: 1h}}
  command: [sh, -c, "{script}"]
"""


class Machine:
    """A daemon of its own, and its user."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = os.environ | {"FAIRLEASE_HOME": str(home), "NO_COLOR": "1"}
        self.env.pop("FAIRLEASE_SOCKET", None)

    def do(self, *args: str, code: int = 0, stdin: str = "") -> str:
        done = self.popen(*args)
        out, err = done.communicate(stdin, timeout=60)
        assert done.returncode == code, f"{args}: {done.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return out if code in (0, 1) else err

    def inside(self, *args: str) -> str:
        """The same without a process of its own, where the question is only how an answer looks."""
        result = CliRunner().invoke(cli, args, env=self.env, prog_name="fairlease")
        assert result.exit_code == 0, f"{args}: {result.output}"
        return result.stdout

    def popen(self, *args: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "fairlease", *args]
        return subprocess.Popen(command, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def ask(self, *args: str, code: int = 0) -> Any:  # noqa: ANN401 - whatever JSON holds
        return json.loads(self.do(*args, "-o", "json", code=code))

    def runs(self, name: str) -> None:
        """Wait until the processes of a run were seen to run."""
        end = time.monotonic() + 30
        while self.ask("show", name)["status"]["phase"] != "Running":
            assert time.monotonic() < end, f"{name} never runs"
            time.sleep(0.05)

    def submit(self, name: str, gpus: int, script: str) -> str:
        return self.do("submit", "-f", "-", stdin=RUN.format(name=name, gpus=gpus, script=script))
