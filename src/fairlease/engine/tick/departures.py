"""Departures: what follows when work that was asked to leave is gone (SEMANTICS §4, §8).

Its leases close. A run that was over has ended then, with its bill; another attempt asks again; a spare takes over that waited for
its tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.refusal import Refusal
from fairlease.engine.tick import failover, lifecycle
from fairlease.engine.tick.leaving import close_left
from fairlease.model.record import short
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.engine.command import PodsGone
    from fairlease.engine.context import Engine
    from fairlease.ledger.state.runs import RunState


def report(engine: Engine, command: PodsGone) -> Refusal | None:
    """Pods are gone that were asked to leave; what is not leaving (any more) is none of them."""
    run = engine.state.runs.get(command.run)
    names = () if run is None else tuple(name for name in command.leases if name in run.leaving)
    if run is None or not names:
        return Refusal(Reason.NotFound, f"no such pod of {short(command.run)} is leaving", {})
    _gone(engine, run, names)
    return None


def _gone(engine: Engine, run: RunState, names: Iterable[str]) -> None:
    nodes = dict.fromkeys(run.leaving[name].lease.node for name in names)
    close_left(engine, run, names)
    lifecycle.end_if_left(engine, run)
    failover.take_over_awaited(engine, nodes)
