"""Passage: which liens a run may pass (SEMANTICS §6).

A reservation is a lien on its slots. Later runs may use them only if they surely end by its date, or are opportunistic. A run is
not bound by its own lien, nor by those of runs that asked after it: time of asking decides. Work that is running already and wants
to grow passes none. Nobody passes the lien of a claim for which others are leaving: those slots come free for it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.model.run import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.ledger.state.capacity import NodeState, Pool
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.record import Key


class LienRights:
    """What a run may use of nodes that are under liens; asked node by node, remembered while a plan is made.

    It is a run that asked in place `order` and surely ends by `ends` (None: nobody knows when).
    """

    def __init__(self, holds: dict[Key, RunState], order: int, ends: int | None, *, free: bool) -> None:
        self.holds = holds
        self.order = order
        self.ends = ends
        self.free = free
        self._blocked: dict[str, int] = {}

    def blocked(self, node: NodeState) -> int:
        """The slots of a node that the run must leave alone."""
        name = node.node.name
        found = self._blocked.get(name)
        if found is None:
            found = 0
            for run, slots in node.liens.items():
                if not self._passes(self.holds[run]):
                    found |= slots
            self._blocked[name] = found
        return found

    def room(self, node: NodeState) -> int:
        """GPUs the run could take on a node."""
        return 0 if node.barred else (node.free & ~self.blocked(node)).bit_count()

    def _passes(self, other: RunState) -> bool:
        assert other.hold is not None, "a lien belongs to a reservation in force"
        if other.hold.exclusive:
            return other.order == self.order
        if self.free:
            return True
        return other.order >= self.order or (self.ends is not None and self.ends <= other.hold.earliest_start)


def claimed(holds: dict[Key, RunState], node: NodeState) -> int:
    """The slots of a node that come free for one claim alone."""
    found = 0
    for run, slots in node.liens.items():
        hold = holds[run].hold
        if hold is not None and hold.exclusive:
            found |= slots
    return found


def passage(state: State, pool: Pool | None, run: RunState, now: int) -> LienRights | None:
    """The passage of a run that waits, where there are liens that it may pass."""
    if pool is None or run.phase is not Phase.PENDING:
        return None
    limit = run.spec.runtime.max_duration
    return opening(state, pool, run.order, None if limit is None else now + limit, free=run.spec.opportunistic)


def opening(state: State, pool: Pool, order: int, ends: int | None, *, free: bool) -> LienRights | None:
    """The passage of whoever asks in place `order` and surely ends by `ends`; None where it leads nowhere."""
    near = state.standings.near.get(pool.flavor)
    if not pool.liened or not near:
        return None
    first, last = near.peekitem(0), near.peekitem(-1)
    if last[0] < order and not free and not _ends_before_one(near.values(), ends):
        return None
    return LienRights(state.holds, order, ends, free=free or first[0] >= order)


def _ends_before_one(runs: Iterable[RunState], ends: int | None) -> bool:
    return ends is not None and any(run.hold is not None and ends <= run.hold.earliest_start for run in runs)
