"""A cluster with a controller in it, for tests that look at both from outside: as people do with kubectl."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.kube.tenancy import path, thing
from tests.kube.wires import connected
from tools.controlplane import Plane, Rack

from fairlease.kube.api.names import OWNER
from fairlease.kube.ledger.archive import read_rows
from fairlease.kube.manifests.policy import CONTROLLER
from fairlease.ledger.audit.audit import AuditReport, scan

PATIENCE_S = 60.0
EXIT = "fake.fairlease/exit-code"
RUN_FOR = "fake.fairlease/run-for"
SILENT = "fake.fairlease/silent"
CONTROLLER_GROUPS = ("system:serviceaccounts", "system:authenticated")

_numbers = itertools.count(1)


def eventually(what: Callable[[], Any], *, within_s: float = PATIENCE_S) -> Any:  # noqa: ANN401 - what was looked for
    """Ask until the answer is true; fails with the last answer."""
    until = time.monotonic() + within_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < until, f"after {within_s} s: {found!r}"
        time.sleep(0.1)


class Controller:
    """A controller process, as the service account that it runs under in a cluster."""

    def __init__(self, plane: Plane, identity: str, *flags: str) -> None:
        self._plane, self.identity, self._flags = plane, identity, flags
        self.log = plane.folder / f"controller-{identity}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Controller:
        kubeconfig = self._plane.kubeconfig(CONTROLLER, CONTROLLER_GROUPS)
        told = ["--kubeconfig", str(kubeconfig), "--identity", self.identity]
        if "--metrics-port" not in self._flags:
            told += ["--metrics-port", "0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlease", "controller", *told, *self._flags], stderr=log, stdout=log
            )
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """As a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As a kubelet would."""
        return self._end(signal.SIGTERM)

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(how)
        if how is signal.SIGKILL:
            self.process.send_signal(signal.SIGCONT)
        code = self.process.wait(30)
        self.process = None
        return code

    def told(self, event: str) -> list[str]:
        """The lines of its log about one thing."""
        return [line for line in self.log.read_text().splitlines() if f'"event": "{event}"' in line]


class Team:
    """A namespace, its owner, a Budget, and nodes of a flavor that only it asks for."""

    def __init__(
        self, plane: Plane, *, nodes: int = 2, gpus: int = 8, concurrency: int = 1_000, silent: bool = False
    ) -> None:
        number = next(_numbers)
        self.plane, self.api = plane, plane.api()
        self.namespace, self.flavor, self.owner = f"team-{number}", f"F{number}", f"org:team{number}"
        made = self.api.post(
            "/api/v1/namespaces", {"metadata": {"name": self.namespace, "annotations": {OWNER: self.owner}}}
        )
        assert made.ok, made.message
        rack = Rack(nodes=nodes, gpus=gpus, flavor=self.flavor, prefix=f"n{number}", domain=f"d{number}")
        for each in rack.objects():
            assert self.api.post("/api/v1/nodes", each).ok
        self.nodes = [each["metadata"]["name"] for each in rack.objects()]
        if silent:
            for node in self.nodes:
                self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {SILENT: ""}}})
        envelope = {"name": "main", "flavor": self.flavor, "selector": {"region": "*"}, "concurrency": concurrency}
        self.make("Budget", {"owner": self.owner, "envelopes": [envelope]}, "money")

    def lends(self, other: Team, *, concurrency: int = 8, on_exhaustion: str = "Hold", **lending: object) -> None:
        """Pay with this team's money for the other's GPUs, and leave the other nothing of its own."""
        envelope = {
            "name": "main", "flavor": other.flavor, "selector": {"region": "*"}, "concurrency": concurrency,
            "onExhaustion": on_exhaustion, "lending": {"allow": True, **lending},
        }  # fmt: skip
        assert self.api.patch(path("Budget", self.namespace, "money"), {"spec": {"envelopes": [envelope]}}).ok
        assert self.api.delete(path("Budget", other.namespace, "money")).ok

    def make(self, kind: str, spec: dict[str, Any], name: str) -> dict[str, Any]:
        made = self.api.post(path(kind, self.namespace), thing(kind, spec, name))
        assert made.ok, made.message
        return dict(made.body)

    def submit(
        self,
        name: str,
        gpus: int,
        *,
        pod: int = 1,
        marks: dict[str, str] | None = None,
        **spec: Any,  # noqa: ANN401 - any field
    ) -> None:
        template = {
            "metadata": {"annotations": marks or {}},
            "spec": {"containers": [{"name": "work", "image": "example.invalid/work:1"}]},
        }
        asked = {"owner": self.owner, "resources": {"gpuType": self.flavor, "totalGPUs": gpus}, "gpusPerPod": pod}
        self.make("Run", {**asked, "template": template, **spec}, name)

    def run(self, name: str) -> dict[str, Any]:
        answer = self.api.get(path("Run", self.namespace, name))
        return dict(answer.body) if answer.ok else {}

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.run(name).get("status") or {})

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase"))

    def reaches(self, name: str, phase: str, *, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for a phase; what ended otherwise never gets there."""

        def there() -> bool:
            found = self.phase(name)
            assert found == phase or found not in ("Completed", "Failed"), self.status(name)
            return found == phase

        eventually(there, within_s=within_s)
        return self.status(name)

    def listed(self, where: str) -> list[dict[str, Any]]:
        """What a list holds, once it is served: after a restart of the server or of etcd that takes a moment."""

        def served() -> Any:  # noqa: ANN401 - an answer
            answer = self.api.get(where)
            return answer if answer.ok else None

        return list(eventually(served).body["items"])

    def pods(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.listed(f"/api/v1/namespaces/{self.namespace}/pods")}

    def bound(self) -> dict[str, str]:
        """Pods that have a node, by name."""
        return {name: pod["spec"]["nodeName"] for name, pod in self.pods().items() if pod["spec"].get("nodeName")}

    def leases(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.listed(path("Lease", self.namespace))}

    def closures(self) -> dict[str, str]:
        """Why leases closed, by name; those that are open are left out."""
        found = {name: (each.get("status") or {}).get("closureReason") for name, each in self.leases().items()}
        return {name: why for name, why in found.items() if why}

    def reservation(self, name: str) -> dict[str, Any]:
        """A Reservation that has its status; nothing before."""
        answer = self.api.get(path("Reservation", self.namespace, name))
        return dict(answer.body) if answer.ok and answer.body.get("status") else {}

    def events(self, name: str) -> list[str]:
        items = self.listed(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [each["reason"] for each in items if each["regarding"]["name"] == name]


def audited(plane: Plane) -> AuditReport:
    """The audit of the cluster's ledger."""

    async def rows() -> Any:  # noqa: ANN401 - rows of the ledger
        async with connected(plane) as api:
            return await read_rows(api)

    return scan(asyncio.run(rows()))
