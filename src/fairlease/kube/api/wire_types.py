"""What the controller reads of objects: only the fields that it uses, so that reading 10,000 of them is a blink."""

from __future__ import annotations

import msgspec

from fairlease.engine.refusal import Refusal
from fairlease.kube.api.names import run_of, slots_of
from fairlease.kube.api.resource import Meta, OwnSeen, Seen
from fairlease.model.document import Findings
from fairlease.model.node import GPU_RESOURCE, Node
from fairlease.model.objects import API_VERSION, OUT_OF_SERVICE, BudgetObject, RunObject, read_object
from fairlease.model.record import Key
from fairlease.model.rules import gpu_quantity
from fairlease.reason import Reason

__all__ = ["KILLED", "NEVER_MADE", "ConfigSeen", "NodeSeen", "OwnSeen", "PodSeen", "Seen"]

NEVER_MADE = 125
"""What is told of a pod that the API server does not take: as of a container that could not be made."""

KILLED = 137
"""What is told of a pod that went without an exit code: as of one that was killed."""


# --- nodes -----------------------------------------------------------------------------------------------------------------


class _Taint(msgspec.Struct, frozen=True, gc=False):
    key: str = ""


class _NodeSpec(msgspec.Struct, frozen=True, gc=False):
    unschedulable: bool = False
    taints: tuple[_Taint, ...] = ()


class _Amounts(msgspec.Struct, frozen=True, gc=False):
    gpus: str | int | None = msgspec.field(default=None, name=GPU_RESOURCE)


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class _NodeStatus(msgspec.Struct, frozen=True, gc=False):
    capacity: _Amounts = _Amounts()
    allocatable: _Amounts = _Amounts()
    conditions: tuple[_Condition, ...] = ()


class NodeSeen(msgspec.Struct, frozen=True):
    """A Node. A heartbeat changes none of the fields that are read here."""

    metadata: Meta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def gpus(self) -> int:
        """How many GPUs it says it has."""
        return gpu_quantity(self.status.capacity.gpus) or 0

    @property
    def ready(self) -> bool:
        """Whether its kubelet is heard of."""
        return all(each.status == "True" for each in self.status.conditions if each.type == "Ready")

    def alike(self, other: NodeSeen) -> bool:
        """Whether a decision could tell one from the other."""
        return (
            self.spec == other.spec
            and self.status == other.status
            and self.metadata.labels == other.metadata.labels
            and self.metadata.uid == other.metadata.uid
        )

    def node(self, *, pods_dead: bool, held: bool) -> Node:
        """As the engine knows nodes. While starts are held, every node is as if cordoned."""
        gpus, usable = self.gpus, gpu_quantity(self.status.allocatable.gpus)
        return Node(
            name=self.metadata.name,
            labels=self.metadata.labels,
            gpus=gpus,
            healthy_gpus=usable if usable is not None and usable < gpus else None,
            cordoned=held or self.spec.unschedulable,
            ready=self.ready,
            pods_dead=pods_dead,
            fenced=any(each.key == OUT_OF_SERVICE for each in self.spec.taints),
        )


class ConfigSeen(msgspec.Struct, frozen=True):
    """A ConfigMap."""

    metadata: Meta
    data: dict[str, str] = {}


# --- pods ------------------------------------------------------------------------------------------------------------------


class _Terminated(msgspec.Struct, frozen=True, rename="camel", gc=False):
    exit_code: int = 0


class _ContainerState(msgspec.Struct, frozen=True, gc=False):
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, frozen=True, gc=False):
    state: _ContainerState = _ContainerState()


class _PodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    node_name: str = ""


class _PodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    phase: str = ""
    container_statuses: tuple[_Container, ...] = ()
    init_container_statuses: tuple[_Container, ...] = ()


class PodSeen(msgspec.Struct, frozen=True):
    """A pod of ours."""

    metadata: Meta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def run(self) -> Key | None:
        """The run it works for."""
        return run_of(self.metadata.annotations, self.metadata.namespace)

    @property
    def node(self) -> str:
        """Where it was bound to; nothing where it was not yet."""
        return self.spec.node_name

    @property
    def slots(self) -> frozenset[int]:
        """The GPUs of its node that are its own."""
        return slots_of(self.metadata.annotations)

    @property
    def over(self) -> bool:
        """Whether none of its processes lives: it holds no GPU any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def succeeded(self) -> bool:
        """Whether its work is done."""
        return self.status.phase == "Succeeded"

    @property
    def leaving(self) -> bool:
        """Whether it was deleted and has not gone yet."""
        return self.metadata.deletion_timestamp is not None

    @property
    def failure(self) -> int | None:
        """The exit code with which it failed; None where it did not."""
        statuses = (*self.status.init_container_statuses, *self.status.container_statuses)
        codes = [each.state.terminated.exit_code for each in statuses if each.state.terminated is not None]
        bad = next((code for code in codes if code), None)
        if bad is None and self.status.phase == "Failed":
            return KILLED
        return bad


def read(seen: OwnSeen, kind: str) -> BudgetObject | RunObject | Refusal:
    """One of our objects as the engine knows it, or what is wrong with it."""
    findings = Findings("", kind)
    metadata = {"name": seen.metadata.name, "namespace": seen.metadata.namespace}
    raw = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": seen.spec}
    found = read_object(raw, ((), 0), findings)
    if isinstance(found, BudgetObject | RunObject) and not len(findings):
        return found
    told = "; ".join(f"{each.field}: {each.message}" for each in findings.problems()[:3])
    return Refusal(Reason.InvalidRequest, told or f"it is no {kind}", {})
