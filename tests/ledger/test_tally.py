"""The audit's arithmetic, against a sum over every lease and every millisecond."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from fairlease.ledger.audit.usage import AuditUsage

TIMES = st.integers(0, 60)


class Loan(NamedTuple):
    start: int
    end: int
    gpus: int
    deadline: int | None
    counted: bool


loans = st.builds(
    lambda start, length, gpus, limit, counted: Loan(start, start + length, gpus, limit and start + limit, counted),
    TIMES,
    st.integers(0, 40),
    st.integers(1, 8),
    st.none() | st.integers(1, 50),
    st.booleans(),
)
Window = tuple[int | None, int | None]


def lasts(window: Window) -> bool:
    start, end = window
    return start is None or end is None or start < end


windows = st.tuples(st.none() | TIMES, st.none() | TIMES).filter(lasts)


def played(given_loans: list[Loan], now: int, edits: list[tuple[int, Window]]) -> AuditUsage:
    """A tally that saw the loans open and close, and its window change, in order of time up to `now`."""
    tally = AuditUsage()
    for moment in range(now + 1):
        for at, window in edits:
            if at == moment:
                tally.set_window(*window)
        for loan in given_loans:
            if loan.start == moment:
                tally.change(moment, loan.gpus, loan.gpus * loan.counted, loan.deadline)
            if loan.end == moment:
                tally.change(moment, -loan.gpus, -loan.gpus * loan.counted, loan.deadline)
    return tally


def spent(given_loans: list[Loan], first: int, last: int) -> int:
    return sum(loan.gpus for loan in given_loans for ms in range(first, last) if loan.start <= ms < loan.end)


@given(st.lists(loans, max_size=8), st.integers(0, 100), st.lists(st.integers(0, 130), max_size=5))
def test_what_was_spent_by_any_moment_is_the_sum_over_its_milliseconds(
    given_loans: list[Loan], now: int, moments: list[int]
) -> None:
    tally = played(given_loans, now, [])
    for moment in moments:
        so_far = [loan if loan.end <= now else loan._replace(end=1_000) for loan in given_loans if loan.start <= now]
        assert tally.spent_by(moment) == spent(so_far, 0, moment)
    assert tally.held == sum(loan.gpus for loan in given_loans if loan.start <= now < loan.end and loan.counted)


@given(
    st.lists(loans, max_size=8),
    st.integers(0, 100),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 100), windows), min_size=1, max_size=3),
)
def test_what_is_booked_is_what_the_window_saw_and_what_open_leases_may_still_use(
    given_loans: list[Loan], now: int, quantum: int, edits: list[tuple[int, Window]]
) -> None:
    edits.sort(key=lambda edit: edit[0])
    tally = played(given_loans, now, edits)
    start, end = next((window for at, window in reversed(edits) if at <= now), (None, None))
    last = 1_000 if end is None else end
    consumed = spent(given_loans, start or 0, min(now, last))
    committed = 0
    for loan in given_loans:
        if loan.start <= now < loan.end and now < last:
            limit = now + quantum if loan.deadline is None else loan.deadline
            committed += loan.gpus * max(0, limit - now)
    assert tally.booked(now, quantum) == consumed + committed
