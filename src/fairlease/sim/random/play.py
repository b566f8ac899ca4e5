"""Trial: a random film played on the real engine, with the auditor watching every entry.

The workload says what happens, the scheduler decides, the auditor looks at what the ledger says, and after every step the engine's
own books are compared with the auditor's slow sums. Restarts, snapshots, forecasts and looks ahead are part of the film: none of
them may change anything. A report with violations names the seed and the step: that is all it takes to see it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from fairlease.engine import command as cmd
from fairlease.engine.context import Engine
from fairlease.engine.tick.decide import decide
from fairlease.ledger.audit.audit import scan
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.state import State
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.memory import MemoryStore
from fairlease.model.lease import Payer, Role
from fairlease.model.record import Key
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.scheduler import Scheduler
from fairlease.sim.auditor.auditor import Auditor, Violation
from fairlease.sim.auditor.bookkeeper import Held
from fairlease.sim.random.workload import START, View, Workload, WorkloadStep

TIMERS_MAX = 400
"""More timers than any single step can have; a film that fires more of them runs in circles."""

STEPS_MAX = 12
"""Steps that the widest run of a film can grow, and a few more."""

CURIOUS = 0.02
"""How often everybody who waits is forecast after a step: dice of their own, as that must change nothing else."""

FAULTY, FAULTS, INJECTED = 10, 0.02, "a fault that the film injects"
"""One film of how many is played on an engine that fails, how often it does for each event, and with which words."""

_AGAIN = "-again"


class RandomReport(NamedTuple):
    """What came of a random film. `steps` is how far it was played: up to the first step that broke a claim."""

    seed: int
    steps: int
    entries: int
    runs: int
    leases: int
    violations: tuple[Violation, ...]
    head_hash: str

    def __str__(self) -> str:
        """One line where all is well; else every violation, and how to see it again."""
        told = f"seed {self.seed}: {self.steps} steps, {self.entries} entries, {self.runs} runs, {self.leases} leases"
        if not self.violations:
            return f"{told}, no claim broken, head {self.head_hash[:16]}"
        again = f"  to see it again: fairlease simulate --random {self.seed} --steps {self.steps}"
        broken = [f"  entry {each.seq}: {each.claim}: {each.message}" for each in self.violations]
        return "\n".join([told, *broken, again])


def run_random(
    seed: int, steps: int, progress: Callable[[int], None] | None = None, *, restart_always: bool = False
) -> RandomReport:
    """Play a random film of `steps` steps, and audit its ledger; stops after the first step that breaks a claim."""
    film = RandomFilm(seed, restart_always=restart_always)
    played = 0
    film.guard(film.open)
    while played < steps and not film.auditor.violations:
        played += 1
        film.guard(film.play)
        if progress is not None:
            progress(played)
    auditor, head = film.auditor, film.store.head()
    found = scan(film.store.rows()).findings
    auditor.violations += [Violation(each.seq, f"audit {each.claim}", each.message) for each in found]
    return RandomReport(
        seed, played, head.seq, len(auditor.runs), len(auditor.books.leases), tuple(auditor.violations), head.hash
    )


class FaultyEngine(Engine):
    """An engine that fails now and then while it handles a run: nobody else may notice."""

    def __init__(self, state: State, chance: random.Random) -> None:
        super().__init__(state, decide)
        self._chance = chance
        self.armed = False

    def emit(self, event: ev.AnyEvent) -> None:
        """Make something true, or fail before or after it."""
        handles = self.armed and self.subject is not None and self.subject not in self.faults
        fails = handles and self._chance.random() < FAULTS
        late = fails and self._chance.choice((False, True))
        if not fails or late:
            super().emit(event)
        if fails:
            raise RuntimeError(INJECTED)


class RandomFilm:
    """The workload, the scheduler and the auditor of one seed."""

    def __init__(self, seed: int, *, restart_always: bool = False) -> None:
        self.workload = Workload(seed)
        self._chance = random.Random(f"faults of film {seed}") if seed % FAULTY == 0 else None
        self.auditor = Auditor(punctual=self.workload.punctual, strict=True)
        self.store = MemoryStore()
        self.scheduler = self._scheduler()
        self.restart_always = restart_always
        self.curious = random.Random(f"who asks when it starts, in film {seed}")
        self.now = START
        self.leaves = random.Random(f"who needs time to leave, in film {seed}")
        self._share = self.leaves.choice((0.0, 0.0, 0.4, 0.9))
        self._going: list[tuple[int, int, Key, tuple[str, ...]]] = []
        self._heard = 0

    def guard(self, act: Callable[[], None]) -> None:
        """A crash of the engine is a finding like any other."""
        try:
            act()
        except Exception as crash:  # noqa: BLE001 - whatever it is, the seed reproduces it
            self._blame("crash", f"{type(crash).__name__}: {crash}")

    def open(self) -> None:
        """Build the world."""
        self._tick(self.now, *self.workload.opening())
        self._finish()

    def play(self) -> None:
        """One step: time passes, commands come in, everything due settles, and all is looked at."""
        step = self.workload.step(self.view())
        if self.workload.punctual:
            self._wait_for(step.at - 1)
        self.now = step.at
        while self._let_go(step.at):
            pass
        if step.trial:
            self._look_ahead(step)
        self._tick(self.now, *map(self._with_grace, step.commands))
        if self.curious.random() < CURIOUS:
            self._tick(self.now, cmd.Forecast())
        if step.restart or self.restart_always:
            self._restart(through_snapshot=step.snapshot)
        self._finish()

    def view(self) -> View:
        """What the workload may see."""
        runs = self.auditor.runs.values()
        return View(
            self.now,
            self.scheduler.next_timer(),
            self.auditor.nodes,
            self.auditor.books.budgets,
            [(run.key, run.attempt) for run in runs if run.phase is Phase.RUNNING],
            [(run.key, run.attempt) for run in runs if run.phase is Phase.PENDING],
            [run.key for run in runs if run.over],
            [(run.key, run.spec.malleable) for run in runs if not run.over and run.spec.malleable is not None],
            [
                (run.key, sorted(each.rank for each in run.open if each.role is not Role.SPARE))
                for run in runs
                if {Role.SPARE, Role.ACTIVE} <= {each.role for each in run.open}
            ],
        )

    # --- the scheduler -------------------------------------------------------------------------------------------------

    def _scheduler(self) -> Scheduler:
        """A scheduler over the store; in one film of ten, one whose engine fails now and then."""
        scheduler = Scheduler(self.store)
        if self._chance is not None:
            scheduler.engine = FaultyEngine(scheduler.state, self._chance)
        return scheduler

    def _with_grace(self, command: cmd.AnyCommand) -> cmd.AnyCommand:
        """The work of some runs needs time to leave."""
        if isinstance(command, cmd.Submit) and self.leaves.random() < self._share:
            return cmd.Submit(command.run, command.spec, command.by, graceful=True)
        return command

    def _let_go(self, now: int) -> bool:
        """The next pod that was asked to leave is gone by now, each for itself; False where none is."""
        if not self._going or self._going[0][0] > now:
            return False
        when, _, run, names = heappop(self._going)
        runs = self.scheduler.state.runs
        for _ in range(STEPS_MAX):  # a report that failed is made again
            self._tick(when if self.workload.punctual else now, cmd.PodsGone(run, names))
            if run not in runs or names[0] not in runs[run].leaving:
                break
        return True

    def _ask_to_leave(self, at: int, event: ev.LeasesLeaving) -> None:
        """Pods take none, some or all of their grace."""
        for name in event.names:
            when = self.leaves.choice((at, self.leaves.randint(at, event.until), event.until))
            heappush(self._going, (when, len(self.auditor.names) + self._heard, event.run, (name,)))

    def _tick(self, now: int, *commands: cmd.AnyCommand) -> None:
        self.auditor.reported = {each.node for each in commands if isinstance(each, cmd.FailNode | cmd.RemoveNode)}
        engine = self.scheduler.engine
        if isinstance(engine, FaultyEngine):
            engine.armed = True
        tick = self.scheduler.tick(now, *commands)
        if isinstance(engine, FaultyEngine):
            engine.armed = False
        for run, fault in tick.decision.faults.items():
            if INJECTED not in fault.traceback:
                self._blame("crash", f"while {run} was handled: {fault.traceback}")
        for entry in self.store.entries(self._heard):
            self.auditor.witness(entry)
            self._heard = entry.seq
            for event in entry.events:
                if isinstance(event, ev.LeasesLeaving):
                    self._ask_to_leave(entry.at, event)

    def _wait_for(self, until: int) -> None:
        """Fire every timer up to `until` at its exact time."""
        for _ in range(TIMERS_MAX):
            due = self.scheduler.next_timer()
            if self._let_go(until if due is None else min(due, until)):
                continue
            if due is None or due > until:
                return
            self._tick(due, cmd.TimePassed())
        self._blame(
            "timers", f"{TIMERS_MAX} timers fired before {until}; the next is due at {self.scheduler.next_timer()}"
        )

    def _finish(self) -> None:
        """All that is due now settles; then nothing is due, and everybody agrees on what is true."""
        for _ in range(STEPS_MAX):  # without a cooldown a run grows step by step at one instant
            while self._let_go(self.now):
                pass
            due = self.scheduler.next_timer()
            if due is None or due > self.now:
                break
            self._tick(self.now, cmd.TimePassed())
        due = self.scheduler.next_timer()
        if due is not None and due <= self.now:
            self._blame("timers", f"a timer that was due at {due} is still set at {self.now}")
        self.auditor.settled(self.now)
        self._compare_accounts()
        self._compare_runs()
        self._compare_slots()
        self._nobody_could_start()

    def _restart(self, *, through_snapshot: bool) -> None:
        """Throw the scheduler away and build it from the store: nothing may differ."""
        before, indexes = snapshot.freeze(self.scheduler.state), snapshot.derived(self.scheduler.state)
        if through_snapshot:
            self.scheduler.save_snapshot(force=True)
        self.scheduler = self._scheduler()
        if snapshot.freeze(self.scheduler.state) != before:
            self._blame("restart", f"the state differs after a restart (snapshot: {through_snapshot})")
        for name, rebuilt in snapshot.derived(self.scheduler.state).items():
            if rebuilt != indexes[name]:
                self._blame("restart", f"the index of {name} differs after a restart: {indexes[name]} became {rebuilt}")

    def _look_ahead(self, step: WorkloadStep) -> None:
        """A what-if leaves no trace."""
        before = snapshot.freeze(self.scheduler.state)
        timer = self.scheduler.next_timer()
        with self.scheduler.what_if(step.at, *step.commands, cmd.TimePassed()):
            pass
        if snapshot.freeze(self.scheduler.state) != before or self.scheduler.next_timer() != timer:
            self._blame("what-if", f"a look at {len(step.commands)} commands left a trace")

    # --- comparisons ---------------------------------------------------------------------------------------------------

    def _blame(self, claim: str, message: str) -> None:
        self.auditor.violations.append(Violation(self.store.head().seq, claim, message))

    def _compare(self, claim: str, whose: str, engine: object, auditor: object) -> None:
        if engine != auditor:
            self._blame(claim, f"{whose}: the engine says {engine}, the leases say {auditor}")

    def _compare_accounts(self) -> None:
        """Used, consumed, committed, and the classes of GPUs of each envelope."""
        state, books, now = self.scheduler.state, self.auditor.books, self.now
        for budget, spec in books.budgets.items():
            for terms in spec.envelopes:
                account, where = state.account(budget, terms.name), f"{budget}/{terms.name}"
                for lent, used, consumed, committed in (
                    (False, account.used, account.consumed(now), account.committed(now, books.quantum)),
                    (True, account.lent_used, account.lent_consumed(now), account.lent_committed(now, books.quantum)),
                ):
                    part = f"{where} (lent)" if lent else where
                    self._compare("used", part, used, books.used(budget, terms.name, lent=lent))
                    self._compare("consumed", part, consumed, books.consumed(now, budget, terms.name, lent=lent))
                    self._compare("committed", part, committed, books.committed(now, budget, terms.name, lent=lent))
                held = [each for each in books.paid(budget, (terms.name,)) if each.end is None]
                owed = sum(each.gpus for each in held if each.role is not Role.SPARE and self._owes(each))
                spare = sum(each.gpus for each in held if each.role is Role.SPARE)
                self._compare("classes", where, sum(account.gpus.values()), sum(each.gpus for each in held))
                self._compare("classes", where, (account.gpus["overdrawn"], account.gpus["spare"]), (owed, spare))

    def _owes(self, lease: Held) -> bool:
        return lease.unit in self.auditor.overdrawn if lease.leaving is None else lease.leaving.overdrawn

    def _compare_runs(self) -> None:
        state = self.scheduler.state
        alive = {run.key: run for run in self.auditor.runs.values() if run.ended is None}
        self._compare("runs", "all", sorted(state.runs), sorted(alive))
        for name, run in alive.items():
            mine, bill = state.runs[name], self.auditor.bill(run)
            width = sum(each.gpus for each in run.open if each.role is not Role.SPARE)
            self._compare("width", name, (mine.width, mine.attempt, mine.deadline), (width, run.attempt, run.deadline))
            self._compare("bill", name, mine.bill(self.now), bill)
            self._compare("reason", name, mine.phase, run.phase)

    def _compare_slots(self) -> None:
        """Free slots per node, and the sums that packing looks at."""
        capacity = self.scheduler.state.capacity
        taken: dict[str, int] = {}
        for run in self.auditor.runs.values():
            for lease in run.held:
                taken[lease.node] = taken.get(lease.node, 0) | sum(1 << slot for slot in lease.slots)
        self._compare("nodes", "all", sorted(capacity.nodes), sorted(self.auditor.nodes))
        for name, state in capacity.nodes.items():
            free = ((1 << self.auditor.peaks[name]) - 1) & ~taken.get(name, 0)
            self._compare(
                "slots", name, (state.free, state.barred is None), (free, self.auditor.usable(self.auditor.nodes[name]))
            )
        for pool in capacity.pools.values():
            rooms = [state.room for domain in pool.domains.values() for state in domain.nodes.values()]
            self._compare("slots", pool.flavor, pool.free, sum(rooms))
            for domain in pool.by_hole(0):
                mine = [state.room for state in domain.nodes.values()]
                self._compare(
                    "slots", domain.name, (domain.free, domain.pods(2)), (sum(mine), sum(room // 2 for room in mine))
                )

    def _nobody_could_start(self) -> None:
        """Work conservation: what waits could not start, neither when all are tried again nor when asked for anew."""
        state = self.scheduler.state
        state.dirty.budgets = True
        with self.scheduler.what_if(self.now) as decision:
            self._check_idle("tried again", decision.events)
        state.settled()
        waiting = [run for run in self.auditor.runs.values() if run.phase is Phase.PENDING and not run.leaving]
        for run in [
            run for run in waiting if run.reason not in (Reason.Following, Reason.BackOff, Reason.InternalError)
        ][-1:]:
            latest = run.spec.runtime.latest_start
            if latest is None or latest > self.now:
                with self.scheduler.what_if(self.now, cmd.Submit(Key(run.key + _AGAIN), run.spec)) as decision:
                    self._check_idle(f"like {run.key}", decision.events)

    def _check_idle(self, what: str, events: tuple[ev.AnyEvent, ...]) -> None:
        """No start, and no growth, save that which the mere passing of time made affordable: less of the attempt is left.

        What starts behind a lien that is found without money now had to wait for that finding: a reservation holds slots, not
        money, others may spend what it counts on, and it is told when it is next looked at.
        """
        for event in events:
            if isinstance(event, ev.ReservationTurned) and event.state is ReservationState.BLOCKED:
                return
            if isinstance(event, ev.LeasesOpened) and not self._ripened(event):
                self._blame("work conservation", f"{event.run} opens leases ({event.reason.value}) when {what}")
                return

    def _ripened(self, event: ev.LeasesOpened) -> bool:
        run = self.auditor.runs.get(event.run)
        dated = event.reason is Reason.Grow and run is not None and run.deadline is not None
        return dated and any(self._counts_hours(payer) for payer in event.payers)

    def _counts_hours(self, payer: Payer) -> bool:
        spec, terms = self.auditor.books.budgets[payer.budget], self.auditor.books.terms(payer.budget, payer.envelope)
        bounds = [cap.max_gpu_hours for cap in spec.aggregate_caps if payer.envelope in cap.envelopes]
        bounds += [] if terms is None else [terms.max_gpu_hours, terms.lending.max_gpu_hours]
        return any(bound is not None for bound in bounds)
