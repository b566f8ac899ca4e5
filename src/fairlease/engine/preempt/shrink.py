"""Elastic: what a malleable run can give up and still live (SEMANTICS §7, §8): whole groups, ending on its step grid."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.lease import Fund, Lease

if TYPE_CHECKING:
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.run import Malleable

Helps = Callable[[Lease], bool]
"""Whether a claim could use the GPUs of a lease."""

ODD_MAX = 4
"""Groups that are not full: there is one at most, the last, unless somebody's labels were changed under them."""


class Offers(NamedTuple):
    """What a malleable run has left: the width of each group, the order in which they go, which help, and how many GPUs can go."""

    widths: dict[int, int]
    order: list[int]
    helpful: set[int]
    borrowed: set[int]
    most: int
    step: int

    @classmethod
    def of(cls, run: RunState, helps: Helps, gone: frozenset[int]) -> Offers:
        """Without the groups that are `gone`. Borrowed-funded groups go first, then the highest index."""
        elastic = run.spec.malleable
        assert elastic is not None, "a rigid run has no width to give"
        widths: dict[int, int] = {}
        borrowed, helpful = set[int](), set[int]()
        for lease in run.leases.values():
            if lease.rank >= 0 and lease.group not in gone:
                widths[lease.group] = widths.get(lease.group, 0) + lease.gpus
                if lease.payer.fund is Fund.BORROWED:
                    borrowed.add(lease.group)
                if lease.group not in helpful and helps(lease):
                    helpful.add(lease.group)
        order = sorted(widths, key=lambda group: (group not in borrowed, -group))
        return cls(widths, order, helpful, borrowed, sum(widths.values()) - elastic.min_total_gpus, elastic.step_gpus)

    def gain(self) -> int:
        """GPUs that help, at the most."""
        return min(self.most, sum(self.widths[group] for group in self.helpful))

    def next(self, order: list[int], most: int, going: frozenset[int] = frozenset()) -> frozenset[int] | None:
        """These groups, or the first that helps, and more out of `order` until the width is on the grid.

        None where that would be more than `most` GPUs. The width is on the grid where what could still go is whole steps.
        """
        if not going:
            going = frozenset([group for group in order if group in self.helpful and self.widths[group] <= most][:1])
        most -= sum(self.widths[group] for group in going)
        if not going or most < 0:
            return None
        for group in order:
            if most % self.step == 0:
                break
            if group not in going and self.widths[group] <= most:
                going |= {group}
                most -= self.widths[group]
        return going if most % self.step == 0 else None


def steps(run: RunState, helps: Helps, gone: frozenset[int] = frozenset()) -> list[frozenset[int]]:
    """The groups a malleable run can give up when `gone` went before, in order, each entry ending on its grid (SEMANTICS §7).

    Groups that do not help are passed over, save where a step is filled up with them.
    """
    if run.spec.malleable is None:
        return []
    offers = Offers.of(run, helps, gone)
    order, most = offers.order, offers.most
    found: list[frozenset[int]] = []
    while (going := offers.next(order, most)) is not None:
        found.append(going)
        order = [group for group in order if group not in going]
        most -= sum(offers.widths[group] for group in going)
    return found


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
