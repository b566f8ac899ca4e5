"""The controller on a large cluster: its start, its cost while nothing happens, how soon it decides, what a snapshot takes."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.cluster_stage import TEAM, Bench, Watcher, cpu_s, prepare
from bench.synthetic import Figures, progress
from fairlease.kube.api.connection import Api
from fairlease.kube.api.resource import NODES, RUNS
from fairlease.kube.ledger.journal import Journal
from fairlease.scheduler import Decider


async def heartbeats(api: Api, nodes: int) -> None:
    """Every node says that it lives, as kubelets do every few minutes, or when something changes that is none of our concern."""
    for number in range(1, nodes + 1):
        beat = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _now()}
        await api.patch(NODES, f"gpu-{number}", {"status": {"conditions": [beat]}}, sub="status")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def snapshot(api: Api) -> dict[str, float]:
    """Open the ledger, fold it and keep a snapshot: the CPU that each takes, and how long the loop would stand still."""
    begun = time.process_time()
    journal = await Journal.open(api)
    opened = time.process_time()
    decider = Decider(journal)
    folded = time.process_time()
    due = decider.due_snapshot(force=True)
    taken = time.process_time()
    assert due is not None
    await journal.save_snapshot(due)
    saved = time.process_time()
    await Journal.open(api)
    return {
        "read_cpu_s": round(opened - begun, 2),
        "fold_cpu_s": round(folded - opened, 2),
        "take_cpu_s": round(taken - folded, 2),
        "keep_cpu_s": round(saved - taken, 2),
        "start_from_it_cpu_s": round(time.process_time() - saved, 2),
        "megabytes": round(len(due.body) / 1e6, 1),
    }


async def size(bench: Bench, *, nodes: int, leases: int) -> dict[str, Figures]:
    """A large cluster: start, idleness, decision."""
    async with Api(bench.access) as api, Api(bench.access) as eyes:
        progress(f"cluster: {nodes} nodes")
        await prepare(api, nodes, 8)
        watch = Watcher(eyes)
        following = watch.follow()
        each = 500
        with bench.controller():
            for count in range(each, leases + 1, each):
                progress(f"cluster: {count} leases")
                await api.create(RUNS, bench.run(each), TEAM)
                await watch.until(lambda wanted=count: len(watch.bound) >= wanted)  # type: ignore[misc]  # bound to its count
            await asyncio.sleep(20)
        await api.create(RUNS, bench.run(1), TEAM)
        entries, begun = watch.entries, time.perf_counter()
        progress("cluster: start")
        with bench.controller() as pid:
            await watch.until(lambda: watch.entries > entries)
            start_s = time.perf_counter() - begun
            start_cpu_s = cpu_s(pid)
            await asyncio.sleep(20)
            progress("cluster: idle")
            cpu, begun = cpu_s(pid), time.perf_counter()
            await asyncio.sleep(30)
            idle = (cpu_s(pid) - cpu) / (time.perf_counter() - begun)
            progress("cluster: heartbeats")
            cpu, entries = cpu_s(pid), watch.entries
            await heartbeats(api, min(nodes, 1_000))
            await asyncio.sleep(2)
            beat_ms = (cpu_s(pid) - cpu) * 1000 / min(nodes, 1_000)
            beats = watch.entries - entries
            progress("cluster: decisions")
            seconds, cpu = [], cpu_s(pid)
            for _ in range(20):
                entries = watch.entries
                begun = time.perf_counter()
                await api.create(RUNS, bench.run(1), TEAM)
                await watch.until(lambda had=entries: watch.entries > had)  # type: ignore[misc]  # bound to its count
                seconds.append(time.perf_counter() - begun)
                await asyncio.sleep(0.5)
            decision_cpu_ms = (cpu_s(pid) - cpu) * 1000 / len(seconds)
        progress("cluster: snapshot")
        kept = await snapshot(api)
        for task in following:
            task.cancel()
    median_ms = round(statistics.median(seconds) * 1000, 1)
    return {
        "cluster: size": {
            "nodes": nodes,
            "leases": leases,
            "start_seconds": round(start_s, 1),
            "start_cpu_seconds": round(start_cpu_s, 1),
            "idle_share_of_a_core": round(idle, 4),
            "heartbeat_cpu_ms": round(beat_ms, 2),
            "entries_for_1000_heartbeats": beats,
            "decision_median_ms": median_ms,
            "decision_cpu_ms": round(decision_cpu_ms, 1),
            "decision_least_ms": round(min(seconds) * 1000, 1),
            "snapshot": kept,
            "target": "first decision < 15 s after the start; idle < 5 % of a core; decision < 50 ms after a watch event;"
            " a heartbeat costs no decision",
            "met": start_s < 15 and idle < 0.05 and median_ms < 50 and beats == 0,
        }
    }
