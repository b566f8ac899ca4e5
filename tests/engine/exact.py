"""Brute force: the best that any placement with payers could be, by trying everything. For small worlds only."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from fairlease.model.node import Node

Worth = tuple[int, ...]
"""Pods by payer in the order of cover, and then, negative, spares on a node of their group's active pods."""


class Money(NamedTuple):
    """One payer: the nodes it may pay for, by name, and for how many pods it has money."""

    nodes: frozenset[str]
    pods: int


def best(
    nodes: list[Node],
    size: int,
    groups: list[tuple[int, int]],
    payers: list[Money],
    caps: list[tuple[frozenset[int], int]],
    *,
    together: bool,
) -> Worth | None:
    """The greatest worth of pods of `size` in `groups` (active, spares), each paid where that may be, under caps over payers."""
    domains = sorted({each.labels["fabric.domain"] for each in nodes})
    home = [each.labels["fabric.domain"] for each in nodes]
    reach = [tuple(i for i, payer in enumerate(payers) if each.name in payer.nodes) for each in nodes]
    order = sorted(groups, reverse=True)

    @cache
    def seat(
        group: int,
        left: tuple[int, int],
        domain: str,
        used: frozenset[int],
        free: tuple[int, ...],
        money: tuple[int, ...],
        bounds: tuple[int, ...],
    ) -> Worth | None:
        if left == (0, 0):
            return place(group + 1, domain, free, money, bounds)
        found: Worth | None = None
        spare = left[0] == 0
        after = (0, left[1] - 1) if spare else (left[0] - 1, left[1])
        for index, there in enumerate(home):
            if there != domain or free[index] == 0:
                continue
            fewer = (*free[:index], free[index] - 1, *free[index + 1 :])
            for payer in reach[index]:
                over = [payer in members for members, _ in caps]
                if money[payer] == 0 or any(hit and bound == 0 for hit, bound in zip(over, bounds, strict=True)):
                    continue
                poorer = (*money[:payer], money[payer] - 1, *money[payer + 1 :])
                tighter = tuple(bound - hit for hit, bound in zip(over, bounds, strict=True))
                rest = seat(group, after, domain, used if spare else used | {index}, fewer, poorer, tighter)
                if rest is not None:
                    worth = list(rest)
                    worth[payer] += 1
                    worth[-1] -= spare and index in used
                    found = max(found or tuple(worth), tuple(worth))
        return found

    @cache
    def place(
        group: int, last: str, free: tuple[int, ...], money: tuple[int, ...], bounds: tuple[int, ...]
    ) -> Worth | None:
        if group == len(order):
            return (0,) * (len(payers) + 1)
        choices = [last] if together and group else domains
        found = (seat(group, order[group], domain, frozenset(), free, money, bounds) for domain in choices)
        return max((each for each in found if each is not None), default=None)

    free = tuple(each.gpus // size for each in nodes)
    return place(0, "", free, tuple(payer.pods for payer in payers), tuple(bound for _, bound in caps))
