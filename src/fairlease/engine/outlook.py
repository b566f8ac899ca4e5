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
from fairlease.ledger.slots import bits_of, slots_of
from fairlease.ledger.timers import Due
from fairlease.model.lease import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlease.engine.pack import Need
    from fairlease.ledger.capacity import Domain, NodeState, Pool
    from fairlease.ledger.live import RunState
    from fairlease.ledger.state import State
    from fairlease.model.lease import Lease

EVER, NEVER = 0, 1 << 62
"""Earlier and later than any date."""

REMEMBERED_MAX = 65_536
"""Nodes that a horizon remembers."""

FREE, BY_FACT, SPARE, WIDTH, WHOLE, GUESSED = range(6)
"""How a slot comes free, the least harmful first."""

CUTS = (SPARE, WIDTH, WHOLE)
"""Ways in which others give way."""

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


class Horizon:
    """What the newest claim sees, kept from tick to tick while nothing changed: by domain, size of a pod, and with guesses or not.

    Only where no cuts count, whose dates move with the clock. All else is a time that stands until its node changes, or until a
    guess is proved wrong; so what is remembered is what would be computed anew.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Domain, int, bool], tuple[int, int, list[Pod]]] = {}
        self._slots: dict[tuple[NodeState, bool], tuple[int, int, list[tuple[int, int, int]]]] = {}
        self._budgets = 0

    def pods(self, outlook: Outlook, domain: Domain, size: int) -> list[Pod]:
        """As `Outlook.pods`, for a whole domain."""
        if self._budgets != outlook.state.budgets_version or len(self._slots) > REMEMBERED_MAX:
            self._known.clear()
            self._slots.clear()
            self._budgets = outlook.state.budgets_version
        key = (domain, size, outlook.terms.guess)
        version, wrong_at, found = self._known.get(key, (-1, 0, []))
        if version != domain.version or wrong_at <= outlook.now:
            found = [pod for node in domain.nodes.values() for pod in outlook.cut(node, self._of(outlook, node), size)]
            found.sort(key=lambda pod: (pod.ready, pod.node.order))
            wrong_at = min((self._slots[node, key[2]][1] for node in domain.nodes.values()), default=NEVER)
            self._known[key] = (domain.version, wrong_at, found)
        return found

    def _of(self, outlook: Outlook, node: NodeState) -> list[tuple[int, int, int]]:
        key = (node, outlook.terms.guess)
        version, wrong_at, slots = self._slots.get(key, (-1, 0, []))
        if version != node.version or wrong_at <= outlook.now:
            slots = sorted(outlook.slots(node))
            wrong_at = min((when for when, how, _ in slots if how == GUESSED), default=NEVER)
            self._slots[key] = (node.version, wrong_at, slots)
        return slots


class Outlook:
    """What one claim sees of a pool, on the nodes of `mask`."""

    def __init__(self, state: State, claim: RunState, now: int, terms: Terms, horizon: Horizon | None = None) -> None:
        near = state.standings.near.get(claim.spec.resources.gpu_type)
        newest = not claim.displaced_by and (not near or near.peekitem(-1)[0] < claim.order)
        self.horizon = horizon if newest and terms.cut_at is None and not state.overdrawn else None
        self.state = state
        self.claim = claim
        self.now = now
        self.terms = terms
        self._runs: dict[str, tuple[Ready, frozenset[int]]] = {}
        self._leases: dict[tuple[str, Role, int, int], Ready] = {}
        self._afters: dict[str, Ready] = {}

    def pods(self, domain: Domain, mask: int, size: int) -> list[Pod]:
        """Room for pods of `size` GPUs in a domain, the earliest first."""
        if self.horizon is not None and domain.mask & mask == domain.mask:
            return self.horizon.pods(self, domain, size)
        inside = [node for node in domain.nodes.values() if node.bit & mask]
        found = [pod for node in inside for pod in self.cut(node, sorted(self.slots(node)), size)]
        found.sort(key=lambda pod: (pod.ready, pod.node.order))
        return found

    @staticmethod
    def cut(node: NodeState, slots: list[tuple[int, int, int]], size: int) -> Iterator[Pod]:
        """Pods of `size` GPUs, out of a node's slots in the order in which they come free."""
        if node.barred:
            return
        for first in range(0, len(slots) - size + 1, size):
            chosen = slots[first : first + size]
            last = chosen[-1]
            if last[0] >= NEVER:
                return
            yield Pod((last[0], max(each[1] for each in chosen)), node, sum(1 << each[2] for each in chosen))

    def slots(self, node: NodeState) -> list[tuple[int, int, int]]:
        """(when, how, slot) for each slot of a node; what is free now has been so since ever."""
        found = [(EVER, FREE, slot) for slot in slots_of(node.free)]
        for lease in node.leases.values():
            when, how = self._lease(lease)
            tenant = lease.role is Role.BORROWED
            found += [(when, how, slot) for slot in lease.slots if not tenant or not node.spare >> slot & 1]
        for run, slots in node.liens.items():
            other = self.state.holds[run]
            if other is not self.claim and other.order < self.claim.order:
                when, how = self._after(other)
                found = [(when, how, each[2]) if slots >> each[2] & 1 and each[0] < when else each for each in found]
        return found

    def _lease(self, lease: Lease) -> Ready:
        """When a lease gives its slots back; alike for all leases of a run that only their role, payer and group tell apart."""
        known = (lease.run, lease.role, id(lease.payer), lease.group)
        found = self._leases.get(known)
        if found is None:
            found = self._leases[known] = self._find(lease)
        return found

    def _find(self, lease: Lease) -> Ready:
        run = self.state.runs[lease.run]
        if lease.opportunistic or (run.overdrawn and run.unit(lease) in run.overdrawn):
            return EVER, FREE
        whole, elastic = self._run(run)
        terms = self.state.account(lease.payer.budget, lease.payer.envelope).envelope
        best = whole
        if terms is not None and terms.end is not None:
            best = min(best, (terms.end, BY_FACT))
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
            options.append((run.deadline, BY_FACT))
        if self.terms.cut_at is not None and run.key not in self.claim.displaced_by:
            options.append((max(self.terms.cut_at, start + self.state.config.min_runtime), WHOLE))
        if self.terms.guess:
            options.append((predict.end_of(run, self.now), GUESSED))
        return min(options)

    def _after(self, other: RunState) -> Ready:
        """When a run that asked earlier, and has a lien, gives its slots back."""
        found = self._afters.get(other.key)
        if found is None:
            found = self._afters[other.key] = self._find_after(other)
        return found

    def _find_after(self, other: RunState) -> Ready:
        hold = other.hold
        assert hold is not None, "a lien belongs to a reservation in force"
        start, limit = hold.earliest_start, other.spec.runtime.max_duration
        options = [(NEVER, GUESSED)]
        if limit is not None:
            options.append((start + limit, BY_FACT))
        if self.terms.cut_at is not None:
            options.append((max(self.terms.cut_at, start + self.state.config.min_runtime), WHOLE))
        if self.terms.guess:
            options.append((start + predict.duration_of(other), GUESSED))
        return min(options)


class Between(Outlook):
    """What a claim sees that surely ends: liens that begin late enough are no hindrance to who is out of their way by then."""

    def __init__(self, state: State, claim: RunState, now: int, limit: int) -> None:
        super().__init__(state, claim, now, Terms(None, guess=False))
        self._limit = limit

    def _after(self, other: RunState) -> Ready:
        assert other.hold is not None, "a lien belongs to a reservation in force"
        return (EVER, FREE) if other.hold.earliest_start >= self.now + self._limit else super()._after(other)

    def first_fit(self, pool: Pool, mask: int, need: Need) -> Fit | None:
        """When and where it would fit first and be over in time; None where that cannot be told from the first place it finds."""
        fit = first_fit(pool, mask, need, self)
        if fit is None or fit.when <= self.now:
            return None
        holds = (
            self.state.holds[run] for pod in fit.pods for run, slots in pod.node.liens.items() if slots & pod.slots
        )
        ahead = (each.hold for each in holds if each.order < self.claim.order)
        return fit if all(hold is None or hold.earliest_start >= fit.when + self._limit for hold in ahead) else None


class Fit(NamedTuple):
    """The first time at which a need would fit, how the last slot it needs comes free, and the pods it would then use."""

    when: int
    how: int
    pods: list[Pod]


def first_fit(pool: Pool, mask: int, need: Need, outlook: Outlook) -> Fit | None:
    """When and where it would fit first; None where it would not at any time.

    Mostly nothing comes free by itself before the notice is over. Then domains are looked at only until there are enough: the
    smallest hole that fits, as for a start, and then those that lack least.
    """
    soonest = outlook.terms.cut_at if _nothing_before_the_cut(outlook) else None
    by_domain: list[list[Pod]] = []
    group = need.size * (need.pods if need.together else need.blocks[0].pods)
    for domain in sorted(
        pool.domains.values(), key=lambda each: (each.liened > 0, *_hole(each.free, group), each.order)
    ):
        if not domain.mask & mask:
            continue
        pods = outlook.pods(domain, mask, need.size)
        if pods:
            by_domain.append(pods)
            if soonest is not None and _suffices(by_domain, need, soonest):
                break
    if need.together:
        whole = [pods for pods in by_domain if len(pods) >= need.pods]
        best = min(whole, key=lambda pods: pods[need.pods - 1].ready, default=None)
        return None if best is None else _fit(best[: need.pods])
    times = sorted({pod.ready[0] for pods in by_domain for pod in pods})
    place = bisect_left(times, 1, key=lambda when: int(_holds(by_domain, need, when)))
    return None if place == len(times) else _fit(_choose(by_domain, need, times[place]))


def _hole(free: int, group: int) -> tuple[bool, int]:
    """Holes that fit before others, the smallest first; of the others the largest first."""
    return (False, free) if free >= group else (True, -free)


def _nothing_before_the_cut(outlook: Outlook) -> bool:
    """Whether a slot that is taken can come free before the notice is over: by a deadline, a window, or the end of a short wait."""
    cut_at, state = outlook.terms.cut_at, outlook.state
    if cut_at is None or outlook.claim.displaced_by or state.opportunistic or state.overdrawn:
        return False
    if any(due in (Due.DEADLINE, Due.WINDOW) for due, _ in state.timers.before(cut_at)):
        return False
    limits = ((other.hold, other.spec.runtime.max_duration) for other in state.holds.values())
    return not any(
        hold is not None and limit is not None and hold.earliest_start + limit < cut_at for hold, limit in limits
    )


def _suffices(by_domain: list[list[Pod]], need: Need, when: int) -> bool:
    if need.together:
        return len(by_domain[-1]) >= need.pods and by_domain[-1][need.pods - 1].ready[0] <= when
    return _holds(by_domain, need, when)


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
