"""The script for strangers: it agrees with what the engine drew, and sees every change of a record."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlease.cli.main import cli
from fairlease.sim.film import play
from fairlease.sim.scenario_file import load_scenario

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "docs" / "verify_lottery.py"
Record = dict[str, Any]


@pytest.fixture(scope="module")
def outcomes() -> list[Record]:
    film = play(load_scenario(str(ROOT / "tests/scenarios/the-lottery-is-drawn-again-and-again.yaml")))
    return list(film.result()["resolverOutcomes"])


def _verify(tmp_path: Path, document: object) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "outcomes.json"
    path.write_text(json.dumps(document))
    return subprocess.run([sys.executable, "-I", SCRIPT, path], capture_output=True, text=True, check=False)


def test_what_the_engine_drew_can_be_drawn_again_from_the_record(tmp_path: Path, outcomes: list[Record]) -> None:
    assert len(outcomes) > 1
    assert all(len(each["spec"]["lottery"]["tokens"]) > 1 for each in outcomes)
    done = _verify(tmp_path, {"resolverOutcomes": outcomes})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as recorded") == len(outcomes)


def test_objects_of_a_cluster_are_taken_in_their_order_however_they_are_listed(
    tmp_path: Path, outcomes: list[Record]
) -> None:
    names = [f"outcome-{number}" for number in range(9, 9 + len(outcomes))]
    items = [{"metadata": {"name": name}, "spec": each["spec"]} for name, each in zip(names, outcomes, strict=True)]
    listed = sorted(items, key=lambda each: each["metadata"]["name"])  # as kubectl lists them
    assert listed != items
    assert _verify(tmp_path, {"items": listed}).returncode == 0
    proof = subprocess.run(
        [sys.executable, "-m", "fairlease", "lottery", "verify", "--file", tmp_path / "outcomes.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert proof.returncode == 0, proof.stdout


def _swap_draw(spec: Record) -> None:
    drawn = spec["lottery"]["draws"][0]["run"]
    other = next(token for token in spec["lottery"]["tokens"] if token["run"] != drawn)
    spec["lottery"]["draws"][0] |= {"owner": other["owner"], "run": other["run"]}


def _swap_victim(spec: Record) -> None:
    drawn = spec["actions"][0]["run"]
    spec["actions"][0]["run"] = next(token["run"] for token in spec["lottery"]["tokens"] if token["run"] != drawn)


def _another_token(spec: Record) -> None:
    spec["lottery"]["tokens"].append(spec["lottery"]["tokens"][-1] | {"owner": "zeta:z"})


def _more_of(spec: Record, reason: str) -> Record:
    return {"run": spec["actions"][0]["run"], "leases": ["another"], "reason": reason, "gpus": 1}


FORGERIES: dict[str, Callable[[Record], None]] = {
    "another is said to be drawn": _swap_draw,
    "another was ended than was drawn": _swap_victim,
    "a token is left out": lambda spec: spec["lottery"]["tokens"].pop(),
    "a token is heavier": lambda spec: spec["lottery"]["tokens"][0].update(gpus=99),
    "the time is another": lambda spec: spec.update(at="2026-01-05T09:00:00Z"),
    "the seed was chosen": lambda spec: spec["lottery"].update(seed="ab" * 32),
    "a beacon is claimed": lambda spec: spec["lottery"].update(beacon="42"),
    "the claim is another": lambda spec: spec["claim"].update(name="another"),
    "nobody claimed": lambda spec: spec.pop("claim"),
    "more is said to lack": lambda spec: spec.update(deficitGPUs=99),
    "a group is said to lack more": lambda spec: spec["deficits"][0].update(gpus=99),
    "one who stood in it is left out": lambda spec: spec["conflictSet"].remove(spec["actions"][0]["run"]),
    "a lease is closed twice": lambda spec: spec["actions"].append(copy.deepcopy(spec["actions"][0])),
    "a run was ended and nothing closed": lambda spec: spec["actions"][0].update(leases=[]),
    "a run was smaller than its token": lambda spec: spec["actions"][0].update(gpus=1),
    "tokens are recorded out of order": lambda spec: spec["lottery"]["tokens"].reverse(),
    "a run stands in it twice": _another_token,
    "nobody was drawn": lambda spec: spec["lottery"].update(draws=[]),
    "a group lacks twice": lambda spec: spec.update(deficits=[{"group": 0, "gpus": spec["deficitGPUs"] // 2}] * 2),
    "a group lacks nothing": lambda spec: spec["deficits"].append({"group": 7, "gpus": 0}),
    "nothing lacked": lambda spec: spec.update(deficits=[], deficitGPUs=0),
    "a run that was ended lost a spare, too": lambda spec: spec["actions"].append(_more_of(spec, "DropSpare")),
    "a run was ended for a reason that there is not": lambda spec: spec["actions"].append(_more_of(spec, "Greed")),
    "no reservation was due": lambda spec: spec.pop("reservation"),
    "a reservation's number is written otherwise": lambda spec: spec.update(reservation=spec["reservation"] + "-02"),
    "the claim stood in its own way": lambda spec: spec["conflictSet"].append("default/" + spec["claim"]["name"]),
    "the time is written otherwise": lambda spec: spec.update(at=spec["at"].replace("Z", "+00:00")),
    "the outcome before it has no digest": lambda spec: spec.update(previous="none"),
    "the outcome before it is another": lambda spec: spec.update(previous="cd" * 32),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_record_that_was_changed_is_found_out(tmp_path: Path, outcomes: list[Record], forgery: str) -> None:
    forged = copy.deepcopy(outcomes)
    FORGERIES[forgery](forged[-1]["spec"])
    done = _verify(tmp_path, forged)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("as recorded") == len(outcomes) - 1
    result = CliRunner().invoke(cli, ["lottery", "verify", "--file", str(tmp_path / "outcomes.json")])
    assert result.exit_code == (2 if forgery in NO_RECORD else 1), result.output


NO_RECORD = ("a run was ended for a reason that there is not",)
"""What our own reader does not take for a record at all."""


def test_what_a_record_cannot_tell_of_itself_is_told_by_its_digest(tmp_path: Path, outcomes: list[Record]) -> None:
    noted = _verify(tmp_path, outcomes[:1]).stdout
    assert outcomes[1]["spec"]["previous"] in noted
    forged = copy.deepcopy(outcomes[:1])
    forged[0]["spec"]["scope"] = {"flavor": "another"}
    assert outcomes[1]["spec"]["previous"] not in _verify(tmp_path, forged).stdout


def test_an_outcome_left_out_breaks_the_chain(tmp_path: Path, outcomes: list[Record]) -> None:
    done = _verify(tmp_path, [outcomes[0], *outcomes[2:]])
    assert (done.returncode, "does not follow" in done.stdout) == (1, True)


def test_an_outcome_that_was_put_in_breaks_the_chain(tmp_path: Path, outcomes: list[Record]) -> None:
    assert len(outcomes) > 2
    put_in = copy.deepcopy(outcomes[1])
    put_in["spec"]["scope"] = {"flavor": "another"}
    done = _verify(tmp_path, [outcomes[0], put_in, *outcomes[1:]])
    assert (done.returncode, "does not follow" in done.stdout) == (1, True)


def test_a_record_without_its_draws_is_no_outcome(tmp_path: Path, outcomes: list[Record]) -> None:
    torn = copy.deepcopy(outcomes)
    del torn[-1]["spec"]["lottery"]["draws"]
    done = _verify(tmp_path, torn)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_string_that_is_no_text_is_told_and_not_raised(tmp_path: Path, outcomes: list[Record]) -> None:
    """Half of a pair of surrogates is a string in JSON, and nothing in UTF-8."""
    odd = copy.deepcopy(outcomes)
    odd[-1]["spec"]["scope"]["flavor"] = "\ud800"
    done = _verify(tmp_path, odd)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "U+D800 stands alone" in done.stderr
    result = CliRunner().invoke(cli, ["lottery", "verify", "--file", str(tmp_path / "outcomes.json")])
    assert (result.exit_code, "U+D800 stands alone" in result.stderr) == (2, True)


def test_a_name_that_is_no_text_does_not_keep_it_from_telling(tmp_path: Path, outcomes: list[Record]) -> None:
    done = _verify(tmp_path, [outcomes[0] | {"name": "\ud800"}])
    assert (done.returncode, "as recorded" in done.stdout) == (0, True)


def test_outcomes_are_taken_from_standard_input(outcomes: list[Record]) -> None:
    piped = json.dumps({"outcomes": outcomes})
    done = subprocess.run([sys.executable, "-I", SCRIPT, "-"], input=piped, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("as recorded")) == (0, len(outcomes))


def test_a_file_that_is_missing_is_called_missing(tmp_path: Path) -> None:
    call = [sys.executable, "-I", str(SCRIPT), str(tmp_path / "nowhere.json")]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, "is missing" in done.stderr, "holds no" in done.stderr) == (2, True, False)


def test_no_outcomes_are_nothing_to_complain_of(tmp_path: Path) -> None:
    done = _verify(tmp_path, {"outcomes": []})
    assert (done.returncode, done.stdout) == (0, "there are no outcomes in it\n")


def test_the_script_shares_no_line_with_what_it_checks() -> None:
    """An error in one would be one in both."""
    room = ROOT / "src/fairlease/engine/preempt"
    theirs = "".join((room / name).read_text() for name in ("lottery.py", "lottery_proof.py"))
    known = {line.strip() for line in theirs.splitlines()}
    lines = [line.strip() for line in SCRIPT.read_text().split('"""', 2)[2].splitlines()]
    shared = [line for line in lines if line in known and len(line) > len("from collections import")]
    assert not shared


@pytest.mark.parametrize("document", ["[]x", '{"spec": 3}', "7", "", '{"outcomes": 7}', "[" * 100_000, "\xff"])
def test_a_file_that_holds_no_outcome_is_refused_with_code_2(tmp_path: Path, document: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(document.encode("latin-1"))
    done = subprocess.run([sys.executable, "-I", SCRIPT, path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds no ResolverOutcome" in done.stderr
