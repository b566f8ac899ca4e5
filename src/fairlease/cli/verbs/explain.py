"""`fairlease explain`: why a run waits, runs or ended, from the money to the slots, and what happened to it."""

from __future__ import annotations

import click

from fairlease.cli.failure import unsaid
from fairlease.cli.render.contention import draw_changes, draw_dates, draw_preemptions
from fairlease.cli.render.output import paint, reason_cell, show_table, until
from fairlease.cli.render.visits import draw_cover, draw_domains, heading
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, run_argument, verb

_EXAMPLE = """
fairlease explain my-run
fairlease explain my-run -o json | jq '.cover[] | select(.reason != "NotNeeded")'
"""


@verb("explain", example=_EXAMPLE, formats=READ, namespace=True, wide="places, full names, what each could change")
@run_argument()
def command(session: Session, run: str) -> None:
    """Explain why a run waits, runs or ended.

    Prints the verdict; of a run that waits, its date, what that rests on, why it moved, and the smallest changes that would
    start it sooner; of a run that runs, which claims may cut it, and how likely; of a run that gave way to others, who
    claimed, the draw with its odds, and how to verify it; then every envelope and every domain that was asked, each with its
    answer, and the story of the run.
    """
    session.show(session.call("explain", run=session.key(run)), lambda answer: draw(session, answer))


def draw(session: Session, answer: Answer) -> None:
    """The whole explanation."""
    status = answer["status"]
    verdict = reason_cell(answer["verdict"])
    told = paint(verdict.text, verdict.colour) if session.colour else verdict.text
    click.echo(f"{bare(answer['name'])} is {status['phase']}: {told}", color=session.colour)
    if answer.get("message"):
        click.echo(f"  {answer['message']}")
    if remedy := unsaid(answer.get("remedy"), answer.get("message")):
        click.echo(f"  what would change it: {remedy}")
    for each in answer.get("odds") or ():
        counted = "exact" if each["exact"] else f"counted in {each['draws']} draws"
        click.echo(
            f"  may be cut at {each['at']} ({until(each['at'])}) for {each['claim']}: {each['chance']:.1%}, {counted}"
        )
    draw_dates(session, answer)
    draw_preemptions(answer.get("preemptions") or [])
    if status["phase"] == "Pending":
        changes = answer.get("changes") or []
        lend = any(each["change"] == "Borrow" for each in changes)
        without = " (to borrow, `sponsors add` is enough)" if lend else ""
        draw_changes(
            session, changes, f"What would start it sooner, if it were canceled and submitted again so{without}:"
        )
    if answer.get("cover") is not None:
        then = f", as of its start at {answer['asOf']}" if answer.get("asOf") else ""
        heading("Money, in the order asked:" if not then else f"Money{then}:")
        draw_cover(session, answer.get("cover") or [])
        heading("Room, the smallest hole first:" if not then else f"Room{then}:")
        draw_domains(session, answer.get("domains") or [])
    heading("Story:")
    rows = [
        (
            line["at"],
            *([line["type"]] if session.wide else []),
            reason_cell(line["reason"]) if line["type"] == "Warning" else line["reason"],
            line["message"],
        )
        for line in answer.get("story") or ()
    ]
    show_table(
        ("AT", *(("TYPE",) if session.wide else ()), "REASON", "MESSAGE"), rows, colour=session.colour, whole=True
    )
