"""Where the ledger lies: entries in a hash chain, appended by compare-and-append, and what can be asked of the past.

The live state (`ledger.state`) holds what is open. What is over lies here, indexed for the questions people ask of it: a run's
story, leases by run, node, owner, envelope and time, runs that ended. A store derives those indexes from the events it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fairlease.ledger.state.events import AnyEvent, RunEnded
from fairlease.model.lease import Lease
from fairlease.model.record import Key, Record

GENESIS = "0" * 64
"""What the first entry holds as the hash of the entry before it."""


class Conflict(Exception):  # noqa: N818 - it is no error: somebody else was first
    """The ledger's head is not where the writer thought it was: another writer came first, and this one must step down."""


class Head(Record, frozen=True, kw_only=True):
    """The last entry: its number, hash and time. An empty ledger has number 0."""

    seq: int = 0
    hash: str = GENESIS
    at: int = 0


class Entry(Record, frozen=True, kw_only=True):
    """One atomic step of the ledger: everything that one decision tick made true."""

    seq: int
    at: int
    prev: str
    hash: str
    events: tuple[AnyEvent, ...]


class Snapshot(Record, frozen=True, kw_only=True):
    """The folded state as of one entry, with the digest of its bytes."""

    seq: int
    hash: str
    at: int
    digest: str
    body: bytes


class LeaseRow(Record, frozen=True, kw_only=True):
    """A lease with its end, where it has one. `closure` is the reason as people see it: `RandomPreempt(<seed>)`."""

    lease: Lease
    end: int | None = None
    closure: str | None = None


class LeaseQuery(Record, frozen=True, kw_only=True):
    """Which leases; everything left out matches all. `since`/`until`: open at some instant of [since, until).

    `owner` is the run's and `payer` the Budget's: each stands for itself and all owners below it.
    """

    run: Key | None = None
    node: str | None = None
    owner: str | None = None
    budget: Key | None = None
    envelope: str | None = None
    payer: str | None = None
    open: bool | None = None
    since: int | None = None
    until: int | None = None
    limit: int | None = None


class Moment(Record, frozen=True, kw_only=True):
    """One event of a story, with its place and time."""

    seq: int
    at: int
    event: AnyEvent


class Ending(Record, frozen=True, kw_only=True):
    """How and when a run ended."""

    seq: int
    at: int
    ended: RunEnded


class Ledger(Protocol):
    """What a state is folded from."""

    def head(self) -> Head:
        """The last entry."""

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """The entries behind number `after`, in order."""

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot whose digest is right and whose entry is in the chain, or None."""


class Store(Ledger, Protocol):
    """A ledger's place that takes entries at once and answers for the past: in memory, in SQLite.

    The one on Kubernetes (`kube.journal`) has to wait for the API server, and leaves the past to whoever asks.
    """

    def append(self, expected_seq: int, at: int, events: tuple[AnyEvent, ...]) -> Entry:
        """Make `events` the entry after `expected_seq`, durably and atomically; raises `Conflict` where the head is another."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; older ones may go."""

    def story(self, run: Key) -> list[Moment]:
        """Every event that names a run, in order."""

    def leases(self, query: LeaseQuery) -> Iterator[LeaseRow]:
        """Leases in opening order."""

    def entries_with(self, kind: type[AnyEvent], limit: int, name: str = "") -> list[Entry]:
        """The last `limit` entries that hold an event of this kind (and this text), in order; all where it is negative."""

    def endings(self, limit: int | None = None) -> list[Ending]:
        """Runs that ended, the latest first."""
