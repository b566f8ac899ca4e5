"""What a film shows at its end, and what it must not hide."""

from __future__ import annotations

from fairlease.sim.film import Film, play
from fairlease.sim.scenario_file import read_scenario

WORLD = """
apiVersion: rq.davidlangworthy.io/v1
kind: Scenario
metadata: {name: ends}
spec:
  nodes: [{prefix: a, count: 1, gpus: 8, flavor: H, domain: A, region: west, cluster: one}]
  budgets:
  - {name: b, owner: "o:x", envelopes: [{name: e, flavor: H, selector: {region: west}, concurrency: 8}]}
  steps:
  - submit: [{name: r, owner: "o:x", resources: {gpuType: H, totalGPUs: 8}, gpusPerPod: 8, work: {duration: 10m}}]
"""


def film(rest: str) -> Film:
    return play(read_scenario(WORLD + rest, "ends.yaml"))


def test_a_film_without_an_end_goes_on_until_all_that_is_expected_was_seen() -> None:
    shown = film("  expect: [{at: 10m, run: r, is: {phase: Completed}}]\n")
    assert shown.ok
    assert shown.result()["now"] == "2026-01-05T00:10:00Z"


def test_an_expectation_after_the_end_of_the_film_does_not_hold() -> None:
    shown = film("  until: 5m\n  expect: [{at: 10m, run: r, is: {phase: Completed}}]\n")
    assert [each["held"] for each in shown.expectations] == [False]
    assert "ends before" in shown.failures[0]["differences"][0]
