"""Drill: a swap that is rehearsed. One rank is treated as lost, and a spare of its group takes over, by the rules of `swap`.

The node has not failed, and the ledger does not say so: both leases close Swap. As the GPUs that the rank leaves are healthy, the
two change places: the spare's payer holds them as the new spare, so that a rehearsal uses nothing up. Only where nothing new may be
placed on them (a cordon) is the spare used up, as in a real swap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.bind import digest_of
from fairlease.engine.refusal import Refusal
from fairlease.engine.tick import lifecycle
from fairlease.engine.tick.failover import can_take_over, match, may_pay, tenants
from fairlease.engine.tick.leaving import leaves_at_once
from fairlease.ledger.state import events as ev
from fairlease.model.lease import Role
from fairlease.model.record import short
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.command import Drill
    from fairlease.engine.context import Engine
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease, Payer


def rehearse(engine: Engine, command: Drill) -> Refusal | None:
    """Move one rank onto a spare: the one that was named, or the lowest that has a spare."""
    state = engine.state
    run = lifecycle.live(engine, command.run)
    if run is None:
        return lifecycle.gone(engine, command.run)
    if run.phase is not Phase.RUNNING:
        return Refusal(Reason.NoSpare, f"{short(run.key)} does not run, so it has no spare to try", {})
    spares: dict[int, list[Lease]] = {}
    for lease in run.leases.values():
        if lease.role is Role.SPARE and _ready(engine, run, lease):
            spares.setdefault(lease.group, []).append(lease)
    ranks = sorted((lease for lease in run.leases.values() if lease.rank >= 0), key=lambda lease: lease.rank)
    named = [lease for lease in ranks if command.rank in (None, lease.rank)]
    if not named:
        return Refusal(Reason.NotFound, f"{short(run.key)} has no rank {command.rank}", {})
    lost = next((lease for lease in named if lease.group in spares), None)
    if lost is None:
        whose = short(run.key) if command.rank is None else f"group {named[0].group} of {short(run.key)}"
        return Refusal(Reason.NoSpare, f"{whose} has no spare that is ready", {})
    ((_, spare),) = match(state, [lost], spares[lost.group])
    _exchange(engine, run, lost, spare)
    return None


def _ready(engine: Engine, run: RunState, spare: Lease) -> bool:
    """Whether a spare could take over now: where somebody on it needs time to leave, the rank would be without GPUs meanwhile."""
    if spare.name in run.awaited or not can_take_over(engine.state, spare):
        return False
    return all(leaves_at_once(engine, engine.state.runs[each.run]) for each in tenants(engine.state, spare))


def _exchange(engine: Engine, run: RunState, lost: Lease, spare: Lease) -> None:
    """Both close, whoever lies on the spare goes, and they open again in each other's place."""
    guests = {tenant.run for tenant in tenants(engine.state, spare)}
    engine.emit(ev.LeasesClosed(run=run.key, names=(lost.name, spare.name), reason=Reason.Swap))
    for guest in sorted(guests):
        lifecycle.give_way_to_spare(engine, engine.state.runs[guest], run)
    active_payer, spare_payer = _payers(engine.state, lost, spare)
    payers = tuple(dict.fromkeys((active_payer, spare_payer)))
    number = run.number
    cells = [ev.Cell(number, lost.group, lost.rank, spare.node, spare.slots, 0)]
    if engine.state.capacity.nodes[lost.node].barred is None:
        place = payers.index(spare_payer)
        cells.append(ev.Cell(number + 1, lost.group, spare.rank, lost.node, lost.slots, place, Role.SPARE))
    else:
        payers = (active_payer,)
    plan = digest_of(run, run.width + lost.gpus, payers, cells)
    engine.emit(
        ev.LeasesOpened(
            run=run.key, attempt=run.attempt, reason=Reason.Swap, payers=payers, cells=tuple(cells), plan=plan
        )
    )


def _payers(state: State, lost: Lease, spare: Lease) -> tuple[Payer, Payer]:
    """Who pays for the rank and for the spare: as before where both may, else each for the GPUs that it paid for already."""
    if may_pay(state, lost.payer, spare.node) and may_pay(state, spare.payer, lost.node):
        return lost.payer, spare.payer
    return spare.payer, lost.payer
