"""Bookkeeper: who may pay for whom, and what was spent, counted the slow way from a plain list of leases.

It shares no code with the engine or the ledger's state: what they keep up to date by increments is added up here from nothing,
every time it is asked. A fast index and a slow sum that agree over a thousand random films are worth more than either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from fairlease.model.budget import BudgetSpec, Envelope, Sharing
from fairlease.model.lease import Fund, Payer, Role
from fairlease.model.record import Key
from fairlease.model.run import Phase, RunSpec
from fairlease.reason import Reason

Unit = tuple[str, str, str, int]
"""(run, budget, envelope, group; −1 for a rigid run)."""


@dataclass(slots=True, frozen=True)
class Departure:
    """A lease was asked to leave: since when, why, when it is killed, and whether it was overdrawn then."""

    since: int
    reason: Reason
    seed: str | None
    until: int
    overdrawn: bool


@dataclass(slots=True)
class Held:
    """One lease that was ever opened."""

    name: str
    run: Key
    group: int
    rank: int
    node: str
    slots: tuple[int, ...]
    role: Role
    payer: Payer
    serial: int
    start: int
    deadline: int | None
    opportunistic: bool
    elastic: bool
    end: int | None = None
    leaving: Departure | None = None

    @property
    def gpus(self) -> int:
        return len(self.slots)

    @property
    def unit(self) -> Unit:
        return (self.run, self.payer.budget, self.payer.envelope, self.group if self.elastic else -1)

    @property
    def envelope(self) -> tuple[Key, str]:
        return (self.payer.budget, self.payer.envelope)

    def integral(self, begin: int, until: int) -> int:
        """GPU-milliseconds inside [begin, until)."""
        last = until if self.end is None else min(self.end, until)
        return self.gpus * max(0, last - max(self.start, begin))


@dataclass(slots=True)
class AuditedRun:
    """A run as the events tell it."""

    key: Key
    spec: RunSpec
    submitted: int
    order: int
    attempt: int = 1
    failures: int = 0
    phase: Phase = Phase.PENDING
    reason: Reason = Reason.Submitted
    started: int | None = None
    leases: list[Held] = field(default_factory=list)
    width: int = 0
    changed: int = 0
    stalled: Reason | None = None
    rests_until: int | None = None
    faulty_until: int = 0
    ended: int | None = None
    graceful: bool = False
    awaited: dict[str, Held] = field(default_factory=dict)

    @property
    def deadline(self) -> int | None:
        limit = self.spec.runtime.max_duration
        return None if limit is None or self.started is None else max(self.started + limit, self.faulty_until)

    @property
    def open(self) -> list[Held]:
        return [each for each in self.held if each.leaving is None]

    @property
    def held(self) -> list[Held]:
        return [each for each in self.leases if each.end is None]

    @property
    def leaving(self) -> list[Held]:
        return [each for each in self.held if each.leaving is not None]

    @property
    def active_gpus(self) -> int:
        """GPUs on which it works; a rank that waits for a spare's tenant counts: it is back in a moment."""
        return sum(each.gpus for each in (*self.open, *self.awaited.values()) if each.role is not Role.SPARE)

    @property
    def over(self) -> bool:
        return self.phase in (Phase.COMPLETED, Phase.FAILED)


@dataclass(slots=True)
class Books:
    """Budgets as they are now, and every lease there ever was."""

    quantum: int
    budgets: dict[Key, BudgetSpec] = field(default_factory=dict)
    leases: list[Held] = field(default_factory=list)

    def terms(self, budget: Key, envelope: str) -> Envelope | None:
        """An envelope's terms, where it exists."""
        spec = self.budgets.get(budget)
        return None if spec is None else next((each for each in spec.envelopes if each.name == envelope), None)

    def paid(self, budget: Key, envelopes: Iterable[str]) -> list[Held]:
        """Every lease that those envelopes ever paid for."""
        names = set(envelopes)
        return [each for each in self.leases if each.payer.budget == budget and each.payer.envelope in names]

    def used(self, budget: Key, *envelopes: str, lent: bool = False) -> int:
        """GPUs held now that take concurrency."""
        return sum(
            each.gpus
            for each in self.paid(budget, envelopes)
            if each.end is None and not each.opportunistic and (not lent or each.payer.fund is Fund.BORROWED)
        )

    def consumed(self, now: int, budget: Key, *envelopes: str, lent: bool = False) -> int:
        """GPU-ms inside each envelope's window."""
        total = 0
        for each in self.paid(budget, envelopes):
            terms = self.terms(budget, each.payer.envelope)
            begin = 0 if terms is None or terms.start is None else terms.start
            until = now if terms is None or terms.end is None else min(now, terms.end)
            total += 0 if lent and each.payer.fund is not Fund.BORROWED else each.integral(begin, until)
        return total

    def committed(self, now: int, budget: Key, *envelopes: str, lent: bool = False) -> int:
        """GPU-ms promised to open leases and not yet used."""
        total = 0
        for each in self.paid(budget, envelopes):
            if each.end is None and (not lent or each.payer.fund is Fund.BORROWED):
                terms = self.terms(budget, each.payer.envelope)
                over = terms is not None and terms.end is not None and now >= terms.end
                deadline = each.deadline if each.leaving is None else each.leaving.until
                ahead = self.quantum if deadline is None else max(0, deadline - now)
                total += 0 if over else each.gpus * ahead
        return total

    def uncovered(self, now: int) -> set[Unit]:
        """Every unit that is overdrawn as of `now`: oldest first, whole, and the next is tried."""
        found: set[Unit] = set()
        for budget in sorted({each.payer.budget for each in self.leases if each.end is None}):
            found |= self._uncovered_in(budget, now)
        return found

    def _uncovered_in(self, budget: Key, now: int) -> set[Unit]:
        spec = self.budgets.get(budget)
        caps = () if spec is None else spec.aggregate_caps
        units: dict[Unit, list[Held]] = {}
        for each in self.leases:
            if each.end is None and each.leaving is None and each.payer.budget == budget:
                units.setdefault(each.unit, []).append(each)
        covered: dict[str, int] = {}
        loans: dict[str, int] = {}
        lost: set[Unit] = set()
        for unit, leases in sorted(units.items(), key=lambda item: min(each.serial for each in item[1])):
            name, gpus = unit[2], sum(each.gpus for each in leases if not each.opportunistic)
            terms = self.terms(budget, name)
            over = [cap for cap in caps if name in cap.envelopes]
            lent = gpus if leases[0].payer.fund is Fund.BORROWED else None
            fits = (
                terms is not None
                and is_open(terms, now)
                and (terms.max_gpu_hours is None or self.consumed(now, budget, name) < terms.max_gpu_hours)
                and covered.get(name, 0) + gpus <= terms.concurrency
                and (lent is None or self._lendable(budget, terms, now, loans.get(name, 0) + lent))
                and all(
                    cap.max_gpu_hours is None or self.consumed(now, budget, *cap.envelopes) < cap.max_gpu_hours
                    for cap in over
                )
                and all(
                    cap.max_concurrency is None
                    or sum(covered.get(each, 0) for each in cap.envelopes) + gpus <= cap.max_concurrency
                    for cap in over
                )
            )
            if fits:
                covered[name] = covered.get(name, 0) + gpus
                loans[name] = loans.get(name, 0) + (lent or 0)
            else:
                lost.add(unit)
        return lost

    def _lendable(self, budget: Key, terms: Envelope, now: int, gpus: int) -> bool:
        """Whether the lending caps of an envelope cover so many GPUs."""
        policy = terms.lending
        spent = self.consumed(now, budget, terms.name, lent=True)
        return (policy.max_gpu_hours is None or spent < policy.max_gpu_hours) and (
            policy.max_concurrency is None or gpus <= policy.max_concurrency
        )

    # --- kinship -------------------------------------------------------------------------------------------------------

    def relation(self, spec: RunSpec, payer: Key, terms: Envelope) -> Fund | None:
        """In what relation a Budget's owner stands to a run, in the first place of the order; None: it may not pay."""
        owner, lender = spec.owner, self.budgets[payer].owner
        if lender == owner:
            return Fund.OWNED
        parents = self.parents(owner)
        kin = parents | self.siblings(owner) | self.children(owner)
        if lender in kin and terms.sharing is not Sharing.NONE:
            return Fund.SHARED
        if not (spec.funding.allow_borrow and spec.funding.sponsors):
            return None
        uncles = {uncle for parent in parents for uncle in self.siblings(parent)}
        cousins = {child for uncle in uncles for child in self.children(uncle)}
        lenders = set(spec.funding.sponsors) | self.beyond(parents) | cousins
        return Fund.BORROWED if lender in lenders else None

    def owners(self) -> set[str]:
        """Owners that have a Budget."""
        return {spec.owner for spec in self.budgets.values()}

    def named_parents(self, owner: str) -> set[str]:
        """The parents that Budgets or the path name, cycles and all."""
        mine = [spec for spec in self.budgets.values() if spec.owner == owner]
        path = {owner.rsplit(":", 1)[0]} if ":" in owner else set()
        return {up for spec in mine for up in (path if spec.parents is None else spec.parents)} if mine else path

    def parents(self, owner: str) -> set[str]:
        """The parents that count: no edge of a cycle does."""
        return {up for up in self.named_parents(owner) if owner not in self._above(up)}

    def siblings(self, owner: str) -> set[str]:
        """Those who share a parent that has a Budget."""
        heads = self.parents(owner) & self.owners()
        return {each for each in self.owners() if each != owner and self.parents(each) & heads}

    def children(self, owner: str) -> set[str]:
        """Owners of Budgets whose parent it is."""
        return {each for each in self.owners() if owner in self.parents(each)}

    def beyond(self, parents: set[str]) -> set[str]:
        """All ancestors of the parents."""
        found: set[str] = set()
        level = set(parents)
        while level:
            level = {up for each in level for up in self.parents(each)} - found
            found |= level
        return found

    def _above(self, owner: str) -> set[str]:
        found, todo = {owner}, [owner]
        while todo:
            more = self.named_parents(todo.pop()) - found
            found |= more
            todo.extend(more)
        return found


def is_open(terms: Envelope, now: int) -> bool:
    """Whether a window lets money out."""
    early = terms.start is not None and now < terms.start and not terms.pre_activation.allow_admission
    late = terms.end is not None and now >= terms.end
    return not early and not late


def lends(terms: Envelope, borrower: str) -> bool:
    """Whether an envelope's list admits a borrower."""
    policy = terms.lending
    return policy.allow and (not policy.to or any(fnmatchcase(borrower, glob) for glob in policy.to))
