"""Time and money in integers: milliseconds and GPU-milliseconds, and how people write them.

No float is ever added up. A float appears only where hours are shown, with nine digits, from which the integer can be read back.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_WHOLE_MAX = 2**63
_UNITS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = -62_135_596_800 * SECOND  # 0001-01-01T00:00:00Z
_LAST = 253_402_300_799 * SECOND  # 9999-12-31T23:59:59Z
_LONGEST = 1_000 * 366 * DAY
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)")


def parse_duration(text: str) -> int:
    """Milliseconds of `90s`, `1h30m`, `1.5h`, `500ms`, `2d` or `0`; raises ValueError."""
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        msg = f"{text!r} is not a duration"
        raise ValueError(msg)
    total = sum((Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(text)), Decimal(0))
    if total != int(total):
        msg = f"{text!r} is finer than a millisecond"
        raise ValueError(msg)
    if total > _LONGEST:
        msg = f"{text!r} is longer than a thousand years"
        raise ValueError(msg)
    return int(total)


def format_duration(ms: int) -> str:
    """The shortest exact form: `1h30m`, `250ms`, `0s`."""
    if ms == 0:
        return "0s"
    sign, rest, out = ("-" if ms < 0 else ""), abs(ms), ""
    for unit in ("h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS[unit])
        out += f"{count}{unit}" if count else ""
    return sign + out


def parse_instant(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time; raises ValueError. Finer digits than milliseconds are cut off."""
    if not _INSTANT.fullmatch(text):
        msg = f"{text!r} is not an RFC 3339 time"
        raise ValueError(msg)
    normal = text.upper().replace(" ", "T").replace("Z", "+00:00")
    head, dot, tail = normal.partition(".")
    if dot:
        digits = re.match(r"\d+", tail)
        assert digits is not None, "the pattern above saw to it"
        normal = f"{head}.{digits[0][:3].ljust(3, '0')}{tail[digits.end() :]}"
    return (datetime.fromisoformat(normal) - _EPOCH) // timedelta(milliseconds=1)


def format_instant(ms: int) -> str:
    """RFC 3339 in UTC; milliseconds only where there are any. What no calendar holds is shown as its first or last second."""
    if not _FIRST <= ms <= _LAST:
        ms = _FIRST if ms < _FIRST else _LAST
    text = (_EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{text}.{ms % SECOND:03d}Z" if ms % SECOND else f"{text}Z"


def parse_gpu_hours(value: float | str) -> int:
    """GPU-milliseconds of a number of GPU-hours, to the nearest: a third of an hour has no end; raises ValueError."""
    try:
        exact = Decimal(str(value)) * HOUR
    except InvalidOperation:
        exact = Decimal("nan")
    if not exact.is_finite():
        msg = f"{value!r} is not a number of GPU-hours"
        raise ValueError(msg)
    return round(exact)


def gpu_hours(gpu_ms: int) -> float:
    """GPU-hours as people read them: whole where they are whole, else with nine digits, so that nothing is lost."""
    whole, rest = divmod(gpu_ms, HOUR)
    return whole if rest == 0 and whole < _WHOLE_MAX else round(gpu_ms / HOUR, 9)
