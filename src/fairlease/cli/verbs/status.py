"""`fairlease status`: is the daemon there, and how do things stand."""

from __future__ import annotations

import click

from fairlease.cli.render.output import NOTHING, age, until
from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import READ, verb

_EXAMPLE = """
fairlease status
fairlease status -o json | jq .freeGPUs
"""


@verb("status", example=_EXAMPLE, formats=READ, wide="the ledger's whole hash, and times")
def command(session: Session) -> None:
    """Show how the daemon, its GPUs and its ledger stand.

    Exits with 3 where no daemon answers.
    """
    session.show(session.call("status"), lambda answer: _draw(session, answer))


def _draw(session: Session, answer: Answer) -> None:
    you, head = answer.get("you") or {}, answer["head"]
    runs = ", ".join(f"{count} {phase}" for phase, count in answer.get("runs", {}).items() if count) or "none"
    owners = ", ".join("all owners" if owner == "*" else owner for owner in you.get("owners") or ())
    nodes = f"{answer['nodes']} node{'' if answer['nodes'] == 1 else 's'}"
    user = f"{you.get('user', NOTHING)}{', administrator' if you.get('admin') else ''}"
    ledger = f"entry {head['seq']}, hash {head['hash'] if session.wide else head['hash'][:16]}"
    facts = {
        "Daemon": f"pid {answer['pid']}, version {answer['version']}, up {age(answer['startedAt'])}",
        "Home": answer["home"],
        "Socket": answer["socket"],
        "Metrics": answer.get("metrics") or answer.get("metricsProblem"),
        "GPUs": f"{answer['freeGPUs']} of {answer['gpus']} free, on {nodes}",
        "Runs": runs,
        "Pods": f"do not start: {answer['startProblem']}" if answer.get("startProblem") else "",
        "Notices": _notices(answer.get("notifications") or {}),
        "Reserved": _reserved(answer.get("reservations") or {}),
        "Ledger": "; ".join(filter(None, (ledger, answer.get("ledgerProblem")))),
        "You": f"{user}; bound to {owners or 'no owner'}",
    }
    if session.wide:
        facts |= {"Started": answer["startedAt"], "Now": answer.get("now")}
    for name, value in facts.items():
        if value:
            click.echo(f"{name + ':':<10}{value}")


def _notices(sums: Answer) -> str:
    """What was not delivered; nothing where all was."""
    parts = [
        f"{sums[name]} {word}" for name, word in (("pending", "on their way"), ("failed", "given up")) if sums.get(name)
    ]
    return ", ".join(parts) + (f" ({sums['error']})" if sums.get("error") else "")


def _reserved(counts: Answer) -> str:
    """How many runs have a date, and when the next is to be kept."""
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "next" and count)
    following = counts.get("next")
    return f"{told}; next {until(following)} ({following})" if told and following else told
