"""Thousands of random films on all kinds of worlds, each watched by the auditor; the seed of one that breaks a claim is printed.

`make histories` plays 10,000 of them. `fairlease simulate --random SEED --steps N` plays one again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from multiprocessing import Pool

from fairlease.ledger.state.state import State
from fairlease.sim.random.play import RandomReport, run_random

STEPS = 25
State.checking = True  # every index is proved against a scan after every event


def _play(task: tuple[int, int]) -> tuple[RandomReport, float]:
    begin = time.process_time()
    report = run_random(*task)
    return report, time.process_time() - begin


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.histories", description="Random films with the auditor.")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="how many seeds")
    parser.add_argument("--steps", type=int, default=STEPS, help="how long each film is")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    os.nice(10)
    tasks = [(seed, arguments.steps) for seed in range(arguments.first, arguments.first + arguments.count)]
    broken, entries, leases, seconds = 0, 0, 0, 0.0
    with Pool(arguments.jobs) as pool:
        for number, (report, cpu) in enumerate(pool.imap_unordered(_play, tasks, chunksize=4), 1):
            entries, leases, seconds = entries + report.entries, leases + report.leases, seconds + cpu
            if report.violations:
                broken += 1
                print(report, flush=True)
            if number % 250 == 0 or number == len(tasks):
                print(
                    f"{number} of {len(tasks)} films, {broken} broken, {seconds:.0f} CPU s", file=sys.stderr, flush=True
                )
    print(f"{len(tasks)} films of {arguments.steps} steps: {entries} entries, {leases} leases; {broken} broke a claim")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
