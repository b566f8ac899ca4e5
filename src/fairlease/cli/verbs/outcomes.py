"""`fairlease outcomes`: the record of every resolution."""

from __future__ import annotations

import click

from fairlease.cli.render.output import NOTHING, reason_cell, show_facts, show_table, warn_of_limit
from fairlease.cli.render.visits import heading
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, completes, limit_option, verb

_EXAMPLE = """
fairlease outcomes
fairlease outcomes outcome-7
fairlease outcomes --run my-run
fairlease outcomes --limit 10000 -o json > outcomes.json && python3 docs/verify_lottery.py outcomes.json
"""


@verb("outcomes", example=_EXAMPLE, formats=READ, namespace=True, wide="the seed and the whole conflict set")
@click.argument("name", metavar="[NAME]", required=False, shell_complete=completes("outcomes"))
@click.option("--run", metavar="RUN", shell_complete=completes("runs"), help="Only those that this run had a part in.")
@limit_option()
def command(session: Session, name: str | None, run: str | None, limit: int) -> None:
    """List and show who gave way to whom, and why.

    One line for each ResolverOutcome, in their order; with a NAME all that its record holds. `fairlease lottery verify`
    repeats the draws.
    """
    answer = session.call("outcomes", name=name, run=None if run is None else session.key(run), limit=limit)
    session.show(answer, lambda found: _draw(session, found["outcomes"], whole=name is not None))
    warn_of_limit(len(answer["outcomes"]), limit)


def _draw(session: Session, outcomes: list[Answer], *, whole: bool) -> None:
    if whole:
        for outcome in outcomes:
            draw_outcome(session, outcome)
    else:
        draw_outcomes(session, outcomes)


def draw_outcomes(session: Session, outcomes: list[Answer]) -> None:
    """A line for each."""
    rows = [
        (
            each["name"],
            each["spec"]["at"],
            claimant(each["spec"]),
            each["spec"]["deficitGPUs"],
            ",".join(dict.fromkeys(bare(cut["run"]) for cut in each["spec"]["actions"])),
            ",".join(dict.fromkeys(cut["reason"] for cut in each["spec"]["actions"])),
            *([",".join(map(bare, each["spec"]["conflictSet"])), _seed(each["spec"])] if session.wide else []),
        )
        for each in outcomes
    ]
    more = ("IN QUESTION", "SEED") if session.wide else ()
    head = ("NAME", "AT", "CLAIM", "LACKED", "GAVE WAY", "REASONS", *more)
    show_table(head, rows, colour=session.colour, empty="nobody had to give way")


def draw_outcome(session: Session, outcome: Answer) -> None:
    """All of one record."""
    spec = outcome["spec"]
    scope = {"flavor": spec["scope"]["flavor"], **spec["scope"].get("location", {})}
    facts = {
        "Outcome": outcome["name"],
        "At": spec["at"],
        "Claim": claimant(spec),
        "Reservation": spec.get("reservation"),
        "Scope": ",".join(f"{key}={value}" for key, value in scope.items()),
        "Lacked": ", ".join(f"{each['gpus']} GPUs in group {each['group']}" for each in spec.get("deficits", ())),
        "In question": ", ".join(map(bare, spec["conflictSet"])),
        "Seed": _seed(spec),
        "Previous": spec["previous"],
    }
    show_facts(facts)
    heading("Gave way:")
    cuts = [(bare(cut["run"]), cut["gpus"], len(cut["leases"]), reason_cell(cut["reason"])) for cut in spec["actions"]]
    show_table(("RUN", "GPUS", "LEASES", "REASON"), cuts, colour=session.colour)
    if spec.get("lottery"):
        click.echo(f"\nto repeat the draw: {session.program} lottery verify {outcome['name']}")


def claimant(spec: Answer) -> str:
    """For whom others gave way."""
    if "byHand" in spec:
        by = spec["byHand"]
        return f"{by['by']} by hand" + (f" ({by['reason']})" if by.get("reason") else "")
    if "claim" not in spec:  # in a record that was tampered with
        return "nobody"
    return bare(f"{spec['claim']['namespace']}/{spec['claim']['name']}")


def _seed(spec: Answer) -> str:
    return str((spec.get("lottery") or {}).get("seed") or NOTHING)
