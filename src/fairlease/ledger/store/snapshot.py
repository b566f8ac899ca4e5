"""Snapshots: the folded state as bytes, so that a restart does not replay all history.

Only what cannot be derived is kept: settings, nodes, Budgets, the past of each envelope, runs that live with their leases, how the
others ended. Everything else (free slots, money in use, queue, timers) is built from that by the same code that `apply` uses.

A version of Fairlease reads what those before it wrote: `tests/ledger/kept` has a snapshot of every format there was. What a later
one wrote is passed over, and never half understood (docs/design/0007).
"""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING

import msgspec

from fairlease.ledger.learning.durations import Kept
from fairlease.ledger.learning.waits import KeptWaits
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.capacity import NodeState
from fairlease.ledger.state.names import KeptNames
from fairlease.ledger.state.runs import Hold, Leaving, Meter, RunState, Unit
from fairlease.ledger.state.state import State
from fairlease.ledger.state.timers import Due, TimerKey
from fairlease.ledger.store.protocol import Head, Snapshot
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.lease import Lease, Payer
from fairlease.model.node import Node
from fairlease.model.record import Key, Record
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.ledger.state.accounts import Usage


class FrozenNode(Record, frozen=True, kw_only=True):
    """A node and what was observed of it."""

    node: Node
    peak: int
    failed: bool
    not_ready_since: int | None


class FrozenUsage(Record, frozen=True, kw_only=True):
    """A step history: arrays of 64-bit integers as bytes."""

    rate: int
    total: int
    at: int
    thin: int = 0
    times: bytes
    totals: bytes


class FrozenAccount(Record, frozen=True, kw_only=True):
    """An envelope's past."""

    budget: Key
    envelope: str
    owner: str
    since: int
    usage: FrozenUsage
    lent: FrozenUsage


class FrozenHold(Record, frozen=True, kw_only=True):
    """A reservation in force."""

    made: ev.ReservationMade
    made_at: int
    state: ReservationState
    expected: int


class FrozenRun(Record, frozen=True, kw_only=True):
    """A run that lives."""

    key: Key
    spec: RunSpec
    by: str | None
    submitted_at: int
    asked_at: int
    order: int
    attempt: int
    failures: int
    faults: int = 0
    phase: Phase
    reason: Reason
    message: str
    tally: dict[str, int]
    since: int
    started_at: int | None
    first_started_at: int | None
    deadline: int | None
    not_before: int | None = None
    awaits: tuple[Key, ...] | None = None
    starting: bool = False
    number: int
    reservations: int
    displaced_by: tuple[Key, ...]
    foreseen: tuple[int, ev.Foreseen] | None
    foreseen_first: tuple[int, ev.Foreseen] | None
    expected: int
    hold: FrozenHold | None
    changed_at: int
    steady: tuple[int, int]
    stalled: Reason | None
    leases: tuple[Lease, ...]
    meters: dict[str, tuple[int, int, int]]
    sponsors: dict[str, tuple[int, int, int]]
    overdrawn: tuple[tuple[Unit, int | None], ...]
    graceful: bool = False
    leaving: tuple[Leaving, ...] = ()
    awaited: dict[str, tuple[int, Payer]] = {}


FORMAT = 6
"""One more whenever something is kept that was not, or means something else. The defaults of new fields are right for old ones."""


class FrozenState(Record, frozen=True, kw_only=True):
    """Everything that cannot be derived."""

    format: int = 1
    at: int
    config: Config
    nodes: tuple[FrozenNode, ...]
    budgets: tuple[tuple[Key, BudgetSpec], ...]
    accounts: tuple[FrozenAccount, ...]
    runs: tuple[FrozenRun, ...]
    shapes: tuple[tuple[bytes, Reason], ...]
    due: tuple[tuple[TimerKey, int], ...]
    ended: dict[Key, str] = {}
    names: KeptNames | None = None
    orders: int
    serial: int
    outcomes: int
    last_outcome: str
    durations: tuple[Kept, ...]
    forecasts: KeptWaits | None = None


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(FrozenState)


def take(state: State, head: Head) -> Snapshot:
    """The snapshot of a state that stands at `head`."""
    body = freeze(state)
    return Snapshot(seq=head.seq, hash=head.hash, at=head.at, digest=hashlib.sha256(body).hexdigest(), body=body)


def open_up(snapshot: Snapshot) -> State | None:
    """The state a snapshot holds; None where it was taken by a version that writes them otherwise."""
    frozen = _read(snapshot)
    return None if frozen is None else _thaw(frozen)


def readable(snapshot: Snapshot) -> bool:
    """Whether this version knows what a snapshot says."""
    return _read(snapshot) is not None


def _read(snapshot: Snapshot) -> FrozenState | None:
    try:
        frozen = _decoder.decode(snapshot.body)
    except msgspec.MsgspecError:
        return None
    return frozen if frozen.format <= FORMAT else None


def freeze(state: State) -> bytes:
    """A state as bytes; equal states give equal bytes."""
    frozen = FrozenState(
        format=FORMAT,
        at=state.at,
        config=state.config,
        nodes=tuple(_freeze_node(each) for _, each in sorted(state.capacity.nodes.items())),
        budgets=tuple(sorted(state.budgets.items())),
        accounts=tuple(
            FrozenAccount(
                budget=Key(each.id[0]),
                envelope=each.id[1],
                owner=each.owner,
                since=each.since,
                usage=_freeze_usage(each.usage),
                lent=_freeze_usage(each.lent),
            )
            for _, each in sorted(state.accounts.items())
        ),
        runs=tuple(_freeze_run(each) for _, each in sorted(state.runs.items())),
        shapes=tuple(sorted((shape.key, shape.reason) for shape in state.queue.shapes.values())),
        due=tuple(sorted((timer, when) for timer, when in state.timers.times.items() if _kept(timer, when, state.at))),
        names=state.ended.freeze(),
        orders=state.orders,
        serial=state.serial,
        outcomes=state.outcomes,
        last_outcome=state.last_outcome,
        durations=tuple(state.durations.freeze()),
        forecasts=state.waits.freeze(),
    )
    return _encoder.encode(frozen)


def derived(state: State) -> dict[str, object]:
    """What the indexes of a state say; of two states with equal bytes it must be equal too, or an index has gone astray."""
    accounts = sorted(state.accounts.items())
    return {
        "money": [
            (key, each.used, each.lent_used, dict(each.gpus), each.promise.save(), each.lent_promise.save())
            for key, each in accounts
        ],
        "slots": [
            (name, each.free, each.spare, each.tenant, each.barred, each.lien)
            for name, each in sorted(state.capacity.nodes.items())
        ],
        "hosts": sorted(state.hosts),
        "domains": [
            (flavor, pool.free, sorted((key, domain.free) for key, domain in pool.domains.items()))
            for flavor, pool in sorted(state.capacity.pools.items())
            if pool.domains
        ],
        "queue": sorted((key, tuple(shape.orders), shape.reason.value) for key, shape in state.queue.shapes.items()),
        "resting": sorted(state.queue.resting),
        "following": sorted((key, sorted(runs)) for key, runs in state.queue.following.items() if runs),
        "growth": sorted((place, sorted(runs)) for place, runs in state.hungry.items() if runs),
        "standings": [
            sorted((place, tuple(sorted(runs))) for place, runs in kind.items() if runs)
            for kind in (state.standings.near, state.standings.far, state.standings.blocked)
        ],
        "alike": sorted((shape, tuple(sorted(runs))) for shape, runs in state.standings.alike.items()),
        "timers": sorted(state.timers.times.items()),
        "loans": state.loans.all(),
        "work": (
            sorted(run.key for run in state.running()),
            sorted(state.opportunistic),
            sorted(state.overdrawn.items()),
            state.open_leases,
            sorted(state.leaving),
        ),
    }


def thaw(body: bytes) -> State:
    """A state from its bytes; indexes are built by applying what the bytes tell."""
    return _thaw(_decoder.decode(body))


def _thaw(frozen: FrozenState) -> State:
    state = State()
    state.at = frozen.at
    state.apply(frozen.at, ev.Configured(config=frozen.config))
    for each in frozen.nodes:
        _thaw_node(state, each)
    for budget, spec in frozen.budgets:
        state.apply(frozen.at, ev.BudgetSet(budget=budget, spec=spec))
    if frozen.names is not None:
        state.ended.thaw(frozen.names)
    for ended, phase in sorted(frozen.ended.items()):  # up to format 3, without times
        state.ended.add(state.undo, ended, frozen.at, completed=phase == Phase.COMPLETED.value)
    for run in sorted(frozen.runs, key=lambda each: each.order):
        _thaw_run(state, run)
    for account in frozen.accounts:
        books = state.account(account.budget, account.envelope)
        books.owner, books.since = account.owner, account.since
        _thaw_usage(books.usage, account.usage)
        _thaw_usage(books.lent, account.lent)
    for shape, reason in frozen.shapes:
        state.queue.settle(shape, reason)
    for books in state.accounts.values():
        state.retime(books)
    for timer in [each for each in state.timers.times if each[0] is Due.CAP]:
        state.timers.set(timer, None)
    for timer, when in frozen.due:
        state.timers.set(timer, when)
    state.orders, state.serial = frozen.orders, frozen.serial
    state.outcomes, state.last_outcome = frozen.outcomes, frozen.last_outcome
    state.durations.thaw(frozen.durations)
    if frozen.forecasts is not None:  # before format 5 something else was learned, which is forgotten
        state.waits.thaw(frozen.forecasts)
    state.settled()
    return state


def _kept(timer: TimerKey, when: int, now: int) -> bool:
    """Timers that cannot be derived: those not heard yet, and those of caps, which may follow from a turn not heard yet."""
    return when <= now or timer[0] is Due.CAP


def _freeze_node(each: NodeState) -> FrozenNode:
    return FrozenNode(node=each.node, peak=each.peak, failed=each.failed, not_ready_since=each.not_ready_since)


def _thaw_node(state: State, frozen: FrozenNode) -> None:
    node = NodeState(frozen.node)
    node.peak = frozen.peak
    node.free = (1 << frozen.peak) - 1
    node.failed, node.not_ready_since = frozen.failed, frozen.not_ready_since
    state.admit(node)


def _freeze_usage(usage: Usage) -> FrozenUsage:
    times, totals = usage.times.tobytes(), usage.totals.tobytes()
    return FrozenUsage(rate=usage.rate, total=usage.total, at=usage.at, thin=usage.thin, times=times, totals=totals)


def _thaw_usage(usage: Usage, frozen: FrozenUsage) -> None:
    usage.rate, usage.total, usage.at, usage.thin = frozen.rate, frozen.total, frozen.at, frozen.thin
    usage.times, usage.totals = array("q"), array("q")
    usage.times.frombytes(frozen.times)
    usage.totals.frombytes(frozen.totals)


_PLAIN = (
    "key", "spec", "by", "submitted_at", "asked_at", "order", "attempt", "failures", "faults", "phase", "reason", "message",
    "tally", "since", "started_at", "first_started_at", "deadline", "not_before", "number", "reservations", "displaced_by",
    "expected", "changed_at", "steady", "stalled", "foreseen", "foreseen_first", "awaits", "starting", "graceful",
)  # fmt: skip


def _freeze_hold(run: RunState) -> FrozenHold | None:
    hold = run.hold
    if hold is None:
        return None
    return FrozenHold(made=hold.made(run.key), made_at=hold.made_at, state=hold.state, expected=hold.expected)


def _thaw_hold(frozen: FrozenHold) -> Hold:
    hold = Hold(frozen.made, frozen.made_at, frozen.expected)
    hold.state = frozen.state
    return hold


def _freeze_run(run: RunState) -> FrozenRun:
    return FrozenRun(
        **{name: getattr(run, name) for name in _PLAIN},
        hold=_freeze_hold(run),
        leases=tuple(sorted(run.leases.values(), key=lambda lease: lease.serial)),
        meters={name: meter.save() for name, meter in sorted(run.meters.items())},
        sponsors={name: meter.save() for name, meter in sorted(run.sponsors.items())},
        overdrawn=tuple(sorted(run.overdrawn.items())),
        leaving=tuple(sorted(run.leaving.values(), key=lambda each: each.lease.serial)),
        awaited=dict(sorted(run.awaited.items())),
    )


def _thaw_run(state: State, frozen: FrozenRun) -> None:
    run = RunState(frozen.key, frozen.spec, frozen.submitted_at, frozen.order)
    for name in _PLAIN:
        setattr(run, name, getattr(frozen, name))
    if frozen.awaits is None:  # not kept before format 4
        run.awaits = state.upstream(run)
    run.awaited.update(frozen.awaited)
    state.revive(run, frozen.leases, dict(frozen.overdrawn), frozen.leaving)
    if frozen.hold is not None:
        state.reserve(run, _thaw_hold(frozen.hold))
    for source, meters in ((frozen.meters, run.meters), (frozen.sponsors, run.sponsors)):
        for name, saved in source.items():
            meters.setdefault(name, Meter()).restore(saved)
