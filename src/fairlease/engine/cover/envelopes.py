"""Cover: who pays (SEMANTICS §3).

Envelopes are asked in the family's order. Each is put the same questions in the same order (flavor, selector, window, ACL, borrow
limit, lending cap, concurrency, hours, aggregate caps) and answers with whole pods. Every answer is a `Limit`: so many pods more,
for one envelope or for several together. The cause of a refusal is that of the envelope that passed the most questions, the first
in order among equals.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.cover.family import CoverEntry, Family
from fairlease.model.lease import Fund
from fairlease.model.record import Key
from fairlease.model.run import LocationPolicy
from fairlease.reason import COVER_CAUSES, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fairlease.ledger.state.accounts import Account, AccountId
    from fairlease.ledger.state.capacity import Pool
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.budget import AggregateCap
    from fairlease.model.run import RunSpec

PLENTY = 1 << 64
"""More pods than any cluster has: no bound."""

_RANK = {reason: rank for rank, reason in enumerate(COVER_CAUSES)}


class Offer:
    """What one envelope could pay for this run: on which nodes, and why not (`refusal`), before amounts are looked at."""

    __slots__ = ("account", "fund", "inside", "mask", "payer", "place", "refusal")

    def __init__(self, entry: CoverEntry, mask: int, refusal: Reason | None, *, inside: bool) -> None:
        self.place = entry.place
        self.fund = entry.fund
        self.account = entry.account
        self.mask = mask
        self.refusal = refusal
        self.inside = inside
        self.payer = entry.payer


def offers(state: State, family: Family, run: RunState, now: int, eligible: int = -1) -> list[Offer]:
    """Every envelope the run asks, in order: family in its location, family elsewhere, then those that lend.

    `eligible` are the nodes on which its pods may run; all of them unless told otherwise.
    """
    spec = run.spec
    pool = state.capacity.pools.get(spec.resources.gpu_type)
    everywhere = 0 if pool is None else pool.mask & eligible
    location = spec.locality.location
    here = pool.nodes_matching(location) & eligible if pool is not None and location else everywhere
    elsewhere = spec.locality.location_policy is LocationPolicy.PREFER and bool(location)
    kin, lenders = family.turns(run.signature)
    areas = [(here, True)] + ([(everywhere & ~here, False)] if elsewhere else [])
    asked = [(entry, mask, inside) for mask, inside in areas for entry in kin]
    asked += [(entry, mask, inside) for entry in lenders for mask, inside in areas]
    return [_offer(pool, spec, now, each) for each in asked]


def _offer(pool: Pool | None, spec: RunSpec, now: int, asked: tuple[CoverEntry, int, bool]) -> Offer:
    entry, area, inside = asked
    envelope = entry.account.envelope
    assert envelope is not None, "only envelopes that exist are asked"
    mask = pool.nodes_matching(envelope.selector) & area if pool is not None else 0
    refusal = None
    if envelope.flavor != spec.resources.gpu_type:
        refusal = Reason.NoEnvelope
    elif area and not mask:
        refusal = Reason.SelectorMismatch
    elif not envelope.opens_by(now):
        refusal = Reason.WindowClosed
    elif entry.fund is Fund.BORROWED and not lends_to(entry.account, spec.owner):
        refusal = Reason.ACLDenied
    return Offer(entry, mask, refusal, inside=inside)


def opens_later(offer: Offer, now: int) -> bool:
    """Whether an envelope was passed over because its window is still to open."""
    envelope = offer.account.envelope
    return offer.refusal is Reason.WindowClosed and envelope is not None and now < (envelope.start or 0)


def lends_to(account: Account, borrower: str) -> bool:
    """Whether an envelope's lending policy admits a borrower; no list means everyone."""
    lending = None if account.envelope is None else account.envelope.lending
    if lending is None or not lending.allow:
        return False
    return not lending.to or any(fnmatchcase(borrower, pattern) for pattern in lending.to)


class Withheld(NamedTuple):
    """What an envelope had promised at a time: GPUs in use, lent ones among them, and the worst case of both in GPU-time."""

    used: int
    lent: int
    committed: int
    lent_committed: int

    @classmethod
    def of(cls, account: Account, now: int, quantum: int) -> Withheld:
        """As it stands now."""
        return cls(
            account.used, account.lent_used, account.committed(now, quantum), account.lent_committed(now, quantum)
        )


NOTHING = Withheld(0, 0, 0, 0)


class Limit:
    """So many pods more, by one question; shared by all envelopes that it counts together."""

    __slots__ = ("left", "reason")

    def __init__(self, left: int, reason: Reason) -> None:
        self.left = left
        self.reason = reason


class Spending:
    """What a plan may still take from whom: `room` says how many pods more, and what would stop the next one.

    `idle`: as if nothing else ran, save what the run itself holds. What is not paid for then, nobody pays for by waiting for
    others. `withheld`: what envelopes have promised at least, whoever is gone by now: a claim is paid with the money that there
    was before others were preempted for it.
    """

    __slots__ = (
        "_borrow",
        "_caps",
        "_held",
        "_known",
        "_opportunistic",
        "_per_gpu",
        "idle",
        "now",
        "size",
        "state",
        "withheld",
    )

    def __init__(
        self,
        state: State,
        run: RunState,
        now: int,
        *,
        idle: bool = False,
        withheld: Mapping[AccountId, Withheld] | None = None,
    ) -> None:
        self.state = state
        self.withheld = withheld or {}
        self.now = now
        self.idle = idle
        self.size = run.spec.pod_gpus
        self._opportunistic = run.spec.opportunistic
        self._per_gpu = run.spec.runtime.max_duration or state.config.commit_quantum
        if run.deadline is not None:  # it runs, and what it adds is committed for the rest of the attempt
            self._per_gpu = run.deadline - now
        self._known: dict[AccountId, tuple[Limit, ...]] = {}
        self._caps: dict[tuple[str, str], tuple[Limit, ...]] = {}
        self._held: dict[AccountId, int] = {}
        self._borrow: Limit | None = None
        most = run.spec.funding.max_borrow_gpus
        if most is not None:
            held = sum(lease.gpus for lease in run.leases.values() if lease.payer.fund is Fund.BORROWED)
            self._borrow = Limit((most - held) // self.size, Reason.BorrowLimit)
        if idle and not self._opportunistic:
            for lease in run.leases.values():
                payer = (lease.payer.budget, lease.payer.envelope)
                self._held[payer] = self._held.get(payer, 0) + lease.gpus

    def room(self, offer: Offer) -> tuple[int, Reason]:
        """Whole pods it could still pay for, and the question at which the next pod fails."""
        if offer.refusal is not None:
            return 0, offer.refusal
        least, why = PLENTY, Reason.Covered
        for limit in self.limits(offer):
            left = max(0, limit.left)
            if left < least:
                least, why = left, limit.reason
        return least, why

    def take(self, offer: Offer, pods: int) -> None:
        """Spend on `pods` more (or, negative, fewer) pods."""
        for limit in self.limits(offer):
            limit.left -= pods

    def spend(self, asked: list[Offer], pods: int) -> tuple[list[tuple[Offer, int]], list[Reason]]:
        """Who would pay how many of `pods` pods, wherever money is, in order, and what stopped each that was asked."""
        shares: list[tuple[Offer, int]] = []
        stops: list[Reason] = []
        for offer in asked:
            if pods == 0:
                break
            room, why = self.room(offer)
            stops.append(why)
            count = min(room, pods)
            pods -= count
            if count:
                shares.append((offer, count))
            if count and pods:  # who pays the rest leaves nobody to be asked
                self.take(offer, count)
        for offer, count in shares if pods else shares[:-1]:
            self.take(offer, -count)
        return shares, stops

    def limits(self, offer: Offer) -> tuple[Limit, ...]:
        """All limits on an envelope, in the order of asking."""
        account = offer.account
        found = self._known.get(account.id)
        if found is None:
            borrow = () if self._borrow is None or offer.fund is not Fund.BORROWED else (self._borrow,)
            own = (Limit(gpus // self.size, why) for gpus, why in self._bounds(offer))
            caps = (limit for cap in self.state.caps_over(account) for limit in self._over(cap, Key(account.id[0])))
            found = self._known[account.id] = (*borrow, *own, *caps)
        return found

    def _bounds(self, offer: Offer) -> Iterator[tuple[int, Reason]]:
        """GPUs left by the questions that concern one envelope alone."""
        account = offer.account
        envelope = account.envelope
        assert envelope is not None, "an envelope that is asked exists"
        held = self._held.get(account.id, 0)
        if offer.fund is Fund.BORROWED:
            lending = envelope.lending
            promised = self.withheld.get(account.id, NOTHING)
            if lending.max_concurrency is not None and not self._opportunistic:
                used = held if self.idle else max(account.lent_used, promised.lent)
                yield lending.max_concurrency - used, Reason.LendingCapExceeded
            if lending.max_gpu_hours is not None:
                committed = held * self._per_gpu
                if not self.idle:
                    committed = max(account.lent_committed(self.now, self._quantum), promised.lent_committed)
                left = lending.max_gpu_hours - account.lent_consumed(self.now) - committed
                yield self._affordable(left), Reason.LendingCapExceeded
        if not self._opportunistic:
            yield envelope.concurrency - self._used(account), Reason.ConcurrencyCapExceeded
        if envelope.max_gpu_hours is not None:
            yield self._affordable(envelope.max_gpu_hours - self._spent(account)), Reason.IntegralCapExceeded

    def _over(self, cap: AggregateCap, budget: Key) -> tuple[Limit, ...]:
        """The limits of an aggregate cap: one object for all its members, so that what one of them takes counts for all."""
        known = self._caps.get((budget, cap.name))
        if known is None:
            members = [self.state.account(budget, name) for name in cap.envelopes]
            left = []
            if cap.max_concurrency is not None and not self._opportunistic:
                left.append(cap.max_concurrency - sum(map(self._used, members)))
            if cap.max_gpu_hours is not None:
                left.append(self._affordable(cap.max_gpu_hours - sum(map(self._spent, members))))
            known = tuple(Limit(gpus // self.size, Reason.AggregateCapExceeded) for gpus in left)
            self._caps[budget, cap.name] = known
        return known

    @property
    def _quantum(self) -> int:
        return self.state.config.commit_quantum

    def _used(self, account: Account) -> int:
        if self.idle:
            return self._held.get(account.id, 0)
        return max(account.used, self.withheld.get(account.id, NOTHING).used)

    def _spent(self, account: Account) -> int:
        if self.idle:
            return account.consumed(self.now) + self._held.get(account.id, 0) * self._per_gpu
        promised = self.withheld.get(account.id, NOTHING).committed
        return account.consumed(self.now) + max(account.committed(self.now, self._quantum), promised)

    def _affordable(self, left: int) -> int:
        """GPUs whose worst case fits into the hours left."""
        if left <= 0:
            return 0
        return PLENTY * self.size if self._per_gpu == 0 else left // self._per_gpu


def cause(stops: list[Reason]) -> Reason:
    """The cause to tell: that of the envelope that passed the most; none asked is NoEnvelope."""
    return max(stops, key=_RANK.__getitem__, default=Reason.NoEnvelope)


def counts(stops: list[Reason]) -> dict[str, int]:
    """How many were stopped by which reason."""
    found: dict[str, int] = {}
    for reason in stops:
        found[reason.value] = found.get(reason.value, 0) + 1
    return found
