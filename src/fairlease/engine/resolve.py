"""Resolve: whose work gives way to a funded claim (SEMANTICS §7).

Work without a claim to its GPUs goes first and at once: opportunistic runs, then what is overdrawn. When a reservation is due,
spares follow, then the groups of malleable runs above their minimum, then whole runs by lot. Victims are taken in that order until
the claim would fit; then, last first, every one that proves unneeded is given back; then the claim is packed on a trial of the
state. Only what passed that is acted on: if the claim still does not fit, nobody is touched.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.bench import Bench, together
from fairlease.engine.cover import Withheld
from fairlease.engine.narrow import lessened
from fairlease.engine.pack import need_of
from fairlease.engine.plan import Planner
from fairlease.engine.seats import Seats
from fairlease.engine.sortition import Rolls, Sortition
from fairlease.engine.victims import Victim, free_riders
from fairlease.ledger.event import LeasesClosed, OutcomeRecorded
from fairlease.model.reservation import Cut, OutcomeSpec, RunRef, Scope, Shortage
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlease.engine.family import Family
    from fairlease.engine.plan import Plan
    from fairlease.ledger.capacity import Pool
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.record import Key
    from fairlease.model.reservation import ByHand, Lottery


class Resolution(NamedTuple):
    """Who gives way, the record of it, and how many pods the claim may start with: those it could pay before."""

    record: OutcomeRecorded
    victims: list[Victim]
    pods_max: int


def resolve(
    state: State,
    family: Family,
    claim: RunState,
    now: int,
    width: int,
    *,
    due: bool,
    beacon: str = "",
    rolls: Rolls | None = None,
) -> Resolution | None:
    """Who must give way so that the claim starts wider than `width` (0: at all); None where cutting does not help.

    Only where its reservation is `due` does funded work give way, and then only for the claim's narrowest width. Who asks
    several times over one state hands in the same `rolls`.
    """
    planner = Planner(state, family, claim, now)
    found = _at_once(planner, family, width)
    if found is None and due:
        found = _by_right(planner, rolls or Rolls(state), family, beacon)
    return found


# --- work that has no claim to its GPUs ------------------------------------------------------------------------------------


def _at_once(planner: Planner, family: Family, width: int) -> Resolution | None:
    state, claim, reach = planner.state, planner.run, planner.reach()
    helps = partial(_lies_in, state, planner.pool, reach)
    standing = [
        victim
        for victim in free_riders(state, claim, helps)
        if any(helps(state.runs[victim.run].leases[name]) for name in victim.names)
    ]
    if not standing or not _could_serve(planner, standing):
        return None
    width_without = partial(_width, planner, family)
    target = width_without(together(standing))
    if target <= width:
        return None
    wanted = range(1, len(standing) + 1)
    count = wanted[bisect_left(wanted, target, key=lambda first: width_without(together(standing[:first])))]
    chosen = together(standing[:count])
    need = need_of(claim.spec, target)
    spare_gpus = state.capacity.pools[claim.spec.resources.gpu_type].idle - need.pods * need.size
    for victim in reversed(chosen[:-1]):
        rest = [each for each in chosen if each is not victim]
        enough = sum(each.gpus for each in rest) + spare_gpus >= 0
        if enough and width_without(rest) >= target:
            chosen = rest
    trial = Trial(width_without, target)
    trial.change((state.runs[each.run].leases[name] for each in chosen for name in each.names), 1)
    chosen = lessened(chosen, state.runs, trial, helps)
    assert planner.pool is not None, "whoever gives way lies in it"
    short = _short(Seats(state, planner.pool, reach, need, planner.way))
    record = _record(planner, short, [each.run for each in standing], chosen, None)
    return Resolution(record, chosen, planner.affordable())


def _short(seats: Seats) -> tuple[Shortage, ...]:
    """What each group lacks."""
    return tuple(Shortage(group=group, gpus=gpus) for group, gpus in seats.deficits())


def _in_place(plan: Plan, seats: Seats) -> tuple[Shortage, ...]:
    """What each group lacks on the nodes where it comes to lie."""
    rooms: dict[str, int] = {}
    lacking: dict[int, int] = {}
    for spot in plan.spots:
        name = spot.node.node.name
        room = rooms.setdefault(name, seats.room(spot.node))
        rooms[name] = max(0, room - seats.need.size)
        lacking[spot.group] = lacking.get(spot.group, 0) + max(0, seats.need.size - room)
    return tuple(Shortage(group=group, gpus=gpus) for group, gpus in sorted(lacking.items()) if gpus)


def _could_serve(planner: Planner, standing: list[Victim]) -> bool:
    """Whether the claim's narrowest width would fit if all of them were gone, by counting: where it says no, no plan says yes.

    While work without a claim runs, all who wait are tried again and again, mostly in vain: a trial for each would be dear.
    """
    if planner.pool is None:
        return False
    runs = planner.state.runs
    seats = Seats(planner.state, planner.pool, planner.payable(), planner.least, planner.way)
    seats.change((runs[each.run].leases[name] for each in together(standing) for name in each.names), 1)
    return seats.fits()


def _lies_in(state: State, pool: Pool | None, reach: int, lease: Lease) -> bool:
    """Whether a lease lies in a pool, on nodes that the claim's money reaches."""
    node = state.capacity.nodes[lease.node]
    return node.bit & reach != 0 and node.domain is not None and node.domain.pool is pool


def _width(planner: Planner, family: Family, victims: list[Victim]) -> int:
    """How wide the claim could start if `victims` were gone; 0 where it could not."""
    plan = _plan(planner, family, victims)
    return 0 if plan is None else plan.width


def _plan(planner: Planner, family: Family, victims: list[Victim]) -> Plan | None:
    """How the claim would start if `victims` were gone; None where it could not.

    It is paid with the money that there was while all of them were there: a lack of money is no reason to cut anybody.
    """
    state, now = planner.state, planner.now
    payers = {state.runs[each.run].leases[name].payer for each in victims for name in each.names}
    accounts = [state.account(payer.budget, payer.envelope) for payer in payers]
    withheld = {each.id: Withheld.of(each, now, state.config.commit_quantum) for each in accounts}
    mark = state.mark()
    for victim in victims:
        state.apply(now, LeasesClosed(run=victim.run, names=victim.names, reason=victim.reason))
    plan = Planner(state, family, planner.run, now, withheld).widest(planner.affordable())
    state.rollback(mark)
    return plan


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


class Trial(Gone):
    """Whether a claim would start as wide as it should: tried, not counted."""

    looks_max = 50

    def __init__(self, width_without: Callable[[list[Victim]], int], target: int) -> None:
        super().__init__()
        self._width_without = width_without
        self._target = target

    def fits(self) -> bool:
        """Whether it would if these were gone."""
        return self._width_without(self.victims()) >= self._target


# --- funded work, when a reservation is due --------------------------------------------------------------------------------


class PaidSeats(Seats):
    """Seats that count only where somebody pays for all of them: asked where money reaches some nodes only, and counting erred."""

    looks_max = 50

    def __init__(self, planner: Planner, family: Family) -> None:
        assert planner.pool is not None, "asked only where there is a pool"
        super().__init__(planner.state, planner.pool, planner.reach(), planner.least, planner.way)
        self._planner = planner
        self._family = family
        self._thought_away = Gone()

    def change(self, leases: Iterable[Lease], sign: int) -> None:
        """Take leases away, or put them back, and remember which."""
        going = list(leases)
        super().change(going, sign)
        self._thought_away.change(going, sign)

    def fits(self) -> bool:
        """Whether the need would fit and be paid for: counted, and then tried."""
        if not super().fits():
            return False
        return _width(self._planner, self._family, self._thought_away.victims()) > 0


class Choice(NamedTuple):
    """Whose work would go: what each group lacked, who stood in question, who was chosen, and the lottery if there was one."""

    short: tuple[Shortage, ...]
    conflict: list[Key]
    victims: list[Victim]
    lottery: Lottery | None


def _by_right(planner: Planner, rolls: Rolls, family: Family, beacon: str) -> Resolution | None:
    state, claim = planner.state, planner.run
    if planner.pool is None:
        return None
    seats = Seats(state, planner.pool, planner.reach(), planner.least, planner.way)
    found = choose(rolls, claim, seats, planner.now, beacon)
    plan = None if found is None else _plan(planner, family, found.victims)
    if found is not None and plan is None:
        found = choose(rolls, claim, PaidSeats(planner, family), planner.now, beacon)
        plan = None if found is None else _plan(planner, family, found.victims)
    if found is None or plan is None:
        return None
    if not found.short:  # It would fit somewhere, only not where its money reaches.
        found = found._replace(short=_in_place(plan, Seats(state, planner.pool, seats.mask, seats.need, planner.way)))
    record = _record(planner, found.short, found.conflict, found.victims, found.lottery)
    return Resolution(record, found.victims, planner.affordable())


def choose(rolls: Rolls, claim: RunState, seats: Seats, now: int, beacon: str) -> Choice | None:
    """Class by class, then by lot, until `seats` have room; then all that proves unneeded is given back. None: it is not enough."""
    short = _short(seats)
    bench = Bench(rolls.state, claim, seats)
    served, sortition = bench.without_draw(), None
    if not served:
        sortition = Sortition(rolls.state, claim, rolls.of(claim, bench.ended(), now, seats), now, beacon)
        for victim in sortition.drawn():
            bench.take(victim)
            served = bench.serves()
            if served:
                break
    if not served:
        return None
    chosen, conflict, lottery = bench.give_back(), list(bench.stood), None
    if sortition is not None:
        conflict += [token.run for token in sortition.tokens]
        lottery = sortition.record({each.run for each in chosen if each.whole})
    return Choice(short, conflict, chosen, lottery)


def _record(
    planner: Planner, short: tuple[Shortage, ...], standing: list[Key], chosen: list[Victim], lottery: Lottery | None
) -> OutcomeRecorded:
    return record_of(planner.state, planner.run, Choice(short, standing, chosen, lottery), planner.now)


def record_of(state: State, claim: RunState, found: Choice, now: int, by_hand: ByHand | None = None) -> OutcomeRecorded:
    """The record of a resolution; where it was asked for by hand there is no run that claims."""
    outcome = OutcomeSpec(
        claim=RunRef.of(claim.key) if by_hand is None else None,
        by_hand=by_hand,
        reservation=claim.reservation,
        at=now,
        scope=Scope.of(claim.spec),
        deficit_gpus=sum(each.gpus for each in found.short),
        deficits=found.short,
        conflict_set=tuple(dict.fromkeys(found.conflict)),
        lottery=found.lottery,
        actions=tuple(
            Cut(run=each.run, leases=each.names, reason=each.reason, gpus=each.gpus) for each in found.victims
        ),
        previous=state.last_outcome,
    )
    return OutcomeRecorded(name=f"outcome-{state.outcomes + 1}", outcome=outcome)
