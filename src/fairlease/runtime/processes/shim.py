"""The supervisor of one pod: a process of its own, so that the work outlives the daemon and never its supervisor.

`python -I -S shim.py POD_DIR` runs what POD_DIR/pod.json says, once, and writes down how it ended. It knows nothing of
the daemon: no pipe, no parent, no socket. All it says is a file, all it hears is SIGTERM and the file `ending`:

    pod.json  what to run (Pods.prepare)            started  the work may have been executed: it never will be again
    lock      held for as long as the shim lives    alive    who the shim and the work are (pid, start time, boot)
    ending    when the grace is over (terminate)    exit     how it ended; all of its processes are gone

The order lock → started → exec → exit makes a doubled launch harmless and a lost shim visible: `started` without `exit`
under a free lock means that the shim was killed, and no later shim runs the work a second time.

The lock is a POSIX record lock, not flock: the kernel names its holder to whoever asks without taking it (`F_GETLK`).
So an observer can neither mistake a reused pid for the shim nor get in the way of a shim that is just starting; and a
fork does not inherit it. Only the standard library, and little of it (no pathlib, no typing): it starts in some 30 ms.
"""
# ruff: noqa: PTH104, PTH110, PTH123, PTH208 - importing pathlib would cost a fifth of the start

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import sys
import time
import warnings  # noqa: F401 - os.execvpe wants it, when the user may no longer be able to read Python's library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SPEC, LOCK, STARTED, ALIVE, ENDING, EXIT = "pod.json", "lock", "started", "alive", "ending", "exit"
MARKERS = ("FAIRLEASE_POD", "FAIRLEASE_POD_DIR")
"""What every process of a pod carries in its environment; the directory tells two daemons' pods of one name apart."""

NOTICE_FILE = "FAIRLEASE_NOTICE_FILE"
"""Where a process of a pod finds, while a cut of its run comes, when that will be."""

NOT_EXECUTABLE, NOT_FOUND, SIGNALED = 126, 127, 128
HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
RESERVED_BYTES = 1024
RECORD_TRIES = 60
NEVER_BEGAN = "ended before it began"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def sync_dir(path: str) -> None:
    """Make the names in a directory as durable as the files behind them."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(pod_dir: str, name: str, record: dict[str, Any]) -> None:
    """Write a record so that it is there whole or not at all, also after a power cut."""
    new = f"{pod_dir}/{name}.new"
    _write(new, json.dumps(record).encode())
    os.rename(new, f"{pod_dir}/{name}")
    sync_dir(pod_dir)


def _write(path: str, data: bytes) -> None:
    """Write over what was reserved, without giving its blocks back first. JSON does not mind the blanks."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        padded = data.ljust(RESERVED_BYTES)
        if os.pwrite(fd, padded, 0) < len(padded):
            raise OSError(errno.ENOSPC, "only a part could be written", path)
        os.ftruncate(fd, len(padded))
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(pod_dir: str, name: str) -> dict[str, Any] | None:
    """A record, or None where there is none yet."""
    try:
        with open(f"{pod_dir}/{name}", "rb") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return None


class Process:
    """What /proc says of one process. Pid and start time together are never used twice within one boot."""

    __slots__ = ("ended", "parent", "pid", "session", "start")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid, self.parent, self.session, self.start = pid, int(fields[1]), int(fields[3]), int(fields[19])
        # A zombie; but one with threads is a living process whose first thread has gone.
        self.ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def boot_id() -> str:
    """Which boot this is: after another one no process of ours can be left."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def look(pid: int) -> Process | None:
    """The process with this number now. Its name may hold blanks and parentheses: we count from the last one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Process(pid, file.read().rpartition(b")")[2].split())
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last where others' processes are hidden
        return None


def processes() -> list[Process]:
    """Every process that can be seen."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def descendants(root: int) -> list[Process]:
    """The living processes below one, however deep."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    parents = [root]
    while parents:
        below = children.get(parents.pop(), [])
        found += [process for process in below if not process.ended]
        parents += [process.pid for process in below]
    return found


def strike(target: Process, number: int) -> None:
    """Send a signal to exactly this process, never to a later one of its number: first the handle, then the look."""
    handle = pidfd(target.pid)
    now = look(target.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if now is not None and now.start == target.start:
            os.kill(target.pid, number) if handle is None else signal.pidfd_send_signal(handle, number)
    if handle is not None:
        os.close(handle)


def catches(process: Process, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{process.pid}/status", "rb") as file:
            caught = next((line for line in file if line.startswith(b"SigCgt:")), b"SigCgt: 0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def pidfd(pid: int) -> int | None:
    """A handle on a process; None where it is gone, or where the kernel (before 5.3) or this Python has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def prctl(option: int, value: int) -> bool:
    """Ask the kernel; False where it cannot, or this Python (built without libffi) cannot ask."""
    try:
        import ctypes  # noqa: PLC0415 - not every Python has it

        return bool(ctypes.CDLL(None).prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def spare_from_oom() -> str | None:
    """When memory runs out the work must go, not its supervisor. Gives what the work has to be set back to."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            before = file.read().strip()
            file.write("-1000")
    except OSError:
        return None  # not root: then the work, being larger, is still the likelier victim
    return before


class CannotRunError(Exception):
    """Why the work could not be executed, and the exit code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def work(spec: dict[str, Any], shim: int, log: int, oom: str | None, failure: int) -> NoReturn:
    """In the child: become the user's command. Comes back in no case; a failure is told in the log and to the shim."""
    code, message = NOT_EXECUTABLE, ""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError):  # libc keeps two for itself
                signal.signal(number, signal.SIG_DFL)
        if oom is not None:
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(oom)
        become(spec.get("user"))
        # Only now: a change of user clears it. A shim that died before cannot send it, hence the second look.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(SIGNALED + signal.SIGKILL)
        execute(spec)
    except CannotRunError as error:
        code, message = error.code, str(error)
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent's code must not go on in this process
        message = f"cannot run {spec.get('command')!r}: {error}"
    with contextlib.suppress(OSError):
        os.write(2, f"fairlease: {message}\n".encode(errors="replace"))
        os.write(failure, message[:400].encode(errors="replace"))
    os._exit(code)


def become(user: dict[str, Any] | None) -> None:
    """Take on the user's identity, groups first: afterwards there is no right left to do so."""
    if user is None or user["uid"] == os.geteuid():
        return
    try:
        os.initgroups(user["name"], user["gid"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    except OSError as error:
        raise CannotRunError(NOT_EXECUTABLE, f"cannot become user {user['name']}: {error.strerror}") from error


def execute(spec: dict[str, Any]) -> NoReturn:
    """Go to the working directory and exec; signals are let in last, so that a SIGTERM since the fork is not lost."""
    workdir, command = spec["workdir"], spec["command"]
    os.umask(0o022)
    try:
        os.chdir(workdir)
    except OSError as error:
        raise CannotRunError(NOT_EXECUTABLE, f"cannot enter {workdir}: {error.strerror}") from error
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(command[0], command, spec["env"])  # noqa: S606 - running the user's command is what we are for
    except OSError as error:
        code = NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else NOT_EXECUTABLE
        raise CannotRunError(code, f"cannot run {command[0]}: {error.strerror}") from error


class Supervisor:
    """Waits for the work, ends it when asked to, and leaves no process of it behind."""

    def __init__(self, pod_dir: str, spec: dict[str, Any]) -> None:
        self.pod_dir = pod_dir
        self.grace_s = spec["graceMs"] / 1000
        self.pid = 0
        self.status: int | None = None
        self.deadline: float | None = None  # when the grace is over; None while nobody has asked for the end
        self.pause = 0.0
        self.failure, self._failed = os.pipe()

    def start(self, spec: dict[str, Any], log: int, oom: str | None) -> None:
        """Fork the work."""
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            work(spec, shim, log, oom, self._failed)
        os.close(self._failed)
        os.close(log)

    def watch(self) -> None:
        """Until no process of the pod is left. A blocked signal stays pending: none is missed between two steps."""
        while self.reap():
            wait_s = self.press()
            heard = signal.sigwaitinfo(HEARD) if wait_s is None else signal.sigtimedwait(HEARD, wait_s)
            asked = heard is not None and heard.si_signo != signal.SIGCHLD
            if asked and (self.status is None or self.deadline is not None):  # what ended by itself was not ended
                self.end()

    def reap(self) -> bool:
        """Take leave of the dead, orphans among them (we are their reaper); say whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status

    def end(self) -> None:
        """Begin the end, or bring it forward. The work hears SIGTERM once: many take a second one for `at once`."""
        asked = read_json(self.pod_dir, ENDING)
        deadline = time.monotonic() + self.grace_s if asked is None else asked["deadlineMs"] / 1000
        if self.deadline is None:
            for process in descendants(os.getpid()):
                strike(process, signal.SIGTERM)
                strike(process, signal.SIGCONT)  # a stopped process hears nothing else
        self.deadline = min(deadline, self.deadline or deadline)

    def press(self) -> float | None:
        """Kill what has no time left; say how long to wait for news.

        Who was asked to end has its whole grace, also when the work's first process went at once: a shell dies of the
        SIGTERM while the trainer below it still writes its checkpoint. What a work that ended by itself left has none.
        """
        if self.deadline is None and self.status is None:
            return None
        if self.deadline is not None and (left := self.deadline - time.monotonic()) > 0:
            return left
        struck: set[int] = set()
        # Again at once while new ones turn up: what forks as it is killed must not win by the length of a pause.
        while fresh := [process for process in descendants(os.getpid()) if process.pid not in struck]:
            for process in fresh:
                strike(process, signal.SIGKILL)
                struck.add(process.pid)
        self.pause = min(0.5, self.pause * 2 or 0.01)
        return self.pause

    def verdict(self) -> dict[str, Any]:
        """How it ended."""
        assert self.status is not None, "the work was reaped before its last process"
        code = os.waitstatus_to_exitcode(self.status)
        if message := os.read(self.failure, RESERVED_BYTES).decode(errors="replace"):
            return ended(code, "NotExecuted", message)
        return ended(code, "Ended" if self.deadline is not None else "Signaled" if code < 0 else "Exited")


def ended(code: int, how: str, message: str = "") -> dict[str, Any]:
    """The record `exit` (`pods.Exited`); a negative code is the signal that it died of."""
    died = {"code": SIGNALED - code, "signal": -code} if code < 0 else {"code": code}
    return {**died, "atMs": time.time_ns() // 1_000_000, "how": how, "message": message}


def record_exit(pod_dir: str, record: dict[str, Any]) -> None:
    """Say how it ended, and keep trying: on a disk that is full after all, somebody may make room in a minute."""
    for left in reversed(range(RECORD_TRIES)):
        try:
            publish(pod_dir, EXIT, record)
        except OSError:
            if not left or not os.path.exists(pod_dir):
                raise
            time.sleep(1)
        else:
            return


def open_log(spec: dict[str, Any]) -> int:
    """The work's output, the user's own. Its directory is the daemon's (Pods.prepare), so no link misleads us."""
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    user = spec.get("user")
    if user is not None and user["uid"] != os.geteuid() and os.geteuid() == 0:
        os.fchown(log, user["uid"], user["gid"])
    return log


def who(pid: int) -> dict[str, int]:
    """The identity of a process of ours that is not reaped yet (`pods.Running`)."""
    process = look(pid)
    assert process is not None, "its number is kept for us"
    return {"pid": process.pid, "startTime": process.start}


def supervise(pod_dir: str) -> None:
    """All that follows once the lock is ours. Up to `started` a failure costs nothing: launch it again."""
    spec = read_json(pod_dir, SPEC)
    assert spec is not None, "a pod is prepared before it is launched"
    if os.path.exists(f"{pod_dir}/{EXIT}") or os.path.exists(f"{pod_dir}/{STARTED}"):
        return  # over, or lost with an earlier shim: never a second time
    for name in (ALIVE, EXIT):  # take the room before the work begins: a disk that it fills must not hide its end
        _write(f"{pod_dir}/{name}.new", b"")
    if os.path.exists(f"{pod_dir}/{ENDING}"):
        record_exit(pod_dir, ended(-signal.SIGTERM, "Ended", NEVER_BEGAN))
        return
    log = open_log(spec)
    reaper = prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(pod_dir, spec)
    boot = boot_id()
    with open(f"{pod_dir}/{STARTED}", "x", encoding="ascii") as started:
        started.write(boot)
        started.flush()
        os.fsync(started)
    sync_dir(pod_dir)
    try:
        supervisor.start(spec, log, spare_from_oom())
    except OSError as error:
        record_exit(pod_dir, ended(NOT_EXECUTABLE, "NotExecuted", f"cannot fork: {error.strerror}"))
        return
    with contextlib.suppress(OSError):  # worth knowing, but no reason to let the work go unsupervised
        publish(pod_dir, ALIVE, {"boot": boot, **who(supervisor.pid), "shim": who(os.getpid())})
    supervisor.watch()
    record_exit(pod_dir, {**supervisor.verdict(), "tidy": reaper})


def main(pod_dir: str) -> None:
    """Take the lock and supervise; leave at once where another shim has it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, children vanish without their status
    os.umask(0o077)
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):  # not up to the limit, which can be a thousand million
        if int(name) > 2:  # noqa: PLR2004 - after the standard three
            with contextlib.suppress(OSError):
                os.close(int(name))
    lock = os.open(f"{pod_dir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return
    supervise(pod_dir)


if __name__ == "__main__":
    main(sys.argv[1])
