"""`fairlease completion`: verbs, options and names of runs for the Tab key."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from fairlease.cli.session import Session
from fairlease.cli.verb import verb

_EXAMPLE = """
fairlease completion bash > ~/.local/share/bash-completion/completions/fairlease
fairlease completion zsh > "${fpath[1]}/_fairlease"
fairlease completion fish > ~/.config/fish/completions/fairlease.fish
"""


@verb("completion", example=_EXAMPLE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(session: Session, shell: str) -> None:
    """Print the completion script of a shell."""
    from fairlease.cli.main import cli

    del session
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells above"
    complete = kind(cli, {}, "fairlease", "_FAIRLEASE_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
