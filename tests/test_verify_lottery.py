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

from fairlease.sim.film import play
from fairlease.sim.scenario_file import load_scenario

ROOT = Path(__file__).parent.parent
Record = dict[str, Any]


@pytest.fixture(scope="module")
def outcomes() -> list[Record]:
    film = play(load_scenario(str(ROOT / "tests/scenarios/the-lottery-is-drawn-again-and-again.yaml")))
    return list(film.result()["resolverOutcomes"])


def _verify(tmp_path: Path, document: object) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "outcomes.json"
    path.write_text(json.dumps(document))
    script = ROOT / "docs" / "verify_lottery.py"
    return subprocess.run([sys.executable, "-I", script, path], capture_output=True, text=True, check=False)


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
    "the outcome before it is another": lambda spec: spec.update(previous="cd" * 32),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_record_that_was_changed_is_found_out(tmp_path: Path, outcomes: list[Record], forgery: str) -> None:
    forged = copy.deepcopy(outcomes)
    FORGERIES[forgery](forged[-1]["spec"])
    assert _verify(tmp_path, forged).returncode == 1


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


@pytest.mark.parametrize("document", ["[]x", '{"spec": 3}', "7", ""])
def test_a_file_that_holds_no_outcome_is_refused_with_code_2(tmp_path: Path, document: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(document)
    script = ROOT / "docs" / "verify_lottery.py"
    done = subprocess.run([sys.executable, "-I", script, path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds no ResolverOutcome" in done.stderr
