"""Stillness: the auditor's questions when every timer up to now has fired and nothing is left to be decided.

Who waits has a cause that is true; what was to end has ended; who follows others follows them; nodes that count as failed have
failed by an honest signal; and what is overdrawn is so because nothing covers it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlease.model.record import Key, split
from fairlease.model.run import Phase
from fairlease.reason import Reason
from fairlease.sim.auditor.bookkeeper import AuditedRun
from fairlease.sim.auditor.facts import AuditFacts, Fault


def faults(seen: AuditFacts) -> Iterator[Fault]:
    """All that should not be so when everything has settled."""
    yield from _money(seen)
    yield from _nodes(seen)
    for message in seen.promises.overdue(seen.at):
        yield "reservation", message
    for run in seen.runs.values():
        if run.rests_until is not None and seen.at < run.rests_until:
            continue  # left alone after a fault, or resting after a failure: nothing is due before that is over
        if run.phase is Phase.RUNNING and run.deadline is not None and run.deadline <= seen.at:
            yield "time limit", f"{run.key} runs past {run.deadline}"
        if not run.over:
            for message in seen.promises.amiss(run, opens=_opens(seen, run)):
                yield "reservation", message
        if run.phase is Phase.PENDING:
            yield from _waiting(seen, run)


def _opens(seen: AuditFacts, run: AuditedRun) -> bool:
    """Whether a window opens later on money of the run's flavor."""
    envelopes = (each for spec in seen.books.budgets.values() for each in spec.envelopes)
    flavor = run.spec.resources.gpu_type
    return any(each.flavor == flavor and each.start is not None and each.start > seen.at for each in envelopes)


def _money(seen: AuditFacts) -> Iterator[Fault]:
    expected = seen.books.uncovered(seen.at)
    for unit in sorted(expected ^ set(seen.overdrawn)):
        yield "overdrawn", f"{unit} {'is' if unit in seen.overdrawn else 'is not'} overdrawn in the ledger"
    for unit, ends in seen.overdrawn.items():
        rests = seen.runs[Key(unit[0])].rests_until
        if ends is not None and max(ends, rests or 0) <= seen.at:
            yield "drain", f"{unit} was to end at {ends}"


def _nodes(seen: AuditFacts) -> Iterator[Fault]:
    for name, node in seen.nodes.items():
        since = seen.silent.get(name)
        silent = since is not None and node.pods_dead and since + seen.config.node_debounce <= seen.at
        if (node.fenced or silent) and name not in seen.failed:
            yield "node", f"{name} is fenced, or silent since {since}, and does not count as failed"


def _waiting(seen: AuditFacts, run: AuditedRun) -> Iterator[Fault]:
    latest = run.spec.runtime.latest_start
    if run.attempt == 1 and latest is not None and latest <= seen.at:
        yield "latest start", f"{run.key} still waits after {latest}"
    if run.rests_until is not None and run.rests_until <= seen.at:
        yield "backoff", f"{run.key} rests beyond {run.rests_until}"
    above = [seen.runs.get(each) for each in upstream(run)]
    if any(each is not None and each.phase is Phase.FAILED for each in above):
        yield "follow", f"{run.key} waits for a run that failed"
    behind = any(each is None or not each.over for each in above)
    if behind != (run.reason is Reason.Following) and run.rests_until is None:
        yield "follow", f"{run.key} is told {run.reason.value} and follows {list(map(str, upstream(run)))}"
    if run.reason is Reason.NoRoom and seen.config.reservations and not run.spec.opportunistic:
        mine = [
            node
            for node in seen.nodes.values()
            if node.labels.get(seen.config.labels.flavor) == run.spec.resources.gpu_type
        ]
        if all(seen.usable(node) for node in mine):
            yield "reservation", f"{run.key} waits for room and has no date"


def upstream(run: AuditedRun) -> list[Key]:
    """The runs that a run follows; a name without a namespace is one of its own."""
    home = split(run.key)[0]
    return [Key(name if "/" in name else f"{home}/{name}") for name in run.spec.follow.after]
