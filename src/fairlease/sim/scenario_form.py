"""The forms in which the parts of a scenario file are written, and the rules on them that are not SEMANTICS §2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlease.model import rules
from fairlease.model.config import Config
from fairlease.model.node import LabelKeys
from fairlease.model.partial import known
from fairlease.model.reading import Foreign, Reader, Wrong
from fairlease.model.record import DEFAULT_NAMESPACE, Duration, Instant, Key, Record, key
from fairlease.sim.scenario import START, Completion, PodFailure, ResolveStep, Shrink, Subject, Work

NODES_MAX = 100_000
GPUS_MAX = 65_536
NAMED = (Subject.RUN, Subject.BUDGET, Subject.RESERVATION)


class Title(Foreign, frozen=True, kw_only=True):
    """What we read of a scenario's metadata."""

    name: str = "scenario"


class NodeGroup(Record, frozen=True, kw_only=True):
    """Shorthand for one node or many alike. A label may be left out, to see what becomes of a node that lacks it."""

    prefix: str | None = None
    name: str | None = None
    count: int | None = None
    gpus: int
    flavor: str | None = None
    domain: str | None = None
    region: str | None = None
    cluster: str | None = None
    rack: str | None = None

    def labels(self, keys: LabelKeys) -> dict[str, str]:
        """Where they stand, by the labels that a configuration names."""
        given = (
            (keys.region, self.region),
            (keys.cluster, self.cluster),
            (keys.domain, self.domain),
            (keys.rack, self.rack),
            (keys.flavor, self.flavor),
        )
        return {label: value for label, value in given if value is not None}

    def names(self) -> list[str]:
        """Prefix and number, from 0."""
        if self.name is not None:
            return [self.name]
        return [f"{self.prefix}{number}" for number in range(1 if self.count is None else self.count)]


class ScenarioHead(Record, frozen=True, kw_only=True):
    """What of a scenario's spec is read in one go."""

    start: Instant = START
    config: Config = Config()
    nodes: tuple[NodeGroup, ...] = ()
    until: Duration | None = None


class NamedForm(Foreign, frozen=True, kw_only=True):
    """What stands beside the fields of a spec."""

    name: str
    namespace: str | None = None

    def key(self) -> Key:
        """The key that it makes."""
        return key(self.name, self.namespace or DEFAULT_NAMESPACE)


class Submitted(NamedForm, frozen=True, kw_only=True):
    """What stands beside the fields of a run's spec."""

    work: Work | None = None


class Timed(Foreign, frozen=True, kw_only=True):
    """When a step is."""

    at: Duration | None = None


class Expected(Record, frozen=True, kw_only=True):
    """An expectation as it is written: one subject, and what is asked of it."""

    at: Duration | None = None
    run: str | None = None
    budget: str | None = None
    reservation: str | None = None
    leases: dict[str, Any] | None = None
    outcomes: dict[str, Any] | None = None
    events: dict[str, Any] | None = None
    is_: Any = None
    count: int | None = None
    each: dict[str, Any] | None = None


def _nodes_have_names(nodes: NodeGroup) -> Iterator[Wrong]:
    if (nodes.prefix is None) == (nodes.name is None):
        yield Wrong((), None, "expected a prefix (and a count), or a name")
    elif nodes.name is not None:
        if (wrong := rules.a_node_name(nodes.name)) is not None:
            yield Wrong(("name",), nodes.name, wrong)
        if nodes.count is not None:
            yield Wrong(("count",), nodes.count, "expected a prefix where there is a count")
    else:
        count = known(nodes, "count")
        last = 0 if count is None else min(count, NODES_MAX) - 1
        if last >= 0 and (wrong := rules.a_node_name(f"{nodes.prefix}{last}")) is not None:
            yield Wrong(("prefix",), nodes.prefix, wrong)
        if nodes.count is not None and nodes.count > NODES_MAX:
            yield Wrong(("count",), nodes.count, f"expected at most {NODES_MAX} nodes")


def _work_ends_one_way(work: Work) -> Iterator[Wrong]:
    neither = work.duration is None and work.gpu_hours is None
    if (work.duration is not None and work.gpu_hours is not None) or (neither and work.leaves == 0):
        yield Wrong((), None, "expected either duration or gpuHours")


def _one_namespace(named: NamedForm) -> Iterator[Wrong]:
    if "/" in named.name and named.namespace not in (None, named.name.partition("/")[0]):
        yield Wrong(("namespace",), named.namespace, f"expected the namespace of the name, {named.name}")


def _pods_are_whole(asked: ResolveStep) -> Iterator[Wrong]:
    for field, gpus in (("gpus", asked.gpus), ("groupGPUs", asked.group_gpus)):
        if gpus is not None and gpus % asked.gpus_per_pod:
            yield Wrong((field,), gpus, f"expected a multiple of gpusPerPod, {asked.gpus_per_pod}")


def _a_handful(gpus: int) -> str | None:
    return None if gpus <= GPUS_MAX else f"expected at most {GPUS_MAX} GPUs in one node"


READER = Reader(
    {
        **rules.CHECKS,
        NodeGroup: {"gpus": _a_handful},
        NamedForm: {"name": rules.a_reference, "namespace": rules.a_namespace},
        Submitted: {"name": rules.a_run_reference, "namespace": rules.a_namespace},
        Shrink: {"run": rules.a_run_reference, "to": rules.more_than_nothing},
        Completion: {"run": rules.a_run_reference},
        PodFailure: {"run": rules.a_run_reference},
        ResolveStep: {"gpus": rules.more_than_nothing, "gpus_per_pod": rules.more_than_nothing},
    },
    {
        **rules.RULES,
        NodeGroup: (_nodes_have_names,),
        Work: (_work_ends_one_way,),
        NamedForm: (_one_namespace,),
        Submitted: (_one_namespace,),
        ResolveStep: (_pods_are_whole,),
    },
)
