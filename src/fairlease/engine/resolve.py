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

from fairlease.engine.pack import need_of
from fairlease.engine.plan import Planner
from fairlease.engine.seats import Seats
from fairlease.engine.sortition import Rolls, Sortition
from fairlease.engine.victims import Victim, free_riders, funded, spares, widths_of
from fairlease.ledger.event import LeasesClosed, OutcomeRecorded
from fairlease.model.reservation import Cut, OutcomeSpec, RunRef, Scope, Shortage
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlease.engine.family import Family
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
    state, claim, now = planner.state, planner.run, planner.now
    reach, funded = planner.reach(), planner.affordable()
    standing = [victim for victim in free_riders(state, claim) if _touches(state, victim, reach)]
    if not standing or not _could_serve(planner, standing):
        return None
    width_without = partial(_width, state, family, claim, now, funded)
    target = width_without(_together(standing))
    if target <= width:
        return None
    wanted = range(1, len(standing) + 1)
    count = wanted[bisect_left(wanted, target, key=lambda first: width_without(_together(standing[:first])))]
    chosen = _together(standing[:count])
    need = need_of(claim.spec, target)
    spare_gpus = state.capacity.pools[claim.spec.resources.gpu_type].idle - need.pods * need.size
    for victim in reversed(chosen[:-1]):
        rest = [each for each in chosen if each is not victim]
        enough = sum(each.gpus for each in rest) + spare_gpus >= 0
        if enough and width_without(rest) >= target:
            chosen = rest
    assert planner.pool is not None, "whoever gives way lies in it"
    short = _short(Seats(state, planner.pool, reach, need, planner.way))
    return Resolution(_record(planner, short, [each.run for each in standing], chosen, None), chosen, funded)


def _short(seats: Seats) -> tuple[Shortage, ...]:
    """What each group lacks."""
    return tuple(Shortage(group=group, gpus=gpus) for group, gpus in seats.deficits())


def _could_serve(planner: Planner, standing: list[Victim]) -> bool:
    """Whether the claim's narrowest width would fit if all of them were gone, by counting: where it says no, no plan says yes.

    While work without a claim runs, all who wait are tried again and again, mostly in vain: a trial for each would be dear.
    """
    if planner.pool is None:
        return False
    runs = planner.state.runs
    seats = Seats(planner.state, planner.pool, planner.payable(), planner.least, planner.way)
    seats.change((runs[each.run].leases[name] for each in _together(standing) for name in each.names), 1)
    return seats.fits()


def _together(victims: list[Victim]) -> list[Victim]:
    """Victims that can go at once: a run that goes whole goes once."""
    whole = {victim.run for victim in victims if victim.whole}
    return [victim for victim in victims if victim.whole or victim.run not in whole]


def _touches(state: State, victim: Victim, reach: int) -> bool:
    run = state.runs[victim.run]
    pool = state.capacity.pools[run.spec.resources.gpu_type]
    nodes = (state.capacity.nodes[run.leases[name].node] for name in victim.names)
    return any(node.bit & reach and node.domain is not None and node.domain.pool is pool for node in nodes)


def _width(state: State, family: Family, claim: RunState, now: int, funded: int, victims: list[Victim]) -> int:
    """How wide the claim could start if `victims` were gone; 0 where it could not.

    No wider than it was `funded` with all of them there: a lack of money is no reason to cut anybody.
    """
    mark = state.mark()
    for victim in victims:
        state.apply(now, LeasesClosed(run=victim.run, names=victim.names, reason=victim.reason))
    plan = Planner(state, family, claim, now).widest(funded)
    state.rollback(mark)
    return 0 if plan is None else plan.width


# --- funded work, when a reservation is due --------------------------------------------------------------------------------


class Bench:
    """Victims as they are taken and given back. A lease that went with one victim does not go again with another."""

    def __init__(self, state: State, seats: Seats) -> None:
        self.state = state
        self.seats = seats
        self.taken: list[tuple[Victim, list[Lease]]] = []
        self.gone: set[tuple[str, str]] = set()

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
        return True

    def groups(self) -> dict[Key, frozenset[int]]:
        """The groups that have been taken, by run."""
        found: dict[Key, frozenset[int]] = {}
        for victim, _ in self.taken:
            found[victim.run] = found.get(victim.run, frozenset()) | victim.groups
        return found

    def ended(self) -> frozenset[Key]:
        """The runs that have been taken whole: who goes already is not drawn as well."""
        return frozenset(victim.run for victim, _ in self.taken if victim.whole)

    def give_back(self) -> list[Victim]:
        """Last first, every victim that proves unneeded and whose run, or group, lives on; returns those that stay."""
        kept: list[Victim] = []
        for victim, leases in reversed(self.taken):
            bound = any(victim.run == each.run and (each.whole or victim.group in each.groups) for each in kept)
            if not bound:
                self.seats.change(leases, -1)
                if self.seats.fits():
                    continue
                self.seats.change(leases, 1)
            kept.append(victim)
        return _together(kept[::-1])


class PaidSeats(Seats):
    """Seats that count only where somebody pays for all of them: asked where money reaches some nodes only, and counting erred."""

    def __init__(self, planner: Planner, family: Family) -> None:
        assert planner.pool is not None, "asked only where there is a pool"
        super().__init__(planner.state, planner.pool, planner.reach(), planner.least, planner.way)
        self._planner = planner
        self._family = family
        self._leases: dict[Key, set[str]] = {}

    def change(self, leases: Iterable[Lease], sign: int) -> None:
        """Take leases away, or put them back, and remember which."""
        going = list(leases)
        super().change(going, sign)
        for lease in going:
            names = self._leases.setdefault(lease.run, set())
            names.add(lease.name) if sign > 0 else names.discard(lease.name)

    def fits(self) -> bool:
        """Whether the need would fit and be paid for: counted, and then tried."""
        if not super().fits():
            return False
        gone = [(run, tuple(sorted(names))) for run, names in self._leases.items() if names]
        victims = [Victim(run, names, Reason.Shrink, 0, whole=False) for run, names in gone]
        return _serves(self._planner, self._family, victims)


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
    if found is not None and not _serves(planner, family, found.victims):
        found = choose(rolls, claim, PaidSeats(planner, family), planner.now, beacon)
    if found is None:
        return None
    record = _record(planner, found.short, found.conflict, found.victims, found.lottery)
    return Resolution(record, found.victims, planner.affordable())


def choose(rolls: Rolls, claim: RunState, seats: Seats, now: int, beacon: str) -> Choice | None:
    """Class by class, then by lot, until `seats` have room; then all that proves unneeded is given back. None: it is not enough."""
    short = _short(seats)
    bench = Bench(rolls.state, seats)
    conflict: list[Key] = []
    for victim in in_order(claim, bench):
        if seats.fits():
            break
        if bench.take(victim):
            conflict.append(victim.run)
    sortition = None
    if not seats.fits():
        sortition = Sortition(rolls.state, claim, rolls.of(claim, bench.ended(), now, seats), now, beacon)
        for victim in sortition.drawn():
            bench.take(victim)
            if seats.fits():
                break
        conflict += [token.run for token in sortition.tokens]
    if not seats.fits():
        return None
    chosen = bench.give_back()
    lottery = None if sortition is None else sortition.record({each.run for each in chosen if each.whole})
    return Choice(short, conflict, chosen, lottery)


def in_order(claim: RunState, bench: Bench) -> Iterator[Victim]:
    """Everyone who gives way without a draw, class by class; what a class leaves of a run is what the next one finds."""
    yield from free_riders(bench.state, claim)
    standing = funded(bench.state, claim)
    yield from spares(standing)
    yield from widths_of(standing, bench.groups())


def _serves(planner: Planner, family: Family, victims: list[Victim]) -> bool:
    return _width(planner.state, family, planner.run, planner.now, planner.affordable(), victims) > 0


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
