"""Selection: whose work is preempted so that a claim fits, as one count sees it, for any order of draws (SEMANTICS §7).

Victims are taken class by class until the claim fits: work without a claim to its GPUs; then, where its reservation is due, spares,
the width of malleable runs, and whole runs as they are drawn. Where the groups of malleable runs that come first do not serve,
others are looked for before anybody is drawn, and before one more is (`shrink.search`). Then, last first, every victim that proves
unneeded is given back. Each step is counted (`FitCount`), so a selection costs what is in scope; `resolve` verifies it with a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.preempt.shrink import Sheddable, Shrinking, search
from fairlease.engine.preempt.victims import (
    Victim,
    of_groups,
    of_unclaimed,
    owing_groups,
    spares,
    unclaimed,
    whole,
    widths,
    youngest_first,
)  # fmt: skip
from fairlease.model.reservation import Shortage
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlease.engine.place.fit_count import FitCount
    from fairlease.engine.preempt.lottery import LotteryPool, LotteryPools
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key
    from fairlease.model.reservation import Token

    Order = Callable[[LotteryPool], Iterable[Token]]
    """In which order the tokens of a pool are drawn."""


class Choice(NamedTuple):
    """Whose work would go: what each group lacked, who was in scope, who was selected.

    `pool` are those who could be drawn (None: nobody had to be), `drawn` those who were, in order.
    """

    short: tuple[Shortage, ...]
    conflict: list[Key]
    victims: list[Victim]
    pool: LotteryPool | None = None
    drawn: tuple[Token, ...] = ()


def lacking(fit: FitCount) -> tuple[Shortage, ...]:
    """What each group of a claim lacks, in whole pods. Records, forecasts and notices all mean this by a deficit."""
    return tuple(Shortage(group=group, gpus=gpus) for group, gpus in fit.deficits())


class Selection:
    """Victims for one claim: whoever goes without a draw is taken at once, the others in the order that `choose` is given.

    `_stood` are all runs in scope without a claim to their GPUs, and those asked for spares or width. What malleable runs could
    give is kept apart (`_shrinking`), with the number of GPUs below which no search among them is begun (`_too_few`).
    """

    def __init__(self, pools: LotteryPools, claim: RunState, fit: FitCount, now: int, *, due: bool) -> None:
        self.fit = fit
        self.short = lacking(fit)
        self.pool: LotteryPool | None = None
        self._runs = pools.state.runs
        self._taken: list[Victim] = []
        self._touched: set[Key] = set()
        self._looks = fit.looks_max
        self._shrinking: dict[Key, Shrinking] = {}
        self._before_widths = self._too_few = 0
        riders = unclaimed(pools.state, fit)
        self._stood = dict.fromkeys(run.key for run in riders)
        self.served = fit.fits() or self._reclaim(riders)
        if due and not self.served:
            funded = pools.funded(fit)
            if claim.displaced_by:
                funded = [run for run in funded if run.key not in claim.displaced_by]
            self.served = self._until_it_fits(spares(funded)) or self._shrink(funded)
        if due and not self.served:
            self.pool = pools.of(claim, self._ended() | self._spent(), now, fit)
        self._without_draw, self._asked = (list(self._taken), list(self._stood), self._looks), False

    @property
    def tokens(self) -> list[Token]:
        """Who can be drawn; nobody where none has to be."""
        return [] if self.pool is None else self.pool.tokens

    def choose(self, order: Order) -> Choice | None:
        """Who goes if they are drawn in this order; None where that does not serve the claim. It may be asked again and again."""
        if self._asked:  # What was selected then is put back only now: mostly nobody asks again.
            self._restore(*self._without_draw)
        self._asked, served = True, self.served
        drawn: list[Token] = []
        for token in () if self.pool is None else order(self.pool):
            drawn.append(token)
            self._take(whole(self._runs[token.run], Reason.RandomPreempt))
            served = self.fit.fits() or self._other_groups()
            if served:
                break
        if not served:
            return None
        victims = self._give_back()
        conflict = [*self._stood, *(token.run for token in self.tokens)]
        return Choice(self.short, conflict, victims, self.pool, tuple(drawn))

    # --- taking --------------------------------------------------------------------------------------------------------

    def _reclaim(self, riders: list[RunState]) -> bool:
        """Take work without a claim to its GPUs until the claim fits.

        There may be thousands of rigid runs, most of them on nodes where others stay. They are taken as they are; where the claim
        fits in the end, only those are looked at again on whose nodes a pod more fits.
        """
        fit, served = self.fit, False
        taken: list[RunState | list[Victim]] = []
        for run in riders:
            if run.spec.malleable is None:
                taken.append(run)
                served = fit.take(run.leases.values()) and fit.fits()
            else:
                served = self._until_it_fits(of_unclaimed(run, fit.usable))
                taken.append(self._taken)
                self._taken = []
            if served:
                break
        for each in taken:
            if isinstance(each, list):
                self._taken += each
            elif not served or not fit.in_vain(each.leases.values()):
                self._taken += of_unclaimed(each, fit.usable)
                self._touched.add(each.key)
        return served

    def _shrink(self, funded: Iterable[RunState]) -> bool:
        """Take width of malleable runs until the claim fits: the groups that come first, or others that serve."""
        malleable, gone = youngest_first(run for run in funded if run.spec.malleable is not None), self._groups()
        self._before_widths = len(self._taken)
        for age, run in enumerate(malleable):
            left = Sheddable.of(run, self.fit.usable, gone.get(run.key, frozenset()))
            if left.gain() > 0:
                self._shrinking[run.key] = Shrinking.of(run, left, left.helpful, left.order, age)
        gain = sum(each.left.gain() for each in self._shrinking.values())
        need, taken = self.fit.need, sum(victim.gpus for victim in self._taken)
        self._too_few = need.pods * need.size - self.fit.pool.idle - gain - taken
        return self._until_it_fits(widths(malleable, gone, self.fit.usable)) or self._other_groups()

    def _until_it_fits(self, victims: Iterable[Victim]) -> bool:
        return any(self._take(victim) and self.fit.fits() for victim in victims)

    def _take(self, victim: Victim) -> bool:
        """Take a victim, unless nothing of it runs where that would help; whether more pods fit then."""
        touched = victim.run in self._touched
        if touched:
            away = self.fit.away
            victim = victim._replace(leases=tuple(lease for lease in victim.leases if lease.serial not in away))
        if (touched or not victim.whole) and not any(map(self.fit.usable, victim.leases)):
            return False  # A run in scope helps somehow as a whole.
        self._touched.add(victim.run)
        self._taken.append(victim)
        if victim.reason in (Reason.DropSpare, Reason.Shrink):
            self._stood[victim.run] = None
        return self.fit.take(victim.leases)

    def _rewind(self) -> None:
        """Put back all that was taken since the width of malleable runs was asked for."""
        while len(self._taken) > self._before_widths:
            self.fit.put_back(self._taken.pop().leases)

    def _restore(self, taken: list[Victim], stood: list[Key], looks: int) -> None:
        """Take these and nobody else."""
        self.fit.put_back(list(self.fit.away.values()))
        for victim in taken:
            self.fit.take(victim.leases)
        self._taken, self._stood, self._looks = list(taken), dict.fromkeys(stood), looks

    def _groups(self) -> dict[Key, frozenset[int]]:
        """The groups that have been taken, by run."""
        found: dict[Key, frozenset[int]] = {}
        for victim in self._taken:
            found[victim.run] = found.get(victim.run, frozenset()) | victim.groups
        return found

    def _ended(self) -> frozenset[Key]:
        """The runs that have been taken whole: who goes already is not drawn as well."""
        return frozenset(victim.run for victim in self._taken if victim.whole)

    def _drawn(self) -> list[Key]:
        return [victim.run for victim in self._taken if victim.reason is Reason.RandomPreempt]

    def _spent(self) -> frozenset[Key]:
        """The runs that have given all that the claim could use: to draw them as well would help nobody."""
        runs, usable, away = self._runs, self.fit.usable, self.fit.away
        return frozenset(
            run
            for run in self._stood
            if not any(lease.serial not in away and usable(lease) for lease in runs[run].leases.values())
        )

    # --- other groups --------------------------------------------------------------------------------------------------

    def _other_groups(self, without: Key | None = None) -> bool:
        """Take those groups of malleable runs with which the claim fits besides who was drawn; False where no search finds any.

        `without`: as if that one had not been drawn. No search is begun where there are too few GPUs by number alone.
        """
        if not self._shrinking or self._looks <= 0:
            return False
        drawn = [whole(self._runs[run], Reason.RandomPreempt) for run in self._drawn() if run != without]
        if sum(victim.gpus for victim in drawn) < self._too_few:
            return False
        taken = self._taken[self._before_widths :]
        self._rewind()
        self._take_all(drawn)
        ended = self._ended()
        runs = {key: each for key, each in self._shrinking.items() if key not in ended}
        steps, self._looks = search(self.fit, runs, self._looks)
        self._rewind()
        others = [of_groups(self._runs[run], step, Reason.Shrink) for run, step in steps or ()]
        self._take_all(taken if steps is None else [*others, *drawn])
        return steps is not None

    def _take_all(self, victims: Iterable[Victim]) -> None:
        for victim in victims:
            self._take(victim)

    # --- giving back ---------------------------------------------------------------------------------------------------

    def _give_back(self) -> list[Victim]:
        """Last first, every victim that proves unneeded and whose run, or group, lives on; returns those that stay.

        Who was drawn may be unneeded because other groups would do; and where several groups make a step, those that come first
        are not always those that are needed.
        """
        for run in reversed(self._drawn()) if self._shrinking else ():
            self._other_groups(without=run)
        if any(len(victim.groups) > 1 and victim.reason is Reason.Shrink for victim in self._taken):
            self._other_groups()
        kept: list[Victim] = []
        by_run: dict[Key, list[Victim]] = {}
        for victim in reversed(self._taken):
            same = by_run.get(victim.run)
            if same is None or not any(each.whole or victim.group in each.groups for each in same):
                vain = self.fit.in_vain(victim.leases)
                self.fit.put_back(victim.leases)
                if vain or self.fit.fits():
                    continue
                self.fit.take(victim.leases)
            kept.append(victim)
            by_run.setdefault(victim.run, []).append(victim)
        ended = {victim.run for victim in kept if victim.whole}
        found = [each for each in reversed(kept) if each.whole or each.run not in ended]
        return self._fewer_groups([whole(self._runs[each.run], each.reason) if each.whole else each for each in found])

    def _fewer_groups(self, kept: list[Victim]) -> list[Victim]:
        """The same victims, save that malleable runs give less where less serves, the last first."""
        looks = self.fit.looks_max
        for key, reason in dict.fromkeys((victim.run, victim.reason) for victim in reversed(kept)):
            run, same = self._runs[key], [each for each in kept if each.run == key and each.reason is reason]
            several = any(each.whole or len(each.groups) > 1 for each in same)
            if run.spec.malleable is None or reason is Reason.RandomPreempt or not several or looks <= 0:
                continue
            leases = [lease for each in same for lease in each.leases]
            others = (each.groups for each in kept if each.run == key and each.reason is not reason)
            self.fit.put_back(leases)
            fewer = self._shrunk(run, same, frozenset[int]().union(*others))
            steps, looks = search(self.fit, {key: fewer}, looks)
            if steps is None:
                self.fit.take(leases)
                continue
            place = kept.index(same[0])
            rest = [each for each in kept if each not in same]
            begun = len(self._taken)
            self._take_all(of_groups(run, step, reason) for _, step in steps)
            kept = [*rest[:place], *self._taken[begun:], *rest[place:]]
        return kept

    def _shrunk(self, run: RunState, same: list[Victim], gone: frozenset[int]) -> Shrinking:
        """A run that was to go whole, or in steps of several groups, with those of its groups that were asked for."""
        left = Sheddable.of(run, self.fit.usable, gone)
        groups = {group for victim in same for group in victim.groups}
        ends = any(victim.whole for victim in same)
        if ends:
            owing = same[0].reason is Reason.ReclaimOverdrawn
            groups = owing_groups(run) if owing else set(left.widths)
        asked = [group for group in left.order if group in groups]
        return Shrinking.of(run, left, asked, [*asked, *(each for each in left.order if ends and each not in groups)])
