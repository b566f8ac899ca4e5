"""A burst of submissions on one machine: each is decided, and on the disk, before it is answered.

`together`: ten to a tick, as the daemon does with what it finds in its socket (it takes more, so this is the harder case).
`single`: every submission is a tick and a durable append of its own; then the disk decides, and `bare` says how long it takes for
as many commits of nothing. Half of the runs start; the others find the cluster full and wait, which is written down too.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from bench.synthetic import Figures, asked, clock, cluster, progress, request
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.scheduler import Scheduler

SUBMISSIONS = 1_000
TOGETHER = 10


def run(*, quick: bool = False) -> dict[str, Figures]:
    count = SUBMISSIONS // (10 if quick else 1)
    single, together, bare = measure(count, 1), measure(count, TOGETHER), commits(count)
    return {
        "burst": {
            "submissions": count,
            "together_s": together,
            "single_s": single,
            "bare_commits_s": bare,
            "target": "1,000 submissions durable and decided within 2 s, ten to a tick",
            "met": together < 2,
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


def commits(count: int) -> float:
    """Seconds for as many durable commits of one small row: the floor that this disk sets."""
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE row (number INTEGER)")
        seconds = clock(lambda: [db.execute("INSERT INTO row VALUES (?)", (number,)) for number in range(count)])
        db.close()
        return round(seconds, 3)


def _submit(scheduler: Scheduler, count: int, together: int) -> None:
    at = scheduler.state.at
    for first in range(0, count, together):
        numbers = range(first, min(first + together, count))
        scheduler.tick(at + first, *(asked(number, request(number % 50, 8)) for number in numbers))
