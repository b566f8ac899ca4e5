"""`fairlease run`: what it sends for what one types."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ask
from tests.cli.fake import FakeDaemon, RefusalError, status_of

from fairlease.cli.verbs.run import made_up


def sent(fake: FakeDaemon) -> dict[str, Any]:
    found: dict[str, Any] = fake.sent("submit")[-1]["objects"][0]
    return found


def test_every_option_finds_its_field(
    fake: FakeDaemon, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", "mine")
    options = "--gpus 16 --name big --owner org:x --gpus-per-pod 8 --group 16 --max-duration 2h --type A100 --detach"
    more = ("--env", "A=b=c", "--env", "TOKEN", "--sponsor", "org:y", "--sponsor", "org:z", "-n", "lab")
    assert ask("run", *options.split(), *more, "--", "torchrun", "--gpus", "3").exit_code == 0
    assert sent(fake) == {
        "apiVersion": "rq.davidlangworthy.io/v1",
        "kind": "Run",
        "metadata": {"name": "big", "namespace": "lab"},
        "spec": {
            "owner": "org:x",
            "resources": {"gpuType": "A100", "totalGPUs": 16},
            "command": ["torchrun", "--gpus", "3"],
            "workdir": str(tmp_path),
            "env": {"A": "b=c", "TOKEN": "mine"},
            "gpusPerPod": 8,
            "locality": {"groupGPUs": 16},
            "runtime": {"maxDuration": "2h"},
            "funding": {"allowBorrow": True, "sponsors": ["org:y", "org:z"]},
        },
    }


def test_the_only_owner_and_flavor_need_not_be_named(fake: FakeDaemon, ask: Ask) -> None:
    assert ask("run", "--gpus", "1", "--detach", "--", "true").exit_code == 0
    assert sent(fake)["spec"]["owner"] == "org:team-a"
    assert sent(fake)["spec"]["resources"]["gpuType"] == "H100-80GB"


def test_an_administrator_means_the_only_owner_with_a_budget(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["status"]["you"] = {"user": "root", "admin": True, "owners": ["*"]}
    assert ask("run", "--gpus", "1", "--detach", "--", "true").exit_code == 0
    assert sent(fake)["spec"]["owner"] == "org:team-a"
    fake.answers["budgets.list"] = {"budgets": []}
    result = ask("run", "--gpus", "1", "--detach", "--", "true")
    assert result.exit_code == 2
    assert "fairlease budgets apply" in result.stderr


@pytest.mark.parametrize(("owners", "told"), [([], "bound to no owner"), (["org:a", "org:b"], "org:a, org:b")])
def test_an_owner_that_is_not_clear_is_asked_for(fake: FakeDaemon, ask: Ask, owners: list[str], told: str) -> None:
    fake.answers["status"]["you"]["owners"] = owners
    result = ask("run", "--gpus", "1", "--", "true")
    assert result.exit_code == 2
    assert "--owner" in result.stderr
    assert told in result.stderr
    assert not fake.sent("submit")


def test_flavors_that_could_be_meant_are_listed(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["nodes"]["nodes"][1]["flavor"] = "A100"
    result = ask("run", "--gpus", "1", "--", "true")
    assert result.exit_code == 2
    assert "--type: A100, H100-80GB" in result.stderr


@pytest.mark.parametrize("env", ["=x", "FAIRLEASE_TEST_NOT_SET"])
def test_a_variable_without_a_value_is_refused(fake: FakeDaemon, ask: Ask, env: str) -> None:
    result = ask("run", "--gpus", "1", "--env", env, "--", "true")
    assert result.exit_code == 2
    assert "expected K=V" in result.stderr
    assert not fake.sent("submit")


def test_names_made_up_are_readable_and_valid() -> None:
    for words, stem in ((["python", "My_Train.py"], "my-train"), (["/bin/sh"], "sh"), (["***"], "run")):
        name = made_up(words)
        assert re.fullmatch(rf"{stem}-[a-z]+-[a-z]+-[0-9a-f]{{4}}", name)
    assert len({made_up(["x"]) for _ in range(50)}) > 45


def test_a_made_up_name_that_is_taken_is_drawn_anew(fake: FakeDaemon, ask: Ask) -> None:
    submit = fake.answers["submit"]

    def taken_twice(args: dict[str, Any]) -> Any:  # noqa: ANN401 - an answer
        if len(fake.sent("submit")) <= 2:
            raise RefusalError("AlreadyExists", "a run of this name exists already", 1)
        return submit(args)

    fake.answers["submit"] = taken_twice
    assert ask("run", "--gpus", "1", "--detach", "--", "true").exit_code == 0
    assert len({args["objects"][0]["metadata"]["name"] for args in fake.sent("submit")}) == 3


def test_a_given_name_that_is_taken_is_refused(fake: FakeDaemon, ask: Ask) -> None:
    def taken(_: dict[str, Any]) -> None:
        raise RefusalError("AlreadyExists", "a run mine exists already", 1, "choose another name")

    fake.answers["submit"] = taken
    assert ask("run", "--gpus", "1", "--name", "mine", "--", "true").exit_code == 2
    assert len(fake.sent("submit")) == 1


def test_waiting_ends_as_the_run_does(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("hello\n")
    fake.answers["logs"] = {"files": [{"rank": 0, "attempt": 1, "path": str(tmp_path / "log")}], "ended": True}
    for phase, code in (("Completed", 0), ("Failed", 1)):
        shown = {"name": "x", "spec": {}, "status": status_of(phase, "Fail" if code else "Completed", "told")}
        fake.answers["show"] = shown
        result = ask("run", "--gpus", "1", "--", "true")
        assert (result.exit_code, result.stdout) == (code, "hello\n")
        assert phase.lower() in result.stderr


def test_for_a_program_the_answer_stands_alone_on_standard_output(fake: FakeDaemon, ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("hello\n")
    fake.answers["logs"] = {"files": [{"rank": 0, "attempt": 1, "path": str(tmp_path / "log")}], "ended": True}
    fake.answers["show"] = {"name": "x", "spec": {}, "status": status_of("Completed", "Completed", "told")}
    result = ask("run", "--gpus", "1", "-o", "json", "--", "true")
    assert json.loads(result.stdout)["status"]["phase"] == "Completed"
    assert "hello\n" in result.stderr


def test_a_dry_run_is_a_quote_that_writes_nothing(fake: FakeDaemon, ask: Ask) -> None:
    result = ask("run", "--gpus", "16", "--dry-run", "-o", "json", "--", "true")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["plans"][0]["verdict"] == "ConcurrencyCapExceeded"
    assert not fake.sent("submit")
