"""Dates, cuts and draws on the command line: what is asked, what is refused, and a record that was tampered with."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ask
from tests.cli.fake import OUTCOME, FakeDaemon

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_lottery.py"


def by_stranger(path: Path) -> int:
    """What the script that shares no code with us says."""
    return subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, check=False).returncode


def second() -> dict[str, Any]:
    """An outcome that follows the first, without a draw."""
    from fairlease.engine.preempt.lottery_proof import digest

    after = copy.deepcopy(OUTCOME)
    after["name"] = "outcome-2"
    del after["spec"]["lottery"]
    after["spec"]["actions"][0]["reason"] = "DropSpare"
    after["spec"]["previous"] = digest(OUTCOME["spec"])
    return after


def test_a_file_that_is_not_there_is_told_with_its_remedy(ask: Ask) -> None:
    result = ask("lottery", "verify", "--file", "nowhere.json")
    assert result.exit_code == 2
    assert "--file: nowhere.json cannot be read" in result.stderr
    assert "to mend it: give what `fairlease outcomes -o json` prints" in result.stderr


def test_who_has_no_forecast_is_told_why_and_what_would_help_once(ask: Ask, fake: FakeDaemon) -> None:
    row = {"name": "beyond", "owner": "org:a", "phase": "Pending", "reason": "NeverFits"}
    fake.answers["eta"] = {"runs": [row | {"message": "no node holds 9 GPUs", "remedy": "ask for fewer"}]}
    told = ask("eta", "beyond").stdout
    assert [word for word in ("NeverFits", "no node holds 9 GPUs", "ask for fewer") if told.count(word) == 1] == [
        "NeverFits", "no node holds 9 GPUs", "ask for fewer"
    ]  # fmt: skip
    fake.answers["eta"] = {"runs": [row | {"message": "too many: ask for fewer", "remedy": "ask for fewer"}]}
    assert ask("eta", "beyond").stdout.count("ask for fewer") == 1


@pytest.mark.parametrize("form", ["one", "list", "outcomes", "resolverOutcomes", "items"])
def test_a_file_of_outcomes_is_verified_without_a_daemon(ask: Ask, tmp_path: Path, form: str) -> None:
    both = [OUTCOME, second()]
    kube = [{"metadata": {"name": each["name"]}, "spec": each["spec"]} for each in both]
    document: Any = {"one": OUTCOME, "list": both, "items": {"items": kube}}.get(form, {form: both})
    path = tmp_path / "outcomes.json"
    path.write_text(json.dumps(document))
    result = ask("lottery", "verify", "--file", str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout.count("as recorded") == (1 if form == "one" else 2)
    assert by_stranger(path) == 0


TAMPERED = {
    "another run was drawn": ("lottery", "draws", 0, "run", "default/two"),
    "a token more of GPUs": ("lottery", "tokens", 1, "gpus", 4),
    "another seed": ("lottery", "seed", "ab" * 32),
    "another time": ("at", "2026-01-05T00:17:00Z"),
    "another reservation": ("reservation", "default/other-reservation"),
    "another victim": ("actions", 0, "run", "default/two"),
    "given back, it says": ("lottery", "draws", 0, "givenBack", True),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_record_that_was_tampered_with_is_the_answer_no(ask: Ask, tmp_path: Path, what: str) -> None:
    outcome = copy.deepcopy(OUTCOME)
    *trail, last, value = TAMPERED[what]
    place: Any = outcome["spec"]
    for step in trail:
        place = place[step]
    place[last] = value
    path = tmp_path / "outcomes.json"
    path.write_text(json.dumps([outcome]))
    assert ask("lottery", "verify", "--file", str(path)).exit_code == 1
    assert by_stranger(path) == 1


def test_an_outcome_that_was_left_out_breaks_the_chain(ask: Ask, fake: FakeDaemon, tmp_path: Path) -> None:
    changed = copy.deepcopy(OUTCOME)
    changed["spec"]["deficitGPUs"] = 4
    path = tmp_path / "outcomes.json"
    path.write_text(json.dumps([changed, second()]))
    result = ask("lottery", "verify", "--file", str(path))
    assert result.exit_code == 1
    assert "does not follow the outcome before it" in result.stdout
    assert by_stranger(path) == 1
    fake.answers["outcomes"] = {"outcomes": [second()]}
    assert ask("lottery", "verify").exit_code == 1, "the first of all follows nobody"


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"outcomes": [{"spec": {}}]}', '{"items": 3}'])
def test_a_file_without_outcomes_is_bad_input(ask: Ask, tmp_path: Path, text: str) -> None:
    path = tmp_path / "outcomes.json"
    path.write_text(text)
    result = ask("lottery", "verify", "--file", str(path))
    assert result.exit_code == 2
    assert "ResolverOutcome" in result.stderr


def test_an_outcome_nobody_knows_is_answered_with_the_nearest(fake: FakeDaemon, ask: Ask) -> None:
    result = ask("lottery", "verify", "outcome-l")
    assert result.exit_code == 2
    assert "did you mean outcome-1?" in result.stderr
    assert fake.sent("outcomes")


def test_json_of_a_verification_holds_every_input_and_the_odds(fake: FakeDaemon, ask: Ask) -> None:
    assert fake.path.exists()
    (told,) = json.loads(ask("lottery", "verify", "-o", "json").stdout)["outcomes"]
    assert set(told["inputs"]) == {"reservation", "at", "conflictDigest", "previous", "beacon"}
    assert [token["odds"] for token in told["tokens"]] == ["1/2", "1/2"]
    assert told["draws"] == [{"owner": "beta:y", "run": "default/one", "givenBack": False}]


def test_a_scope_is_a_flavor_and_labels(fake: FakeDaemon, ask: Ask) -> None:
    given = ("--scope", "flavor=H100-80GB, region=us-west,rack=7", "--gpus", "64", "--pod", "8", "--group", "32")
    assert ask("resolve", *given, "--reason", "new fans").exit_code == 0
    assert fake.sent("resolve") == [
        {
            "flavor": "H100-80GB",
            "location": {"region": "us-west", "rack": "7"},
            "gpus": 64,
            "pod": 8,
            "group": 32,
            "reason": "new fans",
            "dryRun": False,
        }
    ]


@pytest.mark.parametrize("scope", ["", "H100", "region=us-west", "flavor=", "flavor=a,flavor=b", "flavor=a,,"])
def test_a_scope_that_is_none_is_refused_with_an_example(fake: FakeDaemon, ask: Ask, scope: str) -> None:
    result = ask("resolve", "--scope", scope, "--gpus", "8")
    assert result.exit_code == 2
    assert "--scope" in result.stderr
    assert not fake.asked


def test_reservations_of_one_run_or_of_all_are_asked_for(fake: FakeDaemon, ask: Ask) -> None:
    ask("reservations", "eval", "--all")
    ask("reservations", "-A")
    assert fake.sent("reservations") == [
        {"run": "default/eval", "all": True, "limit": 100},
        {"all": False, "limit": 100},
    ]


def test_a_dry_run_in_which_everybody_would_be_drawn_does_not_speak_of_others(ask: Ask, fake: FakeDaemon) -> None:
    common = ("resolve", "--scope", "flavor=H100", "--gpus", "8", "--dry-run")
    assert "drawn: 1 of 2 tokens; another instant draws others" in ask(*common).stdout
    outcome = copy.deepcopy(OUTCOME)
    outcome["spec"]["lottery"]["draws"] *= 2
    fake.answers["resolve"] = {"dryRun": True, "outcome": outcome, "cuts": [], "started": []}
    told = ask(*common).stdout
    assert "drawn: 2 of 2 tokens\n" in told


def test_an_eta_of_what_runs_or_is_over_tells_since_when_and_how_it_ended(ask: Ask, fake: FakeDaemon) -> None:
    row = {"name": "one", "owner": "org:a", "phase": "Running", "startedAt": "2026-01-05T00:00:00Z", "odds": []}
    fake.answers["eta"] = {"runs": [row]}
    assert "Started: 2026-01-05T00:00:00Z" in ask("eta", "one").stdout
    how = {"at": "2026-01-05T01:00:00Z", "reason": "RandomPreempt", "message": "gave way to big (outcome-1)"}
    fake.answers["eta"] = {"runs": [{"name": "one", "owner": "org:a", "phase": "Failed", "ended": how}]}
    told = ask("eta", "one").stdout.splitlines()
    assert told == [
        "Name:         one",
        "Owner:        org:a",
        "Phase:        Failed",
        "Ended:        2026-01-05T01:00:00Z, RandomPreempt",
        "Because:      gave way to big (outcome-1)",
        "Why it ended: fairlease explain one",
    ]


def test_a_report_of_some_forecasts_does_not_speak_for_all(ask: Ask, fake: FakeDaemon) -> None:
    fake.answers["forecast.report"] = {"forecasts": 0}
    assert ask("forecast", "report").stdout == "no run that was forecast has started yet\n"
    told = ask("forecast", "report", "--owner", "org:a").stdout
    assert told == "no run that was forecast, of those asked for, has started yet\n"


FILM = """apiVersion: rq.davidlangworthy.io/v1
kind: Scenario
metadata: {name: cut}
spec:
  config: {minRuntime: 0s}
  nodes: [{prefix: a, count: 1, gpus: 8, flavor: H100, domain: A, region: w, cluster: c}]
  budgets: [{name: b, owner: org, envelopes: [{name: e, flavor: H100, selector: {region: w}, concurrency: 16}]}]
  steps:
  - submit: [{name: old, owner: org, resources: {gpuType: H100, totalGPUs: 8}, gpusPerPod: 8}]
  - at: 1m
    submit: [{name: claim, owner: org, resources: {gpuType: H100, totalGPUs: 8}, gpusPerPod: 8}]
  until: 20m
"""


def test_a_film_shows_its_dates_and_who_gave_way_where_there_is_room(ask: Ask, tmp_path: Path) -> None:
    film = tmp_path / "film.yaml"
    film.write_text(FILM)
    table, wide = (ask("simulate", str(film), "-o", style).stdout for style in ("table", "wide"))
    assert "RESERVATION" not in table
    rows = [line.split() for line in wide.splitlines()]
    assert ["claim-reservation", "Released", "2026-01-05T00:16:00Z", "Start", "b/e", "a0"] in rows
    assert ["outcome-1", "2026-01-05T00:16:00Z", "claim", "8", "old", "RandomPreempt", "old"] in [
        row[:7] for row in rows
    ]
