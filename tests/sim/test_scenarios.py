"""Scenarios play as they say: ours, and those of the contract that stay within what this release can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlease.sim.film import play
from fairlease.sim.scenario_file import load_scenario, read_scenario

HERE = Path(__file__).parent.parent
OURS = sorted((HERE / "scenarios").glob("*.yaml"))
SHARED = Path(os.environ.get("FAIRLEASE_SHARED", HERE.parent.parent / "shared")) / "scenarios"

CONTRACT = sorted(SHARED.glob("*.yaml"))


@pytest.mark.parametrize("path", OURS + CONTRACT, ids=lambda path: path.stem)
def test_the_film_shows_what_the_scenario_expects(path: Path) -> None:
    film = play(load_scenario(str(path)))
    told = [f"{each['at']} {each['field']}: {each['differences']}" for each in film.failures]
    assert not told, "\n".join(told)
    assert film.report.ok, film.report.findings
    assert not film.world.faults


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_restart_after_every_step_changes_no_hash(path: Path) -> None:
    text = path.read_text()
    plain = play(read_scenario(text, path.name))
    restarted = text.replace("  steps:\n", "  steps:\n  - {at: 0s, restart: true}\n")
    restarted = "\n".join(
        f"  - {{restart: true}}\n{line}" if line.startswith("  - at:") else line for line in restarted.split("\n")
    )
    again = play(read_scenario(restarted, path.name))
    assert again.world.scheduler.head == plain.world.scheduler.head
    assert not again.world.faults


def test_the_same_file_gives_the_same_result_in_another_process() -> None:
    """Draws among them: they follow no order of a map."""
    path = HERE / "scenarios" / "the-lottery-is-drawn-again-and-again.yaml"
    seen = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "fairlease", "simulate", str(path), "-o", "json"],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True,
        )  # fmt: skip
        seen.add(done.stdout)
    assert len(seen) == 1
    told = json.loads(seen.pop())
    assert told["audit"]["ok"] is True
    assert all(outcome["spec"]["lottery"]["draws"] for outcome in told["resolverOutcomes"])
