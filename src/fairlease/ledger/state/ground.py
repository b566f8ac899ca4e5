"""The ground the world stands on: time, trials, nodes and timers, with the primitives by which these change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.ledger.state.capacity import Capacity, NodeState
from fairlease.ledger.state.dirty import Dirty
from fairlease.ledger.state.runs import Standings
from fairlease.ledger.state.slots import bar
from fairlease.ledger.state.timers import Due, Timers
from fairlease.ledger.state.undo import Trial, UndoLog
from fairlease.model.config import Config

if TYPE_CHECKING:
    from fairlease.model.node import Node
    from fairlease.reason import Reason


class StateBase:
    """What is true before anybody asks for anything."""

    def __init__(self) -> None:
        self.at = 0
        self.config = Config()
        self.capacity = Capacity(self.config.labels)
        self.timers = Timers()
        self.standings = Standings()
        self.dirty = Dirty()
        self.undo = UndoLog()

    def trial(self) -> Trial:
        """Open a trial: a context that puts everything back at its end, unless it was kept."""
        trial = self.undo.trial()
        self.undo.later(setattr, self, "dirty", self.dirty.copy())
        return trial

    def _set_time(self, at: int) -> None:
        self.at = at

    def _set(self, name: str, value: object) -> None:
        self.undo.later(setattr, self, name, getattr(self, name))
        setattr(self, name, value)

    # --- nodes and timers ----------------------------------------------------------------------------------------------

    def _join(self, state: NodeState) -> None:
        self.capacity.join(state)
        self.undo.later(self.capacity.part, state)
        self.dirty.topology.add(self.capacity.flavor(state.node))

    def _part(self, state: NodeState) -> None:
        self.capacity.part(state)
        self.undo.later(self.capacity.join, state)
        self.dirty.topology.add(self.capacity.flavor(state.node))

    def _replace(self, state: NodeState, node: Node) -> None:
        """A node was seen changed: other labels move it, more GPUs widen it, fewer leave it as wide as it was."""
        moved = state.node.labels != node.labels or state.node.gpus != node.gpus
        if moved:
            self._part(state)
        self.undo.later(setattr, state, "node", state.node)
        state.node = node
        if node.gpus > state.peak:
            grown = ((1 << node.gpus) - 1) & ~((1 << state.peak) - 1)
            state.peak = node.gpus
            self._slots(state, state.free | grown, state.barred)
        if moved:
            self._join(state)
            self.dirty.sliced.update(state.liens)

    def admit(self, state: NodeState) -> None:
        """A node as a snapshot knew it."""
        self._join(state)
        self._bar(state)
        self._debounce(state)

    def _slots(self, state: NodeState, free: int, barred: Reason | None) -> None:
        self.undo.later(self.capacity.set_slots, state, state.free, state.barred)
        self.capacity.set_slots(state, free, barred)

    def _bar(self, state: NodeState) -> None:
        before = state.barred
        self._slots(state, state.free, bar(state.node, self.capacity.labels, state.peak, failed=state.failed))
        self.dirty.flavors.add(self.capacity.flavor(state.node))
        if state.barred:
            self.dirty.sliced.update(state.liens)
        else:  # who lost their place with a node is tried again when one comes back, whether there is room or not
            self.dirty.sliced.update(run.key for lost in self.standings.blocked.values() for run in lost.values())
            if before is not None:  # nor had they a date who could not count on it
                self.dirty.topology.add(self.capacity.flavor(state.node))

    def _debounce(self, state: NodeState) -> None:
        """A silent node whose pods are known dead fails when the debounce is over."""
        since = state.not_ready_since
        waits = since is not None and state.node.pods_dead and not state.failed
        self._timer(
            Due.DEBOUNCE, (state.node.name,), since + self.config.node_debounce if waits and since is not None else None
        )

    def _timer(self, due: Due, subject: tuple[str, ...], when: int | None) -> None:
        timer = (due, subject)
        before = self.timers.times.get(timer)
        if before != when:
            self.timers.set(timer, when)
            self.undo.later(self.timers.set, timer, before)
