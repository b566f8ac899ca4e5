"""Change: the auditor's questions when the leases of a running run change: swaps, shrinking, growth, tenants on spares.

What an entry closed is remembered until the entry is over, so that each lease that takes over can be held against the one that
was lost and the spare that made room, and each group that shrank can be looked at when all is done.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlease.ledger.state import events as ev
from fairlease.model.lease import Role
from fairlease.model.node import matches
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason
from fairlease.sim.auditor.bookkeeper import AuditedRun, Held
from fairlease.sim.auditor.facts import AuditFacts, Fault


def closing_faults(
    seen: AuditFacts, run: AuditedRun, reason: Reason, going: list[Held], *, forced: bool
) -> Iterator[Fault]:
    """Who may close for what; `forced`: a resolution named these leases."""
    if reason is Reason.Swap:
        ranks = sorted(each.group for each in going if each.role is not Role.SPARE)
        spares = sorted(each.group for each in going if each.role is Role.SPARE)
        if ranks and ranks != spares:
            yield "swap", f"{run.key} closed ranks for a swap, and not a spare of their group for each"
    if reason is Reason.Shrink:
        caused = seen.moment.lost.get(run.key) or run.key in seen.moment.resized or forced
        if run.spec.malleable is None or not caused:
            yield "shrink", f"{run.key} shrank without a cause"
    if reason is Reason.ReclaimedBySpare:
        vacated = [each for leases in seen.moment.vacated.values() for each in leases]
        if run.graceful:  # then the spare is open until its tenant has left
            vacated += [each for other in seen.runs.values() for each in other.open if each.role is Role.SPARE]
        vacant = {(each.node, slot) for each in vacated for slot in each.slots}
        guests = [each for each in going if each.role is Role.BORROWED]
        if not any((each.node, slot) in vacant for each in guests for slot in each.slots):
            yield "tenant", f"{run.key} gave way to a spare that nobody needed"


def swap_faults(seen: AuditFacts, run: AuditedRun, opened: list[Held]) -> Iterator[Fault]:
    """Each lease takes over for one that was lost, on the slots of a spare of its group, with its rank and payer.

    In a drill the spare takes the place of the rank; then the two may have changed payers, as they have changed places.
    """
    lost, vacated = seen.moment.lost.get(run.key, []), seen.moment.vacated.get(run.key, [])
    drilled = list(seen.moment.drilled.get(run.key, []))
    closed = [*drilled, *vacated]
    if drilled and any(lease.payer not in [each.payer for each in closed] for lease in opened):
        yield "swap", f"{run.key} was drilled with other money"
    for lease in opened:
        if lease.role is Role.SPARE:
            left = (lease.node, lease.slots, lease.group)
            if left not in [(each.node, each.slots, each.group) for each in drilled]:
                yield "swap", f"{lease.name} is a spare where no rank of its group was"
            continue
        before = next((each for each in lost if (each.rank, each.group) == (lease.rank, lease.group)), None)
        spare = next((each for each in vacated if (each.node, each.slots) == (lease.node, lease.slots)), None)
        if before is None or spare is None or spare.group != lease.group:
            yield "swap", f"{lease.name} takes over for no lost rank, or not on a spare of its group"
            continue
        lost.remove(before)
        vacated.remove(spare)
        terms = seen.books.terms(before.payer.budget, before.payer.envelope)
        node = seen.nodes[lease.node]
        right = before.payer if terms is None or matches(node.labels, terms.selector) else spare.payer
        if lease.payer != right and before not in drilled:
            yield "swap", f"{lease.name} is paid by {lease.payer.envelope}, not by {right.envelope}"
        if lease.node in seen.failed or not node.ready or node.fenced:
            yield "swap", f"{lease.name} takes over on {lease.node}, which is not healthy"


def growth_faults(seen: AuditFacts, run: AuditedRun, opened: list[Held]) -> Iterator[Fault]:
    """A run grows by steps, after its cooldown, on covered money, to what is desired at most."""
    elastic = run.spec.malleable
    if elastic is None:
        yield "growth", f"{run.key} is rigid and grew"
        return
    if seen.at - run.changed < seen.config.grow_cooldown:
        yield "growth", f"{run.key} grew {seen.at - run.changed} ms after its last change"
    if any(unit[0] == run.key for unit in seen.overdrawn):
        yield "growth", f"{run.key} is overdrawn and grew"
    if run.leaving or run.awaited:
        yield "growth", f"{run.key} grew while a part of it was leaving, or waited for a spare"
    width = sum(each.gpus for each in run.open if each.role is not Role.SPARE)
    step = sum(each.gpus for each in opened if each.role is not Role.SPARE)
    if width > desired_of(run.spec) or step > elastic.step_gpus:
        yield "growth", f"{run.key} grew by {step} to {width}"
    if any(each.role is Role.BORROWED for each in opened):
        yield "growth", f"{run.key} grew onto spares"


def tenant_faults(seen: AuditFacts, run: AuditedRun, opened: list[Held]) -> Iterator[Fault]:
    """Only opportunistic work borrows, and each of its pods the slots of one spare."""
    guests = [each for each in opened if each.role is Role.BORROWED]
    if guests and not run.spec.opportunistic:
        yield "tenant", f"{run.key} is not opportunistic and borrows"
    spares = (
        [lease for other in seen.runs.values() for lease in other.open if lease.role is Role.SPARE] if guests else []
    )
    for lease in guests:
        if not any(each.node == lease.node and set(lease.slots) <= set(each.slots) for each in spares):
            yield "tenant", f"{lease.name} lies on no spare"


def whole_faults(seen: AuditFacts) -> Iterator[Fault]:
    """When an entry is over: groups that shrank are gone, spares that closed for a swap were used, widths are noted."""
    for key, groups in seen.moment.shrunk.items():
        left = {each.group for each in seen.runs[key].open if each.serial < seen.moment.leases}
        if groups & left:  # What grew since is another group under that number.
            yield "shrink", f"{key} lost parts of groups {sorted(groups & left)}"
    for key, unused in seen.moment.vacated.items():
        if unused:
            yield "swap", f"{key} closed {[each.name for each in unused]} for a swap that was none"
    for run in seen.runs.values():
        width = run.active_gpus
        if width != run.width:
            run.width, run.changed, run.stalled = width, seen.at, seen.moment.told.get(run.key)


def idle_faults(seen: AuditFacts, now: int) -> Iterator[Fault]:
    """A run that is narrower than desired grows, or was told why it does not, as soon as its cooldown is over."""
    for run in seen.runs.values():
        elastic = run.spec.malleable
        if elastic is None or run.phase is not Phase.RUNNING or run.width + elastic.step_gpus > desired_of(run.spec):
            continue
        if run.leaving or run.awaited:
            continue
        if now >= max(run.changed + seen.config.grow_cooldown, run.rests_until or 0) and run.stalled is None:
            yield "growth", f"{run.key} is {run.width} GPUs wide since {run.changed} and was not told why"


def desired_of(spec: RunSpec) -> int:
    """The width that a run would like to have."""
    elastic = spec.malleable
    if elastic is None:
        return spec.resources.total_gpus
    return elastic.max_total_gpus if elastic.desired_total_gpus is None else elastic.desired_total_gpus


def grid_of(spec: RunSpec, *, start: bool) -> range:
    """The widths at which a run may start, or run."""
    total, elastic = spec.resources.total_gpus, spec.malleable
    if elastic is None:
        return range(total, total + 1)
    most = min(total, desired_of(spec)) if start else elastic.max_total_gpus
    return range(elastic.min_total_gpus, most + 1, elastic.step_gpus)


def told_faults(seen: AuditFacts, run: AuditedRun, event: ev.GrowthDeferred) -> Iterator[Fault]:
    """Why a run does not grow is told to those that could."""
    if run.spec.malleable is None or run.phase is not Phase.RUNNING:
        yield "growth", f"{run.key} cannot grow and was told {event.reason.value}"
    run.stalled = seen.moment.told[run.key] = event.reason
