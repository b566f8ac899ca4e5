"""Narrow: which groups malleable runs give up where those that come first do not serve, or serve too well (SEMANTICS §7).

The group with the highest index may share its node with work that stays, or lie in a domain that cannot be emptied, while its run
may give up only so many. So all groups that help are thought away, minimum or not, and put back one by one, the last to go first,
while the claim still fits; where that leaves somebody below its minimum, the last choice that could have been otherwise is made
otherwise. In the same way is found what less would do where a run that could have lived on goes whole, or where several groups make
a step. It is exact for a few dozen groups; for more it ends after a bounded number of looks, and what was chosen before stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from fairlease.engine.preempt.shrink import Offers
from fairlease.engine.preempt.victims import Victim, of_groups, youngest_first
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from fairlease.engine.place.fit_count import FitCount
    from fairlease.engine.preempt.shrink import Helps
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key


Found = TypeVar("Found")


class Scale(Protocol):
    """What tells whether a claim is served while leases are taken away and put back, and how often it may be asked."""

    looks_max: int

    def change(self, leases: Iterable[Lease], sign: int) -> None:
        """Take leases away (1), or put them back (−1)."""

    def fits(self) -> bool:
        """Whether the claim is served now."""


class ShrinkPart(NamedTuple):
    """A group that may go: its place in the order in which groups go, and what comes free with it."""

    place: tuple[bool, int, int]
    run: Key
    group: int
    gpus: int
    leases: list[Lease]


class ShrinkPlan:
    """What malleable runs could give up for a claim. `looks` are those that are left, over all that is asked of it."""

    def __init__(self, standing: list[RunState], gone: Mapping[Key, frozenset[int]], seats: FitCount) -> None:
        self._seats = seats
        self.looks = seats.looks_max
        self._runs: dict[Key, tuple[RunState, Offers]] = {}
        self._parts: list[ShrinkPart] = []
        for age, run in enumerate(youngest_first([run for run in standing if run.spec.malleable is not None])):
            offers = Offers.of(run, seats.usable, gone.get(run.key, frozenset()))
            if offers.gain() > 0:
                self._runs[run.key] = run, offers
                self._parts += _parts(run, offers, offers.helpful, run.held, age)
        self._parts.sort(key=lambda part: part.place)
        gain, need = sum(offers.gain() for _, offers in self._runs.values()), seats.need
        self._lacking = need.pods * need.size - seats.pool.idle - gain if gain else None

    def conceivable(self, gpus: int) -> bool:
        """Whether it could be enough, by the number of GPUs alone, when so many have been taken besides."""
        return self.looks > 0 and self._lacking is not None and gpus >= self._lacking

    def others(self, ended: frozenset[Key], gone: Collection[tuple[str, str]]) -> list[Victim] | None:
        """Groups that serve the claim besides what is gone by now; None where none do, or none were found in time."""
        parts = [
            part._replace(leases=[lease for lease in part.leases if (part.run, lease.name) not in gone])
            for part in self._parts
            if part.run not in ended
        ]
        for part in parts:
            self._seats.change(part.leases, 1)
        search = _Search(self._seats, parts, {run: offers.most for run, (_, offers) in self._runs.items()}, self.looks)
        found = search.first(self._victims)
        self.looks = search.looks
        for part in search.away():
            self._seats.change(part.leases, -1)
        return found

    def _victims(self, going: list[ShrinkPart]) -> list[Victim] | None:
        """These groups and whatever else goes so that each run ends on its grid; None where one cannot."""
        by_run: dict[Key, set[int]] = {}
        for part in going:
            by_run.setdefault(part.run, set()).add(part.group)
        found: list[Victim] = []
        for key, groups in by_run.items():
            run, offers = self._runs[key]
            whole = offers.next(offers.order, offers.most, frozenset(groups))
            if whole is None:
                return None
            found += _step_by_step(run, offers, whole, run.held, Reason.Shrink)
        return found


def lessened(victims: list[Victim], runs: Mapping[Key, RunState], scale: Scale, helps: Helps) -> list[Victim]:
    """The same victims, save that malleable runs give less where less serves, the last first. On `scale` all of them are gone."""
    found = list(victims)
    looks = scale.looks_max
    for key, reason in dict.fromkeys((victim.run, victim.reason) for victim in reversed(victims)):
        run = runs[key]
        same = [victim for victim in found if victim.run == key and victim.reason is reason]
        ends = any(victim.whole for victim in same)
        if run.spec.malleable is None or reason is Reason.RandomPreempt or looks <= 0:
            continue
        if not ends and all(len(victim.groups) <= 1 for victim in same):
            continue
        gone = frozenset(
            group for victim in found if victim.run == key and victim not in same for group in victim.groups
        )
        less, looks = _less(run, same, Offers.of(run, helps, gone), scale, looks)
        if less is not None:
            place = found.index(same[0])
            found = [victim for victim in found if victim not in same]
            found[place:place] = less
    return found


def _less(
    run: RunState, same: list[Victim], offers: Offers, scale: Scale, looks: int
) -> tuple[list[Victim] | None, int]:
    """Fewer groups of one run that serve as well, and how many looks are left; None where there are none."""
    reason, ends = same[0].reason, any(victim.whole for victim in same)
    asked = {group for victim in same for group in victim.groups}
    if ends:
        asked = {unit[3] for unit in run.overdrawn} if reason is Reason.ReclaimOverdrawn else set(offers.widths)
    asked &= offers.widths.keys()
    leases = [run.leases[name] for victim in same for name in victim.names]
    parts = sorted(_parts(run, offers, asked, leases, 0), key=lambda part: offers.order.index(part.group))
    rest = [lease for lease in leases if lease.group not in asked]
    order = [group for group in offers.order if group in asked]
    order += [group for group in offers.order if group not in asked] if ends else []
    scale.change(rest, -1)
    search = _Search(scale, parts, {run.key: offers.most}, looks)
    found = search.first(lambda going: offers.next(order, offers.most, frozenset(part.group for part in going)))
    away = {part.group for part in search.away()}
    if found is None:
        scale.change([lease for lease in leases if lease.group not in away], 1)
        return None, search.looks
    scale.change([lease for lease in leases if lease.group in found and lease.group not in away], 1)
    return _step_by_step(run, offers, found, leases, reason), search.looks


def _parts(
    run: RunState, offers: Offers, groups: Collection[int], leases: Iterable[Lease], age: int
) -> list[ShrinkPart]:
    by_group: dict[int, list[Lease]] = {}
    for lease in leases:
        by_group.setdefault(lease.group, []).append(lease)
    return [
        ShrinkPart(
            (group not in offers.borrowed, -group, age), run.key, group, offers.widths[group], by_group.get(group, [])
        )
        for group in groups
    ]


def _step_by_step(
    run: RunState, offers: Offers, groups: frozenset[int], leases: Iterable[Lease], reason: Reason
) -> list[Victim]:
    """Groups that go, with these of their leases, in as many steps as end on the grid: each can be given back by itself."""
    going = [lease for lease in leases if lease.group in groups]
    order, most, found = [group for group in offers.order if group in groups], offers.most, list[Victim]()
    while order:
        step = offers.next(order, most) or frozenset(order)  # All that is left together ends on the grid.
        found.append(of_groups(run, step, reason, going))
        order = [group for group in order if group not in step]
        most -= sum(offers.widths[group] for group in step)
    return found


class _Search:
    """Parts that are thought away, and put back one by one, the last first. What is not decided yet is away."""

    def __init__(self, scale: Scale, parts: list[ShrinkPart], most: dict[Key, int], looks: int) -> None:
        self.looks = looks
        self._scale = scale
        self._parts = parts
        self._most = most
        self._given = dict.fromkeys(most, 0)
        self._away = [True] * len(parts)

    def away(self) -> list[ShrinkPart]:
        """What is away now."""
        return [part for part, away in zip(self._parts, self._away, strict=True) if away]

    def first(self, accept: Callable[[list[ShrinkPart]], Found | None]) -> Found | None:
        """What the first choice gives that is accepted; None where there is none, or it was not found in time."""
        place: int | None = len(self._parts) - 1 if self._fits() else None
        while place is not None and self.looks > 0:
            if place < 0:
                found = accept(self.away())
                if found is not None:
                    return found
                place = self._turn_back(place)
            elif self._put_back(place) or self._go(place):
                place -= 1
            else:
                place = self._turn_back(place)
        return None

    def _fits(self) -> bool:
        self.looks -= 1
        return self._scale.fits()

    def _put_back(self, place: int) -> bool:
        """Put a part back, if the claim still fits then."""
        leases = self._parts[place].leases
        self._scale.change(leases, -1)
        self._away[place] = not self._fits()
        if self._away[place]:
            self._scale.change(leases, 1)
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
            self._scale.change(part.leases, 1)
            self._away[at] = True
            if self._go(at):
                return at - 1
        return None
