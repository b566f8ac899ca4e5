"""`fairlease`: the group of all verbs. It knows their names and first lines; their code is imported when called.

That is why `fairlease --help` and every question to the daemon answer at once: nothing heavy is imported on the way.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click

from fairlease.cli.failure import BROKEN_PIPE, EXIT_CODES, INTERRUPTED, UNWRITTEN, Failure
from fairlease.cli.verb import HELP, place_options

SECTIONS: dict[str, dict[str, str]] = {
    "This machine": {
        "up": "Start the daemon of this machine.",
        "down": "Stop the daemon; runs go on, or end with --end.",
        "status": "Show how the daemon, its GPUs and its ledger stand.",
        "nodes": "Show nodes and free slots, and which groups still fit.",
    },
    "Work": {
        "run": "Run a command on GPUs: submit, wait, follow its logs.",
        "submit": "Submit runs from files.",
        "plan": "Quote a run: would it start, when, who pays, why not. Writes nothing.",
        "list": "List runs.",
        "show": "Show one run: its spec and status.",
        "watch": "Watch runs as they change.",
        "explain": "Explain why a run waits, runs or ended.",
        "eta": "Say when a run will start: early, most likely, late.",
        "logs": "Print what a run's processes wrote.",
        "notices": "List what was told: coming cuts, starts, money that runs low.",
        "shrink": "Have an elastic run give GPUs back.",
        "resize": "Set the width that an elastic run would like to have.",
        "drill": "Rehearse a swap, and tell how long it takes.",
        "cancel": "End runs.",
    },
    "Time and contention": {
        "reservations": "List who waits until when, and on what that rests.",
        "outcomes": "List and show who gave way to whom, and why.",
        "lottery": "Repeat the draws of the record.",
        "resolve": "Free GPUs for maintenance, by the rules of a claim.",
    },
    "Money": {
        "budgets": "Write, list and remove Budgets, show their use and loans.",
        "sponsors": "Show and change whom a run may borrow from.",
        "cover": "Show whose money a run was offered, and why not.",
        "who-pays": "Show who pays for a run, for an owner's runs, or for all.",
    },
    "The record": {
        "leases": "List leases, open and closed.",
        "audit": "Replay the ledger and prove what it claims.",
        "forecast": "Show whether forecasts kept their word.",
        "export": "Write leases or charges as CSV or Parquet.",
    },
    "A cluster": {
        "controller": "Schedule the runs of a Kubernetes cluster.",
    },
    "What if": {
        "simulate": "Play a scenario in virtual time.",
    },
    "The shell": {
        "completion": "Print the completion script of a shell.",
    },
}
"""Every verb with the first line of its help, so that the list of them needs none of them."""


class Verbs(click.Group):
    """Finds a verb by its name: `who-pays` is `command` in `fairlease.cli.verbs.who_pays`; `places`: the others."""

    program, sections, places = "fairlease", SECTIONS, {"shrink": "resize.shrink"}
    example = "fairlease up\n  fairlease run --gpus 2 -- python train.py\n  fairlease explain my-run"

    @property
    def verbs(self) -> dict[str, str]:
        """All verbs, with the first line of their help."""
        return {name: line for section in self.sections.values() for name, line in section.items()}

    def find(self, name: str) -> click.Command:
        """Import one verb."""
        module, _, what = self.places.get(name, name.replace("-", "_")).partition(".")
        verbs = importlib.import_module(f"fairlease.cli.verbs.{module}")
        found: click.Command = verbs.commands[what] if what else verbs.command
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the help."""
        del ctx
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A verb by its name."""
        del ctx
        return self.find(cmd_name) if cmd_name in self.verbs else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that was called; one that nobody knows is answered with the nearest."""
        if args[0] not in self.verbs and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.verbs, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"`{self.program} --help` lists them."
            raise click.UsageError(f"there is no command `{args[0]}`. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what a command returns is its own business
        """Run the verb. That the reader of a pipe went away (`fairlease list | head -1`) is no error of ours."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_output()
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by what they are about, without importing any."""
        del ctx
        for title, verbs in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what the exit codes mean, and where to begin."""
        del ctx
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])
        with formatter.section("Examples"):
            formatter.write(f"  {self.example}\n")


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from fairlease import __version__

        click.echo(f"fairlease {__version__}")
        ctx.exit()


def _group() -> Verbs:
    version = click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
    )
    return Verbs(
        name="fairlease",
        params=[*place_options(), version],
        callback=lambda **_: None,
        help="Gangs of GPUs, paid from budgets, placed all at once or not at all, and written down for good.",
        context_settings=HELP,
    )


cli = _group()


def _forget_output() -> None:
    """What Python still wants to flush at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main(args: list[str] | None = None) -> NoReturn:
    """The entry of `fairlease`."""
    run_group(cli, "fairlease", args)


def run_group(group: Verbs, program: str, args: list[str] | None = None) -> NoReturn:
    """Run a command: every way out has its exit code, and none but a bug of ours has a traceback."""
    if sys.stdout is None:  # It was closed (`>&-`): what is said then is for nobody.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for as long as we live
    try:
        code: Any = group.main(args, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is not None:  # A file of ours, and not the output.
            raise
        _forget_output()
        Failure(f"the output could not be written: {error.strerror or error}").show()
        sys.exit(UNWRITTEN)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
