"""The audit's question at every admission: whether each payer's terms allowed it, counting all that its money held.

Each function yields a sentence for every term that did not hold, as of just after the leases opened (SEMANTICS §3, §4).
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlease.ledger.books import Account, Node, Run
from fairlease.ledger.tally import Tally
from fairlease.model.budget import Envelope, Sharing
from fairlease.model.node import matches


def misplaced(account: Account, node: Node, flavor_label: str) -> Iterator[str]:
    """An envelope pays for GPUs of its flavor, where its selector matches, and nowhere else."""
    terms = account.terms
    if terms is None:
        return
    flavor = node.labels.get(flavor_label)
    if flavor != terms.flavor:
        yield f"{_name(account)} pays for {terms.flavor}, but node {node.name} is {flavor}"
    if not matches(node.labels, terms.selector):
        yield f"the selector of {_name(account)} does not match node {node.name}"


def exceeded(account: Account, now: int, quantum: int, *, counted: bool) -> Iterator[str]:
    """Window, concurrency, hours and aggregate caps. Opportunistic work is not `counted`: it takes no concurrency."""
    terms = account.terms
    if terms is None:
        return
    if not terms.opens_by(now):
        yield f"the window of {_name(account)} was not open"
    if counted and account.all.held > terms.concurrency:
        yield f"{_name(account)} holds {account.all.held} GPUs; its concurrency is {terms.concurrency}"
    if terms.max_gpu_hours is not None:
        yield from _over(f"{_name(account)} has", _hours(account.all, terms, now, quantum), terms.max_gpu_hours)
    for cap, members in account.caps:
        name = f"aggregate cap {cap.name} of {account.budget}"
        if counted and cap.max_concurrency is not None:
            held = sum(member.all.held for member in members)
            if held > cap.max_concurrency:
                yield f"{name} holds {held} GPUs; its bound is {cap.max_concurrency}"
        if cap.max_gpu_hours is not None:
            hours = sum(_hours(member.all, member.terms, now, quantum) for member in members)
            yield from _over(f"{name} has", hours, cap.max_gpu_hours)


def lent_too_much(account: Account, now: int, quantum: int, *, counted: bool) -> Iterator[str]:
    """The lender's side: it must lend at all, and no more than its sub-caps."""
    terms = account.terms
    if terms is None:
        return
    lending = terms.lending
    if not lending.allow:
        yield f"{_name(account)} does not lend"
    if counted and lending.max_concurrency is not None and account.lent.held > lending.max_concurrency:
        yield f"{_name(account)} lends {account.lent.held} GPUs; it lends {lending.max_concurrency} at most"
    if lending.max_gpu_hours is not None:
        yield from _over(f"{_name(account)} has lent", _hours(account.lent, terms, now, quantum), lending.max_gpu_hours)


def borrowed_too_much(run: Run) -> Iterator[str]:
    """The borrower's side: it must be willing to borrow, within its own bound."""
    funding = run.funding
    if not funding.allow_borrow:
        yield "its leases are paid with borrowed money, which its spec does not allow"
    if funding.max_borrow_gpus is not None and run.borrowed > funding.max_borrow_gpus:
        yield f"it borrows {run.borrowed} GPUs; its spec allows {funding.max_borrow_gpus}"


def shared_in_vain(account: Account) -> Iterator[str]:
    """The family may spend only what its owner shares."""
    if account.terms is not None and account.terms.sharing is Sharing.NONE:
        yield f"{_name(account)} is not shared with the family"


def _hours(tally: Tally, terms: Envelope | None, now: int, quantum: int) -> int:
    """GPU-ms consumed inside the window, and those committed ahead."""
    start, end = (None, None) if terms is None else (terms.start, terms.end)
    return tally.spent_inside(start, end, now) + tally.promised(now, quantum)


def _over(subject: str, gpu_ms: int, cap: int) -> Iterator[str]:
    if gpu_ms > cap:
        yield f"{subject} {gpu_ms} GPU-ms consumed and committed; the cap is {cap}"


def _name(account: Account) -> str:
    return f"envelope {account.envelope} of {account.budget}"
