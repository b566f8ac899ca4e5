"""Grow: elastic runs widen a step at a time toward what is desired (SEMANTICS §8).

A run may grow when its cooldown is over: its width did not change for `growCooldown`. It is then tried once, after all runs that
wait; if it cannot grow it is told why, and tried again only when something that could help has changed. Growth cuts nobody. A
step first fills up a group that is not full, in that group's domain, then opens new groups, in the run's own domains where no
earlier money is passed over for it. It commits hours for the rest of the attempt only.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.place.bind import bind
from fairlease.engine.place.packing import Block, Need
from fairlease.engine.place.plan import Planner
from fairlease.engine.preempt.shrink import group_widths
from fairlease.engine.refusal import Refusal
from fairlease.ledger.state import events as ev
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.context import Engine
    from fairlease.engine.place.plan import Plan
    from fairlease.ledger.state.accounts import AccountId
    from fairlease.ledger.state.dirty import Dirty
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key


class GrowthCandidates:
    """What happened since growth was last looked at: cooldowns that are over, runs covered again, what could help."""

    def __init__(self, cooled: set[Key] | None = None) -> None:
        self.cooled: set[Key] = cooled or set()
        self.regained: set[Key] = set()
        self.flavors: set[str] = set()
        self.accounts: set[AccountId] = set()
        self.budgets = False

    def take(self, dirty: Dirty) -> None:
        """Remember what changed, before decisions on waiting runs forget it."""
        self.regained |= dirty.regained
        self.flavors |= dirty.flavors | dirty.topology
        self.accounts |= dirty.accounts
        self.budgets |= dirty.budgets


class Piece(NamedTuple):
    """Part of a step that lies in one domain: pods for one group, in the group's domain if it has one."""

    group: int
    need: Need
    within: int | None


def settle(engine: Engine, candidates: GrowthCandidates) -> None:
    """Let those grow that could, in order of asking."""
    regained, engine.state.dirty.regained = candidates.regained | engine.state.dirty.regained, set()
    if not (engine.state.hungry or candidates.cooled or regained):
        return
    for run in sorted(_candidates(engine, candidates, regained), key=lambda each: each.order):
        engine.subject = run.key
        refusal = _grow(engine, run)
        if refusal is not None and run.stalled is not refusal.reason:
            engine.emit(ev.GrowthDeferred(run=run.key, reason=refusal.reason, message=refusal.message))


def _candidates(engine: Engine, changed: GrowthCandidates, regained: set[Key]) -> Iterator[RunState]:
    state = engine.state
    for key in changed.cooled:
        run = state.runs.get(key)
        if run is not None and run.stalled is None and state.wants_to_grow(run) and _cooled(engine, run):
            yield run
    found: dict[Key, RunState] = {}
    for (flavor, signature), runs in state.hungry.items():
        helped = changed.budgets or flavor in changed.flavors
        if helped or (changed.accounts and not engine.family.asked(signature).isdisjoint(changed.accounts)):
            pool = state.capacity.pools.get(flavor)
            free = 0 if pool is None else pool.free
            found |= {
                key: run
                for key, run in runs.items()
                if run.not_before is None and (run.stalled is not Reason.NoRoom or _step(run) <= free)
            }
    for key in regained:
        run = state.runs.get(key)
        if run is not None and run.stalled is Reason.Overdrawn:
            found[key] = run
    yield from found.values()


def _step(run: RunState) -> int:
    assert run.spec.malleable is not None, "only elastic runs grow"
    return run.spec.malleable.step_gpus


def _cooled(engine: Engine, run: RunState) -> bool:
    return engine.now >= run.changed_at + engine.state.config.grow_cooldown


def _grow(engine: Engine, run: RunState) -> Refusal | None:
    """One step wider, or why not."""
    assert run.phase is Phase.RUNNING, "only what runs can grow"
    if run.overdrawn:
        return Refusal(Reason.Overdrawn, "part of it is overdrawn: it grows when all of it is covered", {})
    state, found = engine.state, list[ev.LeasesOpened]()
    with state.trial():
        for piece in _pieces(engine, run):
            planned = _plan(engine, run, piece)
            if isinstance(planned, Refusal):
                return planned
            spots = [spot._replace(group=piece.group) for spot in planned.spots]
            event = bind(run, planned._replace(spots=spots), Reason.Grow)
            state.apply(engine.now, event)
            found.append(event)
    for event in found:
        engine.emit(event)
    return None


def _pieces(engine: Engine, run: RunState) -> Iterator[Piece]:
    """What one step adds: first to a group that is not full, then new groups, with their spares."""
    spec = run.spec
    size, left = spec.pod_gpus, _step(run)
    full = spec.locality.group_gpus or size
    held = {lease.group: lease.node for lease in run.held}
    for group, width in sorted(group_widths(run).items()):
        if width < full and left:
            added = min(full - width, left)
            left -= added
            yield Piece(group, _need(size, added // size, 0), _domain_of(engine, held[group]))
    spares = 0 if spec.opportunistic else spec.spares_per_group // size
    home = None if spec.locality.allow_cross_group_spread else _domain_of(engine, held[min(held)])
    unused = (group for group in count() if group not in held)
    while left:
        added = min(full, left)
        left -= added
        yield Piece(next(unused), _need(size, added // size, spares), home)


def _need(size: int, active: int, spares: int) -> Need:
    return Need(size, (Block(1, active, spares),), together=False, pods=active + spares)


def _domain_of(engine: Engine, node: str) -> int:
    domain = engine.state.capacity.nodes[node].domain
    return 0 if domain is None else domain.mask


def _plan(engine: Engine, run: RunState, piece: Piece) -> Plan | Refusal:
    """Where a piece lies and who pays; in one of the run's domains, unless that would pass over earlier money."""
    state = engine.state
    planner = Planner(state, engine.family, run, engine.now)
    unpaid = planner.unpaid_for(piece.need.pods, "GPUs more")
    if unpaid is not None:
        return unpaid
    width = run.width + piece.need.blocks[0].active * piece.need.size
    domains = (state.capacity.nodes[lease.node].domain for lease in run.leases.values())
    home = {domain: None for domain in domains if domain is not None}
    eligible = -1 if piece.within is None else piece.within
    plan = Planner(state, engine.family, run, engine.now, eligible=eligible, home=home).at(width, piece.need)
    gpus = piece.need.pods * piece.need.size
    return plan or Refusal(Reason.NoRoom, f"{gpus} GPUs more find no room together", {})
