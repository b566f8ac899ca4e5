"""Elastic: what a malleable run can give up and still live (SEMANTICS §7, §8): whole groups, ending on its step grid."""

from __future__ import annotations

from bisect import bisect_left
from itertools import combinations
from typing import TYPE_CHECKING

from fairlease.model.lease import Fund

if TYPE_CHECKING:
    from fairlease.ledger.live import RunState
    from fairlease.model.run import Malleable

ODD_MAX = 4
"""Groups that are not full: there is one at most, the last, unless somebody's labels were changed under them."""


def steps(run: RunState, gone: frozenset[int] = frozenset()) -> list[frozenset[int]]:
    """The groups a malleable run can give up when `gone` went before, in order, each entry ending on its grid (SEMANTICS §7).

    Borrowed-funded groups first, then the highest index; what is left of a step is filled up by the same order.
    """
    elastic = run.spec.malleable
    if elastic is None:
        return []
    widths: dict[int, int] = {}
    borrowed: set[int] = set()
    for lease in run.leases.values():
        if lease.rank >= 0 and lease.group not in gone:
            widths[lease.group] = widths.get(lease.group, 0) + lease.gpus
            if lease.payer.fund is Fund.BORROWED:
                borrowed.add(lease.group)
    left = sum(widths.values())
    order = sorted(widths, key=lambda group: (group not in borrowed, -group))
    found: list[frozenset[int]] = []
    while True:
        going, width = frozenset[int](), left
        for group in order:
            if width - widths[group] < elastic.min_total_gpus:
                continue
            going |= {group}
            width -= widths[group]
            if (width - elastic.min_total_gpus) % elastic.step_gpus == 0:
                break
        else:
            return found
        found.append(going)
        left, order = width, [group for group in order if group not in going]


def shed(run: RunState, group: int, gone: frozenset[int] = frozenset()) -> frozenset[int] | None:
    """The groups that go so that `group` goes, when `gone` went before; None where a rigid run, or too little, would be left.

    Where one group is no multiple of the step, others follow it until the width is on the grid: first what is overdrawn
    too, then the highest index. Each answer is whole steps, so any selection of several answers ends on the grid.
    """
    elastic = run.spec.malleable
    if elastic is None:
        return None
    widths: dict[int, int] = {}
    for lease in run.leases.values():
        if lease.group not in gone:
            widths[lease.group] = widths.get(lease.group, 0) + (lease.gpus if lease.rank >= 0 else 0)
    owing = {unit[3] for unit in run.overdrawn}
    left, going = sum(widths.values()), frozenset[int]()
    for each in sorted(widths, key=lambda index: (index != group, index not in owing, -index)):
        going |= {each}
        left -= widths[each]
        if left < elastic.min_total_gpus:
            return None
        if (left - elastic.min_total_gpus) % elastic.step_gpus == 0:
            return going
    return None


def group_widths(run: RunState) -> dict[int, int]:
    """The active GPUs of each group; spares do not count."""
    widths: dict[int, int] = {}
    for lease in run.leases.values():
        if lease.rank >= 0:
            widths[lease.group] = widths.get(lease.group, 0) + len(lease.slots)
    return widths


def release(run: RunState, widths: dict[int, int], most: int) -> frozenset[int] | None:
    """The groups that go so that a run of `widths` is as wide as can be on its step grid, but no wider than `most`.

    Borrowed-funded groups go first, then the highest index. None for a rigid run, or where less than the minimum would be left.
    """
    elastic = run.spec.malleable
    total = sum(widths.values())
    if elastic is None or total < elastic.min_total_gpus or most < elastic.min_total_gpus:
        return None
    borrowed = {lease.group for lease in run.leases.values() if lease.rank >= 0 and lease.payer.fund is Fund.BORROWED}
    order = sorted(widths, key=lambda group: (group not in borrowed, -group))
    full = max(widths.values())
    whole = [group for group in order if widths[group] == full]
    odd = [group for group in order if widths[group] != full][:ODD_MAX]
    ways = [chosen for size in range(len(odd) + 1) for chosen in combinations(odd, size)]
    least, step = elastic.min_total_gpus, elastic.step_gpus
    place = {group: number for number, group in enumerate(order)}
    for goal in range(least + (min(most, total) - least) // step * step, least - 1, -step):
        found = []
        for chosen in ways:
            count, rest = divmod(total - goal - sum(widths[group] for group in chosen), full)
            if rest == 0 and 0 <= count <= len(whole):
                found.append([*chosen, *whole[:count]])
        if found:
            return frozenset(min(found, key=lambda groups: sorted(place[group] for group in groups)))
    return None


def nearest_widths(elastic: Malleable, width: int) -> list[int]:
    """The widths on the step grid next to one that is not."""
    grid = elastic.grid
    above = bisect_left(grid, width)
    return [*grid[max(0, above - 1) : above], *grid[above : above + 1]]
