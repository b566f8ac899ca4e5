"""One process of a control plane: started, frozen, killed and stopped by its pid, with its log in a file."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class Member:
    """A process that may be started again after its end. Tied ones die with the process that started them."""

    def __init__(self, name: str, argv: Sequence[str | Path], folder: Path, *, tied: bool = True) -> None:
        self.name = name
        self.argv = [str(each) for each in argv]
        self.log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._tied = tied
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id; it must have been started."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs (a frozen one does)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; its output is added to the log."""
        assert not self.alive, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent if self._tied else None,  # noqa: PLW1509 - one system call, no lock in it
            )
        self._pid_file.write_text(str(self._process.pid))

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def freeze(self) -> None:
        """Stop its time: connections stay open, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, bound_s: float = STOP_SECONDS) -> None:
        """End it politely, and within the bound in any case."""
        if self._process is not None and self.alive:
            self._process.terminate()
            self.thaw()
            try:
                self._process.wait(bound_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


def stop_by_pid(pid_file: Path, mark: str, bound_s: float = STOP_SECONDS) -> bool:
    """End a process that another one started; only where its command line still holds `mark`. Whether it ran."""
    try:
        pid = int(pid_file.read_text())
        ours = mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        ours, pid = False, 0
    if ours:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + bound_s
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    pid_file.unlink(missing_ok=True)
    return ours


def _die_with_parent() -> None:
    """A test session that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
