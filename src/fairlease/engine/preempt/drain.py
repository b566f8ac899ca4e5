"""By hand: an administrator frees GPUs for maintenance, by the rules of a claim and with the record of one (SEMANTICS §7).

There is no run that takes what comes free: the claim is only thought of. What counts as free is what nobody uses, whoever has a
lien on it, and nodes that are cordoned count too, because who wants a rack empty cordons it first. Nothing more is held: who asks
next may take what was freed where its node is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlease.engine.place.fit_count import FitCount
from fairlease.engine.place.packing import fits_empty, need_of
from fairlease.engine.preempt import lottery
from fairlease.engine.preempt.lottery import LotteryPools
from fairlease.engine.preempt.resolve import resolution
from fairlease.engine.preempt.selection import Selection
from fairlease.engine.refusal import Refusal
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
    from fairlease.ledger.state.capacity import NodeState, Pool
    from fairlease.ledger.state.state import State

NOBODY = Key("?/by-hand")
"""The key of a claim that is only thought of. No run can have it."""


class DrainScope(FitCount):
    """Room as maintenance sees it, on nodes that are in use or cordoned: liens do not count."""

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
        return node.free.bit_count()

    def _blocked(self, node: NodeState) -> int:
        del node
        return 0

    def _works(self, node: NodeState) -> bool:
        return node.bit & self.mask != 0


def free_by_hand(state: State, command: Resolve, now: int, beacon: str) -> Resolution | Refusal | None:
    """Who must be preempted so that what was asked is free; None where it is, a refusal where it cannot be."""
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
    claim, nodes = _claim(command, now), _working(pool, mask)
    fit = DrainScope(state, pool, sum(node.bit for node in nodes), need_of(claim.spec, asked.gpus))
    if fit.fits():
        return None
    if not fits_empty(pool, fit.mask, fit.need):
        message = f"these nodes could not hold {asked.gpus} GPUs in pods and groups as asked if nothing ran on them"
        return Refusal(Reason.NeverFits, message, {})
    selection = Selection(LotteryPools(state), claim, fit, now, due=True)
    found = selection.choose(lambda pool: lottery.draws(pool.seed(state, claim, now, beacon), pool.tokens))
    if found is None:
        return _too_young(state, nodes, now)
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


def _working(pool: Pool, mask: int) -> list[NodeState]:
    """The nodes of a scope that are in use or cordoned."""
    inside = (node for domain in pool.domains.values() if domain.mask & mask for node in domain.nodes.values())
    return [node for node in inside if node.bit & mask and works(node.barred)]


def _too_young(state: State, nodes: list[NodeState], now: int) -> Refusal:
    """What holds the GPUs is younger than may be drawn."""
    least, runs = state.config.min_runtime, {lease.run for node in nodes for lease in node.leases.values()}
    ready = max([now, *((state.runs[run].started_at or now) + least for run in runs)])
    old = f"older than minRuntime ({format_duration(least)}); all of it is at {format_instant(ready)}"
    return Refusal(Reason.TooYoung, f"not enough work is {old}", {})
