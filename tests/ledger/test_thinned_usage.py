"""What an envelope used, years back: little is kept, what people ask for is exact, and the rest is bounded on both sides."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from fairlease.ledger.state.accounts import EXACT, Usage
from fairlease.ledger.state.undo import UndoLog
from fairlease.model.amount import DAY, HOUR, MINUTE

START = 1_700_000_000_000
EDGE = START + 3 * DAY + 12_345


class Whole:
    """All changes there ever were."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, int]] = []

    def until(self, when: int) -> int:
        return sum(gpus * (when - at) for at, gpus in self.changes if at < when)


@pytest.fixture(scope="module")
def lived() -> tuple[Usage, Whole]:
    """Three years with a change every five hours or so, and the last days with many more."""
    dice, usage, whole, now, held = random.Random(7), Usage(), Whole(), START, 0
    while now < START + 3 * 365 * DAY:
        now += dice.randrange(1, 10 * HOUR if now < START + (3 * 365 - 10) * DAY else 4 * MINUTE)
        gpus = dice.randrange(-held, 65 - held)
        held += gpus
        usage.change(gpus, now, lambda: [EDGE])
        whole.changes.append((now, gpus))
    return usage, whole


def test_ten_years_take_little_more_room_than_a_week(lived: tuple[Usage, Whole]) -> None:
    usage, whole = lived
    assert len(whole.changes) > 8_000
    assert len(usage.times) < 2 * EXACT + 8 * 24 + 400 + 40


def test_whole_hours_days_and_months_are_exact_as_long_as_they_are_kept(lived: tuple[Usage, Whole]) -> None:
    usage, whole = lived
    now = usage.at
    hours = [now - now % HOUR - count * HOUR for count in range(1, 8 * 24)]
    days = [now - now % DAY - count * DAY for count in range(1, 399)]
    months = [int(datetime(2023 + n // 12, n % 12 + 1, 1, tzinfo=UTC).timestamp() * 1000) for n in range(11, 24)]
    for when in (*hours[::5], *days[::7], *months, EDGE, START, START - 1):
        assert usage.until(when) == usage.until(when, most=True) == whole.until(when)


def test_between_them_it_is_known_from_both_sides(lived: tuple[Usage, Whole]) -> None:
    usage, whole = lived
    dice, vague = random.Random(8), 0
    for _ in range(300):
        when = dice.randrange(START, usage.at + DAY)
        assert usage.until(when) <= whole.until(when) <= usage.until(when, most=True)
        vague += usage.until(when) != usage.until(when, most=True)
    assert vague > 100


def test_a_trial_that_thins_out_is_undone_without_a_trace() -> None:
    usage, undo = Usage(), UndoLog()
    for minute in range(2 * EXACT):
        usage.change(1, START + minute * MINUTE)
    before = [usage.until(START + minute * 10_007) for minute in range(4 * EXACT)]
    kept = usage.times.tobytes(), usage.totals.tobytes(), usage.thin
    with undo.trial():
        undo.touch(usage)
        for minute in range(2 * EXACT, 5 * EXACT):
            usage.change(1, START + minute * MINUTE)
        assert usage.thin, "it was thinned out meanwhile"
    assert (usage.times.tobytes(), usage.totals.tobytes(), usage.thin) == kept
    assert [usage.until(START + minute * 10_007) for minute in range(4 * EXACT)] == before
