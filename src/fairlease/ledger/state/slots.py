"""Slots and nodes, taken by themselves: sets of slots as bits, the order of names, and what keeps new work off a node."""

from __future__ import annotations

import re
from functools import lru_cache

from fairlease.model.node import LabelKeys, Node
from fairlease.reason import Reason

_DIGITS = re.compile(r"(\d+)")
Order = tuple[str | int, ...]


@lru_cache(maxsize=65_536)
def natural(name: str) -> Order:
    """An order in which a2 comes before a10."""
    return tuple(int(part) if part.isdecimal() else part for part in _DIGITS.split(name))


@lru_cache(maxsize=65_536)
def bits_of(slots: tuple[int, ...]) -> int:
    """Slots as bits of one integer."""
    return sum(1 << slot for slot in slots)


@lru_cache(maxsize=65_536)
def slots_of(bits: int) -> tuple[int, ...]:
    """The slots that some bits stand for."""
    return tuple(slot for slot in range(bits.bit_length()) if bits >> slot & 1)


@lru_cache(maxsize=65_536)
def lowest(free: int, count: int) -> tuple[int, ...]:
    """The `count` lowest of some free slots."""
    slots = slots_of(free)
    assert len(slots) >= count, "a plan gives a pod only slots that are free"
    return slots[:count]


def missing_label(node: Node, keys: LabelKeys) -> str | None:
    """The label a node lacks, without which nobody knows where it stands."""
    return next(
        (each for each in (keys.region, keys.cluster, keys.domain, keys.flavor) if not node.labels.get(each)), None
    )


def usable_gpus(node: Node) -> int:
    """GPUs of a node that work."""
    return node.gpus if node.healthy_gpus is None else min(node.gpus, node.healthy_gpus)


def bar(node: Node, keys: LabelKeys, peak: int, *, failed: bool) -> Reason | None:
    """What keeps new work off a node that once showed `peak` GPUs; None where nothing does."""
    bars = (
        (failed or node.fenced, Reason.NodeFailed),
        (missing_label(node, keys) is not None, Reason.MissingLabel),
        (usable_gpus(node) < peak, Reason.LostGPUs),
        (not node.ready, Reason.NotReady),
        (node.cordoned or node.held, Reason.Cordoned),
    )
    return next((reason for holds, reason in bars if holds), None)


def works(barred: Reason | None) -> bool:
    """Whether what lies on a node is of use, by what bars new work from it: a cordon is no failure."""
    return barred is None or barred is Reason.Cordoned
