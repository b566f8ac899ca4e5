"""Outlook: when the slots of a pool come free, as a run that waits may count on it (SEMANTICS §6).

A slot that somebody holds comes free by hard facts (a deadline, the end of a payer's window), by a cut (not before the notice is
over, nor before its work is old enough), or, where neither is known, by prediction. A slot under the lien of somebody who asked
earlier comes free after that one. Pods and groups follow from slots by counting, so that "the first time at which it would fit" and
"which slots it then means to use" need no play of the engine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine import predict
from fairlease.engine.elastic import steps
from fairlease.ledger.capacity import bits_of
from fairlease.model.lease import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.pack import Need
    from fairlease.ledger.capacity import Domain, NodeState, Pool
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State
    from fairlease.model.lease import Lease

NEVER = 1 << 62
"""Later than any date."""

FREE, BY_FACT, SPARE, WIDTH, WHOLE, GUESSED = range(6)
"""How a slot comes free, the least harmful first."""

Ready = tuple[int, int]
"""(when, how)."""


class Pod(NamedTuple):
    """Room for one pod, from a time on."""

    ready: Ready
    node: NodeState
    slots: int


class Terms(NamedTuple):
    """What a claim may count on: cuts from `cut_at` on (None: none), predictions or not."""

    cut_at: int | None
    guess: bool


class Outlook:
    """What one claim sees of a pool, on the nodes of `mask`."""

    def __init__(self, state: State, claim: RunState, now: int, terms: Terms) -> None:
        self.state = state
        self.claim = claim
        self.now = now
        self.terms = terms
        self._runs: dict[str, tuple[Ready, frozenset[int]]] = {}

    def pods(self, domain: Domain, mask: int, size: int) -> list[Pod]:
        """Room for pods of `size` GPUs in a domain, the earliest first."""
        found = [pod for node in domain.nodes.values() if node.bit & mask for pod in self._on(node, size)]
        found.sort(key=lambda pod: (pod.ready, pod.node.order))
        return found

    def _on(self, node: NodeState, size: int) -> Iterator[Pod]:
        if node.barred:
            return
        slots = sorted(self._slots(node))
        for first in range(0, len(slots) - size + 1, size):
            chosen = slots[first : first + size]
            last = chosen[-1]
            if last[0] >= NEVER:
                return
            yield Pod((last[0], max(each[1] for each in chosen)), node, sum(1 << each[2] for each in chosen))

    def _slots(self, node: NodeState) -> list[tuple[int, int, int]]:
        """(when, how, slot) for each slot of a node."""
        free = node.free
        found = {slot: (self.now, FREE) for slot in range(node.peak) if free >> slot & 1}
        for lease in node.leases.values():
            if lease.role is not Role.BORROWED:
                ready = self._lease(lease)
                found.update((slot, ready) for slot in lease.slots)
        for run, slots in node.liens.items():
            other = self.state.holds[run]
            if other is not self.claim and other.order < self.claim.order:
                after = self._after(other)
                for slot, ready in found.items():
                    if slots >> slot & 1 and ready < after:
                        found[slot] = after
        return [(when, how, slot) for slot, (when, how) in found.items()]

    def _lease(self, lease: Lease) -> Ready:
        run = self.state.runs[lease.run]
        if lease.opportunistic or (run.overdrawn and run.unit(lease) in run.overdrawn):
            return self.now, FREE
        whole, elastic = self._run(run)
        terms = self.state.account(lease.payer.budget, lease.payer.envelope).envelope
        best = whole
        if terms is not None and terms.end is not None:
            best = min(best, (max(terms.end, self.now), BY_FACT))
        cut_at = self.terms.cut_at
        if cut_at is not None and run.key not in self.claim.displaced_by:
            if lease.role is Role.SPARE:
                best = min(best, (cut_at, SPARE))
            elif lease.group in elastic:
                best = min(best, (cut_at, WIDTH))
        return best

    def _run(self, run: RunState) -> tuple[Ready, frozenset[int]]:
        """When a run ends whole, and the groups that a cut could take before."""
        found = self._runs.get(run.key)
        if found is None:
            assert run.started_at is not None, "what holds leases has started"
            elastic = frozenset(group for step in steps(run) for group in step)
            found = self._runs[run.key] = (self._end(run, run.started_at), elastic)
        return found

    def _end(self, run: RunState, start: int) -> Ready:
        options = [(NEVER, GUESSED)]
        if run.deadline is not None:
            options.append((max(run.deadline, self.now), BY_FACT))
        if self.terms.cut_at is not None and run.key not in self.claim.displaced_by:
            options.append((max(self.terms.cut_at, start + self.state.config.min_runtime), WHOLE))
        if self.terms.guess:
            options.append((predict.end_of(self.state, run, self.now), GUESSED))
        return min(options)

    def _after(self, other: RunState) -> Ready:
        """When a run that asked earlier, and has a lien, gives its slots back."""
        hold = other.hold
        assert hold is not None, "a lien belongs to a reservation in force"
        start, limit = max(hold.earliest_start, self.now), other.spec.runtime.max_duration
        options = [(NEVER, GUESSED)]
        if limit is not None:
            options.append((start + limit, BY_FACT))
        if self.terms.cut_at is not None:
            options.append((max(self.terms.cut_at, start + self.state.config.min_runtime), WHOLE))
        if self.terms.guess:
            options.append((start + predict.duration_of(self.state, other), GUESSED))
        return min(options)


class Fit(NamedTuple):
    """The first time at which a need would fit, how the last slot it needs comes free, and the pods it would then use."""

    when: int
    how: int
    pods: list[Pod]


def first_fit(pool: Pool, mask: int, need: Need, outlook: Outlook) -> Fit | None:
    """When and where it would fit first; None where it would not at any time."""
    by_domain = []
    for domain in sorted(pool.domains.values(), key=lambda each: each.order):
        if domain.mask & mask:
            pods = outlook.pods(domain, mask, need.size)
            if pods:
                by_domain.append(pods)
    if need.together:
        whole = [pods for pods in by_domain if len(pods) >= need.pods]
        best = min(whole, key=lambda pods: pods[need.pods - 1].ready, default=None)
        return None if best is None else _fit(best[: need.pods])
    times = sorted({pod.ready[0] for pods in by_domain for pod in pods})
    place = bisect_left(times, 1, key=lambda when: int(_holds(by_domain, need, when)))
    return None if place == len(times) else _fit(_choose(by_domain, need, times[place]))


def _counts(by_domain: list[list[Pod]], when: int) -> list[int]:
    return [bisect_right(pods, when, key=lambda pod: pod.ready[0]) for pods in by_domain]


def _holds(by_domain: list[list[Pod]], need: Need, when: int) -> bool:
    counts = _counts(by_domain, when)
    first = need.blocks[0]
    groups = sum(count // first.pods for count in counts)
    if len(need.blocks) == 1:
        return groups >= first.groups
    last = need.blocks[1].pods
    return groups > first.groups or (groups == first.groups and any(count % first.pods >= last for count in counts))


def _choose(by_domain: list[list[Pod]], need: Need, when: int) -> list[Pod]:
    """Groups where their pods come free first and with the least harm; the smaller last group from what is left."""
    left = [pods[:count] for pods, count in zip(by_domain, _counts(by_domain, when), strict=True)]
    chosen: list[Pod] = []
    for block in need.blocks:
        for _ in range(block.groups):
            able = [place for place, pods in enumerate(left) if len(pods) >= block.pods]
            place = min(able, key=lambda place: (max(pod.ready[1] for pod in left[place][: block.pods]), place))
            chosen += left[place][: block.pods]
            left[place] = left[place][block.pods :]
    return chosen


def _fit(pods: list[Pod]) -> Fit:
    when, how = max(pod.ready for pod in pods)
    return Fit(when, how, pods)


def lien_of(pods: list[Pod]) -> dict[str, int]:
    """The slots of some pods, as bits by node."""
    lien: dict[str, int] = {}
    for pod in pods:
        name = pod.node.node.name
        lien[name] = lien.get(name, 0) | pod.slots
    return lien


def takes(lien: dict[str, int], node: str, slots: tuple[int, ...]) -> bool:
    """Whether some slots of a node are under a lien."""
    return bool(lien.get(node, 0) & bits_of(slots))
