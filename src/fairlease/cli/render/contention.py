"""What waiting and giving way look like: dates and their moves, cuts and their draws, changes that would help."""

from __future__ import annotations

import click

from fairlease.cli.render.output import NOTHING, TableCell, hours, reason_cell, show_table, until
from fairlease.cli.render.visits import heading
from fairlease.cli.session import Answer, Session, bare

_WORDS = {
    "FewerGPUs": "ask for {to} GPUs instead of {from}",
    "LowerMinimum": "let it begin with {to} GPUs instead of {from}",
    "SmallerGroups": "groups of {to} GPUs instead of {from}",
    "SmallerPods": "pods of {to} GPUs instead of {from}",
    "Spread": "let its groups lie in several domains",
    "FewerSpares": "{to} spare GPUs per group instead of {from}",
    "Shorter": "limit it to {to}",
    "Prefer": "make the location a wish",
    "Elsewhere": "go to {to} instead of {from}",
    "Borrow": "borrow from {lenders}",
    "Opportunistic": "run it as opportunistic work: it then gives way to whoever is funded",
    "Wait": "leave it as it is: it starts by then at the latest, as deadlines and windows stand",
}
UNTESTED = "untested: no run that was forecast has started yet"
_STATES = {"Pending": "yellow", "Active": "yellow", "Blocked": "red", "Released": "green"}


_MORE = "borrow up to {to} GPUs instead of {from}"
_ALSO = {
    "funding.allowBorrow": "with allowBorrow: true",
    "funding.maxBorrowGPUs": "up to {to} GPUs instead of {from}",
    "gpusPerPod": "in pods of {to} instead of {from}",
}
"""What else has to change, as one would say it; a template follows its gpusPerPod."""


def change_words(change: Answer) -> str:
    """A change as one would say it, with all that it needs."""
    words = _WORDS.get(str(change["change"]), str(change["field"]))
    if change["field"] == "funding.maxBorrowGPUs":
        words = _MORE
    fields = {change["field"]: change} | {each["field"]: each for each in change.get("also") or ()}
    whole = [words.format(**change | {"lenders": _lenders(change)})]
    beside = fields.items() if change["field"] == "funding.allowBorrow" else list(fields.items())[1:]
    whole += [_ALSO[name].format(**each) for name, each in beside if name in _ALSO]
    return ", ".join(whole)


def _lenders(change: Answer) -> str:
    """Whom it means to borrow from: those it does not name yet, or else those who would lend."""
    given, wanted = change.get("from"), change.get("to")
    fresh = [each for each in wanted if each not in (given or ())] if isinstance(wanted, list) else []
    return ", ".join(fresh or change.get("lenders") or ()) or "its sponsors"


def draw_changes(session: Session, changes: list[Answer], title: str) -> None:
    """The changes that would help, the earliest start first."""
    if not changes:
        return
    heading(title)
    rows = [
        (
            change_words(each),
            TableCell("now", "green") if each["starts"] else f"{until(each['startsAt'])} ({each['startsAt']})",
            "no bound" if each["worstGPUHours"] is None else hours(each["worstGPUHours"], exact=session.wide),
            ", ".join([each["field"], *(also["field"] for also in each.get("also") or ())]) or NOTHING,
        )
        for each in changes
    ]
    show_table(("CHANGE", "STARTS", "GPU-HOURS AT WORST", "FIELD"), rows, colour=session.colour, whole=True)


def draw_reservation(reservation: Answer) -> None:
    """A date in a few lines: when, why then, where, on whose money."""
    spec, status = reservation["spec"], reservation["status"]
    date, state = spec["earliestStart"], status["state"]
    if state == "Blocked":
        click.echo(f"  its reservation is Blocked, and has no date: {status['reason']}")
    else:
        click.echo(f"  reserved: {date} ({until(date)}), {state}, {status['reason']}")
    if status.get("message"):
        click.echo(f"    {status['message']}")
    if state != "Blocked":
        payers = ", ".join(spec["payingEnvelopes"]) or NOTHING
        nodes = ", ".join(spec["intendedSlice"]["nodes"]) or "GPUs that are chosen when it is nearer"
        click.echo(f"    on {nodes}, paid by {payers}")


def draw_forecast(forecast: Answer) -> None:
    """When it is likely to start, and how often such words were kept."""
    click.echo(
        f"  likely: {until(forecast['p50'])} (P10 {forecast['p10']}, P50 {forecast['p50']}, P90 {forecast['p90']})"
    )
    share = forecast.get("confidence")
    sure = UNTESTED if share is None else f"{share:.0%} of starts lately came between P10 and P90"
    click.echo(f"    {forecast['source']}: {forecast['why']}; {sure}")
    if forecast.get("remedies"):
        lacks = f"lacks {forecast['deficitGPUs']} GPUs of {forecast['scope']}"
        click.echo(f"    {lacks}; remedies: {'; '.join(forecast['remedies'])}")


def draw_dates(session: Session, answer: Answer) -> None:
    """The date of a run that waits, and every date it had before, each with why it was given up."""
    if answer.get("reservation"):
        draw_reservation(answer["reservation"])
        if forecast := answer["reservation"]["status"].get("forecast"):
            draw_forecast(forecast)
    past = answer.get("reservations") or []
    if len(past) > 1 or (past and not answer.get("reservation")):
        heading("Dates it was given:")
        draw_reservations(session, past, moves=True)


def draw_reservations(session: Session, reservations: list[Answer], *, moves: bool = False) -> None:
    """Reservations as rows; `moves`: of one run, told with all that is known of why."""
    head: tuple[str, ...] = ("RESERVATION", *(() if moves else ("RUN",)), "STATE", "DATE", "COUNTDOWN", "REASON")
    head += ("PAID BY", "DOMAIN", "NODES") if session.wide else ()
    head += ("MESSAGE",) if moves or session.wide else ("PAID BY", "DOMAIN")
    rows = [_reservation_row(session, each, moves=moves) for each in reservations]
    show_table(head, rows, colour=session.colour, empty="no reservations", whole=moves)


def _reservation_row(session: Session, reservation: Answer, *, moves: bool) -> list[object]:
    spec, status = reservation["spec"], reservation["status"]
    run, counting = spec["runRef"], "countdownSeconds" in status
    row: list[object] = [bare(reservation["name"])]
    row += [] if moves else [bare(f"{run['namespace']}/{run['name']}")]
    row += [
        TableCell(status["state"], _STATES.get(status["state"])),
        NOTHING if status["state"] == "Blocked" else spec["earliestStart"],
        until(spec["earliestStart"]) if counting else NOTHING,
        reason_cell(status.get("reason", ""), good=("HardFacts", "Start")),
    ]
    place = [",".join(spec["payingEnvelopes"]), spec["intendedSlice"]["domain"]]
    row += [*place, ",".join(spec["intendedSlice"]["nodes"])] if session.wide else []
    row += [status.get("message")] if moves or session.wide else place
    return row


def draw_preemptions(preemptions: list[Answer]) -> None:
    """Every time a run gave way: who claimed, who stood in question, the draw, and how to check it."""
    for each in preemptions:
        heading(f"Gave way at {each['at']} ({each['outcome']}):")
        if each.get("byHand"):
            why = f": {each['byHand']['reason']}" if each["byHand"].get("reason") else ""
            click.echo(f"  to an administrator, {each['byHand']['by']}{why}")
        else:
            held = f" ({each['reservation']})" if each.get("reservation") else ""
            owner = f" of {each['claimOwner']}" if each.get("claimOwner") else ""
            click.echo(f"  to {each['claim']}{owner}{held}, which lacked {each['deficitGPUs']} GPUs")
        cuts = ", ".join(f"{cut['gpus']} GPUs, {cut['reason']}" for cut in each["cuts"])
        click.echo(f"  lost: {cuts}")
        click.echo(f"  in question: {', '.join(each['conflictSet'])}")
        if each.get("seed"):
            tokens = ", ".join(f"{token['run']} {token['odds']}" for token in each.get("tokens") or ())
            click.echo(f"  in the lottery, with the odds of being drawn first: {tokens}")
            drawn = ", ".join(draw["run"] + (" (given back)" if draw["givenBack"] else "") for draw in each["draws"])
            click.echo(f"  drawn: {drawn}")
            click.echo(f"  seed: {each['seed']}")
        click.echo(f"  to verify it: {each['verify']}")
