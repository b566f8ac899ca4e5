"""Check: every index of a state against a scan of what it is derived from: runs with their leases, nodes, Budgets.

Slow on purpose, and written without the primitives that keep the indexes. `State.apply` calls it after every event where
`State.checking` is set: all tests and random worlds do that.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from fairlease.ledger.state.slots import bits_of
from fairlease.ledger.state.timers import Due
from fairlease.model.lease import Fund, Role
from fairlease.model.reservation import ReservationState
from fairlease.model.run import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.ledger.state.accounts import Account
    from fairlease.ledger.state.capacity import NodeState
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.world import StateIndexes
    from fairlease.model.lease import Lease

Scanned = tuple[str, object, object]
"""What is compared, what the index says, and what the scan gives."""

_RUN_TIMERS = (Due.DEADLINE, Due.LATEST_START, Due.RESERVATION, Due.GROW, Due.RETRY, Due.DRAIN)


def check(state: StateIndexes) -> None:
    """Raise where an index says something else than a scan."""
    leases = [lease for run in state.runs.values() for lease in run.open]
    books = (_leases(state, leases), _nodes(state, leases), _accounts(state, leases))
    for part in (*books, _runs(state), _queue(state), _learning(state)):
        for what, indexed, scanned in part:
            assert indexed == scanned, f"the index of {what} says {indexed}, a scan gives {scanned}"


def _leases(state: StateIndexes, leases: list[Lease]) -> Iterator[Scanned]:
    yield "open leases", state.open_leases, len(leases)
    leaving = [each for run in state.runs.values() for each in run.leaving.values()]
    yield "leases that are leaving", state.leaving, {each.lease.serial: each for each in leaving}
    lent: Counter[tuple[str, str]] = Counter()
    for lease in leases:
        if lease.payer.fund is Fund.BORROWED:
            lent[lease.payer.owner, state.runs[lease.run].spec.owner] += lease.gpus
    yield "loans", state.loans.all(), [(*pair, gpus) for pair, gpus in sorted(lent.items())]


def _nodes(state: StateIndexes, leases: list[Lease]) -> Iterator[Scanned]:
    held: dict[str, dict[int, Lease]] = {name: {} for name in state.capacity.nodes}
    for lease in leases:
        held[lease.node][lease.serial] = lease
    liens: dict[str, dict[str, int]] = {name: {} for name in state.capacity.nodes}
    for run in state.holds.values():
        for name, slots in run.hold.lien.items() if run.hold is not None and run.hold.holds else ():
            if name in liens:
                liens[name][run.key] = slots
    hosts = set()
    for name, node in state.capacity.nodes.items():
        yield f"leases on {name}", node.leases, held[name]
        yield f"liens on {name}", node.liens, liens[name]
        yield f"all liens on {name}", node.lien, _union(liens[name].values())
        held_by = {
            role: _union(bits_of(each.slots) for each in held[name].values() if each.role is role) for role in Role
        }
        taken = _union(held_by.values())
        yield (
            f"slots of {name}",
            (node.free & taken, node.spare, node.tenant),
            (0, held_by[Role.SPARE], held_by[Role.BORROWED]),
        )
        yield f"free slots of {name}", node.free, ((1 << node.peak) - 1) & ~taken
        if held_by[Role.SPARE] & ~held_by[Role.BORROWED]:
            hosts.add(name)
    yield "nodes with spares to borrow", set(state.hosts), hosts
    for flavor, pool in state.capacity.pools.items():
        mine = [node for domain in pool.domains.values() for node in domain.nodes.values()]
        yield f"room of {flavor}", (pool.free, pool.idle, pool.liened), _room(mine)
        yield (
            f"nodes with room under a lien in {flavor}",
            set(pool.tense),
            {node for node in mine if node.free & node.lien and not node.barred},
        )
        for domain in pool.domains.values():
            here = list(domain.nodes.values())
            yield f"room of {domain.name}", (domain.free, domain.liened), (_room(here)[0], _room(here)[2])
            seats = {node.room: 0 for node in here}
            rooms = domain.rooms
            for node in here:
                seats[node.room] |= node.seat
            yield f"seats of {domain.name}", {free: bits for free, bits in rooms.items() if bits}, seats
        holes = [domain.free for domain in pool.by_hole(0)]
        yield f"holes of {flavor}", holes, sorted(domain.free for domain in pool.domains.values())


def _union(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


def _room(nodes: list[NodeState]) -> tuple[int, int, int]:
    return sum(each.room for each in nodes), sum(each.idle for each in nodes), sum(each.lien != 0 for each in nodes)


def _accounts(state: StateIndexes, leases: list[Lease]) -> Iterator[Scanned]:
    by_account: dict[tuple[str, str], list[Lease]] = {name: [] for name in state.accounts}
    for lease in leases:
        by_account[lease.payer.budget, lease.payer.envelope].append(lease)
    for name, account in state.accounts.items():
        mine = by_account[name]
        yield f"leases paid by {name}", account.open, {lease.serial: lease for lease in mine}
        lent = [lease for lease in mine if lease.payer.fund is Fund.BORROWED]
        firm = [[each for each in found if not each.opportunistic] for found in (mine, lent)]
        yield f"GPUs of {name}", (account.used, account.lent_used), (_gpus(firm[0]), _gpus(firm[1]))
        yield f"rates of {name}", (account.usage.rate, account.lent.rate), (_gpus(mine), _gpus(lent))
        yield f"classes of {name}", account.gpus, _classes(state, account, mine)
        for what, promise, found in (("all", account.promise, mine), ("lent", account.lent_promise, lent)):
            timed = [(lease.gpus, _ends(state, lease)) for lease in found]
            limited = [(gpus, deadline) for gpus, deadline in timed if deadline is not None]
            yield (
                f"promises of {name}, {what}",
                promise.save(),
                (
                    sum(gpus * deadline for gpus, deadline in limited),
                    sum(gpus for gpus, _ in limited),
                    sum(gpus for gpus, deadline in timed if deadline is None),
                ),
            )
    units = {unit: ends for run in state.runs.values() for unit, ends in run.overdrawn.items()}
    yield "overdrawn units", state.overdrawn, units


def _ends(state: StateIndexes, lease: Lease) -> int | None:
    """Until when a lease may use up hours."""
    leaving = state.leaving.get(lease.serial)
    return state.runs[lease.run].deadline if leaving is None else leaving.until


def _gpus(leases: list[Lease]) -> int:
    return sum(lease.gpus for lease in leases)


def _classes(state: StateIndexes, account: Account, leases: list[Lease]) -> dict[str, int]:
    found = dict.fromkeys(account.gpus, 0)
    for lease in leases:
        run = state.runs[lease.run]
        leaving = state.leaving.get(lease.serial)
        overdrawn = run.unit(lease) in run.overdrawn if leaving is None else leaving.overdrawn
        kind = "overdrawn" if overdrawn else "opportunistic" if lease.opportunistic else lease.payer.fund.value
        found["spare" if lease.role is Role.SPARE else kind] += lease.gpus
    return found


def _runs(state: StateIndexes) -> Iterator[Scanned]:
    running = {True: set(), False: set()}  # type: dict[bool, set[object]]
    hungry: dict[object, set[object]] = {}
    timers: dict[object, int] = {}
    for key, run in state.runs.items():
        active = [lease for lease in run.leases.values() if lease.role is not Role.SPARE]
        spares = [lease for lease in run.leases.values() if lease.role is Role.SPARE]
        yield f"width of {key}", (run.width, run.spare_gpus), (_gpus(active), _gpus(spares))
        if run.phase is Phase.RUNNING:
            running[run.spec.opportunistic].add(key)
            if state.wants_to_grow(run) and run.stalled is not None:
                hungry.setdefault((run.spec.resources.gpu_type, run.signature), set()).add(key)
        timers.update(_timers(state, run))
    yield "opportunistic work", set(state.opportunistic), running[True]
    yield "funded work", {key for runs in state.claimants.values() for key in runs}, running[False]
    yield "runs that cannot grow", {place: set(runs) for place, runs in state.hungry.items() if runs}, hungry
    kept = {timer: when for timer, when in state.timers.times.items() if timer[0] in _RUN_TIMERS}
    yield "timers of runs", kept, timers
    counts = Counter(timer[0] for timer in state.timers.times)
    yield "kinds of timers", state.timers.counts, [counts[due] for due in Due]


def _timers(state: StateIndexes, run: RunState) -> Iterator[tuple[object, int]]:
    """What falls due of one run."""
    me, runs = (run.key,), run.phase is Phase.RUNNING
    rests = run.not_before
    if runs and run.deadline is not None:
        yield (Due.DEADLINE, me), max(run.deadline, rests or 0)
    latest = run.spec.runtime.latest_start
    if run.phase is Phase.PENDING and latest is not None and run.attempt == 1:
        yield (Due.LATEST_START, me), max(latest, rests or 0)
    if rests is not None:
        yield (Due.RETRY, me), rests
    hold = run.hold
    if hold is not None and hold.state is ReservationState.PENDING:
        yield (Due.RESERVATION, me), hold.earliest_start
    if state.wants_to_grow(run) and run.stalled is None:
        yield (Due.GROW, me), run.changed_at + state.config.grow_cooldown
    for unit, ends in run.overdrawn.items():
        if ends is not None:
            yield (Due.DRAIN, tuple(map(str, unit))), ends


def _queue(state: StateIndexes) -> Iterator[Scanned]:
    shapes: dict[bytes, set[int]] = {}
    following: dict[object, set[object]] = {}
    for run in state.runs.values():
        if run.phase is not Phase.PENDING:
            continue
        for each in run.awaits:
            following.setdefault(each, set()).add(run.key)
        if not run.awaits and not _rests(run):
            shapes.setdefault(run.shape, set()).add(run.order)
    queue = state.queue
    yield "the queue", {key: set(shape.runs) for key, shape in queue.shapes.items()}, shapes
    yield (
        "places in the queue",
        [sorted(shape.runs) == shape.orders for shape in queue.shapes.values()],
        [True] * len(shapes),
    )
    yield "runs that follow others", {key: set(runs) for key, runs in queue.following.items()}, following
    yield "runs that rest", set(queue.resting), {key for key, run in state.runs.items() if _rests(run)}
    yield "reservations", set(state.holds), {key for key, run in state.runs.items() if run.hold is not None}
    standings = state.standings
    for what, kind in (("near", standings.near), ("far", standings.far), ("blocked", standings.blocked)):
        for flavor, runs in kind.items():
            mine = {
                run.order
                for run in state.holds.values()
                if run.spec.resources.gpu_type == flavor and _place(run) == what
            }
            yield f"{what} reservations of {flavor}", set(runs), mine
    lines = {shape.key for lines in queue.lines.values() for line in lines.values() for shape in line.values()}
    others = {key for shapes in queue.others.values() for key in shapes}
    yield "lines and others", (lines | others, lines & others), (set(shapes), set())


def _rests(run: RunState) -> bool:
    """Whether a run stands outside the queue for a while."""
    return run.not_before is not None or (run.phase is Phase.PENDING and bool(run.leaving))


def _place(run: RunState) -> str:
    assert run.hold is not None, "it is among the reservations in force"
    return "blocked" if not run.hold.holds else "near" if run.hold.lien else "far"


def _learning(state: StateIndexes) -> Iterator[Scanned]:
    waits, opened = state.waits, state.waits.open.values()
    yield "open forecasts", Counter(waits.crowds), Counter(each.horizon for each in opened)
    passing = [(each.dates[each.passed], each.run) for each in opened if each.passed < len(each.dates)]
    yield "dates of forecasts", list(waits.due), sorted(passing)
