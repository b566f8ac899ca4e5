"""`fairlease budgets`: the money, written by administrators and seen by everybody."""

from __future__ import annotations

import click

from fairlease.cli.objects import files_option, read_objects
from fairlease.cli.render.output import NOTHING, TableCell, age, bar, hours, show_table, terminal_width
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import HELP, NO_MORE, READ, VerbGroup, completes, owner_option, verb
from fairlease.model.owner import at_or_below


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


_EXAMPLE = """
fairlease budgets apply -f budgets.yaml
fairlease budgets usage
"""

_ROOMY = 120
"""A terminal so wide has room for long bars."""

command = VerbGroup(
    "budgets",
    help="Write, list and remove Budgets, show their use and loans.",
    example=_EXAMPLE,
    context_settings=HELP,
)


@verb("apply", example="fairlease budgets apply -f budgets.yaml", formats=READ, namespace=True, wide=NO_MORE)
@files_option("Budgets")
def apply(session: Session, files: tuple[str, ...]) -> None:
    """Write Budgets from files.

    A Budget that is there is replaced. What was spent stays spent: no edit rewrites the ledger.
    """
    session.show(session.call("budgets.apply", objects=read_objects(files, "Budget", session.namespace)), _draw_changes)


def _draw_changes(answer: Answer) -> None:
    for budget in answer["budgets"]:
        click.echo(f"budget/{bare(budget['name'])} {budget['change']}")


@verb("remove", example="fairlease budgets remove team-a", formats=READ, namespace=True, wide=NO_MORE)
@click.argument("budget", metavar="BUDGET", shell_complete=completes("budgets"))
def remove(session: Session, budget: str) -> None:
    """Remove a Budget.

    It pays for nothing new. What runs on its money is overdrawn: it goes on until somebody funded needs its GPUs.
    """
    full = session.key(budget)
    session.show(session.call("budgets.remove", budget=full), lambda _: click.echo(f"budget/{bare(full)} removed"))


@verb(
    "list",
    example="fairlease budgets list -o wide",
    formats=READ,
    namespace=True,
    every=True,
    wide="selectors and terms of sharing",
)
def listing(session: Session) -> None:
    """List Budgets and their envelopes."""
    session.show(_asked(session), lambda answer: _draw_list(session, answer))


@verb(
    "usage",
    example="fairlease budgets usage --owner org:team-a",
    formats=READ,
    namespace=True,
    every=True,
    wide="GPUs by class, and exact hours",
)
@owner_option("Only Budgets of this owner and of owners below it.")
def usage(session: Session, owner: str | None) -> None:
    """Show how full each envelope is, as bars.

    GPUS is what is held of the concurrency; USED+PROMISED H what was used of the GPU-hours and is promised to running
    work; `-o wide` tells the two apart.
    """
    answer = _asked(session)
    answer["budgets"] = [each for each in answer["budgets"] if owner is None or at_or_below(each["owner"], owner)]
    session.show(answer, lambda found: _draw_usage(session, found))


for each in (apply, listing, usage, lent, borrowed, stop_lending, remove):
    command.add_command(each)


def _asked(session: Session) -> Answer:
    answer = session.call("budgets.list")
    if (wanted := session.where()) is not None:
        answer["budgets"] = [each for each in answer["budgets"] if _full(each).partition("/")[0] == wanted]
    return answer


def _full(budget: Answer) -> str:
    name = str(budget["name"])
    return name if "/" in name else f"{budget.get('namespace') or 'default'}/{name}"


def _draw_list(session: Session, answer: Answer) -> None:
    headings: tuple[str, ...] = ("BUDGET", "OWNER", "ENVELOPE", "FLAVOR", "GPUS", "GPU-HOURS", "OPENS", "CLOSES")
    if session.wide:
        headings += ("SELECTOR", "SHARING", "LENDS TO", "ON EXHAUSTION")
    rows = [
        _envelope_row(session, budget, envelope)
        for budget in answer["budgets"]
        for envelope in budget["spec"]["envelopes"]
    ]
    show_table(headings, rows, colour=session.colour, empty="no Budgets")


def _envelope_row(session: Session, budget: Answer, envelope: Answer) -> list[object]:
    row: list[object] = [
        bare(_full(budget)),
        budget["owner"],
        envelope["name"],
        envelope["flavor"],
        envelope["concurrency"],
        hours(envelope.get("maxGPUHours")),
        envelope.get("start"),
        envelope.get("end"),
    ]
    if session.wide:
        lending = envelope.get("lending") or {}
        lends = ",".join(lending.get("to") or ()) or "everyone" if lending.get("allow") else NOTHING
        selector = ",".join(f"{key}={value}" for key, value in envelope["selector"].items())
        row += [selector, envelope.get("sharing", "family"), lends, envelope.get("onExhaustion", "Hold")]
    return row


def _draw_usage(session: Session, answer: Answer) -> None:
    headings: tuple[str, ...] = ("ENVELOPE", "OWNER", "GPUS", "", "USED+PROMISED H", "", "STATE")
    if session.wide:
        headings += ("OWNED", "SHARED", "LENT", "OVERDRAWN", "SPARE", "OPPORTUNISTIC", "USED H", "PROMISED H")
    rows = [
        _usage_row(session, budget, used)
        for budget in answer["budgets"]
        for used in (budget.get("status") or {}).get("usage", ())
    ]
    show_table(headings, rows, colour=session.colour, empty="no Budgets")


def _usage_row(session: Session, budget: Answer, used: Answer) -> list[object]:
    envelope = next(each for each in budget["spec"]["envelopes"] if each["name"] == used["name"])
    room = next(each for each in budget["status"]["headroom"] if each["name"] == used["name"])
    held, most = envelope["concurrency"] - room["concurrency"], envelope["concurrency"]
    spent, cap = used["consumedGPUHours"] + used["committedGPUHours"], envelope.get("maxGPUHours")
    over = used["overdrawnGPUs"]
    row: list[object] = [
        f"{bare(_full(budget))}/{used['name']}",
        budget["owner"],
        _bar(session, held, most),
        f"{held}/{most}",
        NOTHING if cap is None else _bar(session, spent, cap),
        f"{hours(spent)}/{NOTHING if cap is None else hours(cap)}",
        TableCell(f"{over} GPUs overdrawn", "red") if over else TableCell("covered", "green"),
    ]
    if session.wide:
        names = ("ownedGPUs", "sharedGPUs", "borrowedGPUs", "overdrawnGPUs", "spareGPUs", "opportunisticGPUs")
        row += [used[name] for name in names]
        row += [hours(used[name], exact=True) for name in ("consumedGPUHours", "committedGPUHours")]
    return row


def _bar(session: Session, used: float, whole: float) -> TableCell:
    share = used / whole if whole else 1.0
    tight, full = 0.75, 1.0
    cells = 20 if (terminal_width() or _ROOMY) >= _ROOMY else 10
    return TableCell(
        bar(used, whole, cells, plain=not session.colour),
        "red" if share >= full else "yellow" if share >= tight else "green",
    )
