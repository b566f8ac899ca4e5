"""What changed since decisions were last made: the state notes it, the engine reads it, and nobody else cares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlease.ledger.state.accounts import AccountId
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key


class Dirty:
    """What changed since decisions were last made, so that only those are made anew that could come out otherwise."""

    __slots__ = (
        "accounts",
        "arrived",
        "budgets",
        "failed",
        "flavors",
        "lost",
        "regained",
        "shaken",
        "sliced",
        "topology",
    )

    def __init__(self) -> None:
        self.flavors: set[str] = set()
        self.accounts: set[AccountId] = set()
        self.arrived: dict[bytes, list[RunState]] = {}
        self.topology: set[str] = set()
        self.lost: set[AccountId] = set()
        self.sliced: set[Key] = set()
        self.shaken: set[Key] = set()
        self.regained: set[Key] = set()
        self.failed: dict[str, None] = {}
        self.budgets = False

    def __bool__(self) -> bool:
        """Whether anybody may start for it; what is `sliced` has a node whose flavor changed, `shaken` may have another date."""
        return bool(self.flavors or self.accounts or self.arrived or self.topology or self.lost or self.budgets)

    def copy(self) -> Dirty:
        """For a trial, which must leave no trace."""
        twin = Dirty()
        if not self and not (self.shaken or self.regained or self.failed):  # as between two ticks
            return twin
        twin.flavors, twin.accounts, twin.topology = set(self.flavors), set(self.accounts), set(self.topology)
        twin.arrived = {shape: list(runs) for shape, runs in self.arrived.items()}
        twin.lost, twin.sliced, twin.budgets = set(self.lost), set(self.sliced), self.budgets
        twin.shaken, twin.regained, twin.failed = set(self.shaken), set(self.regained), dict(self.failed)
        return twin
