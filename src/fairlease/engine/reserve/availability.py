"""Availability: when the slots of a pool come free, as a run that waits may count on it (SEMANTICS §6).

A slot that somebody holds comes free by hard facts (a deadline, the end of a payer's window), by a cut (not before the notice is
over, nor before its work is old enough), or, where neither is known, by prediction. A slot under the lien of somebody who asked
earlier comes free after that one. Pods and groups follow from slots by counting, so that "the first time at which it would fit" and
"which slots it then means to use" need no play of the engine.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fairlease.engine.forecast import predicted_ends
from fairlease.engine.place.packing import Rooms, all_fit
from fairlease.engine.place.search import Search
from fairlease.engine.preempt.shrink import steps
from fairlease.engine.reserve import release_times
from fairlease.ledger.state.slots import bits_of, slots_of
from fairlease.ledger.state.timers import Due
from fairlease.model.lease import Role
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlease.engine.place.packing import Need
    from fairlease.engine.place.payers import Payers
    from fairlease.ledger.state.capacity import Domain, NodeState, Pool
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease

EVER, NEVER = release_times.EVER, release_times.NEVER
"""Earlier and later than any date."""

FREE, BY_FACT, SPARE, WIDTH, WHOLE, GUESSED = range(6)
"""How a slot comes free, the least harmful first."""

CUTS = (SPARE, WIDTH, WHOLE)
"""Ways in which others give way."""

Ready = tuple[int, int]
"""(when, how)."""

Rank = tuple[tuple[str | int, ...], str]
"""A node's place in the order of names; no two have the same."""

Slot = tuple[int, int, int]
"""(when, how, slot)."""


REMEMBERED_MAX = 65_536
"""Nodes that a horizon remembers."""


class DatedPod(NamedTuple):
    """Room for one pod, from a time on; in the order in which they come free, and then by node."""

    ready: Ready
    rank: Rank
    node: NodeState
    slots: int


class Terms(NamedTuple):
    """What a claim may count on: cuts from `cut_at` on (None: none), predictions or not."""

    cut_at: int | None
    guess: bool


class Availability:
    """What one claim sees of a pool, on the nodes of `mask`."""

    def __init__(
        self, state: State, claim: RunState, now: int, mask: int, terms: Terms, horizon: AvailabilityCache | None = None
    ) -> None:
        self.mask = mask
        self.horizon = horizon if terms.cut_at is None and not state.overdrawn else None
        self.state = state
        self.claim = claim
        self.now = now
        self.terms = terms
        self._certain = release_times.ReleaseTimes(state)
        self._own: set[NodeState] | None = None
        self._runs: dict[str, tuple[Ready, frozenset[int]]] = {}
        self._leases: dict[tuple[str, Role, int, int], Ready] = {}
        self._afters: dict[str, Ready] = {}

    def pods(self, domain: Domain, size: int) -> list[DatedPod]:
        """Room for pods of `size` GPUs in a domain, the earliest first."""
        mask = self.mask
        if self.horizon is None:
            own, found = set(domain.nodes.values()), []
        else:
            found = self.horizon.pods(self, domain, size)
            own = {node for node in self._seen_otherwise() if node.domain is domain}
            if not own and domain.mask & mask == domain.mask:
                return found
            found = [pod for pod in found if pod.node.bit & mask and pod.node not in own]
        for node in own:
            if node.bit & mask:
                found += self.cut(node, sorted(self.slots(node, self.claim.order)), size)
        found.sort()
        return found

    def _seen_otherwise(self) -> set[NodeState]:
        """Nodes that the claim sees otherwise than the horizon: under its own lien, or of those who asked after it."""
        if self._own is None:
            near, nodes = self.state.standings.near.get(self.claim.spec.resources.gpu_type), self.state.capacity.nodes
            later = () if near is None else near.irange(minimum=self.claim.order)
            holds = [near[order].hold for order in later] if near is not None else []
            names = {name for hold in holds if hold is not None for name in hold.lien}
            self._own = {nodes[name] for name in names if name in nodes}
        return self._own

    @staticmethod
    def cut(node: NodeState, slots: list[Slot], size: int) -> Iterator[DatedPod]:
        """Pods of `size` GPUs, out of a node's slots in the order in which they come free."""
        if node.barred:
            return
        rank = node.rank
        for first in range(0, len(slots) - size + 1, size):
            when, how, slot = slots[first + size - 1]
            if when >= NEVER:
                return
            bits = 1 << slot
            for place in range(first, first + size - 1):
                bits |= 1 << slots[place][2]
                how = max(how, slots[place][1])
            yield DatedPod((when, how), rank, node, bits)

    def slots(self, node: NodeState, order: int = NEVER) -> list[Slot]:
        """When and how each slot of a node comes free for who asked in place `order`."""
        return self.behind(self.held(node), node, order)

    def behind(self, found: list[Slot], node: NodeState, order: int = NEVER) -> list[Slot]:
        """The same slots, after those who asked earlier and have a lien on them."""
        for run, slots in node.liens.items():
            other = self.state.holds[run]
            if other.order < order or (other.order > order and other.hold is not None and other.hold.exclusive):
                when, how = self._after(other)
                found = [(when, how, each[2]) if slots >> each[2] & 1 and each[0] < when else each for each in found]
        return found

    def held(self, node: NodeState) -> list[Slot]:
        """When and how whoever holds them now gives slots back; what is free has been so since ever."""
        found = [(EVER, FREE, slot) for slot in slots_of(node.free)]
        leaving = self.state.leaving
        for serial, lease in node.leases.items():
            when, how = (leaving[serial].until, BY_FACT) if serial in leaving else self._lease(lease)
            tenant = lease.role is Role.BORROWED
            found += [(when, how, slot) for slot in lease.slots if not tenant or not node.spare >> slot & 1]
        return found

    def _lease(self, lease: Lease) -> Ready:
        """When a lease gives its slots back; alike for all leases of a run that only their role, payer and group tell apart."""
        known = (lease.run, lease.role, id(lease.payer), lease.group)
        found = self._leases.get(known)
        if found is None:
            found = self._leases[known] = self._find(lease)
        return found

    def _find(self, lease: Lease) -> Ready:
        run, surely = self.state.runs[lease.run], self._certain.free_from(lease)
        if surely == EVER:
            return EVER, FREE
        whole, elastic = self._run(run)
        best = min(whole, (surely, BY_FACT)) if surely < NEVER else whole
        cut_at = self.terms.cut_at
        if cut_at is not None and run.key not in self.claim.displaced_by:
            if lease.role is Role.SPARE:
                best = min(best, (cut_at, SPARE))
            elif lease.group in elastic:
                best = min(best, (cut_at, WIDTH))
        return best

    def _run(self, run: RunState) -> tuple[Ready, frozenset[int]]:
        """When a run ends whole by a cut, or as is predicted, and the groups that a cut could take before."""
        found = self._runs.get(run.key)
        if found is None:
            assert run.started_at is not None, "what holds leases has started"
            elastic = frozenset(group for step in steps(run, self._reaches) for group in step)
            found = self._runs[run.key] = (self._end(run, run.started_at), elastic)
        return found

    def _reaches(self, lease: Lease) -> bool:
        """Whether a lease lies where the claim may lie."""
        return self.state.capacity.nodes[lease.node].bit & self.mask != 0

    def _end(self, run: RunState, start: int) -> Ready:
        options = [(NEVER, GUESSED)]
        if self.terms.cut_at is not None and run.key not in self.claim.displaced_by:
            options.append((max(self.terms.cut_at, start + self.state.config.min_runtime), WHOLE))
        if self.terms.guess:
            options.append((predicted_ends.end_of(run, self.now), GUESSED))
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
            options.append((start + predicted_ends.duration_of(other), GUESSED))
        if hold.basis is Reason.Predicted:  # What follows a guess is one.
            return (min(options)[0] if self.terms.guess else NEVER), GUESSED
        return min(options)


class Between(Availability):
    """What a claim sees that surely ends: liens that begin late enough are no hindrance to who is out of their way by then."""

    def __init__(self, state: State, claim: RunState, now: int, mask: int, cut_at: int | None, limit: int) -> None:
        super().__init__(state, claim, now, mask, Terms(cut_at, guess=False))
        self._limit = limit

    def _after(self, other: RunState) -> Ready:
        assert other.hold is not None, "a lien belongs to a reservation in force"
        return (EVER, FREE) if other.hold.earliest_start >= self.now + self._limit else super()._after(other)

    def first_fit(self, pool: Pool, need: Need, payers: Payers | None) -> DatedFit | None:
        """When and where it would fit first and be over in time; None where that cannot be told from the first place it finds."""
        fit = first_fit(pool, need, self, payers)
        if fit is None or fit.when <= self.now:
            return None
        holds = (
            self.state.holds[run] for pod in fit.pods for run, slots in pod.node.liens.items() if slots & pod.slots
        )
        ahead = (each.hold for each in holds if each.order < self.claim.order)
        return fit if all(hold is None or hold.earliest_start >= fit.when + self._limit for hold in ahead) else None


class DatedFit(NamedTuple):
    """The first time at which a need would fit, how the last slot it needs comes free, and the pods it would then use."""

    when: int
    how: int
    pods: list[DatedPod]
    paid: tuple[int, ...] = ()
    """Pods by payer, where it matters who pays for which."""


class DatedRooms(Rooms):
    """What of a pool comes free in time: pods by node."""

    __slots__ = ("_pods",)

    def __init__(self, pool: Pool, mask: int, size: int, pods: dict[NodeState, list[DatedPod]]) -> None:
        super().__init__(pool, mask, size)
        self._pods = pods

    def gpus(self, node: NodeState) -> int:
        """GPUs of a node that come free in time, in whole pods."""
        return len(self._pods.get(node, ())) * self.size

    def indexed(self, domain: Domain) -> bool:  # noqa: ARG002 - whichever it is
        """Never: indexes are of what is free now."""
        return False

    def domains(self, pods: int) -> Iterator[Domain]:  # noqa: ARG002 - all of them, whatever is asked
        """Domains in which something comes free in time, the smallest hole first."""
        found = {node.domain for node in self._pods if node.domain is not None}
        return iter(sorted(found, key=lambda domain: (self.free(domain), domain.order)))


def first_fit(pool: Pool, need: Need, outlook: Availability, payers: Payers | None = None) -> DatedFit | None:
    """When and where it would fit first; None where it would not at any time.

    Mostly nothing comes free by itself before the notice is over. Then domains are looked at only until there are enough: the
    smallest hole that fits, as for a start, and then those that lack least. `payers`, where they reach different nodes, must pay
    for all of it: then counting tells from when on to ask the search that a start asks.
    """
    soonest = outlook.terms.cut_at if payers is None and _nothing_before_the_cut(outlook) else None
    by_domain: list[list[DatedPod]] = []
    group = need.size * (need.pods if need.together else need.blocks[0].pods)
    for domain in sorted(
        pool.domains.values(), key=lambda each: (each.liened > 0, *_hole(each.free, group), each.order)
    ):
        if not domain.mask & outlook.mask:
            continue
        pods = outlook.pods(domain, need.size)
        if pods:
            by_domain.append(pods)
            if soonest is not None and _suffices(by_domain, need, soonest):
                break
    if payers is not None:
        return _first_paid(pool, need, by_domain, payers)
    if need.together:
        whole = [pods for pods in by_domain if len(pods) >= need.pods]
        best = min(whole, key=lambda pods: pods[need.pods - 1].ready, default=None)
        return None if best is None else _fit(best[: need.pods])
    when = _first_time(by_domain, need)
    return None if when is None else _fit(_choose(by_domain, need, when))


def _first_paid(pool: Pool, need: Need, by_domain: list[list[DatedPod]], payers: Payers) -> DatedFit | None:
    """When and where it would fit first and somebody would pay for each pod; nobody is preempted where that is not needed."""
    times = sorted({pod.ready[0] for pods in by_domain for pod in pods})
    first = bisect_left(times, 1, key=lambda when: int(_holds(by_domain, need, when)))
    place = bisect_left(times, 1, first, key=lambda when: int(_payable(pool, need, by_domain, payers, when)))
    for harmless in (True, False) if place < len(times) else ():
        free = _in_time(by_domain, times[place], harmless=harmless)
        seating = Search(DatedRooms(pool, pool.mask, need.size, free), need, payers).find()
        if seating is not None and seating.payment is not None:
            wanted = Counter(spot.node for spot in seating.spots)
            pods = [
                pod
                for node, count in wanted.items()
                for pod in (free[node][-count:] if harmless else free[node][:count])
            ]
            return _fit(pods)._replace(paid=seating.payment.pods)
    return None


def _payable(pool: Pool, need: Need, by_domain: list[list[DatedPod]], payers: Payers, when: int) -> bool:
    """Whether it would fit by a time, and be paid for; yes, where the search gives up."""
    search = Search(DatedRooms(pool, pool.mask, need.size, _in_time(by_domain, when, harmless=False)), need, payers)
    return search.possible() or not search.tries


def _in_time(by_domain: list[list[DatedPod]], when: int, *, harmless: bool) -> dict[NodeState, list[DatedPod]]:
    """The pods of each node that come free by a time, the earliest first; `harmless`: with nobody preempted."""
    found: dict[NodeState, list[DatedPod]] = {}
    for pods in by_domain:
        for pod in pods[: bisect_left(pods, ((when + 1,),))]:
            if not harmless or pod.ready[1] not in CUTS:
                found.setdefault(pod.node, []).append(pod)
    return found


def _first_time(by_domain: list[list[DatedPod]], need: Need) -> int | None:
    """The first time at which there is room for all groups.

    Where they are alike it is when the last of so many is complete; a smaller one at the end may need less than that.
    """
    block = need.blocks[0]
    groups = [pods[block.pods - 1 : block.groups * block.pods : block.pods] for pods in by_domain]
    if len(need.blocks) == 1:
        complete = next(islice(merge(*groups), block.groups - 1, None), None)
        return None if complete is None else complete.ready[0]
    times = sorted({pod.ready[0] for pods in by_domain for pod in pods})
    place = bisect_left(times, 1, key=lambda when: int(_holds(by_domain, need, when)))
    return None if place == len(times) else times[place]


def _hole(free: int, group: int) -> tuple[bool, int]:
    """Holes that fit before others, the smallest first; of the others the largest first."""
    return (False, free) if free >= group else (True, -free)


def _nothing_before_the_cut(outlook: Availability) -> bool:
    """Whether a slot that is taken can come free before the notice is over: by a deadline, a window, or the end of a short wait."""
    cut_at, state = outlook.terms.cut_at, outlook.state
    if cut_at is None or outlook.claim.displaced_by or state.opportunistic or state.overdrawn or state.leaving:
        return False
    if any(due in (Due.DEADLINE, Due.WINDOW) for due, _ in state.timers.before(cut_at)):
        return False
    near = state.standings.near.get(outlook.claim.spec.resources.gpu_type, {})
    limits = ((other.hold, other.spec.runtime.max_duration) for other in near.values())
    return not any(
        hold is not None and limit is not None and hold.earliest_start + limit < cut_at for hold, limit in limits
    )


def _suffices(by_domain: list[list[DatedPod]], need: Need, when: int) -> bool:
    if need.together:
        return len(by_domain[-1]) >= need.pods and by_domain[-1][need.pods - 1].ready[0] <= when
    return _holds(by_domain, need, when)


def _counts(by_domain: list[list[DatedPod]], when: int) -> list[int]:
    return [bisect_left(pods, ((when + 1,),)) for pods in by_domain]


def _holds(by_domain: list[list[DatedPod]], need: Need, when: int) -> bool:
    return all_fit(_counts(by_domain, when), need)


def _choose(by_domain: list[list[DatedPod]], need: Need, when: int) -> list[DatedPod]:
    """Groups for which nobody is cut, where that is enough; else those whose pods come free first and with the least harm.

    Of the former, those that come free last: what is free before is not needed until then, and is left to others.
    """
    left = [pods[:count] for pods, count in zip(by_domain, _counts(by_domain, when), strict=True)]
    unharmed = [[pod for pod in reversed(pods) if pod.ready[1] not in CUTS] for pods in left]
    return _groups(unharmed, need, _earliness) or _groups(left, need, _harm)


def _groups(left: list[list[DatedPod]], need: Need, key: Callable[[list[DatedPod]], int]) -> list[DatedPod]:
    """A group after the other, from the domain whose next one has the least key; the smaller last one from what is left."""
    chosen: list[DatedPod] = []
    begun = [0] * len(left)
    for block in need.blocks:
        following = [pods[first : first + block.pods] for pods, first in zip(left, begun, strict=True)]
        heap = [(key(group), place) for place, group in enumerate(following) if len(group) == block.pods]
        heapify(heap)
        for _ in range(block.groups):
            if not heap:
                return []
            _, place = heappop(heap)
            chosen += left[place][begun[place] : begun[place] + block.pods]
            begun[place] += block.pods
            group = left[place][begun[place] : begun[place] + block.pods]
            if len(group) == block.pods:
                heappush(heap, (key(group), place))
    return chosen


def _earliness(group: list[DatedPod]) -> int:
    """The longer before the others a pod is free, the worse."""
    return -group[-1].ready[0]


def _harm(group: list[DatedPod]) -> int:
    return max(pod.ready[1] for pod in group)


def _fit(pods: list[DatedPod]) -> DatedFit:
    when, how = max(pod.ready for pod in pods)
    return DatedFit(when, how, pods)


def lien_of(pods: list[DatedPod]) -> dict[str, int]:
    """The slots of some pods, as bits by node; in the order of names, which is how the ledger gives it back."""
    lien: dict[str, int] = {}
    for pod in pods:
        name = pod.node.node.name
        lien[name] = lien.get(name, 0) | pod.slots
    return dict(sorted(lien.items()))


def takes(lien: dict[str, int], node: str, slots: tuple[int, ...]) -> bool:
    """Whether some slots of a node are under a lien."""
    return bool(lien.get(node, 0) & bits_of(slots))


class DomainTimeline:
    """Room for pods of one size in one domain: `pods` in the order in which they come free, and by node the same.

    `wrong` are the times at which guesses will have proved wrong, the earliest first; what `wrong_at` no longer says is skipped.
    """

    __slots__ = ("by_node", "layout", "pods", "version", "wrong", "wrong_at")

    def __init__(self) -> None:
        self.version = self.layout = -1
        self.pods: list[DatedPod] = []
        self.by_node: dict[NodeState, list[DatedPod]] = {}
        self.wrong: list[tuple[int, Rank, NodeState]] = []
        self.wrong_at: dict[NodeState, int] = {}

    def put(self, node: NodeState, pods: list[DatedPod], wrong_at: int) -> None:
        """A node has other pods, until `wrong_at` at the most."""
        for pod in self.by_node.get(node, ()):
            del self.pods[bisect_left(self.pods, pod)]
        for pod in pods:
            insort(self.pods, pod)
        self.by_node[node] = pods
        self.wrong_at[node] = wrong_at
        if wrong_at < NEVER:
            heappush(self.wrong, (wrong_at, node.rank, node))

    def fill(self, found: dict[NodeState, tuple[list[DatedPod], int]]) -> None:
        """All nodes at once."""
        self.by_node = {node: pods for node, (pods, _) in found.items()}
        self.pods = sorted(pod for pods in self.by_node.values() for pod in pods)
        self.wrong_at = {node: wrong_at for node, (_, wrong_at) in found.items()}
        self.wrong = [(wrong_at, node.rank, node) for node, wrong_at in self.wrong_at.items() if wrong_at < NEVER]
        heapify(self.wrong)

    def disproved(self, now: int) -> set[NodeState]:
        """Nodes of which something was guessed that has not come true by `now`."""
        found = set()
        while self.wrong and self.wrong[0][0] <= now:
            wrong_at, _, node = heappop(self.wrong)
            if self.wrong_at.get(node) == wrong_at:
                found.add(node)
        return found


class AvailabilityCache:
    """When pods could be placed, as the newest claim sees it, kept from tick to tick.

    Timelines by domain, size of a pod, and with guesses or not; the slots of nodes, which those of all sizes share. Used where no
    preemptions count, whose dates move with the clock. All else is a time that stands until its node changes, or until a guess is
    proved wrong; so what is remembered is what would be computed anew, and a look costs what changed since the last one.
    """

    def __init__(self) -> None:
        self._timelines: dict[tuple[Domain, int, bool], DomainTimeline] = {}
        self._slots: dict[tuple[NodeState, bool], tuple[int, int, list[Slot]]] = {}
        self._budgets = 0

    def pods(self, outlook: Availability, domain: Domain, size: int) -> list[DatedPod]:
        """Room for pods of `size` GPUs in a domain, the earliest first; not to be changed."""
        if self._budgets != outlook.state.budgets_version or len(self._slots) > REMEMBERED_MAX:
            self._timelines.clear()
            self._slots.clear()
            self._budgets = outlook.state.budgets_version
        key = (domain, size, outlook.terms.guess)
        timeline = self._timelines.get(key)
        if timeline is None:
            timeline = self._timelines[key] = DomainTimeline()
        if timeline.layout != domain.layout:
            timeline.fill({node: self._of(outlook, node, size) for node in domain.nodes.values()})
        else:
            for node in {*domain.changed_since(timeline.version), *timeline.disproved(outlook.now)}:
                timeline.put(node, *self._of(outlook, node, size))
        timeline.version, timeline.layout = domain.version, domain.layout
        return timeline.pods

    def _of(self, outlook: Availability, node: NodeState, size: int) -> tuple[list[DatedPod], int]:
        """The pods of a node, and when that may be wrong."""
        key = (node, outlook.terms.guess)
        version, wrong_at, slots = self._slots.get(key, (-1, 0, []))
        if version != node.version or wrong_at <= outlook.now:
            held = outlook.held(node)
            slots = sorted(outlook.behind(held, node))
            wrong_at = min((when for when, how, _ in held if how == GUESSED), default=NEVER)
            self._slots[key] = (node.version, wrong_at, slots)
        return list(outlook.cut(node, slots, size)), wrong_at
