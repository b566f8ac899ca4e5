"""Cover: who pays (SEMANTICS §3).

Envelopes are asked in the family's order. Each is put the same questions in the same order (flavor, selector, window, ACL, borrow
limit, lending cap, concurrency, hours, aggregate caps) and answers with whole pods. A `Purse` remembers what the plan at hand
already takes, so that no cap is spent twice in one plan. The cause of a refusal is that of the envelope that passed the most
questions, the first in order among equals.
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
    """What one envelope could pay for this run: on which nodes, and why not (`refusal`), before amounts are looked at.

    `room` is what a purse that has taken nothing yet says of it: asked once, as plans for several widths begin with it.
    """

    __slots__ = ("account", "fund", "inside", "mask", "payer", "per_gpu", "place", "refusal", "room")

    def __init__(self, entry: CoverEntry, mask: int, per_gpu: int, refusal: Reason | None, *, inside: bool) -> None:
        self.place = entry.place
        self.fund = entry.fund
        self.account = entry.account
        self.mask = mask
        self.per_gpu = per_gpu
        self.refusal = refusal
        self.inside = inside
        self.payer = entry.payer
        self.room: tuple[int, Reason] | None = None


def offers(state: State, family: Family, run: RunState, now: int) -> list[Offer]:
    """Every envelope the run asks, in order: family in its location, family elsewhere, then those that lend."""
    spec = run.spec
    pool = state.capacity.pools.get(spec.resources.gpu_type)
    everywhere = 0 if pool is None else pool.mask
    location = spec.locality.location
    here = pool.nodes_matching(location) if pool is not None and location else everywhere
    elsewhere = spec.locality.location_policy is LocationPolicy.PREFER and bool(location)
    kin, lenders = family.turns(run.signature)
    areas = [(here, True)] + ([(everywhere & ~here, False)] if elsewhere else [])
    asked = [(entry, mask, inside) for mask, inside in areas for entry in kin]
    asked += [(entry, mask, inside) for entry in lenders for mask, inside in areas]
    return [_offer(state, pool, spec, now, each) for each in asked]


def _offer(state: State, pool: Pool | None, spec: RunSpec, now: int, asked: tuple[CoverEntry, int, bool]) -> Offer:
    entry, area, inside = asked
    envelope = entry.account.envelope
    assert envelope is not None, "only envelopes that exist are asked"
    mask = pool.nodes_matching(envelope.selector) & area if pool is not None else 0
    per_gpu = spec.runtime.max_duration or state.config.commit_quantum
    refusal = None
    if envelope.flavor != spec.resources.gpu_type:
        refusal = Reason.NoEnvelope
    elif area and not mask:
        refusal = Reason.SelectorMismatch
    elif not envelope.opens_by(now):
        refusal = Reason.WindowClosed
    elif entry.fund is Fund.BORROWED and not lends_to(entry.account, spec.owner):
        refusal = Reason.ACLDenied
    return Offer(entry, mask, per_gpu, refusal, inside=inside)


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


class CoverTally:
    """What all envelopes under an aggregate cap use and have spent, with what the plan at hand takes."""

    __slots__ = ("cap", "spent", "used")

    def __init__(self, cap: AggregateCap) -> None:
        self.cap = cap
        self.used = 0
        self.spent = 0


class Purse:
    """What one plan takes from whom. `room` says how many pods more, and what would stop the next one.

    `idle`: as if nothing else ran, save what the run itself holds. What such a purse does not pay for, nobody pays for by
    waiting for others. `withheld`: what envelopes have promised at least, whoever is gone by now: a claim is paid with the money
    that there was before others gave way to it.
    """

    __slots__ = (
        "_caps",
        "_tallies",
        "free_ride",
        "idle",
        "lent",
        "may_borrow",
        "now",
        "per_gpu",
        "size",
        "state",
        "taken",
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
        self.free_ride = run.spec.opportunistic
        self.taken: dict[AccountId, int] = {}
        self.lent: dict[AccountId, int] = {}
        self.per_gpu: dict[AccountId, int] = {}
        self._caps: dict[AccountId, list[CoverTally]] = {}
        self._tallies: dict[AccountId, list[CoverTally]] = {}
        limit = run.spec.funding.max_borrow_gpus
        self.may_borrow = PLENTY
        if limit is not None:
            held = sum(lease.gpus for lease in run.leases.values() if lease.payer.fund is Fund.BORROWED)
            self.may_borrow = limit - held
        if idle and not self.free_ride:
            for lease in run.leases.values():
                payer = lease.payer
                books = (self.taken, self.lent) if payer.fund is Fund.BORROWED else (self.taken,)
                for book in books:
                    book[payer.budget, payer.envelope] = book.get((payer.budget, payer.envelope), 0) + lease.gpus

    def take(self, offer: Offer, pods: int) -> None:
        """Spend on `pods` more (or, negative, fewer) pods."""
        gpus = pods * self.size
        account = offer.account.id
        planned = self._planned(account)
        self.taken[account] = self.taken.get(account, 0) + gpus
        self.per_gpu[account] = offer.per_gpu
        if account in self._tallies:
            planned = self._planned(account) - planned
            for tally in self._tallies[account]:
                tally.used += gpus
                tally.spent += planned
        if offer.fund is Fund.BORROWED:
            self.lent[account] = self.lent.get(account, 0) + gpus
            self.may_borrow -= gpus

    def room(self, offer: Offer) -> tuple[int, Reason]:
        """Whole pods it could still pay for, and the question at which the next pod fails."""
        if offer.refusal is not None:
            return 0, offer.refusal
        if self.taken or self.idle:
            return self._room(offer)
        if offer.room is None:
            offer.room = self._room(offer)
        return offer.room

    def _room(self, offer: Offer) -> tuple[int, Reason]:
        least, why = PLENTY, Reason.Covered
        for gpus, reason in self._bounds(offer):
            pods = max(gpus // self.size, 0)
            if pods < least:
                least, why = pods, reason
        return least, why

    def own_room(self, offer: Offer) -> int:
        """Whole pods that its own terms would still let it pay for, whatever it shares with others."""
        if offer.refusal is not None:
            return 0
        return max(min((gpus for gpus, _ in self._own_bounds(offer)), default=PLENTY) // self.size, 0)

    def _bounds(self, offer: Offer) -> Iterator[tuple[int, Reason]]:
        """GPUs left by each question, in the order of asking."""
        if offer.fund is Fund.BORROWED:
            yield self.may_borrow, Reason.BorrowLimit
        yield from self._own_bounds(offer)
        for tally in self._over(offer.account):
            cap = tally.cap
            if cap.max_concurrency is not None and not self.free_ride:
                yield cap.max_concurrency - tally.used, Reason.AggregateCapExceeded
            if cap.max_gpu_hours is not None:
                yield self._affordable(cap.max_gpu_hours - tally.spent, 0, offer.per_gpu), Reason.AggregateCapExceeded

    def _over(self, account: Account) -> list[CoverTally]:
        """The caps over an envelope; their members are added up once, and what is taken from one of them counts at once."""
        if account.id not in self._caps:
            known = {tally.cap.name: tally for tally in self._tallies.get(account.id, ())}
            caps = self.state.caps_over(account)
            self._caps[account.id] = [known.get(cap.name) or self._add_up(cap, Key(account.id[0])) for cap in caps]
        return self._caps[account.id]

    def _add_up(self, cap: AggregateCap, budget: Key) -> CoverTally:
        members = [self.state.account(budget, name) for name in cap.envelopes]
        tally = CoverTally(cap)
        for member in members:
            tally.used += self._used(member) + self.taken.get(member.id, 0)
            if cap.max_gpu_hours is not None:
                tally.spent += self._spent(member) + self._planned(member.id)
            self._tallies.setdefault(member.id, []).append(tally)
        return tally

    def _own_bounds(self, offer: Offer) -> Iterator[tuple[int, Reason]]:
        """GPUs left by the questions that concern one envelope alone."""
        account = offer.account
        envelope = account.envelope
        assert envelope is not None, "an envelope that is asked exists"
        taken = self.taken.get(account.id, 0)
        if offer.fund is Fund.BORROWED:
            lending, lent = envelope.lending, self.lent.get(account.id, 0)
            if lending.max_concurrency is not None and not self.free_ride:
                used = 0 if self.idle else max(account.lent_used, self._promised(account).lent)
                yield lending.max_concurrency - used - lent, Reason.LendingCapExceeded
            if lending.max_gpu_hours is not None:
                promised = 0 if self.idle else self._lent_committed(account)
                left = lending.max_gpu_hours - account.lent_consumed(self.now) - promised
                yield self._affordable(left, lent, offer.per_gpu), Reason.LendingCapExceeded
        if not self.free_ride:
            yield envelope.concurrency - self._used(account) - taken, Reason.ConcurrencyCapExceeded
        if envelope.max_gpu_hours is not None:
            left = envelope.max_gpu_hours - self._spent(account)
            yield self._affordable(left, taken, offer.per_gpu), Reason.IntegralCapExceeded

    @property
    def _quantum(self) -> int:
        return self.state.config.commit_quantum

    def _promised(self, account: Account) -> Withheld:
        return self.withheld.get(account.id, NOTHING)

    def _used(self, account: Account) -> int:
        return 0 if self.idle else max(account.used, self._promised(account).used)

    def _lent_committed(self, account: Account) -> int:
        return max(account.lent_committed(self.now, self._quantum), self._promised(account).lent_committed)

    def _spent(self, account: Account) -> int:
        if self.idle:
            return account.consumed(self.now)
        committed = max(account.committed(self.now, self._quantum), self._promised(account).committed)
        return account.consumed(self.now) + committed

    def _planned(self, account: AccountId) -> int:
        return self.taken.get(account, 0) * self.per_gpu.get(account, 0)

    @staticmethod
    def _affordable(left: int, taken: int, per_gpu: int) -> int:
        """GPUs whose worst case fits into the hours left."""
        if left <= 0:
            return 0
        return PLENTY if per_gpu == 0 else left // per_gpu - taken

    def save(self) -> tuple[dict[AccountId, int], dict[AccountId, int], int]:
        """To go back to when a placement does not work out."""
        return dict(self.taken), dict(self.lent), self.may_borrow

    def restore(self, saved: tuple[dict[AccountId, int], dict[AccountId, int], int]) -> None:
        """Go back."""
        self.taken, self.lent, self.may_borrow = dict(saved[0]), dict(saved[1]), saved[2]
        self._caps, self._tallies = {}, {}


def spend(purse: Purse, asked: list[Offer], pods: int) -> tuple[list[tuple[Offer, int]], list[Reason]]:
    """Pay for up to `pods` pods wherever money is, in order: who pays how many, and what stopped each that was asked."""
    shares: list[tuple[Offer, int]] = []
    stops: list[Reason] = []
    for offer in asked:
        if pods == 0:
            break
        room, why = purse.room(offer)
        count = min(room, pods)
        if count:
            purse.take(offer, count)
            shares.append((offer, count))
            pods -= count
        stops.append(why)
    return shares, stops


def cause(stops: list[Reason]) -> Reason:
    """The cause to tell: that of the envelope that passed the most; none asked is NoEnvelope."""
    return max(stops, key=_RANK.__getitem__, default=Reason.NoEnvelope)
