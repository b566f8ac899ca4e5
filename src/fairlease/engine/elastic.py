"""Elastic: what a malleable run can give up and still live (SEMANTICS §7, §8): whole groups, ending on its step grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.model.lease import Fund

if TYPE_CHECKING:
    from fairlease.ledger.live import RunState


def steps(run: RunState) -> list[frozenset[int]]:
    """The groups a malleable run can give up, in the order in which they go, each entry ending on its grid (SEMANTICS §7).

    Borrowed-funded groups first, then the highest index; what is left of a step is filled up by the same order.
    """
    elastic = run.spec.malleable
    if elastic is None:
        return []
    widths: dict[int, int] = {}
    borrowed: set[int] = set()
    for lease in run.leases.values():
        if lease.rank >= 0:
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
