"""`fairlease resolve`: an administrator frees GPUs, by the rules of a claim and with its record."""

from __future__ import annotations

import click

from fairlease.cli.failure import Failure
from fairlease.cli.render.output import reason_cell, show_table
from fairlease.cli.render.visits import heading
from fairlease.cli.session import Answer, Session, bare
from fairlease.cli.verb import READ, verb

_EXAMPLE = """
fairlease resolve --scope flavor=H100-80GB,rack=7 --gpus 64 --pod 8 --dry-run
fairlease resolve --scope flavor=H100-80GB,rack=7 --gpus 64 --pod 8 --reason "new power supplies"
"""


class ScopeType(click.ParamType[dict[str, str]]):
    """`flavor=…`, and labels of nodes."""

    name = "scope"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """As a mapping."""
        if isinstance(value, dict):
            return value
        pairs = [part.partition("=") for part in str(value).split(",")]
        scope = {name.strip(): wanted.strip() for name, _, wanted in pairs}
        if not all(equals and name.strip() and wanted.strip() for name, equals, wanted in pairs):
            return self.fail(f"{value!r} is no scope; expected flavor=H100-80GB,region=us-west", param, ctx)
        if len(scope) < len(pairs):
            return self.fail(f"{value!r} names a label twice", param, ctx)
        if "flavor" not in scope:
            return self.fail(f"{value!r} names no flavor; begin it with flavor=H100-80GB", param, ctx)
        return scope


_GPUS = click.IntRange(min=1)


@verb("resolve", example=_EXAMPLE, formats=READ, wide="leases")
@click.option("--scope", type=ScopeType(), required=True, metavar="flavor=F[,LABEL=V...]", help="Which nodes.")
@click.option("--gpus", type=_GPUS, required=True, metavar="N", help="How many GPUs shall be free there.")
@click.option(
    "--pod", type=_GPUS, default=1, show_default=True, metavar="N", help="On one node at least so many at a time."
)
@click.option("--group", type=_GPUS, metavar="N", help="In one fabric domain at least so many at a time.")
@click.option("--reason", default="", metavar="TEXT", help="Why: it is written into the record.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and write nothing.")
def command(
    session: Session, scope: dict[str, str], gpus: int, pod: int, group: int | None, reason: str, dry_run: bool
) -> None:
    """Free GPUs for maintenance, by the rules of a claim.

    For administrators. Opportunistic work goes first, then what is overdrawn, spares, width above the minimum, and then
    whole runs by lot; never more than needed, nobody younger than minRuntime in the lottery, and all of it recorded as a
    ResolverOutcome. Free is what nobody uses; cordoned nodes count. Nothing holds what was freed: cordon the nodes first
    (`fairlease nodes cordon`, `kubectl cordon`), or who waits takes it at once.

    A dry run is the same decision, undone. Whom the lot falls on depends on the instant, so of a lottery it shows who
    stands in it, with the odds of being drawn first, and how many would be drawn. Exits with 2 where so many cannot be
    freed: nobody is touched then.
    """
    location = {name: value for name, value in scope.items() if name != "flavor"}
    asked = {"flavor": scope["flavor"], "location": location, "gpus": gpus, "pod": pod, "group": group}
    try:
        answer = session.call("resolve", **asked, reason=reason, dryRun=dry_run)
    except Failure as failure:
        if failure.reason == "NotFound":
            failure.remedy = f"look at `{session.program} nodes -o json` for flavors and labels"
        raise
    session.show(answer, lambda found: _draw(session, found, gpus))


def _draw(session: Session, answer: Answer, gpus: int) -> None:
    outcome, would = answer["outcome"], "would be" if answer["dryRun"] else "were"
    if outcome is None:
        click.echo(f"{gpus} GPUs are free there already; nobody has to give way")
        return
    name = f"{outcome['name']}: " if not answer["dryRun"] else ""
    lacked = outcome["spec"]["deficitGPUs"]
    click.echo(f"{name}{lacked} GPUs {would} missing; {'these would give' if answer['dryRun'] else 'gave'} way:")
    head = ("RUN", "GPUS", "REASON", "THEN", *(("LEASES",) if session.wide else ()))
    rows = [
        (
            cut["run"],
            cut["gpus"],
            reason_cell(cut["reason"]),
            cut["then"],
            *([",".join(cut["leases"])] if session.wide else []),
        )
        for cut in answer["cuts"]
    ]
    show_table(head, rows, colour=session.colour)
    lottery = outcome["spec"].get("lottery")
    if lottery:
        drawn, tokens = len(lottery["draws"]), len(lottery["tokens"])
        others = "; another instant draws others" if answer["dryRun"] and drawn < tokens else ""
        click.echo(f"drawn: {drawn} of {tokens} tokens{others}")
        if answer["dryRun"]:
            _draw_tokens(session, lottery)
    if answer["started"]:
        heading("Taken at once by who waited:")
        started = [(each["run"], each["gpus"], ",".join(each["nodes"])) for each in answer["started"]]
        show_table(("RUN", "GPUS", "NODES"), started, colour=session.colour)
    if answer["dryRun"]:
        click.echo("nothing was written")


def _draw_tokens(session: Session, lottery: Answer) -> None:
    """Who stands in the lottery, and how likely each is to be drawn first."""
    import msgspec

    from fairlease.engine.preempt.lottery import odds_of
    from fairlease.model.reservation import Token

    tokens = msgspec.convert(lottery["tokens"], list[Token])
    heading("In the lottery, with the odds of being drawn first:")
    rows = [
        (token.owner, bare(token.run), token.attempt, token.gpus, odds)
        for token, odds in zip(tokens, odds_of(tokens), strict=True)
    ]
    show_table(("OWNER", "RUN", "ATTEMPT", "GPUS", "ODDS"), rows, colour=session.colour)
