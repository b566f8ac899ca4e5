"""Victims: what can be preempted, class by class, in the order in which it goes (SEMANTICS §7).

Only what is in scope: a run that has a lease where the claim could use its GPUs. Within a class the youngest work goes first.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.preempt.shrink import shed, steps
from fairlease.model.lease import Fund, Role
from fairlease.model.record import Key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fairlease.engine.place.fit_count import FitCount
    from fairlease.engine.preempt.shrink import Helps
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease

NO_GROUP = -1


class Victim(NamedTuple):
    """Leases that go together, and whether that ends the attempt. `groups` go with it; a spare belongs to `group`.

    While victims are selected, what went before with another of the same run is not among the leases.
    """

    run: Key
    leases: tuple[Lease, ...]
    reason: Reason
    whole: bool = False
    groups: frozenset[int] = frozenset()
    group: int = NO_GROUP
    seed: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leases, in the order of opening."""
        return tuple(lease.name for lease in sorted(self.leases, key=lambda lease: lease.serial))

    @property
    def gpus(self) -> int:
        """The GPUs of the leases."""
        return sum(lease.gpus for lease in self.leases)


def in_scope(fit: FitCount, among: Mapping[Key, RunState]) -> list[RunState]:
    """Those of some runs that have a lease the claim could use, found from whichever side is shorter: the runs, or the nodes."""
    if len(among) <= fit.mask.bit_count():
        nodes, whole, usable = fit.nodes, fit.domains, fit.usable
        return [
            run
            for run in among.values()
            if any(whole.get(nodes[lease.node].domain) or usable(lease) for lease in run.leases.values())
        ]
    keys: dict[Key, None] = {}
    for node in fit.nodes_in_scope():
        keys.update(dict.fromkeys([lease.run for lease in node.leases.values()]))
    return [among[key] for key in keys if key in among]


def youngest_first(runs: Iterable[RunState]) -> list[RunState]:
    """The order in which work of one class goes."""
    by_order = sorted(runs, key=attrgetter("order"), reverse=True)
    return sorted(by_order, key=attrgetter("started_at"), reverse=True)


def whole(run: RunState, reason: Reason) -> Victim:
    """A run that goes with all it holds."""
    return Victim(run.key, tuple(run.leases.values()), reason, True)  # noqa: FBT003 - one call for each run in scope


def of_groups(run: RunState, going: frozenset[int], reason: Reason) -> Victim:
    """Groups of a run that lives on, with their spares."""
    leases = tuple(lease for lease in run.leases.values() if lease.group in going)
    return Victim(run.key, leases, reason, groups=going)


def unclaimed(state: State, fit: FitCount) -> list[RunState]:
    """Work in scope that has no claim to its GPUs, in the order in which it goes: opportunistic, then overdrawn."""
    owing = {Key(unit[0]): state.runs[Key(unit[0])] for unit in state.overdrawn}
    funded = {key: run for key, run in owing.items() if key not in state.opportunistic}
    found = [*youngest_first(in_scope(fit, state.opportunistic)), *youngest_first(in_scope(fit, funded))]
    return [run for run in found if run.spec.resources.gpu_type == fit.pool.flavor]


def owing_groups(run: RunState) -> set[int]:
    """The groups of a run that are overdrawn."""
    return {unit[3] for unit in run.overdrawn}


def of_unclaimed(run: RunState, helps: Helps, owing: set[int] | None = None) -> list[Victim]:
    """What goes of such a run, where these groups are `owing` (those that are overdrawn now): a rigid one whole.

    An elastic one goes by groups, and whole where that is not enough (opportunistic), or where it cannot do without all of
    those that are overdrawn, the highest first. Groups that do not help go only with the whole, or to fill a step up.
    """
    reason = Reason.ReclaimOpportunistic if run.spec.opportunistic else Reason.ReclaimOverdrawn
    if run.spec.malleable is None:
        return [whole(run, reason)]
    if run.spec.opportunistic:
        return [*(of_groups(run, going, reason) for going in steps(run, helps)), whole(run, reason)]
    helpful = {lease.group for lease in run.leases.values() if helps(lease)}
    found: list[Victim] = []
    gone: frozenset[int] = frozenset()
    owing = owing_groups(run) if owing is None else owing
    for group in sorted(owing, key=lambda group: (group not in helpful, -group)):
        if group in gone:
            continue
        going = shed(run, group, owing, gone)
        if going is None:
            return [*found, whole(run, reason)]
        gone |= going
        if group in helpful:
            found.append(of_groups(run, going, reason))
    return found


def drained(run: RunState, group: int) -> Victim:
    """What goes when the grace of an overdrawn group is over: a rigid run whole, of an elastic one the group if it can."""
    going = shed(run, group, owing_groups(run))
    reason = Reason.BudgetExhausted
    return whole(run, reason) if going is None else of_groups(run, going, reason)


def spares(funded: Iterable[RunState]) -> Iterator[Victim]:
    """Spares, one by one; the active pods stay."""
    for run in youngest_first(run for run in funded if run.spare_gpus):
        for lease in reversed(run.held):
            if lease.role is Role.SPARE and lease.name not in run.awaited:
                yield Victim(run.key, (lease,), Reason.DropSpare, group=lease.group)


def widths(malleable: list[RunState], gone: Mapping[Key, frozenset[int]], helps: Helps) -> list[Victim]:
    """Steps of malleable runs above their minimum: borrowed-funded first, then the highest index.

    Groups that are `gone` already, because they were overdrawn, are neither given up again nor left to live on.
    """
    found = []
    for age, run in enumerate(malleable):
        borrowed = {lease.group for lease in run.leases.values() if lease.payer.fund is Fund.BORROWED}
        before = (False, 0)
        for going in steps(run, helps, gone.get(run.key, frozenset())):
            own = min((group not in borrowed, -group) for group in going)
            before = max(before, own) if before != (False, 0) else own
            found.append((before, age, of_groups(run, going, Reason.Shrink)))
    found.sort(key=lambda each: each[:2])
    return [victim for _, _, victim in found]
