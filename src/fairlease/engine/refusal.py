"""Refusal: no, as a value. A domain outcome is never an exception, and never free text alone."""

from __future__ import annotations

from typing import NamedTuple

from fairlease.reason import Reason


class Refusal(NamedTuple):
    """Why something cannot be: the cause, a sentence, and how many envelopes were passed over for which reason.

    `vain` is the cause that would be left if nothing else ran, where there is one: then it does not help to wait for others.
    """

    reason: Reason
    message: str
    tally: dict[str, int]
    vain: Reason | None = None

    @property
    def remedy(self) -> str:
        """What would change it."""
        return self.reason.remedy if self.vain is None else self.vain.alone
