"""A restart over a ledger of a million leases: from a closed file to a scheduler that can decide.

The history is that of `bench.ledger`, the worst there is: a million runs of one lease each. It is written many entries to a
transaction, replayed once without a snapshot (as after a crash that also lost the snapshots), and then started from its snapshot.

What of ten million leases stays in a snapshot is measured by itself (`long_past`): 20,000 open leases, and a run that ended in each
second of a hundred and sixteen days, as the state sees their names and the use of their envelopes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from bench import ledger
from bench.synthetic import EPOCH, NODE_GPUS, Figures, clock, cluster, progress, request
from fairlease.engine import command as cmd
from fairlease.ledger.store.chain import seal
from fairlease.ledger.store.protocol import Head
from fairlease.ledger.store.snapshot import open_up, take
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.model.amount import SECOND
from fairlease.model.record import key
from fairlease.scheduler import Scheduler

LEASES = 1_000_000
ENTRIES_PER_COMMIT = 20_000
TAIL = 10_000
PAST, OPEN, OWNERS, GANG = 10_000_000, 20_000, 50, 8


def run(*, quick: bool = False) -> dict[str, Figures]:
    leases = LEASES // (50 if quick else 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        progress(f"restart: writes {leases} leases")
        written = clock(lambda: write(path, leases))
        progress("restart: replays them all")
        replayed = clock(lambda: snapshot(path))
        progress("restart: starts from the snapshot")
        started = min(clock(lambda: start(path)) for _ in range(3))
        progress("restart: starts from the snapshot, with entries behind it")
        extend(path, leases, TAIL if not quick else TAIL // 50)
        tail = min(clock(lambda: start(path)) for _ in range(3))
        size = sum(each.stat().st_size for each in Path(folder).iterdir())
    past = long_past(PAST // (50 if quick else 1), OPEN // (50 if quick else 1))
    return {
        "restart": {
            "leases": leases,
            "file_mb": round(size / 1e6),
            "written_s": round(written, 2),
            "replay_and_snapshot_s": round(replayed, 2),
            "start_s": round(started, 3),
            "start_with_tail_s": round(tail, 3),
            **past,
            "target": "from the snapshot < 3 s; with a long past, too, and below 50 MB",
            "met": max(started, past["long_past_start_s"]) < 3 and past["long_past_snapshot_mb"] < 50,
        }
    }


def long_past(ends: int, leases: int) -> dict[str, float]:
    """The snapshot of a state that has seen `ends` runs end, one a second: its size, and the time to open it."""
    progress(f"restart: {ends} runs end, and {leases} leases stay open")
    scheduler = cluster(leases, OWNERS)
    state = scheduler.state
    retention, accounts = (
        state.config.name_retention,
        [state.account(key(f"org-t{n // 10:02d}-p{n:03d}"), "main") for n in range(OWNERS)],
    )
    for number in range(ends):
        at, usage = EPOCH + number * SECOND, accounts[number % OWNERS].usage
        state.ended.forget(state.undo, at, retention)
        state.ended.add(state.undo, key(f"past-{number}"), at, completed=True)
        usage.change(1 - 2 * (number // OWNERS % 2), at)
    at = EPOCH + ends * SECOND
    for number in range(leases // GANG):
        scheduler.tick(at, cmd.Submit(key(f"now-{number}"), request(number % OWNERS, GANG * NODE_GPUS)))
    assert state.open_leases == leases // GANG * GANG, "every gang found room"
    taken = take(state, scheduler.head)
    opened = clock(lambda: open_up(taken))
    return {"long_past_snapshot_mb": round(len(taken.body) / 1e6, 1), "long_past_start_s": round(opened, 2)}


def write(path: Path, leases: int) -> None:
    """The whole history, up to a time at which the cluster is full and nothing waits."""
    with SqliteStore(path) as store:
        _append(store, chain([ledger.world()], islice(ledger.steps(leases), leases)))


def extend(path: Path, leases: int, more: int) -> None:
    """Further lives behind the snapshot."""
    with SqliteStore(path) as store:
        _append(store, islice(ledger.steps(leases + more), leases, leases + more))


def _append(store: SqliteStore, given: Iterator[ledger.Step]) -> None:
    """Many entries to a transaction, which only a benchmark may do."""
    head = store.head()
    index = store._index
    assert index is not None, "the store was opened for writing"
    while some := list(islice(given, ENTRIES_PER_COMMIT)):
        store._db.execute("BEGIN IMMEDIATE")
        for at, events in some:
            entry, body = seal(head, at, events)
            store._put(entry, body)
            index.add(entry)
            head = Head(seq=entry.seq, hash=entry.hash, at=at)
        store._db.execute("COMMIT")
    store._head = head


def snapshot(path: Path) -> None:
    with SqliteStore(path) as store:
        began = time.perf_counter()
        scheduler = Scheduler(store)
        progress(f"restart: replayed in {time.perf_counter() - began:.1f} s")
        scheduler.save_snapshot(force=True)


def start(path: Path) -> None:
    with SqliteStore(path) as store:
        scheduler = Scheduler(store)
        assert scheduler.state.open_leases == ledger.NODES, "the cluster is full"
