"""Views: the status of a Run, a Budget, a Lease, as users and Kubernetes see them. Each is a fold over the ledger, nothing more.

Plain dictionaries with the field names of SEMANTICS §2, ready to be printed as JSON or YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.ledger.state.events import Bill
from fairlease.ledger.state.slots import works
from fairlease.model.amount import format_instant, gpu_hours
from fairlease.model.lease import Role
from fairlease.model.record import Key, short, split
from fairlease.model.run import Phase
from fairlease.model.writing import write
from fairlease.reason import COVER_CAUSES, Reason
from fairlease.report import lending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlease.engine.cover.family import Family
    from fairlease.ledger.state.accounts import Account
    from fairlease.ledger.state.capacity import Capacity
    from fairlease.ledger.state.runs import Hold, Leaving, RunState
    from fairlease.ledger.state.state import State
    from fairlease.ledger.store.protocol import Ending, LeaseRow
    from fairlease.model.budget import AggregateCap
    from fairlease.model.reservation import OutcomeSpec
    from fairlease.model.run import RunSpec

View = dict[str, Any]
NONE_LEAVING: Mapping[int, Leaving] = {}
_FUNDED = (Reason.NoRoom, Reason.NeverFits, Reason.Reserved)
_WAITS_FOR_ROOM = (Reason.NoRoom, Reason.NeverFits, Reason.Reserved, Reason.Following)


# --- runs ------------------------------------------------------------------------------------------------------------------


def run_status(run: RunState, now: int, capacity: Capacity | None = None, message: str | None = None) -> View:
    """How a run that lives stands. `capacity` tells which of its spares could take over now, `message` why it waits, said anew."""
    message = run.message if message is None else message
    rates = {name: meter.rate for name, meter in run.meters.items()}
    sponsors = {owner: meter.rate for owner, meter in run.sponsors.items()}
    view: View = {"phase": (Phase.PENDING if run.starting else run.phase).value, "attempt": run.attempt}
    if run.over:
        view["reason"] = run.reason.value
    if message:
        view["message"] = message
    view |= {
        "conditions": _conditions(_live_conditions(run), message or uncovered(run)),
        "width": _width(run.spec, run.width, run.leaving_gpus, run.hold),
        "funding": _funding(run.bill(now), rates, sponsors),
        "leases": [lease.name for lease in run.open],
        "submittedAt": format_instant(run.submitted_at),
    }
    if run.spec.spares_per_group:
        view["spares"] = _spares(run, now, capacity)
    if run.hold is not None:
        view["pendingReservation"] = run.hold.name
        if run.hold.holds:  # One that is blocked has no date.
            view["earliestStart"] = format_instant(run.hold.earliest_start)
    if run.started_at is not None:
        view["startedAt"] = format_instant(run.started_at)
    if run.deadline is not None:
        view["deadline"] = format_instant(run.deadline)
    return view


def starting_words(up: int, pods: int, problem: str = "") -> str:
    """How far a run is that has its GPUs, and whose pods are not all seen to run yet."""
    return f"starting: {up} of {pods} pods" + (f": {problem}" if problem else "")


def ended_status(spec: RunSpec, submitted_at: int, ending: Ending) -> View:
    """How a run that is over ended."""
    ended = ending.ended
    view: View = {"phase": ended.phase.value, "reason": ended.reason.value, "attempt": ended.attempt}
    if ended.message:
        view["message"] = ended.message
    done = ended.phase is Phase.COMPLETED
    told = [
        ("Completed", done, ended.reason, ending.at if done else submitted_at),
        ("Failed", not done, ended.reason, submitted_at if done else ending.at),
        ("Running", False, ended.reason, submitted_at if ended.started_at is None else ending.at),
    ]
    view |= {
        "conditions": _conditions(told, ended.message),
        "width": _width(spec, 0, 0),
        "funding": _funding(ended.bill, {}, {}),
        "leases": [],
        "submittedAt": format_instant(submitted_at),
        "endedAt": format_instant(ending.at),
    }
    if spec.spares_per_group:
        view["spares"] = {"gpus": 0, "gpuHours": gpu_hours(ended.bill.spares)}
    if ended.started_at is not None:
        view["startedAt"] = format_instant(ended.started_at)
    return view


Told = tuple[str, bool | None, Reason, int]
"""A condition, whether it holds (None: not known), why, and since when."""


def _live_conditions(run: RunState) -> list[Told]:
    asked = run.submitted_at
    if run.phase is Phase.RUNNING:
        covered, started = not run.overdrawn, run.started_at or run.since
        return [
            ("Funded", covered, Reason.Covered if covered else Reason.Overdrawn, run.since),
            ("Placed", True, Reason.Bound, started),
            ("Running", not run.starting, Reason.Starting if run.starting else Reason.Bound, started),
            ("Completed", False, Reason.Bound, asked),
            ("Failed", False, Reason.Bound, asked),
        ]
    reason = run.reason
    if run.over:
        done = run.phase is Phase.COMPLETED
        return [
            ("Completed", done, reason, run.since if done else asked),
            ("Failed", not done, reason, asked if done else run.since),
            ("Running", False, reason, run.since),
        ]
    funded = False if reason in COVER_CAUSES else True if reason in _FUNDED else None
    held = funded is False and run.hold is not None and run.hold.holds
    placed = False if held or reason in _WAITS_FOR_ROOM else None
    return [
        ("Funded", funded, Reason.Covered if funded else reason, run.since),
        ("Placed", placed, Reason.Reserved if held else reason, run.since),
        ("Running", False, reason, run.asked_at),
        ("Completed", False, reason, asked),
        ("Failed", False, reason, asked),
    ]


def uncovered(run: RunState) -> str:
    """Whose money no longer covers how much of a run, and what comes of that; nothing where all is covered."""
    if not run.overdrawn:
        return ""
    payers = sorted({f"{short(Key(budget))}/{envelope}" for _, budget, envelope, _ in run.overdrawn})
    ends = min((end for end in run.overdrawn.values() if end is not None), default=None)
    fate = "go when somebody funded needs them" if ends is None else f"end from {format_instant(ends)} on"
    gpus = sum(lease.gpus for lease in run.leases.values() if run.unit(lease) in run.overdrawn)
    return f"{', '.join(payers)} no longer covers {gpus} of its GPUs: they {fate}"


def _conditions(told: Sequence[Told], message: str) -> list[View]:
    words = {True: "True", False: "False", None: "Unknown"}
    return [
        {
            "type": kind,
            "status": words[holds],
            "reason": reason.value,
            "message": "" if reason in (Reason.Covered, Reason.Bound) else message,
            "lastTransitionTime": format_instant(since),
        }
        for kind, holds, reason, since in told
    ]


def _width(spec: RunSpec, allocated: int, leaving: int, hold: Hold | None = None) -> View:
    """How wide a run is; `pending` is what it starts with on the slots that its reservation holds for it."""
    total = spec.resources.total_gpus
    elastic = spec.malleable
    least = total if elastic is None else elastic.min_total_gpus
    most = total if elastic is None else elastic.max_total_gpus
    desired = total if elastic is None else elastic.desired
    pending = least if hold is not None and hold.holds and hold.lien else 0
    return {
        "min": least,
        "max": most,
        "desired": desired,
        "allocated": allocated,
        "pending": pending,
        "leaving": leaving,
    }


def _funding(bill: Bill, rates: dict[str, int], sponsors: dict[str, int]) -> View:
    classes = {"owned": bill.owned, "shared": bill.shared, "borrowed": bill.borrowed, "overdrawn": bill.overdrawn}
    view: View = {name: {"gpus": rates.get(name, 0), "gpuHours": gpu_hours(used)} for name, used in classes.items()}
    view["sponsors"] = [
        {"owner": owner, "gpus": sponsors.get(owner, 0), "gpuHours": gpu_hours(used)}
        for owner, used in sorted(bill.sponsors.items())
    ]
    return view


def _spares(run: RunState, now: int, capacity: Capacity | None) -> View:
    """Spares as they are held and, per group, whether they are ready: on nodes where they could take over at once."""
    held: dict[int, int] = {}
    ready: dict[int, int] = {}
    for lease in run.leases.values():
        spare = lease.role is Role.SPARE
        healthy = spare and (capacity is None or works(capacity.nodes[lease.node].barred))
        held[lease.group] = held.get(lease.group, 0) + (lease.gpus if spare else 0)
        ready[lease.group] = ready.get(lease.group, 0) + (lease.gpus if healthy else 0)
    wanted = 0 if run.spec.opportunistic else run.spec.spares_per_group
    groups = [
        {"group": group, "wanted": wanted, "held": gpus, "ready": ready[group]} for group, gpus in sorted(held.items())
    ]
    spent = gpu_hours(run.bill(now).spares)
    return {"gpus": run.spare_gpus, "ready": sum(ready.values()), "gpuHours": spent, "groups": groups}


# --- budgets ---------------------------------------------------------------------------------------------------------------


def budget_status(state: State, family: Family, budget: Key, now: int) -> View:
    """What a Budget has spent, promised and left."""
    spec = state.budgets[budget]
    accounts = [state.account(budget, envelope.name) for envelope in spec.envelopes]
    cyclic = spec.owner in family.cycles
    overdrawn = any(account.gpus["overdrawn"] for account in accounts)
    since = max((account.since for account in accounts), default=now)
    told: list[Told] = [
        ("Ready", not cyclic, Reason.ParentCycle if cyclic else Reason.Covered, since),
        ("Covered", not overdrawn, Reason.Overdrawn if overdrawn else Reason.Covered, since),
    ]
    conditions = _conditions(told, Reason.ParentCycle.remedy if cyclic else "")
    for kind, holds, reason, message in lending.conditions(state, budget, now):
        conditions += _conditions([(kind, holds, reason, since)], message)
    return {
        "conditions": conditions,
        "usage": [_usage(state, account, now) for account in accounts],
        "headroom": [_headroom(state, account, now) for account in accounts],
        "aggregateHeadroom": [_aggregate(state, budget, cap, now) for cap in spec.aggregate_caps],
        "updatedAt": format_instant(now),
    }


def _usage(state: State, account: Account, now: int) -> View:
    envelope = account.envelope
    gpus = account.gpus
    return {
        "name": account.id[1],
        "flavor": "" if envelope is None else envelope.flavor,
        "ownedGPUs": gpus["owned"],
        "sharedGPUs": gpus["shared"],
        "borrowedGPUs": gpus["borrowed"],
        "overdrawnGPUs": gpus["overdrawn"],
        "spareGPUs": gpus["spare"],
        "opportunisticGPUs": gpus["opportunistic"],
        "consumedGPUHours": gpu_hours(account.consumed(now)),
        "committedGPUHours": gpu_hours(account.committed(now, state.config.commit_quantum)),
    }


def _headroom(state: State, account: Account, now: int) -> View:
    envelope = account.envelope
    assert envelope is not None, "an envelope of a Budget has terms"
    spent = account.consumed(now) + account.committed(now, state.config.commit_quantum)
    hours = None if envelope.max_gpu_hours is None else gpu_hours(max(0, envelope.max_gpu_hours - spent))
    return {"name": account.id[1], "concurrency": max(0, envelope.concurrency - account.used), "gpuHours": hours}


def _aggregate(state: State, budget: Key, cap: AggregateCap, now: int) -> View:
    members = [state.account(budget, name) for name in cap.envelopes]
    quantum = state.config.commit_quantum
    used = sum(member.used for member in members)
    spent = sum(member.consumed(now) + member.committed(now, quantum) for member in members)
    return {
        "name": cap.name,
        "concurrency": None if cap.max_concurrency is None else max(0, cap.max_concurrency - used),
        "gpuHours": None if cap.max_gpu_hours is None else gpu_hours(max(0, cap.max_gpu_hours - spent)),
    }


# --- leases and outcomes ---------------------------------------------------------------------------------------------------


def lease_object(row: LeaseRow, leaving: Mapping[int, Leaving] = NONE_LEAVING) -> View:
    """A lease as its object: spec, and a status that is written once, when it closes. `leaving` are those that are, by serial."""
    lease = row.lease
    namespace, name = split(lease.run)
    status: View = {"closed": row.end is not None}
    asked = leaving.get(lease.serial) if row.end is None else None
    if asked is not None:
        status["leaving"] = {"since": format_instant(asked.since), "reason": asked.reason.value}
    if row.end is not None:
        status |= {"endTime": format_instant(row.end), "closureReason": row.closure}
    return {
        "name": str(lease.name if namespace == "default" else f"{namespace}/{lease.name}"),
        "spec": {
            "owner": lease.owner,
            "runRef": {"namespace": namespace, "name": name},
            "attempt": lease.attempt,
            "compPath": [f"SHARD[{lease.group}]", "D"],
            "slice": {"nodes": [lease.node], "gpus": {lease.node: list(lease.slots)}, "role": lease.role.value},
            "interval": {"start": format_instant(lease.start)},
            "paidByBudget": lease.payer.budget,
            "paidByEnvelope": lease.payer.envelope,
            "reason": lease.reason.value,
        },
        "status": status,
    }


def outcome_object(name: str, outcome: OutcomeSpec) -> View:
    """A resolution as its object."""
    return {"name": name, "spec": write(outcome)}


# --- nodes -----------------------------------------------------------------------------------------------------------------

GROUP_SIZES = (8, 16, 32, 64)
"""How large the groups are that people ask after: "how many 64-GPU slots are there?"."""


def domain_views(state: State) -> list[View]:
    """Residual capacity per fabric domain, and how many groups of usual sizes still fit into it.

    A group of N GPUs counts in pods of 8, or of the largest node where that is smaller: the way large groups are asked for.
    """
    views = []
    for flavor, pool in sorted(state.capacity.pools.items()):
        for domain in sorted(pool.domains.values(), key=lambda each: each.order):
            largest = max(node.peak for node in domain.nodes.values())
            pod = min(8, largest) or 1
            pods = domain.pods(pod)
            views.append(
                {
                    "flavor": flavor,
                    "region": domain.key[0],
                    "cluster": domain.key[1],
                    "domain": domain.name,
                    "nodes": len(domain.nodes),
                    "gpus": sum(node.peak for node in domain.nodes.values()),
                    "free": sum(node.idle for node in domain.nodes.values()),
                    "reserved": sum(node.idle - node.room for node in domain.nodes.values()),
                    "groups": {str(size): pods * pod // size for size in GROUP_SIZES},
                }
            )
    return views


def node_views(state: State) -> list[View]:
    """Every node, with its free slots and, where it is skipped, why."""
    views = []
    for node in sorted(state.capacity.nodes.values(), key=lambda each: each.rank):
        keys, labels = state.config.labels, node.node.labels
        views.append(
            {
                "name": node.node.name,
                "flavor": labels.get(keys.flavor, ""),
                "region": labels.get(keys.region, ""),
                "cluster": labels.get(keys.cluster, ""),
                "domain": labels.get(keys.domain, ""),
                "gpus": node.peak,
                "free": [slot for slot in range(node.peak) if node.free >> slot & 1] if not node.barred else [],
                "skipped": None if node.barred is None else node.barred.value,
                "runs": sorted({str(lease.run) for lease in node.leases.values()}),
            }
        )
    return views
