"""Who lends to whom now: GPUs by lender and borrower, so that loans in a circle are found without a look at every lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlease.ledger.state.undo import UndoLog


class Loans:
    """Open loans between owners."""

    def __init__(self) -> None:
        self._lent: dict[str, dict[str, int]] = {}

    @property
    def gpus(self) -> int:
        """GPUs that are lent in all."""
        return sum(sum(lent.values()) for lent in self._lent.values())

    def borrowers(self, lender: str) -> list[str]:
        """To whom an owner lends, by name."""
        return sorted(self._lent.get(lender, ()))

    def all(self) -> list[tuple[str, str, int]]:
        """Every pair of owners, with the GPUs between them."""
        return sorted((lender, *each) for lender, lent in self._lent.items() for each in lent.items())

    def change(self, lender: str, borrower: str, gpus: int, undo: UndoLog) -> None:
        """So many GPUs more are lent, or fewer."""
        lent = self._lent.get(lender)
        if lent is None:
            lent = {}
            undo.put(self._lent, lender, lent)
        left = lent.get(borrower, 0) + gpus
        if left:
            undo.put(lent, borrower, left)
        else:
            undo.pop(lent, borrower)
