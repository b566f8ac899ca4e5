"""Builders for the engine's tests: a test names only what matters to it, and the auditor watches every entry it makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.accounts import Account
from fairlease.ledger.state.runs import RunState
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import LeaseQuery, LeaseRow
from fairlease.model.amount import HOUR, MINUTE
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope, Lending
from fairlease.model.lease import Role
from fairlease.model.node import Node
from fairlease.model.record import key
from fairlease.model.run import Follow, Funding, Locality, LocationPolicy, Malleable, Resources, RunSpec, Runtime
from fairlease.scheduler import Scheduler, Tick
from fairlease.sim.auditor.auditor import Auditor

T0 = 1_767_571_200_000
FLAVOR = "H100"

_LOCALITY = {"group_gpus", "allow_cross_group_spread", "location", "location_policy"}
_RUNTIME = {"max_duration", "expected_duration", "latest_start", "checkpoint", "on_preempt", "retries"}
_FUNDING = {"allow_borrow", "max_borrow_gpus", "sponsors"}

__all__ = [
    "FLAVOR",
    "HOUR",
    "MINUTE",
    "T0",
    "LocationPolicy",
    "World",
    "budget",
    "cap",
    "envelope",
    "lending",
    "node",
    "run",
]


def node(name: str, gpus: int = 8, domain: str = "A", region: str = "west", flavor: str = FLAVOR, **more: Any) -> Node:  # noqa: ANN401 - handed on to the record as it is
    """A node of one cluster per region."""
    labels = {"region": region, "cluster": f"{region}-1", "fabric.domain": domain, "gpu.flavor": flavor}
    return Node(name=name, labels=labels | more.pop("labels", {}), gpus=gpus, **more)


def envelope(name: str = "e", concurrency: int = 64, **more: Any) -> Envelope:  # noqa: ANN401 - handed on to the record
    """An envelope whose money may be spent everywhere, unless told otherwise."""
    flavor, selector = more.pop("flavor", FLAVOR), more.pop("selector", {"region": "*"})
    return Envelope(name=name, flavor=flavor, selector=selector, concurrency=concurrency, **more)


def lending(**more: Any) -> Lending:  # noqa: ANN401 - handed on to the record as it is
    """A policy that lends to everyone, unless told otherwise."""
    return Lending(**{"allow": True} | more)


def cap(name: str, envelopes: Iterable[str], **more: Any) -> AggregateCap:  # noqa: ANN401 - handed on to the record as it is
    """An aggregate cap."""
    return AggregateCap(name=name, flavor=FLAVOR, envelopes=tuple(envelopes), **more)


def budget(owner: str, *envelopes: Envelope, **more: Any) -> BudgetSpec:  # noqa: ANN401 - handed on to the record as it is
    """A Budget; without envelopes, one of 64 GPUs."""
    return BudgetSpec(owner=owner, envelopes=envelopes or (envelope(),), **more)


def run(owner: str, total: int, pod: int = 1, **more: Any) -> RunSpec:  # noqa: ANN401 - handed on to the record as it is
    """A run; keywords of locality, runtime and funding stand beside those of the run itself."""
    parts = {name: {field: more.pop(field) for field in fields & more.keys()} for name, fields in (
        ("locality", _LOCALITY), ("runtime", _RUNTIME), ("funding", _FUNDING),
    )}  # fmt: skip
    if "elastic" in more:
        least, most, step = more.pop("elastic")
        more["malleable"] = Malleable(min_total_gpus=least, max_total_gpus=most, step_gpus=step)
    return RunSpec(
        owner=owner,
        resources=Resources(gpu_type=more.pop("flavor", FLAVOR), total_gpus=total),
        locality=Locality(**parts["locality"]),
        runtime=Runtime(**parts["runtime"]),
        funding=Funding(**parts["funding"]),
        follow=Follow(after=tuple(more.pop("after", ()))),
        spares_per_group=more.pop("spares", 0),
        gpus_per_pod=pod,
        **more,
    )


class World:
    """A scheduler over a ledger in memory, in virtual time, with an auditor who must agree with everything."""

    def __init__(self, *things: Node | BudgetSpec) -> None:
        self.store = MemoryStore()
        self.scheduler = Scheduler(self.store)
        self.auditor = Auditor()
        self.now = T0
        self.faulty = False
        self._heard = 0
        self.tick(*(self._setting(thing) for thing in things))

    @staticmethod
    def _setting(thing: Node | BudgetSpec) -> cmd.AnyCommand:
        if isinstance(thing, Node):
            return cmd.SetNode(thing)
        return cmd.SetBudget(key(thing.owner.replace(":", "-")), thing)

    # --- acting --------------------------------------------------------------------------------------------------------

    def tick(self, *commands: cmd.AnyCommand) -> Tick:
        """One tick now; the auditor hears it."""
        done = self.scheduler.tick(self.now, *commands)
        if not self.faulty:
            assert not done.decision.faults, done.decision.faults
        for entry in self.store.entries(self._heard):
            self.auditor.witness(entry)
            self._heard = entry.seq
        assert self.auditor.violations == []
        dirty = self.scheduler.state.dirty
        assert not dirty, "every entry ends settled"
        assert not dirty.shaken, "a restart knows of nothing that was left over"
        return done

    def write(self, *things: Node | BudgetSpec) -> Tick:
        """Write nodes and Budgets; a Budget is named after its owner."""
        return self.tick(*(self._setting(thing) for thing in things))

    def submit(self, name: str, spec: RunSpec) -> str:
        """Ask for GPUs; how that came out (`Running`, or the reason for waiting)."""
        self.tick(cmd.Submit(key(name), spec))
        return self.how(name)

    def end(self, name: str, exit_code: int = 0) -> None:
        """The work of a run ends."""
        self.tick(cmd.WorkEnded(key(name), self.run(name).attempt, exit_code))

    def wait(self, ms: int) -> None:
        """Time passes; every timer fires at its exact time."""
        until = self.now + ms
        for _ in range(1000):
            due = self.scheduler.next_timer()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.tick(cmd.TimePassed())
        self.now = until
        self.auditor.settled(self.now)
        assert self.auditor.violations == []

    def oversleep(self, ms: int) -> None:
        """Time passes, and nobody tells the scheduler: the auditor no longer asks for exact times."""
        self.now += ms
        self.auditor.punctual = False

    def restart(self) -> None:
        """Rebuild the scheduler from the ledger."""
        self.scheduler = Scheduler(self.store)

    # --- looking -------------------------------------------------------------------------------------------------------

    def run(self, name: str) -> RunState:
        """A run that is not over."""
        return self.scheduler.state.runs[key(name)]

    def how(self, name: str) -> str:
        """`Running`, why it waits, or why it ended."""
        asked = self.auditor.runs[key(name)]
        return asked.reason.value if asked.over or asked.started is None else asked.phase.value

    def leases(self, name: str, *, open_only: bool = True) -> list[LeaseRow]:
        """A run's leases in opening order."""
        return list(self.store.leases(LeaseQuery(run=key(name), open=True if open_only else None)))

    def payers(self, name: str) -> dict[str, int]:
        """GPUs by payer (`owner/envelope`), spares included."""
        found: dict[str, int] = {}
        for row in self.leases(name):
            who = f"{row.lease.payer.owner}/{row.lease.payer.envelope}"
            found[who] = found.get(who, 0) + row.lease.gpus
        return found

    def nodes(self, name: str, role: Role = Role.ACTIVE) -> list[str]:
        """The node of each pod, in rank order."""
        return [row.lease.node for row in self.leases(name) if row.lease.role is role]

    def closures(self, name: str) -> set[str | None]:
        """How a run's leases closed."""
        return {row.closure for row in self.leases(name, open_only=False)}

    def overdrawn(self) -> set[str]:
        """Names of runs with an overdrawn unit."""
        return {unit[0].partition("/")[2] for unit in self.scheduler.state.overdrawn}

    def told(self, kind: type[ev.Event]) -> list[Any]:
        """Every event of a kind, in order."""
        return [event for entry in self.store.entries() for event in entry.events if isinstance(event, kind)]

    def account(self, owner: str, name: str = "e") -> Account:
        """The books of an envelope."""
        return self.scheduler.state.account(key(owner.replace(":", "-")), name)
