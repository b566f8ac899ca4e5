"""What the ledger costs: single appends, batches, audit and replay, on the disk this runs on.

`scan` is the proof from the entries, in one process; `audit` is all that `fairlease audit` does, the tables included.

    python -m bench.ledger                              1,000,000 leases, about three minutes
    FAIRLEASE_BENCH_SCALE=0.01 python -m bench.ledger   a hundredth of that

The workload has the worst shape for a ledger: every run is one lease, so nothing is shared. 250 nodes of 8 GPUs are
always full; a run ends as its successor starts, with the bill that it really has, so that the audit finds nothing.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from fairlease.ledger.audit.audit import AuditReport, scan
from fairlease.ledger.audit.audit_file import audit_store
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.chain import seal
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Head, LeaseQuery
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.model.amount import HOUR, SECOND
from fairlease.model.budget import BudgetSpec, Envelope
from fairlease.model.lease import Fund, Payer
from fairlease.model.node import Node
from fairlease.model.record import Key, key
from fairlease.model.run import Phase, Resources, RunSpec, Runtime
from fairlease.reason import Reason

NODES = 250
OWNERS = 20
GPUS = 8
EPOCH = 1_700_000_000_000
LEASES = 1_000_000

Events = tuple[ev.AnyEvent, ...]
Step = tuple[int, Events]


def world() -> Step:
    """Nodes, and a Budget for each owner that is never short."""
    labels = {"region": "eu", "cluster": "c", "fabric.domain": "d", "gpu.flavor": "H100"}
    nodes = [ev.NodeSet(node=Node(name=f"node-{n:03d}", labels=labels, gpus=GPUS)) for n in range(NODES)]
    envelope = Envelope(
        name="main", flavor="H100", selector={"cluster": "c"}, concurrency=NODES * GPUS, max_gpu_hours=10**9 * HOUR
    )
    budgets = [
        ev.BudgetSet(budget=key(f"team-{n:02d}"), spec=BudgetSpec(owner=f"org:team-{n:02d}", envelopes=(envelope,)))
        for n in range(OWNERS)
    ]
    return EPOCH, (*nodes, *budgets)


def opened(run: Key, number: int, node: int) -> Events:
    team = f"team-{number % OWNERS:02d}"
    spec = RunSpec(
        owner=f"org:{team}",
        resources=Resources(gpu_type="H100", total_gpus=GPUS),
        runtime=Runtime(max_duration=12 * HOUR if number % 2 else None),
        gpus_per_pod=GPUS,
        command=("python", "train.py"),
    )
    payer = Payer(budget=key(team), envelope="main", owner=f"org:{team}", fund=Fund.OWNED)
    cell = ev.Cell(0, 0, 0, f"node-{node:03d}", tuple(range(GPUS)), 0)
    plan = f"{number:064x}"
    return (
        ev.RunSubmitted(run=run, spec=spec, by="ada"),
        ev.LeasesOpened(run=run, attempt=1, reason=Reason.Start, payers=(payer,), cells=(cell,), plan=plan),
    )


def closed(run: Key, started: int, at: int) -> Events:
    bill = ev.Bill(owned=GPUS * (at - started))
    return (
        ev.LeasesClosed(run=run, reason=Reason.Completed),
        ev.RunEnded(run=run, phase=Phase.COMPLETED, reason=Reason.Completed, message="", attempt=1, bill=bill,
                    started_at=started),
    )  # fmt: skip


def steps(runs: int, *, apart: bool = False) -> Iterator[Step]:
    """The life of `runs` runs. `apart`: an end and a start are two entries, else one of four events."""
    held: deque[tuple[Key, int, int]] = deque()
    at = EPOCH
    for number in range(runs):
        at += SECOND
        before: Events = ()
        node = number
        if number >= NODES:
            oldest, started, node = held.popleft()
            before = closed(oldest, started, at)
        run = key(f"run-{number:07d}")
        held.append((run, at, node))
        after = opened(run, number, node)
        if apart and before:
            yield at, before
            yield at, after
        else:
            yield at, before + after
    for run, started, _ in held:
        at += SECOND
        yield at, closed(run, started, at)


def clocked(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def appended(store: SqliteStore | MemoryStore, given: list[Step]) -> float:
    """Seconds to append these steps one by one."""

    def work() -> None:
        for at, events in given:
            store.append(store.head().seq, at, events)

    return clocked(work)


def batches(given: list[Step], size: int) -> list[Step]:
    """The same events in fewer, larger entries."""
    groups = [given[first : first + size] for first in range(0, len(given), size)]
    return [(group[-1][0], tuple(event for _, events in group for event in events)) for group in groups]


def fill(store: SqliteStore, runs: int) -> None:
    """Write a history quickly: many entries to a transaction, which only a benchmark may do."""
    store.append(0, *world())
    head, index, execute = store.head(), store._index, store._db.execute
    assert index is not None
    execute("BEGIN")
    for number, (at, events) in enumerate(steps(runs), 1):
        entry, body = seal(head, at, events)
        store._put(entry, body)
        index.add(entry)
        head = Head(seq=entry.seq, hash=entry.hash, at=at)
        if number % 10_000 == 0:
            execute("COMMIT")
            execute("BEGIN")
    execute("COMMIT")


def run(*, quick: bool = False) -> dict[str, float]:
    """Every figure of the ledger; `*_per_s` are rates, the rest says its unit."""
    scale = 0.01 if quick else float(os.environ.get("FAIRLEASE_BENCH_SCALE", "1"))
    leases = max(2 * NODES, int(LEASES * scale))
    few = max(2 * NODES, min(20_000, leases // 10))
    with tempfile.TemporaryDirectory(prefix="fairlease-bench-") as folder:
        return appends(Path(folder), few) | history(Path(folder), leases)


def appends(folder: Path, runs: int) -> dict[str, float]:
    """Starts and ends as entries of their own, then a hundred events to an entry, then the same in memory."""
    single = list(steps(runs, apart=True))
    events = sum(len(each) for _, each in single)
    with SqliteStore(folder / "single.db") as store:
        store.append(0, *world())
        single_s = appended(store, single)
    with SqliteStore(folder / "batch.db") as store:
        store.append(0, *world())
        batch_s = appended(store, batches(single, 50))
    memory = MemoryStore()
    memory.append(0, *world())
    memory_s = appended(memory, single)
    return {
        "single_appends_per_s": round(len(single) / single_s),
        "batch_events_per_s": round(events / batch_s),
        "memory_appends_per_s": round(len(single) / memory_s),
    }


def history(folder: Path, leases: int) -> dict[str, float]:
    """A ledger of many leases: its size, and what it takes to replay, to audit and to ask it."""
    path = folder / "history.db"
    with SqliteStore(path) as store:
        fill_s = clocked(lambda: fill(store, leases))
    reports: list[AuditReport] = []
    with SqliteStore(path, readonly=True) as store:
        replay_s = clocked(lambda: deque(store.entries(), maxlen=0))
        scan_s = clocked(lambda: reports.append(scan(store.rows())))
        audit_s = clocked(lambda: reports.append(audit_store(store)))
        node_s = clocked(lambda: deque(store.leases(LeaseQuery(node="node-007", limit=1_000)), maxlen=0))
        all_s = clocked(lambda: deque(store.leases(LeaseQuery()), maxlen=0))
    report = reports[-1]
    assert all(each.ok for each in reports), report.findings
    return {
        "leases": leases,
        "entries": report.entries,
        "file_bytes_per_lease": round(path.stat().st_size / leases),
        "fill_leases_per_s": round(leases / fill_s),
        "replay_entries_per_s": round(report.entries / replay_s),
        "scan_s": round(scan_s, 2),
        "scan_leases_per_s": round(leases / scan_s),
        "audit_s": round(audit_s, 2),
        "audit_leases_per_s": round(leases / audit_s),
        "leases_by_node_ms": round(node_s * 1_000, 2),
        "lease_rows_per_s": round(leases / all_s),
        "rss_max_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024,
    }


if __name__ == "__main__":
    json.dump(run(), sys.stdout, indent=2)
    print()
