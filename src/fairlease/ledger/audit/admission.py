"""The audit's question at every admission: whether each payer's terms allowed it, counting all that its money held.

Each function gives a sentence for every term that did not hold, as of just after the leases opened (SEMANTICS §3, §4). `affords`
asks the same terms of an envelope that did not pay: whether it could have, for one pod more.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from fairlease.ledger.audit.accounts import AuditAccount, AuditNode, AuditRun
from fairlease.model.budget import AggregateCap, Lending
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
    elif not _lends_to(lending, borrower):
        found.append(f"{_name(account)} does not lend to {borrower}")
    if counted and lending.max_concurrency is not None and books.held > lending.max_concurrency:
        found.append(f"{_name(account)} lends {books.held} GPUs; it lends {lending.max_concurrency} at most")
    if lending.max_gpu_hours is not None:
        hours = books.booked(now, quantum)
        if hours > lending.max_gpu_hours:
            found.append(f"the lent part of {_name(account)} {_hours(hours, lending.max_gpu_hours)}")
    return found


def _lends_to(lending: Lending, borrower: str) -> bool:
    return lending.allow and (not lending.to or any(fnmatchcase(borrower, pattern) for pattern in lending.to))


class PassedPod(NamedTuple):
    """A pod that an envelope did not pay for: its GPUs, the GPU-ms that it promises, whose it is, and who paid instead."""

    gpus: int
    promised: int
    owner: str
    counted: bool
    payer: AuditAccount


def affords(account: AuditAccount, pod: PassedPod, now: int, quantum: int, *, lends: bool) -> bool:
    """Whether an envelope could have paid for a pod in its payer's stead; `lends`: it would have been a loan.

    What leases gave back that were preempted at this moment is not counted: who has others preempted must be funded before. Of a
    window that was moved into the past nobody but an audit need know to the millisecond what was spent in it (docs/design/0019).
    """
    terms, vacated = account.terms, account.vacated
    if terms is None or account.all.moved or not terms.opens_by(now):
        return False
    held, promised, lent_held, lent_promised = vacated[1:] if vacated.at == now else (0, 0, 0, 0)
    if lends:
        lending, lent = terms.lending, account.lent
        if not _lends_to(lending, pod.owner):
            return False
        if pod.counted and not _room(lending.max_concurrency, lent.held + lent_held, pod.gpus):
            return False
        if not _time(lending.max_gpu_hours, lent.booked(now, quantum) + lent_promised, pod):
            return False
    if pod.counted and not _room(terms.concurrency, account.all.held + held, pod.gpus):
        return False
    if terms.max_gpu_hours is not None and not _time(
        terms.max_gpu_hours, account.all.booked(now, quantum) + promised, pod
    ):
        return False
    # A cap over both does not see who of them pays.
    return all(_under(cap, members, pod, now, quantum) for cap, members in account.caps if pod.payer not in members)


def _room(cap: int | None, held: int, gpus: int) -> bool:
    return cap is None or held + gpus <= cap


def _time(cap: int | None, booked: int, pod: PassedPod) -> bool:
    return cap is None or (booked < cap and booked + pod.promised <= cap)


def _under(cap: AggregateCap, members: list[AuditAccount], pod: PassedPod, now: int, quantum: int) -> bool:
    vacated = [member.vacated for member in members if member.vacated.at == now]
    held = sum(member.all.held for member in members) + sum(each.gpus for each in vacated)
    if pod.counted and not _room(cap.max_concurrency, held, pod.gpus):
        return False
    booked = sum(member.all.booked(now, quantum) for member in members) + sum(each.promised for each in vacated)
    return _time(cap.max_gpu_hours, booked, pod)


def borrowed_too_much(run: AuditRun) -> list[str]:
    """The borrower's side: its own bound."""
    limit = run.funding.max_borrow_gpus
    if limit is None or run.borrowed <= limit:
        return []
    return [f"it borrows {run.borrowed} GPUs; its spec allows {limit}"]


def _hours(gpu_ms: int, cap: int) -> str:
    return f"has {gpu_ms} GPU-ms consumed and committed; the cap is {cap}"


def _name(account: AuditAccount) -> str:
    return f"envelope {account.envelope} of {account.budget}"
