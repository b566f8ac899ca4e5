"""What the tests of the command line share: a fake daemon to look at answers with, and ways to call the command."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.fake import FakeDaemon

from fairlease.cli.main import cli

Ask = Callable[..., Result]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A fake daemon that commands find by themselves; its path is short, because the kernel asks for that."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        daemon = FakeDaemon(Path(folder) / "fairlease.sock")
        monkeypatch.setenv("FAIRLEASE_SOCKET", str(daemon.path))
        monkeypatch.delenv("FAIRLEASE_HOME", raising=False)
        yield daemon
        daemon.close()


@pytest.fixture
def ask() -> Ask:
    """Call the command in this process."""

    def asked(*args: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(cli, args, input=stdin, prog_name="fairlease")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return asked


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A file with two runs."""
    path = tmp_path / "runs.yaml"
    one = "apiVersion: rq.davidlangworthy.io/v1\nkind: Run\nmetadata: {{name: {name}}}\nspec:\n  owner: org:team-a\n"
    one += "  resources: {{gpuType: H100-80GB, totalGPUs: {gpus}}}\n"
    path.write_text(one.format(name="small", gpus=8) + "---\n" + one.format(name="large", gpus=16))
    return path
