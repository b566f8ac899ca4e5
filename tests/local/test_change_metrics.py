"""Metrics of changes, from the ticks of a real engine: each counts what its entries say, and nothing else."""

from __future__ import annotations

import re
import time

from prometheus_client import generate_latest
from tests.engine.build import World, budget, envelope, lending, node, run

from fairlease.engine import command as cmd
from fairlease.model.amount import HOUR, MINUTE
from fairlease.model.lease import Lease, Role
from fairlease.model.record import key
from fairlease.runtime.metrics import Metrics
from fairlease.scheduler import Tick


class Watched(World):
    """A world whose every tick is measured."""

    metrics: Metrics | None = None

    def tick(self, *commands: cmd.AnyCommand) -> Tick:
        done = super().tick(*commands)
        if self.metrics is None:
            self.metrics = Metrics(self.scheduler.state, {})
        self.metrics.ticked(done, 0.001, heard=time.perf_counter())
        return done

    def measured(self) -> dict[str, float]:
        assert self.metrics is not None
        self.metrics.changes.scrape(self.now)
        text = generate_latest(self.metrics.registry).decode()
        return {name: float(value) for name, value in re.findall(r"^fairlease_(\S+) (\S+)$", text, re.MULTILINE)}


def test_a_swap_is_counted_and_timed_until_its_process_runs() -> None:
    world = Watched(node("a0"), node("a1"), node("a2"), budget("org", envelope(concurrency=64)))
    world.submit("train", run("org", 8, 8, spares=8, group_gpus=8))
    seen = world.measured()
    assert (seen["spares_allocated_total"], seen["spares_active"], seen["spares_swaps_total"]) == (8, 8, 0)
    world.tick(cmd.FailNode(world.nodes("train")[0]))
    seen = world.measured()
    assert (seen["spares_active"], seen["spares_swaps_total"], seen["swap_decided_seconds_count"]) == (0, 1, 1)
    assert seen["swap_running_seconds_count"] == 0

    assert world.metrics is not None
    changes = world.metrics.changes
    changes.look(lambda _: False)
    assert world.measured()["swap_running_seconds_count"] == 0, "its process has not come yet"
    asked: list[Lease] = []

    def started(lease: Lease) -> bool:
        asked.append(lease)
        return True

    changes.look(started)
    assert asked == [row.lease for row in world.leases("train")]
    changes.look(started)
    assert len(asked) == 1, "what runs is not waited for any more"
    assert world.measured()["swap_running_seconds_count"] == 1


def test_growth_shrinkage_and_what_gives_way_are_counted_once_each() -> None:
    world = Watched(node("a0"), node("a1"), budget("org", envelope(concurrency=64)))
    world.submit("wide", run("org", 4, 2, elastic=(4, 12, 4), group_gpus=4))
    world.wait(3 * MINUTE)
    assert world.run("wide").width == 12
    world.tick(cmd.Resize(key("wide"), 4))
    world.submit("filler", run("org", 8, 8, opportunistic=True))
    world.submit("funded", run("org", 8, 8))
    seen = world.measured()
    assert (seen["elastic_grows_total"], seen["elastic_shrinks_total"], seen["filler_preemptions_total"]) == (2, 1, 1)
    assert seen['elastic_width_current{flavor="H100"}'] == 4
    assert all(row.lease.role is Role.ACTIVE for row in world.leases("funded"))


def test_lent_hours_are_counted_over_the_whole_ledger() -> None:
    world = Watched(node("a0"), budget("lab", envelope(concurrency=8, lending=lending())))
    world.submit("loan", run("org", 4, 4, allow_borrow=True, sponsors=("lab",)))
    world.wait(HOUR)
    assert world.measured()["borrowed_gpu_hours_total"] == 4
    assert world.measured()["borrowed_gpu_hours_total"] == 4, "a scrape counts nothing twice"
    world.end("loan")
    world.wait(HOUR)
    seen = world.measured()
    assert (seen["borrowed_gpu_hours_total"], seen["borrowed_gpus_current"]) == (4, 0)
    fresh = Metrics(world.scheduler.state, {})
    fresh.changes.scrape(world.now)
    world.metrics = fresh
    assert world.measured()["borrowed_gpu_hours_total"] == 4
