"""`fairlease show`: one run as its object."""

from __future__ import annotations

import shlex

import click

from fairlease.cli.render.output import age, as_yaml, hours, show_facts, show_table, until
from fairlease.cli.render.runs_table import full_name, gpus, reason
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, run_argument, verb

_EXAMPLE = """
fairlease show my-run
fairlease show my-run -o json | jq .status.conditions
"""


@verb("show", example=_EXAMPLE, formats=READ, namespace=True, wide="the spec, and exact hours")
@run_argument()
def command(session: Session, run: str) -> None:
    """Show one run: its spec and status.

    The table is a summary; `-o wide` adds the spec as it was submitted, and `-o json` and `-o yaml` print all there is.
    """
    session.show(session.call("show", run=session.key(run)), lambda answer: _draw(session, answer))


def _draw(session: Session, run: Answer) -> None:
    status, spec = run["status"], run["spec"]
    facts = {
        "Name": bare(full_name(run)),
        "Owner": spec.get("owner"),
        "By": run.get("by"),
        "Phase": status["phase"],
        "Reason": reason(status),
        "Message": status.get("message"),
        "Attempt": status.get("attempt"),
        "GPUs": f"{gpus({**run, 'gpus': spec['resources']['totalGPUs']})} × {spec['resources']['gpuType']}",
        "Submitted": _when(status.get("submittedAt")),
        "Started": _when(status.get("startedAt")),
        "Ended": _when(status.get("endedAt")),
        "Deadline": status.get("deadline"),
        "Reservation": status.get("pendingReservation"),
        "Earliest start": _ahead(status.get("earliestStart")),
        "Forecast": _forecast(run.get("forecast")),
        "Spares": _spares(status.get("spares")),
        "Leases": len(status.get("leases", ())),
        "Command": shlex.join(spec.get("command") or ()),
    }
    show_facts(facts)
    _draw_funding(session, status.get("funding", {}))
    _draw_spares(session, status.get("spares", {}).get("groups", ()))
    if session.wide:
        click.echo(f"\nSpec:\n{as_yaml(spec)}", nl=False)


def _draw_funding(session: Session, funding: Answer) -> None:
    rows = [
        (kind, funding[kind]["gpus"], hours(funding[kind]["gpuHours"], exact=session.wide))
        for kind in ("owned", "shared", "borrowed", "overdrawn")
        if funding.get(kind, {}).get("gpus") or funding.get(kind, {}).get("gpuHours")
    ]
    rows += [
        (f"  from {each['owner']}", each["gpus"], hours(each["gpuHours"], exact=session.wide))
        for each in funding.get("sponsors", ())
    ]
    if rows:
        click.echo()
        show_table(("FUNDING", "GPUS", "GPU-HOURS"), rows, colour=session.colour)


def _forecast(told: Answer | None) -> str | None:
    return None if told is None else f"{told['p50']} ({told['p10']} to {told['p90']}), {told['why']}"


def _ahead(instant: str | None) -> str | None:
    return None if instant is None else f"{instant} ({until(instant)})"


def _spares(spares: Answer | None) -> str | None:
    """How many GPUs could take over at once; the groups tell where."""
    if not spares or "ready" not in spares:
        return None
    wanted = sum(group["wanted"] for group in spares["groups"])
    return f"{spares['ready']} of {wanted} GPUs ready" if spares["groups"] else None


def _draw_spares(session: Session, groups: list[Answer]) -> None:
    if groups:
        click.echo()
        rows = [(each["group"], each["wanted"], each["held"], each["ready"]) for each in groups]
        show_table(("GROUP", "SPARES WANTED", "HELD", "READY"), rows, colour=session.colour)


def _when(instant: str | None) -> str | None:
    return None if instant is None else f"{instant} ({age(instant)} ago)"
