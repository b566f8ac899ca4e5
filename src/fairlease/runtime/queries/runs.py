"""Inquiry: why a run waits, what would come of one, who pays, what Budgets have left; thought through on the state, then undone.

Backends differ in who may ask and how answers travel; what they answer comes from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlease.engine import command as cmd
from fairlease.engine.place.packing import need_of
from fairlease.engine.place.plan import least_width
from fairlease.engine.preempt.lottery import odds_of
from fairlease.ledger.state import events as ev
from fairlease.model.amount import format_duration, format_instant, gpu_hours
from fairlease.model.lease import Role
from fairlease.model.node import matches
from fairlease.model.record import Key, key, short, split
from fairlease.model.run import Phase
from fairlease.model.writing import write
from fairlease.reason import Reason
from fairlease.report import views
from fairlease.report.counterfactuals import ChangeKind, Counterfactual, SuggestedChange
from fairlease.report.explain import DomainVisit, Visit, explain
from fairlease.report.explain import visits as ask_money
from fairlease.report.invoices import shares_of
from fairlease.report.reservation_history import ReservationHistory, in_force
from fairlease.report.story import Storyteller
from fairlease.runtime.queries.forecasts import foreseen, odds_of_cuts, tested

if TYPE_CHECKING:
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.store.protocol import Moment
    from fairlease.model.objects import RunObject
    from fairlease.model.run import RunSpec
    from fairlease.runtime.queries.facts import Facts
    from fairlease.runtime.queries.history import SubmittedRun

View = dict[str, Any]
TRIAL = Key("?/run")
"""The name of a run that is only thought of, where its own is taken. No real run can have it."""


def explanation(facts: Facts, asked: SubmittedRun, status: View) -> View:
    """Why a run is as it is, and its story; `status` is how the backend shows it."""
    told: View = {"name": short(asked.run), "status": status}
    told |= verdict(facts, asked)
    run = facts.state.runs.get(asked.run)
    if run is not None and run.starting:
        told |= {"verdict": Reason.Starting.value, "message": status["message"], "remedy": Reason.Starting.remedy}
    return told | contention(facts, asked.run) | {"story": story(facts, asked.run)}


def verdict(facts: Facts, asked: SubmittedRun) -> View:
    """Why a run is as it is; a run that waits is asked for again, everything that it would ask."""
    state = facts.state
    run = state.runs.get(asked.run)
    if run is None:
        assert asked.ending is not None, "what does not live has ended"
        ended = asked.ending.ended
        told_then = {"verdict": ended.reason.value, "message": ended.message, "remedy": ended.reason.remedy}
        return told_then | started(facts, asked)
    if run.phase is Phase.RUNNING or run.reason is Reason.Following:
        told_then = {"verdict": run.reason.value, "message": run.message, "remedy": run.reason.remedy}
        return told_then | (_running(facts, asked, run) if run.phase is Phase.RUNNING else {})
    told = explain(state, facts.scheduler.engine.family, run, max(facts.now, state.at))
    message, remedy = told.of(run)
    return {
        "verdict": run.reason.value,
        "message": message,
        "remedy": remedy,
        "changes": _changes(facts, run.key, run.spec),
        "cover": [visit_view(each) for each in told.visits],
        "domains": [domain_view(each) for each in told.domains],
    }


def _running(facts: Facts, asked: SubmittedRun, run: RunState) -> View:
    """What started a run, and what may yet become of it: money that no longer covers it, claims that may cut it."""
    told: View = {"odds": odds_of_cuts(facts.engine_now(), run)}
    if run.overdrawn:
        reason = Reason.Overdrawn
        told |= {"verdict": reason.value, "message": views.uncovered(run), "remedy": reason.remedy}
    return told | started(facts, asked)


def contention(facts: Facts, run: Key) -> View:
    """Every date a run was given, with why it moved, and every time it gave way to others; from its own story."""
    moments = facts.store.story(run)
    events = [moment.event for moment in moments]
    dates = ReservationHistory()
    for moment in moments:
        dates.take(moment.at, moment.event)
    live = facts.state.runs.get(run)
    held = None if live is None else in_force(live, facts.now)
    if held is not None and "forecast" in held["status"]:
        held["status"]["forecast"] = tested(facts.scheduler.engine, held["status"]["forecast"])
    return {
        "reservation": held,
        "reservations": list(dates.objects(facts.now)),
        "preemptions": [_claimed(facts, each) for each in preemptions(events, run, facts.program)],
    }


def _claimed(facts: Facts, preemption: View) -> View:
    """One cut, with whose run it was that claimed."""
    if preemption["claim"] is None:
        return preemption
    claim = key(preemption["claim"])
    live = facts.state.runs.get(claim)
    events = (moment.event for moment in facts.store.story(claim))
    owners = (event.spec.owner for event in events if isinstance(event, ev.RunSubmitted))
    return preemption | {"claimOwner": next(owners, None) if live is None else live.spec.owner}


def _changes(facts: Facts, run: Key, spec: RunSpec) -> list[View]:
    found = Counterfactual(facts.scheduler.engine, run, spec, facts.now).changes()
    return [change_view(each) for each in found]


def started(facts: Facts, asked: SubmittedRun) -> View:
    """Who was to pay and which nodes were chosen when a run last started, as of then; nothing where it never did."""
    found: Moment | None = None
    for moment in facts.store.story(asked.run):
        if isinstance(moment.event, ev.LeasesOpened) and moment.event.reason is Reason.Start:
            found = moment
    if found is None or not isinstance(found.event, ev.LeasesOpened):
        return {}
    nodes = facts.state.capacity.nodes
    labels = {name: known.node.labels for name, known in nodes.items()}
    places = {name: known.domain.key for name, known in nodes.items() if known.domain is not None}
    return {
        "asOf": format_instant(found.at),
        "cover": paid_then(found.event, labels, asked.spec.locality.location),
        "domains": chosen_then(found.event, places),
    }


def cover_of(facts: Facts, run: Key, spec: RunSpec) -> list[View]:
    """Every envelope that a run asks, at its narrowest, as if it were submitted now."""
    with _thought_of(facts, run, spec) as thought:
        at, family = facts.state.at, facts.scheduler.engine.family
        return [visit_view(each) for each in ask_money(facts.state, family, thought, at, least_width(spec))]


def plan(facts: Facts, item: RunObject, by: str) -> View:
    """What would come of submitting a run now."""
    state = facts.state
    if state.name_taken(item.key, facts.now):
        quote = _no_start(Reason.AlreadyExists, Reason.AlreadyExists.remedy)
    else:
        quote = _tried(facts, item, by)
    helped = not quote["starts"] and quote["verdict"] != Reason.AlreadyExists.value
    with _thought_of(facts, item.key, item.spec) as thought:
        told = explain(state, facts.scheduler.engine.family, thought, state.at)
    width = quote["width"] or told.width
    limit = item.spec.runtime.max_duration
    gpus = quote.pop("gpus", 0) or told.gpus
    return {
        "name": short(item.key),
        **quote,
        "width": width,
        "worstCase": {
            "gpus": gpus,
            "hours": None if limit is None else gpu_hours(limit),
            "gpuHours": None if limit is None else gpu_hours(gpus * limit),
            "perAttempt": item.spec.requeues or item.spec.runtime.retries > 0,
        },
        "grows": _growth(item.spec, gpus),
        "changes": _changes(facts, item.key, item.spec) if helped else [],
        "cover": [visit_view(each) for each in told.visits],
        "domains": [domain_view(each) for each in told.domains],
    }


def _tried(facts: Facts, item: RunObject, by: str) -> View:
    """Submit it, look, and undo."""
    with facts.scheduler.what_if(facts.now, cmd.Submit(run=item.key, spec=item.spec, by=by)) as decision:
        run = facts.state.runs.get(item.key)
        if run is None:
            ended = next(each for each in decision.events if isinstance(each, ev.RunEnded) and each.run == item.key)
            return _no_start(ended.reason, ended.message or ended.reason.remedy)
        starts = run.phase is Phase.RUNNING
        leases = list(run.leases.values())
        reservation = in_force(run, facts.now)
        told_ahead = None if starts else foreseen(facts.engine_now(), run)
        if reservation is not None and told_ahead is not None:
            reservation["status"]["forecast"] = told_ahead
        return {
            "verdict": Reason.Start.value if starts else run.reason.value,
            "starts": starts,
            "message": f"starts at once, {run.width} GPUs wide" if starts else run.message,
            "width": run.width,
            "gpus": sum(lease.gpus for lease in leases),
            "payers": shares_of([(lease, lease.gpus, 0) for lease in leases]),
            "nodes": list(dict.fromkeys(lease.node for lease in leases)),
            "reservation": reservation,
            "forecast": told_ahead,
        }


def _no_start(reason: Reason, message: str) -> View:
    told: View = {"verdict": reason.value, "starts": False, "message": message, "width": 0, "payers": [], "nodes": []}
    return told | {"reservation": None, "forecast": None}


@contextmanager
def _thought_of(facts: Facts, name: Key, spec: RunSpec) -> Iterator[RunState]:
    """A run as if it had just been submitted and nothing decided yet; afterwards it never was."""
    state = facts.state
    run = TRIAL if name in state.runs else name
    with state.trial():
        state.apply(max(facts.now, state.at), ev.RunSubmitted(run=run, spec=spec))
        yield state.runs[run]


def story(facts: Facts, run: Key) -> list[View]:
    """All that happened to a run, told: what is about it, and resolutions that it asked for or gave way in."""
    teller = Storyteller()
    about = f"Run/{run}"
    story = (
        line.view()
        for moment in facts.store.story(run)
        for line in teller.tell(moment.at, moment.event)
        if line.object == about or took_part(run, moment.event)
    )
    return [{name: told[name] for name in ("at", "type", "reason", "message")} for told in story]


def budgets(facts: Facts) -> list[View]:
    """Every Budget, with what it has spent, promised and left."""
    state, family = facts.state, facts.scheduler.engine.family
    return [
        {
            "name": short(budget),
            "owner": state.budgets[budget].owner,
            "spec": write(state.budgets[budget]),
            "status": views.budget_status(state, family, budget, facts.now),
        }
        for budget in sorted(state.budgets, key=split)
    ]


def paid_then(opened: ev.LeasesOpened, labels: dict[str, dict[str, str]], location: dict[str, str]) -> list[View]:
    """The envelopes that were chosen to pay, as a start wrote them down; what others had left then is not known any more."""
    sums: dict[tuple[int, str, bool], int] = {}
    for cell in opened.cells:
        kind = "spare" if cell.role is Role.SPARE else opened.payers[cell.payer].fund.value
        inside = not location or matches(labels.get(cell.node, {}), location)
        key = (cell.payer, kind, inside)
        sums[key] = sums.get(key, 0) + len(cell.slots)
    return [
        {
            "place": kind,
            "class": kind,
            "budget": short(opened.payers[index].budget),
            "envelope": opened.payers[index].envelope,
            "owner": opened.payers[index].owner,
            "inLocation": inside,
            "paysGPUs": gpus,
            "roomGPUs": gpus,
            "reason": Reason.Chosen.value,
            "remedy": Reason.Chosen.remedy,
        }
        for (index, kind, inside), gpus in sums.items()
    ]


def chosen_then(opened: ev.LeasesOpened, places: dict[str, tuple[str, str, str]]) -> list[View]:
    """The domains that a start chose, with their nodes; what was free in them then is not known any more."""
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for cell in opened.cells:
        nodes = found.setdefault(places.get(cell.node, ("", "", "")), {})
        nodes[cell.node] = nodes.get(cell.node, 0) + len(cell.slots)
    return [
        {
            "domain": domain,
            "cluster": cluster,
            "region": region,
            "nodes": list(nodes),
            "gpus": sum(nodes.values()),
            "freeGPUs": None,
            "groupsFit": None,
            "reason": Reason.Chosen.value,
        }
        for (region, cluster, domain), nodes in found.items()
    ]


def took_part(run: Key, event: ev.AnyEvent) -> bool:
    """Whether an event is a resolution for a run, or one that cut it."""
    if not isinstance(event, ev.OutcomeRecorded):
        return False
    claim, cuts = event.outcome.claim, event.outcome.actions
    return (claim is not None and claim.key == run) or any(cut.run == run for cut in cuts)


def preemptions(events: Iterable[ev.AnyEvent], run: Key, program: str) -> list[View]:
    """Every time a run gave way: to whom, by which draw, and the name of the record that proves it."""
    found = []
    for event in events:
        if not isinstance(event, ev.OutcomeRecorded):
            continue
        outcome, own = event.outcome, [cut for cut in event.outcome.actions if cut.run == run]
        if not own:
            continue
        lottery = outcome.lottery
        told: View = {
            "outcome": event.name,
            "at": format_instant(outcome.at),
            "claim": None if outcome.claim is None else short(outcome.claim.key),
            "reservation": outcome.reservation or None,
            "byHand": None if outcome.by_hand is None else {"by": outcome.by_hand.by, "reason": outcome.by_hand.reason},
            "deficitGPUs": outcome.deficit_gpus,
            "cuts": [{"reason": cut.reason.value, "gpus": cut.gpus} for cut in own],
            "conflictSet": [short(each) for each in outcome.conflict_set],
            "verify": f"{program} lottery verify {event.name}",
        }
        if lottery is not None:
            told |= {
                "seed": lottery.seed,
                "tokens": [
                    {"run": short(token.run), "owner": token.owner, "gpus": token.gpus, "odds": str(odds)}
                    for token, odds in zip(lottery.tokens, odds_of(lottery.tokens), strict=True)
                ],
                "draws": [{"run": short(each.run), "givenBack": each.given_back} for each in lottery.draws],
            }
        found.append(told)
    return found


def _growth(spec: RunSpec, gpus: int) -> View | None:
    """What an elastic run would hold at the width it would like to have, and cost at worst; None where it starts with that."""
    if spec.malleable is None:
        return None
    need, limit = need_of(spec, spec.malleable.desired), spec.runtime.max_duration
    most = need.pods * need.size
    worst = None if limit is None else gpu_hours(most * limit)
    return {"gpus": most, "gpuHours": worst} if most > gpus else None


def change_view(change: SuggestedChange) -> View:
    """One change that would help, with all that it needs: when the run would then start, who would lend, what it would cost."""
    worst = change.worst_gpu_ms
    durations = change.kind is ChangeKind.SHORTER
    before, after = (
        format_duration(value) if durations and isinstance(value, int) else value
        for value in (change.before, change.after)
    )
    return {
        "change": change.kind.value,
        "field": change.field,
        "from": before,
        "to": after,
        "also": [{"field": each.field, "from": each.before, "to": each.after} for each in change.also],
        "lenders": sorted(change.trial.lenders),
        "starts": change.trial.starts and change.kind is not ChangeKind.WAIT,
        "startsAt": format_instant(change.trial.at),
        "gpus": change.trial.gpus,
        "worstGPUHours": None if worst is None else gpu_hours(worst),
    }


def visit_view(visit: Visit) -> View:
    """One envelope that was asked."""
    return {
        "place": visit.place,
        "budget": short(visit.budget) if visit.budget else "",
        "envelope": visit.envelope,
        "owner": visit.owner,
        "inLocation": visit.inside,
        "paysGPUs": visit.pays_gpus,
        "roomGPUs": visit.room_gpus,
        "reason": visit.reason.value,
        "remedy": visit.remedy,
    }


def domain_view(visit: DomainVisit) -> View:
    """One domain that was asked."""
    return {
        "domain": visit.domain,
        "cluster": visit.cluster,
        "region": visit.region,
        "freeGPUs": visit.free_gpus,
        "groupsFit": visit.groups_fit,
        "reason": visit.reason.value,
    }
