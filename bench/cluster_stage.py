"""What the benchmarks on a real API server share: a control plane, a controller in a process of its own, and eyes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.controlplane import Plane, Rack

from bench.synthetic import Figures
from fairlease.kube.api.connection import Api
from fairlease.kube.api.informer import Change, Informer, What
from fairlease.kube.api.kubeconfig import ClusterAccess, from_files
from fairlease.kube.api.names import OWNER, RUN
from fairlease.kube.api.resource import BUDGETS, LEASES, LEDGER_ENTRIES, NAMESPACES, NODES, PODS, RUNS, Resource
from fairlease.kube.api.wire_types import PodSeen, Seen
from fairlease.kube.manifests.policy import CONTROLLER

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("system:serviceaccounts", "system:authenticated")
TEAM, OWNER_NAME, FLAVOR = "bench", "org:bench", "H100-80GB"
PATIENCE_S = 900.0


class Bench:
    """A control plane, a controller in a process of its own, and the client that measures."""

    def __init__(self, plane: Plane, access: ClusterAccess) -> None:
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
        return an_object(RUNS, f"run-{self.number}", spec)


def an_object(what: Resource, name: str, spec: dict[str, Any], **more: object) -> dict[str, Any]:
    namespace = {"namespace": TEAM} if what.namespaced else {}
    return {
        "apiVersion": what.api_version, "kind": what.kind, "metadata": {"name": name, **namespace}, "spec": spec, **more
    }  # fmt: skip


class Watcher:
    """Sees pods being bound, leases being written, and entries being appended."""

    def __init__(self, api: Api) -> None:
        self.bound: set[str] = set()
        self.entries = self.written = 0
        self._changed = asyncio.Event()
        self.pods = Informer(api, PODS, PodSeen, self._pod, namespace=TEAM, labels=RUN)
        self.leases = Informer(api, LEASES, Seen, self._lease, namespace=TEAM, labels=RUN)
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


async def prepare(api: Api, nodes: int, gpus: int) -> None:
    """A namespace with money, and nodes."""
    await api.create(NAMESPACES, {"metadata": {"name": TEAM, "annotations": {OWNER: OWNER_NAME}}})
    envelope = {"name": "main", "flavor": FLAVOR, "selector": {"region": "*"}, "concurrency": 1_000_000}
    await api.create(BUDGETS, an_object(BUDGETS, "money", {"owner": OWNER_NAME, "envelopes": [envelope]}), TEAM)
    rack = Rack(nodes=nodes, gpus=gpus, flavor=FLAVOR, per_domain=16, pods="2000")
    await asyncio.gather(*(api.create(NODES, each) for each in rack.objects()))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def on_a_plane(measure: Callable[[Bench], Any]) -> dict[str, Figures]:
    """Measure on a control plane made for it."""
    with tempfile.TemporaryDirectory() as folder, Plane(Path(folder)) as plane:
        plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config"))
        bench = Bench(plane, from_files([plane.kubeconfig("bench", ("system:masters", "fairlease:controllers"))]))
        found: dict[str, Figures] = asyncio.run(measure(bench))
        return found
