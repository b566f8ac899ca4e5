"""What all verbs share: the options for where the daemon is and how answers look, and an example in every help.

A verb is written once. `fairlease` offers it for this machine's daemon, `kubectl runs` for a cluster (`cli.cluster`): what differs
is the place, which brings options of its own and a `Session` that asks there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from fairlease.cli.failure import Failure
from fairlease.cli.render.output import FORMATS
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


class Recipe(NamedTuple):
    """All that a verb is made of, but for the place where it asks."""

    name: str
    work: Callable[..., Any]
    declared: tuple[click.Parameter, ...]
    example: str
    formats: Sequence[str] = ()
    namespace: bool = False
    every: bool = False
    wide: str = ""
    settings: dict[str, Any] = {}


class VerbBackend(NamedTuple):
    """Where verbs ask: how the program is called there, its options, and what makes a session of them."""

    program: str
    options: Callable[[], list[click.Option]]
    session: Callable[[dict[str, Any]], Session]
    namespace: str

    def made(self, recipe: Recipe) -> Verb:
        """The verb for this place."""

        def call(**given: Any) -> Any:  # noqa: ANN401 - options are of many types
            return recipe.work(self.session(given), **given)

        declared = list(recipe.declared)
        declared += _namespace_options(self.namespace, every=recipe.every) if recipe.namespace or recipe.every else []
        declared += [_output_option(recipe.formats, recipe.wide)] if recipe.formats else []
        declared += self.options()
        told = {"help": recipe.work.__doc__, "context_settings": HELP} | recipe.settings
        return Verb(
            recipe.name, callback=call, params=declared, example=recipe.example, recipe=recipe, place=self, **told
        )


class Verb(Exemplary):
    """One thing to do."""

    def __init__(self, *args: Any, recipe: Recipe, place: VerbBackend, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.recipe, self.place = recipe, place


class VerbGroup(Exemplary, click.Group):
    """Several things to do about one noun."""


def place_options() -> list[click.Option]:
    """Which daemon, and whether in colour; on the group and on every verb, so that they may stand anywhere."""
    return [
        click.Option(["--home"], metavar="DIR", help="Where the daemon lives.  [env: FAIRLEASE_HOME]"),
        click.Option(["--socket"], metavar="PATH", help="The daemon's socket.  [env: FAIRLEASE_SOCKET]"),
        click.Option(["--no-color"], is_flag=True, help="No colour, on a terminal either.  [env: NO_COLOR]"),
    ]


def _output_option(formats: Sequence[str], wide: str) -> click.Option:
    told = f"How to print it; wide adds {wide}." if wide else "How to print it."
    return click.Option(
        ["-o", "--output"], type=click.Choice(formats), default=formats[0], show_default=True, help=told
    )


def _namespace_options(otherwise: str, *, every: bool) -> list[click.Option]:
    options = [
        click.Option(["-n", "--namespace"], metavar="NS", help=f"The namespace; {otherwise} where none is given.")
    ]
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
    wide: str = "",
    **settings: Any,  # noqa: ANN401 - click's own settings
) -> Callable[[Callable[..., Any]], Verb]:
    """Make a function the command `name`; it is handed a `Session` and the options declared on it.

    `formats` are what `-o` accepts (none: it has no `-o`), `namespace` and `every` add `-n` and `-A`;
    `wide` is what `-o wide` shows besides the table.
    """

    def made(work: Callable[..., Any]) -> Verb:
        declared = tuple(reversed(getattr(work, "__click_params__", [])))
        return MACHINE.made(Recipe(name, work, declared, example, formats, namespace, every, wide, settings))

    return made


def _session(given: dict[str, Any]) -> Session:
    """Take what all verbs share out of the options; what stands behind the verb wins over what stands before it."""
    around = click.get_current_context().find_root().params
    return Session(
        home=given.pop("home", None) or around.get("home"),
        socket=given.pop("socket", None) or around.get("socket"),
        no_color=given.pop("no_color", False) or bool(around.get("no_color")),
        output=given.pop("output", "table"),
        namespace=given.pop("namespace", None),
        all_namespaces=given.pop("all_namespaces", False),
    )


MACHINE = VerbBackend("fairlease", place_options, _session, "`default`")
"""This machine's daemon."""


READ = FORMATS
"""What a verb that reads can print."""

NO_MORE = "nothing here"
"""What `-o wide` adds where the answer is a line."""


def completes(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Names of a kind (`Session.known`) for the shell's Tab key; without a daemon there are none, and no noise."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        assert isinstance(ctx.command, Verb), "only verbs have names to complete"
        try:
            with ctx.scope(cleanup=False):
                session = ctx.command.place.session(dict(ctx.params))
            prefix = f"{session.where()}/"
            names = [name.removeprefix(prefix) for name in session.known(kind)]
        except Failure:
            return []
        given = {each for value in ctx.params.values() if isinstance(value, tuple) for each in value}
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in given]

    return complete


def limit_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How much of what may be long."""
    number = click.IntRange(min=1, max=10_000)
    return click.option("--limit", type=number, default=100, show_default=True, metavar="N", help="At most so many.")


def owner_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Whose; an owner stands for all below it."""
    return click.option("--owner", metavar="OWNER", shell_complete=completes("owners"), help=text)


def wait_for_nodes_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Whether to submit what no node there is could hold."""
    told = "Wait for nodes that are still to come, where no node there is could hold it."
    return click.option("--wait-for-nodes", is_flag=True, help=told)


def run_argument(
    *, several: bool = False, required: bool = True, living: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The run, or the runs, that a verb is about; `living`: of which only those that wait or run make sense."""
    name = "runs" if several else "run"
    many = -1 if several else 1
    shown = ("RUN" if required else "[RUN]") + ("..." if several else "")
    complete = completes("living" if living else "runs")
    return click.argument(name, metavar=shown, nargs=many, required=required, shell_complete=complete)
