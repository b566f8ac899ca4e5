"""By hand: an administrator frees GPUs for maintenance, by the rules of a claim and with the record of one (SEMANTICS §7).

There is no run that takes what comes free: the claim is only thought of. What counts as free is what nobody uses, whoever has a
lien on it, and nodes that are cordoned count too, because who wants a rack empty cordons it first. Nothing more is held: who asks
next may take what was freed where its node is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.fit_count import FitCount
from fairlease.engine.place.packing import need_of
from fairlease.engine.preempt import lottery
from fairlease.engine.preempt.lottery import LotteryPools
from fairlease.engine.preempt.resolve import resolution
from fairlease.engine.preempt.selection import Selection
from fairlease.engine.refusal import Refusal
from fairlease.ledger.state.events import LeasesClosed
from fairlease.ledger.state.runs import RunState
from fairlease.ledger.state.slots import works
from fairlease.model.amount import format_duration, format_instant
from fairlease.model.record import Key
from fairlease.model.run import Locality, LocationPolicy, Resources, RunSpec
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.engine.command import Resolve
    from fairlease.engine.place.packing import Need
    from fairlease.engine.preempt.resolve import Resolution
    from fairlease.engine.preempt.selection import Choice
    from fairlease.ledger.state.capacity import NodeState, Pool
    from fairlease.ledger.state.state import State

NOBODY = Key("?/by-hand")
"""The key of a claim that is only thought of. No run can have it."""


class DrainScope(FitCount):
    """Seats as maintenance sees them: liens do not count, and cordoned nodes do."""

    def __init__(self, state: State, pool: Pool, mask: int, need: Need) -> None:
        super().__init__(state, pool, mask, need, None)

    def _counted(self) -> dict[tuple[str, str, str], int]:
        size, mask = self.need.size, self.mask
        return {
            domain.key: sum(self._room(node) // size for node in domain.nodes.values() if node.bit & mask)
            for domain in self.pool.domains.values()
            if domain.mask & mask
        }

    def _room(self, node: NodeState) -> int:
        return node.free.bit_count() if works(node.barred) else 0

    def _blocked(self, node: NodeState) -> int:
        del node
        return 0

    def _works(self, node: NodeState) -> bool:
        return works(node.barred)


class Empty(DrainScope):
    """The same with nothing running."""

    def _room(self, node: NodeState) -> int:
        return node.node.gpus if works(node.barred) else 0


def free_by_hand(state: State, command: Resolve, now: int, beacon: str) -> Resolution | Refusal | None:
    """Who must give way so that what was asked is free; None where it is, a refusal where it cannot be."""
    asked, flavor = command.asked, command.flavor
    pod, group = asked.gpus_per_pod, asked.gpus_per_pod if asked.group_gpus is None else asked.group_gpus
    if asked.gpus < 1 or pod < 1 or asked.gpus % pod:
        return Refusal(Reason.InvalidRequest, f"{asked.gpus} GPUs do not divide into pods of {pod}", {})
    if group < 1 or group % pod:
        return Refusal(Reason.InvalidRequest, f"groups of {group} GPUs do not divide into pods of {pod}", {})
    pool = state.capacity.pools.get(flavor)
    mask = 0 if pool is None else pool.nodes_matching(command.location)
    if pool is None or not mask:
        where = "".join(f", {name}={value}" for name, value in command.location.items())
        return Refusal(Reason.NotFound, f"no node has flavor={flavor}{where}", {})
    claim = _claim(command, now)
    seats = DrainScope(state, pool, mask, need_of(claim.spec, asked.gpus))
    if seats.fits():
        return None
    if not Empty(state, pool, mask, seats.need).fits():
        message = f"these nodes could not hold {asked.gpus} GPUs in pods and groups as asked if nothing ran on them"
        return Refusal(Reason.NeverFits, message, {})
    selection = Selection(LotteryPools(state), claim, seats, now, due=True)
    found = selection.choose(lambda pool: lottery.draws(pool.seed(state, claim, now, beacon), pool.tokens))
    if found is None:
        return _too_young(state, pool, mask, now)
    assert _frees(state, pool, mask, claim, found, now), "what is counted free is free when it is carried out"
    return resolution(state, claim, found, now, beacon, None, asked)


def _claim(command: Resolve, now: int) -> RunState:
    asked = command.asked
    spec = RunSpec(
        owner="",
        resources=Resources(gpu_type=command.flavor, total_gpus=asked.gpus),
        locality=Locality(
            group_gpus=asked.group_gpus, location=command.location, location_policy=LocationPolicy.REQUIRE
        ),
        gpus_per_pod=asked.gpus_per_pod,
    )
    return RunState(NOBODY, spec, now, 0)


def _frees(state: State, pool: Pool, mask: int, claim: RunState, found: Choice, now: int) -> bool:
    """Carry it out on a trial, and count anew."""
    with state.trial():
        for victim in found.victims:
            state.apply(now, LeasesClosed(run=victim.run, names=victim.names, reason=victim.reason))
        need = need_of(claim.spec, claim.spec.resources.total_gpus)
        return DrainScope(state, pool, mask, need).fits()


def _too_young(state: State, pool: Pool, mask: int, now: int) -> Refusal:
    """What holds the GPUs is younger than may be drawn."""
    least, ready = state.config.min_runtime, now
    for node in state.capacity.nodes.values():
        if node.domain is not None and node.domain.pool is pool and node.bit & mask:
            started = (state.runs[lease.run].started_at or now for lease in node.leases.values())
            ready = max(ready, *(start + least for start in started), now)
    old = f"older than minRuntime ({format_duration(least)}); all of it is at {format_instant(ready)}"
    return Refusal(Reason.TooYoung, f"not enough work is {old}", {})
