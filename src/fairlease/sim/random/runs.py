"""Asking: random runs of every kind that people ask for; every one is valid (SEMANTICS §2)."""

from __future__ import annotations

import random

from fairlease.model.amount import HOUR, MINUTE
from fairlease.model.record import Key, key
from fairlease.model.run import (
    Follow,
    Funding,
    Locality,
    LocationPolicy,
    Malleable,
    OnPreempt,
    Resources,
    RunSpec,
    Runtime,
)
from fairlease.sim.random.budgets import OWNERS


class Asking:
    """Draws runs."""

    def __init__(
        self, rng: random.Random, flavors: tuple[str, ...], places: list[dict[str, str]], *, careful: bool = False
    ) -> None:
        """`careful`: most runs hold spares and are elastic, and many others borrow those."""
        self.rng = rng
        self.careful = careful
        self.flavors = flavors
        self.places = places
        self.count = 0
        self.last: RunSpec | None = None

    def run(self, now: int) -> tuple[Key, RunSpec]:
        """A name nobody had, and a spec; sometimes the same as the last, so that shapes are shared."""
        rng = self.rng
        self.count += 1
        namespace = "default" if rng.random() < 0.8 else "other"
        again = rng.random() < 0.25
        spec = self._spec(now)
        if self.last is not None and again:
            spec = self.last
        self.last = spec
        return key(f"r{self.count}", namespace), spec

    def _spec(self, now: int) -> RunSpec:
        rng = self.rng
        pod = rng.choice((1, 1, 2, 2, 4, 8))
        pods = rng.choice((1, 1, 2, 2, 3, 4, 6))
        group = None if rng.random() < 0.4 else pod * rng.choice((1, 2, 2, 4))
        return RunSpec(
            owner=rng.choice(OWNERS),
            resources=Resources(gpu_type=rng.choice((self.flavors[0], *self.flavors)), total_gpus=pod * pods),
            locality=self._locality(group),
            runtime=self._runtime(now),
            malleable=self._malleable(pod, pods),
            spares_per_group=pod * rng.choice((0, 1, 1, 2, 2, 3) if self.careful else (0, 0, 0, 1, 1, 2)),
            opportunistic=rng.random() < (0.35 if self.careful else 0.2),
            funding=self.funding(),
            follow=self._follow(),
            gpus_per_pod=pod,
        )

    def _locality(self, group: int | None) -> Locality:
        rng = self.rng
        location: dict[str, str] = {}
        if self.places and rng.random() < 0.4:
            label = rng.choice(("region", "cluster", "fabric.domain", "rack"))
            location = {label: rng.choice(self.places).get(label, "*")}
        return Locality(
            group_gpus=group,
            allow_cross_group_spread=rng.random() < 0.7,
            location=location,
            location_policy=rng.choice((LocationPolicy.PREFER, LocationPolicy.PREFER, LocationPolicy.REQUIRE)),
        )

    def _runtime(self, now: int) -> Runtime:
        rng = self.rng
        return Runtime(
            max_duration=None if rng.random() < 0.5 else rng.choice((30, 60, 120, 240, 600)) * MINUTE,
            latest_start=None if rng.random() < 0.9 else now - now % MINUTE + rng.choice((-5, 0, 30, 60, 120)) * MINUTE,
            checkpoint=None if rng.random() < 0.6 else rng.choice((10, 30)) * MINUTE,
            on_preempt=rng.choice((None, None, OnPreempt.FAIL, OnPreempt.REQUEUE)),
            retries=rng.choice((0, 0, 1, 2)),
            expected_duration=None if rng.random() < 0.9 else HOUR,
        )

    def _malleable(self, pod: int, pods: int) -> Malleable | None:
        rng = self.rng
        if rng.random() < (0.4 if self.careful else 0.7):
            return None
        least = rng.randint(1, pods)
        desired = None if rng.random() < 0.6 else pod * rng.randint(least, pods + 2)
        return Malleable(
            min_total_gpus=pod * least,
            max_total_gpus=pod * (pods + 2),
            step_gpus=pod * rng.choice((1, 1, 2)),
            desired_total_gpus=desired,
        )

    def funding(self) -> Funding:
        """Whose money a run may ask for beyond its family's."""
        rng = self.rng
        if rng.random() < 0.4:
            return Funding()
        sponsors = tuple(dict.fromkeys(rng.choice(OWNERS) for _ in range(rng.randint(0, 2))))
        limit = None if rng.random() < 0.7 else rng.choice((0, 2, 4, 8))
        return Funding(allow_borrow=rng.random() < 0.9, max_borrow_gpus=limit, sponsors=sponsors)

    def _follow(self) -> Follow:
        rng = self.rng
        if self.count < 2 or rng.random() < 0.9:
            return Follow()
        return Follow(
            after=tuple(f"r{rng.randint(max(1, self.count - 4), self.count + 1)}" for _ in range(rng.randint(1, 2)))
        )
