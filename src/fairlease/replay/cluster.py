"""The cluster and the money on which a trace is replayed: from the command line, and from quotas that change by the day."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine import command as cmd
from fairlease.model.amount import DAY, SECOND
from fairlease.model.budget import BudgetSpec, Envelope
from fairlease.model.document import Invalid, Problem, read_file
from fairlease.model.node import Node
from fairlease.model.objects import BudgetObject, read_objects
from fairlease.model.record import key
from fairlease.replay.trace import FLAVOR, ROOT, Asker, Limits, Trace

if TYPE_CHECKING:
    from fairlease.replay.trace import Trace


QUOTA_COLUMNS = ("cluster", "vc", "date_from", "date_to", "gpus")
TOTAL = "total"
"""A row of this name sums up the others."""

Steps = list[tuple[int, int]]
"""From when on so many GPUs."""


def read_quotas(path: str, cluster: str | None, trace: Trace) -> list[tuple[int, dict[str, int]]]:
    """What changes when, by owner: first all that holds when the trace begins, then each later change. Raises `Invalid`."""
    clusters = _read(path)
    if cluster is None and len(clusters) == 1:
        (cluster,) = clusters
    if cluster not in clusters:
        told = "which cluster? name it with --cluster" if cluster is None else f"no cluster {cluster!r}"
        raise Invalid([Problem(path, None, "cluster", None, f"{told}; the file has {', '.join(clusters)}")])
    quotas = clusters[cluster]
    if missing := [owner for owner in trace.owners() if owner not in quotas]:
        message = f"no quota for {', '.join(missing)}, who ask for GPUs in {trace.source}"
        raise Invalid([Problem(path, None, "vc", None, message)])
    changes: dict[int, dict[str, int]] = defaultdict(dict)
    for owner in trace.owners():
        steps = quotas[owner]
        begun = [gpus for at, gpus in steps if at <= trace.begin]
        changes[trace.begin][owner] = begun[-1] if begun else steps[0][1]
        for at, gpus in steps:
            if at > trace.begin:
                changes[at][owner] = gpus
    return sorted(changes.items())


def _read(path: str) -> dict[str, dict[str, Steps]]:
    """Quotas by cluster and owner, each in order of time."""
    text, source = read_file(path)
    table = csv.DictReader(text.splitlines())
    if missing := [name for name in QUOTA_COLUMNS if name not in (table.fieldnames or ())]:
        expected = f"no such column; expected {', '.join(QUOTA_COLUMNS)}"
        raise Invalid([Problem(source, 1, missing[0], None, expected)])
    found: dict[str, dict[str, dict[int, int]]] = {}
    for cells in table:
        line = table.line_num
        first, last = (_day(source, line, name, cells[name]) for name in ("date_from", "date_to"))
        if last < first:
            raise _wrong(source, line, "date_to", cells["date_to"], f"before date_from, {cells['date_from']}")
        gpus = _count(source, line, cells["gpus"])
        if cells["vc"] != TOTAL:
            steps = found.setdefault(cells["cluster"], {}).setdefault(f"{ROOT}:{cells['vc']}", {})
            if first in steps:
                raise _wrong(source, line, "date_from", cells["date_from"], "a quota from that day on was told before")
            steps[first] = gpus
    return {cluster: {owner: _steps(each) for owner, each in owners.items()} for cluster, owners in found.items()}


def _steps(by_day: dict[int, int]) -> Steps:
    """Only what changes."""
    steps: Steps = []
    for at, gpus in sorted(by_day.items()):
        if not steps or steps[-1][1] != gpus:
            steps.append((at, gpus))
    return steps


def _day(source: str, line: int, column: str, text: str | None) -> int:
    try:
        day = datetime.strptime(text or "", "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise _wrong(source, line, column, text, "expected a date, such as 2020-07-21") from None
    return round(day.timestamp()) * SECOND // DAY * DAY


def _count(source: str, line: int, text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit():
        raise _wrong(source, line, "gpus", text, "expected a whole number of GPUs")
    return int(text)


def _wrong(source: str, line: int, column: str, value: str | None, message: str) -> Invalid:
    return Invalid([Problem(source, line, column, value or "nothing", message)])


REGION = "trace"
POOL = "main"
NODE_GPUS = 8
GPUS_MAX = 10_000_000

_POOL = re.compile(r"(?:([a-z0-9][a-z0-9-]*):)?(\d{1,7})x(\d{1,4})")
_AUTO = re.compile(r"auto:(\d{1,3}(?:\.\d{1,6})?)")

AMPLE = ("one", "fair", "family")
"""Money that is made for a trace, in words."""

Money = list[tuple[int, tuple[cmd.AnyCommand, ...]]]
"""When which Budgets are written; the first is what is there from the beginning."""


class NodePool(NamedTuple):
    """Nodes that are alike."""

    name: str
    nodes: int
    gpus: int


class ClusterPlan(NamedTuple):
    """A cluster that can be built: its pools, and how many nodes share one fabric domain."""

    pools: tuple[NodePool, ...]
    domain_nodes: int

    @property
    def nodes(self) -> int:
        """How many machines."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def gpus(self) -> int:
        """How many GPUs."""
        return sum(pool.nodes * pool.gpus for pool in self.pools)

    def commands(self) -> list[cmd.AnyCommand]:
        """What makes it be there."""
        return [cmd.SetNode(node) for pool in self.pools for node in self._nodes(pool)]

    def _nodes(self, pool: NodePool) -> list[Node]:
        return [
            Node(
                name=f"{pool.name}-{number:05d}",
                labels={
                    "region": REGION,
                    "cluster": pool.name,
                    "fabric.domain": f"{pool.name}-d{number // self.domain_nodes:04d}",
                    "gpu.flavor": FLAVOR,
                },
                gpus=pool.gpus,
            )
            for number in range(pool.nodes)
        ]


def read_nodes(text: str, trace: Trace, limits: Limits, domain_nodes: int) -> ClusterPlan:
    """The cluster that `--nodes` describes; raises ValueError."""
    if auto := _AUTO.fullmatch(text):
        return ClusterPlan((_sized(trace, limits, float(auto[1])),), domain_nodes)
    pools = []
    for part in text.split(","):
        found = _POOL.fullmatch(part.strip())
        if found is None or not int(found[2]) or not int(found[3]):
            raise ValueError(f"{part!r} is no pool of nodes: write 64x8, a:32x8,b:16x8 or auto:0.9")
        pools.append(NodePool(found[1] or POOL, int(found[2]), int(found[3])))
    if twice := [name for name, count in Counter(pool.name for pool in pools).items() if count > 1]:
        raise ValueError(f"the pool {twice[0]!r} is there twice: give each a name of its own, such as a:32x8,b:16x8")
    plan = ClusterPlan(tuple(pools), domain_nodes)
    if plan.gpus > GPUS_MAX:
        raise ValueError(f"{plan.gpus} GPUs are more than {GPUS_MAX}")
    return plan


def _sized(trace: Trace, limits: Limits, load: float) -> NodePool:
    """As many nodes as make the load what is asked for, at least those of the largest job."""
    if load <= 0:
        raise ValueError("a load is more than 0: write auto:0.9")
    asker = Asker(NODE_GPUS, limits)
    gpus = asker.demand(trace) / load
    largest = max(asker.width(job) for job in trace.jobs)
    return NodePool(POOL, -(-max(math.ceil(gpus), largest) // NODE_GPUS), NODE_GPUS)


def read_budgets(text: str, trace: Trace, asker: Asker, gpus: int, cluster: str | None) -> Money:
    """The money that `--budgets` describes; raises `Invalid` or ValueError.

    `one`: one Budget above all, ample, so that only room decides. `fair`: each owner has the share of the GPUs that it has of the
    demand (at least its largest job), for itself. `family`: the same, and owners may use what their siblings leave. A CSV of
    quotas: a Budget per virtual cluster, rewritten on the days on which its quota changes. Any other file: Budgets as YAML.
    """
    if cluster is not None and not text.endswith(".csv"):
        raise ValueError(f"--cluster {cluster} chooses among the quotas of a CSV, and {text!r} is none")
    if text == "one":
        ample = gpus + max(asker.width(job) for job in trace.jobs)
        return [(trace.begin, (_budget(ROOT, ample),))]
    if text in ("fair", "family"):
        shares = _shares(trace, asker, gpus)
        budgets = [_budget(owner, shares[owner]) for owner in trace.owners()]
        head = [_budget(ROOT, 1)] if text == "family" else []
        return [(trace.begin, (*head, *budgets))]
    if text.endswith(".csv"):
        quotas = read_quotas(text, cluster, trace)
        return [(at, tuple(_quota_command(owner, quota) for owner, quota in changed.items())) for at, changed in quotas]
    return [(trace.begin, _budgets_of_file(text))]


def _shares(trace: Trace, asker: Asker, gpus: int) -> dict[str, int]:
    demand, largest = Counter[str](), Counter[str]()
    for job in trace.jobs:
        width = asker.width(job)
        demand[job.owner] += width * asker.run_time(job)
        largest[job.owner] = max(largest[job.owner], width)
    whole = max(1, demand.total())
    return {owner: max(largest[owner], -(-gpus * demand[owner] // whole)) for owner in largest}


def _budget(owner: str, gpus: int) -> cmd.SetBudget:
    envelope = Envelope(name="main", flavor=FLAVOR, selector={"region": REGION}, concurrency=gpus)
    return cmd.SetBudget(key(owner.replace(":", "-").lower()), BudgetSpec(owner=owner, envelopes=(envelope,)))


def _quota_command(owner: str, gpus: int) -> cmd.AnyCommand:
    """An envelope has at least one GPU, so a quota of nothing is no Budget."""
    written = _budget(owner, max(1, gpus))
    return written if gpus else cmd.RemoveBudget(written.budget)


def _budgets_of_file(path: str) -> tuple[cmd.AnyCommand, ...]:
    if not path or not Path(path).exists():
        expected = f"{', '.join(AMPLE)}, a file of Budgets, or a CSV with {', '.join(QUOTA_COLUMNS)}"
        raise ValueError(f"{path!r} is no file; expected {expected}")
    objects = read_objects(*read_file(path))
    if others := [each for each in objects if not isinstance(each, BudgetObject)]:
        kind = type(others[0]).__name__.removesuffix("Object")
        raise Invalid([Problem(path, None, "kind", kind, "expected Budgets only")])
    return tuple(cmd.SetBudget(each.key, each.spec) for each in objects if isinstance(each, BudgetObject))
