"""The policy settings of a scheduler; each has a default (SEMANTICS §4, §6–§8)."""

from __future__ import annotations

from typing import Annotated

from fairlease.model.amount import DAY, MINUTE, SECOND
from fairlease.model.node import LabelKeys
from fairlease.model.record import Duration, Record, Unit


class Config(Record, frozen=True, kw_only=True):
    """What decisions depend on besides the world; it is part of the ledger. `notice` is None where it was set to `never`."""

    notice: Annotated[int | None, Unit.NOTICE] = 15 * MINUTE
    reservations: bool = True
    commit_quantum: Duration = 15 * MINUTE
    min_runtime: Duration = 15 * MINUTE
    node_debounce: Duration = 60 * SECOND
    grow_cooldown: Duration = 60 * SECOND
    name_retention: Duration = 30 * DAY
    max_grace: Duration = 10 * MINUTE
    """How long work may take to leave once it is asked to; then it is killed."""
    opportunistic_grace: Duration = 10 * SECOND
    """The same for opportunistic work, which has no claim to its GPUs."""
    labels: LabelKeys = LabelKeys()
