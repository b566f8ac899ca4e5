"""Opportune: opportunistic work on idle GPUs and, where those do not suffice, on the spares of others (SEMANTICS §3, §8).

It pays hours and takes no concurrency, as it has no claim to its GPUs. A pod on a spare is a Borrowed lease on slots that the
Spare holds too: the slots of one spare, never some of them and some beside. It goes at once when the spare is needed, and stays as
ordinary opportunistic work when the spare ends otherwise. Idle GPUs come first: nobody's readiness is touched while there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.bind import digest_of, unused_ranks
from fairlease.engine.place.lien_rights import claimed
from fairlease.engine.place.plan import Planner
from fairlease.ledger.state.events import Cell, LeasesOpened
from fairlease.ledger.state.slots import bits_of, lowest
from fairlease.model.lease import Role
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
    from fairlease.engine.place.plan import Plan
    from fairlease.ledger.state.capacity import NodeState
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State

Berths = list[tuple[tuple[int, ...], Role]]
"""Places for one pod each on a node: idle slots first, then spares'."""


def start_on_spares(engine: Engine, run: RunState, width: int) -> LeasesOpened | None:
    """A start wider than `width`, on idle GPUs and spares together, if there is one."""
    state, flavor, size = engine.state, run.spec.resources.gpu_type, run.spec.pod_gpus
    hosts = [
        node for node in state.hosts.values() if node.barred is None and state.capacity.flavor(node.node) == flavor
    ]
    berths = {node.node.name: berths_on(state, node, size) for node in hosts}
    if not any(role is Role.BORROWED for found in berths.values() for _, role in found):
        return None
    with state.trial():
        for name, found in berths.items():
            state.pretend_free(name, bits_of(tuple(slot for slots, _ in found for slot in slots)))
        plan = Planner(state, engine.family, run, engine.now).widest()
    return None if plan is None or plan.width <= width else _bind(state, run, plan, berths)


def berths_on(state: State, node: NodeState, size: int) -> Berths:
    """Where pods of `size` GPUs could lie on a node, each on idle slots or on those of one spare."""
    found: Berths = []
    pools = [(node.free & ~claimed(state.holds, node), Role.ACTIVE)]
    pools += [
        (bits_of(lease.slots) & ~node.tenant, Role.BORROWED)
        for _, lease in sorted(node.leases.items())
        if lease.role is Role.SPARE and lease.name not in state.runs[lease.run].awaited
    ]
    for bits, role in pools:
        left = bits
        while left.bit_count() >= size:
            slots = lowest(left, size)
            left &= ~bits_of(slots)
            found.append((slots, role))
    return found


def _bind(state: State, run: RunState, plan: Plan, berths: dict[str, Berths]) -> LeasesOpened:
    """Make the plan an event: on each node the idle places first."""
    size, ranks = run.spec.pod_gpus, unused_ranks(run)
    left = {name: list(found) for name, found in berths.items()}
    payers: dict[int, int] = {}
    cells: list[Cell] = []
    for number, (spot, offer) in enumerate(zip(plan.spots, plan.payers, strict=True), run.number):
        name = spot.node.node.name
        places = left.get(name)
        if places is None:
            left[name] = places = berths_on(state, spot.node, size)
        slots, role = places.pop(0)
        payer = payers.setdefault(id(offer.account), len(payers))
        cells.append(Cell(number, spot.group, next(ranks), name, slots, payer, role))
    table = {id(offer.account): offer.payer for offer in plan.payers}
    named = tuple(table[account] for account in payers)
    digest = digest_of(run, plan.width, named, cells)
    return LeasesOpened(
        run=run.key, attempt=run.attempt, reason=Reason.Start, payers=named, cells=tuple(cells), plan=digest
    )
