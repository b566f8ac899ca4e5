"""`fairlease up`: the daemon of this machine, in the background once its socket answers."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from fairlease.cli.failure import BAD_INPUT, Failure
from fairlease.cli.session import Session
from fairlease.cli.verb import verb

if TYPE_CHECKING:
    from fairlease.local.daemon.config import Settings

_EXAMPLE = """
fairlease up
fairlease up --gpus 8 --flavor H100-80GB
fairlease up --config /etc/fairlease.yaml --foreground
fairlease up --nodes n0=8,n1=8 --flavor H100-80GB --home /tmp/try-it
"""


class NodesOption(click.ParamType[tuple[tuple[str, int], ...]]):
    """`name=gpus`, several of them with commas between."""

    name = "nodes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """Names and numbers."""
        parts = [re.fullmatch(r"([^=,\s]+)=([0-9]{1,6})", part.strip()) for part in str(value).split(",")]
        if not all(parts):
            self.fail(f"{value!r} is no list of nodes; expected name=gpus, such as n0=8,n1=8", param, ctx)
        found = tuple((part[1], int(part[2])) for part in parts if part)
        if len(dict(found)) < len(found) or not all(gpus for _, gpus in found):
            self.fail(f"{value!r}: every node has its own name and at least one GPU", param, ctx)
        return found


@verb("up", example=_EXAMPLE)
@click.option("--config", metavar="FILE", help="The machine's configuration; nothing in it is required.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Declare N GPUs instead of asking the driver.")
@click.option("--flavor", metavar="NAME", help="What the declared GPUs are, such as H100-80GB.")
@click.option("--nodes", type=NodesOption(), metavar="NAME=GPUS,...", help="Declare several nodes, to try things out.")
@click.option("--foreground", is_flag=True, help="Stay here and log to stderr, as service managers want it.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), metavar="P", help="Where metrics are served; 0: nowhere."
)
@click.option("--restored", is_flag=True, help="The ledger is a backup: go on from it, though later entries are lost.")
@click.option(
    "--new-ledger", is_flag=True, help="The ledger is lost or damaged: begin another one, and end all work that runs."
)
def command(
    session: Session,
    config: str | None,
    nodes: tuple[tuple[str, int], ...] | None,
    foreground: bool,
    restored: bool,
    new_ledger: bool,
    **told: Any,  # noqa: ANN401 - numbers and names
) -> None:
    """Start the daemon of this machine.

    It finds the GPUs by itself, or is told of them. Its ledger, logs and socket lie in its home; started again there, it
    goes on where it stopped, with the runs that went on without it.
    """
    import msgspec

    from fairlease.local.daemon.config import load_settings
    from fairlease.local.daemon.launch import NotUp, up
    from fairlease.model.document import Invalid

    if nodes and told["gpus"] is not None:
        raise click.UsageError("--nodes says how many GPUs there are; leave out --gpus")
    try:
        settings = load_settings(config, home=session.home, **told)
        settings = msgspec.structs.replace(settings, restored=restored, new_ledger=new_ledger)
        settings = _with_nodes(settings, nodes) if nodes else settings
        pid = up(settings, foreground=foreground)
    except Invalid as error:
        problems = [str(problem) for problem in error.problems]
        raise Failure("the daemon was not started", code=BAD_INPUT, problems=problems) from None
    except NotUp as error:
        raise Failure(str(error), code=BAD_INPUT, remedy=error.remedy) from None
    if pid is not None:
        click.echo(f"up (pid {pid}), at {settings.socket}")
        if sys.stdout.isatty():
            click.echo("try: fairlease nodes, fairlease budgets apply -f FILE, fairlease run --gpus 1 -- nvidia-smi")


def _with_nodes(settings: Settings, nodes: tuple[tuple[str, int], ...]) -> Settings:
    """The settings with these nodes instead of those of the file."""
    import msgspec

    from fairlease.local.daemon.config import NodeEntry

    entries = tuple(NodeEntry(name=name, gpus=gpus) for name, gpus in nodes)
    machine = msgspec.structs.replace(settings.machine, nodes=entries, gpus=None)
    return msgspec.structs.replace(settings, machine=machine)
