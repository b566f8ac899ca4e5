"""Lenders: who would lend to a run what it lacks, the nearest family first as cover asks them, then by name.

Asked are only envelopes that the run does not ask already, and that have money for it: who could not help takes nobody's turn
where only so many are tried.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from fairlease.engine.cover import envelopes
from fairlease.engine.place.plan import Planner
from fairlease.ledger.state import events as ev

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.context import Engine
    from fairlease.ledger.state.accounts import AccountId
    from fairlease.ledger.state.runs import RunState
    from fairlease.model.record import Key
    from fairlease.model.run import RunSpec


class Lenders:
    """Who could lend to a run that is only thought of: `enough` has what is lacking, alone; `some` has a pod's worth at least."""

    def __init__(self, engine: Engine, run: Key, spec: RunSpec, now: int) -> None:
        with _thought_of(engine, run, spec, now) as thought:
            planner = Planner(engine.state, engine.family, thought, now)
            lacking = max(1, planner.least.pods - planner.funding(planner.least.pods)[0])
            kin, lenders = engine.family.turns(thought.signature)
            names = _named(engine, spec, {entry.account.id for entry in (*kin, *lenders)})
        everyone = msgspec.structs.replace(spec.funding, allow_borrow=True, max_borrow_gpus=None, sponsors=names)
        with _thought_of(engine, run, spec.funded(everyone), now) as thought:
            pods = _pods(engine, thought, now)
        self.some = tuple(name for name in names if pods.get(name, 0) > 0)
        self.enough = tuple(name for name in self.some if pods[name] >= lacking)


@contextmanager
def _thought_of(engine: Engine, run: Key, spec: RunSpec, now: int) -> Iterator[RunState]:
    """A run as if it had just been submitted; afterwards it never was."""
    state = engine.state
    with state.trial():
        state.apply(now, ev.RunSubmitted(run=run, spec=spec))
        yield state.runs[run]


def _named(engine: Engine, spec: RunSpec, asked: set[AccountId]) -> tuple[str, ...]:
    """Owners with an envelope that would lend and is not asked yet."""
    order = engine.family.order((spec.owner, True, (spec.owner,)))  # all of the family, as if somebody were named
    near = {entry.account.owner: place for place, entry in reversed(list(enumerate(order)))}
    owners = {
        account.owner
        for account in engine.state.accounts.values()
        if account.id not in asked
        and account.owner != spec.owner
        and account.envelope is not None
        and account.envelope.flavor == spec.resources.gpu_type
        and envelopes.lends_to(account, spec.owner)
    }
    return tuple(sorted(owners, key=lambda owner: (near.get(owner, len(order)), owner)))


def _pods(engine: Engine, run: RunState, now: int) -> dict[str, int]:
    """How many pods each of those named could pay for; a window that opens later may bring any number."""
    spending = envelopes.Spending(engine.state, run, now)
    rooms: dict[tuple[str, AccountId], int] = {}
    for offer in envelopes.offers(engine.state, engine.family, run, now):
        if offer.account.owner in run.spec.funding.sponsors:
            room = envelopes.PLENTY if envelopes.opens_later(offer, now) else spending.room(offer)[0]
            lender = offer.account.owner, offer.account.id
            rooms[lender] = max(rooms.get(lender, 0), room)
    pods: dict[str, int] = {}
    for (owner, _), room in rooms.items():
        pods[owner] = pods.get(owner, 0) + room
    return pods
