"""What was asked and what each answered: the tables of envelopes and domains of `plan`, `explain` and `cover`."""

from __future__ import annotations

import click

from fairlease.cli.render.output import NOTHING, reason_cell, show_table
from fairlease.cli.session import Answer, Session

_SETTLED = ("Chosen", "NotNeeded")


def draw_cover(session: Session, visits: list[Answer]) -> None:
    """Every envelope, in the order in which money is asked for; wide with its full name, and what each could change."""
    rows = [
        (
            number,
            visit["place"],
            f"{_budget(session, visit['budget'])}/{visit['envelope']}" if visit["envelope"] else NOTHING,
            visit["owner"],
            "inside" if visit["inLocation"] else "elsewhere",
            visit["paysGPUs"],
            "unbounded" if visit["roomGPUs"] is None else visit["roomGPUs"],
            reason_cell(visit["reason"]),
            NOTHING if visit["reason"] in _SETTLED and not session.wide else visit.get("remedy"),
        )
        for number, visit in enumerate(visits, 1)
    ]
    headings = ("#", "PLACE", "ENVELOPE", "OWNER", "LOCATION", "PAYS", "ROOM", "REASON", "WHAT WOULD CHANGE IT")
    if rows:
        show_table(headings, rows, colour=session.colour, whole=True)
    else:
        click.echo("no envelope of this flavor could be asked")


def draw_domains(session: Session, domains: list[Answer]) -> None:
    """Every fabric domain, the smallest hole first; wide with the place it lies in."""
    rows = [
        (
            visit["domain"],
            *([visit["cluster"], visit["region"]] if session.wide else []),
            visit["freeGPUs"],
            visit["groupsFit"],
            reason_cell(visit["reason"]),
        )
        for visit in domains
    ]
    if rows:
        place = ("CLUSTER", "REGION") if session.wide else ()
        show_table(("DOMAIN", *place, "FREE GPUS", "GROUPS THAT FIT", "REASON"), rows, colour=session.colour)
    else:
        click.echo("no node has this flavor")


def _budget(session: Session, name: str) -> str:
    return name.removeprefix("default/") if not session.wide else name if "/" in name else f"default/{name}"


def heading(text: str) -> None:
    """A title between tables."""
    click.echo(f"\n{text}")
