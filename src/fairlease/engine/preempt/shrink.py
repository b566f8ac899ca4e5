"""Shrink: what a malleable run can give up and still live (SEMANTICS §7, §8): whole groups, ending on its step grid.

Mostly the groups that come first serve. The group with the highest index may share its node with work that stays, or run in a
domain that cannot be emptied, while its run may give up only so many. `search` then looks for other groups: all that help are
thought away, minimum or not, and put back one by one, the last to go first, while the claim still fits; where that leaves a run
below its minimum, the last choice that could have been otherwise is made otherwise. In the same way it finds fewer groups of a run
that would go whole, or in steps of several groups. It is exact for a few dozen groups; for more it ends after a bounded number of
looks, and what was selected before stands (docs/design/0016-width-that-helps.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from fairlease.model.lease import Fund, Lease

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fairlease.engine.place.fit_count import FitCount
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key
    from fairlease.model.run import Malleable

Helps = Callable[[Lease], bool]
"""Whether a claim could use the GPUs of a lease."""

ODD_MAX = 4
"""Groups that are not full: there is one at most, the last, unless somebody's labels were changed under them."""


class Sheddable(NamedTuple):
    """What a malleable run has left: the width of each group, the order in which they go, which help, and how many GPUs can go."""

    widths: dict[int, int]
    order: list[int]
    helpful: set[int]
    borrowed: set[int]
    most: int
    step: int

    @classmethod
    def of(cls, run: RunState, helps: Helps, gone: frozenset[int] = frozenset()) -> Sheddable:
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

    def steps(self, among: Collection[int]) -> list[frozenset[int]]:
        """Some of its groups in order, each entry ending on the grid; groups that do not help only fill a step up."""
        order, most, found = [group for group in self.order if group in among], self.most, list[frozenset[int]]()
        while (going := self.next(order, most)) is not None:
            found.append(going)
            order = [group for group in order if group not in going]
            most -= sum(self.widths[group] for group in going)
        return found


def steps(run: RunState, helps: Helps, gone: frozenset[int] = frozenset()) -> list[frozenset[int]]:
    """The groups a malleable run can give up when `gone` went before, in order, each entry ending on its grid (SEMANTICS §7)."""
    if run.spec.malleable is None or run.awaited:  # what waits for a spare is as wide as it was in a moment
        return []
    left = Sheddable.of(run, helps, gone)
    return left.steps(left.widths)


def shed(
    run: RunState, group: int, owing: Collection[int], gone: frozenset[int] = frozenset()
) -> frozenset[int] | None:
    """The groups that go so that `group` goes, when `gone` went before; None where a rigid run, or too little, would be left.

    Where one group is no multiple of the step, others follow it until the width is on the grid: first those that are `owing`
    too, then the highest index. Each answer is whole steps, so any selection of several answers ends on the grid.
    """
    if run.spec.malleable is None:
        return None
    left = Sheddable.of(run, lambda _: False, gone)
    order = sorted(left.widths, key=lambda index: (index not in owing, -index))
    return left.next(order, left.most, frozenset({group}))


def group_widths(run: RunState) -> dict[int, int]:
    """The active GPUs of each group; spares do not count."""
    widths: dict[int, int] = {}
    for lease in run.leases.values():
        if lease.rank >= 0 or lease.name in run.awaited:
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


# --- other groups, or fewer, where those that come first do not serve, or serve too well ------------------------------------


class Part(NamedTuple):
    """A group that may go: its place in the order in which groups go, and what comes free with it."""

    place: tuple[bool, int, int]
    run: Key
    group: int
    gpus: int
    leases: list[Lease]


class Shrinking(NamedTuple):
    """A malleable run in a search: what it has left, its groups that may go, and the order in which others fill a step up."""

    left: Sheddable
    parts: list[Part]
    filling: list[int]

    @classmethod
    def of(cls, run: RunState, left: Sheddable, groups: Collection[int], filling: list[int], age: int = 0) -> Shrinking:
        """With these of its groups; of groups with one index those of the younger run go first, which is of less `age`."""
        leases: dict[int, list[Lease]] = {group: [] for group in groups}
        for lease in run.held:
            if lease.group in leases:
                leases[lease.group].append(lease)
        parts = [
            Part((group not in left.borrowed, -group, age), run.key, group, left.widths[group], theirs)
            for group, theirs in leases.items()
        ]
        return cls(left, parts, filling)

    def steps(self, groups: frozenset[int]) -> list[frozenset[int]] | None:
        """These groups and whatever else goes so that the run ends on its grid, in steps that can be given back one by one."""
        whole = self.left.next(self.filling, self.left.most, groups)
        if whole is None:
            return None
        found = self.left.steps(whole)
        rest = whole.difference(*found)  # None of it helps; together with the steps it ends on the grid.
        return [*found, rest] if rest else found


Steps = list[tuple["Key", frozenset[int]]]
"""Which groups of which run go together."""


def search(fit: FitCount, runs: Mapping[Key, Shrinking], looks: int) -> tuple[Steps | None, int]:
    """The first groups found with which the claim fits, and the looks that are left; None where none do, or not in time."""
    parts = [
        part._replace(leases=[lease for lease in part.leases if lease.serial not in fit.away])
        for run in runs.values()
        for part in run.parts
    ]
    found = _Search(fit, parts, {key: run.left.most for key, run in runs.items()}, looks)
    steps = next((steps for going in found.choices() if (steps := _on_grid(runs, going)) is not None), None)
    found.put_all_back()
    return steps, found.looks


def _on_grid(runs: Mapping[Key, Shrinking], going: list[Part]) -> Steps | None:
    by_run: dict[Key, set[int]] = {}
    for part in going:
        by_run.setdefault(part.run, set()).add(part.group)
    found = [(key, runs[key].steps(frozenset(groups))) for key, groups in by_run.items()]
    if any(steps is None for _, steps in found):
        return None
    return [(key, step) for key, steps in found for step in steps or ()]


class _Search:
    """Parts that are thought away, and put back one by one, the last first. What is not decided yet is away."""

    def __init__(self, fit: FitCount, parts: list[Part], most: dict[Key, int], looks: int) -> None:
        self.looks = looks
        self._fit = fit
        self._parts = sorted(parts, key=lambda part: part.place)
        self._most = most
        self._given = dict.fromkeys(most, 0)
        self._away = [True] * len(parts)
        for part in parts:
            fit.take(part.leases)

    def put_all_back(self) -> None:
        """Leave everything as it was."""
        for part, away in zip(self._parts, self._away, strict=True):
            if away:
                self._fit.put_back(part.leases)

    def choices(self) -> Iterator[list[Part]]:
        """What is away each time that everything is decided, until all has been tried or the looks are used up."""
        place: int | None = len(self._parts) - 1 if self._fits() else None
        while place is not None and self.looks > 0:
            if place < 0:
                yield [part for part, away in zip(self._parts, self._away, strict=True) if away]
                place = self._turn_back(place)
            elif self._put_back(place) or self._go(place):
                place -= 1
            else:
                place = self._turn_back(place)

    def _fits(self) -> bool:
        self.looks -= 1
        return self._fit.fits()

    def _put_back(self, place: int) -> bool:
        """Put a part back, if the claim still fits then."""
        leases = self._parts[place].leases
        self._fit.put_back(leases)
        self._away[place] = not self._fits()
        if self._away[place]:
            self._fit.take(leases)
        return not self._away[place]

    def _go(self, place: int) -> bool:
        """Let a part go, if its run may give so much."""
        part = self._parts[place]
        if self._given[part.run] + part.gpus > self._most[part.run]:
            return False
        self._given[part.run] += part.gpus
        return True

    def _turn_back(self, place: int) -> int | None:
        """The last part that was put back goes after all; where to go on then, None where all has been tried."""
        for at in range(place + 1, len(self._parts)):
            part = self._parts[at]
            if self._away[at]:
                self._given[part.run] -= part.gpus
                continue
            self._fit.take(part.leases)
            self._away[at] = True
            if self._go(at):
                return at - 1
        return None
