"""Victims: what can be asked to give way, class by class, in the order in which it goes (SEMANTICS §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.preempt.shrink import shed, steps
from fairlease.model.lease import Fund, Role
from fairlease.model.record import Key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlease.engine.preempt.shrink import Helps
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease

NO_GROUP = -1


class Victim(NamedTuple):
    """Leases that go together, and whether that ends the attempt. `groups` go with it; a spare belongs to `group`."""

    run: Key
    names: tuple[str, ...]
    reason: Reason
    gpus: int
    whole: bool
    groups: frozenset[int] = frozenset()
    group: int = NO_GROUP
    seed: str | None = None


def free_riders(state: State, claim: RunState, helps: Helps) -> list[Victim]:
    """Work that has no claim to its GPUs, in the order in which it goes; within a class the youngest first.

    Of what may go in parts only those parts are told that the claim could use; all else has to be looked at by who asks.
    """
    flavor = claim.spec.resources.gpu_type
    riders = [run for run in state.opportunistic.values() if run.spec.resources.gpu_type == flavor]
    found = [victim for run in youngest_first(riders) for victim in _opportunistic(run, helps)]
    owing = {Key(unit[0]): state.runs[Key(unit[0])] for unit in state.overdrawn}
    for run in youngest_first(list(owing.values())):
        if run.spec.resources.gpu_type == flavor and run.key not in state.opportunistic:
            found.extend(_overdrawn(run, helps))
    return found


def youngest_first(runs: list[RunState]) -> list[RunState]:
    """The order in which work of one class goes."""
    return sorted(runs, key=lambda run: (-(run.started_at or 0), -run.order))


def whole(run: RunState, reason: Reason, seed: str | None = None) -> Victim:
    """A run that goes with all it holds."""
    names = tuple(lease.name for lease in run.held)
    gpus = sum(lease.gpus for lease in run.leases.values())
    return Victim(run.key, names, reason, gpus, whole=True, seed=seed)


def _opportunistic(run: RunState, helps: Helps) -> list[Victim]:
    """A rigid run goes whole; an elastic one by groups down to its minimum, and whole where that is not enough."""
    groups = [of_groups(run, going, Reason.ReclaimOpportunistic) for going in steps(run, helps)]
    return [*groups, whole(run, Reason.ReclaimOpportunistic)]


def _overdrawn(run: RunState, helps: Helps) -> list[Victim]:
    """A rigid run goes whole; an elastic one by overdrawn groups, the highest first, and whole where it cannot do without them all.

    Groups that help go before others, and those go only with the whole.
    """
    helpful = {lease.group for lease in run.leases.values() if helps(lease)}
    found: list[Victim] = []
    gone: frozenset[int] = frozenset()
    for group in sorted({unit[3] for unit in run.overdrawn}, key=lambda group: (group not in helpful, -group)):
        if group in gone:
            continue
        going = shed(run, group, gone)
        if going is None:
            return [*found, whole(run, Reason.ReclaimOverdrawn)]
        gone |= going
        if group in helpful:
            found.append(of_groups(run, going, Reason.ReclaimOverdrawn))
    return found


def of_groups(run: RunState, going: frozenset[int], reason: Reason, leases: Iterable[Lease] | None = None) -> Victim:
    """Groups of a run that lives on, with their spares, or with those of these `leases` that are theirs."""
    theirs = [lease for lease in (run.held if leases is None else leases) if lease.group in going]
    names = tuple(lease.name for lease in theirs)
    return Victim(run.key, names, reason, sum(lease.gpus for lease in theirs), whole=False, groups=going)


def funded(state: State, claim: RunState) -> list[RunState]:
    """Running work of the claim's flavor that has a claim of its own, save what displaced the claim in a draw before."""
    standing = state.claimants.get(claim.spec.resources.gpu_type, {})
    if not claim.displaced_by:
        return list(standing.values())
    return [run for key, run in standing.items() if key not in claim.displaced_by]


def spares(standing: list[RunState]) -> list[Victim]:
    """Spares, one by one, those of the youngest runs first; the active pods stay."""
    return [
        Victim(run.key, (lease.name,), Reason.DropSpare, lease.gpus, whole=False, group=lease.group)
        for run in youngest_first([run for run in standing if run.spare_gpus])
        for lease in reversed(run.held)
        if lease.role is Role.SPARE
    ]


def widths_of(standing: list[RunState], gone: Mapping[Key, frozenset[int]], helps: Helps) -> list[Victim]:
    """Steps of malleable runs above their minimum: borrowed-funded first, then the highest index, of the youngest run first.

    Groups that are `gone` already, because they were overdrawn, are neither given up again nor left to live on.
    """
    found = []
    runs = youngest_first([run for run in standing if run.spec.malleable is not None])
    for age, run in enumerate(runs):
        borrowed = {lease.group for lease in run.leases.values() if lease.payer.fund is Fund.BORROWED}
        before = (False, 0)
        for going in steps(run, helps, gone.get(run.key, frozenset())):
            own = min((group not in borrowed, -group) for group in going)
            before = max(before, own) if before != (False, 0) else own
            found.append((before, age, of_groups(run, going, Reason.Shrink)))
    found.sort(key=lambda each: each[:2])
    return [victim for _, _, victim in found]
