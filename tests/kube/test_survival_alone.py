"""Runs that survive and share, as their people see it with kubectl: spares, work that gives way, failed nodes, loans that end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kube.conftest import MakePlane, installed
from tests.kube.plugin import Person, bind
from tests.kube.stage import SILENT, Controller, Team, audited, eventually
from tests.kube.tenancy import path
from tools.controlplane import Plane

ELASTIC = {"minTotalGPUs": 4, "maxTotalGPUs": 12, "stepGPUs": 4}
ROLE = "rq.davidlangworthy.io/role"
RANK = "rq.davidlangworthy.io/rank"
SETTINGS = "nodeDebounce: 1s\nminRuntime: 0s\ngrowCooldown: 1s\nnotice: 1h\n"


@pytest.fixture(scope="module")
def cluster(make_plane: MakePlane) -> Iterator[Plane]:
    """With the scheduler that every cluster has: it would give GPUs away that nothing holds."""
    plane = installed(make_plane, scheduler=True)
    yield plane
    plane.stop()


@pytest.fixture
def editor(cluster: Plane, team: Team) -> Person:
    """A researcher: the role `edit` in the team's namespace, and nothing else."""
    name = f"ed-{team.namespace}"
    bind(cluster, name, "edit", team.namespace)
    return Person(cluster, name, team.namespace)


def by_role(team: Team, role: str) -> dict[str, dict[str, Any]]:
    """The pods of a role, by name."""
    return {name: pod for name, pod in team.pods().items() if pod["metadata"]["labels"].get(ROLE) == role}


def ranks(team: Team, run: str) -> dict[str, dict[str, Any]]:
    """The pods of a run's ranks that are bound and stay, by rank."""
    return {
        pod["metadata"]["labels"][RANK]: pod
        for name, pod in by_role(team, "Active").items()
        if name.startswith(f"{run}-") and pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
    }


def payers(team: Team, run: str) -> dict[str, tuple[str, str]]:
    """Who pays for each rank of a run, when that has been written: its pods are bound before."""
    names = {rank: pod["metadata"]["name"] for rank, pod in ranks(team, run).items()}
    eventually(lambda: team.leases().keys() >= set(names.values()))
    leases = {rank: team.leases()[name]["spec"] for rank, name in names.items()}
    return {rank: (each["paidByBudget"], each["paidByEnvelope"]) for rank, each in leases.items()}


def kills(team: Team, node: str) -> None:
    """The node goes, as a cloud takes a machine away."""
    assert team.api.delete(f"/api/v1/nodes/{node}").ok


# --- spares ----------------------------------------------------------------------------------------------------------------


def test_no_other_scheduler_gets_the_gpus_of_a_spare(cluster: Plane, team: Team) -> None:
    team.submit("safe", 8, pod=8, sparesPerGroup=8, locality={"groupGPUs": 8})
    team.reaches("safe", "Running")
    eventually(lambda: len(team.bound()) == 2)
    stranger = {
        "metadata": {"name": f"stranger-{team.namespace}"},
        "spec": {
            "nodeSelector": {"gpu.flavor": team.flavor},
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "x", "image": "example.invalid/x:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
            ],
        },
    }
    where = "/api/v1/namespaces/default/pods"
    made = cluster.api().post(where, stranger)
    assert made.ok, made.message
    mine = f"{where}/stranger-{team.namespace}"
    said = eventually(
        lambda: [
            each["message"]
            for each in cluster.api().get(mine).body["status"].get("conditions", ())
            if each["type"] == "PodScheduled" and each["status"] == "False"
        ]
    )
    assert "Insufficient nvidia.com/gpu" in said[0]
    team.api.delete(path("Run", team.namespace, "safe"))
    eventually(lambda: cluster.api().get(mine).body["spec"].get("nodeName"))
    cluster.api().ask("DELETE", mine, {"gracePeriodSeconds": 0})


def test_readiness_of_spares_is_told_by_group(team: Team) -> None:
    team.submit("groups", 8, pod=2, sparesPerGroup=2, locality={"groupGPUs": 4})
    team.reaches("groups", "Running")
    whole = [{"group": number, "wanted": 2, "held": 2, "ready": 2} for number in range(2)]
    eventually(lambda: team.status("groups")["spares"]["groups"] == whole)
    seen = team.plane.kubectl(
        "get", "run", "groups", "-n", team.namespace, "-o", "jsonpath={.status.spares.groups[1].ready}"
    ).stdout
    assert seen == "2"


# --- work that gives way ---------------------------------------------------------------------------------------------------


def test_opportunistic_work_gives_way_within_its_grace_and_is_queued_again(team: Team) -> None:
    team.submit("idle", 16, pod=8, opportunistic=True, marks={SILENT: ""}, runtime={"onPreempt": "Requeue"})
    eventually(lambda: len(team.bound()) == 2)
    team.submit("paid", 16, pod=8)

    def going() -> list[dict[str, Any]]:
        pods = [pod["metadata"] for pod in by_role(team, "Active").values()]
        return [each for each in pods if each.get("deletionTimestamp")]

    eventually(lambda: len(going()) == 2)
    assert {each["deletionGracePeriodSeconds"] for each in going()} == {10}
    for each in going():
        team.api.ask("DELETE", f"/api/v1/namespaces/{team.namespace}/pods/{each['name']}", {"gracePeriodSeconds": 0})
    team.reaches("paid", "Running")
    waits = team.status("idle")
    assert (waits["phase"], waits["attempt"]) == ("Pending", 2)
    assert set(team.closures().values()) == {"ReclaimOpportunistic"}
    team.plane.kubectl("delete", "run", "paid", "-n", team.namespace)
    eventually(lambda: len([name for name in team.bound() if name.startswith("idle-2")]) == 2)


def test_a_tenant_on_a_spare_goes_when_the_spare_is_needed(team: Team) -> None:
    team.submit("safe", 8, pod=8, sparesPerGroup=8, locality={"groupGPUs": 8})
    team.reaches("safe", "Running")
    eventually(lambda: len(team.bound()) == 2)
    team.submit("tenant", 8, pod=8, opportunistic=True, runtime={"onPreempt": "Requeue"})
    team.reaches("tenant", "Running")
    eventually(lambda: by_role(team, "Borrowed"))
    (spare,) = [
        each["spec"]["slice"]["nodes"][0] for each in team.leases().values() if each["spec"]["slice"]["role"] == "Spare"
    ]
    assert team.bound()["tenant-1-0"] == spare
    assert not by_role(team, "Spare"), "the tenant has its GPUs"
    kills(team, ranks(team, "safe")["0"]["spec"]["nodeName"])
    eventually(lambda: team.closures().get("tenant-1-0") == "ReclaimedBySpare")
    eventually(lambda: [node for name, node in team.bound().items() if name.startswith("safe-1")] == [spare])
    assert team.reaches("safe", "Running")["attempt"] == 1
    eventually(lambda: (team.phase("tenant"), team.status("tenant")["attempt"]) == ("Pending", 2))


def test_a_placeholder_comes_back_when_the_tenant_of_its_gpus_has_gone(team: Team) -> None:
    team.submit("safe", 8, pod=8, sparesPerGroup=8, locality={"groupGPUs": 8})
    team.reaches("safe", "Running")
    eventually(lambda: len(team.bound()) == 2)
    team.submit("tenant", 8, pod=8, opportunistic=True)
    team.reaches("tenant", "Running")
    assert not by_role(team, "Spare")
    team.plane.kubectl("delete", "run", "tenant", "-n", team.namespace)
    (placeholder,) = eventually(lambda: by_role(team, "Spare"))
    eventually(lambda: placeholder in team.bound())


# --- failed nodes ----------------------------------------------------------------------------------------------------------


def test_the_replacement_of_a_lost_rank_has_its_rank_name_and_payer_and_nobody_else_is_touched(
    cluster: Plane, mind: Controller
) -> None:
    assert mind.alive
    team = Team(cluster, nodes=4)
    envelopes = [
        {"name": name, "flavor": team.flavor, "selector": {"region": "*"}, "concurrency": gpus}
        for name, gpus in (("a", 12), ("b", 64))
    ]
    money = path("Budget", team.namespace, "money")
    assert team.api.patch(money, {"spec": {"envelopes": envelopes}}).ok
    eventually(lambda: len(team.api.get(money).body.get("status", {}).get("usage", ())) == 2)
    team.submit("safe", 16, pod=4, sparesPerGroup=8, locality={"groupGPUs": 16})
    team.reaches("safe", "Running")
    team.submit("other", 4, pod=4)
    team.reaches("other", "Running")
    eventually(lambda: len(team.bound()) == 7)
    before, paid = ranks(team, "safe"), payers(team, "safe")
    assert set(paid.values()) == {(f"{team.namespace}/money", "a"), (f"{team.namespace}/money", "b")}
    lost = before["1"]["spec"]["nodeName"]
    hit = {rank for rank, pod in before.items() if pod["spec"]["nodeName"] == lost}
    touched = {name for name, node in team.bound().items() if node == lost}
    versions = {name: pod["metadata"]["resourceVersion"] for name, pod in team.pods().items()}
    kills(team, lost)
    eventually(
        lambda: (
            (now := ranks(team, "safe")).keys() == before.keys()
            and all(now[rank]["metadata"]["uid"] != before[rank]["metadata"]["uid"] for rank in hit)
        )
    )
    after = ranks(team, "safe")
    for rank in hit:
        old, new = before[rank], after[rank]
        assert (new["spec"]["hostname"], new["spec"]["subdomain"]) == (
            old["spec"]["hostname"],
            old["spec"]["subdomain"],
        )
        assert new["spec"]["nodeName"] != lost
    assert payers(team, "safe") == paid
    assert team.status("safe")["attempt"] == 1
    eventually(lambda: list(team.closures().values()).count("Swap") >= len(hit))
    touched |= {name for name, why in team.closures().items() if why == "Swap"}
    now = {name: pod["metadata"]["resourceVersion"] for name, pod in team.pods().items()}
    assert {name: now.get(name) for name in versions if name not in touched} == {
        name: version for name, version in versions.items() if name not in touched
    }


def test_an_elastic_run_without_a_spare_loses_the_group_and_grows_again(team: Team) -> None:
    extra = Team(team.plane, nodes=1)
    team.submit("wide", 12, pod=4, malleable={**ELASTIC, "desiredTotalGPUs": 12}, locality={"groupGPUs": 4})
    team.reaches("wide", "Running")
    eventually(lambda: len(team.bound()) == 3)
    nodes = list(team.bound().values())
    lonely = min(set(nodes), key=nodes.count)
    labels = team.api.get(f"/api/v1/nodes/{lonely}").body["metadata"]["labels"]
    kills(team, lonely)
    eventually(lambda: team.status("wide")["width"]["allocated"] == 8)
    assert (team.phase("wide"), team.status("wide")["attempt"]) == ("Running", 1)
    spare = extra.nodes[0]
    keys = ("gpu.flavor", "fabric.domain", "region", "cluster")
    assert team.api.patch(f"/api/v1/nodes/{spare}", {"metadata": {"labels": {key: labels[key] for key in keys}}}).ok
    eventually(lambda: team.status("wide")["width"]["allocated"] == 12)
    assert "NodeFailure" in team.closures().values()


def test_a_rigid_run_without_a_spare_asks_again_and_has_its_reservation(cluster: Plane, mind: Controller) -> None:
    assert mind.alive
    team = Team(cluster, nodes=3)
    team.submit("hit", 16, pod=8, runtime={"checkpoint": "1s"})
    team.reaches("hit", "Running")
    team.submit("long", 8, pod=8, runtime={"maxDuration": "30m"})
    team.reaches("long", "Running")
    kills(team, team.bound()["hit-1-0"])
    held = eventually(lambda: team.status("hit").get("pendingReservation"))
    assert (team.phase("hit"), team.status("hit")["attempt"]) == ("Pending", 2)
    assert sorted(why for name, why in team.closures().items() if name.startswith("hit")) == ["Fail", "NodeFailure"]
    assert eventually(lambda: team.reservation(held))["status"]["state"] == "Pending"
    team.plane.kubectl("delete", "run", "long", "-n", team.namespace)
    eventually(lambda: team.phase("hit") == "Running")
    assert len([name for name in team.bound() if name.startswith("hit-2")]) == 2


# --- loans -----------------------------------------------------------------------------------------------------------------


def test_a_lender_that_calls_its_loans_back_gives_notice_and_the_borrower_is_told(
    cluster: Plane, team: Team, editor: Person
) -> None:
    lender = Team(cluster, nodes=1)
    lender.lends(team, concurrency=16, on_exhaustion="Drain", to=[team.owner])
    terms = {"allowBorrow": True, "sponsors": [lender.owner]}
    team.submit("poor", 4, pod=4, funding=terms, runtime={"checkpoint": "20s", "onPreempt": "Fail"})
    team.reaches("poor", "Running")
    lead = f"lead-{lender.namespace}"
    bind(cluster, lead, "admin", lender.namespace)
    bind(cluster, lead, "fairlease-viewer")
    person = Person(cluster, lead, lender.namespace)
    stopped = person.asks("budgets", "stop-lending", "money", "--recall")
    begun = time.monotonic()
    assert [each["run"] for each in stopped["loans"]] == [f"{team.namespace}/poor"]
    eventually(lambda: "Overdrawn" in json.dumps(team.status("poor").get("conditions")))
    assert team.phase("poor") == "Running"
    told = editor.types("kubectl", "describe", "run", "poor").stdout
    assert "Overdrawn" in told or "CoverLost" in told, told
    ended = team.reaches("poor", "Failed")
    assert ended["reason"] == "BudgetExhausted"
    assert time.monotonic() - begun > 15
    team.submit("again", 4, pod=4, funding=terms)
    waits = eventually(lambda: team.status("again").get("conditions"))
    assert [each["reason"] for each in waits if each["type"] == "Funded"] == ["ACLDenied"]


def test_the_ledger_of_all_this_passes_the_audit(cluster: Plane, mind: Controller) -> None:
    assert mind.stop() == 0
    report = audited(cluster)
    assert report.ok, report.findings
