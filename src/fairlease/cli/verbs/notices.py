"""`fairlease notices`: what was told, to whom it went, and what came of that."""

from __future__ import annotations

from collections import Counter

import click

from fairlease.cli.render.output import NOTHING, TableCell, age, show_table, warn_of_limit
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, completes, limit_option, verb

_EXAMPLE = """
fairlease notices
fairlease notices --run my-run
fairlease notices -o json | jq '.notices[] | select(.kind == "CutComing")'
"""

_URGENT = ("CutComing", "RunCut", "ReservationBlocked", "LatestStartPassed", "Overdrawn", "HoursUsedUp")


@verb("notices", example=_EXAMPLE, formats=READ, namespace=True, wide="Budgets, claims and keys")
@click.option("--run", metavar="RUN", shell_complete=completes("runs"), help="Only what concerns this run.")
@limit_option()
def command(session: Session, run: str | None, limit: int) -> None:
    """List what was told: coming cuts, starts, money that runs low.

    The latest first. SENT counts deliveries to the webhook, the command and the signal that the configuration names.
    """
    answer = session.call("notices", run=None if run is None else session.key(run), limit=limit)
    session.show(answer, lambda found: _draw(session, found))
    warn_of_limit(len(answer["notices"]), limit)


def _draw(session: Session, answer: Answer) -> None:
    headings: tuple[str, ...] = ("AGE", "KIND", "DUE", "SENT", "NOTICE")
    if session.wide:
        headings = ("AGE", "KIND", "DUE", "SENT", "RUN", "BUDGET", "CLAIM", "KEY", "NOTICE")
    rows = [_row(session, notice) for notice in answer["notices"]]
    show_table(headings, rows, colour=session.colour, empty="no notices", whole=True)


def _row(session: Session, notice: Answer) -> list[object]:
    sent = Counter(each["state"] for each in notice.get("deliveries", ()))
    told = ", ".join(f"{count} {state}" for state, count in sorted(sent.items())) or NOTHING
    row: list[object] = [
        age(notice["at"]),
        TableCell(notice["kind"], "yellow" if notice["kind"] in _URGENT else None),
        notice.get("due"),
        told,
    ]
    if session.wide:
        row += [bare(notice.get(name) or "") for name in ("run", "budget", "claim")] + [notice["key"]]
    return [*row, notice["text"]]
