"""Runs that wait, with the real daemon: what they lack, what would help, dates that were lost, and who would be drawn."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.machine import Machine

BUDGET = """apiVersion: rq.davidlangworthy.io/v1
kind: Budget
metadata: {{name: {name}}}
spec:
  owner: {owner}
  envelopes: [{{name: e, flavor: H100, selector: {{region: "*"}}, concurrency: {gpus}, lending: {{allow: {lends}}}}}]
---
"""
RUN = """apiVersion: rq.davidlangworthy.io/v1
kind: Run
metadata: {{name: {name}}}
spec:
  owner: {owner}
  resources: {{gpuType: H100, totalGPUs: {gpus}}}
  command: [sleep, "600"]
"""


def money(name: str, owner: str, gpus: int, lends: str = "false") -> str:
    return BUDGET.format(name=name, owner=owner, gpus=gpus, lends=lends)


def asked(name: str, owner: str, gpus: int, more: str = "") -> str:
    return RUN.format(name=name, owner=owner, gpus=gpus) + (f"  {more}\n" if more else "")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        user = Machine(Path(folder))
        user.do("up", "--gpus", "8", "--flavor", "H100", "--metrics-port", "0")
        try:
            user.do("budgets", "apply", "-f", "-", stdin=money("a", "org:a", 4) + money("b", "other:b", 8, "true"))
            yield user
        finally:
            user.do("down", "--end")


def rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_to_borrow_is_told_with_all_that_it_needs(machine: Machine) -> None:
    told = rows(machine.do("plan", "-f", "-", stdin=asked("x", "org:a", 6), code=1))
    change = ["borrow from other:b, with allowBorrow: true", "now", "no bound", "funding.sponsors, funding.allowBorrow"]
    assert change in told


def test_a_sponsor_that_is_named_in_vain_stands_in_the_money_with_what_is_missing(machine: Machine) -> None:
    named = asked("x", "org:a", 6, 'funding: {sponsors: ["other:b", "ghost:x"]}')
    told = rows(machine.do("plan", "-f", "-", stdin=named, code=1))
    assert ["borrow from other:b, with allowBorrow: true", "now", "no bound", "funding.allowBorrow"] in told
    money = [row[1:4] + row[7:] for row in told if row[1:2] == ["sponsor"]]
    assert money == [
        ["sponsor", "b/e", "other:b", "BorrowLimit", "set funding.allowBorrow: true"],
        ["sponsor", "-", "ghost:x", "NoEnvelope", "name an owner that has a Budget with an envelope of this flavor"],
    ]
    limited = asked("x", "org:a", 8, 'funding: {allowBorrow: true, sponsors: ["other:b"], maxBorrowGPUs: 2}')
    told = rows(machine.do("plan", "-f", "-", stdin=limited, code=1))
    assert ["borrow up to 4 GPUs instead of 2", "now", "no bound", "funding.maxBorrowGPUs"] in told


def test_what_lacks_money_and_fits_nowhere_is_told_both_in_plan_eta_and_explain(machine: Machine) -> None:
    beyond = asked("beyond", "org:a", 16, "gpusPerPod: 16")
    plan = machine.do("plan", "-f", "-", stdin=beyond, code=1)
    machine.do("submit", "-f", "-", "--wait-for-nodes", stdin=beyond)
    for told in (plan, machine.do("eta", "beyond"), machine.do("explain", "beyond")):
        assert "16 of 16 GPUs find no payer" in told
        assert "no node could hold a pod of 16 GPUs" in told
    assert "ask for 4 GPUs instead of 16, in pods of 4 instead of 16" in plan
    machine.do("cancel", "beyond")


def test_a_run_that_ended_is_not_canceled_and_it_is_told_how_and_when_it_ended(machine: Machine) -> None:
    machine.do("submit", "-f", "-", stdin=asked("short", "org:a", 1))
    machine.do("cancel", "short")
    at = machine.ask("show", "short")["status"]["endedAt"]
    assert f"short ended already, Canceled at {at}" in machine.do("cancel", "short", code=2)


@pytest.mark.parametrize("verb", ["eta", "explain", "show", "cancel"])
def test_a_name_that_is_no_text_is_refused(machine: Machine, verb: str) -> None:
    """Bytes that are no UTF-8 come from a shell as half a surrogate, which nobody can send."""
    told = machine.do(verb, "\udcff", code=2)
    assert "name '\\udcff' has characters that no name has" in told


def test_a_forecast_is_untested_before_anybody_started_and_a_blocked_reservation_has_no_date(machine: Machine) -> None:
    machine.do("submit", "-f", "-", stdin=asked("old", "other:b", 6))
    waits = asked("waits", "org:a", 4)
    untested = "untested: no run that was forecast has started yet"
    assert untested in machine.do("plan", "-f", "-", stdin=waits, code=1)
    machine.do("submit", "-f", "-", stdin=waits)
    assert untested in machine.do("eta", "waits")
    assert untested in machine.do("explain", "waits")
    assert machine.do("forecast", "report") == "no run that was forecast has started yet\n"
    date = machine.ask("reservations", "waits")["reservations"][0]["spec"]["earliestStart"]

    machine.do("budgets", "apply", "-f", "-", stdin=money("a", "org:a", 2))
    for command in (("list",), ("eta", "waits"), ("eta", "--owner", "org"), ("reservations",)):
        told = machine.do(*command)
        assert "blocked" in told.lower(), command
        assert date not in told, command
    assert "ConcurrencyCapExceeded" in machine.do("reservations")
    assert "Blocked, no date (ConcurrencyCapExceeded)" in machine.do("eta", "waits")
    told = machine.do("explain", "waits").partition("Dates it was given")[0].partition("Story")[0]
    assert "its reservation is Blocked, and has no date: ConcurrencyCapExceeded" in told
    assert date not in told
    assert "countdownSeconds" not in machine.ask("reservations", "waits")["reservations"][0]["status"]
    assert machine.do("eta", "--owner", "other") == "no run of other waits, nor of any owner below it\n"
    machine.do("cancel", "old", "waits")


def test_a_dry_run_names_who_stands_in_the_lottery_with_the_odds() -> None:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        user = Machine(Path(folder))
        config = Path(folder) / "config.yaml"
        config.write_text("minRuntime: 0s\n")
        user.do("up", "--gpus", "8", "--flavor", "H100", "--metrics-port", "0", "--config", str(config))
        try:
            user.do("budgets", "apply", "-f", "-", stdin=money("a", "org:a", 8) + money("b", "other:b", 8))
            for name, owner in (("one", "org:a"), ("two", "other:b"), ("three", "other:b")):
                user.do("submit", "-f", "-", stdin=asked(name, owner, 2))
            told = user.do("resolve", "--scope", "flavor=H100", "--gpus", "4", "--dry-run")
            assert told.index("In the lottery") < told.index("nothing was written")
            tokens = rows(told.partition("drawn first:\n")[2])[:4]
            assert tokens == [
                ["OWNER", "RUN", "ATTEMPT", "GPUS", "ODDS"],
                ["org:a", "one", "1", "2", "1/2"],
                ["other:b", "three", "1", "2", "1/4"],
                ["other:b", "two", "1", "2", "1/4"],
            ]
            refused = user.do("resolve", "--scope", "flavor=A100", "--gpus", "4", "--dry-run", code=2)
            assert "no node has flavor=A100" in refused
            assert "look at `fairlease nodes -o json`" in refused
        finally:
            user.do("down", "--end")
