"""Film: what a scenario showed. Expectations checked at their time, and the whole state at the end, as SCENARIO.md prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.ledger.audit.audit import audit
from fairlease.ledger.store.derived_rows import runs_of
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.model.amount import format_instant
from fairlease.model.record import Key, key, short
from fairlease.report import views
from fairlease.report.story import Storyteller
from fairlease.sim.match import differences, select, unlike
from fairlease.sim.scenario import Subject
from fairlease.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.sim.scenario import Expectation, Scenario

View = dict[str, Any]
_ROOTS = ("name", "spec", "status")


class Film:
    """The record of one play."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.expectations: list[View] = []
        self.report: Any = None

    @property
    def failures(self) -> list[View]:
        """Expectations that did not hold."""
        return [each for each in self.expectations if not each["held"]]

    @property
    def ok(self) -> bool:
        """Whether every expectation held, the audit passed and every restart changed nothing."""
        return not (self.failures or self.world.faults or self.world.internal_errors) and bool(self.report.ok)

    def check(self, wanted: Expectation) -> None:
        """Compare what is expected with what is now."""
        lines = self._differences(wanted)
        told: View = {
            "at": format_instant(self.world.scenario.start + wanted.at),
            "held": not lines,
            "field": wanted.field,
            wanted.about.value: wanted.where if wanted.name is None else wanted.name,
        }
        if lines:
            told["differences"] = lines
            about = wanted.name if wanted.about is Subject.RUN else wanted.where.get("runRef.name")
            if about is not None:
                told["story"] = self.story(key(about))
        self.expectations.append(told)

    def miss(self, wanted: Expectation) -> None:
        """The film ended before an expectation's time: nobody saw it hold."""
        at = format_instant(self.world.scenario.start + wanted.at)
        lines = ["the film ends before that time: set a later spec.until"]
        self.expectations.append({"at": at, "held": False, "field": wanted.field, "differences": lines})

    def close(self) -> None:
        """The film is over: audit its ledger."""
        self.report = audit(self.world.store.entries())

    def story(self, run: Key) -> list[View]:
        """What happened to a run, in sentences."""
        teller = Storyteller()
        return [
            line.view()
            for entry in self.world.store.entries()
            for event in entry.events
            for line in teller.tell(entry.at, event)
            if run in runs_of(event) and (line.object == f"Run/{run}" or line.object.startswith("ResolverOutcome/"))
        ] + [line.view() for line in self.world.refusals if line.object == f"Run/{run}"]

    def result(self) -> View:
        """The state at the end, as one object."""
        world = self.world
        head = world.scheduler.head
        report = self.report
        return {
            "scenario": world.scenario.name,
            "now": format_instant(world.now),
            "head": {"seq": head.seq, "hash": head.hash},
            "runs": {str(run): self.run_view(run) for run in world.submissions},
            "budgets": {str(budget): self.budget_view(budget) for budget in sorted(world.scheduler.state.budgets)},
            "leases": self._leases(),
            "reservations": list(world.reservations.objects(world.now)),
            "resolverOutcomes": self._outcomes(),
            "events": self._events(),
            "audit": {
                "ok": report.ok and not world.faults and not world.internal_errors,
                "checks": {
                    **report.checks,
                    "restartChangesNothing": not world.faults,
                    "noInternalError": not world.internal_errors,
                },
                "findings": [str(each) for each in report.findings] + world.faults + world.internal_errors,
            },
            "expectations": self.expectations,
        }

    def run_view(self, run: Key) -> View | None:
        """A run's status now, whether it lives or is over."""
        world = self.world
        live = world.scheduler.state.runs.get(run)
        if live is not None:
            return views.run_status(live, world.now, world.scheduler.state.capacity)
        ending = world.endings.get(run)
        if ending is None:
            return None
        submitted_at, event = world.submissions[run]
        return views.ended_status(event.spec, submitted_at, ending)

    def budget_view(self, budget: Key) -> View | None:
        """A Budget's status now."""
        scheduler = self.world.scheduler
        if budget not in scheduler.state.budgets:
            return None
        return views.budget_status(scheduler.state, scheduler.engine.family, budget, self.world.now)

    def reservation_view(self, run: Key) -> View | None:
        """A run's reservation, in force or the last: its spec and its status side by side."""
        found = self.world.reservations.of(run, self.world.now)
        return None if found is None else {"name": found["name"], **found["spec"], **found["status"]}

    def _leases(self) -> list[View]:
        leaving = self.world.scheduler.state.leaving
        return [views.lease_object(row, leaving) for row in self.world.store.leases(LeaseQuery())]

    def _outcomes(self) -> list[View]:
        return [views.outcome_object(each.name, each.outcome) for each in self.world.outcomes]

    def _events(self) -> list[View]:
        """What the ledger tells, and the wishes that came to nothing, at their time."""
        teller = Storyteller()
        lines = [
            line
            for entry in self.world.store.entries()
            for event in entry.events
            for line in teller.tell(entry.at, event)
        ]
        return [line.view() for line in sorted(lines + self.world.refusals, key=lambda line: line.at)]

    def _differences(self, wanted: Expectation) -> list[str]:
        if wanted.name is not None:
            return self._single(wanted, wanted.name)
        things, roots = {
            Subject.LEASES: (self._leases, _ROOTS),
            Subject.OUTCOMES: (self._outcomes, _ROOTS),
            Subject.EVENTS: (self._events, ()),
        }[wanted.about]
        found = select(things(), wanted.where, roots)
        lines = []
        if wanted.count is not None and len(found) != wanted.count:
            lines.append(f"wanted {wanted.count} {wanted.about.value}, found {len(found)}")
        if wanted.each is not None:
            for thing in found:
                name = thing.get("name", thing.get("object", "it"))
                lines += unlike(thing, wanted.each, roots, str(name))
        return lines

    def _single(self, wanted: Expectation, name: Key) -> list[str]:
        look = {
            Subject.RUN: self.run_view,
            Subject.BUDGET: self.budget_view,
            Subject.RESERVATION: self.reservation_view,
        }[wanted.about]
        actual = look(name)
        if actual is None and wanted.wanted is not None:
            return [f"there is no {wanted.about.value} {short(name)}"]
        return differences(wanted.wanted, actual)


def play(scenario: Scenario, until: int | None = None, progress: Callable[[int, int], None] | None = None) -> Film:
    """Play a scenario to its end, or to the offset `until`."""
    world = World(scenario)
    film = Film(world)
    end = scenario.start + (scenario.until if until is None else until)
    steps = [step for step in scenario.steps if scenario.start + step.at <= end]
    checks = sorted(scenario.expect, key=lambda each: each.at)
    world.set_up()
    taken = checked = 0
    while True:
        times = [world.next_event()]
        times.append(scenario.start + steps[taken].at if taken < len(steps) else None)
        times.append(scenario.start + checks[checked].at if checked < len(checks) else None)
        now = min((max(when, world.now) for when in times if when is not None), default=None)
        if now is None or now > end:
            break
        world.advance(now)
        while taken < len(steps) and scenario.start + steps[taken].at <= now:
            world.take(steps[taken])
            taken += 1
        looked_at = checked < len(checks) and scenario.start + checks[checked].at <= now
        world.forecast(looked_at=looked_at)
        while checked < len(checks) and scenario.start + checks[checked].at <= now:
            film.check(checks[checked])
            checked += 1
        if progress is not None:
            progress(taken, len(steps))
    world.now = max(world.now, end)
    world.forecast(looked_at=True)
    for unseen in checks[checked:] if until is None else ():
        film.miss(unseen)
    film.close()
    return film
