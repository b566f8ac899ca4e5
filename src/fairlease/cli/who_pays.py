"""`fairlease who-pays`: the bill, by run and payer."""

from __future__ import annotations

import click

from fairlease.cli.output import hours, show_table
from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import READ, bare, owner_option, run_argument, verb

_EXAMPLE = """
fairlease who-pays my-run
fairlease who-pays --owner org:team-a -o json
"""


@verb("who-pays", example=_EXAMPLE, formats=READ, namespace=True, wide="namespaces, and hours to six digits")
@run_argument(required=False)
@owner_option("All runs of this owner, and of owners below it, that hold GPUs.")
def command(session: Session, run: str | None, owner: str | None) -> None:
    """Show who pays for a run, or for an owner's runs.

    GPUS is what is held now, GPU-HOURS what was used so far. The class tells how payer and run are related: owned,
    shared (family) or borrowed.
    """
    if (run is None) == (owner is None):
        raise click.UsageError("give either a RUN or --owner OWNER")
    asked = session.call("who-pays", run=None if run is None else session.key(run), owner=owner)
    session.show(asked, lambda answer: _draw(session, answer))


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
    show_table(titles, rows, colour=session.colour, empty="nobody pays: it held no GPUs")


def _namespace(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "default"
