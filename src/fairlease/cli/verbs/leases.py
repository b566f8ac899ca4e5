"""`fairlease leases`: who held which slots, when, and on whose money."""

from __future__ import annotations

import time
from contextlib import suppress

import click

from fairlease.cli.render.output import NOTHING, age, between, show_table, warn_of_limit
from fairlease.cli.session import Answer, Session, bare, not_found
from fairlease.cli.verb import READ, completes, limit_option, owner_option, verb

_EXAMPLE = """
fairlease leases --open
fairlease leases --run my-run -o wide
fairlease leases --owner org:team-a --since 24h
fairlease leases --node n0 --since 2026-01-05T00:00:00Z --until 2026-01-06T00:00:00Z -o json
"""


class When(click.ParamType[str]):
    """A point in time: RFC 3339, or how long ago."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same as RFC 3339."""
        from fairlease.model.amount import format_instant, parse_duration, parse_instant

        with suppress(ValueError, OverflowError):
            return format_instant(parse_instant(value))
        with suppress(ValueError, OverflowError):
            return format_instant(int(time.time() * 1000) - parse_duration(value))
        return self.fail(f"{value!r} is no time; expected 2026-01-05T00:00:00Z or, for how long ago, 2h", param, ctx)


@verb("leases", example=_EXAMPLE, formats=READ, namespace=True, wide="owners, paths, times")
@click.option("--run", metavar="RUN", shell_complete=completes("runs"), help="Only leases of this run.")
@click.option("--node", metavar="NODE", shell_complete=completes("nodes"), help="Only leases on this node.")
@owner_option("Only leases of runs of this owner and of owners below it.")
@click.option(
    "--budget", metavar="BUDGET", shell_complete=completes("budgets"), help="Only leases that this Budget pays for."
)
@click.option("--envelope", metavar="NAME", help="Only leases that this envelope pays for: name or budget/name.")
@click.option("--open/--closed", "is_open", default=None, help="Only leases that are open, or that are not.")
@click.option("--since", type=When(), metavar="TIME", help="Only leases that were open at or after this time.")
@click.option("--until", type=When(), metavar="TIME", help="Only leases that were open before this time.")
@limit_option()
def command(session: Session, is_open: bool | None, limit: int, **asked: str | None) -> None:
    """List leases, open and closed.

    In the order in which they were opened. A TIME is RFC 3339 or how long ago: `90m`, `2d`.
    """
    budget, _, envelope = (asked["envelope"] or "").rpartition("/")
    if budget:
        if asked["budget"] not in (None, budget):
            raise click.UsageError(f"--envelope {asked['envelope']} is not of --budget {asked['budget']}")
        asked |= {"budget": budget, "envelope": envelope}
    for name in ("run", "budget"):
        if (given := asked[name]) is not None:
            asked[name] = session.key(given)
    found = _asked(session, open=is_open, limit=limit, **asked)
    if not found:
        _check(session, asked)
    answer = {"leases": found}
    session.show(answer, lambda found: _draw(session, found))
    warn_of_limit(len(answer["leases"]), limit)


def _asked(session: Session, **asked: object) -> list[Answer]:
    found: list[Answer] = session.call("leases", **asked)["leases"]
    return found


def _check(session: Session, asked: dict[str, str | None]) -> None:
    """Nothing was found; where that is because there is no such run or node, say so."""
    if asked["run"] is not None:
        session.call("show", run=asked["run"])
    if (node := asked["node"]) is not None:
        known = [each["name"] for each in session.call("nodes")["nodes"]]
        if node not in known and not _asked(session, node=node, limit=1):
            raise not_found("node", node, known, "look at `fairlease nodes`")


def _draw(session: Session, answer: Answer) -> None:
    headings: tuple[str, ...] = ("NAME", "RUN", "ROLE", "NODE", "SLOTS", "PAID BY", "AGE", "LASTED", "CLOSED")
    if session.wide:
        headings += ("OWNER", "ATTEMPT", "PATH", "OPENED", "START", "END")
    rows = [_row(session, lease) for lease in answer["leases"]]
    show_table(headings, rows, colour=session.colour, empty="no leases")


def _row(session: Session, lease: Answer) -> list[object]:
    spec, status = lease["spec"], lease["status"]
    (node, slots), *_ = spec["slice"]["gpus"].items()
    start, end = spec["interval"]["start"], status.get("endTime")
    row: list[object] = [
        lease["name"],
        bare(f"{spec['runRef']['namespace']}/{spec['runRef']['name']}"),
        spec["slice"]["role"],
        node,
        ranges(slots),
        f"{bare(spec['paidByBudget'])}/{spec['paidByEnvelope']}",
        age(start),
        between(start, end),
        status.get("closureReason") or NOTHING,
    ]
    if session.wide:
        row += [spec["owner"], spec["attempt"], "/".join(spec["compPath"]), spec["reason"], start, end]
    return row


def ranges(slots: list[int]) -> str:
    """Slots as people write them: `0-3,6`."""
    parts: list[list[int]] = []
    for slot in sorted(slots):
        if parts and slot == parts[-1][-1] + 1:
            parts[-1].append(slot)
        else:
            parts.append([slot])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts) or NOTHING
