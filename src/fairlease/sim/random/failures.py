"""Breakage: random nodes, and all that happens to machines: silence, death, cordons, lost GPUs, other labels, bursts, repair."""

from __future__ import annotations

import random
from collections.abc import Mapping

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.model.node import Node

_REGIONS = ("west", "east")


class Breakage:
    """Draws nodes and what becomes of them. `steady`: alike and well labelled, so that what fails could be made good."""

    def __init__(self, rng: random.Random, flavors: tuple[str, ...], *, steady: bool) -> None:
        self.rng = rng
        self.flavors = flavors
        self.steady = steady
        self.nodes = self._build()

    @property
    def places(self) -> list[dict[str, str]]:
        """The labels of nodes that have them."""
        return [node.labels for node in self.nodes if "region" in node.labels and "fabric.domain" in node.labels]

    def _build(self) -> list[Node]:
        rng = self.rng
        nodes: list[Node] = []
        for domain in range(rng.randint(2, 3) if self.steady else rng.randint(2, 5)):
            flavor = self.flavors[0] if domain == 0 else rng.choice(self.flavors)
            region = rng.choice(_REGIONS)
            cluster = f"{region}-{rng.randint(1, 2)}"
            for _ in range(rng.randint(3, 5) if self.steady else rng.randint(1, 4)):
                labels = {"region": region, "cluster": cluster, "fabric.domain": f"d{domain}", "gpu.flavor": flavor}
                labels["rack"] = f"r{rng.randint(1, 2)}"
                if rng.random() < (0.02 if self.steady else 0.06):
                    del labels[rng.choice(("region", "cluster", "fabric.domain", "gpu.flavor"))]
                gpus = rng.choice((4, 8, 8) if self.steady else (1, 2, 4, 4, 8, 8, 8))
                nodes.append(Node(name=f"n{len(nodes)}", labels=labels, gpus=gpus))
        return nodes

    def one(self, seen: Mapping[str, Node]) -> cmd.AnyCommand:
        """Something happens to one node."""
        rng = self.rng
        if not seen or rng.random() < 0.2:
            return cmd.SetNode(rng.choice(self.nodes))
        name = rng.choice(sorted(seen))
        kind = rng.random()
        if kind < 0.1:
            return cmd.FailNode(name)
        if kind < 0.13:
            return cmd.RemoveNode(name)
        return cmd.SetNode(self._changed(seen[name], kind))

    def repaired(self, seen: Mapping[str, Node]) -> cmd.AnyCommand:
        """A node that is gone or broken comes back as it was."""
        broken = [node for node in self.nodes if seen.get(node.name) != node]
        return cmd.SetNode(self.rng.choice(broken if broken and self.rng.random() < 0.6 else self.nodes))

    def burst(self, seen: Mapping[str, Node]) -> tuple[cmd.AnyCommand, ...]:
        """Several nodes at once: gone, removed, fenced or silent, with what ran on them."""
        rng = self.rng
        names = rng.sample(sorted(seen), min(len(seen), rng.choice((1, 1, 2, 2, 3, 5))))
        return tuple(self._lost(seen[name], rng.random()) for name in names)

    def _lost(self, node: Node, kind: float) -> cmd.AnyCommand:
        if kind < 0.5:
            return cmd.FailNode(node.name)
        if kind < 0.6:
            return cmd.RemoveNode(node.name)
        if kind < 0.75:
            return cmd.SetNode(replace(node, fenced=True))
        return cmd.SetNode(replace(node, ready=False, pods_dead=kind < 0.95))

    def _changed(self, node: Node, kind: float) -> Node:
        rng = self.rng
        if not node.ready and kind < 0.6:  # first silent, then known dead, or back
            return replace(node, pods_dead=True) if kind < 0.4 else replace(node, ready=True, pods_dead=False)
        if kind < 0.5:
            return next(each for each in self.nodes if each.name == node.name)
        if kind < 0.6:
            return replace(node, cordoned=not node.cordoned)
        if kind < 0.72:
            return replace(node, ready=False, pods_dead=rng.random() < 0.5)
        if kind < 0.79:
            return replace(node, fenced=True) if kind < 0.77 else replace(node, held=not node.held)
        if kind < 0.85:
            return replace(node, healthy_gpus=rng.randint(0, node.gpus))
        if kind < 0.92:
            return replace(node, gpus=rng.choice((1, 2, 4, 8)))
        other = rng.choice(self.nodes)
        label = rng.choice(("region", "fabric.domain", "gpu.flavor", "rack"))
        return replace(node, labels={**node.labels, label: other.labels.get(label, "")})
