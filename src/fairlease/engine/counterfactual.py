"""Counterfactual: the smallest changes to a run that would start it now, or sooner than it would.

No rule is written down a second time here. Each change is made to the spec, the spec is submitted to the engine on a trial of the
state, and what comes of it is looked at and undone; a change is told only where the engine then starts the run earlier. Where a
change has a size (fewer GPUs, smaller groups, a shorter limit), the smallest one that is as good as the largest is found by
halving, so that a question costs some dozens of trials, whatever is asked. No size is listed that is larger than all GPUs of the
flavor together: it could not start, and somebody may ask for 2^60.
"""

from __future__ import annotations

import enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from fairlease.engine import command as cmd
from fairlease.engine.cover import lends_to
from fairlease.engine.outlook import NEVER
from fairlease.engine.pack import need_of
from fairlease.engine.plan import least_width
from fairlease.model.amount import DAY, MINUTE
from fairlease.model.record import Key, split
from fairlease.model.run import LocationPolicy, Phase, RunSpec
from fairlease.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fairlease.engine.decide import Engine

LENDERS_MAX = 8
PLACES_MAX = 8
"""Others that are tried: each costs a trial."""

DURATION_MAX = 7 * DAY
"""How long a run without a limit is thought to take at the most, when it is asked which limit would let it start."""

TIMERS_MAX = 64
HORIZON = 366 * DAY
"""Moments that are played forward to see when waiting alone is enough, and how far: nobody waits longer than a year."""

V = TypeVar("V")


class Kind(enum.Enum):
    """What is changed."""

    FEWER_GPUS = "FewerGPUs"
    LOWER_MINIMUM = "LowerMinimum"
    SMALLER_GROUPS = "SmallerGroups"
    SPREAD = "Spread"
    FEWER_SPARES = "FewerSpares"
    SHORTER = "Shorter"
    PREFER = "Prefer"
    ELSEWHERE = "Elsewhere"
    BORROW = "Borrow"
    OPPORTUNISTIC = "Opportunistic"
    WAIT = "Wait"


class Trial(NamedTuple):
    """What came of a submission: when it would start (`NEVER`: nothing says when), why, and the GPUs it would then hold."""

    at: int
    starts: bool
    reason: Reason
    gpus: int


class Change(NamedTuple):
    """One change: which field, from what to what (as the API writes it), the spec it makes, and what would come of that."""

    kind: Kind
    field: str
    before: object
    after: object
    spec: RunSpec
    trial: Trial

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
        self._key = Key(f"{split(run)[0]}/?") if self._living or run in engine.state.ended else run
        pool = engine.state.capacity.pools.get(spec.resources.gpu_type)
        self._largest = 0 if pool is None else pool.gpus
        self.tries = 0
        self.base = self._seen(run, spec) if self._living else self._tried(spec)

    def changes(self) -> list[Change]:
        """What would help, the earliest start first."""
        if self.base.starts:
            return []
        found = [each for ask in _QUESTIONS for each in ask(self)]
        return sorted(found, key=lambda each: (each.trial.at, _ORDER[each.kind]))

    # --- trials --------------------------------------------------------------------------------------------------------

    def _tried(self, spec: RunSpec) -> Trial:
        """Submit it, look, and undo."""
        engine, state = self._engine, self._engine.state
        self.tries += 1
        mark = state.mark()
        try:
            engine.decide(self._now, (*self._instead, cmd.Submit(self._key, spec)))
            return self._seen(self._key, spec)
        finally:
            state.rollback(mark)

    def _seen(self, key: Key, spec: RunSpec) -> Trial:
        state, gpus = self._engine.state, _gpus(spec)
        run = state.runs.get(key)
        if run is None:
            return Trial(NEVER, starts=False, reason=Reason.Terminal, gpus=gpus)
        if run.phase is Phase.RUNNING:
            held = sum(lease.gpus for lease in run.leases.values())
            return Trial(self._engine.now, starts=True, reason=Reason.Start, gpus=held)
        at = run.hold.earliest_start if run.hold is not None and run.hold.holds else NEVER
        return Trial(at, starts=False, reason=run.reason, gpus=gpus)

    def _one(self, kind: Kind, told: tuple[str, object, object], spec: RunSpec) -> Iterator[Change]:
        """A change that is made or not."""
        trial = self._tried(spec)
        if trial.at < self.base.at:
            yield Change(kind, *told, spec, trial)

    def _least(
        self, kind: Kind, told: tuple[str, object], values: Sequence[int], made: Callable[[int], RunSpec]
    ) -> Iterator[Change]:
        """The largest of `values` (the first of them the greatest change) that starts as early as the first would."""
        if not values:
            return
        spec = made(values[0])
        best = Change(kind, *told, values[0], spec, self._tried(spec))
        target = best.trial.at
        if target >= self.base.at:
            return
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high + 1) // 2
            spec = made(values[middle])
            trial = self._tried(spec)
            if trial.at <= target:
                low, best = middle, Change(kind, *told, values[middle], spec, trial)
            else:
                high = middle - 1
        yield best

    # --- how much ------------------------------------------------------------------------------------------------------

    def fewer_gpus(self) -> Iterator[Change]:
        """A narrower gang: whole groups where it has several, else whole pods."""
        spec, pod = self._spec, self._spec.pod_gpus
        if spec.malleable is not None:
            return
        total, group = spec.resources.total_gpus, spec.locality.group_gpus or pod
        most = min(total, self._largest + 1)
        totals = [*range(pod, min(group, most), pod), *range(group, most, group)]
        told = "resources.totalGPUs", total
        yield from self._least(Kind.FEWER_GPUS, told, totals, lambda gpus: _with(spec, "resources", total_gpus=gpus))

    def lower_minimum(self) -> Iterator[Change]:
        """An elastic run that could begin narrower."""
        elastic = self._spec.malleable
        if elastic is None:
            return
        least, step = elastic.min_total_gpus, elastic.step_gpus
        values = range(least % step or step, least, step)
        told = "malleable.minTotalGPUs", least
        yield from self._least(
            Kind.LOWER_MINIMUM, told, values, lambda gpus: _with(self._spec, "malleable", min_total_gpus=gpus)
        )

    def fewer_spares(self) -> Iterator[Change]:
        """Spares need room and money too."""
        spec = self._spec
        values = range(0, spec.spares_per_group, spec.pod_gpus)
        told = "sparesPerGroup", spec.spares_per_group
        yield from self._least(Kind.FEWER_SPARES, told, values, lambda gpus: _replace(spec, spares_per_group=gpus))

    def shorter(self) -> Iterator[Change]:
        """A limit that passes liens (it surely ends before their dates), or that fewer hours can pay."""
        spec, limit = self._spec, self._spec.runtime.max_duration
        minutes = range(1, -(-(limit or DURATION_MAX) // MINUTE))
        told = "runtime.maxDuration", limit
        for each in self._least(
            Kind.SHORTER, told, minutes, lambda count: _with(spec, "runtime", max_duration=count * MINUTE)
        ):
            yield each._replace(after=each.spec.runtime.max_duration)

    # --- how and where -------------------------------------------------------------------------------------------------

    def smaller_groups(self) -> Iterator[Change]:
        """Groups that fit into smaller holes."""
        spec, group = self._spec, self._spec.locality.group_gpus
        if group is None:
            return
        most = min(group, self._largest + 1)
        sizes = [size for size in range(spec.pod_gpus, most, spec.pod_gpus) if group % size == 0]
        told = "locality.groupGPUs", group
        yield from self._least(Kind.SMALLER_GROUPS, told, sizes, lambda size: _with(spec, "locality", group_gpus=size))

    def spread(self) -> Iterator[Change]:
        """Groups that may lie in several domains."""
        if not self._spec.locality.allow_cross_group_spread:
            spec = _with(self._spec, "locality", allow_cross_group_spread=True)
            yield from self._one(Kind.SPREAD, ("locality.allowCrossGroupSpread", False, True), spec)

    def prefer(self) -> Iterator[Change]:
        """A location that is a wish."""
        policy = self._spec.locality.location_policy
        if policy is LocationPolicy.REQUIRE and self._spec.locality.location:
            spec = _with(self._spec, "locality", location_policy=LocationPolicy.PREFER)
            yield from self._one(Kind.PREFER, ("locality.locationPolicy", policy.value, "Prefer"), spec)

    def elsewhere(self) -> Iterator[Change]:
        """Another location: one label of it with each other value that there is."""
        locality = self._spec.locality
        if locality.location_policy is LocationPolicy.REQUIRE:
            for label, value in islice(self._other_places(locality.location), PLACES_MAX):
                spec = _with(self._spec, "locality", location={**locality.location, label: value})
                told = f"locality.location.{label}", locality.location[label], value
                yield from self._one(Kind.ELSEWHERE, told, spec)

    def _other_places(self, location: dict[str, str]) -> Iterator[tuple[str, str]]:
        state, flavor = self._engine.state, self._spec.resources.gpu_type
        nodes = [node.node.labels for node in state.capacity.nodes.values()]
        for label, here in location.items():
            there = {each[label] for each in nodes if label in each and each.get(state.config.labels.flavor) == flavor}
            yield from ((label, value) for value in sorted(there - {here}))

    # --- whose money ---------------------------------------------------------------------------------------------------

    def borrow(self) -> Iterator[Change]:
        """Each lender who would lend to the owner, by itself; and more of what is borrowed already."""
        funding = self._spec.funding
        if funding.allow_borrow and funding.max_borrow_gpus is not None:
            spec = _with(self._spec, "funding", max_borrow_gpus=None)
            yield from self._one(Kind.BORROW, ("funding.maxBorrowGPUs", funding.max_borrow_gpus, None), spec)
        for lender in islice(self._lenders(), LENDERS_MAX):
            sponsors = (*funding.sponsors, lender)
            spec = _with(self._spec, "funding", allow_borrow=True, sponsors=sponsors)
            yield from self._one(Kind.BORROW, ("funding.sponsors", list(funding.sponsors), list(sponsors)), spec)

    def _lenders(self) -> Iterator[str]:
        state, spec = self._engine.state, self._spec
        asked = set(spec.funding.sponsors) if spec.funding.allow_borrow else set()
        seen = {spec.owner, *asked}
        for account in state.accounts.values():
            envelope = account.envelope
            if envelope is None or envelope.flavor != spec.resources.gpu_type or account.owner in seen:
                continue
            if lends_to(account, spec.owner):
                seen.add(account.owner)
                yield account.owner

    def opportunistic(self) -> Iterator[Change]:
        """Without a claim to its GPUs: it takes what is free, under liens too, and gives way to whoever is funded."""
        if not self._spec.opportunistic:
            spec = _replace(self._spec, opportunistic=True)
            yield from self._one(Kind.OPPORTUNISTIC, ("opportunistic", False, True), spec)

    # --- when ----------------------------------------------------------------------------------------------------------

    def wait(self) -> Iterator[Change]:
        """When it starts if nobody does anything: deadlines, windows and reservations are played forward, each at its time.

        Told where that is not the date of its reservation: it has none, or that date cannot be kept.
        """
        engine, state = self._engine, self._engine.state
        mark = state.mark()
        try:
            if not self._living:
                engine.decide(self._now, (cmd.Submit(self._key, self._spec),))
            trial = self._played(self._run if self._living else self._key)
        finally:
            state.rollback(mark)
        if trial.starts and trial.at != self.base.at:
            yield Change(Kind.WAIT, "", None, None, self._spec, trial)

    def _played(self, key: Key) -> Trial:
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


_QUESTIONS: tuple[Callable[[Counterfactual], Iterable[Change]], ...] = (
    Counterfactual.fewer_gpus,
    Counterfactual.lower_minimum,
    Counterfactual.smaller_groups,
    Counterfactual.spread,
    Counterfactual.fewer_spares,
    Counterfactual.shorter,
    Counterfactual.prefer,
    Counterfactual.elsewhere,
    Counterfactual.borrow,
    Counterfactual.opportunistic,
    Counterfactual.wait,
)
_ORDER = {kind: place for place, kind in enumerate(Kind)}


def _gpus(spec: RunSpec) -> int:
    """What it would hold at its narrowest, spares included."""
    need = need_of(spec, least_width(spec))
    return need.pods * need.size


def _replace(spec: RunSpec, **changed: object) -> RunSpec:
    return msgspec.structs.replace(spec, **changed)


def _with(spec: RunSpec, part: str, **changed: object) -> RunSpec:
    """The spec with a field of one of its parts changed."""
    return _replace(spec, **{part: msgspec.structs.replace(getattr(spec, part), **changed)})
