"""Every verb that changes what was asked for, written once: from a spec and the arguments to a command, or a refusal.

One machine has its engine decide the command. On a cluster the command is written into the object's spec, of which the controller
hears like of any other edit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from fairlease.engine import command as cmd
from fairlease.engine.tick.lifecycle import rigid
from fairlease.ledger.state import events as ev
from fairlease.model.record import Key, short
from fairlease.model.reservation import ByHand
from fairlease.model.rules import an_owner
from fairlease.reason import Reason
from fairlease.report import lending, views
from fairlease.runtime import requests as rq
from fairlease.runtime.requests import Refused, check

if TYPE_CHECKING:
    from fairlease.ledger.state.state import State
    from fairlease.model.budget import BudgetSpec, Envelope
    from fairlease.model.run import Funding, RunSpec
    from fairlease.scheduler import Scheduler

View = dict[str, Any]
REASON_MAX = 200
ENDED_TOLD = 4
"""Runs of which it is told how they ended, where several were to be."""


class Asked(NamedTuple):
    """A run as it is asked for, and how wide it is; `program` is how the caller's program is called."""

    run: Key
    spec: RunSpec
    width: int
    program: str

    def view(self) -> View:
        """How wide it is, and how wide it would like to be."""
        return {"allocated": self.width, "desired": self.desired}

    @property
    def desired(self) -> int:
        """The width that it would like to have."""
        elastic = self.spec.malleable
        return self.spec.resources.total_gpus if elastic is None else elastic.desired


class Edit(NamedTuple):
    """What is to be decided, and the answer, from how the run stands afterwards; `remedy`: where it is not valid."""

    command: cmd.Resize | cmd.SetFunding
    answer: Callable[[Asked], View]
    remedy: str | None = None


# --- width ---------------------------------------------------------------------------------------------------------------


def resize(asked: Asked, args: rq.ResizeArgs) -> Edit:
    """Set the width that an elastic run would like to have, `to` so many GPUs or `by` so many fewer."""
    another, run = "ask for a width that it can have", short(asked.run)
    if (args.to is None) == (args.by is None):
        raise Refused(Reason.InvalidRequest, "say to how many GPUs, or by how many", "say one of the two")
    if args.by is not None and args.by < 1:
        raise Refused(Reason.InvalidRequest, f"by: {args.by} is less than 1", "give back at least one GPU")
    if asked.spec.malleable is None:
        raise Refused(Reason.InvalidRequest, rigid(asked.run, asked.spec), another)
    has = asked.width or asked.desired  # while it waits, what it would like
    wanted = args.to if args.to is not None else has - (args.by or 0)
    if args.narrower and wanted > has:
        told = f"{run} is {has} GPUs wide; {wanted} would be wider"
        raise Refused(Reason.InvalidRequest, told, f"{asked.program} resize {run} --to {wanted}")
    return Edit(
        cmd.Resize(run=asked.run, desired=wanted),
        lambda after: {"name": run, "before": asked.view(), "width": after.view()},
        another,
    )


# --- sponsors ------------------------------------------------------------------------------------------------------------


def add_sponsor(asked: Asked, args: rq.SponsorArgs) -> Edit:
    """Let a run borrow from one more owner, the last to be asked; what waits is tried again at once."""
    wrong, funding = an_owner(args.owner), asked.spec.funding
    if wrong is not None:
        raise Refused(Reason.InvalidRequest, f"owner: {args.owner[:80]!r}: {wrong}", "name an owner")
    if args.max_gpus is not None and args.max_gpus < 0:
        raise Refused(Reason.InvalidRequest, f"max: {args.max_gpus} is negative", "give a number of GPUs")
    sponsors = tuple(dict.fromkeys((*funding.sponsors, args.owner)))
    limit = funding.max_borrow_gpus if args.max_gpus is None else args.max_gpus
    return _refunded(asked, replace(funding, allow_borrow=True, sponsors=sponsors, max_borrow_gpus=limit))


def remove_sponsor(asked: Asked, args: rq.SponsorArgs) -> Edit:
    """Let a run borrow no more from an owner; what it has borrowed stays until it ends."""
    funding = asked.spec.funding
    if args.owner not in funding.sponsors:
        message = f"{args.owner} is no sponsor of {short(asked.run)}; it has {', '.join(funding.sponsors) or 'none'}"
        raise Refused(Reason.NotFound, message)
    return _refunded(asked, replace(funding, sponsors=tuple(each for each in funding.sponsors if each != args.owner)))


def _refunded(asked: Asked, funding: Funding) -> Edit:
    told = {"name": short(asked.run), "owner": asked.spec.owner, "changed": funding != asked.spec.funding}
    return Edit(cmd.SetFunding(run=asked.run, funding=funding), lambda _: told | lending.terms(funding))


RUN_EDITS: dict[str, tuple[type[rq.Args], Callable[[Asked, Any], Edit]]] = {
    "resize": (rq.ResizeArgs, resize),
    "sponsors.add": (rq.SponsorArgs, add_sponsor),
    "sponsors.remove": (rq.SponsorArgs, remove_sponsor),
}


# --- lending -------------------------------------------------------------------------------------------------------------


def stop_lending(budget: Key, spec: BudgetSpec, args: rq.StopLending) -> cmd.SetBudget:
    """Lend nothing more from a Budget, or from one envelope of it; a recall leaves running loans without cover."""
    names = [each.name for each in spec.envelopes]
    if args.envelope is not None and args.envelope not in names:
        message = f"{short(budget)} has no envelope {args.envelope}; it has {', '.join(names)}"
        raise Refused(Reason.NotFound, message)

    def stopped(envelope: Envelope) -> Envelope:
        if args.envelope not in (None, envelope.name):
            return envelope
        most = 0 if args.recall else envelope.lending.max_concurrency
        return replace(envelope, lending=replace(envelope.lending, allow=False, max_concurrency=most))

    return cmd.SetBudget(budget=budget, spec=replace(spec, envelopes=tuple(map(stopped, spec.envelopes))))


def changed_envelopes(before: BudgetSpec, after: BudgetSpec) -> list[Envelope]:
    """The envelopes that an edit changed, as they are after it."""
    return [new for old, new in zip(before.envelopes, after.envelopes, strict=True) if old != new]


def stopped_view(state: State, budget: Key, changed: list[str], args: rq.StopLending, now: int) -> View:
    """What a Budget that stopped lending still has lent."""
    told = lending.lent_view(state, budget, now)
    left = [loan for each in told["envelopes"] if args.envelope in (None, each["name"]) for loan in each["loans"]]
    return {"budget": told["name"], "envelopes": changed, "loans": left}


# --- ends ----------------------------------------------------------------------------------------------------------------


def all_ended(statuses: Sequence[tuple[Key, View]], of: int) -> Refused:
    """All runs that somebody wants to end have ended: how and when, the first few of so many."""
    told = [
        f"{short(run)} ended already, {status.get('reason') or status['phase']}"
        + (f" at {status['endedAt']}" if status.get("endedAt") else "")
        for run, status in statuses[:ENDED_TOLD]
    ]
    more = of - len(told)
    words = "; ".join(told) + (f"; and {more} more" if more > 0 else "")
    return Refused(Reason.Terminal, words or "no run was named")


def has_ended(run: Key) -> Refused:
    """A run that is over is not changed."""
    return Refused(Reason.Terminal, f"{short(run)} has ended already")


# --- GPUs freed by hand --------------------------------------------------------------------------------------------------


def resolve(args: rq.ResolveArgs, by: str, request: str = "") -> cmd.Resolve:
    """Free GPUs by the rules of a claim, as an administrator."""
    if len(args.reason) > REASON_MAX:
        raise Refused(Reason.InvalidRequest, f"reason: longer than {REASON_MAX} characters", "be brief")
    asked = ByHand(
        by=by, reason=args.reason, gpus=args.gpus, gpus_per_pod=args.pod, group_gpus=args.group, request=request
    )
    return cmd.Resolve(args.flavor, args.location, asked)


def tried(scheduler: Scheduler, now: int, command: cmd.Resolve) -> View:
    """What would come of it: the same decision, undone."""
    with scheduler.what_if(max(now, scheduler.state.at), command) as decision:
        for refusal in decision.answers:
            check(refusal)
        return consequences(decision.events, command, dry_run=True)


def consequences(events: Iterable[ev.AnyEvent], command: cmd.Resolve, *, dry_run: bool = False) -> View:
    """The record, what becomes of those who gave way, and who started on what came free; no record where all was free already."""
    outcome, after, started = None, dict[str, str](), list[View]()
    for event in events:
        if isinstance(event, ev.OutcomeRecorded) and event.outcome.by_hand == command.asked and outcome is None:
            outcome = event
        elif outcome is None:
            continue
        elif isinstance(event, ev.RunRequeued):
            after[event.run] = "asks again"
        elif isinstance(event, ev.RunEnded):
            after[event.run] = event.phase.value
        elif isinstance(event, ev.LeasesOpened):
            gpus = sum(len(cell.slots) for cell in event.cells)
            nodes = list(dict.fromkeys(cell.node for cell in event.cells))
            started.append({"run": short(event.run), "gpus": gpus, "nodes": nodes})
    if outcome is None:
        return {"dryRun": dry_run, "outcome": None, "cuts": [], "started": []}
    cuts = [
        {
            "run": short(cut.run),
            "gpus": cut.gpus,
            "leases": list(cut.leases),
            "reason": cut.reason.value,
            "then": after.get(cut.run, "goes on"),
        }
        for cut in outcome.outcome.actions
    ]
    told = views.outcome_object(outcome.name, outcome.outcome)
    return {"dryRun": dry_run, "outcome": told, "cuts": cuts, "started": started}


# --- drills --------------------------------------------------------------------------------------------------------------


def ms_since(begun: float) -> float:
    """How long something took, as a drill tells it."""
    return round((time.perf_counter() - begun) * 1000, 1)
