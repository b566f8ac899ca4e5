"""What people may ask of any backend: the arguments of each verb, and how a request is refused.

Everything here comes from outside. Unknown arguments and wrong types are refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.model.amount import parse_instant
from fairlease.model.document import INTEGER_MAX
from fairlease.model.owner import at_or_below
from fairlease.model.record import Key, key
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlease.engine.refusal import Refusal

LIMIT = 100
LIMIT_MAX = 10_000


class Refused(Exception):  # noqa: N818 - a value on its way to the caller, not a failure of ours
    """A request that is not granted: why, and what would change it."""

    def __init__(
        self, reason: Reason, message: str, remedy: str | None = None, *, problems: Sequence[Any] = ()
    ) -> None:
        super().__init__(message)
        self.reason, self.message, self.problems = reason, message, problems
        self.remedy = reason.remedy if remedy is None else remedy


def check(refusal: Refusal | Refused | None, remedy: str | None = None) -> None:
    """Go on only if nothing stands against it."""
    if isinstance(refusal, Refused):
        raise refusal
    if refusal is not None:
        raise Refused(refusal.reason, refusal.message, remedy)


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No arguments."""


class Objects(Args, frozen=True):
    """Objects to submit or to write."""

    objects: list[Any]
    generate_name: bool = False


class SubmitArgs(Objects, frozen=True):
    """Runs to submit; `wait_for_nodes`: also those that no node there is could hold."""

    wait_for_nodes: bool = False


class OneObject(Args, frozen=True):
    """An object to think about."""

    object: Any


class OneRun(Args, frozen=True):
    """A run by its name."""

    run: str


class Eta(Args, frozen=True):
    """A run by its name, or nobody's: all that wait, of an owner and all below where one is named."""

    run: str | None = None
    owner: str | None = None
    limit: int = LIMIT


class ReportArgs(Args, frozen=True):
    """Whose forecasts, made since when."""

    owner: str | None = None
    since: str | None = None


class RunOrObject(Args, frozen=True):
    """A run that is there, or one that might be."""

    run: str | None = None
    object: Any = None


class Runs(Args, frozen=True):
    """Runs by their names."""

    runs: list[str]


class ListArgs(Args, frozen=True):
    """Which runs."""

    owner: str | None = None
    phase: str | None = None
    namespace: str | None = None
    all: bool = False
    limit: int = LIMIT


class OneBudget(Args, frozen=True):
    """A Budget by its name."""

    budget: str


class SomeBudget(Args, frozen=True):
    """A Budget by its name, or all."""

    budget: str | None = None


class Borrower(Args, frozen=True):
    """Whose loans: those of this owner and of owners below it, or all."""

    owner: str | None = None


class StopLending(Args, frozen=True):
    """A Budget, or one envelope of it; `recall`: running loans are called back too."""

    budget: str
    envelope: str | None = None
    recall: bool = False


class SponsorArgs(Args, frozen=True):
    """A run, an owner to borrow from, and how many GPUs the run may borrow in all."""

    run: str
    owner: str
    max_gpus: int | None = None


class ResizeArgs(Args, frozen=True):
    """A width to have, or a number of GPUs to give back. `narrower`: it must not become wider."""

    run: str
    to: int | None = None
    by: int | None = None
    narrower: bool = False


class DrillArgs(Args, frozen=True):
    """Whose swap to rehearse; no rank: any."""

    run: str
    rank: int | None = None


class Leases(Args, frozen=True):
    """Which leases; instants are RFC 3339."""

    run: str | None = None
    node: str | None = None
    owner: str | None = None
    budget: str | None = None
    envelope: str | None = None
    open: bool | None = None
    since: str | None = None
    until: str | None = None
    limit: int = LIMIT

    def query(self) -> LeaseQuery:
        """The question to a store."""
        return LeaseQuery(
            run=None if self.run is None else name_key(self.run),
            node=self.node,
            owner=self.owner,
            budget=None if self.budget is None else name_key(self.budget),
            envelope=self.envelope,
            open=self.open,
            since=instant("since", self.since),
            until=instant("until", self.until),
            limit=bounded(self.limit),
        )


class WhoPays(Args, frozen=True):
    """Whose runs; nobody's name: all that run. `payer`: only what this owner pays. `all`: also runs that are over.

    `since`, `until`: only what was used in that period, whether a run is over or not.
    """

    run: str | None = None
    owner: str | None = None
    payer: str | None = None
    all: bool = False
    since: str | None = None
    until: str | None = None


class Wait(Args, frozen=True):
    """Until when, and for what."""

    seq: int
    timeout_ms: int = 30_000


class ReservationsArgs(Args, frozen=True):
    """Whose; `all`: those that are over too."""

    run: str | None = None
    namespace: str | None = None
    all: bool = False
    limit: int = LIMIT


class Outcomes(Args, frozen=True):
    """Which resolutions: one by its name, those that concern a run, or the last of all."""

    name: str | None = None
    run: str | None = None
    limit: int = LIMIT


class ResolveArgs(Args, frozen=True):
    """What to free by hand: GPUs of a flavor on nodes with these labels, in pods and groups."""

    flavor: str
    gpus: int
    location: dict[str, str] = {}
    pod: int = 1
    group: int | None = None
    reason: str = ""
    dry_run: bool = False


class Export(Args, frozen=True):
    """What to write down."""

    what: str
    since: str | None = None
    until: str | None = None


A = TypeVar("A", bound=Args)


def read_args(kind: type[A], raw: dict[str, Any]) -> A:
    """A verb's arguments; a number among them may end up in the ledger, and is no larger than one in a file may be."""
    for name, value in raw.items():
        if isinstance(value, int) and abs(value) > INTEGER_MAX:
            message = f"{name}: {value}: integers go up to {INTEGER_MAX}"
            raise Refused(Reason.InvalidRequest, message, "give a smaller number")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise Refused(Reason.InvalidRequest, f"arguments: {error}", "correct the arguments") from None


def name_key(name: str) -> Key:
    """The key behind a name that somebody typed."""
    if not name or name.count("/") > 1:
        raise Refused(Reason.InvalidRequest, f"{name!r} is not a name", "write a name, or namespace/name")
    return key(name)


def instant(name: str, text: str | None) -> int | None:
    """An instant that somebody typed."""
    try:
        return None if text is None else parse_instant(text)
    except (ValueError, OverflowError) as error:
        raise Refused(Reason.InvalidRequest, f"{name}: {error}", "write it as 2026-01-05T00:00:00Z") from None


def bounded(limit: int) -> int:
    """A limit that somebody typed, no larger than what an answer may hold."""
    if limit < 1:
        raise Refused(Reason.InvalidRequest, f"limit: {limit} is less than 1", "ask for at least one")
    return min(limit, LIMIT_MAX)


def concerns(owner: str | None, other: str) -> bool:
    """Whether something of the `other` owner is asked for: nobody is named, or one at or above it."""
    return owner is None or at_or_below(other, owner)
