"""Leaving: a lease ends when its GPUs are free (SEMANTICS §4).

Work that needs no time leaves at once, and its leases close with the request. Other work is asked to leave: its leases stay open
and are paid for until the backend reports that they are gone, which it sees to when the grace is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.ledger.state import events as ev
from fairlease.model.lease import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.engine.context import Engine
    from fairlease.ledger.state.runs import RunState
    from fairlease.reason import Reason


def leaves_at_once(engine: Engine, run: RunState) -> bool:
    """Whether the work of a run needs no time to leave. In a rehearsal none does: nobody would report it gone."""
    return engine.rehearses or not run.graceful


def leaves_by(engine: Engine, run: RunState) -> int:
    """When the work of a run has left at the latest if it is asked to now."""
    config = engine.state.config
    grace = config.opportunistic_grace if run.spec.opportunistic else config.max_grace
    return engine.now if leaves_at_once(engine, run) else engine.now + grace


def ask_to_leave(
    engine: Engine, run: RunState, names: tuple[str, ...], reason: Reason, seed: str | None = None, *, dead: int = -1
) -> None:
    """End leases of a run (none named: all on which it works), now or when their GPUs are free. Rank `dead` has left already."""
    if leaves_at_once(engine, run):
        close(engine, run, names, reason, seed)
        return
    leases = [run.leases[name] for name in names] if names else run.held
    gone = tuple(each.name for each in leases if each.role is Role.SPARE or each.rank == dead)
    if gone:
        engine.emit(ev.LeasesClosed(run=run.key, names=gone, reason=reason, seed=seed))
    asked = tuple(each.name for each in leases if each.name not in gone)
    if asked:
        until = leaves_by(engine, run)
        engine.emit(ev.LeasesLeaving(run=run.key, names=asked, reason=reason, seed=seed, until=until))


def close(engine: Engine, run: RunState, names: tuple[str, ...], reason: Reason, seed: str | None = None) -> None:
    """Close leases of a run (none named: all on which it works), now."""
    if not names and run.leaving:
        names = tuple(lease.name for lease in run.held)
        if not names:
            return
    engine.emit(ev.LeasesClosed(run=run.key, names=names, reason=reason, seed=seed))


def close_left(engine: Engine, run: RunState, names: Iterable[str]) -> None:
    """Close leases whose work was leaving, with what it was asked to leave for."""
    alike: dict[tuple[Reason, str | None], list[str]] = {}
    for name in names:
        asked = run.leaving[name]
        alike.setdefault((asked.reason, asked.seed), []).append(name)
    for (reason, seed), left in alike.items():
        engine.emit(ev.LeasesClosed(run=run.key, names=tuple(left), reason=reason, seed=seed))
