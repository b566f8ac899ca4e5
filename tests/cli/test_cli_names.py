"""Names: completed by the shell, found by all who are meant, and mended where they are nearly right."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ask
from tests.cli.fake import FakeDaemon, RefusalError, run_row, status_of

RUNS = ["broken", "done", "eval", "sweep", "train"]
OWNERS = ["org", "org:team-a", "org:team-b"]


def completed(monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """What the shell is offered for the last word, through click's own protocol."""
    monkeypatch.setenv("_FAIRLEASE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"fairlease {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
    done = subprocess.run([sys.executable, "-m", "fairlease"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return sorted(line.removeprefix("plain,") for line in done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("show ", RUNS),
        ("cancel ", RUNS),
        ("cancel train e", ["eval"]),
        ("cancel train ", [name for name in RUNS if name != "train"]),
        ("logs t", ["train"]),
        ("explain ", RUNS),
        ("watch s", ["sweep"]),
        ("who-pays ", RUNS),
        ("leases --run t", ["train"]),
        ("leases --node ", ["n0", "n1"]),
        ("leases --owner ", OWNERS),
        ("leases --budget ", ["team-a"]),
        ("cover --explain e", ["eval"]),
        ("budgets remove ", ["team-a"]),
        ("budgets usage --owner ", OWNERS),
        ("list --owner org:", OWNERS[1:]),
        ("who-pays --owner org:team-b", ["org:team-b"]),
        ("run --owner ", OWNERS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_shell_completes_the_names_there_are(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, words: str, offered: list[str]
) -> None:
    assert completed(monkeypatch, words) == offered
    assert fake.asked


def test_only_what_lives_is_offered_for_canceling(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    completed(monkeypatch, "cancel ")
    completed(monkeypatch, "show ")
    assert [sent.get("all", False) for sent in fake.sent("list")] == [False, True]


def test_a_name_in_another_namespace_is_completed_whole(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers["list"] = {"runs": [run_row("train", status_of("Running"), namespace="lab")]}
    assert completed(monkeypatch, "show l") == ["lab/train"]
    assert completed(monkeypatch, "show -n lab t") == ["train"]


@pytest.mark.parametrize(
    ("args", "verb"),
    [(("show", "trian"), "show"), (("cancel", "eval", "trian"), "cancel"), (("logs", "trian"), "logs")],
)
def test_a_run_that_is_nearly_right_is_guessed(fake: FakeDaemon, ask: Ask, args: tuple[str, ...], verb: str) -> None:
    fake.answers[verb] = _missing("run trian")
    result = ask(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("fairlease: NotFound: there is no run trian; did you mean train?\n")


def test_a_budget_that_is_nearly_right_is_guessed(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["budgets.remove"] = _missing("budget taem-a")
    assert "did you mean team-a?" in ask("budgets", "remove", "taem-a").stderr


def test_a_name_that_is_right_is_not_offered_for_another(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["budgets.stop-lending"] = _missing("envelope team-b in it")
    assert "did you mean" not in ask("budgets", "stop-lending", "team-a", "team-b").stderr


def _missing(what: str) -> Any:  # noqa: ANN401 - an answer
    def refuse(_: dict[str, Any]) -> None:
        raise RefusalError("NotFound", f"there is no {what}", 1, "look at the list for the right name")

    return refuse


def test_that_none_of_several_was_canceled_is_said(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["cancel"] = _missing("run nope")
    assert "none of the 2 runs was canceled" in ask("cancel", "train", "nope").stderr
    assert "none of" not in ask("cancel", "nope").stderr


def test_leases_of_no_known_run_or_node_are_not_found(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["leases"] = {"leases": []}
    for option, told in (("--run=trian", "no run trian; did you mean train?"), ("--node=n9", "did you mean n")):
        result = ask("leases", option)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr
    assert ask("leases", "--run=train", "--node=n0").exit_code == 0, "they are there, and hold nothing"


def test_an_envelope_is_found_as_tables_print_it(fake: FakeDaemon, ask: Ask) -> None:
    ask("leases", "--envelope", "ai/pool")
    ask("leases", "--envelope", "lab/ai/pool")
    ask("leases", "--envelope", "pool")
    found = [(sent.get("budget"), sent["envelope"]) for sent in fake.sent("leases")]
    assert found == [("default/ai", "pool"), ("lab/ai", "pool"), (None, "pool")]
    assert ask("leases", "--envelope", "ai/pool", "--budget", "other").exit_code == 2


def test_an_owner_stands_for_those_below_it(fake: FakeDaemon, ask: Ask) -> None:
    ask("leases", "--owner", "org")
    assert [sent["owner"] for sent in fake.sent("leases")] == ["org"], "who is below it, the ledger knows"
    assert "team-a/west" in ask("budgets", "usage", "--owner", "org").stdout


def test_a_rank_that_is_not_there_is_not_found(fake: FakeDaemon, ask: Ask) -> None:
    files = [{"rank": rank, "attempt": 1, "path": f"/nowhere/{rank}"} for rank in range(4)]
    fake.answers["logs"] = lambda args: {
        "files": [file for file in files if args.get("rank") in (None, file["rank"])],
        "ended": True,
    }
    for more in ((), ("-f",)):
        result = ask("logs", "train", "--rank", "7", *more)
        assert result.exit_code == 2
        assert "train has no rank 7" in result.stderr
        assert "rank 0-3, attempt 1" in result.stderr
    assert ask("logs", "train", "--rank", "2").exit_code == 0


def test_a_duration_that_is_none_names_its_flag(fake: FakeDaemon, ask: Ask) -> None:
    for value in ("1hour", "0"):
        result = ask("run", "--gpus", "1", "--max-duration", value, "--", "true")
        assert result.exit_code == 2
        assert "--max-duration" in result.stderr
        assert f"'{value}'" in result.stderr
    assert not fake.asked


def test_a_field_that_was_typed_as_a_flag_is_told_as_one(fake: FakeDaemon, ask: Ask) -> None:
    def refuse(args: dict[str, Any]) -> None:
        name = args["objects"][0]["metadata"]["name"]
        problem = {"source": name, "field": "spec.gpusPerPod", "value": "3", "message": "does not divide 4"}
        raise RefusalError("InvalidRequest", "wrong", 2, "", [problem])

    fake.answers["submit"] = refuse
    assert "\n  --gpus-per-pod: 3: does not divide 4\n" in ask("run", "--gpus=4", "--gpus-per-pod=3", "true").stderr


def test_a_quote_tells_what_each_payer_pays_at_worst(fake: FakeDaemon, ask: Ask, run_file: Path) -> None:
    one = run_file.read_text().split("---")[0]
    run_file.write_text(one)
    assert "costs at worst: no bound, 8 GPUs" in ask("plan", "-f", str(run_file)).stdout
    assert "one commitQuantum (15m unless" in ask("plan", "-f", str(run_file)).stdout
    run_file.write_text(one + "  runtime: {maxDuration: 2h}\n")
    quote = ask("plan", "-f", str(run_file)).stdout
    assert (
        "costs at worst: 16 GPU-hours (8 GPUs for 2 h), and as much again for each attempt after the first\n" in quote
    )
    heading, line = quote.partition("Paid by:\n")[2].splitlines()
    assert heading.endswith("GPU-HOURS AT WORST")
    assert line.split()[-1] == "16"
    (payer,) = json.loads(ask("plan", "-f", str(run_file), "-o", "json").stdout)["plans"][0]["payers"]
    assert payer["worstGPUHours"] == 16
    assert fake.asked


def test_a_command_is_shown_as_the_shell_would_take_it(fake: FakeDaemon, ask: Ask) -> None:
    fake.answers["show"] = {
        "name": "train",
        "by": "ada",
        "spec": {
            "owner": "org:team-a",
            "resources": {"gpuType": "H100-80GB", "totalGPUs": 8},
            "command": ["sh", "-c", "echo $RANK; sleep 2"],
        },
        "status": status_of("Running"),
    }
    assert "sh -c 'echo $RANK; sleep 2'\n" in ask("show", "train").stdout


@pytest.mark.parametrize(
    "args", [("list",), ("who-pays", "train"), ("status",), ("explain", "eval"), ("show", "train")]
)
def test_a_wide_answer_says_more_than_a_narrow_one(fake: FakeDaemon, ask: Ask, args: tuple[str, ...]) -> None:
    assert len(ask(*args, "-o", "wide").stdout) > len(ask(*args).stdout)
    assert fake.asked


def test_owners_that_paid_are_told_of_runs_that_ended(fake: FakeDaemon, ask: Ask) -> None:
    none, some = {"gpus": 0, "gpuHours": 0}, {"gpus": 0, "gpuHours": 0.001}
    funding = {"owned": some, "shared": some, "borrowed": some, "overdrawn": none}
    sponsors = [{"owner": "org:rich", "gpus": 0, "gpuHours": 0.001}]
    status = status_of("Completed", "Completed", funding={**funding, "sponsors": sponsors})
    fake.answers["list"] = {"runs": [run_row("over", status)]}
    assert "org:team-a,family,org:rich" in ask("list").stdout
    assert "0.003000" in ask("list", "-o", "wide").stdout


@pytest.mark.parametrize(("typed", "meant"), [("--onwer", "--owner"), ("--limt", "--limit")])
def test_an_option_that_is_nearly_right_is_guessed(ask: Ask, typed: str, meant: str) -> None:
    result = ask("list", typed, "x")
    assert result.exit_code == 2
    assert meant in result.stderr
