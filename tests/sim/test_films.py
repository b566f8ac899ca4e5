"""What a film shows at its end, and what it must not hide."""

from __future__ import annotations

from msgspec.structs import replace

from fairlease.ledger.state import events as ev
from fairlease.model.record import key
from fairlease.reason import Reason
from fairlease.report.reservation_history import ReservationHistory
from fairlease.sim.film import Film, play
from fairlease.sim.scenario_file import read_scenario
from fairlease.sim.world import FORECAST_RUNS_MAX

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


QUEUE = """
apiVersion: rq.davidlangworthy.io/v1
kind: Scenario
metadata: {name: queue}
spec:
  config: {notice: never}
  nodes: [{prefix: a, count: 1, gpus: 8, flavor: H, domain: A, region: west, cluster: one}]
  budgets:
  - {name: b, owner: "o:x", envelopes: [{name: e, flavor: H, selector: {region: west}, concurrency: 9999}]}
  steps:
"""
RUN = '{{name: r{}, owner: "o:x", resources: {{gpuType: H, totalGPUs: 8}}, gpusPerPod: 8, work: {{duration: 1h}}}}'


def test_in_a_film_of_hundreds_every_reservation_carries_a_whole_forecast_when_somebody_looks() -> None:
    """More wait than are forecast at every step, and more than are played: all have one at the look in between, and at the end."""
    count = FORECAST_RUNS_MAX + 60
    steps = [
        f"  - at: {number}m\n    submit: [{', '.join(map(RUN.format, range(2 * number, 2 * number + 2)))}]\n"
        for number in range(count // 2)
    ]
    look = f"  - {{at: 2h15m, reservation: r{count - 2}, is: {{forecast: {{source: Predicted, deficitGPUs: 8, scope: H}}}}}}\n"
    text = QUEUE + "".join(steps) + f"  until: {count // 2 + 30}m\n  expect:\n" + look
    shown = play(read_scenario(text, "queue.yaml"))
    assert shown.ok, shown.failures[0]["differences"]
    told = [each["status"] for each in shown.result()["reservations"] if each["status"]["state"] == "Pending"]
    assert len(told) > count * 9 // 10
    for status in told:
        found = status["forecast"]
        assert found["p10"] <= found["p50"] <= found["p90"]
        assert found["asOf"] <= found["p10"]
        assert {"source", "confidence", "deficitGPUs", "scope", "remedies"} <= found.keys()
    again = play(read_scenario(text, "queue.yaml"))
    assert again.world.scheduler.head == shown.world.scheduler.head


def test_a_reservation_that_moved_keeps_its_forecast_until_there_is_a_newer_one() -> None:
    fold = ReservationHistory()
    made = ev.ReservationMade(
        run=key("r"), name="r-reservation", earliest_start=9, basis=Reason.Notice, reason=Reason.NoRoom, message="",
        domains=(), lien={}, envelopes=(), cut_from=None,
    )  # fmt: skip
    told = ev.Foreseen(run=key("r"), p10=7, p50=8, p90=9, source=Reason.Notice, why="so", play=5)
    moved = replace(made, name="r-reservation-2", reason=Reason.NotServed)
    story: tuple[ev.AnyEvent, ...] = (made, ev.Forecasted(runs=(told,)), moved)
    for at, event in enumerate(story):
        fold.take(at, event)
    found = fold.of(key("r"), 3)
    assert found is not None
    assert found["name"] == "r-reservation-2"
    assert found["status"]["forecast"]["why"] == "so"
