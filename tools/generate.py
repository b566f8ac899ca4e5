"""Write what follows from the code: reference pages, and what Kubernetes is told. `--check` only compares.

They are committed, so that they can be read without running anything; `make check` fails where they are no longer true.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from fairlease.cli.failure import EXIT_CODES
from fairlease.cli.main import SECTIONS, cli
from fairlease.cli.verb import Verb, VerbGroup, place_options
from fairlease.kube.manifests import files
from fairlease.local.metrics import METRICS, PREFIX

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by tools/generate.py from the code; `make fix` writes it anew. -->"
SHARED = {option.name for option in place_options()}


# --- the command line --------------------------------------------------------------------------------------------------


def cli_page() -> str:
    lines = [NOTE, "# The command line", "", cli.help or "", ""]
    lines += ["Every command takes these, before or behind its name, and `-h`:", ""]
    lines += [*_options(place_options()), ""]
    lines += ["An answer goes to standard output, everything else to standard error. Colour is for terminals only."]
    lines += ["`-o json` and `-o yaml` print what the daemon answered, with the field names of the API;"]
    lines += ["`plan` and `cover`, which ask once for each run, print the list of those answers.", ""]
    lines += ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    for title, verbs in SECTIONS.items():
        lines += ["", f"## {title}"]
        for name in verbs:
            command = cli.get_command(click.Context(cli), name)
            assert command is not None, name
            lines += _command(command, ("fairlease", name))
    return "\n".join(lines) + "\n"


def _command(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    yield from ("", f"### {' '.join(path)}", "", _paragraphs(command.help or ""))
    if isinstance(command, VerbGroup) and not command.invoke_without_command:
        yield from _subcommands(command, path)
        return
    context = click.Context(command, info_name=" ".join(path))
    yield from ("", "```", command.get_usage(context).removeprefix("Usage: "), "```")
    own = [each for each in command.params if isinstance(each, click.Option) and each.name not in SHARED]
    if own:
        yield from ("", *_options(own))
    if isinstance(command, Verb | VerbGroup):
        yield from ("", "```console", *(f"$ {line}" for line in command.example.strip().splitlines()), "```")
    if isinstance(command, VerbGroup):
        yield from _subcommands(command, path)


def _subcommands(command: VerbGroup, path: tuple[str, ...]) -> Iterator[str]:
    for name, each in command.commands.items():
        yield from _command(each, (*path, name))


def _paragraphs(text: str) -> str:
    """Help as it stands in a docstring, without its line breaks, which are those of the source."""
    blocks = [" ".join(block.split()) for block in text.split("\n\n")]
    return "\n\n".join(blocks)


def _options(options: list[click.Option]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    for option in options:
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        shown = "" if option.is_flag else f" {_escaped(_metavar(option))}"
        default = f" Default: `{option.default}`." if option.show_default and option.default is not None else ""
        needed = " Required." if option.required else ""
        yield f"| {names}{shown} | {_escaped(' '.join((option.help or '').split()))}{needed}{default} |"


def _metavar(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.metavar or option.type.name.upper()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


# --- metrics -----------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    lines = [NOTE, "# Metrics", ""]
    lines += [
        "The daemon serves them in the text format of Prometheus, on loopback; `fairlease status` tells where.",
        "",
    ]
    lines += ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, labels, told) in METRICS.items():
        shown = ", ".join(f"`{label}`" for label in labels) or "–"
        lines.append(f"| `{PREFIX}{name}` | {kind} | {shown} | {_escaped(told)} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/cli.md": cli_page,
    "docs/reference/metrics.md": metrics_page,
}


def _left_over(made: Iterable[str]) -> Iterator[str]:
    """Files in generated folders that the code no longer makes."""
    for folder in ("crd", "policy", "rbac"):
        for path in sorted((ROOT / "config" / folder).glob("*.yaml")):
            name = path.relative_to(ROOT).as_posix()
            if name not in made:
                yield name


def main(args: list[str]) -> int:
    made = {name: make() for name, make in PAGES.items()} | {f"config/{name}": text for name, text in files()}
    stale = list(_left_over(made))
    for name in stale if "--check" not in args else ():
        (ROOT / name).unlink()
        print(f"removed {name}")
    for name, text in made.items():
        path = ROOT / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in args:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if stale and "--check" in args:
        print(f"not as the code says: {', '.join(stale)}; `make fix` writes them", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
