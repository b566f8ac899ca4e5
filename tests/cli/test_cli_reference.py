"""The reference pages follow from the code, and the tool that writes them says where they do not."""

from pathlib import Path

import pytest
from tools import generate

from fairlease.cli.kubectl import cli as kubectl
from fairlease.cli.main import cli
from fairlease.reason import Reason
from fairlease.runtime.metrics import CLUSTER, MACHINE, METRICS


def test_the_reference_names_every_command_and_metric() -> None:
    page = generate.cli_page()
    for verb in cli.verbs:
        assert f"### fairlease {verb}\n" in page
    for verb in kubectl.verbs:
        assert f"### kubectl runs {verb}\n" in generate.kubectl_page()
    assert "### fairlease budgets usage\n" in page
    for name in {**METRICS, **MACHINE, **CLUSTER}:
        assert f"| `fairlease_{name}` |" in generate.metrics_page()


def test_the_reference_names_every_reason_once() -> None:
    page = generate.reasons_page()
    assert [page.count(f"| `{reason.value}` |") for reason in Reason] == [1] * len(Reason)


def test_the_pages_come_out_the_same_each_time() -> None:
    for make in generate.PAGES.values():
        assert make() == make()


def test_a_stale_page_is_noticed_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "docs/reference/cli.md" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists(), "to check is not to write"
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
