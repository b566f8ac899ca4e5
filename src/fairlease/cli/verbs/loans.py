"""`fairlease budgets lent`, `borrowed` and `stop-lending`: both sides of a loan."""

from __future__ import annotations

import click

from fairlease.cli.render.output import NOTHING, TableCell, age, hours, show_table
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, completes, owner_option, verb


@verb(
    "lent",
    example="fairlease budgets lent team-b",
    formats=READ,
    namespace=True,
    wide="who else may borrow, and exact hours",
)
@click.argument("budget", metavar="[BUDGET]", required=False, shell_complete=completes("budgets"))
def lent(session: Session, budget: str | None) -> None:
    """Show who holds what of a Budget's money, and until when.

    First how full each lending cap is, then the loans. Warnings (a cap nine tenths full, loans that go in a circle) come
    last, on stderr.
    """
    answer = session.call("budgets.lent", budget=None if budget is None else session.key(budget))
    session.show(answer, lambda found: _draw_lent(session, found))


@verb(
    "borrowed",
    example="fairlease budgets borrowed --owner org:team-a",
    formats=READ,
    namespace=True,
    wide="whether more is lent, and exact hours",
)
@owner_option("Only loans to this owner and to owners below it.")
def borrowed(session: Session, owner: str | None) -> None:
    """Show what runs have borrowed, from whom and until when."""
    answer = session.call("budgets.borrowed", owner=owner)
    session.show(answer, lambda found: _draw_loans(session, found["loans"]))


@verb(
    "stop-lending",
    example="fairlease budgets stop-lending team-b west --recall",
    formats=READ,
    namespace=True,
    wide="exact hours",
)
@click.argument("budget", metavar="BUDGET", shell_complete=completes("budgets"))
@click.argument("envelope", metavar="[ENVELOPE]", required=False)
@click.option("--recall", is_flag=True, help="Call running loans back too: they are overdrawn from now on.")
def stop_lending(session: Session, budget: str, envelope: str | None, recall: bool) -> None:
    """Lend nothing more from a Budget, or from one envelope of it.

    Sets lending.allow to false. Running loans stay until they end. With --recall lending.maxConcurrency becomes 0 as well:
    running loans are overdrawn, and the envelope's onExhaustion says what becomes of them. Drain: they end after the grace
    that their checkpoint asks for. Hold: they go on until somebody funded needs the GPUs.
    """
    full = session.key(budget)
    answer = session.call("budgets.stop-lending", budget=full, envelope=envelope, recall=recall or None)
    session.show(answer, lambda found: _draw_stopped(session, found))


def _draw_lent(session: Session, answer: Answer) -> None:
    rows = [
        _cap_row(session, budget, envelope, cap)
        for budget in answer["budgets"]
        for envelope in budget["envelopes"]
        for cap in envelope["caps"] or ([None] if envelope["lends"] or envelope["loans"] else [])
    ]
    headings: tuple[str, ...] = ("ENVELOPE", "LENDS", "CAP", "LENT", "OF", "STATE")
    show_table(headings + (("TO",) if session.wide else ()), rows, colour=session.colour, empty="nobody lends")
    loans = [loan for budget in answer["budgets"] for each in budget["envelopes"] for loan in each["loans"]]
    if loans:
        click.echo()
        _draw_loans(session, loans)
    for budget in answer["budgets"]:
        for warning in budget["warnings"]:
            click.echo(f"warning: {bare(budget['name'])}: {warning}", err=True)


def _cap_row(session: Session, budget: Answer, envelope: Answer, cap: Answer | None) -> list[object]:
    row: list[object] = [f"{bare(budget['name'])}/{envelope['name']}", "yes" if envelope["lends"] else "no more"]
    if cap is None:
        gpus = sum(loan["gpus"] for loan in envelope["loans"])
        row += ["none", gpus, NOTHING, TableCell("open", "green") if envelope["lends"] else NOTHING]
    else:
        show = hours if cap["of"] == "gpuHours" else str
        state = TableCell(cap["warning"] or "open", "green" if cap["warning"] is None else "yellow")
        row += ["GPU-hours" if cap["of"] == "gpuHours" else "GPUs", show(cap["lent"]), show(cap["cap"]), state]
    return [*row, ",".join(envelope["to"]) or "everyone"] if session.wide else row


def _draw_loans(session: Session, loans: list[Answer]) -> None:
    headings: tuple[str, ...] = ("RUN", "BORROWER", "LENDER", "FROM", "GPUS", "GPU-HOURS", "SINCE", "UNTIL", "STATE")
    rows = [
        (
            bare(loan["run"]),
            loan["borrower"],
            loan["lender"],
            f"{bare(loan['budget'])}/{loan['envelope']}",
            loan["gpus"],
            hours(loan["gpuHours"], exact=session.wide),
            f"{age(loan['since'])} ago",
            loan["until"] or "no limit",
            _state(loan),
        )
        for loan in loans
    ]
    show_table(headings, rows, colour=session.colour, empty="no loans")


def _state(loan: Answer) -> TableCell:
    if loan["overdrawnGPUs"]:
        return TableCell(f"{loan['overdrawnGPUs']} GPUs overdrawn", "red")
    return TableCell("lent", "green") if loan["lendsMore"] else TableCell("kept: nothing more is lent", "yellow")


def _draw_stopped(session: Session, answer: Answer) -> None:
    named = ", ".join(answer["envelopes"])
    told = f"lends nothing more from {named}" if named else "lent nothing already"
    click.echo(f"budget/{bare(answer['budget'])} {told}")
    if answer["loans"]:
        _draw_loans(session, answer["loans"])
