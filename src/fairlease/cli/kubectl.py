"""`kubectl runs`: the verbs of `fairlease` on a cluster.

kubectl finds it on the PATH as `kubectl-runs`, and asks `kubectl_complete-runs` when somebody presses the Tab key. It needs no
daemon and no rights but the caller's own: reading needs the right to read, and `plan` writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click
from click.shell_completion import ShellComplete

from fairlease.cli.cluster import ClusterSession, archive_option, cluster_options, cluster_session
from fairlease.cli.main import SECTIONS as MACHINE_SECTIONS
from fairlease.cli.main import Verbs, run_group
from fairlease.cli.verb import HELP, Recipe, Verb, VerbBackend, VerbGroup

PROGRAM = "kubectl runs"

_LINES = {name: line for section in MACHINE_SECTIONS.values() for name, line in section.items()} | {
    "logs": "Print what a run's pods wrote.",
    "budgets": "List Budgets, show their use and loans, stop lending.",
    "audit": "Replay the ledger, and compare the objects with it.",
}
_VERBS = {
    "Work": "submit plan list show watch explain eta logs shrink resize drill cancel",
    "Time and contention": "reservations outcomes lottery resolve forecast",
    "Money": "budgets sponsors cover who-pays",
    "The cluster and the record": "nodes leases audit export",
}
SECTIONS = {title: {name: _LINES[name] for name in names.split()} for title, names in _VERBS.items()}
"""Every verb with the first line of its help, so that the list of them needs none of them."""

CLUSTER = VerbBackend(PROGRAM, cluster_options, cluster_session, "the context's")
_EVERYWHERE = ("leases",)
_WATCHED = ("list", "show")
_FAR_BACK = ("explain", "who-pays", "export", "audit")
_DROPPED = {"submit": ("wait_for_nodes",), "export": ("db",), "audit": ("db", "kubeconfig", "context", "archive")}
_ON_A_CLUSTER = {
    "submit": """Submit runs from files.

    The API server is shown all of them first, and where it refuses one, nothing is submitted. A name is never used twice.
    """,
    "cancel": """End runs.

    Their Runs are deleted, which closes their leases and ends their pods; what they used stays on the bill. To remove the
    object of a run that has ended, and its pods with their logs, use `kubectl delete run`.
    """,
    "audit": """Replay the ledger, and compare the objects with it.

    Proves from the LedgerEntries alone what `fairlease audit` proves, and names every Lease, Reservation, ResolverOutcome
    and status that says something else. Exits with 1 where something does not hold.
    """,
}


_BY_KUBECTL = {"budgets": ("apply", "remove")}
"""Budgets are written and deleted like every object."""


class RunsVerbs(Verbs):
    """The verbs that there are on a cluster."""

    program, sections = PROGRAM, SECTIONS
    places = Verbs.places | {
        "logs": "cluster_logs",
        "nodes": "nodes.listing",
    }  # of nodes kubectl says the rest
    example = "kubectl runs plan -f run.yaml\n  kubectl runs submit -f run.yaml\n  kubectl runs explain my-run"

    def find(self, name: str) -> click.Command:
        """Make one verb."""
        return on_cluster(super().find(name))


def on_cluster(command: click.Command) -> click.Command:
    """A verb of the local daemon, for a cluster."""
    if isinstance(command, VerbGroup):
        assert command.name is not None, "a group has a name"
        dropped = _BY_KUBECTL.get(command.name, ())
        lines = [line for line in command.example.splitlines() if not any(f" {each} " in line for each in dropped)]
        example = "\n".join(lines).replace("fairlease ", f"{PROGRAM} ")
        group = VerbGroup(command.name, help=_LINES[command.name], example=example, context_settings=HELP)
        for name, each in command.commands.items():
            if name not in dropped:
                group.add_command(on_cluster(each))
        return group
    assert isinstance(command, Verb), "a verb, or a group of them"
    return CLUSTER.made(_adapted(command.recipe))


def _adapted(recipe: Recipe) -> Recipe:
    name = recipe.name
    declared = [each for each in recipe.declared if each.name not in _DROPPED.get(name, ())]
    if name in _FAR_BACK:
        declared.append(archive_option())
    if name in _WATCHED:
        declared.append(click.Option(["-w", "--watch", "watching"], is_flag=True, help="Go on, and show every change."))
    told = _ON_A_CLUSTER.get(name) or (recipe.work.__doc__ or "").replace("`fairlease ", f"`{PROGRAM} ")
    return recipe._replace(
        work=_watchable(recipe) if name in _WATCHED else recipe.work,
        declared=tuple(declared),
        example=recipe.example.replace("fairlease ", f"{PROGRAM} "),
        every=recipe.every or name in _EVERYWHERE,
        settings={**recipe.settings, "help": told},
    )


def _watchable(recipe: Recipe) -> Callable[..., None]:
    """The verb, or with `-w` the same as `watch`."""

    def work(session: ClusterSession, *, watching: bool, **given: Any) -> None:  # noqa: ANN401 - the verb's own options
        if not watching:
            recipe.work(session, **given)
            return
        from fairlease.cli.verbs.watch import follow

        run = given.get("run")
        follow(session, [] if run is None else [session.key(run)], until_done=False)

    return work


cli = RunsVerbs(
    name=PROGRAM,
    params=cluster_options(),
    callback=lambda **_: None,
    help="Gangs of GPUs on a cluster: ask, submit, explain, pay, audit.",
    context_settings=HELP,
)


def main(args: list[str] | None = None) -> NoReturn:
    """The entry of `kubectl-runs`."""
    run_group(cli, PROGRAM, args)


NO_FILES, FILES = 4, 0
"""What kubectl's completion understands: offer nothing besides, or files."""
_NAMES_A_FILE = ("-f", "--filename", "--kubeconfig", "--archive", "-O", "--out")


def complete(args: list[str] | None = None) -> None:
    """The entry of `kubectl_complete-runs`: a line for each word that may follow, then a number for what else to offer."""
    words = sys.argv[1:] if args is None else args
    given, incomplete = words[:-1], words[-1] if words else ""
    if given and given[-1] in _NAMES_A_FILE and not (given[-1] == "-f" and "logs" in given):
        click.echo(f":{FILES}")
        return
    try:
        found = ShellComplete(cli, {}, PROGRAM, "").get_completions(given, incomplete)
    except click.ClickException:
        found = []
    for each in found:
        click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(f":{NO_FILES}")
