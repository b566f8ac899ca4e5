"""`fairlease nodes`: what is free, and in which shapes; and what administrators say of nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from fairlease.cli.render.output import TableCell, show_table
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import HELP, NO_MORE, READ, VerbGroup, completes, verb
from fairlease.cli.verbs.leases import ranges

_EXAMPLE = """
fairlease nodes
fairlease nodes -o json | jq '.domains[] | {domain, free, groups}'
fairlease nodes fail n3
"""

_DONE = {"fail": "failed", "return": "returned", "cordon": "cordoned", "uncordon": "uncordoned"}


@verb("nodes", example=_EXAMPLE, formats=READ, wide="clusters and regions")
def listing(session: Session) -> None:
    """Show nodes and free slots, and which groups still fit.

    The second table tells, for each fabric domain, how many groups of 8, 16, 32 and 64 GPUs could start in it now.
    """
    session.show(session.call("nodes"), lambda answer: _draw(session, answer))


commands = {"listing": listing}


def _list(**given: Any) -> None:  # noqa: ANN401 - what stands before the name of a subcommand is for the list
    if click.get_current_context().invoked_subcommand is None:
        assert listing.callback is not None, "a verb has something to do"
        listing.callback(**given)


command = VerbGroup(
    "nodes",
    callback=_list,
    params=listing.params,
    help=listing.help,
    example=_EXAMPLE,
    invoke_without_command=True,
    context_settings=HELP,
)


def _say(wish: str, text: str, example: str) -> None:
    """Add a subcommand that says something of nodes."""

    @verb(wish, example=example, formats=READ, wide=NO_MORE)
    @click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=completes("nodes"))
    def said(session: Session, nodes: tuple[str, ...]) -> None:
        session.show(session.call("nodes.set", nodes=list(nodes), wish=wish), partial(_draw_said, wish))

    said.help = text
    command.add_command(said)


def _draw_said(wish: str, answer: Answer) -> None:
    for node in answer["nodes"]:
        click.echo(f"node/{node['name']} {_DONE[wish]}" + ("" if node["changed"] else " already"))


_say(
    "fail",
    """Count nodes as failed, all at once.

    What runs on them is killed. Spares take over rank by rank; without spares an elastic run loses the group, and other
    runs end or ask again, as their onPreempt says. Nothing starts there until `nodes return`. Administrators only.
    """,
    "fairlease nodes fail n3",
)
_say("return", "Count failed nodes as healthy again. Administrators only.", "fairlease nodes return n3")
_say(
    "cordon",
    """Start nothing new on nodes.

    What runs there goes on, and a spare there may still take over. Administrators only.
    """,
    "fairlease nodes cordon n3",
)
_say("uncordon", "Let runs start on nodes again. Administrators only.", "fairlease nodes uncordon n3")


def _draw(session: Session, answer: Answer) -> None:
    rows = [_node(session, node) for node in answer["nodes"]]
    headings: tuple[str, ...] = ("NODE", "FLAVOR", "DOMAIN", "GPUS", "FREE", "FREE SLOTS", "STATE", "RUNS")
    if session.wide:
        headings = (*headings[:3], "CLUSTER", "REGION", *headings[3:])
    show_table(headings, rows, colour=session.colour, empty="no nodes")
    domains = answer["domains"]
    if not domains:
        return
    click.echo()
    sizes = list(domains[0]["groups"])
    shapes = [
        (each["domain"], each["flavor"], each["nodes"], each["gpus"], each["free"], *(each["groups"][s] for s in sizes))
        for each in domains
    ]
    titles = ("DOMAIN", "FLAVOR", "NODES", "GPUS", "FREE", *(f"×{size}" for size in sizes))
    show_table(titles, shapes, colour=session.colour)


def _node(session: Session, node: Answer) -> list[object]:
    state = TableCell(node["skipped"], "yellow") if node["skipped"] else TableCell("Ready", "green")
    place = [node["cluster"], node["region"]] if session.wide else []
    return [
        node["name"],
        node["flavor"],
        node["domain"],
        *place,
        node["gpus"],
        len(node["free"]),
        ranges(node["free"]),
        state,
        ",".join(bare(run) for run in node["runs"]),
    ]
