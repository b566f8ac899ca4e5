"""`fairlease who-pays`: the bill, by run and payer."""

from __future__ import annotations

import click

from fairlease.cli.render.output import hours, show_table
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, completes, owner_option, run_argument, verb
from fairlease.cli.verbs.leases import When

_EXAMPLE = """
fairlease who-pays my-run
fairlease who-pays --owner org:team-a -o json
fairlease who-pays --sponsor org:team-b --all --totals
fairlease who-pays --totals --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z
"""


@verb("who-pays", example=_EXAMPLE, formats=READ, namespace=True, wide="namespaces, and hours to the millisecond")
@run_argument(required=False)
@owner_option("All runs of this owner, and of owners below it, that hold GPUs.")
@click.option(
    "--sponsor",
    metavar="OWNER",
    shell_complete=completes("owners"),
    help="Only what this owner, or one below it, pays.",
)
@click.option("--all", "past", is_flag=True, help="Also runs that hold no GPUs, or are over.")
@click.option("--totals", is_flag=True, help="Only what each payer pays in all.")
@click.option(
    "--since", type=When(), metavar="TIME", help="Only what was used at or after this time: RFC 3339, or how long ago."
)
@click.option("--until", type=When(), metavar="TIME", help="Only what was used before this time.")
def command(
    session: Session,
    run: str | None,
    *,
    past: bool,
    totals: bool,
    since: str | None,
    until: str | None,
    **whose: str | None,
) -> None:
    """Show who pays for a run, for an owner's runs, or for all.

    GPUS is what is held now, GPU-HOURS what was used so far, or in the period from --since to --until: runs that are over
    are then part of it, and leases are cut at its ends, so that the bills of months add up. The class tells how payer and run
    are related: owned, shared (family) or borrowed; spares are told apart.
    """
    if run is not None and any(whose.values()):
        raise click.UsageError("give either a RUN, or whose runs: --owner OWNER, --sponsor OWNER")
    full = None if run is None else session.key(run)
    span = {"since": since, "until": until}
    asked = session.call("who-pays", run=full, owner=whose["owner"], payer=whose["sponsor"], all=past or None, **span)
    session.show(asked, lambda answer: (_draw_totals if totals else _draw)(session, answer))


def _draw_totals(session: Session, answer: Answer) -> None:
    rows = [
        (each["owner"], each["class"], each["gpus"], hours(each["gpuHours"], exact=session.wide))
        for each in answer["owners"]
    ]
    show_table(("PAYER", "CLASS", "GPUS", "GPU-HOURS"), rows, colour=session.colour, empty="nobody pays")


def _draw(session: Session, answer: Answer) -> None:
    wide = session.wide
    headings = ("RUN", "OWNER", "PAID BY", "PAYER", "CLASS", "GPUS", "GPU-HOURS")
    rows = [
        (
            *([_namespace(run["name"])] if wide else []),
            bare(run["name"]),
            run["owner"],
            f"{bare(payer['budget'])}/{payer['envelope']}",
            payer["owner"],
            payer["class"],
            payer["gpus"],
            hours(payer["gpuHours"], exact=wide),
        )
        for run in answer["runs"]
        for payer in run["payers"]
    ]
    titles = ("NAMESPACE", *headings) if wide else headings
    show_table(
        titles,
        rows,
        colour=session.colour,
        empty="nobody pays: no GPUs were held; `explain RUN` tells who would pay for one that waits",
    )


def _namespace(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "default"
