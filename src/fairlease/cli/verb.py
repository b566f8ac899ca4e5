"""What all verbs share: the options for where the daemon is and how answers look, and an example in every help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from fairlease.cli.output import FORMATS
from fairlease.cli.session import Session

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Exemplary(click.Command):
    """A command whose help ends with an example, because that is what people copy."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:  # noqa: ANN401 - click's own arguments
        super().__init__(*args, **kwargs)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the example as it is typed."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Examples"):
            for line in self.example.strip().splitlines():
                formatter.write(f"  {line}\n" if line else "\n")


class Verb(Exemplary):
    """One thing to do."""


class VerbGroup(Exemplary, click.Group):
    """Several things to do about one noun."""


def place_options() -> list[click.Option]:
    """Which daemon, and whether in colour; on the group and on every verb, so that they may stand anywhere."""
    return [
        click.Option(["--home"], metavar="DIR", help="Where the daemon lives.  [env: FAIRLEASE_HOME]"),
        click.Option(["--socket"], metavar="PATH", help="The daemon's socket.  [env: FAIRLEASE_SOCKET]"),
        click.Option(["--no-color"], is_flag=True, help="No colour, on a terminal either.  [env: NO_COLOR]"),
    ]


def _output_option(formats: Sequence[str]) -> click.Option:
    return click.Option(
        ["-o", "--output"], type=click.Choice(formats), default=formats[0], show_default=True, help="How to print it."
    )


def _namespace_options(*, every: bool) -> list[click.Option]:
    options = [click.Option(["-n", "--namespace"], metavar="NS", help="The namespace; `default` where none is given.")]
    if every:
        options.append(click.Option(["-A", "--all-namespaces"], is_flag=True, help="All namespaces."))
    return options


def verb(
    name: str,
    *,
    example: str,
    formats: Sequence[str] = (),
    namespace: bool = False,
    every: bool = False,
    **settings: Any,  # noqa: ANN401 - click's own settings
) -> Callable[[Callable[..., Any]], Verb]:
    """Make a function the command `name`; it is handed a `Session` and the options declared on it.

    `formats` are what `-o` accepts (none: it has no `-o`), `namespace` and `every` add `-n` and `-A`.
    """

    def made(work: Callable[..., Any]) -> Verb:
        def call(**given: Any) -> Any:  # noqa: ANN401 - options are of many types
            return work(_session(given), **given)

        declared = list(reversed(getattr(work, "__click_params__", [])))
        declared += _namespace_options(every=every) if namespace or every else []
        declared += [_output_option(formats)] if formats else []
        declared += place_options()
        return Verb(
            name, callback=call, params=declared, help=work.__doc__, example=example, context_settings=HELP, **settings
        )

    return made


def _session(given: dict[str, Any]) -> Session:
    """Take what all verbs share out of the options; what stands behind the verb wins over what stands before it."""
    around = click.get_current_context().find_root().params
    return Session(
        home=given.pop("home") or around.get("home"),
        socket=given.pop("socket") or around.get("socket"),
        no_color=given.pop("no_color") or bool(around.get("no_color")),
        output=given.pop("output", "table"),
        namespace=given.pop("namespace", None),
        all_namespaces=given.pop("all_namespaces", False),
    )


READ = FORMATS
"""What a verb that reads can print."""


def complete_runs(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of runs for the shell's completion; without a daemon there are none, and no noise."""
    from fairlease.cli.failure import Failure

    around = ctx.find_root().params
    session = Session(home=ctx.params.get("home") or around.get("home"), socket=ctx.params.get("socket"))
    try:
        runs = session.call("list", namespace=ctx.params.get("namespace"))["runs"]
    except Failure:
        return []
    names = [bare(run["name"]) for run in runs]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def bare(full: str) -> str:
    """A name without the default namespace, which goes without saying."""
    return full.removeprefix("default/")


def limit_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How much of what may be long."""
    number = click.IntRange(min=1, max=10_000)
    return click.option("--limit", type=number, default=100, show_default=True, metavar="N", help="At most so many.")


def run_argument(*, several: bool = False, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The run, or the runs, that a verb is about."""
    name = "runs" if several else "run"
    many = -1 if several else 1
    shown = ("RUN" if required else "[RUN]") + ("..." if several else "")
    return click.argument(name, metavar=shown, nargs=many, required=required, shell_complete=complete_runs)
