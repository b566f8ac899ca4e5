"""Counterfactual: the smallest changes to a run that would start it now, or sooner than it would.

No rule is written down a second time here. Each change is made to the spec, the spec is submitted to the engine on a trial of the
state, and what comes of it is looked at and undone; a change is told only where the engine then starts the run earlier. Where a
change has a size (fewer GPUs, smaller groups, a shorter limit), the smallest one that is as good as the largest is found by
halving, so that a question costs some dozens of trials, whatever is asked. No size is listed that is larger than all GPUs of the
flavor together: it could not start, and somebody may ask for 2^60. Where one change needs another (borrowing, that it is allowed),
both are one, and the run is tried with both.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from fairlease.engine import command as cmd
from fairlease.engine.cover.lenders import Lenders
from fairlease.engine.place.packing import need_of
from fairlease.engine.place.plan import least_width
from fairlease.engine.reserve.availability import NEVER
from fairlease.model.amount import DAY, HOUR, MINUTE
from fairlease.model.lease import Fund
from fairlease.model.node import matches
from fairlease.model.record import Key, short, split
from fairlease.model.run import LocationPolicy, Phase, RunSpec, template_gpus
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fairlease.engine.context import Engine

LENDERS_MAX = 8
PLACES_MAX = 8
"""Others that are tried: each costs a trial. They are counted when it is known that they have money, or room."""

DURATION_MAX = 7 * DAY
"""How long a run without a limit is thought to take at the most, when it is asked which limit would let it start."""

LIMITS = (
    *range(MINUTE, 5 * MINUTE, MINUTE),
    *range(5 * MINUTE, HOUR, 5 * MINUTE),
    *range(HOUR, 4 * HOUR, 15 * MINUTE),
    *range(4 * HOUR, DAY, HOUR),
    *range(DAY, DURATION_MAX + 1, 6 * HOUR),
)
"""Limits that people set."""

SLACK = MINUTE
"""A limit is told only where one that is longer by this would do, too: whoever reads of it submits it a little later."""

TIMERS_MAX = 64
HORIZON = 366 * DAY
"""Moments that are played forward to see when waiting alone is enough, and how far: nobody waits longer than a year."""

V = TypeVar("V")


class ChangeKind(enum.Enum):
    """What is changed."""

    FEWER_GPUS = "FewerGPUs"
    LOWER_MINIMUM = "LowerMinimum"
    SMALLER_GROUPS = "SmallerGroups"
    SMALLER_PODS = "SmallerPods"
    SPREAD = "Spread"
    FEWER_SPARES = "FewerSpares"
    SHORTER = "Shorter"
    PREFER = "Prefer"
    ELSEWHERE = "Elsewhere"
    BORROW = "Borrow"
    OPPORTUNISTIC = "Opportunistic"
    WAIT = "Wait"


class TriedChange(NamedTuple):
    """What came of a submission: when it would start (`NEVER`: nothing says when), why, how many GPUs it then holds, who lends."""

    at: int
    starts: bool
    reason: Reason
    gpus: int
    lenders: frozenset[str] = frozenset()


class Also(NamedTuple):
    """Another field that has to change with the first, from what to what."""

    field: str
    before: object
    after: object


class SuggestedChange(NamedTuple):
    """One change: which field, from what to what (as the API writes it), the spec it makes, and what would come of that."""

    kind: ChangeKind
    field: str
    before: object
    after: object
    spec: RunSpec
    trial: TriedChange
    also: tuple[Also, ...] = ()

    @property
    def worst_gpu_ms(self) -> int | None:
        """What it would cost at worst; None where nothing bounds it."""
        limit = self.spec.runtime.max_duration
        return None if limit is None else self.trial.gpus * limit


class Counterfactual:
    """One run that does not start, and all that could be changed about it.

    One that waits already is compared with the date it has; to change it means to cancel it and to submit another in its place.
    """

    def __init__(self, engine: Engine, run: Key, spec: RunSpec, now: int) -> None:
        self._engine = engine
        self._spec = spec
        self._now = max(now, engine.state.at)
        self._living = run in engine.state.runs
        self._run = run
        self._instead = [cmd.Cancel(run)] if self._living else []
        self._key = Key(f"{split(run)[0]}/?") if engine.state.name_taken(run, self._now) else run
        pool = engine.state.capacity.pools.get(spec.resources.gpu_type)
        self._largest = 0 if pool is None else pool.gpus
        self.tries = 0
        self.base = self._seen(run, spec) if self._living else self._tried(spec)

    def changes(self) -> list[SuggestedChange]:
        """What would help, the earliest start first."""
        if self.base.starts:
            return []
        found = [each for ask in _QUESTIONS for each in ask(self)]
        return sorted(found, key=lambda each: (each.trial.at, _ORDER[each.kind]))

    # --- trials --------------------------------------------------------------------------------------------------------

    def _tried(self, spec: RunSpec) -> TriedChange:
        """Submit it, look, and undo."""
        engine, state = self._engine, self._engine.state
        self.tries += 1
        with state.trial():
            engine.decide(self._now, (*self._instead, cmd.Submit(self._key, spec)))
            return self._seen(self._key, spec)

    def _seen(self, key: Key, spec: RunSpec) -> TriedChange:
        state, gpus = self._engine.state, _gpus(spec)
        run = state.runs.get(key)
        if run is None:
            return TriedChange(NEVER, starts=False, reason=Reason.Terminal, gpus=gpus)
        if run.phase is Phase.RUNNING:
            held = sum(lease.gpus for lease in run.leases.values())
            payers = (lease.payer for lease in run.leases.values())
            lenders = frozenset(payer.owner for payer in payers if payer.fund is Fund.BORROWED)
            return TriedChange(self._engine.now, starts=True, reason=Reason.Start, gpus=held, lenders=lenders)
        if run.hold is None or not run.hold.holds:
            return TriedChange(NEVER, starts=False, reason=run.reason, gpus=gpus)
        order = self._engine.family.order(run.signature)
        lend = (each.payer for each in order if each.fund is Fund.BORROWED)
        named = {f"{short(payer.budget)}/{payer.envelope}": payer.owner for payer in lend}
        lenders = frozenset(named[each] for each in run.hold.envelopes if each in named)
        return TriedChange(run.hold.earliest_start, starts=False, reason=run.reason, gpus=gpus, lenders=lenders)

    def _one(self, kind: ChangeKind, told: tuple[str, object, object], spec: RunSpec) -> Iterator[SuggestedChange]:
        """A change that is made or not."""
        trial = self._tried(spec)
        if trial.at < self.base.at:
            yield SuggestedChange(kind, *told, spec, trial)

    def _least(
        self, kind: ChangeKind, told: tuple[str, object], values: Sequence[int], made: Callable[[int], RunSpec]
    ) -> Iterator[SuggestedChange]:
        """The largest of `values` (the first of them the greatest change) that starts as early as the first would."""
        if not values:
            return
        spec = made(values[0])
        best = SuggestedChange(kind, *told, values[0], spec, self._tried(spec))
        target = best.trial.at
        if target >= self.base.at:
            return
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high + 1) // 2
            spec = made(values[middle])
            trial = self._tried(spec)
            if trial.at <= target:
                low, best = middle, SuggestedChange(kind, *told, values[middle], spec, trial)
            else:
                high = middle - 1
        yield best

    # --- how much ------------------------------------------------------------------------------------------------------

    def fewer_gpus(self) -> Iterator[SuggestedChange]:
        """A narrower gang: whole groups where it has several, else whole pods, else one pod that is smaller."""
        spec, pod = self._spec, self._spec.pod_gpus
        if spec.malleable is not None:
            return
        total, group = spec.resources.total_gpus, spec.locality.group_gpus or pod
        most = min(total, self._largest + 1)
        totals = [*self._parts(pod), *range(pod, min(group, most), pod), *range(group, most, group)]
        told = "resources.totalGPUs", total
        for each in self._least(ChangeKind.FEWER_GPUS, told, totals, lambda gpus: _narrower(spec, gpus)):
            yield each._replace(also=_also_pods(spec, each.spec.pod_gpus))

    def _parts(self, whole: int) -> list[int]:
        """What divides a number, without itself, the smallest first; what the number divides in a spec, they divide too."""
        return [part for part in range(1, min(whole, self._largest + 1)) if whole % part == 0]

    def lower_minimum(self) -> Iterator[SuggestedChange]:
        """An elastic run that could begin narrower."""
        elastic = self._spec.malleable
        if elastic is None:
            return
        least, step = elastic.min_total_gpus, elastic.step_gpus
        values = range(least % step or step, least, step)
        told = "malleable.minTotalGPUs", least
        yield from self._least(
            ChangeKind.LOWER_MINIMUM, told, values, lambda gpus: _with(self._spec, "malleable", min_total_gpus=gpus)
        )

    def fewer_spares(self) -> Iterator[SuggestedChange]:
        """Spares need room and money too."""
        spec = self._spec
        values = range(0, spec.spares_per_group, spec.pod_gpus)
        told = "sparesPerGroup", spec.spares_per_group
        yield from self._least(
            ChangeKind.FEWER_SPARES, told, values, lambda gpus: _replace(spec, spares_per_group=gpus)
        )

    def shorter(self) -> Iterator[SuggestedChange]:
        """A limit that passes liens (it surely ends before their dates), or that fewer hours can pay: a round one, with slack."""
        spec, before = self._spec, self._spec.runtime.max_duration
        limits = LIMITS if before is None else LIMITS[: bisect_left(LIMITS, before)]
        told = "runtime.maxDuration", before
        for each in self._least(
            ChangeKind.SHORTER, told, limits, lambda limit: _with(spec, "runtime", max_duration=limit + SLACK)
        ):
            assert isinstance(each.after, int), "a limit is a number"
            yield from self._one(
                ChangeKind.SHORTER, (*told, each.after), _with(spec, "runtime", max_duration=each.after)
            )

    # --- how and where -------------------------------------------------------------------------------------------------

    def smaller_groups(self) -> Iterator[SuggestedChange]:
        """Groups that fit into smaller holes."""
        spec, group = self._spec, self._spec.locality.group_gpus
        if group is None:
            return
        most = min(group, self._largest + 1)
        sizes = [size for size in range(spec.pod_gpus, most, spec.pod_gpus) if group % size == 0]
        told = "locality.groupGPUs", group
        yield from self._least(
            ChangeKind.SMALLER_GROUPS, told, sizes, lambda size: _with(spec, "locality", group_gpus=size)
        )

    def smaller_pods(self) -> Iterator[SuggestedChange]:
        """Pods that fit on smaller nodes, or into what is free on several."""
        spec, pod = self._spec, self._spec.pod_gpus
        told = "gpusPerPod", pod
        for each in self._least(
            ChangeKind.SMALLER_PODS, told, self._parts(pod), lambda size: _replace(spec, gpus_per_pod=size)
        ):
            yield each._replace(also=_also_pods(spec, each.spec.pod_gpus)[1:])

    def spread(self) -> Iterator[SuggestedChange]:
        """Groups that may lie in several domains."""
        if not self._spec.locality.allow_cross_group_spread:
            spec = _with(self._spec, "locality", allow_cross_group_spread=True)
            yield from self._one(ChangeKind.SPREAD, ("locality.allowCrossGroupSpread", False, True), spec)

    def prefer(self) -> Iterator[SuggestedChange]:
        """A location that is a wish."""
        policy = self._spec.locality.location_policy
        if policy is LocationPolicy.REQUIRE and self._spec.locality.location:
            spec = _with(self._spec, "locality", location_policy=LocationPolicy.PREFER)
            yield from self._one(ChangeKind.PREFER, ("locality.locationPolicy", policy.value, "Prefer"), spec)

    def elsewhere(self) -> Iterator[SuggestedChange]:
        """Another location: one label of it with each other value that there is."""
        locality = self._spec.locality
        if locality.location_policy is LocationPolicy.REQUIRE:
            for label, value in self._other_places(locality.location):
                spec = _with(self._spec, "locality", location={**locality.location, label: value})
                told = f"locality.location.{label}", locality.location[label], value
                yield from self._one(ChangeKind.ELSEWHERE, told, spec)

    def _other_places(self, location: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Labels with other values that nodes have beside the rest of the location: those with room first, then by name."""
        state, pool = self._engine.state, self._engine.state.capacity.pools.get(self._spec.resources.gpu_type)
        nodes = [] if pool is None else [each for each in state.capacity.nodes.values() if each.bit & pool.mask]
        found = []
        for label, here in location.items():
            rest = {name: value for name, value in location.items() if name != label}
            free: dict[str, int] = {}
            for each in nodes:
                labels = each.node.labels
                if labels.get(label, here) != here and matches(labels, rest):
                    free[labels[label]] = free.get(labels[label], 0) + each.room
            found += [(gpus < _gpus(self._spec), label, value) for value, gpus in free.items()]
        return ((label, value) for _, label, value in sorted(found)[:PLACES_MAX])

    # --- whose money ---------------------------------------------------------------------------------------------------

    def borrow(self) -> Iterator[SuggestedChange]:
        """More of what is borrowed already, those it names already, or whoever else would lend what is lacking.

        The nearest first, each by itself; together only where no one of them is enough.
        """
        spec, funding = self._spec, self._spec.funding
        if funding.allow_borrow and funding.sponsors:
            yield from self._raised(spec)
        elif funding.sponsors:
            found = list(self._borrowed(()))
            if found:
                yield from found
                return
        lenders = Lenders(self._engine, self._key, spec, self._now)
        found = [each for lender in lenders.enough[:LENDERS_MAX] for each in self._borrowed((lender,))]
        if not found and len(lenders.some) > 1:
            found = list(self._together(lenders.some[:LENDERS_MAX]))
        yield from found

    def _borrowed(self, fresh: tuple[str, ...]) -> Iterator[SuggestedChange]:
        """Borrow from some more owners, with all that this needs. Told only where each of them then lends."""
        funding = self._spec.funding
        sponsors = (*funding.sponsors, *(each for each in fresh if each not in funding.sponsors))
        spec = _with(self._spec, "funding", allow_borrow=True, sponsors=sponsors)
        trial, also = self._tried(spec), list[Also]()
        if not funding.allow_borrow:
            also.append(Also("funding.allowBorrow", before=False, after=True))
        if trial.at >= self.base.at:
            for raised in self._raised(spec):
                also.append(Also(raised.field, raised.before, raised.after))
                spec, trial = raised.spec, raised.trial
        if trial.at < self.base.at and trial.lenders.issuperset(fresh):
            field = Also("funding.sponsors", list(funding.sponsors), list(sponsors))
            first, *rest = [field, *also] if fresh else also
            yield SuggestedChange(ChangeKind.BORROW, *first, spec, trial, tuple(rest))

    def _raised(self, spec: RunSpec) -> Iterator[SuggestedChange]:
        """The smallest limit on what is borrowed with which a spec would start sooner."""
        limit = spec.funding.max_borrow_gpus
        if limit is not None:
            most = min(_gpus(spec), self._largest)
            limits = range(most, limit, -spec.pod_gpus)
            told = "funding.maxBorrowGPUs", limit
            yield from self._least(
                ChangeKind.BORROW, told, limits, lambda gpus: _with(spec, "funding", max_borrow_gpus=gpus)
            )

    def _together(self, lenders: tuple[str, ...]) -> Iterator[SuggestedChange]:
        """Borrow from several: from those who would lend if all of them were named."""
        sponsors = tuple(dict.fromkeys((*self._spec.funding.sponsors, *lenders)))
        spec = _with(self._spec, "funding", allow_borrow=True, max_borrow_gpus=None, sponsors=sponsors)
        lend = self._tried(spec).lenders
        yield from self._borrowed(tuple(each for each in lenders if each in lend))

    def opportunistic(self) -> Iterator[SuggestedChange]:
        """Without a claim to its GPUs: it takes what is free, under liens too, and gives way to whoever is funded."""
        if not self._spec.opportunistic:
            spec = _replace(self._spec, opportunistic=True)
            yield from self._one(ChangeKind.OPPORTUNISTIC, ("opportunistic", False, True), spec)

    # --- when ----------------------------------------------------------------------------------------------------------

    def wait(self) -> Iterator[SuggestedChange]:
        """When it starts if nobody does anything: deadlines, windows and reservations are played forward, each at its time.

        Told where that is not the date of its reservation: it has none, or that date cannot be kept.
        """
        engine, state = self._engine, self._engine.state
        with state.trial():
            if not self._living:
                engine.decide(self._now, (cmd.Submit(self._key, self._spec),))
            trial = self._played(self._run if self._living else self._key)
        if trial.starts and trial.at != self.base.at:
            yield SuggestedChange(ChangeKind.WAIT, "", None, None, self._spec, trial)

    def _played(self, key: Key) -> TriedChange:
        engine, state = self._engine, self._engine.state
        for _ in range(TIMERS_MAX):
            due = state.timers.next()
            if due is None or due > self._now + HORIZON or key not in state.runs:
                break
            engine.decide(due, (cmd.TimePassed(),))
            seen = self._seen(key, self._spec)
            if seen.starts:
                return seen
        return self._seen(key, self._spec)


_QUESTIONS: tuple[Callable[[Counterfactual], Iterable[SuggestedChange]], ...] = (
    Counterfactual.fewer_gpus,
    Counterfactual.lower_minimum,
    Counterfactual.smaller_groups,
    Counterfactual.smaller_pods,
    Counterfactual.spread,
    Counterfactual.fewer_spares,
    Counterfactual.shorter,
    Counterfactual.prefer,
    Counterfactual.elsewhere,
    Counterfactual.borrow,
    Counterfactual.opportunistic,
    Counterfactual.wait,
)
_ORDER = {kind: place for place, kind in enumerate(ChangeKind)}


def _gpus(spec: RunSpec) -> int:
    """What it would hold at its narrowest, spares included."""
    need = need_of(spec, least_width(spec))
    return need.pods * need.size


def _replace(spec: RunSpec, **changed: object) -> RunSpec:
    return msgspec.structs.replace(spec, **changed)


def _with(spec: RunSpec, part: str, **changed: object) -> RunSpec:
    """The spec with a field of one of its parts changed."""
    return _replace(spec, **{part: msgspec.structs.replace(getattr(spec, part), **changed)})


def _narrower(spec: RunSpec, gpus: int) -> RunSpec:
    """The spec with fewer GPUs; where they are fewer than a pod's, with one pod of them."""
    return _replace(_with(spec, "resources", total_gpus=gpus), gpus_per_pod=min(gpus, spec.pod_gpus))


def _also_pods(spec: RunSpec, size: int) -> tuple[Also, ...]:
    """What smaller pods change: their size, and the limit in the template, where that says it too."""
    pod = spec.pod_gpus
    if size == pod:
        return ()
    limit = (
        (Also("template", f"nvidia.com/gpu: {pod}", f"nvidia.com/gpu: {size}"),) if template_gpus(spec.template) else ()
    )
    return (Also("gpusPerPod", pod, size), *limit)
