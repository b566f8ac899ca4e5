"""Worlds to measure in, made by the same commands as real ones, and the clock to measure with.

A cluster of 8-GPU nodes in domains of 32, and teams of ten owners with ample money. Leases fill the nodes from the first; gangs
have one pod and eight pods in turn and start a minute apart; those that are over ran for half an hour each, before the others.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from fairlease.engine import command as cmd
from fairlease.ledger.store.memory import MemoryStore
from fairlease.model.amount import HOUR, MINUTE
from fairlease.model.budget import BudgetSpec, Envelope
from fairlease.model.node import Node
from fairlease.model.record import Key, key
from fairlease.model.run import Locality, Resources, RunSpec, Runtime
from fairlease.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlease.ledger.store.protocol import Store

Figures = dict[str, Any]
"""What one benchmark found: names and numbers, `target` in words, and `met`."""

EPOCH = 1_700_000_000_000
FLAVOR = "H100"
NODE_GPUS = 8
DOMAIN_NODES = 32
TEAM = 10
GANGS = (1, 8)
CLOSED_MS = 30 * MINUTE
AMPLE_GPUS = 1_000_000
AMPLE_HOURS = 10**9 * HOUR


def node(number: int) -> Node:
    labels = {
        "region": "eu",
        "cluster": "c1",
        "fabric.domain": f"d{number // DOMAIN_NODES:03d}",
        "gpu.flavor": FLAVOR,
    }
    return Node(name=f"node-{number:05d}", labels=labels, gpus=NODE_GPUS)


def owner(number: int) -> str:
    return f"org:t{number // TEAM:02d}:p{number:03d}"


def budget(number: int, *, hours: bool) -> cmd.SetBudget:
    return _budget(owner(number), hours=hours)


def head(number: int, *, hours: bool) -> cmd.SetBudget:
    """The Budget of a team's parent: with it, the ten owners of the team are siblings, and each asks all the others."""
    return _budget(f"org:t{number:02d}", hours=hours)


def _budget(name: str, *, hours: bool) -> cmd.SetBudget:
    envelope = Envelope(
        name="main",
        flavor=FLAVOR,
        selector={"cluster": "c1"},
        concurrency=AMPLE_GPUS,
        max_gpu_hours=AMPLE_HOURS if hours else None,
    )
    parents = (name.rpartition(":")[0],)
    return cmd.SetBudget(key(name.replace(":", "-")), BudgetSpec(owner=name, parents=parents, envelopes=(envelope,)))


def request(
    who: int,
    gpus: int,
    *,
    pod: int = NODE_GPUS,
    group: int | None = None,
    limit: int | None = None,
) -> RunSpec:
    return RunSpec(
        owner=owner(who),
        resources=Resources(gpu_type=FLAVOR, total_gpus=gpus),
        locality=Locality(group_gpus=group),
        runtime=Runtime(max_duration=limit),
        gpus_per_pod=pod,
    )


def cluster(
    nodes: int, budgets: int, *, hours: bool = True, family: bool = False, store: Store | None = None
) -> Scheduler:
    """Empty nodes, and Budgets with ample room; `family`: the teams' parents have Budgets too."""
    scheduler = Scheduler(MemoryStore() if store is None else store)
    commands: list[cmd.AnyCommand] = [cmd.SetNode(node(number)) for number in range(nodes)]
    commands += [budget(number, hours=hours) for number in range(budgets)]
    commands += [head(team, hours=hours) for team in range(-(-budgets // TEAM) if family else 0)]
    scheduler.tick(EPOCH, *commands)
    return scheduler


def gangs(leases: int) -> Iterator[int]:
    """Pods of each gang, one and eight in turn, `leases` pods in all."""
    turn = 0
    while leases:
        pods = min(GANGS[turn % len(GANGS)], leases)
        yield pods
        leases -= pods
        turn += 1


def fill(scheduler: Scheduler, *, opened: int, closed: int, pod: int = NODE_GPUS, budgets: int = 50) -> int:
    """Closed leases, then open ones; returns the time after the last of them."""
    at = scheduler.state.at
    for number, pods in enumerate(gangs(closed)):
        name = key(f"past-{number}")
        scheduler.tick(at, cmd.Submit(name, request(number % budgets, pods * pod, pod=pod)))
        at += CLOSED_MS
        scheduler.tick(at, cmd.WorkEnded(name, 1, 0))
    for number, pods in enumerate(gangs(opened)):
        at += MINUTE
        scheduler.tick(at, cmd.Submit(key(f"now-{number}"), request(number % budgets, pods * pod, pod=pod)))
    assert scheduler.state.open_leases == opened, "every gang found money and room"
    assert scheduler.state.serial == opened + closed, "and every lease was opened once"
    return at + MINUTE


def asked(number: int, spec: RunSpec) -> cmd.Submit:
    """A submission under a name of its own."""
    return cmd.Submit(run_key(number), spec)


def run_key(number: int) -> Key:
    return key(f"run-{number:07d}")


def clock(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(seconds: list[float]) -> dict[str, float]:
    """Least, median and 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    return {
        "min_ms": millis(ordered[0]),
        "median_ms": millis(statistics.median(ordered)),
        "p99_ms": millis(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]),
    }


def millis(seconds: float) -> float:
    return round(seconds * 1000, 4)


def progress(text: str) -> None:
    """Say what is being measured, where somebody watches."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
