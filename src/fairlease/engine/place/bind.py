"""Bind: a plan becomes an event, with real slots, payers and ranks (SEMANTICS §2, §5)."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from fairlease.ledger.state.events import Cell, LeasesOpened
from fairlease.ledger.state.slots import bits_of, lowest
from fairlease.model.lease import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.place.plan import Plan
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.lease import Payer
    from fairlease.reason import Reason

_encode = msgspec.json.Encoder().encode


def bind(run: RunState, plan: Plan, reason: Reason) -> LeasesOpened:
    """Make a plan an event, with real slots: the lowest free ones of each node."""
    free: dict[str, int] = {}
    payers: dict[int, int] = {}
    named: list[Payer] = []
    cells: list[Cell] = []
    ranks = unused_ranks(run)
    size = run.spec.pod_gpus
    for number, (spot, offer) in enumerate(zip(plan.spots, plan.payers, strict=True), run.number):
        name = spot.node.node.name
        bits = free.get(name)
        if bits is None:
            barred = spot.node.lien if plan.passage is None else plan.passage.blocked(spot.node)
            bits = spot.node.free & ~barred
        slots = lowest(bits, size)
        free[name] = bits & ~bits_of(slots)
        payer = payers.get(id(offer.account))
        if payer is None:
            payer = payers[id(offer.account)] = len(named)
            named.append(offer.payer)
        if spot.spare:
            cells.append(Cell(number, spot.group, -1, name, slots, payer, Role.SPARE))
        else:
            cells.append(Cell(number, spot.group, next(ranks), name, slots, payer))
    digest = digest_of(run, plan.width, tuple(named), cells)
    return LeasesOpened(
        run=run.key, attempt=run.attempt, reason=reason, payers=tuple(named), cells=tuple(cells), plan=digest
    )


def unused_ranks(run: RunState) -> Iterator[int]:
    """The ranks that no open lease of a run has, the lowest first: they stay dense while groups come and go."""
    held = {lease.rank for lease in run.leases.values()}
    if not held:
        return count()
    return (rank for rank in count() if rank not in held)


def digest_of(run: RunState, width: int, payers: tuple[Payer, ...], cells: list[Cell]) -> str:
    """By which a plan can be compared and audited."""
    return hashlib.sha256(_encode((run.key, run.attempt, width, payers, cells))).hexdigest()[:32]
