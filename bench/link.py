"""How many writes a second the connection gets through an API server, beside the floor: the same requests, as bytes made before.

The floor is what a bare client gets that neither encodes, nor decodes, nor retries; what is left above it is what the connection
costs. Batches of both take turns, so that a busy neighbour slows both alike. Whoever decides between HTTP clients looks at the
processor time per write: on two cores it is taken from the API server.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from tools.controlplane import Plane

from bench.synthetic import Figures
from fairlease.kube.api.connection import POOL_SIZE, Api
from fairlease.kube.api.kubeconfig import from_files
from fairlease.kube.api.resource import LEDGER_ENTRIES, PODS, Resource
from fairlease.model.ledger_entry import LedgerEntrySpec

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 4

Write = Callable[[int], Awaitable[object]]


def run(*, quick: bool = False) -> dict[str, Figures]:
    """Start a control plane, and write."""
    with tempfile.TemporaryDirectory() as folder, Plane(Path(folder)) as plane:
        plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config" / "crd"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        return asyncio.run(_measure(plane, 200 if quick else 1_000))


async def _measure(plane: Plane, count: int) -> dict[str, Figures]:
    async with Api(from_files([plane.kubeconfig()])) as api:
        await asyncio.gather(*(api.text("/version") for _ in range(POOL_SIZE)))
        return {
            "link: pods": await _compare(api, PODS, "default", _pod, count),
            "link: ledger entries": await _compare(api, LEDGER_ENTRIES, None, _entry, count),
        }


async def _compare(
    api: Api, kind: Resource, namespace: str | None, body: Callable[[str], object], count: int
) -> Figures:
    """Batches by the bare client and by ours, in turns."""
    spent = {"floor": [0.0, 0.0], "ours": [0.0, 0.0]}
    for turn in range(ROUNDS):
        path = kind.path(namespace)
        ready = [
            api._pool.encode("POST", path, "", msgspec.json.encode(body(f"f{turn}-{each}")), "application/json")
            for each in range(count)
        ]
        bodies = [body(f"o{turn}-{each}") for each in range(count)]

        async def floor(each: int, ready: list[bytes] = ready) -> None:
            response = await api._pool.ask(ready[each], 60.0)
            assert response.status == 201, response

        async def ours(each: int, bodies: list[object] = bodies) -> None:
            await api.create(kind, bodies[each], namespace)

        for name, write in (("floor", floor), ("ours", ours)) if turn % 2 else (("ours", ours), ("floor", floor)):
            wall_s, cpu_s = await _timed(write, count)
            spent[name][0] += wall_s
            spent[name][1] += cpu_s
    total = count * ROUNDS
    ratio = spent["ours"][0] / spent["floor"][0]
    return {
        "floor_per_s": round(total / spent["floor"][0]),
        "ours_per_s": round(total / spent["ours"][0]),
        "ratio": round(ratio, 2),
        "floor_cpu_us": round(1e6 * spent["floor"][1] / total),
        "ours_cpu_us": round(1e6 * spent["ours"][1] / total),
        "target": "at most 1.25 times the floor",
        "met": ratio <= 1.25,
    }


async def _timed(write: Write, count: int) -> tuple[float, float]:
    begun, worked = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(each) for each in range(count)))
    return time.perf_counter() - begun, time.process_time() - worked


def _pod(name: str) -> object:
    limits = {"nvidia.com/gpu": "8"}
    container = {"name": "main", "image": "work", "resources": {"limits": limits, "requests": limits}}
    meta = {"name": name, "labels": {"rq.davidlangworthy.io/run": "train"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta,
            "spec": {"schedulerName": "fairlease", "containers": [container]}}  # fmt: skip


def _entry(name: str) -> object:
    spec = LedgerEntrySpec(seq=1, at=1, hash="0" * 64, prev="0" * 64, body='[{"event":"NodeFailed","node":"n"}]')
    meta = {"name": f"bench-{name}"}
    return {"apiVersion": LEDGER_ENTRIES.api_version, "kind": "LedgerEntry", "metadata": meta, "spec": spec}
