"""The controller on a real API server, against what a bare concurrent client gets from the same server for the same writes.

    gang      one run of 512 pods, from the Run's creation until every pod is bound; floor: 512 leases, 512 pods, 512 bindings
    burst     1,000 runs of one pod each, created at once; floor: the same for 1,000, and the creation of the runs themselves
    start     5,000 nodes and 20,000 open leases: from the start of the process to its first decision
    idle      the same cluster: the share of a core that the controller takes while nothing happens
    decision  the same cluster: from the creation of a Run until its entry is in the ledger, as a watch sees it

The floor is measured before and after each round, by the client that the controller itself uses, with nothing else in its process:
where a machine is busy with other things, only the ratios say something. No kubelet plays along: pods are bound and stay so.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tools.controlplane import Plane, Rack

from bench.synthetic import Figures, progress
from fairlease.kube.connection import Api
from fairlease.kube.informer import Change, Informer, What
from fairlease.kube.kubeconfig import Access, from_files
from fairlease.kube.policy import CONTROLLER, OWNER
from fairlease.kube.resource import BUDGETS, LEASES, LEDGER_ENTRIES, NAMESPACES, NODES, PODS, RUNS, Resource
from fairlease.kube.seen import PodSeen, Seen

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("system:serviceaccounts", "system:authenticated")
TEAM, OWNER_NAME, FLAVOR = "bench", "org:bench", "H100-80GB"
ROUNDS = 3
PATIENCE_S = 900.0


class Bench:
    """A control plane, a controller in a process of its own, and the client that measures."""

    def __init__(self, plane: Plane, access: Access) -> None:
        self.plane, self.access = plane, access
        self.process: subprocess.Popen[bytes] | None = None
        self.number = 0

    @contextmanager
    def controller(self) -> Iterator[int]:
        """A controller that runs; gives its process id."""
        with (self.plane.folder / "controller.log").open("ab") as log:
            kubeconfig = self.plane.kubeconfig(CONTROLLER, GROUPS)
            command = [sys.executable, "-m", "fairlease", "controller", "--kubeconfig", str(kubeconfig)]
            process = subprocess.Popen([*command, "--identity", "bench", "--metrics-port", "0"], stderr=log, stdout=log)
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()

    def run(self, pods: int) -> dict[str, Any]:
        """A Run of pods with one GPU each."""
        self.number += 1
        container = {"name": "work", "image": "example.invalid/work:1"}
        spec = {
            "owner": OWNER_NAME,
            "resources": {"gpuType": FLAVOR, "totalGPUs": pods},
            "gpusPerPod": 1,
            "template": {"spec": {"containers": [container]}},
        }
        return _object(RUNS, f"run-{self.number}", spec)


def _object(what: Resource, name: str, spec: dict[str, Any], **more: object) -> dict[str, Any]:
    namespace = {"namespace": TEAM} if what.namespaced else {}
    return {
        "apiVersion": what.api_version, "kind": what.kind, "metadata": {"name": name, **namespace}, "spec": spec, **more
    }  # fmt: skip


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
    return _object(LEASES, name, spec)


def _floor_pod(name: str) -> dict[str, Any]:
    env = [{"name": f"VARIABLE_{number}", "value": "a value of some length"} for number in range(13)]
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "work", "image": "example.invalid/work:1", "env": env, "resources": resources}
    pod = _object(PODS, name, {"schedulerName": "fairlease", "restartPolicy": "Never", "containers": [container]})
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


class Watcher:
    """Sees pods being bound, leases being written, and entries being appended."""

    def __init__(self, api: Api) -> None:
        self.bound: set[str] = set()
        self.entries = self.written = 0
        self._changed = asyncio.Event()
        self.pods = Informer(api, PODS, PodSeen, self._pod, namespace=TEAM, labels="rq.davidlangworthy.io/run")
        self.leases = Informer(api, LEASES, Seen, self._lease, namespace=TEAM, labels="rq.davidlangworthy.io/run")
        self.ledger = Informer(api, LEDGER_ENTRIES, Seen, self._entry)

    def _pod(self, change: Change[PodSeen]) -> None:
        if change.what is What.DELETED:
            self.bound.discard(change.object.metadata.name)
        elif change.object.node:
            self.bound.add(change.object.metadata.name)
        self._changed.set()

    def follow(self) -> list[asyncio.Task[None]]:
        """Begin to watch."""
        return [asyncio.create_task(each.run()) for each in (self.pods, self.leases, self.ledger)]

    def _lease(self, change: Change[Seen]) -> None:
        self.written += change.what is What.ADDED
        self._changed.set()

    def _entry(self, change: Change[Seen]) -> None:
        self.entries += change.what is What.ADDED
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that pods or entries tell."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


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


async def prepare(api: Api, nodes: int, gpus: int) -> None:
    """A namespace with money, and nodes."""
    await api.create(NAMESPACES, {"metadata": {"name": TEAM, "annotations": {OWNER: OWNER_NAME}}})
    envelope = {"name": "main", "flavor": FLAVOR, "selector": {"region": "*"}, "concurrency": 1_000_000}
    await api.create(BUDGETS, _object(BUDGETS, "money", {"owner": OWNER_NAME, "envelopes": [envelope]}), TEAM)
    rack = Rack(nodes=nodes, gpus=gpus, flavor=FLAVOR, per_domain=16, pods="2000")
    await asyncio.gather(*(api.create(NODES, each) for each in rack.objects()))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
        for each in following:
            each.cancel()
    return {
        "cluster: gang": {"pods": pods, **_against_the_floor(gangs)},
        "cluster: burst": {"runs": runs, **_against_the_floor(bursts)},
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
            start_cpu_s = _cpu_s(pid)
            await asyncio.sleep(20)
            progress("cluster: idle")
            cpu, begun = _cpu_s(pid), time.perf_counter()
            await asyncio.sleep(30)
            idle = (_cpu_s(pid) - cpu) / (time.perf_counter() - begun)
            progress("cluster: decisions")
            seconds = []
            for _ in range(20):
                entries = watch.entries
                begun = time.perf_counter()
                await api.create(RUNS, bench.run(1), TEAM)
                await watch.until(lambda had=entries: watch.entries > had)  # type: ignore[misc]  # bound to its count
                seconds.append(time.perf_counter() - begun)
                await asyncio.sleep(0.5)
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
            "decision_median_ms": median_ms,
            "decision_least_ms": round(min(seconds) * 1000, 1),
            "target": "first decision < 15 s after the start; idle < 5 % of a core; decision < 50 ms after a watch event",
            "met": start_s < 15 and idle < 0.05 and median_ms < 50,
        }
    }


def on_a_plane(measure: Callable[[Bench], Any]) -> dict[str, Figures]:
    """Measure on a control plane made for it."""
    with tempfile.TemporaryDirectory() as folder, Plane(Path(folder)) as plane:
        plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config"))
        bench = Bench(plane, from_files([plane.kubeconfig("bench", ("system:masters", "fairlease:controllers"))]))
        found: dict[str, Figures] = asyncio.run(measure(bench))
        return found


def run(*, quick: bool = False) -> dict[str, Figures]:
    scale = 10 if quick else 1
    found = on_a_plane(lambda bench: writes(bench, pods=512 // scale, runs=1_000 // scale))
    return found | on_a_plane(lambda bench: size(bench, nodes=5_000 // scale, leases=20_000 // scale))
