"""Brute force: whether a run could be placed and paid for at all, by trying everything. For small worlds only."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from fairlease.model.node import Node, matches


class Money(NamedTuple):
    """One envelope: where it may be spent, and how many pods it has money for."""

    selector: dict[str, str]
    pods: int


class Group(NamedTuple):
    """One group's pods, active and spare alike."""

    pods: int


def feasible(
    nodes: list[Node],
    size: int,
    groups: list[int],
    purses: list[Money],
    caps: list[tuple[frozenset[int], int]],
    *,
    together: bool,
) -> bool:
    """Whether pods of `size` in `groups` (pods each) fit, each paid by a purse that may pay there, under caps over purses."""
    domains = sorted({each.labels["fabric.domain"] for each in nodes})
    home = [each.labels["fabric.domain"] for each in nodes]
    payers = [tuple(i for i, purse in enumerate(purses) if matches(each.labels, purse.selector)) for each in nodes]
    sizes = sorted(groups, reverse=True)

    @cache
    def seat(
        group: int, left: int, domain: str, free: tuple[int, ...], money: tuple[int, ...], bounds: tuple[int, ...]
    ) -> bool:
        if left == 0:
            return place(group + 1, domain, free, money, bounds)
        for index, there in enumerate(home):
            if there != domain or free[index] == 0:
                continue
            fewer = (*free[:index], free[index] - 1, *free[index + 1 :])
            for payer in payers[index]:
                over = [payer in members for members, _ in caps]
                if money[payer] == 0 or any(hit and bound == 0 for hit, bound in zip(over, bounds, strict=True)):
                    continue
                poorer = (*money[:payer], money[payer] - 1, *money[payer + 1 :])
                tighter = tuple(bound - hit for hit, bound in zip(over, bounds, strict=True))
                if seat(group, left - 1, domain, fewer, poorer, tighter):
                    return True
        return False

    @cache
    def place(group: int, last: str, free: tuple[int, ...], money: tuple[int, ...], bounds: tuple[int, ...]) -> bool:
        if group == len(sizes):
            return True
        choices = [last] if together and group else domains
        return any(seat(group, sizes[group], domain, free, money, bounds) for domain in choices)

    free = tuple(each.gpus // size for each in nodes)
    return place(0, "", free, tuple(purse.pods for purse in purses), tuple(bound for _, bound in caps))
