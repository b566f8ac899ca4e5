"""Passage: which liens a run may pass (SEMANTICS §6).

A reservation is a lien on its slots. Later runs may use them only if they surely end by its date, or are opportunistic. A run is
not bound by its own lien, nor by those of runs that asked after it: time of asking decides. Work that is running already and wants
to grow passes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.model.run import Phase

if TYPE_CHECKING:
    from fairlease.ledger.capacity import NodeState, Pool
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State


class Passage:
    """What one run may use of nodes that are under liens; asked node by node, remembered while a plan is made."""

    def __init__(self, state: State, run: RunState, now: int) -> None:
        self.holds = state.holds
        self.run = run
        limit = run.spec.runtime.max_duration
        self.ends = None if limit is None else now + limit
        near = state.standings.near.get(run.spec.resources.gpu_type, ())
        first = next((order for order in near if order != run.order), None)
        self.free = run.spec.opportunistic or first is None or first > run.order
        self._blocked: dict[str, int] = {}

    def blocked(self, node: NodeState) -> int:
        """The slots of a node that the run must leave alone."""
        name = node.node.name
        found = self._blocked.get(name)
        if found is None:
            found = 0
            for run, slots in node.liens.items() if not self.free else ():
                if not self._passes(self.holds[run]):
                    found |= slots
            self._blocked[name] = found
        return found

    def room(self, node: NodeState) -> int:
        """GPUs the run could take on a node."""
        return 0 if node.barred else (node.free & ~self.blocked(node)).bit_count()

    def _passes(self, other: RunState) -> bool:
        assert other.hold is not None, "a lien belongs to a reservation in force"
        if other is self.run or other.order > self.run.order:
            return True
        return self.ends is not None and self.ends <= other.hold.earliest_start


def passage(state: State, pool: Pool | None, run: RunState, now: int) -> Passage | None:
    """The passage of a run that waits, where there are liens that it may pass."""
    if pool is None or not pool.liened or run.phase is not Phase.PENDING:
        return None
    near = state.standings.near.get(run.spec.resources.gpu_type)
    last = near is not None and len(near) > 0 and near.peekitem(-1)[0] < run.order
    if last and run.spec.runtime.max_duration is None and not run.spec.opportunistic:
        return None
    return Passage(state, run, now)
