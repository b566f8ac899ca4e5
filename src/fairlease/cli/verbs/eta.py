"""`fairlease eta`: when a run that waits will start, how sure that is, and why it moved."""

from __future__ import annotations

import click

from fairlease.cli.failure import unsaid
from fairlease.cli.render.contention import UNTESTED
from fairlease.cli.render.output import reason_cell, show_facts, show_table, until
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, limit_option, owner_option, run_argument, verb

_EXAMPLE = """
fairlease eta my-run
fairlease eta --all
fairlease eta --owner org:ai -o json | jq '.runs[] | {name, p50: .forecast.p50}'
"""


@verb("eta", example=_EXAMPLE, formats=READ, namespace=True, wide="scope, deficit, remedies, and why it moved")
@run_argument(required=False, living=True)
@click.option("--all", "every", is_flag=True, help="All runs that wait, as last forecast.")
@owner_option("All that wait, of this owner and of all below it.")
@limit_option()
def command(session: Session, run: str | None, every: bool, owner: str | None, limit: int) -> None:
    """Say when a run will start: early, most likely, late.

    P10, P50 and P90: one start in ten comes before the first, half before the second, nine in ten before the third. Of a run
    that runs already it tells the odds of being cut for reservations that come, of one that is over how it ended.
    """
    every = every or owner is not None
    if (run is None) != every:
        raise click.UsageError("name a RUN, or say --all or --owner")
    answer = session.call("eta", owner=owner, limit=limit) if run is None else session.call("eta", run=session.key(run))
    session.show(answer, lambda found: _draw_all(session, found, owner) if every else _draw(session, found["runs"][0]))


def _draw(session: Session, row: Answer) -> None:
    forecast, reservation = row.get("forecast"), row.get("reservation")
    facts: dict[str, object] = {"Name": bare(row["name"]), "Owner": row.get("owner"), "Phase": row["phase"]}
    if reservation is not None:
        facts["Reservation"] = _reserved(reservation)
    if forecast is not None:
        facts |= {name.upper(): _when(forecast, name) for name in ("p10", "p50", "p90")}
        facts |= {
            "As of": forecast["asOf"],
            "Source": forecast["source"],
            "Why": forecast["why"],
            "Confidence": _confidence(forecast),
        }
        if "scope" in forecast:
            facts |= {"Deficit": f"{forecast['deficitGPUs']} GPUs of {forecast['scope']}"}
            facts |= {"Remedies": "; ".join(forecast["remedies"])}
    elif row.get("reason"):
        facts["Forecast"] = f"none: {row['reason']}"
        facts |= {"Because": row.get("message"), "To mend it": unsaid(row.get("remedy"), row.get("message"))}
    facts["Started"] = row.get("startedAt")
    if ended := row.get("ended"):
        facts |= {"Ended": f"{ended['at']}, {ended['reason']}", "Because": ended["message"]}
        facts["Why it ended"] = f"{session.program} explain {bare(row['name'])}"
    show_facts({name: value for name, value in facts.items() if value})
    _draw_odds(session, row)


def _draw_odds(session: Session, row: Answer) -> None:
    rows = [
        (
            bare(each["claim"]),
            each["at"],
            f"{each['chance']:.1%}",
            "exact" if each["exact"] else f"{each['draws']} draws",
        )
        for each in row.get("odds", ())
    ]
    if rows:
        click.echo("\nOdds of being cut:")
        show_table(("FOR", "AT", "CHANCE", "COUNTED"), rows, colour=session.colour)
    elif row["phase"] == "Running":
        click.echo("No reservation that comes could cut it.")


def _draw_all(session: Session, answer: Answer, owner: str | None) -> None:
    rows = []
    for each in answer["runs"]:
        told = each.get("forecast") or {}
        cells: list[object] = [bare(each["name"]), each["owner"]]
        cells += [until(told.get(name)) for name in ("p10", "p50", "p90")]
        cells += [told.get("p50"), told.get("asOf"), told.get("source") or reason_cell(each["reason"])]
        held = each.get("reservation") or {}
        cells += [held.get("earliestStart") or held.get("state")]
        if session.wide:
            cells += [told.get("scope"), told.get("deficitGPUs"), "; ".join(told.get("remedies", ())), told.get("why")]
        rows.append(cells)
    headings = ("NAME", "OWNER", "P10", "P50", "P90", "P50 AT", "AS OF", "SOURCE", "RESERVED FOR")
    wide = ("SCOPE", "DEFICIT", "REMEDIES", "WHY") if session.wide else ()
    if rows:
        show_table((*headings, *wide), rows, colour=session.colour)
    else:
        click.echo("nobody waits" if owner is None else f"no run of {owner} waits, nor of any owner below it")


def _reserved(reservation: Answer) -> str:
    """Its date and what that rests on; of one that is blocked, why it has none."""
    if reservation["earliestStart"] is not None:
        return f"{reservation['earliestStart']} ({reservation['basis']}), {reservation['state']}"
    why = f": {reservation['message']}" if reservation.get("message") else ""
    return f"{reservation['state']}, no date ({reservation['basis']}){why}"


def _when(forecast: Answer, name: str) -> str:
    return f"{forecast[name]} ({until(forecast[name])})"


def _confidence(forecast: Answer) -> str:
    share = forecast.get("confidence")
    return UNTESTED if share is None else f"{share:.0%} of starts lately came between P10 and P90"
