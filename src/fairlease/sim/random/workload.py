"""Workload: a random world and what happens in it, all from one seed, so that the seed is the bug report.

Numbers are small and times lie on a coarse grid on purpose: runs collide, windows close at the instant work ends, caps are hit
exactly. It asks the film only for what anybody could see (`View`), never the engine for its thoughts, and draws everything from
one generator in one order: the same seed is the same film on every machine. Each film has a mood, which says what mostly happens
in it: what is rare in one is common in another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.model.amount import HOUR, MINUTE, SECOND
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.node import LabelKeys, Node
from fairlease.model.record import Key, key
from fairlease.model.reservation import ByHand
from fairlease.model.run import Malleable
from fairlease.sim.random.budgets import Purses
from fairlease.sim.random.failures import Breakage
from fairlease.sim.random.runs import Asking

START = 1_767_571_200_000
"""2026-01-05T00:00:00Z: where films begin."""

GRID = 5 * MINUTE
"""Most moments are multiples of this, so that they meet."""

_FLAVORS = ("H100", "A100", "L4")


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
    spared: list[tuple[Key, list[int]]]


class WorkloadStep(NamedTuple):
    """When, and what comes in at once; `restart` and `snapshot` ask for the scheduler to be rebuilt, `trial` for a look ahead."""

    at: int
    commands: tuple[cmd.AnyCommand, ...]
    restart: bool
    snapshot: bool
    trial: bool


class Mood(NamedTuple):
    """What mostly happens in a film: weights of what comes in, and the chance of a burst of failures.

    `rich`: money is no object; `steady`: nodes are alike; `careful`: most runs are elastic and hold spares.
    """

    weights: dict[str, int]
    burst: float
    rich: bool = False
    steady: bool = False
    careful: bool = False


MOODS = {
    "mixed": Mood({"submit": 44, "work": 14, "cancel": 3, "edit": 6, "node": 11, "money": 15, "config": 2, "drill": 2, "hand": 1,
                   "nonsense": 2}, 0.05),
    "stormy": Mood({"submit": 40, "work": 7, "edit": 14, "node": 6, "repair": 24, "drill": 7, "hand": 1, "config": 1}, 0.25,
                   rich=True, steady=True, careful=True),
    "crowded": Mood({"submit": 55, "work": 14, "cancel": 3, "edit": 10, "node": 5, "money": 4, "config": 2, "drill": 4, "hand": 3},
                    0.02, rich=True, careful=True),
    "poor": Mood({"submit": 38, "work": 12, "cancel": 2, "edit": 10, "node": 3, "money": 32, "config": 1, "drill": 2}, 0.01,
                 steady=True),
}  # fmt: skip


class Workload:
    """One film's author."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.punctual = rng.random() < 0.8
        self.mood = MOODS[rng.choice(("mixed", "mixed", "stormy", "crowded", "poor"))]
        mood = self.mood
        self.flavors = _FLAVORS[: 1 if mood.rich or mood.steady else rng.randint(1, 3)]
        self.breakage = Breakage(rng, self.flavors, steady=mood.steady)
        self.purses = Purses(rng, self.flavors, self.breakage.places)
        self.asking = Asking(rng, self.flavors, self.breakage.places, careful=mood.careful)

        self._draw: dict[str, Callable[[View, int], cmd.AnyCommand]] = {
            "submit": lambda _, at: cmd.Submit(*self.asking.run(at)),
            "work": lambda view, _: self._work(view),
            "cancel": lambda view, _: cmd.Cancel(self._any_run(view)),
            "edit": lambda view, _: self._edited(view),
            "node": lambda view, _: self.breakage.one(view.nodes),
            "repair": lambda view, _: self.breakage.repaired(view.nodes),
            "money": self._budget,
            "config": lambda *_: cmd.Configure(self._config()),
            "drill": lambda view, _: self._drill(view),
            "hand": lambda *_: self._by_hand(),
            "nonsense": lambda view, _: self._nonsense(view),
        }

    def opening(self) -> tuple[cmd.AnyCommand, ...]:
        """The world as it is found."""
        config = cmd.Configure(self._config())
        nodes = [cmd.SetNode(node) for node in self.breakage.nodes]
        budgets = [cmd.SetBudget(name, self._at_ease(spec)) for name, spec in self.purses.first(START).items()]
        return (config, *nodes, *budgets)

    def _at_ease(self, spec: BudgetSpec) -> BudgetSpec:
        """In some films money is not what goes wrong."""
        if not self.mood.rich:
            return spec
        rich = [replace(each, concurrency=64, max_gpu_hours=None, start=None, end=None) for each in spec.envelopes]
        return replace(spec, envelopes=tuple(rich), aggregate_caps=())

    def step(self, view: View) -> WorkloadStep:
        """What happens next."""
        rng = self.rng
        at = self._later(view)
        count = rng.choice((1, 1, 1, 2, 2, 3, 5))
        commands = tuple(self._command(view, at) for _ in range(count))
        if rng.random() < self.mood.burst:
            commands = self.breakage.burst(view.nodes)
        flags = [rng.random() < chance for chance in (0.08, 0.5, 0.25)]
        return WorkloadStep(at, commands, flags[0], flags[1], flags[2])

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
        weights = self.mood.weights
        kind = self.rng.choices(list(weights), list(weights.values()))[0]
        return self._draw[kind](view, at)

    # --- work ----------------------------------------------------------------------------------------------------------

    def _work(self, view: View) -> cmd.AnyCommand:
        rng = self.rng
        if not view.running:
            return cmd.TimePassed()
        name, attempt = rng.choice(view.running)
        pause = rng.choice((0, 0, 1, 10)) * MINUTE
        if rng.random() < 0.8:
            return cmd.WorkEnded(name, attempt, rng.choice((0, 0, 0, 1)), retry_after=pause)
        return cmd.PodFailed(name, attempt, rng.choice((0, 0, 0, 3)), retry_after=pause)

    def _edited(self, view: View) -> cmd.AnyCommand:
        """A run asks for another width, or for other money."""
        if self.rng.random() < 0.65:
            return self._resize(view)
        return cmd.SetFunding(self._any_run(view), self.asking.funding())

    def _resize(self, view: View) -> cmd.AnyCommand:
        """Mostly a width on the grid; some are refused."""
        rng = self.rng
        if not view.elastic or rng.random() < 0.1:
            return cmd.Resize(self._any_run(view), rng.randint(0, 12))
        name, elastic = rng.choice(view.elastic)
        return cmd.Resize(name, rng.choice(elastic.grid))

    def _drill(self, view: View) -> cmd.AnyCommand:
        """Mostly of a run that holds spares, and mostly of a rank it has."""
        rng = self.rng
        if not view.spared or rng.random() < 0.1:
            return cmd.Drill(self._any_run(view), rng.choice((None, 0, 99)))
        name, ranks = rng.choice(view.spared)
        return cmd.Drill(name, None if rng.random() < 0.4 else rng.choice(ranks))

    def _by_hand(self) -> cmd.AnyCommand:
        """An administrator wants GPUs of some place free."""
        rng = self.rng
        pod = rng.choice((1, 2, 4))
        pods = rng.randint(1, 4)
        group = None if rng.random() < 0.5 else pod * rng.randint(1, pods)
        location: dict[str, str] = {}
        if self.breakage.places and rng.random() < 0.8:
            label = rng.choice(("region", "fabric.domain", "rack"))
            location = {label: rng.choice(self.breakage.places).get(label, "*")}
        asked = ByHand(by="root", reason="repairs", gpus=pod * pods, gpus_per_pod=pod, group_gpus=group)
        return cmd.Resolve(rng.choice(self.flavors), location, asked)

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
        """Mostly as it comes; sometimes with another patience, or none.

        With neither notice nor a least time to run, whoever waits would take turns every second, by the rules: a film without end.
        """
        rng = self.rng
        domain = "rack" if rng.random() < 0.04 else "fabric.domain"
        config = Config(
            notice=rng.choice((15 * MINUTE, 15 * MINUTE, 5 * MINUTE, HOUR, SECOND, 0, None)),
            reservations=rng.random() < 0.95,
            commit_quantum=rng.choice((5, 15, 15, 30)) * MINUTE,
            min_runtime=rng.choice((0, 5, 15, 15, 30)) * MINUTE,
            node_debounce=rng.choice((0, 1, 1, 10)) * MINUTE,
            grow_cooldown=rng.choice((0, 1, 1, 10)) * MINUTE,
            labels=LabelKeys(domain=domain),
        )
        hasty = config.notice == SECOND and not config.min_runtime
        return replace(config, min_runtime=5 * MINUTE) if hasty else config

    # --- money ---------------------------------------------------------------------------------------------------------

    def _budget(self, view: View, at: int) -> cmd.AnyCommand:
        rng = self.rng
        if view.budgets and rng.random() < 0.06:
            return cmd.RemoveBudget(rng.choice(sorted(view.budgets)))
        if not view.budgets or rng.random() < 0.1:
            return cmd.SetBudget(*self.purses.fresh(at))
        name = rng.choice(sorted(view.budgets))
        return cmd.SetBudget(name, self.purses.edited(view.budgets[name], at))
