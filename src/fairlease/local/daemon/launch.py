"""Up and down: how the daemon comes to life, in the background or not, once for each home.

The file that holds the daemon's pid is locked for as long as it lives; the kernel frees it whatever kills the daemon. Who starts
one in the background waits at a pipe until the socket answers, or learns from it why it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from fairlease.ledger.store.protocol import Conflict
from fairlease.ledger.store.sqlite_file import CannotOpen, Damaged, LedgerLost
from fairlease.local.daemon.config import Settings
from fairlease.local.daemon.daemon import serve
from fairlease.local.daemon.gpus import discover
from fairlease.local.daemon.home import check_traces, set_aside
from fairlease.local.daemon.machine import Hardware, hardware_of
from fairlease.local.socket.protocol import EXIT_REFUSED, CallFailed, Client
from fairlease.runtime.log import json_lines

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

DOWN_S = 60.0
STDERR = 2
RESTORE = (
    "put the ledger back as it was, or a backup in its place and start with --restored;"
    " --new-ledger begins another one, and ends all work that runs here"
)
_ORDERLY = 0


class NotUp(Exception):  # noqa: N818 - it says what happened
    """The daemon could not be started; the exit code is for the command that tried."""

    def __init__(self, message: str, code: int = EXIT_REFUSED, remedy: str = "") -> None:
        super().__init__(message)
        self.exit = code
        self.remedy = remedy


class _Taken(NotUp):
    """Another daemon lives in the home: its log is not ours to write into."""


def up(settings: Settings, *, foreground: bool = False) -> int | None:
    """Start the daemon. In the background: gives its pid once the socket answers. In the foreground: returns when it stopped.

    Raises `NotUp` where it cannot be started, and says why.
    """
    prepare_home(settings.home)
    if foreground:
        _be_daemon(settings, lambda _: None, to_stderr=True)
        return None
    receive, send = os.pipe()
    if (child := os.fork()) == 0:
        _detach(settings, receive, send)
    os.close(send)
    os.waitpid(child, 0)
    with open(receive, "rb") as pipe:  # noqa: PTH123 - a descriptor
        told = pipe.read()
    if not told:
        raise NotUp(f"the daemon died while it started; {settings.log} may say why")
    answer = json.loads(told)
    if "error" in answer:
        raise NotUp(answer["error"], answer["exit"], answer.get("remedy", ""))
    for warning in answer["warnings"]:
        sys.stderr.write(f"fairlease: {warning}\n")
    return int(answer["pid"])


def down(home: Path, *, end: bool = False, patience_s: float = DOWN_S) -> int:
    """Stop the daemon and wait until it is gone; gives the pid that it had. Raises `CallFailed`, or `NotUp` if it does not go."""
    client = Client(home / "fairlease.sock")
    pid = int(client.call("stop", end=end)["pid"])
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if holder(home) is None:
            return pid
        time.sleep(0.02)
    raise NotUp(f"the daemon (process {pid}) was told to stop and has not gone after {patience_s:g} s")


def holder(home: Path) -> int | None:
    """The pid of the daemon that lives in a home; None where none does."""
    try:
        with (home / "fairlease.pid").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
    except (FileNotFoundError, PermissionError, ValueError):
        return None
    return None


def prepare_home(home: Path) -> None:
    """A place that is the daemon's own. Others may pass through it where it is root's: to the socket and to their own logs."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o711 if os.geteuid() == 0 else 0o700)
    except OSError as error:
        raise NotUp(f"{home} cannot be the daemon's home: {error.strerror}") from error


# --- in the background -------------------------------------------------------------------------------------------------


def _detach(settings: Settings, receive: int, send: int) -> NoReturn:
    """Leave the terminal, the session and the parent behind."""
    code, parent = EXIT_REFUSED, _Parent(send)
    try:
        os.close(receive)
        os.setsid()
        if os.fork():
            os._exit(_ORDERLY)
        os.chdir("/")
        _close_all_but(send)
        log = os.open(settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for source, target in ((null, 0), (log, 1), (log, STDERR)):
            os.dup2(source, target)
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - a descriptor, for life
        sys.stdout = sys.stderr = open(STDERR, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - the same
        _be_daemon(settings, lambda warnings: parent.tell(pid=os.getpid(), warnings=warnings), to_stderr=False)
        code = _ORDERLY
    except NotUp as error:
        parent.tell(error=str(error), exit=error.exit, remedy=error.remedy)
        if not isinstance(error, _Taken):
            structlog.get_logger().error("not up", error=str(error))
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent's code must not go on in this process
        parent.tell(error=f"the daemon failed: {error!r}; {settings.log} may say more", exit=EXIT_REFUSED)
        structlog.get_logger().exception("the daemon failed")
    os._exit(code)


def _close_all_but(kept: int) -> None:
    """Let go of what the caller left open: a daemon that held a script's lock or pipe would hold it for ever."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not files
        if int(name) > STDERR and int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


class _Parent:
    """Who waits at the pipe. It is told once; afterwards the descriptor's number may be another's."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def tell(self, **told: object) -> None:
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            with contextlib.suppress(OSError):  # it went
                os.write(pipe, json.dumps(told).encode())
            os.close(pipe)


# --- being the daemon --------------------------------------------------------------------------------------------------


def _be_daemon(settings: Settings, ready: Callable[[list[str]], None], *, to_stderr: bool) -> None:
    os.umask(0o077)
    lock = _lock(settings.home)
    try:
        log = _logger(settings, to_stderr=to_stderr)
        _check_ledger(settings)
        hardware = _hardware(settings)
        for problem in hardware.problems:
            log.warning("a GPU cannot be used", problem=problem)
        asyncio.run(serve(settings, hardware, log, ready))
    except (CannotOpen, Conflict, OSError, sqlite3.Error) as error:
        raise NotUp(str(error), remedy=RESTORE if isinstance(error, LedgerLost | Damaged) else "") from error
    finally:
        os.close(lock)


def _check_ledger(settings: Settings) -> None:
    """Refuse a home without its ledger, unless a new one is asked for. No process has been looked at so far."""
    if not settings.new_ledger:
        check_traces(settings)
        return
    try:
        set_aside(settings)
    except ValueError as error:
        raise NotUp(str(error), remedy="leave out --new-ledger") from None


def _hardware(settings: Settings) -> Hardware:
    hardware = hardware_of(settings, discover())
    if not hardware.nodes and not settings.ledger.exists():
        raise NotUp("no GPUs were found; declare them with --gpus N, or as nodes in the configuration")
    return hardware


def _lock(home: Path) -> int:
    """Be the only daemon of a home. The file stays when we go: deleting it would let two lock two files of one name."""
    try:
        file = os.open(home / "fairlease.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise NotUp(f"{home} cannot be the daemon's home: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(file)
        raise _Taken(f"a daemon runs in {home} already (process {pid}); `fairlease down` stops it") from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)
    os.fchmod(file, 0o644)
    return file


def _logger(settings: Settings, *, to_stderr: bool) -> FilteringBoundLogger:
    """JSON lines, one for each decision and event. SIGHUP opens the file anew, so that it can be rotated."""
    target = _Target(None if to_stderr else settings.log)
    with contextlib.suppress(ValueError):  # only the main thread hears signals
        signal.signal(signal.SIGHUP, lambda *_: target.reopen())
    return json_lines(target)  # type: ignore[arg-type]  # it writes and flushes


class _Target:
    """Where lines go. A disk that is full must not keep the daemon from deciding: then a line is lost."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: Any = sys.stderr
        self.reopen()

    def reopen(self) -> None:
        if self._path is not None:
            self._file = self._path.open("a", encoding="utf-8", buffering=1)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


__all__ = ["CallFailed", "NotUp", "down", "holder", "prepare_home", "up"]
