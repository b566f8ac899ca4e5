"""A burst of submissions on one machine: each is decided and on the disk before the next is looked at.

`single`: every submission is a tick and a durable append of its own. `together`: as a daemon does that finds many in its socket,
ten to a tick. Half of them start; the others find the cluster full and wait, which is decided and written down too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.synthetic import Figures, asked, clock, cluster, progress, request
from fairlease.ledger.sqlite import SqliteStore
from fairlease.scheduler import Scheduler

SUBMISSIONS = 1_000
TOGETHER = 10


def run(*, quick: bool = False) -> dict[str, Figures]:
    count = SUBMISSIONS // (10 if quick else 1)
    single, together = measure(count, 1), measure(count, TOGETHER)
    return {
        "burst": {
            "submissions": count,
            "single_s": single,
            "together_s": together,
            "target": "1,000 submissions durable and decided within 2 s, one by one",
            "met": single < 2,
        }
    }


def measure(count: int, together: int) -> float:
    """Seconds for `count` submissions, `together` to a tick."""
    progress(f"burst: {count} submissions, {together} to a tick")
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "ledger.db") as store:
        scheduler = cluster(count // 2, 50, store=store)
        seconds = clock(lambda: _submit(scheduler, count, together))
        assert len(scheduler.state.runs) == count, "every submission is in the ledger"
        assert scheduler.state.open_leases == count // 2, "those that find room have started"
        return round(seconds, 3)


def _submit(scheduler: Scheduler, count: int, together: int) -> None:
    at = scheduler.state.at
    for first in range(0, count, together):
        numbers = range(first, min(first + together, count))
        scheduler.tick(at + first, *(asked(number, request(number % 50, 8)) for number in numbers))


if __name__ == "__main__":
    import json
    import sys

    print(json.dumps(run(quick="--quick" in sys.argv), indent=2))
