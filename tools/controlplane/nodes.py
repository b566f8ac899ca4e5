"""GPU nodes that are not there: objects with the labels and the capacity of real ones, which kwok keeps Ready."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tools.controlplane.api import Api


@dataclass(frozen=True, kw_only=True)
class Rack:
    """A number of equal nodes. `per_domain` of them share one fabric domain: `<domain>-1`, `<domain>-2` and so on."""

    nodes: int
    gpus: int = 8
    flavor: str = "H100-80GB"
    region: str = "us-west"
    cluster: str = "west-1"
    domain: str = "fabric"
    per_domain: int = 4
    prefix: str = "gpu"
    cpu: str = "128"
    memory: str = "1Ti"
    pods: str = "250"

    def objects(self) -> list[dict[str, Any]]:
        """The Node objects."""
        return [self._node(number) for number in range(1, self.nodes + 1)]

    def _node(self, number: int) -> dict[str, Any]:
        name = f"{self.prefix}-{number}"
        labels = {
            "region": self.region,
            "cluster": self.cluster,
            "fabric.domain": f"{self.domain}-{(number - 1) // self.per_domain + 1}",
            "gpu.flavor": self.flavor,
            "kubernetes.io/hostname": name,
            "type": "kwok",
        }
        has = {"cpu": self.cpu, "memory": self.memory, "pods": self.pods, "nvidia.com/gpu": str(self.gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kwok plays the kubelet"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "status": {"capacity": has, "allocatable": has, "conditions": [ready], "phase": "Running"},
        }


def add_nodes(api: Api, *racks: Rack) -> list[str]:
    """Create the nodes of racks, several at a time, and return their names."""

    def add(node: dict[str, Any]) -> str:
        answer = api.post("/api/v1/nodes", node)
        if not answer.ok:
            raise RuntimeError(f"node {node['metadata']['name']}: {answer.message}")
        return str(node["metadata"]["name"])

    wanted = [node for rack in racks for node in rack.objects()]
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(add, wanted))
