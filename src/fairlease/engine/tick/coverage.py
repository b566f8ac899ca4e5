"""Coverage: units of running work lose or regain their cover, and what Drain ends when its grace is over (SEMANTICS §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.cover import overdraft
from fairlease.engine.tick import lifecycle
from fairlease.model.record import Key

if TYPE_CHECKING:
    from fairlease.engine.context import Engine


def settle(engine: Engine) -> None:
    """Look at the Budgets whose accounts changed: which units are overdrawn now, and which are covered again."""
    budgets: dict[Key, set[str]] = {}
    for budget, name in engine.state.dirty.accounts:
        budgets.setdefault(Key(budget), set()).add(name)
    for budget in sorted(budgets):
        for event in overdraft.changes(engine.state, budget, budgets[budget], engine.now):
            engine.emit(event)


def drain(engine: Engine) -> bool:
    """End work whose grace is over; one unit at a time, as ending it may give cover to others. Whether there was any."""
    overdrawn = engine.state.overdrawn
    over = [unit for unit, ends in overdrawn.items() if ends is not None and ends <= engine.now] if overdrawn else []
    if not over:
        return False
    unit = min(over)
    engine.subject = Key(unit[0])
    lifecycle.drain(engine, unit)
    return True
