"""Swap: what becomes of runs that lost pods with their nodes (SEMANTICS §8).

All nodes that fail at one moment are looked at together, so that nobody is moved onto a node that is failing too. For each lost
rank a spare of its group takes over: the spare closes, whoever borrowed its slots goes, and an Active lease opens there with the
same rank and the same payer. Groups without enough spares are lost whole, where a malleable run can live without them. What is
to become of a run is settled before any of its spares is touched: a swap is made only for a run that lives on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fairlease.engine.place.bind import digest_of
from fairlease.engine.preempt.shrink import group_widths, release
from fairlease.engine.tick import lifecycle
from fairlease.engine.tick.leaving import ask_to_leave, leaves_at_once
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.slots import works
from fairlease.model.lease import Role
from fairlease.model.node import matches
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.engine.context import Engine
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease, Payer
    from fairlease.model.record import Key

NODES_NAMED = 4
"""Failed nodes that a message names; the leases name them all."""


class Fate(NamedTuple):
    """What becomes of a run: who takes over for whom, and which groups are lost; None where too little would be left."""

    swaps: list[tuple[Lease, Lease]]
    gone: frozenset[int]


def recover(engine: Engine, removed: set[str]) -> None:
    """Close what the failed nodes held, and let every run that lost a pod swap, shrink, ask again or end; `removed` nodes go."""
    fallen, engine.state.dirty.failed = engine.state.dirty.failed, {}
    if not fallen:
        return
    state = engine.state
    lost: dict[Key, list[Lease]] = {}
    left: dict[Key, list[Lease]] = {}
    for name in fallen:
        for serial, lease in sorted(state.capacity.nodes[name].leases.items()):
            (left if serial in state.leaving else lost).setdefault(lease.run, []).append(lease)
    for key, leases in left.items():  # their runs had done without them before
        engine.emit(ev.LeasesClosed(run=key, names=_names(leases), reason=Reason.NodeFailure))
        lifecycle.end_if_left(engine, state.runs[key])
    hurt = [(state.runs[key], leases + _promised(state.runs[key], leases)) for key, leases in lost.items()]
    fates = [(run, run.attempt, ranks, _fate(engine, run, ranks)) for run, ranks in hurt]
    for key, leases in lost.items():
        engine.emit(ev.LeasesClosed(run=key, names=_names(leases), reason=Reason.NodeFailure))
    for run, attempt, ranks, fate in fates:
        if run.key in state.runs and run.attempt == attempt and not run.over:  # else it gave way to another's swap
            engine.subject = run.key
            _carry_out(engine, run, fate, ranks)
    for name in fallen:
        if name in removed:
            removed.remove(name)
            engine.emit(ev.NodeRemoved(node=name))


def _fate(engine: Engine, run: RunState, lost: list[Lease]) -> Fate | None:
    """The attempt of a run whose recovery failed when this tick was tried before ends: its pods are gone in any case."""
    if run.key in engine.faults:
        return None
    engine.subject = run.key
    return fate_of(engine.state, run, lost)


def _names(leases: list[Lease]) -> tuple[str, ...]:
    return tuple(lease.name for lease in leases)


def _promised(run: RunState, lost: list[Lease]) -> list[Lease]:
    """The ranks that were to run on spares that are lost now: they are lost once more."""
    spares = [(lease, *run.awaited[lease.name]) for lease in lost if lease.name in run.awaited]
    return [replace(spare, rank=rank, payer=payer, role=Role.ACTIVE) for spare, rank, payer in spares]


def fate_of(state: State, run: RunState, lost: list[Lease]) -> Fate | None:
    """Whether and how a run lives on without the leases it lost; they are still on its books when this is asked."""
    spares: dict[int, list[Lease]] = {}
    missing: dict[int, list[Lease]] = {}
    for lease in lost:
        if lease.rank >= 0:
            missing.setdefault(lease.group, []).append(lease)
    if not missing:
        return Fate([], frozenset())
    for lease in run.leases.values():
        if (
            lease.role is Role.SPARE
            and lease.group in missing
            and can_take_over(state, lease)
            and not _taken(run, lease)
        ):
            spares.setdefault(lease.group, []).append(lease)
    gone = frozenset(group for group, leases in missing.items() if len(spares.get(group, ())) < len(leases))
    if gone:
        left = {group: gpus for group, gpus in group_widths(run).items() if group not in gone}
        more = release(run, left, sum(left.values()))
        if more is None:
            return None
        gone |= more
    swaps = [pair for group in sorted(missing.keys() - gone) for pair in match(state, missing[group], spares[group])]
    return Fate(swaps, gone)


def _taken(run: RunState, spare: Lease) -> bool:
    """Whether a spare is to take over for another rank already."""
    return spare.name in run.awaited


def can_take_over(state: State, spare: Lease) -> bool:
    """A spare is of use where its node works."""
    return works(state.capacity.nodes[spare.node].barred)


def match(state: State, lost: list[Lease], spares: list[Lease]) -> list[tuple[Lease, Lease]]:
    """A spare for each lost rank: where the same payer may pay, on nodes that are not cordoned, and where nobody must go."""
    left, pairs = list(spares), []
    for lease in sorted(lost, key=lambda each: each.rank):
        chosen = min(left, key=lambda spare: (not may_pay(state, lease.payer, spare.node), *_cost(state, spare)))
        left.remove(chosen)
        pairs.append((lease, chosen))
    return pairs


def _cost(state: State, spare: Lease) -> tuple[bool, bool, int]:
    node = state.capacity.nodes[spare.node]
    return node.barred is not None, bool(tenants(state, spare)), spare.serial


def tenants(state: State, spare: Lease) -> list[Lease]:
    """The Borrowed leases on a spare's slots."""
    node, slots = state.capacity.nodes[spare.node], set(spare.slots)
    if not node.tenant:
        return []
    return [
        lease
        for _, lease in sorted(node.leases.items())
        if lease.role is Role.BORROWED and not slots.isdisjoint(lease.slots)
    ]


def may_pay(state: State, payer: Payer, node: str) -> bool:
    """Whether a payer's money may be spent on a node; one whose envelope is gone pays on as before."""
    terms = state.account(payer.budget, payer.envelope).envelope
    return terms is None or matches(state.capacity.nodes[node].node.labels, terms.selector)


def _carry_out(engine: Engine, run: RunState, fate: Fate | None, lost: list[Lease]) -> None:
    if fate is None:
        if run.leases:
            ask_to_leave(engine, run, (), Reason.Fail)
        lifecycle.preempt(engine, run, Reason.NodeFailure, _told(lost))
        return
    going = tuple(lease.name for lease in run.held if lease.group in fate.gone)
    if going:
        ask_to_leave(engine, run, going, Reason.Shrink)
    if fate.swaps:
        _swap(engine, run, fate.swaps)


def _swap(engine: Engine, run: RunState, swaps: list[tuple[Lease, Lease]]) -> None:
    """Spares close, their tenants go, and the lost ranks open there: at once, or when tenants that need time have left."""
    state = engine.state
    found = [(pair, tenants(state, pair[1])) for pair in swaps]
    later = [pair for pair, guests in found if any(not leaves_at_once(engine, state.runs[each.run]) for each in guests)]
    ready = [pair for pair in swaps if pair not in later]
    if ready:
        engine.emit(ev.LeasesClosed(run=run.key, names=_names([spare for _, spare in ready]), reason=Reason.Swap))
    for guest in {each.run: each for _, guests in found for each in guests if each.serial not in state.leaving}:
        lifecycle.give_way_to_spare(engine, state.runs[guest], run)
    if ready:
        _open_on_spares(engine, run, [(lease.rank, lease.payer, spare) for lease, spare in ready])
    if later:
        payers = tuple(dict.fromkeys(lease.payer for lease, _ in later))
        spares = tuple((spare.name, lease.rank, payers.index(lease.payer)) for lease, spare in later)
        engine.emit(ev.SwapAwaited(run=run.key, spares=spares, payers=payers))


def take_over_awaited(engine: Engine, nodes: Iterable[str]) -> None:
    """Spares on these nodes take over whose tenants are gone."""
    state = engine.state
    ready: dict[Key, list[Lease]] = {}
    for name in nodes:
        node = state.capacity.nodes.get(name)
        for _, lease in sorted(node.leases.items()) if node is not None else ():
            if lease.role is Role.SPARE and _taken(state.runs[lease.run], lease) and not tenants(state, lease):
                ready.setdefault(lease.run, []).append(lease)
    for key, spares in ready.items():
        run = state.runs[key]
        swaps = [(*run.awaited[spare.name], spare) for spare in spares]
        engine.emit(ev.LeasesClosed(run=key, names=_names(spares), reason=Reason.Swap))
        _open_on_spares(engine, run, swaps)


def _open_on_spares(engine: Engine, run: RunState, swaps: list[tuple[int, Payer, Lease]]) -> None:
    """Ranks open in the place of spares that have closed, each paid for as before where that money reaches."""
    payers: dict[Payer, int] = {}
    cells = []
    for number, (rank, before, spare) in enumerate(swaps, run.number):
        payer = before if may_pay(engine.state, before, spare.node) else spare.payer
        place = payers.setdefault(payer, len(payers))
        cells.append(ev.Cell(number, spare.group, rank, spare.node, spare.slots, place))
    named = tuple(payers)
    plan = digest_of(run, run.width + sum(spare.gpus for *_, spare in swaps), named, cells)
    engine.emit(
        ev.LeasesOpened(
            run=run.key, attempt=run.attempt, reason=Reason.Swap, payers=named, cells=tuple(cells), plan=plan
        )
    )


def _told(lost: list[Lease]) -> str:
    nodes = list(dict.fromkeys(lease.node for lease in lost if lease.rank >= 0))
    if len(nodes) == 1:
        return f"node {nodes[0]} failed"
    more = f" and {len(nodes) - NODES_NAMED} more" if len(nodes) > NODES_NAMED else ""
    return f"nodes {', '.join(nodes[:NODES_NAMED])}{more} failed"
