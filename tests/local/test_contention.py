"""Waiting and giving way through the daemon: real processes, a notice of a second or two, and the record that is left."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.stage import OWNER, Stage, budget_object, daemon, placed, run_object, until

from fairlease.local.socket.protocol import CallFailed

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_lottery.py"
CONFIG = "flavor: H100\nmetricsPort: 0\ngrace: 1s\nnodes: [{name: n0, gpus: 8}]\nnotice: 2s\nminRuntime: 1ms\n"
PATIENT = CONFIG.replace("notice: 2s", "notice: 1h")


def staged(tmp_path: Path, config: str, metrics_port: int = 0) -> Iterator[Stage]:
    path = tmp_path / "config.yaml"
    path.write_text(config)
    with daemon(tmp_path / "home", config=str(path), gpus=None, flavor=None, metrics_port=metrics_port) as stage:
        stage.call("budgets.apply", objects=[budget_object("other", "org:other")])
        yield stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    yield from staged(tmp_path, CONFIG)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Stage]:
    yield from staged(tmp_path, PATIENT)


def submit(stage: Stage, name: str, gpus: int, **spec: Any) -> str:  # noqa: ANN401 - any field of a run
    answer = stage.call("submit", objects=[run_object(name, gpus, "sleep 60", **spec)])
    return "Placed" if placed(answer["runs"][0]["status"]) else "Waits"


def test_a_run_that_waits_has_a_date_and_is_served_when_it_comes(stage: Stage, tmp_path: Path) -> None:
    assert [submit(stage, name, 4) for name in ("one", "two")] == ["Placed", "Placed"]
    assert submit(stage, "claim", 4, owner="org:other") == "Waits"
    (held,) = stage.call("reservations")["reservations"]
    assert (held["name"], held["status"]["state"], held["status"]["reason"]) == (
        "claim-reservation",
        "Pending",
        "Notice",
    )
    assert held["spec"]["intendedSlice"]["nodes"] == ["n0"]
    assert stage.call("status")["reservations"]["Pending"] == 1

    stage.runs("claim")
    assert stage.call("reservations")["reservations"] == []
    (over,) = stage.call("reservations", all=True)["reservations"]
    assert stage.call("reservations", run="claim", all=True)["reservations"] == [over]
    assert over["status"]["state"] == "Released"

    (outcome,) = stage.call("outcomes")["outcomes"]
    (cut,) = outcome["spec"]["actions"]
    victim = cut["run"].partition("/")[2]
    assert stage.ends(victim)["reason"] == "RandomPreempt"
    (told,) = stage.call("explain", run=victim)["preemptions"]
    assert (told["claim"], told["outcome"], told["seed"]) == ("claim", "outcome-1", outcome["spec"]["lottery"]["seed"])
    assert sorted(told["conflictSet"]) == ["one", "two"]
    assert told["claimOwner"] == "org:other"
    assert [(each["run"], each["odds"]) for each in told["tokens"]] == [("one", "1/2"), ("two", "1/2")]
    assert stage.call("outcomes", run=victim)["outcomes"] == [outcome]
    assert stage.call("outcomes", name="outcome-1")["outcomes"] == [outcome]

    report = stage.call("forecast.report")
    assert (report["insideP10P90"], report["beforeP50"], report["beforeP90"]) == (1, 1, 1), "a date that was kept"

    path = tmp_path / "outcomes.json"
    path.write_text(json.dumps(stage.call("outcomes")))
    checked = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0
    assert checked.stdout.startswith("outcome-1: as recorded (1 of 2 tokens drawn)\nthe last has the digest ")
    stage.audited()


def test_a_dry_run_of_a_resolution_writes_nothing_and_the_real_one_does_what_it_said(patient: Stage) -> None:
    submit(patient, "idler", 4, opportunistic=True)
    submit(patient, "rigid", 4, runtime={"checkpoint": "1m"})
    asked = {"flavor": "H100", "gpus": 4, "pod": 4, "location": {"region": "local"}}
    head = patient.call("status")["head"]
    would = patient.call("resolve", **asked, dryRun=True)
    assert patient.call("status")["head"] == head
    patient.runs("idler")
    done = patient.call("resolve", **asked, reason="new fans")
    assert done["cuts"] == would["cuts"]
    assert [(cut["run"], cut["reason"], cut["then"]) for cut in done["cuts"]] == [
        ("idler", "ReclaimOpportunistic", "Failed")
    ]
    assert done["outcome"]["spec"]["byHand"] == {
        "by": patient.call("status")["you"]["user"],
        "reason": "new fans",
        "gpus": 4,
        "gpusPerPod": 4,
    }
    assert patient.ends("idler")["message"].endswith("new fans) (outcome-1)")
    assert patient.call("resolve", **asked)["outcome"] is None, "so many are free already"
    whole = patient.call("resolve", flavor="H100", gpus=8)
    assert [(cut["run"], cut["reason"], cut["then"]) for cut in whole["cuts"]] == [
        ("rigid", "RandomPreempt", "asks again")
    ]
    assert [each["run"] for each in whole["started"]] == ["rigid"], "nothing holds what was freed"
    patient.audited()


def test_a_spare_that_is_dropped_takes_no_rank_along(patient: Stage) -> None:
    submit(patient, "careful", 4, gpusPerPod=2, sparesPerGroup=2, locality={"groupGPUs": 4})
    ranks = until(lambda: found if len(found := patient.supervisors()) == 2 else None)
    done = patient.call("resolve", flavor="H100", gpus=4, pod=2)
    assert [(cut["run"], cut["reason"]) for cut in done["cuts"]] == [("careful", "DropSpare")]
    leases = patient.call("leases", run="careful")["leases"]
    closed = [(lease["spec"]["slice"]["role"], lease["status"].get("closureReason")) for lease in leases]
    assert closed == [("Active", None), ("Active", None), ("Spare", "DropSpare")]
    assert patient.call("status")["freeGPUs"] == 4
    assert patient.call("show", run="careful")["status"]["width"]["allocated"] == 4
    assert patient.supervisors() == ranks
    patient.audited()


def test_only_cuts_that_were_made_are_counted(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def counted(stage: Stage) -> set[tuple[str, str]]:
        page = urllib.request.urlopen(stage.call("status")["metrics"]).read().decode()  # noqa: S310 - our own address
        return set(re.findall(r"^fairlease_(resolver_\w+_total) (\S+)$", page, re.MULTILINE))

    for stage in staged(tmp_path, PATIENT, port):
        submit(stage, "rigid", 8)
        none = counted(stage)
        assert {value for _, value in none} == {"0.0"}
        stage.call("resolve", flavor="H100", gpus=8, dryRun=True)
        with pytest.raises(CallFailed):
            stage.call("resolve", flavor="H100", gpus=9)
        stage.call("plan", object=run_object("wish", 8, "true", owner="org:other"))
        assert counted(stage) == none, "what was only thought through is not counted"
        stage.call("resolve", flavor="H100", gpus=8)
        assert counted(stage) - none == {("resolver_invocations_total", "1.0"), ("resolver_lottery_draws_total", "1.0")}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"flavor": "A100", "gpus": 1}, "NotFound"),
        ({"flavor": "H100", "gpus": 1, "location": {"region": "mars"}}, "NotFound"),
        ({"flavor": "H100", "gpus": 9}, "NeverFits"),
        ({"flavor": "H100", "gpus": 6, "pod": 4}, "InvalidRequest"),
        ({"flavor": "H100", "gpus": 0}, "InvalidRequest"),
        ({"flavor": "H100", "gpus": 8, "pod": 0}, "InvalidRequest"),
        ({"flavor": "H100", "gpus": 8, "group": -8}, "InvalidRequest"),
        ({"flavor": "H100", "gpus": 8, "group": 0}, "InvalidRequest"),
        ({"flavor": "H100", "gpus": 8, "pod": 4, "group": 6}, "InvalidRequest"),
        ({"flavor": "H100", "gpus": 8, "reason": "x" * 201}, "InvalidRequest"),
        ({"flavor": "H100", "gpus": "8"}, "InvalidRequest"),
    ],
)
def test_what_cannot_be_freed_is_refused_and_nobody_is_touched(
    patient: Stage, asked: dict[str, Any], reason: str
) -> None:
    submit(patient, "rigid", 8)
    with pytest.raises(CallFailed) as caught:
        patient.call("resolve", **asked)
    assert caught.value.error.reason == reason
    patient.runs("rigid")


def test_a_group_that_holds_no_whole_pods_is_told_as_such(patient: Stage) -> None:
    with pytest.raises(CallFailed) as caught:
        patient.call("resolve", flavor="H100", gpus=8, pod=2, group=3)
    assert caught.value.error.message == "groups of 3 GPUs do not divide into pods of 2"


def test_names_nobody_knows_are_not_found(patient: Stage) -> None:
    unknown = (
        ("reservations", {"run": "nobody"}),
        ("outcomes", {"name": 'outcome-9"'}),
        ("outcomes", {"run": "nobody"}),
    )
    for verb, args in unknown:
        with pytest.raises(CallFailed) as caught:
            patient.call(verb, **args)
        assert caught.value.error.reason == "NotFound"


def test_a_plan_names_the_date_and_changes_that_start_when_they_are_made(patient: Stage) -> None:
    submit(patient, "first", 4, runtime={"maxDuration": "30m"})
    wish = run_object("wish", 8, "sleep 60", owner="org:other", gpusPerPod=1)
    head = patient.call("status")["head"]
    plan = patient.call("plan", object=wish)
    assert patient.call("status")["head"] == head
    assert (plan["starts"], plan["verdict"]) == (False, "Reserved")
    assert plan["reservation"]["status"]["reason"] == "HardFacts", "the limit of the run that is in the way"
    changes = {each["change"]: each for each in plan["changes"]}
    assert (changes["FewerGPUs"]["field"], changes["FewerGPUs"]["to"]) == ("resources.totalGPUs", 4)
    assert changes["FewerGPUs"]["starts"]

    submit(patient, "wish", 8, owner="org:other", gpusPerPod=1)
    explained = patient.call("explain", run="wish")
    assert explained["reservation"]["spec"]["earliestStart"] == explained["status"]["earliestStart"]
    assert {each["change"] for each in explained["changes"]} >= {"FewerGPUs"}

    late = run_object("late", 4, "sleep 60", owner=OWNER)
    shorter = next(each for each in patient.call("plan", object=late)["changes"] if each["change"] == "Shorter")
    late["spec"]["runtime"] = {"maxDuration": shorter["to"]}
    late["metadata"]["name"] = "late-but-short"
    assert placed(patient.call("submit", objects=[late])["runs"][0]["status"])


def test_a_run_that_could_never_fit_is_told_what_would(patient: Stage) -> None:
    huge = run_object("huge", 16, "true", gpusPerPod=1)
    plan = patient.call("plan", object=huge)
    assert (plan["verdict"], plan["reservation"]) == ("NeverFits", None)
    assert [(each["change"], each["to"]) for each in plan["changes"]] == [("FewerGPUs", 8)]


def test_a_quote_counts_spares_with_a_limit_and_without(patient: Stage) -> None:
    spared = {"gpusPerPod": 1, "locality": {"groupGPUs": 2}, "sparesPerGroup": 1}
    for runtime, bound in (({}, None), ({"maxDuration": "2h"}, 6)):
        plan = patient.call("plan", object=run_object("spared", 2, "true", runtime=runtime, **spared))
        assert (plan["starts"], plan["width"]) == (True, 2)
        assert (plan["worstCase"]["gpus"], plan["worstCase"]["gpuHours"]) == (3, bound)
        assert sum(payer["gpus"] for payer in plan["payers"]) == 3


def test_a_quote_for_an_elastic_run_tells_what_it_may_grow_to(patient: Stage) -> None:
    elastic = {"gpusPerPod": 1, "malleable": {"minTotalGPUs": 2, "maxTotalGPUs": 6, "stepGPUs": 2}}
    for runtime, bound in (({}, None), ({"maxDuration": "2h"}, 12)):
        plan = patient.call("plan", object=run_object("grower", 4, "true", runtime=runtime, **elastic))
        assert (plan["worstCase"]["gpus"], plan["grows"]) == (4, {"gpus": 6, "gpuHours": bound})
    assert patient.call("plan", object=run_object("rigid", 4, "true", gpusPerPod=1))["grows"] is None
