"""Bench: who gives way to a claim, as victims are taken and given back (SEMANTICS §7).

Victims are taken class by class until the claim would fit; then, last first, every one that proves unneeded is given back. Of
malleable runs the groups that come first are taken, down to their minimum. Where these do not serve, others may (`engine.narrow`):
before anybody is drawn, and before one more is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.preempt.shrink_search import ShrinkPlan, lessened
from fairlease.engine.preempt.victims import Victim, free_riders, funded, spares, widths_of
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlease.engine.place.fit_count import FitCount, Taken
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key


class Saved(NamedTuple):
    """A bench as it was."""

    seats: Taken
    taken: tuple[tuple[Victim, list[Lease]], ...]
    gone: frozenset[tuple[str, str]]
    stood: tuple[Key, ...]
    besides: int
    looks: int


class Selected:
    """Victims as they are taken and given back. A lease that went with one victim does not go again with another.

    `stood` are all runs that were asked for anything without a draw, whether they gave it or not. `_besides` are the GPUs of all
    that was taken, save the width of malleable runs.
    """

    def __init__(self, state: State, claim: RunState, seats: FitCount) -> None:
        self.state = state
        self.claim = claim
        self.seats = seats
        self.taken: list[tuple[Victim, list[Lease]]] = []
        self.gone: set[tuple[str, str]] = set()
        self.stood: dict[Key, None] = {}
        self._narrowing: ShrinkPlan | None = None
        self._to_narrow: Callable[[], ShrinkPlan] | None = None
        self._before_widths = 0
        self._besides = 0

    def without_draw(self) -> bool:
        """Take whoever gives way without a draw, class by class, until the claim fits; False where it does not."""
        for victim in self._in_order():
            if self.seats.fits():
                return True
            self.take(victim)
        return self.serves()

    def _in_order(self) -> Iterator[Victim]:
        """What a class leaves of a run is what the next one finds."""
        yield from free_riders(self.state, self.claim, self.seats.usable)
        standing = funded(self.state, self.claim)
        yield from spares(standing)
        gone, self._before_widths = self.groups(), len(self.taken)
        self._to_narrow = partial(ShrinkPlan, standing, gone, self.seats)
        yield from widths_of(standing, gone, self.seats.usable)

    def take(self, victim: Victim) -> bool:
        """Take a victim, unless nothing of it lies where it would help."""
        leases = self.state.runs[victim.run].leases
        fresh = [leases[name] for name in victim.names if (victim.run, name) not in self.gone]
        if not any(map(self.seats.usable, fresh)):
            return False
        self.gone.update((victim.run, lease.name) for lease in fresh)
        self.seats.change(fresh, 1)
        if not victim.whole:
            names, gpus = tuple(lease.name for lease in fresh), sum(lease.gpus for lease in fresh)
            victim = victim._replace(names=names, gpus=gpus)
        self.taken.append((victim, fresh))
        self._besides += 0 if victim.reason is Reason.Shrink else victim.gpus
        if victim.reason is not Reason.RandomPreempt:
            self.stood[victim.run] = None
        return True

    def serves(self) -> bool:
        """Whether the claim fits by now, perhaps where malleable runs give other groups than those that come first."""
        return self.seats.fits() or self._narrow()

    def _narrow(self, without: Victim | None = None) -> bool:
        """Take the groups of malleable runs that a search finds, besides who was drawn, save one; False where it finds nothing."""
        if self._narrowing is None and self._to_narrow is not None:
            self._narrowing = self._to_narrow()
        narrowing, gpus = self._narrowing, self._besides - (0 if without is None else without.gpus)
        if narrowing is None or not narrowing.conceivable(gpus):
            return False
        taken = [victim for victim, _ in self.taken[self._before_widths :]]
        drawn = [victim for victim in taken if victim.reason is Reason.RandomPreempt and victim is not without]
        self._rewind()
        self._take_all(drawn)
        others = narrowing.others(self.ended(), self.gone)
        self._rewind()
        self._take_all((*others, *drawn) if others is not None else taken)
        return others is not None

    def _take_all(self, victims: Iterable[Victim]) -> None:
        for victim in victims:
            self.take(victim)

    def _rewind(self) -> None:
        """Put back all that was taken since the width of malleable runs was asked for."""
        while len(self.taken) > self._before_widths:
            victim, leases = self.taken.pop()
            self.seats.change(leases, -1)
            self.gone.difference_update((victim.run, lease.name) for lease in leases)
            self._besides -= 0 if victim.reason is Reason.Shrink else victim.gpus

    def groups(self) -> dict[Key, frozenset[int]]:
        """The groups that have been taken, by run."""
        found: dict[Key, frozenset[int]] = {}
        for victim, _ in self.taken:
            found[victim.run] = found.get(victim.run, frozenset()) | victim.groups
        return found

    def ended(self) -> frozenset[Key]:
        """The runs that have been taken whole: who goes already is not drawn as well."""
        return frozenset(victim.run for victim, _ in self.taken if victim.whole)

    def spent(self) -> frozenset[Key]:
        """The runs that have given all that the claim could use: to draw them as well would help nobody."""
        runs, usable, gone = self.state.runs, self.seats.usable, self.gone
        return frozenset(
            run
            for run in self.stood
            if not any((run, name) not in gone and usable(lease) for name, lease in runs[run].leases.items())
        )

    def give_back(self) -> list[Victim]:
        """Last first, every victim that proves unneeded and whose run, or group, lives on; returns those that stay.

        Who was drawn may be unneeded because other groups would do; and where several groups make a step, those that come first
        are not always those that are needed.
        """
        for victim in [victim for victim, _ in reversed(self.taken) if victim.reason is Reason.RandomPreempt]:
            self._narrow(without=victim)
        if any(len(victim.groups) > 1 and victim.reason is Reason.Shrink for victim, _ in self.taken):
            self._narrow()
        kept: list[Victim] = []
        by_run: dict[Key, list[Victim]] = {}
        for victim, leases in reversed(self.taken):
            same = by_run.setdefault(victim.run, [])
            if not any(each.whole or victim.group in each.groups for each in same):
                self.seats.change(leases, -1)
                if self.seats.fits():
                    continue
                self.seats.change(leases, 1)
            kept.append(victim)
            same.append(victim)
        return lessened(together(kept[::-1]), self.state.runs, self.seats, self.seats.usable)

    def save(self) -> Saved:
        """Who has been taken, to come back to."""
        looks = self.seats.looks_max if self._narrowing is None else self._narrowing.looks
        taken, gone, stood = tuple(self.taken), frozenset(self.gone), tuple(self.stood)
        return Saved(self.seats.save(), taken, gone, stood, self._besides, looks)

    def restore(self, saved: Saved) -> None:
        """As it was then."""
        self.seats.restore(saved.seats)
        self.taken = list(saved.taken)
        self.gone = set(saved.gone)
        self.stood = dict.fromkeys(saved.stood)
        self._besides = saved.besides
        if self._narrowing is not None:
            self._narrowing.looks = saved.looks


def together(victims: list[Victim]) -> list[Victim]:
    """Victims that can go at once: a run that goes whole goes once."""
    whole = {victim.run for victim in victims if victim.whole}
    return [victim for victim in victims if victim.whole or victim.run not in whole]
