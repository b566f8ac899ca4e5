"""A command of the operator's, run for a while, with something to read on its standard input.

A process of its own stands between the scheduler and the command, for three reasons: it becomes the run's user first, it ends the
command and all that it started when its time is over, and it does the same when the scheduler dies, so that nothing is left behind.
`python -m fairlease.runtime.processes.hook` reads a line of JSON (command, env, user or null, seconds), then
the command's input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from fairlease.runtime.processes import shim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlease.runtime.processes.login import User

OUT_BYTES = 4_096
LATE = 124
"""Exit code of a command whose time was over, as timeout(1) has it."""
NOT_RUN = 126
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MARGIN_S = 5.0


class Done:
    """How a command ended, and the beginning of what it wrote."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


async def call(
    command: Sequence[str], env: Mapping[str, str], user: User | None, seconds: float, said: bytes = b""
) -> Done:
    """Run a command to its end, or to the end of its time."""
    become = None if user is None else {"uid": user.uid, "gid": user.gid, "name": user.name}
    spec = json.dumps({"command": list(command), "env": dict(env), "user": become, "seconds": seconds})
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "fairlease.runtime.processes.hook"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds + _MARGIN_S):
            out, err = await child.communicate(spec.encode() + b"\n" + said)
    except TimeoutError:
        return Done(LATE, b"", "it did not end")
    finally:
        if child.returncode is None:
            child.terminate()
    lines = err.decode(errors="replace").strip().splitlines()
    return Done(child.returncode or 0, out, lines[-1] if lines else "")


def main(spec: dict[str, Any], said: bytes) -> int:
    """Be what stands between."""
    os.umask(0o022)
    shim.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _stop)
    output = _Output()
    until = time.monotonic() + spec["seconds"]
    try:
        shim.become(spec["user"])
        shim.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # only now: a change of user clears it
        work = subprocess.Popen(
            spec["command"],
            stdin=subprocess.PIPE,
            stdout=output.theirs,
            stderr=subprocess.STDOUT,
            env=spec["env"],
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError, shim.CannotRunError) as error:
        sys.stderr.write(f"{spec['command'][0]} cannot be run: {error}\n")
        return NOT_RUN
    try:
        output.read()
        work.communicate(said, timeout=spec["seconds"])
        output.ended(until)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"it was ended after {spec['seconds']:g} s\n")
        return LATE
    finally:
        _end()
    sys.stdout.buffer.write(output.first)
    if work.returncode:
        last = output.last.decode(errors="replace").strip().splitlines()
        sys.stderr.write(f"exit code {work.returncode}{f': {last[-1]}' if last else ''}\n")
    return work.returncode if work.returncode >= 0 else shim.SIGNALED - work.returncode


class _Output:
    """What a command writes: its beginning and its end are kept, however much there is in between."""

    def __init__(self) -> None:
        self._ours, self.theirs = os.pipe()
        self.first = self.last = b""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def read(self) -> None:
        """The command has its end of the pipe."""
        os.close(self.theirs)
        self._reader.start()

    def ended(self, until: float) -> None:
        """Wait until nobody can write any more: what a command left behind may."""
        self._reader.join(max(0.0, until - time.monotonic()))
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired("", 0)

    def _read(self) -> None:
        while chunk := os.read(self._ours, 1 << 16):
            self.first += chunk[: OUT_BYTES - len(self.first)]
            self.last = (self.last + chunk)[-OUT_BYTES:]


def _end() -> None:
    """End the command and all that it started; what forks meanwhile turns up in the next look."""
    while left := shim.descendants(os.getpid()):
        for process in left:
            shim.strike(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _stop(*_: object) -> None:
    _end()
    os._exit(LATE)


if __name__ == "__main__":
    told = json.loads(sys.stdin.buffer.readline())
    sys.exit(main(told, sys.stdin.buffer.read()))
