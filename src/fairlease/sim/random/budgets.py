"""Purses: random Budgets of a family of owners, and random edits of them; every one is valid (SEMANTICS §2)."""

from __future__ import annotations

import random

from msgspec.structs import replace

from fairlease.model.amount import HOUR
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope, Lending, OnExhaustion, PreActivation, Sharing
from fairlease.model.record import Key, key

OWNERS = ("org", "org:a", "org:b", "org:a:x", "org:a:y", "org:b:z", "org:c:w", "lab")
"""A tree with a gap (`org:c` has no Budget) and a stranger."""

_GLOBS = ((), ("*",), ("org:*",), ("org:a:*", "lab"), ("lab",), ("org:b",))


class Purses:
    """Draws Budgets."""

    def __init__(self, rng: random.Random, flavors: tuple[str, ...], places: list[dict[str, str]]) -> None:
        self.rng = rng
        self.flavors = flavors
        self.places = places
        self.count = 0

    def first(self, now: int) -> dict[Key, BudgetSpec]:
        """The Budgets a film begins with."""
        chosen = [owner for owner in OWNERS if owner != "org:c:w" and self.rng.random() < 0.8]
        return dict(self._named(owner, now) for owner in chosen or OWNERS[:1])

    def fresh(self, now: int) -> tuple[Key, BudgetSpec]:
        """One more."""
        return self._named(self.rng.choice(OWNERS), now)

    def _named(self, owner: str, now: int) -> tuple[Key, BudgetSpec]:
        self.count += 1
        namespace = "default" if self.rng.random() < 0.8 else "other"
        return key(f"b{self.count}", namespace), self._budget(owner, now)

    def _budget(self, owner: str, now: int) -> BudgetSpec:
        rng = self.rng
        envelopes = tuple(self._envelope(f"e{index}", now) for index in range(rng.choice((1, 2, 2, 3))))
        return self._capped(BudgetSpec(owner=owner, parents=self._parents(), envelopes=envelopes))

    def _parents(self) -> tuple[str, ...] | None:
        rng = self.rng
        if rng.random() < 0.75:
            return None
        return tuple(sorted({rng.choice(OWNERS) for _ in range(rng.randint(0, 2))}))

    def _envelope(self, name: str, now: int) -> Envelope:
        rng = self.rng
        start, end = self._window(now)
        envelope = Envelope(
            name=name,
            flavor=rng.choice((self.flavors[0], *self.flavors)),
            selector=self._selector(),
            concurrency=rng.choice((4, 8, 8, 12, 16, 32, 64)),
            max_gpu_hours=None if rng.random() < 0.6 else rng.choice((2, 8, 16, 64, 256)) * HOUR,
            start=start,
            end=end,
            sharing=rng.choice((Sharing.FAMILY, Sharing.FAMILY, Sharing.FAMILY, Sharing.NONE)),
            pre_activation=PreActivation(allow_admission=rng.random() < 0.3),
            lending=self._lending(),
            on_exhaustion=rng.choice((OnExhaustion.HOLD, OnExhaustion.HOLD, OnExhaustion.DRAIN)),
        )
        return _valid(envelope)

    def _selector(self) -> dict[str, str]:
        rng = self.rng
        if not self.places or rng.random() < 0.4:
            return {"region": "*"}
        label = rng.choice(("region", "region", "cluster", "fabric.domain", "rack"))
        return {label: rng.choice(self.places).get(label, "*")}

    def _window(self, now: int) -> tuple[int | None, int | None]:
        rng = self.rng
        if rng.random() < 0.6:
            return None, None
        base = now - now % HOUR
        start = None if rng.random() < 0.4 else base + rng.randint(-2, 3) * HOUR
        end = None if rng.random() < 0.4 else (start or base) + rng.randint(1, 6) * HOUR
        return start, end

    def _lending(self) -> Lending:
        rng = self.rng
        hours = None if rng.random() < 0.7 else rng.choice((2, 8)) * HOUR
        return Lending(
            allow=rng.random() < 0.6,
            to=rng.choice(_GLOBS),
            max_concurrency=None if rng.random() < 0.5 else rng.choice((2, 4, 8)),
            max_gpu_hours=hours,
        )

    def _capped(self, spec: BudgetSpec) -> BudgetSpec:
        """The Budget with random aggregate caps over its envelopes, each over those of one flavor."""
        rng = self.rng
        caps: list[AggregateCap] = []
        for index in range(rng.choice((0, 0, 0, 1, 2))):
            flavor = rng.choice(spec.envelopes).flavor
            alike = [each.name for each in spec.envelopes if each.flavor == flavor]
            names = tuple(name for name in alike if rng.random() < 0.7) or (alike[0],)
            width = None if rng.random() < 0.3 else rng.choice((4, 8, 12, 24))
            hours = rng.choice((2, 8, 32)) * HOUR if width is None or rng.random() < 0.3 else None
            caps.append(
                AggregateCap(
                    name=f"c{index}", flavor=flavor, envelopes=names, max_concurrency=width, max_gpu_hours=hours
                )
            )
        return replace(spec, aggregate_caps=tuple(caps))

    def edited(self, spec: BudgetSpec, now: int) -> BudgetSpec:
        """The Budget after one edit."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return replace(spec, parents=self._parents())
        if kind < 0.14:
            return replace(spec, owner=rng.choice(OWNERS))
        if kind < 0.26:
            return self._capped(spec)
        if kind < 0.34:
            added = self._envelope(f"e{rng.randint(0, 5)}", now)
            kept = tuple(each for each in spec.envelopes if each.name != added.name)
            return self._capped(replace(spec, envelopes=(*kept, added)))
        if kind < 0.42 and len(spec.envelopes) > 1:
            gone = rng.choice(spec.envelopes)
            return self._capped(replace(spec, envelopes=tuple(each for each in spec.envelopes if each is not gone)))
        chosen = rng.choice(spec.envelopes)
        changed = _valid(self._changed(chosen, now))
        return replace(spec, envelopes=tuple(changed if each is chosen else each for each in spec.envelopes))

    def _changed(self, envelope: Envelope, now: int) -> Envelope:
        rng = self.rng
        kind = rng.random()
        if kind < 0.15:
            return replace(envelope, concurrency=64, max_gpu_hours=None, start=None, end=None)
        if kind < 0.4:
            return replace(envelope, concurrency=rng.choice((1, 2, 4, 6, 8, 16, 32)))
        if kind < 0.6:
            return replace(
                envelope, max_gpu_hours=None if rng.random() < 0.3 else rng.choice((1, 2, 8, 32, 128)) * HOUR
            )
        if kind < 0.8:
            start, end = self._window(now)
            return replace(envelope, start=start, end=end)
        if kind < 0.87:
            flipped = OnExhaustion.DRAIN if envelope.on_exhaustion is OnExhaustion.HOLD else OnExhaustion.HOLD
            return replace(envelope, on_exhaustion=flipped)
        if kind < 0.95:
            return replace(envelope, lending=self._lending())
        return replace(envelope, selector=self._selector())


def _valid(envelope: Envelope) -> Envelope:
    """Hours that the window could hold."""
    if envelope.max_gpu_hours is None or envelope.start is None or envelope.end is None:
        return envelope
    most = envelope.concurrency * (envelope.end - envelope.start)
    return replace(envelope, max_gpu_hours=min(envelope.max_gpu_hours, most))
