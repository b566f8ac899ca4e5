"""Nowhere: what a run is told that no set of nodes could hold, if nothing else ran either (SEMANTICS §6).

It is told what is too large for what: a pod for every node, a group for every fabric domain, or all of it. A run that lacks money
is told this too, as money alone would not start it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.packing import fits_empty
from fairlease.model.run import LocationPolicy
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.place.packing import Need
    from fairlease.ledger.state.capacity import Pool
    from fairlease.model.run import RunSpec


def nowhere(pool: Pool | None, mask: int, need: Need, spec: RunSpec) -> str:
    """Why some nodes, all of them empty, would not hold a run, and what would have to change; nothing where they would."""
    if pool is None:
        return f"there is no node of flavor {spec.resources.gpu_type}: ask for another flavor"
    if mask and fits_empty(pool, mask, need):
        return ""
    return f"{_too_large(pool, mask, need)}: {Reason.NeverFits.remedy}"


def _too_large(pool: Pool, mask: int, need: Need) -> str:
    gpus, group = need.pods * need.size, need.pods if need.together else need.blocks[0].pods
    nodes = [state for domain in pool.domains.values() for state in domain.nodes.values() if state.bit & mask]
    if max((state.node.gpus for state in nodes), default=0) < need.size:
        return f"no node could hold a pod of {need.size} GPUs"
    rooms: dict[int, int] = {}
    for state in nodes:
        rooms[id(state.domain)] = rooms.get(id(state.domain), 0) + state.node.gpus // need.size
    if 1 < group < need.pods and max(rooms.values()) < group:
        return f"no fabric domain could hold a group of {group * need.size} GPUs"
    return f"no set of nodes could hold {gpus} GPUs in groups as asked"


def in_location(pool: Pool | None, spec: RunSpec) -> int:
    """The nodes that a run's location leaves it, whoever pays."""
    locality = spec.locality
    if pool is None:
        return 0
    if not locality.location or locality.location_policy is LocationPolicy.PREFER:
        return pool.mask
    return pool.nodes_matching(locality.location)
