"""The controller on a real API server, against what a bare concurrent client gets from the same server for the same writes.

    gang      one run of 512 pods, from the Run's creation until every pod is bound; floor: 512 leases, 512 pods, 512 bindings
    burst     1,000 runs of one pod each, created at once; floor: the same for 1,000, and the creation of the runs themselves
    swap      a node goes; from then until the pod that takes over is bound; floor: the same writes, each when it can be made
    start     5,000 nodes and 20,000 open leases: from the start of the process to its first decision
    idle      the same cluster: the share of a core that the controller takes while nothing happens
    beats     the same cluster: every node's kubelet says that it lives; no decision may come of it
    decision  the same cluster: from the creation of a Run until its entry is in the ledger, as a watch sees it
    snapshot  the same cluster: the ledger is opened, folded, and kept as a snapshot

The floor is measured before and after each round, by the client that the controller itself uses, with nothing else in its process:
where a machine is busy with other things, only the ratios say something. No kubelet plays along: pods are bound and stay so.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from bench.cluster_size import size
from bench.cluster_stage import OWNER_NAME, TEAM, Bench, Watcher, an_object, on_a_plane, prepare
from bench.synthetic import Figures, progress
from fairlease.kube.api.connection import Api
from fairlease.kube.api.names import RANK, RUN
from fairlease.kube.api.resource import LEASES, LEDGER_ENTRIES, NODES, PODS, RUNS

ROUNDS = 3


# --- the floor -------------------------------------------------------------------------------------------------------------


def _floor_lease(name: str) -> dict[str, Any]:
    spec = {
        "owner": OWNER_NAME,
        "runRef": {"namespace": TEAM, "name": "floor"},
        "attempt": 1,
        "compPath": ["SHARD[0]", "D"],
        "slice": {"nodes": ["gpu-1"], "gpus": {"gpu-1": [0]}, "role": "Active"},
        "interval": {"start": "2026-01-01T00:00:00Z"},
        "paidByBudget": f"{TEAM}/money",
        "paidByEnvelope": "main",
        "reason": "Start",
    }
    return an_object(LEASES, name, spec)


def _floor_pod(name: str) -> dict[str, Any]:
    env = [{"name": f"VARIABLE_{number}", "value": "a value of some length"} for number in range(13)]
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "work", "image": "example.invalid/work:1", "env": env, "resources": resources}
    pod = an_object(PODS, name, {"schedulerName": "fairlease", "restartPolicy": "Never", "containers": [container]})
    pod["metadata"]["labels"] = {"app": "floor"}
    return pod


async def floor(api: Api, count: int, extra: Callable[[], list[Awaitable[object]]] = list) -> float:
    """Seconds that a bare client needs for the writes of `count` pods, all under way at once; it cleans up afterwards."""
    mark = time.monotonic_ns()
    names = [f"floor-{mark}-{number}" for number in range(count)]
    begun = time.perf_counter()
    await asyncio.gather(*extra())
    leases = [api.create(LEASES, _floor_lease(name), TEAM) for name in names]
    await asyncio.gather(*leases, *(api.create(PODS, _floor_pod(name), TEAM) for name in names))
    await asyncio.gather(*(api.bind(TEAM, name, "gpu-1") for name in names))
    took = time.perf_counter() - begun
    await asyncio.gather(
        *(api.delete(PODS, name, TEAM, grace_s=0) for name in names),
        *(api.delete(LEASES, name, TEAM) for name in names),
    )
    return took


# --- what is measured ------------------------------------------------------------------------------------------------------


class Took(NamedTuple):
    """Seconds until all pods were bound, and until all leases were written too; those of the floor; and the entries it took."""

    bound_s: float
    written_s: float
    floor_s: float
    entries: int


async def gang(bench: Bench, api: Api, watch: Watcher, pods: int) -> Took:
    """One gang, with the floor before and after it."""
    before = await floor(api, pods)
    had, written, entries = len(watch.bound), watch.written, watch.entries
    body = bench.run(pods)
    begun = time.perf_counter()
    await api.create(RUNS, body, TEAM)
    await watch.until(lambda: len(watch.bound) >= had + pods)
    bound_s = time.perf_counter() - begun
    await watch.until(lambda: watch.written >= written + pods)
    written_s = time.perf_counter() - begun
    appended = watch.entries - entries
    await _delete(api, watch, [body])
    return Took(bound_s, written_s, (before + await floor(api, pods)) / 2, appended)


async def burst(bench: Bench, api: Api, watch: Watcher, runs: int) -> Took:
    """Many runs at once, with the floor before them."""
    spare = [bench.run(1) for _ in range(runs)]
    for each in spare:
        each["spec"]["owner"] = f"{OWNER_NAME}:nobody"  # nobody's money: they wait, and cost only their creation
    before = await floor(api, runs, lambda: [api.create(RUNS, each, TEAM, dry_run=True) for each in spare])
    bodies = [bench.run(1) for _ in range(runs)]
    had, written, entries = len(watch.bound), watch.written, watch.entries
    begun = time.perf_counter()
    await asyncio.gather(*(api.create(RUNS, each, TEAM) for each in bodies))
    await watch.until(lambda: len(watch.bound) >= had + runs)
    bound_s = time.perf_counter() - begun
    await watch.until(lambda: watch.written >= written + runs)
    written_s = time.perf_counter() - begun
    appended = watch.entries - entries
    await _delete(api, watch, bodies)
    return Took(bound_s, written_s, before, appended)


async def _delete(api: Api, watch: Watcher, bodies: list[dict[str, Any]]) -> None:
    """Take runs away again, and wait until the controller has nothing left to do for them."""
    await asyncio.gather(*(api.delete(RUNS, each["metadata"]["name"], TEAM) for each in bodies))
    await asyncio.sleep(1)
    await asyncio.gather(*(api.delete(PODS, name, TEAM, grace_s=0) for name in watch.bound))  # as a kubelet would
    await watch.until(lambda: not watch.bound)
    await asyncio.sleep(3)


async def writes(bench: Bench, *, pods: int, runs: int) -> dict[str, Figures]:
    """The gang and the burst."""
    async with Api(bench.access) as api, Api(bench.access) as eyes:
        await prepare(api, max(64, pods // 8, runs // 8), 8)
        watch = Watcher(eyes)
        following = watch.follow()
        with bench.controller():
            await watch.until(lambda: watch.entries > 0)
            await gang(bench, api, watch, 8)
            gangs = []
            for number in range(ROUNDS):
                progress(f"cluster: gang of {pods}, round {number + 1}")
                gangs.append(await gang(bench, api, watch, pods))
            bursts = []
            for number in range(ROUNDS):
                progress(f"cluster: {runs} runs at once, round {number + 1}")
                bursts.append(await burst(bench, api, watch, runs))
            progress("cluster: swaps")
            swapped = await swaps(bench, api, watch, ROUNDS)
        for each in following:
            each.cancel()
    return {
        "cluster: gang": {"pods": pods, **_against_the_floor(gangs)},
        "cluster: burst": {"runs": runs, **_against_the_floor(bursts)},
        "cluster: swap": swapped,
    }


def _against_the_floor(rounds: list[Took]) -> Figures:
    over = statistics.median(each.bound_s / each.floor_s for each in rounds)
    return {
        "bound_seconds": [round(each.bound_s, 2) for each in rounds],
        "leases_written_seconds": [round(each.written_s, 2) for each in rounds],
        "floor_seconds": [round(each.floor_s, 2) for each in rounds],
        "entries": [each.entries for each in rounds],
        "bound_over_floor": round(over, 2),
        "written_over_floor": round(statistics.median(each.written_s / each.floor_s for each in rounds), 2),
        "target": "bound within 1.5 × the floor of its own writes; an entry for each tick, not for each run",
        "met": over <= 1.5,
    }


# --- a swap ----------------------------------------------------------------------------------------------------------------


def _safe_run(bench: Bench) -> dict[str, Any]:
    """Two groups of four pods, each with a spare."""
    body = bench.run(64)
    body["spec"] |= {"gpusPerPod": 8, "sparesPerGroup": 8, "locality": {"groupGPUs": 32}}
    return body


async def swap_floor(api: Api, watch: Watcher) -> float:
    """Seconds that a bare client needs for a swap: an entry, then what can follow at once, then a binding where the spare lay."""
    mark = f"floor-{time.monotonic_ns()}"
    names = {each: f"{mark}-{each}" for each in ("lost", "spare", "new")}
    for each in ("lost", "spare"):
        pod = _floor_pod(names[each])
        pod["metadata"]["labels"] = {RUN: "floor"}
        await api.create(PODS, pod, TEAM)
        await api.create(LEASES, _floor_lease(names[each]), TEAM)
        await api.bind(TEAM, names[each], "gpu-1")
    await watch.until(lambda: {names["lost"], names["spare"]} <= watch.bound)
    new = _floor_pod(names["new"])
    new["metadata"]["labels"] = {RUN: "floor"}
    closed = {"closed": True, "endTime": "2026-01-02T00:00:00Z", "closureReason": "Swap"}
    operations = [{"op": "add", "path": "/status", "value": closed}]
    entry = _floor_entry(mark)
    begun = time.perf_counter()
    await api.create(LEDGER_ENTRIES, entry)
    await asyncio.gather(
        *(api.delete(PODS, names[each], TEAM, grace_s=0) for each in ("lost", "spare")),
        *(api.patch(LEASES, names[each], operations, TEAM, sub="status") for each in ("lost", "spare")),
        api.create(LEASES, _floor_lease(names["new"]), TEAM),
        api.create(PODS, new, TEAM),
    )
    await watch.until(lambda: names["spare"] not in watch.bound)
    await api.bind(TEAM, names["new"], "gpu-1")
    await watch.until(lambda: names["new"] in watch.bound)
    took = time.perf_counter() - begun
    await api.delete(PODS, names["new"], TEAM, grace_s=0)
    await asyncio.gather(*(api.delete(LEASES, each, TEAM) for each in names.values()))
    return took


def _floor_entry(mark: str) -> dict[str, Any]:
    """As long as the entry of a swap, and part of nothing: whoever reads the ledger passes it over."""
    spec = {"seq": 1, "at": 1, "hash": "0" * 64, "role": "Snapshot", "part": 1, "body": "x" * 1_000, "writer": mark}
    return an_object(LEDGER_ENTRIES, f"s-000000000001-{mark}", spec)


async def swap_once(bench: Bench, api: Api, watch: Watcher) -> tuple[float, float, int]:
    """One swap: its seconds, those of its floor, and how many pods besides the two were touched."""
    body = _safe_run(bench)
    had = len(watch.bound)
    await api.create(RUNS, body, TEAM)
    await watch.until(lambda: len(watch.bound) >= had + 10)
    await asyncio.sleep(3)  # until everything is written
    floors = [await swap_floor(api, watch) for _ in range(3)]
    name = body["metadata"]["name"]
    ranks = {each: pod for each, pod in watch.pods.objects.items() if pod.metadata.annotations.get(RUN) == name}
    lost = next(pod for pod in ranks.values() if RANK in pod.metadata.labels)
    before = {each: pod.metadata.resource_version for each, pod in watch.pods.objects.items()}
    bound = set(watch.bound)
    await api.delete(NODES, lost.node)
    begun = time.perf_counter()
    await watch.until(lambda: bool(watch.bound - bound))
    took = time.perf_counter() - begun
    await asyncio.sleep(2)
    kept = {each: pod.metadata.resource_version for each, pod in watch.pods.objects.items() if each in before}
    touched = sum(kept.get(each) != version for each, version in before.items()) - 2  # the lost one, and the spare's
    return took, statistics.median(floors), touched


async def swaps(bench: Bench, api: Api, watch: Watcher, rounds: int) -> Figures:
    """Several swaps, each of a fresh run beside those before it."""
    found = [await swap_once(bench, api, watch) for _ in range(rounds)]
    over = statistics.median(took / floor_s for took, floor_s, _ in found)
    touched = sum(each for *_, each in found)
    return {
        "bound_ms": [round(took * 1000, 1) for took, *_ in found],
        "floor_ms": [round(floor_s * 1000, 1) for _, floor_s, _ in found],
        "bound_over_floor": round(over, 2),
        "other_pods_touched": touched,
        "target": "the replacement is bound within 1.5 × the floor of its writes; no other pod of any run is touched",
        "met": over <= 1.5 and touched == 0,
    }


def run(*, quick: bool = False) -> dict[str, Figures]:
    scale = 10 if quick else 1
    found = on_a_plane(lambda bench: writes(bench, pods=512 // scale, runs=1_000 // scale))
    return found | on_a_plane(lambda bench: size(bench, nodes=5_000 // scale, leases=20_000 // scale))
