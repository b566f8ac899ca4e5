"""Node: a machine with GPUs, known by its labels (SEMANTICS §2)."""

from __future__ import annotations

from fairlease.model.record import Record

GPU_RESOURCE = "nvidia.com/gpu"


class LabelKeys(Record, frozen=True, kw_only=True):
    """Which labels tell where a node stands; `nvidia.com/gpu.product` may serve as the flavor."""

    region: str = "region"
    cluster: str = "cluster"
    domain: str = "fabric.domain"
    rack: str = "rack"
    flavor: str = "gpu.flavor"


class Node(Record, frozen=True, kw_only=True):
    """What is known of one machine. `gpus` is its capacity, `healthy_gpus` what of it can be used, where that is less.

    `cordoned` is an administrator's wish; `held` keeps new work off for as long as its backend decides what is past.
    """

    name: str
    labels: dict[str, str]
    gpus: int
    healthy_gpus: int | None = None
    cordoned: bool = False
    held: bool = False
    ready: bool = True
    pods_dead: bool = False
    fenced: bool = False


def matches(labels: dict[str, str], wanted: dict[str, str]) -> bool:
    """Whether labels satisfy a selector; `*` stands for any value of a label that is there."""
    for label, value in wanted.items():
        actual = labels.get(label)
        if actual is None or (value not in ("*", actual)):
            return False
    return True
