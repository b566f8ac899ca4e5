"""What people are told on a cluster without asking, and when: forecasts, coming cuts, activations, money that runs low.

One control plane and one controller, whose notice is short and which posts to a mailbox; each test has nodes and money of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kube.conftest import CONFIG
from tests.kube.plugin import Person, bind
from tests.kube.stage import Controller, Team, audited, eventually
from tests.kube.tenancy import path
from tests.local.mailbox import Mailbox
from tools.controlplane import Plane

from fairlease.model.amount import format_instant, parse_instant

STRANGER = CONFIG.parent / "docs" / "verify_lottery.py"
SETTINGS = """
notice: 30s
minRuntime: 0s
growCooldown: 1s
nodeDebounce: 1s
notify: {{webhook: "http://127.0.0.1:{port}/hook"}}
"""
FORECAST = {"p10", "p50", "p90", "asOf", "source", "why", "deficitGPUs", "scope", "remedies"}


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()
    yield box
    box.close()


@pytest.fixture(scope="module")
def settings(mailbox: Mailbox) -> str:
    return SETTINGS.format(port=mailbox.port)


def onlooker(cluster: Plane, team: Team) -> Person:
    """Somebody who may look at one namespace, and not into the ledger."""
    name = f"eve-{team.namespace}"
    bind(cluster, name, "view", team.namespace)
    return Person(cluster, name, team.namespace)


def reader(cluster: Plane, team: Team) -> Person:
    """Somebody who may read everything of ours."""
    name = f"rita-{team.namespace}"
    bind(cluster, name, "fairlease-viewer")
    return Person(cluster, name, team.namespace)


def notes(team: Team, about: str, reason: str) -> list[str]:
    """What Events of a kind say at an object."""
    found = team.listed(f"/apis/events.k8s.io/v1/namespaces/{team.namespace}/events")
    return [each["note"] for each in found if (each["regarding"]["name"], each["reason"]) == (about, reason)]


def told(team: Team, run: str) -> dict[str, str]:
    """The files that the pods of a run find."""
    answer = team.api.get(f"/api/v1/namespaces/{team.namespace}/configmaps/run-{run}")
    return dict(answer.body.get("data") or {}) if answer.ok else {}


# --- time ------------------------------------------------------------------------------------------------------------------


def test_who_waits_is_told_when_and_who_is_in_the_way_is_warned_cut_and_told_why(
    cluster: Plane, team: Team, mailbox: Mailbox
) -> None:
    team.submit("first", 16, pod=8, runtime={"checkpoint": "1s"})
    team.reaches("first", "Running")
    team.submit("second", 16, pod=8)
    name = eventually(lambda: team.status("second").get("pendingReservation"))
    held = eventually(lambda: found if (found := team.reservation(name)).get("status", {}).get("forecast") else None)
    forecast = held["status"]["forecast"]
    assert forecast.keys() >= FORECAST
    assert forecast["p10"] <= forecast["p50"] <= forecast["p90"]
    assert (forecast["deficitGPUs"], forecast["scope"].split()[0]) == (16, team.flavor)
    assert 0 <= held["status"]["countdownSeconds"] <= 30
    assert team.status("second")["earliestStart"] == held["spec"]["earliestStart"]
    eta = onlooker(cluster, team).asks("eta", "second")["runs"][0]
    assert (eta["forecast"]["p50"], eta["reservation"]["name"]) == (forecast["p50"], name)

    assert "lacks 16" in eventually(lambda: notes(team, "second", "DeficitForecast"))[0]
    assert "certain to be cut then" in eventually(lambda: notes(team, "first", "CutComing"))[0]
    picture = json.loads(eventually(lambda: told(team, "first").get("notice.json")))
    assert (picture["claim"], picture["due"]) == (f"{team.namespace}/second", held["spec"]["earliestStart"])

    team.reaches("second", "Running", within_s=150)
    assert "second" in eventually(lambda: notes(team, "first", "RunCut"))[0]
    assert len(eventually(lambda: notes(team, "second", "ReservationActive"))) == 1
    eventually(lambda: "notice.json" not in told(team, "first"))
    expected = {"DeficitForecast", "CutComing", "ReservationActive", "RunCut", "RunStarted"}
    eventually(lambda: {each["kind"] for each in mailbox.got if team.namespace in each["key"]} >= expected)
    keys = [each["key"] for each in mailbox.got if team.namespace in each["key"]]
    assert [key for key, times in Counter(keys).items() if times > 1] == []
    uids = {
        each["regarding"].get("uid")
        for each in team.listed(f"/apis/events.k8s.io/v1/namespaces/{team.namespace}/events")
    }
    assert None not in uids, "kubectl describe finds Events by the uid"


def test_reservations_forecasts_outcomes_and_draws_are_shown_and_proved(cluster: Plane, team: Team) -> None:
    team.submit("first", 16, pod=8)
    team.reaches("first", "Running")
    team.submit("second", 16, pod=8)
    person, looks = onlooker(cluster, team), reader(cluster, team)
    eventually(lambda: person.asks("reservations")["reservations"])
    (row,) = person.asks("reservations", "second")["reservations"]
    assert (row["spec"]["runRef"]["name"], row["status"]["state"]) == ("second", "Pending")
    assert "RESERVATION" in person.sees("reservations")
    eventually(lambda: looks.asks("eta", "second")["runs"][0].get("forecast"))
    eventually(
        lambda: "forecast" in next(each for each in looks.asks("eta", "--all")["runs"] if "second" in each["name"])
    )
    (plan,) = looks.asks("plan", "-f", looks.file(team, "third", gpus=16), code=1)["plans"]
    assert plan["forecast"].keys() >= {"p10", "p50", "p90", "confidence", "source"}
    team.reaches("second", "Running", within_s=150)
    (past,) = eventually(
        lambda: [
            each
            for each in person.asks("reservations", "second", "--all")["reservations"]
            if each["status"]["state"] == "Released"
        ]
    )
    assert past["status"]["forecast"]["p50"]
    (outcome,) = eventually(lambda: looks.asks("outcomes", "--run", "second")["outcomes"])
    assert [cut["run"] for cut in outcome["spec"]["actions"]] == [f"{team.namespace}/first"]
    verified = looks.asks("lottery", "verify")
    assert verified["ok"] is True
    assert outcome["name"] in [each["name"] for each in verified["outcomes"]]
    listed = cluster.folder / "outcomes.json"
    listed.write_text(cluster.kubectl("get", "resolveroutcomes", "-o", "json").stdout)
    stranger = subprocess.run([sys.executable, "-I", STRANGER, listed], capture_output=True, text=True, check=False)
    assert stranger.returncode == 0, stranger.stdout
    report = looks.asks("forecast", "report", "--owner", team.owner)
    assert report["forecasts"] >= 1
    assert "STARTS" in looks.sees("forecast", "report")


def test_a_forecast_moves_when_facts_change_and_says_why(team: Team) -> None:
    team.submit("long", 16, pod=8, runtime={"maxDuration": "2h"})
    team.reaches("long", "Running")
    team.submit("next", 16, pod=8, opportunistic=True)
    found = eventually(lambda: team.status("next"))
    assert found["phase"] == "Pending"
    team.submit("paid", 16, pod=8)
    name = eventually(lambda: team.status("paid").get("pendingReservation"))
    first = eventually(lambda: team.reservation(name).get("status", {}).get("forecast"))
    team.api.delete(path("Run", team.namespace, "long"))
    team.reaches("paid", "Running")
    eventually(lambda: team.reservation(name)["status"]["state"] == "Released")
    assert parse_instant(team.status("paid")["startedAt"]) <= parse_instant(first["p90"])


def test_a_run_that_could_not_start_in_time_is_told_at_the_run_and_to_the_webhook_once(
    team: Team, mailbox: Mailbox
) -> None:
    team.submit("first", 16, pod=8)
    team.reaches("first", "Running")
    soon = format_instant(round(time.time()) * 1000 + 4_000)
    team.submit("late", 16, pod=8, runtime={"latestStart": soon})
    team.reaches("late", "Failed")
    noted = eventually(lambda: notes(team, "late", "LatestStartPassed"))
    assert any(each.startswith("Failed after 0 GPU-hours") for each in noted)

    def posted() -> list[dict[str, Any]]:
        return [each for each in mailbox.got if each["key"].startswith(f"LatestStartPassed/{team.namespace}/late/")]

    (told_so,) = eventually(posted)
    assert (told_so["run"], told_so["owner"]) == (f"{team.namespace}/late", team.owner)
    assert "its reservation is canceled" in told_so["text"]


# --- money -----------------------------------------------------------------------------------------------------------------


def test_an_owner_is_warned_before_hours_run_out_at_the_budget(team: Team) -> None:
    envelope = {
        "name": "tiny",
        "flavor": team.flavor,
        "selector": {"region": "*"},
        "concurrency": 16,
        "maxGPUHours": 0.02,
    }
    assert team.api.patch(path("Budget", team.namespace, "money"), {"spec": {"envelopes": [envelope]}}).ok
    eventually(
        lambda: team.api.get(path("Budget", team.namespace, "money")).body["status"]["usage"][0]["name"] == "tiny"
    )
    team.submit("brief", 16, pod=8, runtime={"maxDuration": "4s"})
    (note,) = eventually(lambda: notes(team, "money", "HoursLow"))
    assert "80 % of the hours of tiny are used" in note
    described = team.plane.kubectl("describe", "budget", "money", "-n", team.namespace).stdout
    assert "HoursLow" in described


def test_a_lender_is_warned_when_nearly_all_is_lent_and_sees_who_holds_it(cluster: Plane, team: Team) -> None:
    lender = Team(cluster, nodes=1)
    lender.lends(team, maxConcurrency=4)
    team.submit("poor", 4, funding={"allowBorrow": True, "sponsors": [lender.owner]})
    team.reaches("poor", "Running")
    (note,) = eventually(lambda: notes(lender, "money", "LendingCapNear"))
    assert "has lent 4 of 4 GPUs" in note
    person = reader(cluster, lender)
    (budget,) = person.asks("budgets", "lent", "money")["budgets"]
    assert [loan["run"] for loan in budget["envelopes"][0]["loans"]] == [f"{team.namespace}/poor"]
    (loan,) = person.asks("budgets", "borrowed", "--owner", team.owner)["loans"]
    assert (loan["gpus"], loan["lender"]) == (4, lender.owner)
    (row,) = person.asks("sponsors", "list", f"{team.namespace}/poor")["sponsors"]
    assert (row["owner"], row["gpus"]) == (lender.owner, 4)
    totals = person.asks("who-pays", "--sponsor", lender.owner)
    assert [each["name"] for each in totals["runs"]] == [f"{team.namespace}/poor"]
    lead = f"lead-{lender.namespace}"
    bind(cluster, lead, "admin", lender.namespace)
    bind(cluster, lead, "fairlease-viewer")
    stopped = Person(cluster, lead, lender.namespace).asks("budgets", "stop-lending", "money")
    assert (stopped["envelopes"], [each["run"] for each in stopped["loans"]]) == (["main"], [f"{team.namespace}/poor"])
    assert team.phase("poor") == "Running"


# --- over a restart --------------------------------------------------------------------------------------------------------


def test_a_controller_that_comes_back_repeats_nothing_and_forgets_nothing(
    cluster: Plane, mind: Controller, mailbox: Mailbox, team: Team
) -> None:
    team.submit("first", 16, pod=8, runtime={"checkpoint": "1s"})
    team.reaches("first", "Running")
    team.submit("second", 16, pod=8)
    eventually(lambda: notes(team, "first", "CutComing"))
    mine = f"/{team.namespace}/"
    eventually(lambda: [each for each in mailbox.keys if mine in each and "CutComing" in each])
    memory = "/api/v1/namespaces/fairlease-system/configmaps/fairlease-notices"
    eventually(lambda: f"CutComing{mine}" in team.api.get(memory).body.get("data", {}).get("told", ""))
    mind.kill()
    mind.start()
    team.reaches("second", "Running", within_s=150)
    eventually(lambda: notes(team, "second", "ReservationActive"))
    eventually(lambda: [each for each in mailbox.keys if mine in each and "RunCut" in each])
    times = Counter(each for each in mailbox.keys if mine in each)
    assert {key: count for key, count in times.items() if count > 1} == {}
    assert len(notes(team, "first", "CutComing")) <= 2  # at notice, and shortly before
    report = audited(cluster)
    assert report.ok, report


def test_what_the_webhook_does_not_take_is_sent_again(team: Team, mailbox: Mailbox) -> None:
    mailbox.answers = [503, 503]
    team.submit("first", 16, pod=8, runtime={"maxDuration": "1h"})
    team.reaches("first", "Running")
    team.submit("later", 16, pod=8)
    mine = f"/{team.namespace}/"
    eventually(lambda: [each for each in mailbox.keys if mine in each])
    assert mailbox.answers == []
