"""Forecasts of all who wait: one rehearsal of the engine, however many there are, and what it costs as more is open.

A cluster is full; `pending` runs wait for room, half of them in shapes of their own. The cost of one round is measured with few
and with many leases open, and with few and with many waiting: it must not grow faster than pending × log(open).
"""

from __future__ import annotations

import math
import random
import time

from bench.synthetic import Figures, asked, cluster, progress, request
from fairlease.engine import command as cmd
from fairlease.engine.forecast import forecast
from fairlease.model.amount import HOUR, MINUTE
from fairlease.scheduler import Scheduler

PENDING = 1_000
OPEN = (1_000, 10_000)
FEW_PENDING = 250
SIZES = (8, 8, 16, 32, 64)
BUDGETS = 50
SECONDS_MAX = 2.0


def full(leases: int, pending: int) -> Scheduler:
    """A cluster on which every GPU is taken, with a past to learn from, and a queue."""
    dice = random.Random(11)
    scheduler = cluster(leases, BUDGETS)
    at, number = scheduler.state.at, 0
    for _ in range(500):
        at += MINUTE
        scheduler.tick(at, asked(number, request(dice.randrange(BUDGETS), 8)))
        scheduler.tick(
            at + dice.randrange(5 * MINUTE, 30 * HOUR) % MINUTE, cmd.WorkEnded(asked(number, request(0, 8)).run, 1, 0)
        )
        number += 1
    while scheduler.state.open_leases < leases:
        gpus = min(dice.choice(SIZES), 8 * (leases - scheduler.state.open_leases))
        at += 1
        scheduler.tick(at, asked(number, request(dice.randrange(BUDGETS), gpus)))
        number += 1
    at += HOUR
    for place in range(pending):
        limit = 24 * HOUR + place * MINUTE if place % 2 else None
        scheduler.tick(
            at + place, asked(number + place, request(dice.randrange(BUDGETS), dice.choice(SIZES), limit=limit))
        )
    return scheduler


def measure(leases: int, pending: int) -> tuple[float, int]:
    """Seconds of CPU for one round, and how many of those who wait it could tell something."""
    progress(f"forecast: {pending} wait, {leases} leases are open")
    scheduler = full(leases, pending)
    waiting = len(forecast.waiting(scheduler.state))
    assert waiting >= pending * 9 // 10, "the cluster is full"
    began = time.process_time()
    tick = scheduler.tick(scheduler.state.at + 1, cmd.Forecast())
    return time.process_time() - began, sum(len(event.runs) for event in tick.decision.events if hasattr(event, "runs"))


def run(*, quick: bool = False) -> dict[str, Figures]:
    scale = 10 if quick else 1
    rows = {}
    for leases in OPEN:
        seconds, told = measure(leases // scale, PENDING // scale)
        rows[leases // scale] = {"seconds": round(seconds, 3), "forecasts": told}
    few, many = (rows[leases // scale]["seconds"] for leases in OPEN)
    growth = math.log(OPEN[1] // scale) / math.log(OPEN[0] // scale)
    shallow, _ = measure(OPEN[1] // scale, FEW_PENDING // scale)
    return {
        "forecast": {
            "pending": PENDING // scale,
            "by open leases": rows,
            "many_over_few": round(many / few, 2),
            "log_growth": round(growth, 2),
            "many_over_few_pending": round(many / shallow, 2),
            "pending_growth": PENDING // FEW_PENDING,
            "target": f"{PENDING} pending runs in under {SECONDS_MAX} s",
            "met": many < SECONDS_MAX,
        }
    }
