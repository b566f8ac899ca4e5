"""`fairlease nodes`: what is free, and in which shapes."""

from __future__ import annotations

import click

from fairlease.cli.leases import ranges
from fairlease.cli.output import Cell, show_table
from fairlease.cli.session import Answer, Session
from fairlease.cli.verb import READ, bare, verb

_EXAMPLE = """
fairlease nodes
fairlease nodes -o json | jq '.domains[] | {domain, free, groups}'
"""


@verb("nodes", example=_EXAMPLE, formats=READ, wide="clusters and regions")
def command(session: Session) -> None:
    """Show nodes and free slots, and which groups still fit.

    The second table tells, for each fabric domain, how many groups of 8, 16, 32 and 64 GPUs could start in it now.
    """
    session.show(session.call("nodes"), lambda answer: _draw(session, answer))


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
    state = Cell(node["skipped"], "yellow") if node["skipped"] else Cell("Ready", "green")
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
