"""Lending: who holds whose money and until when, how full the lending caps are, and who lends in a circle (SEMANTICS §3).

Everything here is read from the state at hand. Budget conditions, `budgets lent` and those who send warnings all ask the same
functions, so that nobody is warned of something that another does not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover.envelopes import lends_to
from fairlease.model.amount import format_instant, gpu_hours
from fairlease.model.lease import Fund, Role
from fairlease.model.record import Key, short
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fairlease.ledger.state.accounts import Account
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease
    from fairlease.model.run import Funding

NEAR_PERCENT = 90
"""A lending cap that is so full is worth a warning."""


class Loan(NamedTuple):
    """What one run holds of one envelope of another owner. `until`: when it must end, None where nothing says so."""

    budget: Key
    envelope: str
    lender: str
    run: Key
    borrower: str
    gpus: int
    spares: int
    overdrawn: int
    gpu_ms: int
    since: int
    until: int | None
    renewable: bool


class LendingLevel(NamedTuple):
    """How full one lending cap is: GPUs that are lent, or GPU-ms that were used by borrowers or are promised to them.

    `rate`: how much more of it is taken each ms by the mere passing of time.
    """

    envelope: str
    hours: bool
    taken: int
    cap: int
    rate: int = 0

    @property
    def warning(self) -> Reason | None:
        """Whether nothing more can be lent, or soon nothing can."""
        if self.taken >= self.cap:
            return Reason.LendingCapExceeded
        return Reason.LendingCapNear if self.taken * 100 >= self.cap * NEAR_PERCENT else None

    def near_at(self, now: int) -> int | None:
        """When a warning will be due, if all goes on as it does; None where one is, or never will be."""
        left = -(-self.cap * NEAR_PERCENT // 100) - self.taken
        return now - (-left // self.rate) if left > 0 and self.rate > 0 else None

    def told(self) -> str:
        """In words."""
        if self.hours:
            return f"{self.envelope}: {gpu_hours(self.taken)} of {gpu_hours(self.cap)} GPU-hours are lent or promised"
        return f"{self.envelope}: {self.taken} of {self.cap} GPUs are lent"


def loans(state: State, account: Account, now: int) -> list[Loan]:
    """Every loan of an envelope, the oldest first."""
    if not account.lent.rate:
        return []
    held: dict[Key, list[Lease]] = {}
    for _, lease in sorted(account.open.items()):
        if lease.payer.fund is Fund.BORROWED:
            held.setdefault(lease.run, []).append(lease)
    return [_loan(account, state.runs[run], leases, now) for run, leases in held.items()]


def _loan(account: Account, run: RunState, leases: list[Lease], now: int) -> Loan:
    units = {run.unit(lease) for lease in leases}
    ends = [run.deadline, *(run.overdrawn.get(unit) for unit in units)]
    return Loan(
        budget=Key(account.id[0]),
        envelope=account.id[1],
        lender=leases[0].payer.owner,
        run=run.key,
        borrower=run.spec.owner,
        gpus=sum(lease.gpus for lease in leases),
        spares=sum(lease.gpus for lease in leases if lease.role is Role.SPARE),
        overdrawn=sum(lease.gpus for lease in leases if run.unit(lease) in run.overdrawn),
        gpu_ms=sum(lease.gpus * (now - lease.start) for lease in leases),
        since=leases[0].start,
        until=min((when for when in ends if when is not None), default=None),
        renewable=lends_to(account, run.spec.owner),
    )


def fills(state: State, account: Account, now: int) -> Iterator[LendingLevel]:
    """The lending caps of an envelope, each with how full it is."""
    if account.envelope is None:
        return
    lending, name = account.envelope.lending, account.id[1]
    if lending.max_concurrency is not None:
        yield LendingLevel(name, hours=False, taken=account.lent_used, cap=lending.max_concurrency)
    if lending.max_gpu_hours is not None:
        spent = account.lent_consumed(now) + account.lent_committed(now, state.config.commit_quantum)
        used = account.lent.rate if account.inside_window(now) else 0
        rate = used - account.lent_promise.deadline_gpus  # what has a limit was promised whole: its use takes no more
        yield LendingLevel(name, hours=True, taken=spent, cap=lending.max_gpu_hours, rate=rate)


def in_question(state: State, budget: Key, now: int) -> Iterator[LendingLevel]:
    """The lending caps of a Budget that may be worth a warning: what lends no more needs none."""
    for envelope in state.budgets[budget].envelopes:
        if envelope.lending.allow and envelope.opens_by(now):
            yield from fills(state, state.account(budget, envelope.name), now)


def nearly_full(state: State, budget: Key, now: int) -> list[LendingLevel]:
    """The lending caps of a Budget that are full or nearly so."""
    return [fill for fill in in_question(state, budget, now) if fill.warning is not None]


def circle(state: State, owner: str) -> tuple[str, ...]:
    """The shortest chain of loans that leads from an owner back to it: owners, each of which lends to the next; or nothing."""
    trail: dict[str, str] = {}
    level = [owner]
    while level:
        found: list[str] = []
        for lender in level:
            for borrower in state.loans.borrowers(lender):
                if borrower == owner:
                    return _back(trail, owner, lender)
                if borrower not in trail:
                    trail[borrower] = lender
                    found.append(borrower)
        level = found
    return ()


def _back(trail: dict[str, str], owner: str, last: str) -> tuple[str, ...]:
    chain = [last]
    while chain[-1] != owner:
        chain.append(trail[chain[-1]])
    return tuple(reversed(chain))


def told_circle(chain: tuple[str, ...]) -> str:
    """In words."""
    first, *others = chain
    return f"{first} lends to " + ", which lends to ".join([*others, first])


def conditions(state: State, budget: Key, now: int) -> list[tuple[str, bool, Reason, str]]:
    """What a Budget that lends is told of it: type, whether it holds, why, and in words."""
    spec = state.budgets[budget]
    lends = any(each.lending.allow for each in spec.envelopes)
    if not lends and not state.loans.borrowers(spec.owner):
        return []
    full, chain = nearly_full(state, budget, now), circle(state, spec.owner)
    worst = max((fill.warning for fill in full if fill.warning is not None), key=_gravity, default=Reason.Covered)
    return [
        ("LendingRoom", not full, worst, "; ".join(fill.told() for fill in full)),
        ("ReciprocalLoans", bool(chain), *_reciprocal(chain)),
    ]


def _gravity(reason: Reason) -> bool:
    return reason is Reason.LendingCapExceeded


def _reciprocal(chain: tuple[str, ...]) -> tuple[Reason, str]:
    return (Reason.ReciprocalLoans, told_circle(chain)) if chain else (Reason.Covered, "")


# --- as people see it ------------------------------------------------------------------------------------------------------


def lent_view(state: State, budget: Key, now: int) -> dict[str, Any]:
    """A Budget's loans, envelope by envelope, against its lending caps."""
    spec = state.budgets[budget]
    chain = circle(state, spec.owner)
    envelopes = []
    for terms in spec.envelopes:
        account = state.account(budget, terms.name)
        envelopes.append(
            {
                "name": terms.name,
                "lends": terms.lending.allow,
                "to": list(terms.lending.to),
                "caps": [_fill_view(fill) for fill in fills(state, account, now)],
                "loans": [loan_view(loan) for loan in loans(state, account, now)],
            }
        )
    return {
        "name": short(budget),
        "owner": spec.owner,
        "envelopes": envelopes,
        "circle": list(chain),
        "warnings": [fill.told() for fill in nearly_full(state, budget, now)] + ([told_circle(chain)] if chain else []),
    }


def _fill_view(fill: LendingLevel) -> dict[str, Any]:
    show = gpu_hours if fill.hours else int
    return {
        "of": "gpuHours" if fill.hours else "gpus",
        "lent": show(fill.taken),
        "cap": show(fill.cap),
        "warning": None if fill.warning is None else fill.warning.value,
    }


def loan_view(loan: Loan) -> dict[str, Any]:
    """One loan, for lender and borrower alike."""
    return {
        "budget": short(loan.budget),
        "envelope": loan.envelope,
        "lender": loan.lender,
        "run": short(loan.run),
        "borrower": loan.borrower,
        "gpus": loan.gpus,
        "spareGPUs": loan.spares,
        "overdrawnGPUs": loan.overdrawn,
        "gpuHours": gpu_hours(loan.gpu_ms),
        "since": format_instant(loan.since),
        "until": None if loan.until is None else format_instant(loan.until),
        "lendsMore": loan.renewable,
    }


def terms(funding: Funding) -> dict[str, Any]:
    """On which terms a run borrows."""
    return {
        "allowBorrow": funding.allow_borrow,
        "maxBorrowGPUs": funding.max_borrow_gpus,
        "sponsorNames": list(funding.sponsors),
    }
