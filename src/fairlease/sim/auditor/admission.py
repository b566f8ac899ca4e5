"""Admission: what must be true of a run's leases at the moment they open; the auditor's questions to every start.

Pods whole, on nodes that may be used, groups in one domain each, as many of each kind as asked; payers that may pay for this run,
there, now; and no cap exceeded, the new leases included.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlease.ledger.state import events as ev
from fairlease.model.budget import Envelope
from fairlease.model.lease import Fund, Payer, Role
from fairlease.model.node import matches
from fairlease.model.record import Key
from fairlease.model.run import LocationPolicy
from fairlease.reason import Reason
from fairlease.sim.auditor.bookkeeper import AuditedRun, Held, is_open, lends
from fairlease.sim.auditor.facts import AuditFacts, Fault
from fairlease.sim.auditor.width_changes import grid_of


def faults(seen: AuditFacts, run: AuditedRun, event: ev.LeasesOpened, opened: list[Held]) -> Iterator[Fault]:
    """All that is wrong with a start, or with growth."""
    payers = event.payers
    for lease in opened:
        yield from _lease_faults(seen, run, lease)
    yield from _domain_faults(seen, run, opened)
    if event.reason is Reason.Start:
        yield from _group_faults(run, opened)
    for payer in payers:
        yield from _payer_faults(seen, run, payer, [each for each in opened if each.payer == payer])
    limit = run.spec.funding.max_borrow_gpus
    borrowed = sum(each.gpus for each in run.open if each.payer.fund is Fund.BORROWED)
    if limit is not None and borrowed > limit:
        yield "borrow limit", f"{run.key} borrows {borrowed} of {limit}"
    for budget in sorted({payer.budget for payer in payers}):
        yield from _cap_faults(seen, run, budget, opened)


def _lease_faults(seen: AuditFacts, run: AuditedRun, lease: Held) -> Iterator[Fault]:
    """A pod lies whole on one node that may be used, of its flavor, inside a required location."""
    spec, node = run.spec, seen.nodes[lease.node]
    if not seen.usable(node):
        yield "node", f"{lease.name} opens on {node.name}, which is not usable"
    if node.labels.get(seen.config.labels.flavor) != spec.resources.gpu_type:
        yield "flavor", f"{lease.name} lies on {node.name}, which has another flavor"
    if len(set(lease.slots)) != spec.pod_gpus or not all(0 <= slot < node.gpus for slot in lease.slots):
        yield "pod", f"{lease.name} holds slots {lease.slots} of {node.name}"
    required = spec.locality.location_policy is LocationPolicy.REQUIRE
    if required and not matches(node.labels, spec.locality.location):
        yield "location", f"{lease.name} lies on {node.name}, outside the location"


def _domain_faults(seen: AuditFacts, run: AuditedRun, opened: list[Held]) -> Iterator[Fault]:
    """What opens lies in one domain with the rest of its group, or of the run; labels may have been changed under the rest."""
    new = {each.name for each in opened}
    apart = run.spec.locality.allow_cross_group_spread
    for group in sorted({each.group for each in opened}):
        mine = [each for each in opened if each.group == group]
        before = [each for each in run.open if each.name not in new and (each.group == group or not apart)]
        found = {_domain(seen, each) for each in (mine if apart else opened)}
        if len(found) != 1 or (before and not found <= {_domain(seen, each) for each in before}):
            yield "domain", f"group {group} of {run.key} opens in {sorted(found)}"


def _domain(seen: AuditFacts, lease: Held) -> tuple[str, ...]:
    found, labels = seen.nodes[lease.node].labels, seen.config.labels
    return tuple(found.get(each, "") for each in (labels.region, labels.cluster, labels.domain))


def _group_faults(run: AuditedRun, opened: list[Held]) -> Iterator[Fault]:
    """As many pods and spares in each group as asked, on a width at which the run may start."""
    spec = run.spec
    size = spec.locality.group_gpus or spec.pod_gpus
    width = sum(each.gpus for each in opened if each.role is not Role.SPARE)
    if width not in grid_of(spec, start=True):
        yield "gang", f"{run.key} starts {width} GPUs wide"
    wanted = 0 if spec.opportunistic else spec.spares_per_group
    for group in range(-(-width // size)):
        active = sum(each.gpus for each in opened if each.group == group and each.role is not Role.SPARE)
        spares = sum(each.gpus for each in opened if each.group == group and each.role is Role.SPARE)
        if active != min(size, width - group * size):
            yield "group", f"group {group} of {run.key} has {active} GPUs"
        if spares != wanted:
            yield "spares", f"group {group} of {run.key} has {spares} spare GPUs"


def _payer_faults(seen: AuditFacts, run: AuditedRun, payer: Payer, leases: list[Held]) -> Iterator[Fault]:
    """An envelope may pay for this run, on these nodes, now, in this relation."""
    terms = seen.books.terms(payer.budget, payer.envelope)
    where = f"{payer.budget}/{payer.envelope} for {run.key}"
    if terms is None:
        yield "payer", f"{where} does not exist"
        return
    relation = seen.books.relation(run.spec, payer.budget, terms)
    if relation is not payer.fund:
        yield "payer", f"{where} pays as {payer.fund.value}, not as {relation}"
    if payer.owner != seen.books.budgets[payer.budget].owner:
        yield "payer", f"{where}: {payer.owner} does not own it"
    if terms.flavor != run.spec.resources.gpu_type:
        yield "payer", f"{where} has another flavor"
    if not is_open(terms, seen.at):
        yield "payer", f"{where} is closed"
    if payer.fund is Fund.BORROWED and not lends(terms, run.spec.owner):
        yield "payer", f"{where} does not lend"
    for lease in leases:
        if not matches(seen.nodes[lease.node].labels, terms.selector):
            yield "payer", f"{where} is spent on {lease.node}, where it may not be"


def _cap_faults(seen: AuditFacts, run: AuditedRun, budget: Key, opened: list[Held]) -> Iterator[Fault]:
    """No cap of a Budget that takes part is exceeded."""
    spec, now, books = seen.books.budgets[budget], seen.at, seen.books
    new = [each for each in opened if each.payer.budget == budget]
    for terms in spec.envelopes:
        mine = [each for each in new if each.payer.envelope == terms.name]
        if mine:
            yield from _envelope_faults(seen, run, budget, terms)
        if any(each.payer.fund is Fund.BORROWED for each in mine):
            yield from _lending_faults(seen, run, budget, terms)
    for cap in spec.aggregate_caps:
        if any(each.payer.envelope in cap.envelopes for each in new):
            used, bound = books.used(budget, *cap.envelopes), cap.max_concurrency
            if bound is not None and used > bound and not run.spec.opportunistic:
                yield "aggregate", f"{budget}#{cap.name}: {used} of {bound} GPUs"
            spent = books.consumed(now, budget, *cap.envelopes) + books.committed(now, budget, *cap.envelopes)
            if cap.max_gpu_hours is not None and spent > cap.max_gpu_hours:
                yield "aggregate", f"{budget}#{cap.name}: {spent} of {cap.max_gpu_hours} GPU-ms"


def _envelope_faults(seen: AuditFacts, run: AuditedRun, budget: Key, terms: Envelope) -> Iterator[Fault]:
    where, books = f"{budget}/{terms.name}", seen.books
    used = books.used(budget, terms.name)
    if used > terms.concurrency and not run.spec.opportunistic:
        yield "concurrency", f"{where}: {used} of {terms.concurrency} GPUs"
    spent = books.consumed(seen.at, budget, terms.name) + books.committed(seen.at, budget, terms.name)
    if terms.max_gpu_hours is not None and spent > terms.max_gpu_hours:
        yield "hours", f"{where}: {spent} of {terms.max_gpu_hours} GPU-ms"


def _lending_faults(seen: AuditFacts, run: AuditedRun, budget: Key, terms: Envelope) -> Iterator[Fault]:
    where, books, policy = f"{budget}/{terms.name}", seen.books, terms.lending
    lent, bound = books.used(budget, terms.name, lent=True), policy.max_concurrency
    if bound is not None and lent > bound and not run.spec.opportunistic:
        yield "lending", f"{where} lends {lent} of {bound} GPUs"
    hours = books.consumed(seen.at, budget, terms.name, lent=True) + books.committed(
        seen.at, budget, terms.name, lent=True
    )
    if policy.max_gpu_hours is not None and hours > policy.max_gpu_hours:
        yield "lending", f"{where} lends {hours} of {policy.max_gpu_hours} GPU-ms"
