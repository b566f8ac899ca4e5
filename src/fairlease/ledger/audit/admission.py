"""The audit's question at every admission: whether each payer's terms allowed it, counting all that its money held.

Each function gives a sentence for every term that did not hold, as of just after the leases opened (SEMANTICS §3, §4).
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from fairlease.ledger.audit.accounts import AuditAccount, AuditNode, AuditRun
from fairlease.model.budget import AggregateCap, Sharing
from fairlease.model.node import matches


def misplaced(account: AuditAccount, node: AuditNode, flavor_label: str) -> list[str]:
    """An envelope pays for GPUs of its flavor, where its selector matches, and nowhere else."""
    terms, found = account.terms, []
    flavor = node.labels.get(flavor_label)
    if terms is not None and flavor != terms.flavor:
        found.append(f"{_name(account)} pays for {terms.flavor}, but node {node.name} is {flavor}")
    if terms is not None and not matches(node.labels, terms.selector):
        found.append(f"the selector of {_name(account)} does not match node {node.name}")
    return found


def within(account: AuditAccount, now: int, quantum: int, counted: bool) -> bool:  # noqa: FBT001 - called a million times
    """Whether `exceeded` has nothing to say, as it mostly has not: the same questions, where they are few."""
    books = account.all
    return (
        account.plain
        and not (counted and books.held > account.concurrency)
        and (account.hours is None or books.booked(now, quantum) <= account.hours)
    )


def exceeded(account: AuditAccount, now: int, quantum: int, counted: bool) -> list[str]:  # noqa: FBT001 - called a million times
    """Window, concurrency, hours and aggregate caps. Opportunistic work is not `counted`: it takes no concurrency."""
    terms, books, found = account.terms, account.all, []
    if terms is None:
        return []
    if account.windowed and not terms.opens_by(now):
        found.append(f"the window of {_name(account)} was not open")
    if counted and books.held > terms.concurrency:
        found.append(f"{_name(account)} holds {books.held} GPUs; its concurrency is {terms.concurrency}")
    if terms.max_gpu_hours is not None:
        hours = books.booked(now, quantum)
        if hours > terms.max_gpu_hours:
            found.append(f"{_name(account)} {_hours(hours, terms.max_gpu_hours)}")
    for cap, members in account.caps:
        found += _aggregate(cap, members, now, quantum, counted)
    return found


def _aggregate(cap: AggregateCap, members: list[AuditAccount], now: int, quantum: int, counted: bool) -> list[str]:  # noqa: FBT001 - as above
    name, found = f"aggregate cap {cap.name} of {members[0].budget}", []
    if counted and cap.max_concurrency is not None:
        held = sum(member.all.held for member in members)
        if held > cap.max_concurrency:
            found.append(f"{name}: {held} GPUs of {cap.max_concurrency}")
    if cap.max_gpu_hours is not None:
        hours = sum(member.all.booked(now, quantum) for member in members)
        if hours > cap.max_gpu_hours:
            found.append(f"{name} {_hours(hours, cap.max_gpu_hours)}")
    return found


def lent_too_much(account: AuditAccount, borrower: str, now: int, quantum: int, counted: bool) -> list[str]:  # noqa: FBT001 - as above
    """The lender's side: it must lend to this borrower at all, and no more than its sub-caps."""
    if account.terms is None:
        return []
    lending, books, found = account.terms.lending, account.lent, []
    if not lending.allow:
        found.append(f"{_name(account)} does not lend")
    elif lending.to and not any(fnmatchcase(borrower, pattern) for pattern in lending.to):
        found.append(f"{_name(account)} does not lend to {borrower}")
    if counted and lending.max_concurrency is not None and books.held > lending.max_concurrency:
        found.append(f"{_name(account)} lends {books.held} GPUs; it lends {lending.max_concurrency} at most")
    if lending.max_gpu_hours is not None:
        hours = books.booked(now, quantum)
        if hours > lending.max_gpu_hours:
            found.append(f"the lent part of {_name(account)} {_hours(hours, lending.max_gpu_hours)}")
    return found


def borrowed_too_much(run: AuditRun) -> list[str]:
    """The borrower's side: it must be willing to borrow, within its own bound."""
    funding, found = run.funding, []
    if not funding.allow_borrow:
        found.append("its leases are paid with borrowed money, which its spec does not allow")
    elif not funding.sponsors:
        found.append("its leases are paid with borrowed money, but its spec names no sponsors")
    if funding.max_borrow_gpus is not None and run.borrowed > funding.max_borrow_gpus:
        found.append(f"it borrows {run.borrowed} GPUs; its spec allows {funding.max_borrow_gpus}")
    return found


def shared_in_vain(account: AuditAccount) -> list[str]:
    """The family may spend only what its owner shares."""
    withheld = account.terms is not None and account.terms.sharing is Sharing.NONE
    return [f"{_name(account)} is not shared with the family"] if withheld else []


def _hours(gpu_ms: int, cap: int) -> str:
    return f"has {gpu_ms} GPU-ms consumed and committed; the cap is {cap}"


def _name(account: AuditAccount) -> str:
    return f"envelope {account.envelope} of {account.budget}"
