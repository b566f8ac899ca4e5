"""How the ranks of a gang find each other: the variables that torchrun, Lightning, DeepSpeed and JAX launchers read.

`WORLD_SIZE` and `RANK` count pods, as the training operators of Kubernetes do: a launcher inside the pod multiplies them by its
GPUs. Ranks are the ledger's: a swap keeps them, and two leases with one rank would be two copies of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlease.model.lease import Lease, Role
from fairlease.model.record import short

PREFIX = "FAIRLEASE_"
OURS = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
    }
)
"""What a run's own `env` cannot change: it would reach for other GPUs than its lease's, or miss its gang."""


SIGNAL = "FAIRLEASE_SIGNAL"
"""The one name of ours that a run sets itself: the signal by which it wants to hear that its members changed."""


def is_ours(name: str) -> bool:
    """Whether a variable is set by Fairlease alone; a run that sets it is told so when it is submitted."""
    return name in OURS or (name.startswith(PREFIX) and name != SIGNAL)


def places(leases: Sequence[Lease]) -> dict[str, dict[str, str]]:
    """Who each pod of one attempt is among the others, by the name of its lease; spares wait, and get none."""
    gang = sorted((lease for lease in leases if lease.role is not Role.SPARE), key=lambda lease: lease.rank)
    if len({(lease.run, lease.attempt) for lease in gang}) > 1 or len({lease.rank for lease in gang}) < len(gang):
        raise ValueError("a gang is one attempt of one run, and each of its ranks is there once")
    by_node: dict[str, list[Lease]] = {}
    for lease in gang:
        by_node.setdefault(lease.node, []).append(lease)
    return {
        lease.name: {
            "WORLD_SIZE": str(len(gang)),
            "RANK": str(lease.rank),
            "NNODES": str(len(by_node)),
            "NODE_RANK": str(node_rank),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(len(pods)),
        }
        for node_rank, pods in enumerate(by_node.values())
        for local_rank, lease in enumerate(pods)
    }


def identity(lease: Lease, pod: str) -> dict[str, str]:
    """Who a pod is, in the ledger's words."""
    return {
        "FAIRLEASE_RUN": short(lease.run),
        "FAIRLEASE_ATTEMPT": str(lease.attempt),
        "FAIRLEASE_POD": pod,
        "FAIRLEASE_NODE": lease.node,
        "FAIRLEASE_OWNER": lease.owner,
    }
