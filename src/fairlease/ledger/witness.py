"""What the audit reads of each event: only the fields that move slots and money, in records of its own.

Reading less is what makes a million leases quick to prove. It hides nothing, because the hash covers every byte of a body;
and it keeps the audit from believing what the rest of the program would have filled in. A record here bears the name of the
event it reads; `gc=False` says that it holds no cycles, so that the collector need not know of it.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, get_args

import msgspec

from fairlease.ledger import event as ev
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.lease import Fund, Role
from fairlease.model.node import Node
from fairlease.model.record import api_name
from fairlease.model.run import Funding
from fairlease.reason import Reason


class Part(msgspec.Struct, frozen=True, rename=api_name, gc=False):
    """A part of an event."""


class Event(Part, frozen=True, tag=True, tag_field="event", gc=False):
    """An event, known by its name."""


class Configured(Event, frozen=True, gc=False):
    """New settings."""

    config: Config


class NodeSet(Event, frozen=True, gc=False):
    """A node was seen."""

    node: Node


class NodeFailed(Event, frozen=True, gc=False):
    """A node failed."""

    node: str


class NodeRemoved(Event, frozen=True, gc=False):
    """A node is gone for good."""

    node: str


class BudgetSet(Event, frozen=True, gc=False):
    """A Budget's terms."""

    budget: str
    spec: BudgetSpec


class BudgetRemoved(Event, frozen=True, gc=False):
    """A Budget is gone."""

    budget: str


class Runtime(Part, frozen=True, gc=False):
    """How long an attempt may take."""

    max_duration: int | None = None


class RunSpec(Part, frozen=True, gc=False):
    """Who asks, and whose money they may take."""

    owner: str
    opportunistic: bool = False
    runtime: Runtime = Runtime()
    funding: Funding = Funding()


class RunSubmitted(Event, frozen=True, gc=False):
    """A run came to be."""

    run: str
    spec: RunSpec


class Payer(Part, frozen=True, gc=False):
    """Whose money."""

    budget: str
    envelope: str
    owner: str
    fund: Fund


class Cell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One lease, in the order of `event.Cell`."""

    number: int
    group: int
    rank: int
    node: str
    slots: tuple[int, ...]
    payer: int
    role: Role = Role.ACTIVE


class LeasesOpened(Event, frozen=True, gc=False):
    """Leases came to be."""

    run: str
    attempt: int
    reason: Reason
    payers: tuple[Payer, ...]
    cells: tuple[Cell, ...]


class LeasesClosed(Event, frozen=True, gc=False):
    """Leases ended; without names, all of the run."""

    run: str
    names: tuple[str, ...] = ()


class Bill(Part, frozen=True, gc=False):
    """What a run is said to have used up."""

    owned: int = 0
    shared: int = 0
    borrowed: int = 0
    overdrawn: int = 0
    spares: int = 0
    sponsors: dict[str, int] | None = None


class RunEnded(Event, frozen=True, gc=False):
    """A run is over."""

    run: str
    bill: Bill = Bill()


class CoverLost(Event, frozen=True, gc=False):
    """A unit is overdrawn."""

    run: str
    budget: str
    envelope: str
    group: int = -1


class CoverRegained(Event, frozen=True, gc=False):
    """A unit is covered again."""

    run: str
    budget: str
    envelope: str
    group: int = -1


_READ: tuple[type[Event], ...] = (
    Configured, NodeSet, NodeFailed, NodeRemoved, BudgetSet, BudgetRemoved, RunSubmitted, LeasesOpened, LeasesClosed,
    RunEnded, CoverLost, CoverRegained,
)  # fmt: skip
_names = {kind.__name__ for kind in _READ}

IGNORED: tuple[type[Event], ...] = tuple(
    msgspec.defstruct(kind.__name__, [], bases=(Event,), frozen=True, tag=kind.__name__)
    for kind in get_args(ev.AnyEvent)
    if kind.__name__ not in _names
)
"""The events that move neither slots nor money: nothing is read of them but their name."""

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    tuple[functools.reduce(operator.or_, (*_READ, *IGNORED)), ...]  # type: ignore[misc]  # a union that is made here
)

read = _decoder.decode
"""The events of a stored body, as far as the audit cares."""
