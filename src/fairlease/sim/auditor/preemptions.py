"""Cutting: the auditor's questions to every resolution: who may cut whom, for what, by which record (SEMANTICS §7).

A resolution is on record before the first lease closes; it serves its claim in the same entry; it cuts funded work only for a
reservation that is due, after its notice, and draws only what is old enough, never those who once displaced the claim.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlease.ledger.state import events as ev
from fairlease.model.lease import Role
from fairlease.model.record import Key
from fairlease.model.reservation import OutcomeSpec
from fairlease.reason import Reason
from fairlease.sim.auditor.bookkeeper import AuditedRun, Held
from fairlease.sim.auditor.facts import AuditFacts, Fault

BY_RIGHT = (Reason.DropSpare, Reason.Shrink, Reason.RandomPreempt)
"""How funded work gives way."""

RECLAIMS = (Reason.ReclaimOpportunistic, Reason.ReclaimOverdrawn, Reason.DropSpare, Reason.RandomPreempt)
"""Closures that are always a cut of one's work for another."""


class Cuts:
    """The resolutions of a film: the last one's digest, who lost a draw to whom, and what the entry at hand announced."""

    def __init__(self) -> None:
        self.last = "0" * 64
        self.lost_to: set[tuple[Key, Key]] = set()
        self.announced: dict[tuple[Key, str], Reason] = {}
        self.claims: list[Key] = []
        self.owing: dict[Key, set[int]] = {}

    def begin(self) -> None:
        """Another entry."""
        self.announced, self.claims, self.owing = {}, [], {}

    def recorded(self, seen: AuditFacts, event: ev.OutcomeRecorded) -> Iterator[Fault]:
        """Hear of a resolution."""
        outcome = event.outcome
        if outcome.previous != self.last:
            yield "outcome", f"{event.name} does not follow the one before it"
        self.last = ev.digest(outcome)
        claim = None if outcome.claim is None else seen.runs.get(outcome.claim.key)
        if (claim is None) != (outcome.by_hand is not None):
            yield "outcome", f"{event.name} is for nobody"
        if not outcome.actions or (claim is not None and claim.spec.opportunistic):
            yield "outcome", f"{event.name} cuts nobody, or for opportunistic work"
        if claim is not None:
            self.claims.append(claim.key)
        reasons = {action.reason for action in outcome.actions}
        if claim is not None and reasons & set(BY_RIGHT) and not seen.promises.may_cut(claim.key, seen.at):
            yield "notice", f"{event.name} cuts funded work before the reservation of {claim.key} is due"
        yield from self._draws(outcome, event.name)
        for action in outcome.actions:
            victim = seen.runs[action.run]
            if victim.spec.resources.gpu_type != outcome.scope.flavor or action.run not in outcome.conflict_set:
                yield "outcome", f"{event.name} cuts {action.run}, which is not in question"
            if claim is not None and action.reason in BY_RIGHT and (claim.key, action.run) in self.lost_to:
                yield "cut", f"{claim.key} lost a draw to {action.run} and cuts it in turn"
            if claim is not None and action.reason is Reason.RandomPreempt:
                self.lost_to.add((action.run, claim.key))
            self.owing[action.run] = {unit[3] for unit in seen.overdrawn if unit[0] == action.run}
            self.announced.update({(action.run, name): action.reason for name in action.leases})

    def names(self, run: AuditedRun, going: list[Held]) -> bool:
        """Whether a resolution of this entry named any of some leases."""
        return any((run.key, each.name) in self.announced for each in going)

    @staticmethod
    def _draws(outcome: OutcomeSpec, name: str) -> Iterator[Fault]:
        ended = {action.run for action in outcome.actions if action.reason is Reason.RandomPreempt}
        lottery = outcome.lottery
        drawn = [] if lottery is None else [draw.run for draw in lottery.draws]
        kept = set() if lottery is None else {draw.run for draw in lottery.draws if not draw.given_back}
        tokens = set() if lottery is None else {token.run for token in lottery.tokens}
        if ended != kept or len(drawn) != len(set(drawn)) or not tokens.issuperset(drawn):
            yield "outcome", f"{name} ends {sorted(ended)} and drew {drawn}"

    def closing(
        self, seen: AuditFacts, run: AuditedRun, event: ev.LeasesClosed | ev.LeasesLeaving, going: list[Held]
    ) -> Iterator[Fault]:
        """Leases close because somebody else needs them: announced, lease by lease, and of the right kind."""
        whole = all(each in going or (run.key, each.name) in self.announced for each in run.open)
        if any(self.announced.pop((run.key, each.name), None) is not event.reason for each in going):
            yield "outcome", f"{run.key} was cut without a record of it"
        if event.reason is Reason.ReclaimOpportunistic and not run.spec.opportunistic:
            yield "cut", f"{run.key} is not opportunistic"
        if event.reason is Reason.ReclaimOverdrawn:
            groups = self.owing.get(run.key, set())
            elastic = run.spec.malleable is not None and bool(groups & {each.group for each in going})
            if not (bool(groups) if whole else elastic):
                yield "cut", f"{run.key} is covered and was cut"
        if event.reason is Reason.DropSpare and any(each.role is not Role.SPARE for each in going):
            yield "cut", f"{run.key} lost more than spares"
        if event.reason is Reason.RandomPreempt:
            if run.started is None or seen.at - run.started < seen.config.min_runtime:
                yield "cut", f"{run.key} was drawn before it was old enough"
            if not whole or event.seed is None:
                yield "cut", f"{run.key} was drawn and did not end whole, or without a seed"

    def over(self, seen: AuditFacts) -> Iterator[Fault]:
        """An entry is over: all that was announced was done, and each claim was served by it."""
        for run, name in self.announced:
            yield "outcome", f"{name} of {run} was to be cut and was not"
        for claim in self.claims:
            if seen.runs[claim].started != seen.at and not seen.promises.comes_free(claim):
                yield "claim", f"others were cut for {claim}, which was not served"
