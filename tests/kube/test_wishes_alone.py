"""What people change while a run lives, and what its pods see of that: width, sponsors, drills, maintenance; each as who may."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from tests.kube.plugin import Person, bind
from tests.kube.stage import SILENT, Controller, Team, eventually
from tests.local.mailbox import free_port
from tools.controlplane import Plane

PORT = free_port()
ELASTIC = {"minTotalGPUs": 4, "maxTotalGPUs": 16, "stepGPUs": 4, "desiredTotalGPUs": 8}
SETTINGS = "nodeDebounce: 1s\nminRuntime: 0s\ngrowCooldown: 1s\n"
FLAGS = ("--metrics-port", str(PORT))


@pytest.fixture
def editor(cluster: Plane, team: Team) -> Person:
    """A researcher: the role `edit` in the team's namespace, and nothing else."""
    name = f"ed-{team.namespace}"
    bind(cluster, name, "edit", team.namespace)
    return Person(cluster, name, team.namespace)


def members(team: Team, run: str) -> dict[str, Any]:
    answer = team.api.get(f"/api/v1/namespaces/{team.namespace}/configmaps/run-{run}")
    return dict(json.loads(answer.body["data"]["members.json"])) if answer.ok else {}


def metric(name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as page:
        lines = page.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"fairlease_{name} ")).split()[1])


def width(team: Team, run: str) -> int:
    return int(team.status(run).get("width", {}).get("allocated", 0))


# --- width, and what pods see of it ----------------------------------------------------------------------------------------


def test_pods_are_told_who_is_in_and_when_that_changes(team: Team, editor: Person) -> None:
    team.submit("wide", 8, malleable=ELASTIC, locality={"groupGPUs": 4})
    team.reaches("wide", "Running")
    first = eventually(lambda: members(team, "wide"))
    assert (first["generation"], first["worldSize"], first["attempt"]) == (1, 8, 1)
    assert [each["rank"] for each in first["members"]] == list(range(8))
    assert first["master"] == {"address": f"a1-r0.run-wide.{team.namespace}.svc", "port": 29500}
    pod = team.pods()[first["members"][3]["pod"]]
    assert pod["spec"]["hostname"] == first["members"][3]["host"] == "a1-r3"
    assert pod["spec"]["nodeName"] == first["members"][3]["node"]
    env = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
    (mount,) = [each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] == "fairlease-run"]
    assert env["FAIRLEASE_MEMBERS"] == f"{mount['mountPath']}/members.json"
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "fairlease-run"]
    assert volume["configMap"]["name"] == "run-wide"

    assert "8 → 4 GPUs" in editor.sees("shrink", "wide", "--to", "4")
    eventually(lambda: members(team, "wide")["worldSize"] == 4)
    assert members(team, "wide")["generation"] == 2
    assert "12 desired" in editor.sees("resize", "wide", "--to", "12")
    eventually(lambda: members(team, "wide")["worldSize"] == 12)
    assert [each["rank"] for each in members(team, "wide")["members"]][:4] == [0, 1, 2, 3]
    assert members(team, "wide")["generation"] > 2


def test_a_width_off_the_grid_is_refused_with_the_nearest(team: Team, editor: Person) -> None:
    team.submit("steps", 8, malleable={**ELASTIC, "maxTotalGPUs": 15}, locality={"groupGPUs": 4})
    team.reaches("steps", "Running")
    said = editor.sees("shrink", "steps", "--to", "6", code=2)
    assert "6 GPUs are not on the step grid; nearest: 4 and 8" in said
    patched = editor.types(
        "kubectl", "patch", "run", "steps", "--type=merge", "-p", '{"spec":{"malleable":{"desiredTotalGPUs":15}}}'
    )
    assert patched.returncode != 0
    assert "nearest: 12" in patched.stderr
    assert "would be wider" in editor.sees("shrink", "steps", "--to", "12", code=2)
    assert (
        editor.types("kubectl", "scale", "run/steps", "--replicas=6").returncode == 0
    )  # a Scale shows no grid to the server
    eventually(lambda: "nearest: 4 and 8" in team.status("steps").get("message", ""))
    eventually(lambda: "InvalidRequest" in team.events("steps"))
    assert editor.types("kubectl", "scale", "run/steps", "--replicas=4").returncode == 0
    eventually(lambda: width(team, "steps") == 4)
    eventually(lambda: "nearest" not in team.status("steps").get("message", ""))
    free = '{"spec":{"malleable":{"desiredTotalGPUs":null}}}'
    assert editor.types("kubectl", "patch", "run", "steps", "--type=merge", "-p", free).returncode == 0
    eventually(lambda: width(team, "steps") == 12)


def test_what_pods_are_told_is_mended_and_a_strangers_object_is_left_alone(
    cluster: Plane, mind: Controller, team: Team, editor: Person
) -> None:
    for name in ("kept", "lost", "same"):
        team.submit(name, 2, malleable={"minTotalGPUs": 1, "maxTotalGPUs": 2, "stepGPUs": 1})
        team.reaches(name, "Running")
    assert editor.asks("shrink", "same", "--to", "1")["width"]["allocated"] == 1
    eventually(lambda: members(team, "same")["worldSize"] == 1)
    before = {name: members(team, name) for name in ("kept", "lost", "same")}
    where = f"/api/v1/namespaces/{team.namespace}/configmaps/run-kept"
    mind.kill()
    assert cluster.api(editor.name).patch(where, {"data": {"members.json": "{}"}}).ok
    assert team.api.delete(where.replace("kept", "lost")).ok
    mind.start()
    eventually(lambda: members(team, "kept") == before["kept"])
    eventually(lambda: members(team, "lost") == before["lost"])
    assert members(team, "same")["generation"] == 2
    own = {"metadata": {"name": "run-mine"}, "data": {"members.json": "my own"}}
    assert team.api.post(f"/api/v1/namespaces/{team.namespace}/configmaps", own).ok
    team.submit("mine", 2)
    team.reaches("mine", "Running")
    eventually(lambda: "is not ours" in team.status("mine").get("message", ""))
    assert team.api.get(where.replace("kept", "mine")).body["data"] == own["data"]


# --- swaps -----------------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_swapped_keeps_its_name_and_the_others_learn_where_it_is(team: Team, editor: Person) -> None:
    team.submit("safe", 8, pod=4, sparesPerGroup=4, locality={"groupGPUs": 8})
    team.reaches("safe", "Running")
    before = eventually(lambda: members(team, "safe"))
    spares = {"group": 0, "wanted": 4, "held": 4, "ready": 4}
    eventually(lambda: team.status("safe")["spares"]["groups"] == [spares])
    moved = before["members"][1]
    told = editor.asks("drill", "safe", "--rank", "1")
    assert (told["rank"], told["from"]["node"], told["attempt"]) == (1, moved["node"], 1)
    assert told["decidedMs"] <= told["runningMs"]
    assert told["spare"] == moved["node"]
    after = eventually(lambda: found if (found := members(team, "safe"))["generation"] == 2 else None)
    assert (after["worldSize"], after["members"][0]) == (2, before["members"][0])
    assert after["members"][1]["host"] == moved["host"]
    assert after["members"][1]["address"] == moved["address"]
    assert after["members"][1]["node"] == told["to"]["node"] != moved["node"]
    pod = team.pods()[after["members"][1]["pod"]]
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("a1-r1", "run-safe")
    assert {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}["WORLD_SIZE"] == "2"
    assert team.status("safe")["attempt"] == 1
    eventually(lambda: metric("swap_running_seconds_count") >= 1)
    spare = next(name for name, pod in team.pods().items() if pod["spec"]["containers"][0]["name"] == "spare")
    where = eventually(lambda: team.bound().get(spare))
    assert team.api.patch(f"/api/v1/nodes/{where}", {"metadata": {"annotations": {SILENT: ""}}}).ok
    silent = {"type": "Ready", "status": "False", "reason": "Test", "message": "", "lastHeartbeatTime": None}
    assert team.api.patch(f"/api/v1/nodes/{where}/status", {"status": {"conditions": [silent]}}).ok
    eventually(lambda: team.status("safe")["spares"]["ready"] == 0)
    assert "has no rank 7" in editor.sees("drill", "safe", "--rank", "7", code=2)


def test_a_drill_without_a_spare_is_refused_and_nothing_moves(team: Team, editor: Person) -> None:
    team.submit("bare", 2)
    team.reaches("bare", "Running")
    where = team.bound()
    assert "no spare that is ready" in editor.sees("drill", "bare", code=2)
    assert "there is no run" in editor.sees("drill", "nobody", code=2)
    assert team.bound() == where


# --- money -----------------------------------------------------------------------------------------------------------------


def test_a_sponsor_that_is_added_by_an_editor_starts_the_run_that_waited(
    cluster: Plane, team: Team, editor: Person
) -> None:
    lender = Team(cluster, nodes=1)
    lender.lends(team, to=[team.owner], maxConcurrency=8)
    team.submit("poor", 4)
    eventually(lambda: team.phase("poor") == "Pending")
    added = editor.asks("sponsors", "add", "poor", lender.owner, "--max", "4")
    assert (added["changed"], added["sponsorNames"], added["maxBorrowGPUs"]) == (True, [lender.owner], 4)
    status = team.reaches("poor", "Running")
    assert status["funding"]["sponsors"][0]["owner"] == lender.owner
    assert status["observedGeneration"] == 2
    removed = editor.asks("sponsors", "remove", "poor", lender.owner)
    assert removed["sponsorNames"] == []
    assert "is no sponsor" in editor.sees("sponsors", "remove", "poor", lender.owner, code=2)
    assert team.phase("poor") == "Running"
    eventually(lambda: "FundingSet" in team.events("poor"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resources": {"totalGPUs": 4}}, "spec.resources"),
        ({"runtime": {"maxDuration": "9h"}}, "spec.runtime"),
        (
            {"template": {"spec": {"containers": [{"name": "work", "image": "example.invalid/other:2"}]}}},
            "spec.template",
        ),
        ({"malleable": {"stepGPUs": 2}}, "spec.malleable.stepGPUs"),
        ({"sparesPerGroup": 4, "opportunistic": True}, "spec.sparesPerGroup, spec.opportunistic"),
    ],
)
def test_nothing_else_of_a_run_may_be_edited(team: Team, editor: Person, change: dict[str, Any], words: str) -> None:
    team.submit("fixed", 8, malleable=ELASTIC, locality={"groupGPUs": 4})
    patch = editor.types("kubectl", "patch", "run", "fixed", "--type=merge", "-p", json.dumps({"spec": change}))
    assert patch.returncode != 0
    assert f"{words}: of a Run only spec.funding and spec.malleable.desiredTotalGPUs may change" in patch.stderr
    funding = json.dumps({"spec": {"funding": {"allowBorrow": True, "sponsors": ["org:rich"]}}})
    assert editor.types("kubectl", "patch", "run", "fixed", "--type=merge", "-p", funding).returncode == 0


# --- maintenance -----------------------------------------------------------------------------------------------------------


def test_an_administrator_frees_gpus_by_hand_and_sees_first_what_would_happen(
    cluster: Plane, team: Team, editor: Person
) -> None:
    team.submit("first", 8, pod=8)
    team.reaches("first", "Running")
    team.submit("second", 8, pod=8, runtime={"checkpoint": "1s"})
    team.reaches("second", "Running")
    name = f"ada-{team.namespace}"
    bind(cluster, name, "fairlease-administrator")
    admin = Person(cluster, name, team.namespace)
    scope = ("resolve", "--scope", f"flavor={team.flavor}", "--gpus", "8", "--pod", "8")
    would = admin.asks(*scope, "--dry-run")
    assert (would["dryRun"], len(would["cuts"]), would["outcome"]["spec"]["byHand"]["by"]) == (True, 1, name)
    assert (team.phase("first"), team.phase("second")) == ("Running", "Running")
    for node in team.nodes:
        assert team.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}).ok
    done = admin.asks(*scope, "--reason", "new fans")
    (cut,) = done["cuts"]
    victim = cut["run"].partition("/")[2]
    assert done["outcome"]["spec"]["byHand"]["reason"] == "new fans"
    eventually(lambda: team.phase(victim) in ("Failed", "Pending"))
    (outcome,) = admin.asks("outcomes", done["outcome"]["name"])["outcomes"]
    assert outcome["spec"] == done["outcome"]["spec"]
    assert admin.asks("lottery", "verify", done["outcome"]["name"])["ok"] is True
    again = admin.asks(*scope)
    assert again["outcome"] is None
    refused = editor.runs(*scope)
    assert refused.returncode == 4, refused.stderr


def test_nobody_asks_for_maintenance_in_anothers_name(cluster: Plane, team: Team) -> None:
    name = f"liar-{team.namespace}"
    bind(cluster, name, "fairlease-administrator")
    wish = json.dumps({"id": "x", "at": 0, "flavor": team.flavor, "gpus": 8})
    marks = {"rq.davidlangworthy.io/resolve": wish, "rq.davidlangworthy.io/resolve-by": "somebody-else"}
    answer = cluster.api(name).patch("/api/v1/namespaces/fairlease-system", {"metadata": {"annotations": marks}})
    assert not answer.ok
    assert "expected the name of who asks" in answer.message
