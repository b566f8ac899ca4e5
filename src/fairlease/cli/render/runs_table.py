"""Runs as rows: the columns that `list`, `watch` and `submit` share."""

from __future__ import annotations

from typing import Any

from fairlease.cli.failure import NOT_ALLOWED, Failure
from fairlease.cli.render.output import NOTHING, TableCell, age, hours, phase_cell, reason_cell, until
from fairlease.cli.session import Answer, Session

HEADINGS = ("NAME", "OWNER", "PHASE", "GPUS", "START/ETA", "AGE", "PAYER", "REASON")
WIDE = ("NODES", "DOMAIN", "BORROWED", "GPU-HOURS", "MESSAGE")
LEASES_MAX = 10_000
TERMINAL = ("Completed", "Failed")
FUNDS = ("owned", "shared", "borrowed")


class Whereabouts:
    """Who pays for the runs and where they lie: open leases and nodes, gathered by run."""

    def __init__(self, leases: list[Answer], nodes: list[Answer]) -> None:
        domains = {node["name"]: node["domain"] for node in nodes}
        self.payers: dict[str, dict[str, int]] = {}
        self.nodes: dict[str, list[str]] = {}
        self.domains: dict[str, list[str]] = {}
        for lease in leases:
            spec = lease["spec"]
            run = f"{spec['runRef']['namespace']}/{spec['runRef']['name']}"
            payer = f"{spec['paidByBudget'].removeprefix('default/')}/{spec['paidByEnvelope']}"
            payers = self.payers.setdefault(run, {})
            for node, slots in spec["slice"]["gpus"].items():
                payers[payer] = payers.get(payer, 0) + len(slots)
                _add(self.nodes.setdefault(run, []), node)
                _add(self.domains.setdefault(run, []), domains.get(node, NOTHING))


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def whereabouts(session: Session) -> Whereabouts:
    """Ask for them; nodes only where their domains are shown."""
    leases = session.call("leases", open=True, limit=LEASES_MAX)["leases"]
    return Whereabouts(leases, _nodes(session) if session.wide else [])


def _nodes(session: Session) -> list[Answer]:
    """Who may not see nodes sees no domains either, and the rest of the table."""
    try:
        nodes: list[Answer] = session.call("nodes")["nodes"]
    except Failure as failure:
        if failure.code != NOT_ALLOWED:
            raise
        return []
    return nodes


def headings(session: Session) -> tuple[str, ...]:
    """The columns, by what was asked for."""
    first = ("NAMESPACE",) if session.all_namespaces else ()
    return first + HEADINGS + (WIDE if session.wide else ())


def row(session: Session, run: Answer, where: Whereabouts) -> list[object]:
    """One run."""
    status, full = run["status"], full_name(run)
    namespace, _, name = full.partition("/")
    cells: list[object] = [namespace] if session.all_namespaces else []
    cells += [
        name,
        run["owner"],
        phase_cell(status["phase"]),
        gpus(run),
        start(run),
        age(status.get("submittedAt")),
        _payers(where.payers.get(full, {})) or _paid_by(run),
        _reason_cell(status),
    ]
    if session.wide:
        cells += [_some(where.nodes.get(full, [])), _some(where.domains.get(full, []))]
        funding = status.get("funding", {})
        used = sum(funding.get(kind, {}).get("gpuHours", 0) for kind in (*FUNDS, "overdrawn"))
        used += (status.get("spares") or {}).get("gpuHours", 0)
        cells += [funding.get("borrowed", {}).get("gpus", 0), hours(used, exact=True), status.get("message")]
    return cells


def full_name(run: Answer) -> str:
    """`namespace/name`, whichever way the run was told."""
    name = str(run["name"])
    return name if "/" in name else f"{run.get('namespace') or 'default'}/{name}"


def gpus(run: Answer) -> str:
    """How many GPUs: `8`, or `4/6/8` (least, now, most) where the run is elastic."""
    width: dict[str, Any] = run["status"].get("width") or {}
    least, most = width.get("min"), width.get("max")
    if least == most:
        return str(run.get("gpus") or most or NOTHING)
    return f"{least}/{width.get('allocated', 0)}/{most}"


def start(run: Answer) -> str:
    """How long ago a run started; how long it is until its reservation's date or, without one, about how long, as foreseen."""
    status, foreseen = run["status"], run.get("forecast")
    if status["phase"] != "Pending":
        return age(status.get("startedAt"))
    date = status.get("earliestStart")
    if _blocked(status):
        return "blocked"
    return f"~{until(foreseen['p50'])}" if foreseen and not date else until(date)


def _blocked(status: Answer) -> bool:
    """Whether the reservation of a run has no date; the reason of the run tells why."""
    return bool(status.get("pendingReservation")) and not status.get("earliestStart")


def date_of(status: Answer) -> str:
    """When a run that waits starts at the latest, as its reservation stands; nothing where it has none."""
    if status.get("phase") != "Pending":
        return ""
    date = status.get("earliestStart")
    return f"starts {until(date)}, by {date}" if date else "blocked, no date" if _blocked(status) else ""


def reason(status: Answer) -> str:
    """Why a run is as it is: how it ended, what it waits for, or nothing where it simply runs."""
    if status.get("reason"):
        return str(status["reason"])
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    if status["phase"] == "Running":
        funded = conditions.get("Funded", {})
        return NOTHING if funded.get("status") == "True" else str(funded.get("reason") or NOTHING)
    for kind in ("Funded", "Placed"):
        if conditions.get(kind, {}).get("status") == "False":
            return str(conditions[kind]["reason"])
    return str(conditions.get("Running", {}).get("reason") or NOTHING)


def _reason_cell(status: Answer) -> TableCell:
    told = reason(status)
    return TableCell(told, "red") if status["phase"] == "Failed" else reason_cell(told)


def _payers(shares: dict[str, int]) -> str:
    if len(shares) == 1:
        return next(iter(shares))
    return ",".join(f"{payer}:{share}" for payer, share in shares.items())


def _paid_by(run: Answer) -> str:
    """Whose money a run that has ended used, as its status tells it: its owner's, the family's, that of sponsors."""
    status = run["status"]
    funding = (status.get("funding") or {}) if status["phase"] in TERMINAL else {}
    owned, shared, borrowed = (funding.get(kind, {}).get("gpuHours") for kind in FUNDS)
    sponsors = [each["owner"] for each in funding.get("sponsors") or () if each.get("gpuHours")]
    own = ([run["owner"]] if owned else []) + (["family"] if shared else [])
    return ",".join(own + (sponsors or (["borrowed"] if borrowed else [])))


def _some(names: list[str]) -> str:
    few = 4
    return ",".join(names[:few]) + (f",+{len(names) - few}" if len(names) > few else "")
