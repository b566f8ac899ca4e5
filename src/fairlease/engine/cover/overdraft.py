"""Overdraft: which running work its money still covers, and which is overdrawn (SEMANTICS §4).

Units (a rigid run's share in an envelope, an elastic group's) are covered oldest first; one that does not fit whole is overdrawn,
and the next is tried. Hours that are used up and a window that closed leave nothing covered. A loan needs room under the lending
caps too: those are how a lender calls loans back, where `allow` and `to` are only for new ones. Looked at for one Budget at a
time, because aggregate caps count several of its envelopes, and only where something is tight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlease.ledger.state.events import CoverLost, CoverRegained
from fairlease.model.budget import OnExhaustion
from fairlease.model.lease import Fund
from fairlease.model.record import Key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.ledger.state.accounts import Account
    from fairlease.ledger.state.runs import Unit
    from fairlease.ledger.state.state import State


class Share(NamedTuple):
    """One unit of cover: its age (the serial of its oldest lease), the GPUs that take concurrency, and whether it is a loan."""

    age: int
    unit: Unit
    gpus: int
    account: Account
    lent: bool


def changes(
    state: State, budget: Key, envelopes: Iterable[str], now: int, *, hours: bool = True
) -> list[CoverRegained | CoverLost]:
    """Which units of a Budget are covered again as of `now`, and which no longer are, where some of its envelopes changed.

    `hours`: whether cover is lost by hours that run out, too; who asks of a later time cannot know who uses them until then.
    """
    spec = state.budgets.get(budget)
    known = sorted(unit for unit in state.overdrawn if unit[1] == budget) if state.overdrawn else []
    names = {
        *envelopes,
        *(unit[2] for unit in known),
        *(each.name for each in (() if spec is None else spec.envelopes)),
    }
    accounts = [state.account(budget, name) for name in sorted(names)]
    if not known and not tight(state, budget, accounts, now):
        return []
    lacking = uncovered(state, budget, accounts, now)
    found: list[CoverRegained | CoverLost] = [
        CoverRegained(run=Key(unit[0]), budget=budget, envelope=unit[2], group=unit[3])
        for unit in known
        if unit not in lacking
    ]
    for unit, reason in (lacking if hours else uncovered(state, budget, accounts, now, hours=False)).items():
        ends, before = grace_end(state, unit, now), state.overdrawn.get(unit, -1)
        if before == -1 or (before is None) != (ends is None):
            found.append(
                CoverLost(run=Key(unit[0]), budget=budget, envelope=unit[2], group=unit[3], reason=reason, ends=ends)
            )
    return found


def closes(account: Account) -> int | None:
    """When an envelope surely covers nothing any more: its window closes. None where it has no end, or has been withdrawn."""
    return None if account.envelope is None else account.envelope.end


def uncovered(
    state: State, budget: Key, accounts: list[Account], now: int, *, hours: bool = True
) -> dict[Unit, Reason]:
    """The units of a Budget that are overdrawn as of `now`, by `hours` too, each with what no longer covers it."""
    spec = state.budgets.get(budget)
    caps = () if spec is None else spec.aggregate_caps
    spent = {
        cap.name
        for cap in caps
        if cap.max_gpu_hours is not None and _consumed(state, budget, cap.envelopes, now) >= cap.max_gpu_hours and hours
    }
    left = {cap.name: cap.max_concurrency for cap in caps}
    rooms = {account.id: 0 if account.envelope is None else account.envelope.concurrency for account in accounts}
    loans = {account.id: _lends(account) for account in accounts}
    found: dict[Unit, Reason] = {}
    for share in sorted(each for account in accounts for each in _shares(state, account)):
        account = share.account
        over = [cap for cap in caps if account.id[1] in cap.envelopes]
        reason = _closed(account, now, hours=hours)
        if reason is None and any(cap.name in spent for cap in over):
            reason = Reason.AggregateCapExceeded
        lendable = loans[account.id] if share.lent else None
        if reason is None and share.lent and hours and account.lent_out(now):
            reason = Reason.LendingCapExceeded
        if reason is None and lendable is not None and share.gpus > lendable:
            reason = Reason.LendingCapExceeded
        if reason is None and share.gpus > rooms[account.id]:
            reason = Reason.ConcurrencyCapExceeded
        bounds = [(cap.name, left[cap.name]) for cap in over]
        if reason is None and any(bound is not None and share.gpus > bound for _, bound in bounds):
            reason = Reason.AggregateCapExceeded
        if reason is not None:
            found[share.unit] = reason
            continue
        rooms[account.id] -= share.gpus
        if lendable is not None:
            loans[account.id] = lendable - share.gpus
        for name, bound in bounds:
            left[name] = None if bound is None else bound - share.gpus
    return found


def tight(state: State, budget: Key, accounts: list[Account], now: int) -> bool:
    """Whether any unit of a Budget could be overdrawn: a few comparisons, so that most changes cost no more."""
    for account in accounts:
        if account.open and (_closed(account, now) is not None or account.used > account.envelope.concurrency):  # type: ignore[union-attr]  # _closed saw to it
            return True
        if account.lent.rate and (account.lent_out(now) or _lends_too_much(account)):
            return True
    spec = state.budgets.get(budget)
    for cap in () if spec is None else spec.aggregate_caps:
        if cap.max_concurrency is not None:
            used = sum(state.account(budget, name).used for name in cap.envelopes)
            if used > cap.max_concurrency:
                return True
        if cap.max_gpu_hours is not None and _consumed(state, budget, cap.envelopes, now) >= cap.max_gpu_hours:
            return True
    return False


def grace_end(state: State, unit: Unit, now: int) -> int | None:
    """When overdrawn work must end: after the run's checkpoint interval under Drain, never under Hold."""
    account = state.account(Key(unit[1]), unit[2])
    if account.envelope is None or account.envelope.on_exhaustion is OnExhaustion.HOLD:
        return None
    return now + (state.runs[Key(unit[0])].spec.runtime.checkpoint or 0)


def _lends(account: Account) -> int | None:
    """GPUs that an envelope lends at once; None: as many as it has."""
    return None if account.envelope is None else account.envelope.lending.max_concurrency


def _lends_too_much(account: Account) -> bool:
    bound = _lends(account)
    return bound is not None and account.lent_used > bound


def _consumed(state: State, budget: Key, envelopes: tuple[str, ...], now: int) -> int:
    return sum(state.account(budget, name).consumed(now) for name in envelopes)


def _closed(account: Account, now: int, *, hours: bool = True) -> Reason | None:
    """What keeps an envelope from covering anything at all."""
    if account.envelope is None:
        return Reason.NoEnvelope
    if not account.envelope.opens_by(now):
        return Reason.WindowClosed
    return Reason.IntegralCapExceeded if hours and account.exhausted(now) else None


def _shares(state: State, account: Account) -> list[Share]:
    ages: dict[Unit, int] = {}
    sizes: dict[Unit, int] = {}
    lent: dict[Unit, bool] = {}
    for serial, lease in account.open.items():
        if serial in state.leaving:
            continue
        unit = state.runs[lease.run].unit(lease)
        ages[unit] = min(serial, ages.get(unit, serial))
        sizes[unit] = sizes.get(unit, 0) + (0 if lease.opportunistic else lease.gpus)
        lent[unit] = lease.payer.fund is Fund.BORROWED
    return [Share(age, unit, sizes[unit], account, lent[unit]) for unit, age in ages.items()]
