"""When forecasts are made anew: facts call for it, and it never takes more than its share."""

from __future__ import annotations

from fairlease.runtime.forecast_refresh import EVERY_S, PATIENCE_S, SHARE, Refresh


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_fact_calls_for_a_forecast_and_a_clock_does_not() -> None:
    clock = Clock()
    refresh = Refresh(clock=clock)
    clock.now += 1_000
    assert (refresh.due(), refresh.wait_s()) == (False, None)
    refresh.call_for()
    assert (refresh.due(), refresh.wait_s()) == (True, 0.0)


def test_decisions_that_wait_go_first_up_to_a_point() -> None:
    clock = Clock()
    refresh = Refresh(clock=clock)
    refresh.call_for()
    assert (refresh.due(), refresh.due(busy=True)) == (True, False)
    clock.now += PATIENCE_S
    assert refresh.due(busy=True)


def test_one_that_took_long_is_not_made_again_soon() -> None:
    clock = Clock()
    refresh = Refresh(clock=clock)
    refresh.call_for()
    began = clock.now
    clock.now += 0.01
    refresh.made(began)
    refresh.call_for()
    assert refresh.wait_s() == EVERY_S
    clock.now += EVERY_S
    began = clock.now
    clock.now += 1.0
    refresh.made(began)
    refresh.call_for()
    assert refresh.wait_s() == SHARE
