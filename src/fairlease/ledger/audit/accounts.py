"""What the audit keeps of nodes, envelopes and runs: just enough to prove the claims, and nothing the live state knows.

A million leases must be played in seconds, so a lease is a plain tuple and a node's slots are the bits of an integer.
"""

from __future__ import annotations

from operator import add
from typing import NamedTuple

import msgspec

from fairlease.ledger.audit.usage import AuditUsage
from fairlease.model.budget import AggregateCap, Envelope
from fairlease.model.lease import Role
from fairlease.model.run import Funding
from fairlease.reason import Reason

CLASSES = ("owned", "shared", "borrowed", "overdrawn", "spares")
"""The classes of a bill; a lease's kind is its place here."""

OWNED, SHARED, BORROWED, OVERDRAWN, SPARES = range(5)

SLOT_MAX = 1 << 16
"""No node has as many GPUs; a slot beyond stands for all that are out of every range."""


class AuditNode:
    """A node's slots as bits: those held by Active, Spare and Borrowed leases. `usable` is 0 once it is gone."""

    __slots__ = ("active", "labels", "name", "place", "spare", "tenant", "usable")

    def __init__(self, name: str) -> None:
        self.name = name
        self.usable = 0
        self.labels: dict[str, str] = {}
        self.place = object()  # replaced with the labels: what was found of the old ones is not believed of the new
        self.active = self.spare = self.tenant = 0

    def held(self) -> int:
        """Every slot that some lease holds."""
        return self.active | self.spare | self.tenant


class Vacated(NamedTuple):
    """What preempted leases gave back at a time: GPUs, and GPU-ms that were promised for them, and the lent part of both."""

    at: int
    gpus: int
    promised: int
    lent_gpus: int
    lent_promised: int


NOTHING_VACATED = Vacated(-1, 0, 0, 0, 0)


class AuditAccount:
    """What one envelope pays, and its terms in force; None where no Budget has it (any more)."""

    __slots__ = (
        "all", "budget", "caps", "concurrency", "envelope", "fits", "hours", "lent", "owner", "plain", "terms", "vacated",
        "windowed",
    )  # fmt: skip

    def __init__(self, budget: str, envelope: str) -> None:
        self.budget = budget
        self.envelope = envelope
        self.owner = ""
        self.terms: Envelope | None = None
        self.windowed = self.plain = False
        self.concurrency = 0
        self.hours: int | None = None
        self.caps: list[tuple[AggregateCap, list[AuditAccount]]] = []
        self.fits: set[object] = set()  # the places that are known to match flavor and selector
        self.all = AuditUsage()
        self.lent = AuditUsage()
        self.vacated = NOTHING_VACATED

    def set_terms(self, owner: str, terms: Envelope | None) -> None:
        """Put other terms in force; the past stays as it was."""
        self.owner, self.terms = owner, terms
        self.windowed = terms is not None and (terms.start is not None or terms.end is not None)
        self.caps, self.fits = [], set()
        self.plain = terms is not None and not self.windowed  # as long as no aggregate cap is put on it
        if terms is not None:
            self.concurrency, self.hours = terms.concurrency, terms.max_gpu_hours
        for tally in (self.all, self.lent):
            tally.set_window(*((None, None) if terms is None else (terms.start, terms.end)))

    def vacate(self, given: Vacated) -> None:
        """Note what a preemption gave back; what was given back at another time counts like all that is free."""
        at, *more = given
        same = self.vacated.at == at
        self.vacated = Vacated(at, *map(add, self.vacated[1:], more)) if same else given

    def cap(self, cap: AggregateCap, members: list[AuditAccount]) -> None:
        """Let an aggregate cap of several envelopes bind this one too."""
        self.caps.append((cap, members))
        self.plain = False


Lease = tuple[int, int, int, int, int, AuditAccount, str, int | None, AuditNode, int, Role]
"""(since, gpus, kind, fund, group, account, payer's owner, deadline, node, slots as bits, role). `since` is when it
came to be of its kind: the time before that is on the bill already."""

Money = tuple[AuditAccount, int, str]
"""(account, fund, payer's owner): one of an event's payers."""


class LostPods(NamedTuple):
    """When a run last lost GPUs with a node or in a drill, how many of each group and role, and whose money paid for them."""

    at: int
    gpus: dict[tuple[int, Role], int]
    payers: set[Money]


NOTHING_LOST = LostPods(-1, {}, set())


class AuditRun(msgspec.Struct, gc=False):
    """A run that lives: the leases of its attempt by number (None: closed), and what it owes so far by class.

    `location` is what it requires of every node, `lenders` are its sponsors where it may borrow. `first` is the first number that
    its leases may have, as an earlier run had its name. `leaving` are the leases that were asked to leave, and why; `owed` are the
    pods that spares are to take over for when their tenants are gone.
    """

    owner: str
    flavor: str
    funding: Funding
    max_duration: int | None
    counted: bool
    location: dict[str, str]
    lenders: tuple[str, ...] = ()
    leases: dict[int, Lease | None] = {}
    leaving: dict[int, tuple[Reason, str | None]] = {}
    owed: dict[str, LostPods] = {}
    bill: list[int] = msgspec.field(default_factory=[0, 0, 0, 0, 0].copy)
    attempt: int = 0
    first: int = 0
    last: int = 0
    open: int = 0
    borrowed: int = 0
    deadline: int | None = None
    fallen: LostPods = NOTHING_LOST
    lost: set[tuple[AuditAccount, int]] | None = None
    sponsors: dict[str, int] | None = None

    def fund(self, funding: Funding) -> None:
        """Ask this money from now on: beyond the family nobody, unless it may borrow and names somebody."""
        self.funding = funding
        self.lenders = funding.sponsors if funding.allow_borrow else ()

    def begin(self, attempt: int, now: int) -> None:
        """Another attempt: the limit counts anew, and so do its leases."""
        self.attempt = attempt
        if self.max_duration is not None:
            self.deadline = now + self.max_duration
        if self.leases:
            self.last = self.reached()
            self.leases = {}

    def reached(self) -> int:
        """The first number that no lease of any of its attempts has reached."""
        return max(self.last, self.first, max(self.leases, default=-1) + 1)

    def held(self) -> list[int]:
        """The numbers of the leases that are open."""
        return [number for number, lease in self.leases.items() if lease is not None]

    def overdrawn(self, account: AuditAccount, group: int) -> bool:
        """Whether cover was lost for the unit that a lease belongs to."""
        return self.lost is not None and ((account, -1) in self.lost or (account, group) in self.lost)

    def owe(self, sponsor: str, spent: int) -> None:
        """Note what was spent of a sponsor's money."""
        if self.sponsors is None:
            self.sponsors = {}
        self.sponsors[sponsor] = self.sponsors.get(sponsor, 0) + spent


def bits(slots: tuple[int, ...]) -> int:
    """Slots as the bits of an integer."""
    mask = 0
    for slot in slots:
        mask |= 1 << (slot if 0 <= slot < SLOT_MAX else SLOT_MAX)
    return mask
