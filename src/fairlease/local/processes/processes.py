"""Makes the machine be as the ledger says: one living pod for each open lease, none for any other.

`reconcile` compares the two and does what is missing. It is the only way that processes are started and ended, in daily work and
after any crash alike: a daemon that comes back knows from its pods' directories what there is, and from the ledger what there
should be. What it sees of their ends it reports; whether that is true of a run is for the engine to decide.

The ledger is quicker than the kernel: a lease may be closed, and its GPUs given to the next run, while the old process still
writes its checkpoint. So a gang is launched only when every pod that held one of its slots is really gone, and so is every pod of
an earlier attempt, and the pod that was the same rank before: nobody meets a copy of itself.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from structlog.typing import FilteringBoundLogger

from fairlease.engine.command import AnyCommand, FailNode, PodFailed, SetNode, StartFailed, WorkEnded, WorkStarted
from fairlease.local.processes.environment import log_id, pick_port, pod_id, rendezvous, user_of
from fairlease.local.processes.members import Members
from fairlease.local.processes.pods import (
    Exited,
    How,
    Loss,
    Lost,
    NotStarted,
    Observation,
    Pods,
    PodSpec,
    Running,
    Starting,
)
from fairlease.local.processes.termination import HeldPlace, Patience, Termination, place_of
from fairlease.model.amount import format_duration
from fairlease.model.lease import Lease, Role
from fairlease.model.record import Key, short
from fairlease.reason import Reason
from fairlease.report.views import starting_words
from fairlease.runtime.processes.login import User, base_environment
from fairlease.runtime.processes.rendezvous import SIGNAL

if TYPE_CHECKING:
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State

POLL_MS = 100
START_LOOK_MS = 50
"""How often a pod is looked at that has a supervisor and is not known to run yet: nobody tells when it does."""
RETRY_MS = 1_000
RETRIES_DOUBLED_MAX = 4
KILLED = 137
NOT_EXECUTED = 126
NEVER = float("inf")
_ERRNO = re.compile(r"^(?:\w+: )?\[Errno \d+\] ([^:]+): '(.*)'$")
"""How Python says that something is wrong with a file."""


class ProcessReport(NamedTuple):
    """What was seen, as the engine wants it, and in words for the log. `at_ms`: when it was, where its supervisor wrote that."""

    command: AnyCommand
    message: str
    at_ms: int | None = None


class _Pod:
    """What we remember of a pod, none of it needed: forgetting it only costs a look."""

    __slots__ = ("due_ms", "ending", "fd", "hurried", "launches", "problem", "retry_ms", "seen", "spec", "tried_ms")

    def __init__(self, spec: PodSpec | None) -> None:
        self.spec = spec
        self.seen: Observation | None = None
        self.fd: int | None = None
        self.due_ms: int | None = 0
        self.ending = self.hurried = False
        self.launches = 0
        self.retry_ms: int | None = None
        self.tried_ms: int | None = None
        self.problem = ""

    @property
    def up(self) -> bool:
        """Whether its work was observed to run, be it that it is over by now."""
        return isinstance(self.seen, Running | Exited)


class Ears(NamedTuple):
    """How to hear of the end of a process: asyncio's `add_reader` and `remove_reader`."""

    listen: Callable[[int, Callable[[], None]], None]
    ignore: Callable[[int], object]


class Processes:
    """All pods of this machine, and the comparison of them with the ledger."""

    def __init__(
        self, pods: Pods, ears: Ears, wake: Callable[[], None], patience: Patience, log: FilteringBoundLogger
    ) -> None:
        self._pods = pods
        self._members = Members(pods.root)
        self._log = log
        self._ears = ears
        self._wake = wake
        self._patience = patience
        self._known = {name: _Pod(pods.spec_of(name)) for name in pods.known()}
        self._booted_ms = boot_ms()
        self._unstarted: dict[
            Key, set[int]
        ] = {}  # attempts of a run that did not start; forgetting it only costs a pause
        self.problem: str | None = None
        self.devices: Mapping[str, Mapping[int, str]] = {}

    @property
    def idle(self) -> bool:
        """Whether no pod is left."""
        return not self._known

    def busy_with(self, run: Key) -> bool:
        """Whether a process of this run may be alive."""
        name = short(run)
        return any(pod.spec is not None and pod.spec.env.get("FAIRLEASE_RUN") == name for pod in self._known.values())

    def pods_by_run(self) -> dict[str, list[str]]:
        """The pods that may be alive and are not being ended, by the name of their run."""
        found: dict[str, list[str]] = {}
        for name, pod in self._known.items():
            if pod.spec is not None and not pod.ending:
                found.setdefault(pod.spec.env["FAIRLEASE_RUN"], []).append(name)
        return found

    def next_look_ms(self) -> int | None:
        """How long until something must be looked at, unless its end is heard of before."""
        due = [pod.due_ms for pod in self._known.values() if pod.due_ms is not None]
        return max(0, min(due) - monotonic_ms()) if due else None

    def starting(self, run: RunState) -> str:
        """How far a run is whose pods are being started, and what keeps them from it."""
        pods = [self._known.get(pod_id(lease)) for lease in run.leases.values() if lease.role is not Role.SPARE]
        up = sum(pod is not None and pod.up for pod in pods)
        problem = next((pod.problem for pod in pods if pod is not None and not pod.up and pod.problem), "")
        return starting_words(up, len(pods), problem)

    def reconcile(self, state: State) -> list[ProcessReport]:
        """End what has no lease, start what has no process, and tell what ended by itself."""
        gangs = _gangs(state)
        self._unstarted = {run: attempts for run, attempts in self._unstarted.items() if run in state.runs}
        wanted = {pod_id(lease) for gang in gangs for lease in gang}
        moved = {
            HeldPlace(short(lease.run), lease.attempt, lease.rank)
            for gang in gangs
            for lease in gang
            if lease.reason is Reason.Swap
        }
        for name in [name for name in self._known if name not in wanted]:
            with self._surviving(name):
                self._end(name, at_once=self._is_lost(state, name, moved))
        leaving = self._leaving(wanted)
        reports: list[ProcessReport] = []
        lost: set[str] = set()
        for gang in gangs:
            with self._surviving(*map(pod_id, gang)):
                reports += self._tend(state.runs[gang[0].run], gang, leaving, lost)
        specs = [pod.spec for pod in self._known.values() if pod.spec is not None]
        self._members.keep({spec.env["FAIRLEASE_MEMBERS"] for spec in specs if "FAIRLEASE_MEMBERS" in spec.env})
        # All of them before the first is back: they fail together.
        gone: list[AnyCommand] = [FailNode(node=name) for name in sorted(lost)]
        back: list[AnyCommand] = [SetNode(node=state.capacity.nodes[name].node) for name in sorted(lost)]
        return reports + [ProcessReport(command, "the machine was restarted") for command in (*gone, *back)]

    def recorded_ends(self, state: State) -> list[ProcessReport]:
        """The ends that are on record with their times. Nothing is started or ended; all else is for `reconcile` to see."""
        reports: list[ProcessReport] = []
        for gang in _gangs(state):
            names = [pod_id(lease) for lease in gang]
            if any(self._spec(lease) is None for lease in gang):
                continue
            with self._surviving(*names):
                seen = {lease.rank: self._look(pod_id(lease)) for lease in gang}
                if not any(self._died_with_machine(each) for each in seen.values()):
                    reports += self._ends(state.runs[gang[0].run], gang, seen)
        return [report for report in reports if report.at_ms is not None]

    @contextmanager
    def _surviving(self, *names: str) -> Iterator[None]:
        """What goes wrong with one gang (a disk error, a broken file) is logged and tried again; the others go on."""
        try:
            yield
        except Exception:  # noqa: BLE001 - it is logged, and one gang's trouble must not become everybody's
            self._log.exception("pods are not as they should be", pods=names)
            for name in names:
                self._known.setdefault(name, _Pod(None)).due_ms = monotonic_ms() + RETRY_MS

    # --- pods without a lease ------------------------------------------------------------------------------------------

    def _is_lost(self, state: State, name: str, moved: set[HeldPlace]) -> bool:
        """Whether a pod gets no grace: its node failed, or its rank lives elsewhere and waits for it to be gone."""
        spec = self._known[name].spec
        if spec is None:
            return False
        node = state.capacity.nodes.get(spec.node)
        return node is None or node.failed or place_of(spec) in moved

    def _leaving(self, wanted: set[str]) -> Termination:
        specs = [pod.spec for name, pod in self._known.items() if name not in wanted and pod.spec is not None]
        leaving = Termination({(spec.node, slot) for spec in specs for slot in spec.slots}, {})
        for place in map(place_of, specs):
            leaving.places.setdefault(place.run, []).append(place)
        return leaving

    def _end(self, name: str, *, at_once: bool) -> None:
        """Ask it to end, again until it has; then nothing of it is left but its log."""
        pod = self._known[name]
        hurried = at_once and not pod.hurried
        if pod.ending and not hurried and (pod.due_ms is None or pod.due_ms > monotonic_ms()):
            return
        if not pod.ending:
            self._log.info("pod ends", pod=name)
        pod.ending, pod.hurried = True, at_once
        again_ms = self._pods.terminate(name, 0 if at_once else None)
        if again_ms is None:
            self._pods.forget(name)
            self._deafen(pod)
            del self._known[name]
            self._log.info("pod gone", pod=name)
            return
        pod.due_ms = monotonic_ms() + again_ms
        self._hear(name, pod)

    # --- pods with a lease ---------------------------------------------------------------------------------------------

    def _tend(self, run: RunState, gang: list[Lease], leaving: Termination, lost: set[str]) -> list[ProcessReport]:
        try:
            if any(self._spec(lease) is None for lease in gang):
                self._prepare(run, gang)
        except (ValueError, LookupError) as error:
            command = self._failed(run, gang[0].rank, NOT_EXECUTED)
            return [ProcessReport(command, f"cannot be run here: {error}")]
        except OSError as error:
            self._hinder([pod_id(lease) for lease in gang], str(error))
            return self._starts(run, gang)
        seen = {lease.rank: self._look(pod_id(lease)) for lease in gang}
        nodes = {lease.node for lease in gang if self._died_with_machine(seen[lease.rank])}
        if nodes:
            lost |= nodes
            return []
        reports = self._ends(run, gang, seen)
        if reports:
            return reports
        starting = [lease for lease in gang if isinstance(seen[lease.rank], NotStarted)]
        try:
            self._tell_members(gang)
        except OSError as error:
            if not starting:
                raise
            self._hinder([pod_id(lease) for lease in starting], str(error))
        else:
            if starting and leaving.frees(gang, starting):
                for lease in starting:
                    self._launch(pod_id(lease))
        return self._starts(run, gang)

    def _starts(self, run: RunState, gang: list[Lease]) -> list[ProcessReport]:
        """Whether a gang has come to run, or will not: where a pod could not be started in time, the attempt is given up."""
        pods = [self._known[pod_id(lease)] for lease in gang]
        waiting = [(pod, pod.tried_ms) for pod in pods if not pod.up]
        if not waiting:
            self._unstarted.pop(run.key, None)
            return (
                [ProcessReport(WorkStarted(run=run.key, attempt=run.attempt), "all its pods run")]
                if run.starting
                else []
            )
        limit_ms, now_ms = self._patience.bind_ms, monotonic_ms()
        tried = [(pod, since) for pod, since in waiting if since is not None]
        late = [pod for pod, since in tried if since + limit_ms <= now_ms]
        if not late:
            for pod, since in tried:
                pod.due_ms = since + limit_ms if pod.due_ms is None else min(pod.due_ms, since + limit_ms)
            return []
        problem = next((pod.problem for pod in late if pod.problem), "its supervisor did not start the work")
        up = f"{len(pods) - len(waiting)} of {len(pods)} pods started within {format_duration(limit_ms)}"
        attempts = self._unstarted.setdefault(run.key, set())
        pause = self._patience.pause(len(attempts - {run.attempt}))
        attempts.add(run.attempt)
        message = f"{up}: {problem}"
        return [
            ProcessReport(StartFailed(run=run.key, attempt=run.attempt, message=message, retry_after=pause), message)
        ]

    def _hinder(self, names: list[str], problem: str) -> None:
        """Something keeps pods from being started: remember what, and try again."""
        now_ms, problem = monotonic_ms(), _ERRNO.sub(r"\2: \1", problem)
        self.problem = problem
        for name in names:
            pod = self._known.setdefault(name, _Pod(None))
            if pod.problem != problem:
                self._log.error("pod not started", pod=name, error=problem)
            pod.problem, pod.due_ms = problem, now_ms + RETRY_MS
            pod.tried_ms = now_ms if pod.tried_ms is None else pod.tried_ms

    def _tell_members(self, gang: list[Lease]) -> None:
        """Write down who is in, before anybody new starts, and signal those that were in before, where they asked for it."""
        first = self._spec(gang[0])
        assert first is not None, "a gang is prepared before it is looked at"
        again = self._members.tell(gang, int(first.env["MASTER_PORT"]))
        name = first.env.get(SIGNAL)
        if again and name is not None:
            for pod in sorted(again):
                self._pods.signal(pod, signal.Signals[name])

    def _ends(self, run: RunState, gang: list[Lease], seen: dict[int, Observation]) -> list[ProcessReport]:
        """What the ends that were seen mean for the attempt: a rank failed, or all is done."""
        failed = sorted(
            (_failure(lease.rank, seen[lease.rank]) for lease in gang),
            key=lambda failure: failure[:2],
        )
        when, rank, code, message = failed[0]
        if code:
            at_ms = None if when == NEVER else int(when)
            return [ProcessReport(self._failed(run, rank, code), message, at_ms)]
        exits = [each.at_ms for each in seen.values() if isinstance(each, Exited)]
        if len(exits) == len(seen):
            done = WorkEnded(run=run.key, attempt=run.attempt, exit_code=0)
            return [ProcessReport(done, "all ranks ended with code 0", max(exits))]
        return []

    def _failed(self, run: RunState, rank: int, code: int) -> PodFailed:
        pause_ms = self._patience.pause(run.failures)
        return PodFailed(run=run.key, attempt=run.attempt, rank=rank, exit_code=code, retry_after=pause_ms)

    def _died_with_machine(self, seen: Observation) -> bool:
        """Whether it was a restart of the machine, and neither the work's nor anybody's doing."""
        if isinstance(seen, Lost):
            return seen.reason is Loss.MACHINE_RESTARTED
        return isinstance(seen, Exited) and seen.how is How.ENDED and seen.at_ms < self._booted_ms

    def _look(self, name: str) -> Observation:
        pod = self._known[name]
        due = pod.due_ms is not None and pod.due_ms <= monotonic_ms()
        if pod.seen is not None and not due:
            return pod.seen
        before, pod.seen, pod.due_ms = pod.seen, self._pods.observe(name), None
        if isinstance(pod.seen, NotStarted):
            if isinstance(before, Running):
                pod.seen = Lost(reason=Loss.RECORD_GONE)
            elif pod.seen.error:
                self._hinder([name], pod.seen.error)
        elif isinstance(pod.seen, Running | Starting):
            self._hear(name, pod)
            self._await_start(pod)
        return pod.seen

    def _await_start(self, pod: _Pod) -> None:
        """Look again soon whether the work runs, where it is not known to."""
        now_ms = monotonic_ms()
        if isinstance(pod.seen, Running):
            self.problem = None
            return
        pod.tried_ms = now_ms if pod.tried_ms is None else pod.tried_ms
        pod.due_ms = now_ms + (START_LOOK_MS if now_ms - pod.tried_ms < RETRY_MS else POLL_MS)

    def _launch(self, name: str) -> None:
        """Start its supervisor; one that failed to start before gets another try, later each time."""
        pod, now_ms = self._known[name], monotonic_ms()
        if pod.launches and pod.retry_ms is None:
            pod.retry_ms = now_ms + (RETRY_MS << min(pod.launches - 1, RETRIES_DOUBLED_MAX))
        if pod.retry_ms is not None and now_ms < pod.retry_ms:
            pod.due_ms = pod.retry_ms
            return
        pod.retry_ms = None
        pod.launches += 1
        try:
            self._pods.launch(name)
        except OSError as error:  # too many processes, say
            self._hinder([name], str(error))
            return
        self._log.info("pod launched", pod=name)
        pod.seen = Starting()
        self._hear(name, pod)
        self._await_start(pod)

    def _hear(self, name: str, pod: _Pod) -> None:
        """Be told when its supervisor ends, or look again soon where that cannot be had."""
        if pod.fd is not None:
            return
        pod.fd = self._pods.wait_fd(name)
        if pod.fd is None:
            soon = monotonic_ms() + POLL_MS
            pod.due_ms = soon if pod.due_ms is None else min(pod.due_ms, soon)
            return

        def over() -> None:
            self._deafen(pod)
            pod.due_ms = 0
            self._wake()

        self._ears.listen(pod.fd, over)

    def _deafen(self, pod: _Pod) -> None:
        if pod.fd is not None:
            self._ears.ignore(pod.fd)
            os.close(pod.fd)
            pod.fd = None

    # --- what to run ---------------------------------------------------------------------------------------------------

    def _spec(self, lease: Lease) -> PodSpec | None:
        pod = self._known.get(pod_id(lease))
        return None if pod is None else pod.spec

    def _prepare(self, run: RunState, gang: list[Lease]) -> None:
        """Write down what every rank is to run, before the first of them runs."""
        user = account_of(run.by)
        standing = [spec for lease in gang if (spec := self._spec(lease)) is not None]
        if standing:
            port = int(standing[0].env["MASTER_PORT"])
        else:
            others = [pod.spec for pod in self._known.values() if pod.spec is not None]
            port = pick_port(f"{run.key}#{run.attempt}", {int(spec.env["MASTER_PORT"]) for spec in others})
        base = base_environment(user, os.environ)
        members = str(self._members.path_of(gang[0]))
        environments = rendezvous(gang, port=port, base=base, env=run.spec.env, members=members, devices=self.devices)
        for lease in gang:
            name = pod_id(lease)
            spec = PodSpec(
                id=name,
                command=run.spec.command,
                env=environments[name],
                log=str(self._pods.log_of(log_id(lease))),
                node=lease.node,
                slots=lease.slots,
                workdir=run.spec.workdir or home_of(user),
                grace_ms=self._patience.of(lease),
                user=user,
            )
            pod = self._known.setdefault(name, _Pod(None))
            pod.spec = self._pods.prepare(spec)
            pod.due_ms = 0


def _failure(rank: int, seen: Observation) -> tuple[float, int, int, str]:
    """When, which rank, with what code and in what words; what did not fail comes last, with code 0."""
    if isinstance(seen, Exited) and seen.code:
        return seen.at_ms, rank, seen.code, seen.message or f"{seen.how.value} with code {seen.code}"
    if isinstance(seen, Lost):
        return NEVER, rank, KILLED, seen.reason.value
    return NEVER, 1 << 30, 0, ""


def _gangs(state: State) -> list[list[Lease]]:
    """The open leases that stand for processes: by attempt in order of opening, and by rank."""
    found: dict[tuple[Key, int], list[Lease]] = {}
    for node in state.capacity.nodes.values():
        for lease in node.leases.values():
            if lease.role is not Role.SPARE:
                found.setdefault((lease.run, lease.attempt), []).append(lease)
    gangs = [sorted(gang, key=lambda lease: lease.rank) for gang in found.values()]
    return sorted(gangs, key=lambda gang: min(lease.serial for lease in gang))


def monotonic_ms() -> int:
    """A clock that never jumps."""
    return time.monotonic_ns() // 1_000_000


def account_of(by: str | None) -> User | None:
    """As whom a run's processes run: its submitter where the daemon is root (KeyError: there is no such account)."""
    if os.geteuid() != 0:
        return None
    if by is None:
        raise LookupError("nobody knows who submitted it")
    return user_of(pwd.getpwnam(by).pw_uid)


def home_of(user: User | None) -> str:
    """Where work begins that names no directory: at home, where that is a place one can go to."""
    home = Path.home() if user is None else Path(user.home)
    usable = os.access(home, os.X_OK) if user is None else home.is_dir()
    return str(home) if usable else "/"


def boot_ms() -> int:
    """When this machine came up."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime ")) * 1_000
