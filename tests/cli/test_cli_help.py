"""The help: every command has it, with an example, at once."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from tests.cli.conftest import Ask
from tests.cli.fake import FakeDaemon

from fairlease.cli.failure import EXIT_CODES
from fairlease.cli.kubectl import cli as kubectl
from fairlease.cli.main import Verbs, cli

HEAVY = ("rich", "sqlite3", "structlog", "prometheus_client", "yaml", "ryaml", "asyncio", "fairlease.engine")


def paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if path:
        yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None, name
            yield from paths(found, (*path, name))


def imported(*args: str, module: str = "main") -> set[str]:
    """Which heavy modules a command imports on its way."""
    code = f"import sys; from fairlease.cli.{module} import cli\n"
    code += f"cli.main({list(args)!r}, standalone_mode=False)\n"
    code += f"print('imported', *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.strip().splitlines()[-1].split()[1:])


@pytest.mark.parametrize("path", [*paths(cli)], ids=" ".join)
def test_every_command_has_help_with_an_example(ask: Ask, path: tuple[str, ...]) -> None:
    result = ask(*path, "-h")
    assert result.exit_code == 0
    assert f"  fairlease {' '.join(path)}" in result.stdout.partition("Examples:")[2]


@pytest.mark.parametrize("path", [*paths(kubectl)], ids=" ".join)
def test_every_command_on_a_cluster_has_help_with_an_example_of_its_own(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(kubectl, [*path, "-h"], prog_name="kubectl runs")
    assert result.exit_code == 0
    examples = result.stdout.partition("Examples:")[2]
    assert f"  kubectl runs {' '.join(path)}" in examples
    assert "fairlease " not in examples


@pytest.mark.parametrize(
    ("group", "verb"), [(group, verb) for group in (cli, kubectl) for verb in group.verbs], ids=str
)
def test_the_list_of_commands_says_what_each_says_itself(group: Verbs, verb: str) -> None:
    command = group.get_command(click.Context(group), verb)
    assert command is not None
    assert (command.help or "").strip().splitlines()[0] == group.verbs[verb]


def test_the_help_documents_every_exit_code(ask: Ask) -> None:
    told = ask("--help").stdout.partition("Exit codes:")[2]
    for code in EXIT_CODES:
        assert f"\n  {code} " in told


def test_help_imports_nothing_heavy_on_its_way() -> None:
    assert imported("--help") == set()
    assert imported("--help", module="kubectl") == set()
    assert imported("list", "--help", module="kubectl") == set()


@pytest.mark.parametrize(
    "args", [("list",), ("status", "-o", "json"), ("explain", "eval"), ("budgets", "usage")], ids=" ".join
)
def test_a_question_imports_nothing_heavy_either(fake: FakeDaemon, args: tuple[str, ...]) -> None:
    assert imported(*args) == set()
    assert fake.asked


def test_an_unknown_command_is_answered_with_the_nearest(ask: Ask) -> None:
    result = ask("expain")
    assert result.exit_code == 2
    assert "Did you mean `explain`?" in result.stderr


def test_an_unknown_command_about_budgets_is_bad_input(ask: Ask) -> None:
    result = ask("budgets", "aply")
    assert result.exit_code == 2
    assert "aply" in result.stderr


def test_an_unknown_option_is_bad_input(ask: Ask) -> None:
    result = ask("list", "--phases", "Running")
    assert result.exit_code == 2
    assert "--phase" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_for_completion(ask: Ask, shell: str) -> None:
    result = ask("completion", shell)
    assert result.exit_code == 0
    assert "_FAIRLEASE_COMPLETE" in result.stdout


def test_the_shell_completes_names_of_runs(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FAIRLEASE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fairlease explain e")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run([sys.executable, "-m", "fairlease"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["plain,eval"]
    assert fake.sent("list")


def test_completion_without_a_daemon_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEASE_SOCKET", "/nowhere/fairlease.sock")
    monkeypatch.setenv("_FAIRLEASE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fairlease explain e")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run([sys.executable, "-m", "fairlease"], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_the_version_is_told(ask: Ask) -> None:
    from fairlease import __version__

    assert ask("--version").stdout == f"fairlease {__version__}\n"
