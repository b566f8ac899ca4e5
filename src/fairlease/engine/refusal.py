"""Refusal: no, as a value. A domain outcome is never an exception, and never free text alone."""

from __future__ import annotations

from typing import NamedTuple

from fairlease.reason import Reason


class Refusal(NamedTuple):
    """Why something cannot be: the cause, a sentence, and how many envelopes were passed over for which reason."""

    reason: Reason
    message: str
    tally: dict[str, int]
