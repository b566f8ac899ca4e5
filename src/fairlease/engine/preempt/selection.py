"""Contest: whose work gives way to a claim whose reservation is due, for any order of draws (SEMANTICS §7).

Who is chosen is counted, class by class and then draw by draw; then it is tried whether the claim would start, with the money that
there is. Where it would not, because money reaches some nodes only, it is chosen again, and tried at each step. The resolver
settles a contest once, in the order that its seed gives; whoever tells the odds asks it for every order, or for many, and so hears
of each what the resolver would do. What a claim lacks is counted here, too, for all who tell it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover.envelopes import Withheld
from fairlease.engine.place.fit_count import FitCount
from fairlease.engine.place.plan import Planner
from fairlease.engine.preempt.lottery_pool import LotteryPools
from fairlease.engine.preempt.selected import Selected
from fairlease.engine.preempt.victims import Victim, whole
from fairlease.ledger.state.events import LeasesClosed
from fairlease.model.reservation import Shortage
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlease.engine.cover.family import Family
    from fairlease.engine.place.fit_count import Taken
    from fairlease.engine.place.plan import Plan
    from fairlease.engine.preempt.lottery_pool import LotteryPool
    from fairlease.engine.preempt.selected import Saved
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key
    from fairlease.model.reservation import Token

    Order = Callable[[LotteryPool], Iterable[Token]]
    """In which order those on a roll are drawn."""


EFFORT_OF_A_PLAN = 50
"""Looks at seats that cost about as much as to try whether a claim would start."""


class Choice(NamedTuple):
    """Whose work would go: what each group lacked, who stood in question, who was chosen.

    `roll` are those who could be drawn (None: nobody had to be), `drawn` those who were, in order.
    """

    short: tuple[Shortage, ...]
    conflict: list[Key]
    victims: list[Victim]
    roll: LotteryPool | None = None
    drawn: tuple[Token, ...] = ()


def lacking(seats: FitCount) -> tuple[Shortage, ...]:
    """What each group of a claim lacks, in whole pods. Records, forecasts and notices all mean this by a deficit."""
    return tuple(Shortage(group=group, gpus=gpus) for group, gpus in seats.deficits())


def deficit(planner: Planner, family: Family) -> int:
    """GPUs that a claim lacks as of a planner's date, as the record of its resolution would say; 0 where nobody has to give way."""
    if planner.pool is None:
        return 0
    short = lacking(_seats(planner))
    if not short:  # It fits somewhere; perhaps not where its money reaches.
        contest = Selection(planner, family, LotteryPools(planner.state))
        found = contest.choose(lambda roll: roll.tokens)
        return 0 if found is None or not found.victims else contest.deficit_gpus(found)
    return sum(each.gpus for each in short)


class Hearing:
    """Who gives way as some seats count it: first without a draw, then whoever is drawn, one after the other."""

    def __init__(self, rolls: LotteryPools, claim: RunState, seats: FitCount, now: int) -> None:
        self.short = lacking(seats)
        self.bench = Selected(rolls.state, claim, seats)
        self.served = self.bench.without_draw()
        self.roll = None if self.served else rolls.of(claim, self.bench.ended() | self.bench.spent(), now, seats)
        self.drawn: list[Token] = []
        self._runs = rolls.state.runs

    @property
    def tokens(self) -> list[Token]:
        """Who can be drawn; nobody where none has to be."""
        return [] if self.roll is None else self.roll.tokens

    def draw(self, token: Token) -> bool:
        """One more is drawn; whether that serves the claim."""
        self.drawn.append(token)
        self.bench.take(whole(self._runs[token.run], Reason.RandomPreempt))
        return self.bench.serves()

    def settle(self, order: Order) -> Choice | None:
        """Draw in this order until the claim is served, and put all back; None where it is not served."""
        saved = self.save()
        served = self.served or (self.roll is not None and any(map(self.draw, order(self.roll))))
        found = self.choice() if served else None
        self.restore(saved)
        return found

    def choice(self) -> Choice:
        """Who goes, when all that proves unneeded has been given back."""
        chosen = self.bench.give_back()
        conflict = [*self.bench.stood, *(token.run for token in self.tokens)]
        return Choice(self.short, conflict, chosen, self.roll, tuple(self.drawn))

    def save(self) -> tuple[Saved, int]:
        """Who has been taken and drawn, to come back to."""
        return self.bench.save(), len(self.drawn)

    def restore(self, saved: tuple[Saved, int]) -> None:
        """As it was then."""
        self.bench.restore(saved[0])
        del self.drawn[saved[1] :]


class Selection:
    """One claim, and all who may have to give way to it. It may be asked for as many orders of draws as one likes."""

    def __init__(self, planner: Planner, family: Family, rolls: LotteryPools) -> None:
        self.planner = planner
        self._family = family
        self._rolls = rolls
        self._plans: dict[frozenset[tuple[Key, str]], Plan | None] = {}
        self._counted = Hearing(rolls, planner.run, _seats(planner), planner.now)
        self._hearings = [self._counted]

    def settle(self, order: Order) -> tuple[Choice, Plan] | None:
        """Who goes if they are drawn in this order, and how the claim then starts; None where nobody is touched."""
        found = self.choose(order)
        plan = None if found is None else self.plan(found.victims)
        if found is None or plan is None:
            return None
        return found._replace(short=found.short or self._in_place(plan)), plan

    def choose(self, order: Order) -> Choice | None:
        """Who goes if they are drawn in this order; None where nobody is touched."""
        found = self._counted.settle(order)
        if found is not None and not self._starts(found.victims):
            found = self._paid.settle(order)
            if found is not None and not self._starts(found.victims):
                found = None
        return found

    @cached_property
    def _paid(self) -> Hearing:
        """The same with the money tried at each step: asked where counting erred."""
        hearing = Hearing(self._rolls, self.planner.run, PaidSeats(self), self.planner.now)
        self._hearings.append(hearing)
        return hearing

    def _starts(self, victims: list[Victim]) -> bool:
        """Whether the claim would start without them; where counting tells all, it is tried only before it is acted on."""
        return self._counts_alone or self.plan(victims) is not None

    @cached_property
    def _counts_alone(self) -> bool:
        return self.planner.counts_alone()

    def plan(self, victims: list[Victim]) -> Plan | None:
        """How the claim would start without them, tried once for the same leases; None where it could not."""
        key = frozenset((victim.run, name) for victim in victims for name in victim.names)
        if key not in self._plans:
            self._plans[key] = plan_without(self.planner, self._family, victims)
        return self._plans[key]

    def deficit_gpus(self, found: Choice) -> int:
        """GPUs that are lacking where these have to go."""
        plan = None if found.short else self.plan(found.victims)
        return sum(each.gpus for each in (found.short if plan is None else self._in_place(plan)))

    def _in_place(self, plan: Plan) -> tuple[Shortage, ...]:
        """What each group lacks on the nodes where it comes to lie: it would fit somewhere, only not where its money reaches."""
        seats, rooms, short = _seats(self.planner), dict[str, int](), dict[int, int]()
        size = seats.need.size
        for spot in plan.spots:
            name = spot.node.node.name
            room = rooms.setdefault(name, seats.room(spot.node))
            rooms[name] = room - size
            if room < size:
                short[spot.group] = short.get(spot.group, 0) + size
        return tuple(Shortage(group=group, gpus=gpus) for group, gpus in sorted(short.items()))

    @property
    def tokens(self) -> list[Token]:
        """Who could be drawn in what was asked so far."""
        return list(dict.fromkeys(token for hearing in self._hearings for token in hearing.tokens))

    @property
    def effort(self) -> int:
        """What thinking has cost so far, in looks at seats and changes of them."""
        return sum(hearing.bench.seats.effort for hearing in self._hearings) + EFFORT_OF_A_PLAN * len(self._plans)


def _seats(planner: Planner) -> FitCount:
    """The seats of a claim's narrowest width, where its money reaches."""
    assert planner.pool is not None, "asked only where there is a pool"
    return FitCount(planner.state, planner.pool, planner.reach(), planner.least, planner.way)


def plan_without(planner: Planner, family: Family, victims: list[Victim]) -> Plan | None:
    """How a claim would start if `victims` were gone; None where it could not.

    It is paid with the money that there was while all of them were there: a lack of money is no reason to cut anybody.
    """
    state, now = planner.state, planner.now
    payers = {state.runs[each.run].leases[name].payer for each in victims for name in each.names}
    accounts = [state.account(payer.budget, payer.envelope) for payer in payers]
    withheld = {each.id: Withheld.of(each, now, state.config.commit_quantum) for each in accounts}
    with state.trial():
        for victim in victims:
            state.apply(now, LeasesClosed(run=victim.run, names=victim.names, reason=victim.reason))
        return Planner(state, family, planner.run, now, withheld).widest(planner.affordable())


class Gone:
    """Leases that are thought away, by run."""

    def __init__(self) -> None:
        self._names: dict[Key, set[str]] = {}

    def change(self, leases: Iterable[Lease], sign: int) -> None:
        """Take leases away (1), or put them back (−1)."""
        for lease in leases:
            names = self._names.setdefault(lease.run, set())
            names.add(lease.name) if sign > 0 else names.discard(lease.name)

    def victims(self) -> list[Victim]:
        """As a trial takes them."""
        gone = [(run, tuple(sorted(names))) for run, names in self._names.items() if names]
        return [Victim(run, names, Reason.Shrink, 0, whole=False) for run, names in gone]

    def save(self) -> dict[Key, frozenset[str]]:
        """What is away, to come back to."""
        return {run: frozenset(names) for run, names in self._names.items()}

    def restore(self, saved: dict[Key, frozenset[str]]) -> None:
        """As it was then."""
        self._names = {run: set(names) for run, names in saved.items()}


class PaidSeats(FitCount):
    """Seats that count only where somebody pays for all of them."""

    looks_max = 50

    def __init__(self, contest: Selection) -> None:
        planner = contest.planner
        assert planner.pool is not None, "a contest has a pool"
        super().__init__(planner.state, planner.pool, planner.reach(), planner.least, planner.way)
        self._contest = contest
        self._away = Gone()

    def change(self, leases: Iterable[Lease], sign: int) -> None:
        """Take leases away, or put them back, and remember which."""
        going = list(leases)
        super().change(going, sign)
        self._away.change(going, sign)

    def fits(self) -> bool:
        """Whether the need would fit and be paid for: counted, and then tried."""
        return super().fits() and self._contest.plan(self._away.victims()) is not None

    def save(self) -> Taken:
        """What has been taken away, to come back to."""
        return super().save()._replace(away=self._away.save())

    def restore(self, saved: Taken) -> None:
        """As it was then."""
        super().restore(saved)
        self._away.restore(saved.away)
