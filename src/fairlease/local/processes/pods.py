"""Pods as real processes: what the daemon may ask of them, answered at once, with no memory that matters.

Every pod has a directory and, while it runs, a supervisor (`shim`). All that is true of a pod stands in that directory
and in /proc: the daemon may die at any instruction, and the next one adopts its pods by looking. Nothing here waits.

What the daemon does, and when:

1. `prepare` every pod of a gang, then `launch` each. After a crash do both again: the first `prepare` holds, and a
   doubled `launch` runs the work once.
2. `wait_fd` into the event loop. When it is readable (close it), or where it is None: `observe`, and unless the pod is
   over, `wait_fd` again.
3. To end a pod: `terminate`, again after the milliseconds that it gives (and after a restart), until it gives None.
4. `Lost`, or `Exited` that is not `tidy`: `sweep`, again after some 50 ms, until it gives 0. Then the slots are free.
5. `forget`, once the end is in the ledger. At its start the daemon terminates and forgets what `known` lists and the
   ledger does not.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import shutil
import signal
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from fairlease.local.processes.environment import ID_CHARS_MAX
from fairlease.model.record import Record
from fairlease.runtime.processes import shim
from fairlease.runtime.processes.login import User

MARGIN_MS = 2_000
"""How long after its deadline a supervisor may take to end its pod before we do it for it."""
AGAIN_MS = 100
SWEEP_PASSES = 5

_SHIM_ERRORS = "shim.err"
_MISSING = (FileNotFoundError, NotADirectoryError)
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, pid


class PodSpec(Record, frozen=True, kw_only=True):
    """One rank's process: what to run, as whom. `id` comes from `environment.pod_id`, `log` from `Pods.log_of`.

    Pods of one rank share its log, one after the other: the next is launched only when the last is gone.
    """

    id: str
    command: tuple[str, ...]
    env: dict[str, str]
    log: str
    node: str
    slots: tuple[int, ...]
    workdir: str
    grace_ms: int
    user: User | None = None


class NotStarted(Record, frozen=True, kw_only=True):
    """Its work was not executed: `launch` it. `error`: what made an earlier supervisor fail, so do not hurry."""

    error: str | None = None


class Starting(Record, frozen=True, kw_only=True):
    """It has a supervisor, which has not said yet that the work runs."""


class Running(Record, frozen=True, kw_only=True):
    """The work's first process; pid and start time (clock ticks since boot) name it for ever within this boot."""

    pid: int
    start_time: int


class How(enum.Enum):
    """What brought the end about."""

    EXITED = "Exited"  # the work, by itself
    SIGNALED = "Signaled"  # a signal that its supervisor did not send
    ENDED = "Ended"  # SIGTERM to its supervisor: `terminate`, or the machine going down
    NOT_EXECUTED = "NotExecuted"  # nothing: the command could not be run, as code (126, 127) and message say


class Exited(Record, frozen=True, kw_only=True):
    """It is over. `code` is 128 + signal where the work was killed; `at_ms` is when its last process had gone.

    `tidy` is False where the kernel refused the supervisor the care of orphans: then `sweep`.
    """

    code: int
    at_ms: int
    how: How
    signal: int | None = None
    message: str = ""
    tidy: bool = True


class Loss(enum.Enum):
    """Why nobody knows how a work ended."""

    SUPERVISOR_KILLED = "its supervisor was killed"
    MACHINE_RESTARTED = "the machine was restarted"
    RECORD_GONE = "its folder is gone, and how it ended with it"


class Lost(Record, frozen=True, kw_only=True):
    """The work was, or was about to be, executed; it is dead or an orphan (`sweep`), and never runs again."""

    reason: Loss


class _Ending(Record, frozen=True, kw_only=True):
    boot: str
    deadline_ms: int


Observation = NotStarted | Starting | Running | Exited | Lost
R = TypeVar("R", bound=Record)


class Pods:
    """All pods of one daemon, below one directory that belongs to it alone."""

    def __init__(self, root: Path, python: str) -> None:
        self.root = root.resolve()
        self.python = python
        self._pods, self._logs, self._trash = self.root / "pods", self.root / "logs", self.root / "trash"
        self._notices = self.root / "notices"
        self._boot = shim.boot_id()
        self._children: dict[str, int] = {}  # supervisors that we started and must reap
        self._going: list[int] = []  # those among them whose pod is forgotten
        self._condemned: dict[str, dict[int, shim.Process]] = {}  # what `sweep` killed, until it is gone
        self.root.mkdir(parents=True, exist_ok=True)
        # Environments hold secrets; the way to one's own log is open, a list of everybody's is not.
        folders = (self._pods, 0o700), (self._trash, 0o700), (self._logs, 0o711), (self._notices, 0o711)
        for folder, mode in folders:
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
        for leftover in self._trash.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)

    def known(self) -> list[str]:
        """Every pod that was prepared and not forgotten."""
        return sorted(path.name for path in self._pods.iterdir())

    def log_of(self, log_id: str) -> Path:
        """Where a rank's output goes; it outlives its pods."""
        return self._logs / f"{log_id}.log"

    def spec_of(self, pod_id: str) -> PodSpec | None:
        """What was prepared. Ask it for MASTER_PORT when an attempt's pods are prepared in two goes."""
        return self._read(pod_id, shim.SPEC, PodSpec)

    def prepare(self, spec: PodSpec) -> PodSpec:
        """Write down durably what is to run, and give what now holds: where it was prepared before, that.

        For a whole gang before the first `launch`, and again after a crash. ValueError: a spec that must not run.
        """
        name = spec.id
        if not spec.command or not name or "/" in name or name[0] == "." or len(name.encode()) > ID_CHARS_MAX:
            raise ValueError(f"a pod needs a command, and an id that can name a directory: {name!r}")
        if Path(spec.log).parent != self._logs:
            raise ValueError(f"{spec.log} is not in {self._logs}: root opens it, so nobody else may lead it astray")
        if (standing := self.spec_of(name)) is not None:
            return standing
        ours = {**self._marks(name), shim.NOTICE_FILE: str(self._notices / name)}
        spec = msgspec.structs.replace(spec, env={**spec.env, **ours})
        (self._pods / name).mkdir(mode=0o700, exist_ok=True)
        shim.sync_dir(str(self._pods))
        self._publish(name, shim.SPEC, spec)
        return spec

    def launch(self, pod_id: str) -> None:
        """Start the pod's supervisor, unless it has one. Safe at any time and any number of times."""
        if self._own_child(pod_id) is not None or self._holder(pod_id) is not None:
            return
        folder = self._pods / pod_id
        errors = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._children[pod_id] = os.posix_spawn(
            self.python,
            [self.python, "-I", "-S", shim.__file__, str(folder)],
            {"LC_ALL": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(folder / _SHIM_ERRORS), errors, 0o600),
            ],
            setsid=True,
            setsigmask=shim.HEARD,
        )

    def runs(self, pod_id: str) -> bool:
        """Whether a pod's process has come to run, be it that it is over by now."""
        return isinstance(self.observe(pod_id), Running | Exited)

    def observe(self, pod_id: str) -> Observation:
        """How a pod is, from its files and /proc alone; reaps its supervisor where that was our child.

        The order of the looks matters. `started` is made, and `exit` written, only under the lock: if `started` was
        there before the lock was found free, then its maker is dead, and an `exit` not there now will never be.
        """
        folder = self._pods / pod_id
        started = (folder / shim.STARTED).exists()
        child, holder = self._own_child(pod_id), self._holder(pod_id)
        exited = self._read(pod_id, shim.EXIT, Exited)
        if exited is not None:
            return exited
        if holder is not None:
            return self._read(pod_id, shim.ALIVE, Running) or Starting()
        if started:
            return Lost(reason=Loss.SUPERVISOR_KILLED if self._same_boot(pod_id) else Loss.MACHINE_RESTARTED)
        if child is not None:
            return Starting()
        with contextlib.suppress(*_MISSING):
            if said := (folder / _SHIM_ERRORS).read_text(errors="replace").strip():
                return NotStarted(error=said.splitlines()[-1])
        return NotStarted()

    def wait_fd(self, pod_id: str) -> int | None:
        """A descriptor that becomes readable when the pod's supervisor ends; the caller closes it.

        None: there is no supervisor, so `observe` now; or the kernel (before 5.3) has no such thing: `observe` often.
        """
        holder = self._holder(pod_id)
        pid = self._own_child(pod_id) if holder is None else holder
        if pid is None or (handle := shim.pidfd(pid)) is None:
            return None
        if holder is None or self._holder(pod_id) == holder:
            return handle
        os.close(handle)  # it went meanwhile, and the number may be another's
        return None

    def terminate(self, pod_id: str, grace_ms: int | None = None) -> int | None:
        """End a pod: SIGTERM to all of it, SIGKILL after the grace (None: the pod's own). Gives None once it is over.

        Else it gives the milliseconds after which to call again, unless `wait_fd` tells of the end before. The deadline
        is durable, and a later call can only bring it forward: `grace_ms=0` means now. What did not start never will.
        """
        seen = self.observe(pod_id)
        if isinstance(seen, Lost) or (isinstance(seen, Exited) and not seen.tidy):
            return AGAIN_MS if self.sweep(pod_id) else None
        if isinstance(seen, Exited):
            return None
        if not (self._pods / pod_id).exists():  # somebody removed it; what it ran is still to be found
            return AGAIN_MS if self.sweep(pod_id) else None
        left_ms = self._deadline(pod_id, grace_ms) - time.monotonic_ns() // 1_000_000
        holder = self._holder(pod_id)
        if holder is None:
            return None if self._settle(pod_id) else AGAIN_MS
        supervisor = shim.look(holder)
        if supervisor is None or self._holder(pod_id) != holder:
            return AGAIN_MS
        shim.strike(supervisor, signal.SIGTERM)
        if left_ms > -MARGIN_MS:
            return max(left_ms + MARGIN_MS, AGAIN_MS)
        self._press(supervisor, overdue_ms=-left_ms)
        return AGAIN_MS

    def _press(self, supervisor: shim.Process, overdue_ms: int) -> None:
        """Do what a supervisor that is stopped or stuck fails to do.

        It is killed itself only when it has nobody left to care for: while a process of the pod cannot die (it waits
        for a driver, say) its GPUs are not free, and the supervisor is who will know when they are.
        """
        shim.strike(supervisor, signal.SIGCONT)
        left = shim.descendants(supervisor.pid)
        for process in left:
            shim.strike(process, signal.SIGKILL)
        if not left and overdue_ms > 2 * MARGIN_MS:
            shim.strike(supervisor, signal.SIGKILL)

    def _deadline(self, pod_id: str, grace_ms: int | None) -> int:
        """When the grace is over, on the clock that supervisors share: the earliest ever asked for in this boot."""
        standing = self._read(pod_id, shim.ENDING, _Ending)
        asked_ms = [] if standing is None or standing.boot != self._boot else [standing.deadline_ms]
        if grace_ms is None and not asked_ms:
            spec = self.spec_of(pod_id)
            grace_ms = 0 if spec is None else spec.grace_ms
        if grace_ms is not None:
            asked_ms.append(time.monotonic_ns() // 1_000_000 + grace_ms)
        deadline_ms = min(asked_ms)
        if standing is None or standing.deadline_ms != deadline_ms:
            with contextlib.suppress(OSError):  # a full disk must not keep the work from ending: the pod's grace holds
                self._publish(pod_id, shim.ENDING, _Ending(boot=self._boot, deadline_ms=deadline_ms))
        return deadline_ms

    def _settle(self, pod_id: str) -> bool:
        """Record the end of a pod that has no supervisor and never started; False where one came in between.

        While we hold the lock no supervisor can begin; one that comes later finds `exit` and goes.
        """
        folder = self._pods / pod_id
        with (folder / shim.LOCK).open("ab") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return False
            if (folder / shim.STARTED).exists():
                return False
            if not (folder / shim.EXIT).exists():
                record = shim.ended(-signal.SIGTERM, How.ENDED.value, shim.NEVER_BEGAN)
                shim.publish(str(folder), shim.EXIT, record)
        return True

    def sweep(self, pod_id: str) -> int:
        """Kill every process that a pod without supervisor left behind; give how many are not gone yet.

        It finds them by the pod's marks in their environment; where they wiped it, by the work's session or log. Call
        it until it gives 0. ValueError while a supervisor lives: then it is `terminate` that is wanted.
        """
        if self._holder(pod_id) is not None and not (self._pods / pod_id / shim.EXIT).exists():
            raise ValueError(f"{pod_id} has a supervisor: terminate it")
        if not self._same_boot(pod_id):
            return 0
        condemned = self._condemned.setdefault(pod_id, {})
        for _ in range(SWEEP_PASSES):  # what forks while it is killed turns up in the next pass
            fresh = [left for left in self._left_behind(pod_id) if left.pid not in condemned]
            for process in fresh:
                shim.strike(process, signal.SIGKILL)
                condemned[process.pid] = process
            if not fresh:
                break
        # A dying process shows no environment any more: what we killed is remembered until it is really gone.
        for pid, process in list(condemned.items()):
            now = shim.look(pid)
            if now is None or now.ended or now.start != process.start:
                del condemned[pid]
        return len(condemned)

    def show_notices(self, wanted: Mapping[str, bytes]) -> None:
        """Make the notice files of all pods say this, and those of all others be gone; each is there whole or not at all."""
        for path in self._notices.iterdir():
            if path.name not in wanted:
                path.unlink(missing_ok=True)
        for pod_id, body in wanted.items():
            path = self._notices / pod_id
            if not path.exists() or path.read_bytes() != body:
                new = path.with_name(f"{pod_id}.new")
                new.write_bytes(body)
                new.chmod(0o644)
                new.rename(path)

    def signal(self, pod_id: str, number: int) -> int:
        """Send a signal to those processes of a pod that catch it, and to no other: it would be their end. Gives how many."""
        holder = self._holder(pod_id)
        heard = [each for each in shim.descendants(holder) if shim.catches(each, number)] if holder is not None else []
        for process in heard:
            shim.strike(process, number)
        return len(heard)

    def forget(self, pod_id: str) -> None:
        """Remove a pod that is over, all but its log. Only once its end is in the ledger: then nobody knows it."""
        seen = self.observe(pod_id)
        if isinstance(seen, Running | Starting):
            raise ValueError(f"{pod_id} is running: terminate it")  # noqa: TRY004 - not its type is wrong, its moment
        with contextlib.suppress(*_MISSING):  # away in one step: half a directory would tell another story
            (self._pods / pod_id).rename(self._trash / pod_id)
        shutil.rmtree(self._trash / pod_id, ignore_errors=True)
        self._condemned.pop(pod_id, None)
        if pod_id in self._children:
            self._going.append(self._children.pop(pod_id))

    def _left_behind(self, pod_id: str) -> list[shim.Process]:
        marks = {f"{name}={value}".encode() for name, value in self._marks(pod_id).items()}
        work, spec = self._read(pod_id, shim.ALIVE, Running), self.spec_of(pod_id)
        uid = os.geteuid() if spec is None or spec.user is None else spec.user.uid
        log, found = None if spec is None else Path(spec.log), []
        for process in shim.processes():
            if process.ended or process.pid == os.getpid():
                continue
            with contextlib.suppress(OSError):  # gone, or another's and we are not root
                at = Path(f"/proc/{process.pid}")
                kin = (work is not None and _of_session(process, work)) or _writes_to(log, at)
                if (kin and at.stat().st_uid == uid) or marks <= set((at / "environ").read_bytes().split(b"\0")):
                    found.append(process)
        return found

    def _marks(self, pod_id: str) -> dict[str, str]:
        return dict(zip(shim.MARKERS, (pod_id, str(self._pods / pod_id)), strict=True))

    def _holder(self, pod_id: str) -> int | None:
        """The pid of the supervisor that holds the pod's lock, from the kernel itself."""
        try:
            with (self._pods / pod_id / shim.LOCK).open("r+b", buffering=0) as lock:
                answer = fcntl.fcntl(lock, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except _MISSING:
            return None
        kind, _, _, _, pid = _FLOCK.unpack(answer)
        return None if kind == fcntl.F_UNLCK else pid

    def _own_child(self, pod_id: str) -> int | None:
        """The supervisor that we started, while it lives; reaped here once it does not."""
        self._going = [pid for pid in self._going if not _reap(pid)]
        pid = self._children.get(pod_id)
        if pid is not None and _reap(pid):
            del self._children[pod_id]
            return None
        return pid

    def _same_boot(self, pod_id: str) -> bool:
        """Whether the pod began in this boot; True also where a crash left that open."""
        with contextlib.suppress(*_MISSING):
            return (self._pods / pod_id / shim.STARTED).read_text() in (self._boot, "")
        return True

    def _publish(self, pod_id: str, name: str, record: Record) -> None:
        shim.publish(str(self._pods / pod_id), name, msgspec.to_builtins(record))

    def _read(self, pod_id: str, name: str, kind: type[R]) -> R | None:
        try:
            return msgspec.json.decode((self._pods / pod_id / name).read_bytes(), type=kind)
        except _MISSING:
            return None


def _reap(pid: int) -> bool:
    """Whether a child has ended; afterwards it is no zombie."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # somebody else in this process reaped it
        return True


def _of_session(process: shim.Process, work: Running) -> bool:
    """Whether a process is of the work's session, whose number is free for others only once it has no member left."""
    if process.session != work.pid or process.start < work.start_time:
        return False
    leader = shim.look(work.pid)
    return leader is None or leader.start == work.start_time


def _writes_to(log: Path | None, process: Path) -> bool:
    """Whether a process still has the pod's log as its output."""
    with contextlib.suppress(OSError):
        return (process / "fd" / "1").readlink() == log
    return False
