"""Write what follows from the code: reference pages, and what Kubernetes is told. `--check` only compares.

They are committed, so that they can be read without running anything; `make check` fails where they are no longer true.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from fairlease.cli.failure import EXIT_CODES
from fairlease.cli.kubectl import cli as kubectl
from fairlease.cli.main import Verbs, cli
from fairlease.cli.verb import Verb, VerbGroup
from fairlease.kube.manifests.files import files
from fairlease.reason import Reason
from fairlease.runtime.metrics import CLUSTER, MACHINE, METRICS, PREFIX

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by tools/generate.py from the code; `make fix` writes it anew. -->"


# --- the command line --------------------------------------------------------------------------------------------------


def cli_page() -> str:
    lines = _opening("# The command line", cli)
    lines += ["An answer goes to standard output, everything else to standard error. Colour is for terminals only."]
    lines += ["`-o json` and `-o yaml` print what the daemon answered, with the field names of the API;"]
    lines += ["`plan` and `cover`, which ask once for each run, print the list of those answers.", ""]
    lines += ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join([*lines, *_verbs(cli)]) + "\n"


def kubectl_page() -> str:
    lines = _opening("# kubectl runs", kubectl)
    lines += [
        "Exit codes and `-o` are those of [`fairlease`](cli.md); no API server that answers is 3, a role that is missing 4."
    ]
    return "\n".join([*lines, *_verbs(kubectl)]) + "\n"


def _opening(title: str, group: Verbs) -> list[str]:
    shared = [each for each in group.params if isinstance(each, click.Option) and each.name != "version"]
    lines = [NOTE, title, "", group.help or "", ""]
    return [*lines, "Every command takes these, before or behind its name, and `-h`:", "", *_options(shared), ""]


def _verbs(group: Verbs) -> Iterator[str]:
    for title, verbs in group.sections.items():
        yield from ("", f"## {title}")
        for name in verbs:
            command = group.get_command(click.Context(group), name)
            assert command is not None, name
            yield from _command(command, (group.program, name), frozenset(each.name for each in group.params))


def _command(command: click.Command, path: tuple[str, ...], shared: frozenset[str | None]) -> Iterator[str]:
    yield from ("", f"### {' '.join(path)}", "", _paragraphs(command.help or ""))
    if isinstance(command, VerbGroup) and not command.invoke_without_command:
        yield from _subcommands(command, path, shared)
        return
    context = click.Context(command, info_name=" ".join(path))
    yield from ("", "```", command.get_usage(context).removeprefix("Usage: "), "```")
    own = [each for each in command.params if isinstance(each, click.Option) and each.name not in shared]
    if own:
        yield from ("", *_options(own))
    if isinstance(command, Verb | VerbGroup):
        yield from ("", "```console", *(f"$ {line}" for line in command.example.strip().splitlines()), "```")
    if isinstance(command, VerbGroup):
        yield from _subcommands(command, path, shared)


def _subcommands(command: VerbGroup, path: tuple[str, ...], shared: frozenset[str | None]) -> Iterator[str]:
    for name, each in command.commands.items():
        yield from _command(each, (*path, name), shared)


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
        "In the text format of Prometheus. The daemon of a machine serves them on loopback; `fairlease status` tells where. The",
        "controller of a cluster serves them at `/metrics` on the port that `--metrics-port` names.",
    ]
    for title, metrics in (("Everywhere", METRICS), ("On one machine", MACHINE), ("On a cluster", CLUSTER)):
        lines += ["", f"## {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for name, (kind, labels, told) in metrics.items():
            shown = ", ".join(f"`{label}`" for label in labels) or "–"
            lines.append(f"| `{PREFIX}{name}` | {kind} | {shown} | {_escaped(told)} |")
    return "\n".join(lines) + "\n"


# --- reasons -----------------------------------------------------------------------------------------------------------

HUNDREDS = {
    1: "Why money does not cover a run, from the envelope that passed the least to the one that passed the most",
    2: "Why a run that is paid for waits",
    3: "How a run is when nothing is wrong",
    4: "How leases open and close, and how runs end",
    5: "Budgets and nodes",
    6: "Answers to requests",
    7: "What one domain, or one envelope, answers to a run that asks",
    8: "What the date of a reservation rests on, and why it moved",
}


def reasons_page() -> str:
    lines = [NOTE, "# Reasons", ""]
    lines += [
        "Every refusal and every cause, as conditions, leases, `explain` and metrics name it. Names and codes stay what they are.",
        "*Transient*: waiting may be enough.",
    ]
    for hundred, title in HUNDREDS.items():
        lines += ["", f"## {title}", "", "| code | reason | transient | what would change it |", "|---|---|---|---|"]
        for reason in Reason:
            if reason.code // 100 == hundred:
                transient = "yes" if reason.transient else "no"
                remedy = reason.remedy + (
                    f"; where that cannot be enough: {reason.alone}" if reason.alone != reason.remedy else ""
                )
                lines.append(f"| {reason.code} | `{reason.value}` | {transient} | {_escaped(remedy)} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/cli.md": cli_page,
    "docs/reference/kubectl-runs.md": kubectl_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/reasons.md": reasons_page,
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
