"""Coverage: units of running work lose or regain their cover, and what Drain ends when its grace is over (SEMANTICS §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.cover import overdraft
from fairlease.engine.tick import lifecycle
from fairlease.ledger.state import events as ev
from fairlease.model.record import Key

if TYPE_CHECKING:
    from fairlease.engine.context import Engine
    from fairlease.ledger.state.accounts import Account


def settle(engine: Engine) -> None:
    """Look at the Budgets whose accounts changed: which units are overdrawn now, and which are covered again."""
    state = engine.state
    if not state.dirty.accounts:
        return
    budgets: dict[Key, dict[str, Account]] = {}
    for budget, name in state.dirty.accounts:
        budgets.setdefault(Key(budget), {})[name] = state.account(Key(budget), name)
    for unit in state.overdrawn:
        if unit[1] in budgets:
            budgets[Key(unit[1])][unit[2]] = state.account(Key(unit[1]), unit[2])
    for budget in sorted(budgets):
        accounts = budgets[budget]
        spec = state.budgets.get(budget)
        for envelope in () if spec is None else spec.envelopes:
            accounts[envelope.name] = state.account(budget, envelope.name)
        _settle_budget(engine, budget, [accounts[name] for name in sorted(accounts)])


def _settle_budget(engine: Engine, budget: Key, accounts: list[Account]) -> None:
    state = engine.state
    known = [unit for unit in state.overdrawn if unit[1] == budget] if state.overdrawn else []
    if not known and not overdraft.tight(state, budget, accounts, engine.now):
        return
    found = overdraft.uncovered(state, budget, accounts, engine.now)
    for unit in sorted(known):
        if unit not in found:
            engine.emit(ev.CoverRegained(run=Key(unit[0]), budget=Key(unit[1]), envelope=unit[2], group=unit[3]))
    for unit, reason in found.items():
        ends = overdraft.grace_end(state, unit, engine.now)
        before = state.overdrawn.get(unit, -1)
        if before == -1 or (before is None) != (ends is None):
            engine.emit(
                ev.CoverLost(
                    run=Key(unit[0]), budget=Key(unit[1]), envelope=unit[2], group=unit[3], reason=reason, ends=ends
                )
            )


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
