"""Workload: a random world and what happens in it, all from one seed, so that the seed is the bug report.

Numbers are small and times lie on a coarse grid on purpose: runs collide, windows close at the instant work ends, caps are hit
exactly. It asks the film only for what anybody could see (`View`), never the engine for its thoughts, and draws everything from
one generator in one order: the same seed is the same film on every machine.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.model.amount import HOUR, MINUTE
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.node import LabelKeys, Node
from fairlease.model.record import Key, key
from fairlease.model.run import Malleable
from fairlease.sim.asking import Asking
from fairlease.sim.purses import Purses

START = 1_767_571_200_000
"""2026-01-05T00:00:00Z: where films begin."""

GRID = 5 * MINUTE
"""Most moments are multiples of this, so that they meet."""

_FLAVORS = ("H100", "A100", "L4")
_REGIONS = ("west", "east")


class View(NamedTuple):
    """What anybody could see of a film."""

    now: int
    next_timer: int | None
    nodes: dict[str, Node]
    budgets: dict[Key, BudgetSpec]
    running: list[tuple[Key, int]]
    waiting: list[tuple[Key, int]]
    over: list[Key]
    elastic: list[tuple[Key, Malleable]]


class Step(NamedTuple):
    """When, and what comes in at once; `restart` and `snapshot` ask for the scheduler to be rebuilt, `trial` for a look ahead."""

    at: int
    commands: tuple[cmd.AnyCommand, ...]
    restart: bool
    snapshot: bool
    trial: bool


class Workload:
    """One film's author."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.punctual = rng.random() < 0.8
        self.stormy = rng.random() < 0.4
        self.flavors = _FLAVORS[: 1 if self.stormy else rng.randint(1, 3)]
        self.nodes = self._build_nodes()
        places = [node.labels for node in self.nodes if "region" in node.labels and "fabric.domain" in node.labels]
        self.purses = Purses(rng, self.flavors, places)
        self.asking = Asking(rng, self.flavors, places, careful=self.stormy)

    def opening(self) -> tuple[cmd.AnyCommand, ...]:
        """The world as it is found."""
        config = cmd.Configure(Config(commit_quantum=self.rng.choice((5, 15, 15, 30)) * MINUTE))
        nodes = [cmd.SetNode(node) for node in self.nodes]
        budgets = [cmd.SetBudget(name, self._at_ease(spec)) for name, spec in self.purses.first(START).items()]
        return (config, *nodes, *budgets)

    def _at_ease(self, spec: BudgetSpec) -> BudgetSpec:
        """In a stormy film nodes are what goes wrong, not money."""
        if not self.stormy:
            return spec
        rich = [replace(each, concurrency=64, max_gpu_hours=None, start=None, end=None) for each in spec.envelopes]
        return replace(spec, envelopes=tuple(rich), aggregate_caps=())

    def step(self, view: View) -> Step:
        """What happens next."""
        rng = self.rng
        at = self._later(view)
        count = rng.choice((1, 1, 1, 2, 2, 3, 5))
        commands = tuple(self._command(view, at) for _ in range(count))
        if rng.random() < (0.25 if self.stormy else 0.05):
            commands = self._burst(view)
        flags = [rng.random() < chance for chance in (0.08, 0.5, 0.25)]
        return Step(at, commands, flags[0], flags[1], flags[2])

    def _later(self, view: View) -> int:
        """Mostly a little later; often at the exact instant at which something falls due."""
        kind, minutes = self.rng.random(), self.rng.randint(1, 12)
        if kind < 0.25:
            return view.now
        if kind < 0.55 and view.next_timer is not None:
            return max(view.now, view.next_timer)
        if kind < 0.6:
            return view.now + self.rng.randint(1, 5 * MINUTE)
        if kind < 0.62:
            return view.now + 4 * HOUR
        return view.now - view.now % GRID + minutes * GRID

    def _command(self, view: View, at: int) -> cmd.AnyCommand:
        rng = self.rng
        kind = rng.random()
        if self.stormy and kind > 0.5:
            return self._repaired(view) if kind < 0.8 else self._resize(view)
        if kind < 0.45:
            return cmd.Submit(*self.asking.run(at))
        if kind < 0.6:
            return self._work(view)
        if kind < 0.67:
            return cmd.Cancel(self._any_run(view)) if kind < 0.63 else self._edited(view, kind)
        if kind < 0.78:
            return self._node(view)
        if kind < 0.95:
            return self._budget(view, at)
        if kind < 0.97:
            return cmd.Configure(self._config())
        return self._nonsense(view)

    # --- work ----------------------------------------------------------------------------------------------------------

    def _work(self, view: View) -> cmd.AnyCommand:
        rng = self.rng
        if not view.running:
            return cmd.TimePassed()
        name, attempt = rng.choice(view.running)
        if rng.random() < 0.8:
            return cmd.WorkEnded(name, attempt, rng.choice((0, 0, 0, 1)))
        return cmd.PodFailed(name, attempt, rng.choice((0, 0, 0, 3)), retry_after=attempt % 3 * MINUTE)

    def _edited(self, view: View, kind: float) -> cmd.AnyCommand:
        """A run asks for another width, or for other money."""
        return self._resize(view) if kind < 0.65 else cmd.SetFunding(self._any_run(view), self.asking.funding())

    def _resize(self, view: View) -> cmd.AnyCommand:
        """Mostly a width on the grid; some are refused."""
        rng = self.rng
        if not view.elastic or rng.random() < 0.1:
            return cmd.Resize(self._any_run(view), rng.randint(0, 12))
        name, elastic = rng.choice(view.elastic)
        return cmd.Resize(name, rng.choice(elastic.grid))

    def _any_run(self, view: View) -> Key:
        known = [name for name, _ in view.running + view.waiting] + view.over[-3:]
        return self.rng.choice(known) if known else key("nobody")

    def _nonsense(self, view: View) -> cmd.AnyCommand:
        """Reports that come too late, and names nobody knows; nothing may follow from them."""
        rng = self.rng
        name = self._any_run(view)
        return rng.choice((
            cmd.WorkEnded(name, rng.randint(0, 9), 0),
            cmd.PodFailed(name, rng.randint(2, 9), 99),
            cmd.WorkEnded(key("nobody"), 1, 0),
            cmd.Cancel(key("nobody")),
            cmd.FailNode("nowhere"),
            cmd.RemoveNode("nowhere"),
            cmd.RemoveBudget(key("nothing")),
            cmd.Submit(name, self.asking.run(view.now)[1]),
        ))  # fmt: skip

    def _config(self) -> Config:
        rng = self.rng
        quantum, debounce = rng.choice((5, 15, 30)) * MINUTE, rng.choice((0, 1, 10)) * MINUTE
        domain = "rack" if rng.random() < 0.1 else "fabric.domain"
        cooldown = rng.choice((0, 1, 1, 10)) * MINUTE
        labels = LabelKeys(domain=domain)
        return Config(commit_quantum=quantum, node_debounce=debounce, grow_cooldown=cooldown, labels=labels)

    # --- nodes ---------------------------------------------------------------------------------------------------------

    def _build_nodes(self) -> list[Node]:
        rng = self.rng
        nodes: list[Node] = []
        for domain in range(rng.randint(2, 5)):
            flavor = self.flavors[0] if domain == 0 else rng.choice(self.flavors)
            region = rng.choice(_REGIONS)
            cluster = f"{region}-{rng.randint(1, 2)}"
            for _ in range(rng.randint(1, 4)):
                labels = {"region": region, "cluster": cluster, "fabric.domain": f"d{domain}", "gpu.flavor": flavor}
                labels["rack"] = f"r{rng.randint(1, 2)}"
                if rng.random() < 0.06:
                    del labels[rng.choice(("region", "cluster", "fabric.domain", "gpu.flavor"))]
                nodes.append(Node(name=f"n{len(nodes)}", labels=labels, gpus=rng.choice((1, 2, 4, 4, 8, 8, 8))))
        return nodes

    def _node(self, view: View) -> cmd.AnyCommand:
        rng = self.rng
        if not view.nodes or rng.random() < 0.2:
            return cmd.SetNode(rng.choice(self.nodes))
        name = rng.choice(sorted(view.nodes))
        node = view.nodes[name]
        kind = rng.random()
        if kind < 0.1:
            return cmd.FailNode(name)
        if kind < 0.13:
            return cmd.RemoveNode(name)
        return cmd.SetNode(self._changed(node, kind))

    def _repaired(self, view: View) -> cmd.AnyCommand:
        """A node that is gone or broken comes back as it was."""
        broken = [node for node in self.nodes if view.nodes.get(node.name) != node]
        return cmd.SetNode(self.rng.choice(broken if broken and self.rng.random() < 0.3 else self.nodes))

    def _burst(self, view: View) -> tuple[cmd.AnyCommand, ...]:
        """Several nodes at once: gone, removed or fenced."""
        rng = self.rng
        names = rng.sample(sorted(view.nodes), min(len(view.nodes), rng.choice((2, 2, 3, 5))))
        kinds = [rng.random() for _ in names]
        return tuple(
            cmd.FailNode(name) if kind < 0.6
            else cmd.RemoveNode(name) if kind < 0.75
            else cmd.SetNode(replace(view.nodes[name], fenced=True))
            for name, kind in zip(names, kinds, strict=True)
        )  # fmt: skip

    def _changed(self, node: Node, kind: float) -> Node:
        rng = self.rng
        if kind < 0.5:
            return next(each for each in self.nodes if each.name == node.name)
        if kind < 0.6:
            return replace(node, cordoned=not node.cordoned)
        if kind < 0.7:
            return replace(node, ready=False, pods_dead=rng.random() < 0.7)
        if kind < 0.75:
            return replace(node, fenced=True)
        if kind < 0.82:
            return replace(node, healthy_gpus=rng.randint(0, node.gpus))
        if kind < 0.9:
            return replace(node, gpus=rng.choice((1, 2, 4, 8)))
        other = rng.choice(self.nodes)
        label = rng.choice(("region", "fabric.domain", "gpu.flavor", "rack"))
        return replace(node, labels={**node.labels, label: other.labels.get(label, "")})

    # --- money ---------------------------------------------------------------------------------------------------------

    def _budget(self, view: View, at: int) -> cmd.AnyCommand:
        rng = self.rng
        if view.budgets and rng.random() < 0.08:
            return cmd.RemoveBudget(rng.choice(sorted(view.budgets)))
        if not view.budgets or rng.random() < 0.1:
            return cmd.SetBudget(*self.purses.fresh(at))
        name = rng.choice(sorted(view.budgets))
        return cmd.SetBudget(name, self.purses.edited(view.budgets[name], at))
