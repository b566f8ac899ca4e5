"""Film: what a scenario showed. Expectations checked at their time, and the whole state at the end, as SCENARIO.md prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.engine import view
from fairlease.engine.story import Storyteller
from fairlease.ledger.audit import audit
from fairlease.ledger.derive import runs_of
from fairlease.ledger.store import LeaseQuery
from fairlease.model.amount import format_instant
from fairlease.model.record import Key, key
from fairlease.sim.match import differences, select

if TYPE_CHECKING:
    from fairlease.sim.scenario import Expectation
    from fairlease.sim.world import World

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
        return not self.failures and not self.world.faults and bool(self.report.ok)

    def check(self, wanted: Expectation) -> None:
        """Compare what is expected with what is now."""
        lines = self._differences(wanted)
        told: View = {"at": format_instant(self.world.scenario.start + wanted.at), "held": not lines, "expect": wanted.raw}
        if lines:
            told["differences"] = lines
            subject = wanted.subject_run
            if subject is not None:
                told["story"] = self.story(subject)
        self.expectations.append(told)

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
        ]

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
            "reservations": [],
            "resolverOutcomes": self._outcomes(),
            "events": self._events(),
            "audit": {
                "ok": report.ok and not world.faults,
                "checks": {**report.checks, "restartChangesNothing": not world.faults},
                "findings": [str(each) for each in report.findings] + world.faults,
            },
            "expectations": self.expectations,
        }

    def run_view(self, run: Key) -> View | None:
        """A run's status now, whether it lives or is over."""
        world = self.world
        live = world.scheduler.state.runs.get(run)
        if live is not None:
            return view.run_status(live, world.now)
        ending = world.endings.get(run)
        if ending is None:
            return None
        submitted_at, event = world.submissions[run]
        return view.ended_status(event.spec, submitted_at, ending)

    def budget_view(self, budget: Key) -> View | None:
        """A Budget's status now."""
        scheduler = self.world.scheduler
        if budget not in scheduler.state.budgets:
            return None
        return view.budget_status(scheduler.state, scheduler.engine.family, budget, self.world.now)

    def _leases(self) -> list[View]:
        return [view.lease_object(row) for row in self.world.store.leases(LeaseQuery())]

    def _outcomes(self) -> list[View]:
        return [view.outcome_object(each.name, each.outcome) for each in self.world.outcomes]

    def _events(self) -> list[View]:
        teller = Storyteller()
        return [
            line.view()
            for entry in self.world.store.entries()
            for event in entry.events
            for line in teller.tell(entry.at, event)
        ]

    def _differences(self, wanted: Expectation) -> list[str]:
        if wanted.kind in ("run", "budget", "reservation"):
            return self._single(wanted)
        things, roots = {
            "leases": (self._leases, _ROOTS),
            "outcomes": (self._outcomes, _ROOTS),
            "events": (self._events, ()),
        }[wanted.kind]
        found = select(things(), wanted.where, roots)
        lines = []
        if wanted.count is not None and len(found) != wanted.count:
            lines.append(f"wanted {wanted.count} {wanted.kind}, found {len(found)}")
        if wanted.each is not None:
            for thing in found:
                name = thing.get("name", thing.get("object", "it"))
                lines += differences(wanted.each, thing, str(name))
        return lines

    def _single(self, wanted: Expectation) -> list[str]:
        name = key(wanted.name)
        actual = self.run_view(name) if wanted.kind == "run" else self.budget_view(name) if wanted.kind == "budget" else None
        if actual is None and wanted.wanted is not None:
            return [f"there is no {wanted.kind} {wanted.name}"]
        return differences(wanted.wanted, actual)
