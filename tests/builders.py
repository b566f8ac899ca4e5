"""Builders: a test names what matters to it, and the rest is sound.

    History().world().submits("train").opens("train", cell("n1", 0, 1)).after(HOUR).closes("train").ends("train")

`a_node`, `an_envelope`, `a_budget` and `a_run` make records. A `History` makes events, entry by entry: each verb adds an
event to the entry at hand, `after` seals it and lets time pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.chain import Row, row_of, seal
from fairlease.ledger.store.protocol import Entry, Head, Store
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope
from fairlease.model.config import Config
from fairlease.model.lease import Fund, Payer, Role
from fairlease.model.node import Node
from fairlease.model.record import Key, key, split
from fairlease.model.run import Phase, Resources, RunSpec
from fairlease.reason import Reason

EPOCH = 1_700_000_000_000
OWNER = "org:ai"
BUDGET = key("ai")
FLAVOR = "H100"
PLAN = "0" * 64

Step = tuple[int, tuple[ev.AnyEvent, ...]]
AnyStore = TypeVar("AnyStore", bound=Store)


def a_node(name: str = "n1", *, gpus: int = 8, labels: dict[str, str] | None = None, **changes: Any) -> Node:  # noqa: ANN401 - any field
    """A node of eight H100 in cluster c."""
    there = {"region": "eu", "cluster": "c", "fabric.domain": "d", "gpu.flavor": FLAVOR}
    return Node(name=name, gpus=gpus, labels=there | (labels or {}), **changes)


def an_envelope(name: str = "main", *, concurrency: int = 64, **changes: Any) -> Envelope:  # noqa: ANN401 - any field
    """An envelope of 64 H100 in cluster c, without bounds in time."""
    fields = {"flavor": FLAVOR, "selector": {"cluster": "c"}} | changes
    return Envelope(name=name, concurrency=concurrency, **fields)


def a_budget(*envelopes: Envelope, owner: str = OWNER, caps: tuple[AggregateCap, ...] = ()) -> BudgetSpec:
    """A Budget of `org:ai` with one envelope, `main`, unless others are given."""
    return BudgetSpec(owner=owner, envelopes=envelopes or (an_envelope(),), aggregate_caps=caps)


def a_run(*, owner: str = OWNER, gpus: int = 8, **changes: Any) -> RunSpec:  # noqa: ANN401 - any field
    """A rigid run of eight GPUs, owned by `org:ai`."""
    resources = Resources(gpu_type=FLAVOR, total_gpus=gpus)
    return RunSpec(owner=owner, resources=resources, **({"gpus_per_pod": gpus} | changes))


def a_payer(envelope: str = "main", *, budget: Key = BUDGET, owner: str = OWNER, fund: Fund = Fund.OWNED) -> Payer:
    """The `main` envelope of `org:ai`, as the run's own money."""
    return Payer(budget=budget, envelope=envelope, owner=owner, fund=fund)


def cell(node: str, *slots: int, payer: int = 0, role: Role = Role.ACTIVE, group: int = 0, number: int = -1) -> ev.Cell:
    """A lease on a node; its number is the next in its attempt, unless one is given."""
    return ev.Cell(number, group, max(number, 0), node, slots, payer, role)


class History:
    """Events in the making. `run` is a name or a key; `train` means `default/train`."""

    def __init__(self, start: int = EPOCH) -> None:
        self.now = start
        self.steps: list[Step] = []
        self._pending: list[ev.AnyEvent] = []
        self._numbers: dict[tuple[Key, int], int] = {}

    # --- time ------------------------------------------------------------------------------------------------------

    def after(self, ms: int) -> History:
        """Seal the entry at hand; the next one lies `ms` later."""
        if self._pending:
            self.steps.append((self.now, tuple(self._pending)))
            self._pending = []
        self.now += ms
        return self

    def says(self, *events: ev.AnyEvent) -> History:
        """Any events."""
        self._pending += events
        return self

    # --- the world -------------------------------------------------------------------------------------------------

    def world(self, *nodes: str) -> History:
        """Nodes (n1 and n2) and the Budget `ai`, in an entry of their own."""
        for name in nodes or ("n1", "n2"):
            self.node(a_node(name))
        return self.budget(a_budget()).after(0)

    def node(self, node: Node) -> History:
        return self.says(ev.NodeSet(node=node))

    def budget(self, spec: BudgetSpec, name: str = "ai") -> History:
        return self.says(ev.BudgetSet(budget=key(name), spec=spec))

    def config(self, **changes: Any) -> History:  # noqa: ANN401 - any field
        return self.says(ev.Configured(config=Config(**changes)))

    # --- runs ------------------------------------------------------------------------------------------------------

    def submits(self, run: str, spec: RunSpec | None = None) -> History:
        return self.says(ev.RunSubmitted(run=key(run), spec=spec or a_run()))

    def opens(
        self,
        run: str,
        *cells: ev.Cell,
        payers: tuple[Payer, ...] | None = None,
        attempt: int = 1,
        reason: Reason = Reason.Start,
    ) -> History:
        numbered = []
        for each in cells:
            number = self._numbers.get((key(run), attempt), 0) if each.number < 0 else each.number
            self._numbers[key(run), attempt] = number + 1
            numbered.append(msgspec.structs.replace(each, number=number, rank=number))
        return self.says(
            ev.LeasesOpened(
                run=key(run),
                attempt=attempt,
                reason=reason,
                payers=payers or (a_payer(),),
                cells=tuple(numbered),
                plan=PLAN,
            )
        )

    def closes(self, run: str, *names: str, reason: Reason = Reason.Completed, seed: str | None = None) -> History:
        return self.says(ev.LeasesClosed(run=key(run), reason=reason, names=names, seed=seed))

    def requeues(self, run: str, reason: Reason = Reason.NodeFailure) -> History:
        return self.says(ev.RunRequeued(run=key(run), reason=reason, message=""))

    def loses_cover(self, run: str, envelope: str = "main", group: int = -1) -> History:
        return self.says(
            ev.CoverLost(run=key(run), budget=BUDGET, envelope=envelope, group=group, reason=Reason.Overdrawn)
        )

    def regains_cover(self, run: str, envelope: str = "main", group: int = -1) -> History:
        return self.says(ev.CoverRegained(run=key(run), budget=BUDGET, envelope=envelope, group=group))

    def ends(self, run: str, bill: ev.Bill | None = None, phase: Phase = Phase.COMPLETED) -> History:
        """The end of a run, with the bill that it really has, unless another is given."""
        due = bill if bill is not None else a_bill([*self.steps, (self.now, tuple(self._pending))], key(run))
        return self.says(
            ev.RunEnded(run=key(run), phase=phase, reason=Reason.Completed, message="", attempt=1, bill=due)
        )

    # --- what comes of it ------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """The history as a chain."""
        self.after(0)
        head, made = Head(), []
        for at, events in self.steps:
            entry, _ = seal(head, at, events)
            head = Head(seq=entry.seq, hash=entry.hash, at=at)
            made.append(entry)
        return made

    def rows(self) -> list[Row]:
        """The history as it would lie in a store."""
        return [row_of(entry) for entry in self.entries()]

    def into(self, store: AnyStore) -> AnyStore:
        """Append the history to a store."""
        self.after(0)
        for at, events in self.steps:
            store.append(store.head().seq, at, events)
        return store


def a_bill(steps: Sequence[Step], run: Key) -> ev.Bill:
    """What a run owes, the slow way: between any two entries, every open lease by its GPUs, in the class it is in then."""
    bill: dict[str, int] = {}
    sponsors: dict[str, int] = {}
    leases: dict[str, tuple[ev.Cell, Payer]] = {}
    lost: set[tuple[str, int]] = set()
    for place, (at, events) in enumerate(steps):
        for event in events:
            if getattr(event, "run", None) == run:
                _follow(event, leases, lost)
        until = steps[place + 1][0] if place + 1 < len(steps) else at
        for each, payer in leases.values():
            spent = len(each.slots) * (until - at)
            over = (payer.envelope, -1) in lost or (payer.envelope, each.group) in lost
            kind = "spares" if each.role is Role.SPARE else "overdrawn" if over else payer.fund.value
            bill[kind] = bill.get(kind, 0) + spent
            if payer.fund is Fund.BORROWED and each.role is not Role.SPARE:
                sponsors[payer.owner] = sponsors.get(payer.owner, 0) + spent
    return ev.Bill(**bill, sponsors=sponsors)


def _follow(event: ev.AnyEvent, leases: dict[str, tuple[ev.Cell, Payer]], lost: set[tuple[str, int]]) -> None:
    if isinstance(event, ev.LeasesOpened):
        for each in event.cells:
            leases[f"{split(event.run)[1]}-{event.attempt}-{each.number}"] = (each, event.payers[each.payer])
    elif isinstance(event, ev.LeasesClosed):
        for name in event.names or tuple(leases):
            leases.pop(name, None)
        units = {(payer.envelope, group) for each, payer in leases.values() for group in (-1, each.group)}
        lost &= units
    elif isinstance(event, ev.CoverLost):
        lost.add((event.envelope, event.group))
    elif isinstance(event, ev.CoverRegained):
        lost.discard((event.envelope, event.group))
