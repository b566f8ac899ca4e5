"""`fairlease plan`: a quote. It asks the engine what it would do, and undoes it: nothing is written."""

from __future__ import annotations

import click

from fairlease.cli.failure import answer_is_no
from fairlease.cli.objects import files_option, read_objects
from fairlease.cli.render.contention import draw_changes, draw_forecast, draw_reservation
from fairlease.cli.render.output import hours, paint, show_table
from fairlease.cli.render.visits import draw_cover, draw_domains, heading
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, verb

_EXAMPLE = """
fairlease plan -f run.yaml
fairlease plan -f run.yaml && fairlease submit -f run.yaml
generate-runs | fairlease plan -f - -o json | jq '.plans[] | {name, starts, verdict}'
"""


@verb("plan", example=_EXAMPLE, formats=READ, namespace=True, wide="all that was asked, of runs that would start too")
@files_option("Runs")
def command(session: Session, files: tuple[str, ...]) -> None:
    """Quote a run: would it start, when, who pays, why not. Writes nothing.

    Each run is asked by itself, as if it alone were submitted now. For a run that would not start it prints the date of the
    reservation it would get, and the smallest changes that would start it now or sooner: each of them was tried by the
    engine. Exits with 0 where all would start, with 1 where one would not.

    With `-o json` each plan has `starts`, `verdict`, `message`, `width`, `payers`, `nodes`, `worstCase` (as it
    starts, spares included; `perAttempt`: it may ask again when it fails or is cut, and each attempt costs as much at worst),
    `grows` (the same of an elastic run as wide as it would like to be, or null), `cover` and
    `domains`; `reservation` (as `fairlease reservations` prints it, or null); `forecast` (P10, P50 and P90 of the start,
    confidence, deficit and remedies, as `fairlease eta` prints it, or null); and `changes`, the earliest start
    first, each with `change`, `field`, `from`, `to`, `also` (other fields that have to change with it, each with `field`,
    `from` and `to`), `lenders` (who would lend then), `starts` (at once), `startsAt`, `gpus` and `worstGPUHours` (null: no
    bound).
    """
    quote(session, read_objects(files, "Run", session.namespace, here=session.here))


def quote(session: Session, objects: list[dict[str, object]]) -> None:
    """Ask for and print the quotes of some runs, and end with their answer."""
    plans = [_with_worst(session.call("plan", object=each)) for each in objects]
    session.show({"plans": plans}, lambda answer: _draw(session, answer))
    if not all(plan["starts"] for plan in plans):
        raise answer_is_no()


def _with_worst(plan: Answer) -> Answer:
    """The quote with what each payer pays at worst; None where nothing bounds it."""
    span = plan["worstCase"].get("hours")
    for payer in plan["payers"]:
        payer["worstGPUHours"] = None if span is None else payer["gpus"] * span
    return plan


def _draw(session: Session, answer: Answer) -> None:
    for number, plan in enumerate(answer["plans"]):
        if number:
            click.echo()
        _draw_one(session, plan)


def _draw_one(session: Session, plan: Answer) -> None:
    starts = plan["starts"]
    told = "would start now" if starts else f"would not start: {plan['verdict']}"
    told = paint(told, "green" if starts else "yellow") if session.colour else told
    click.echo(f"{bare(plan['name'])} {told}", color=session.colour)
    if plan.get("message"):
        click.echo(f"  {plan['message']}")
    click.echo(f"  costs at worst: {worst_case(plan['worstCase'])}")
    if grows := plan.get("grows"):
        bound = "no bound" if grows["gpuHours"] is None else f"{hours(grows['gpuHours'])} GPU-hours"
        click.echo(
            f"  grows to {grows['gpus']} GPUs where there are room and money for each step; at worst then: {bound}"
        )
    if starts:
        click.echo(f"  on: {', '.join(plan['nodes'])}")
        heading("Paid by:")
        rows = [
            (
                f"{bare(each['budget'])}/{each['envelope']}",
                each["owner"],
                each["class"],
                each["gpus"],
                "no bound" if each["worstGPUHours"] is None else hours(each["worstGPUHours"], exact=session.wide),
            )
            for each in plan["payers"]
        ]
        show_table(("ENVELOPE", "OWNER", "CLASS", "GPUS", "GPU-HOURS AT WORST"), rows, colour=session.colour)
    if not starts:
        if plan.get("reservation"):
            draw_reservation(plan["reservation"])
        if plan.get("forecast"):
            draw_forecast(plan["forecast"])
        draw_changes(session, plan.get("changes") or [], "What would start it sooner:")
    if session.wide or not starts:
        heading("Money, in the order asked:")
        draw_cover(session, plan["cover"])
        heading("Room, the smallest hole first:")
        draw_domains(session, plan["domains"])


def worst_case(worst: Answer) -> str:
    """What it can cost: bounded where the run has a `maxDuration`."""
    if worst.get("gpuHours") is None:
        from fairlease.model.amount import format_duration
        from fairlease.model.config import Config

        quantum = format_duration(Config().commit_quantum)
        return (
            f"no bound, {worst['gpus']} GPUs for as long as it runs (set runtime.maxDuration for a bound)\n"
            f"  committed at a time: {worst['gpus']} GPUs for one commitQuantum ({quantum} unless configured otherwise)"
        )
    again = ", and as much again for each attempt after the first" if worst.get("perAttempt") else ""
    return f"{hours(worst['gpuHours'])} GPU-hours ({worst['gpus']} GPUs for {hours(worst['hours'])} h){again}"
