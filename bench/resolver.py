"""One resolution: 5,000 nodes full of funded work, 20,000 open leases in scope, and a claim of 128 GPUs whose reservation is due.

Timed is `resolve`, from the claim to a verified plan: victims by class, draws, what is given back, and the claim packed on a trial.
Nothing is cut. The same is timed with a quarter of the leases, to show the growth.
"""

from __future__ import annotations

import time

from bench.synthetic import Figures, asked, cluster, fill, progress, request, run_key, spread
from fairlease.engine.preempt.resolve import resolve
from fairlease.ledger.state.events import ReservationTurned
from fairlease.model.amount import MINUTE
from fairlease.model.reservation import ReservationState
from fairlease.reason import Reason
from fairlease.scheduler import Scheduler

GPUS, GROUP, POD = 128, 32, 8
TARGET_MS = 50
ROUNDS = 15


def full(leases: int) -> Scheduler:
    """A cluster that `leases` leases of two GPUs fill to the last GPU."""
    scheduler = cluster(leases * 2 // 8, 50)
    at = fill(scheduler, opened=leases, closed=0, pod=2)
    scheduler.tick(at, asked(0, request(7, GPUS, pod=POD, group=GROUP)))
    return scheduler


def measured(scheduler: Scheduler) -> dict[str, float]:
    """The cost of a verdict when the claim is due."""
    state = scheduler.state
    claim, now = state.runs[run_key(0)], state.at + 16 * MINUTE
    trial = state.trial()
    state.apply(now, ReservationTurned(run=claim.key, state=ReservationState.ACTIVE, reason=Reason.Due))
    times, cut = [], 0
    for _ in range(ROUNDS):
        began = time.process_time()
        found = resolve(state, scheduler.engine.family, claim, now, 0, due=True)
        times.append(time.process_time() - began)
        assert found is not None, "there is work that can give way"
        cut = len(found.victims)
    trial.undo()
    return spread(times) | {"victims": cut}


def run(*, quick: bool) -> dict[str, Figures]:
    """Print the figures."""
    large = 4_000 if quick else 20_000
    progress(f"resolver: {large} open leases")
    figures = measured(full(large))
    small = measured(full(large // 4))
    return {
        "resolver": {
            "leases": large,
            **figures,
            "ratio_to_a_quarter_of_the_leases": round(figures["median_ms"] / small["median_ms"], 2),
            "target": f"a verified plan with 20,000 open leases in scope in under {TARGET_MS} ms of CPU",
            "met": quick or figures["median_ms"] < TARGET_MS,
        }
    }
