"""Intervals: P10, P50 and P90 around what is foreseen, by the offsets that forecasts of the same horizon have taught.

Offsets are doublings of the wait (`ledger.learning.waits`). Powers of two are computed in integers, so that two machines tell the
same date to the millisecond.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from fairlease.ledger.learning.waits import HORIZONS, OCTAVE, horizon_of
from fairlease.model.amount import SECOND

if TYPE_CHECKING:
    from fairlease.ledger.learning.waits import Waits

WAIT_MIN = 10 * SECOND
"""Waits that are foreseen shorter are taken as this long: a multiple of nothing is nothing."""

_ONE = 60
"""Fractions have so many bits."""


def _roots() -> tuple[int, ...]:
    """2 to the power of 1/2, 1/4, 1/8, …, one for each bit of a fraction of an octave."""
    found, root = [], 2 << _ONE
    for _ in range(OCTAVE.bit_length() - 1):
        root = isqrt(root << _ONE)
        found.append(root)
    return tuple(found)


_ROOTS = _roots()


def scaled(wait: int, offset: int) -> int:
    """A wait times two to the power of `offset / OCTAVE`."""
    whole, part = divmod(offset, OCTAVE)
    factor, bit = 1 << _ONE, OCTAVE >> 1
    for root in _ROOTS:
        if part & bit:
            factor = factor * root >> _ONE
        bit >>= 1
    return wait * factor << whole >> _ONE if whole >= 0 else wait * factor >> _ONE - whole


def interval(waits: Waits, foreseen: int) -> tuple[int, int, int]:
    """P10, P50 and P90 of a wait, where the rehearsal says `foreseen`."""
    wait = max(foreseen, WAIT_MIN)
    horizon, middle = _horizon(waits, wait)
    low, _, high = waits.offset(horizon)
    return min(scaled(wait, low), middle), middle, max(scaled(wait, high), middle)


def _horizon(waits: Waits, wait: int) -> tuple[int, int]:
    """The horizon whose offsets are used, and P50: one that lies in that horizon, so that each learns from its own forecasts.

    Where the offset of a horizon leads into another, and that of the other leads back, P50 lies between them.
    """
    horizon, middle = horizon_of(wait), wait
    for _ in HORIZONS:
        middle = scaled(wait, waits.offset(horizon)[1])
        if horizon_of(middle) == horizon:
            break
        horizon = horizon_of(middle)
    begin, end = (0, *HORIZONS)[horizon], (*HORIZONS, middle + 1)[horizon]
    return horizon, max(begin, min(end - 1, middle))
