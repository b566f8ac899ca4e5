"""The audit of a cluster: what is proven, what is compared, and every forgery by its name."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.conftest import CONFIG
from tests.kube.plugin import Person
from tests.kube.stage import CONTROLLER_GROUPS, EXIT, RUN_FOR, Controller, Team, eventually
from tests.kube.tenancy import controller as as_controller
from tests.kube.tenancy import path
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api
from fairlease.kube.api.kubeconfig import find_access
from fairlease.kube.ledger.archive import Archive
from fairlease.kube.ledger.journal import Journal, Tidied
from fairlease.kube.manifests.policy import CONTROLLER
from fairlease.scheduler import Decider

ENTRIES = "/apis/rq.davidlangworthy.io/v1/ledgerentries"


@pytest.fixture
def cluster(fresh: Plane) -> Plane:
    return fresh


@pytest.fixture
def mind(cluster: Plane) -> Iterator[Controller]:
    controller = Controller(cluster, "one").start()
    yield controller
    controller.kill()


@pytest.fixture
def team(cluster: Plane, mind: Controller) -> Team:
    """A team with a run that ended, one that goes on, and one that waits for it; the controller has stopped in order."""
    team = Team(cluster)
    team.submit("over", 2, marks={EXIT: "0", RUN_FOR: "1s"})
    team.submit("goes-on", 2, runtime={"maxDuration": "1h"})
    team.reaches("over", "Completed")
    team.reaches("goes-on", "Running")
    team.submit("waits", 16, runtime={"maxDuration": "1h"})
    eventually(lambda: team.reservation(held(team)).get("status"))
    eventually(lambda: len(team.closures()) == 2)
    mind.stop()
    while not snapshots(team):  # it stopped before all was written, as it says in its log: the next one goes on
        mind.start()
        eventually(lambda: len(mind.told("decides")) > len(mind.told("leads no more")))
        time.sleep(1)
        mind.stop()
    return team


def snapshots(team: Team) -> list[int]:
    """The entries that snapshots stand on."""
    return [each["spec"]["seq"] for each in team.listed(ENTRIES) if each["spec"]["role"] == "Snapshot"]


def held(team: Team) -> str:
    """The name of the Reservation of the run that waits."""
    return str(team.status("waits").get("pendingReservation"))


def audit(cluster: Plane, *flags: str) -> tuple[int, Any, str]:
    """`fairlease audit --kubeconfig … --context …`: its exit code, its report, and what it said besides."""
    admin = Person(cluster, "admin", "default")
    admin.kubeconfig = Path("/nonexistent")  # it goes by its flags alone
    flags = ("--kubeconfig", str(cluster.kubeconfig()), "--context", "fairlease", "-o", "json", *flags)
    done = admin.types("fairlease", "audit", *flags)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def messages(report: Any) -> list[str]:  # noqa: ANN401 - a report
    return [each["message"] for each in report["findings"]]


def test_objects_that_say_what_the_ledger_says_are_sound(cluster: Plane, team: Team) -> None:
    code, report, _ = audit(cluster)
    assert (code, report["ok"], messages(report)) == (0, True, [])
    assert report["checks"]["objects"] is True
    assert report["objects"] == 4 + 3 + 1 + 1, "leases, runs, a Budget, a Reservation"
    assert team.api.delete(path("Lease", team.namespace, "over-1-0")).ok
    code, report, _ = audit(cluster)
    assert (code, report["absent"]) == (0, 1), "what is over may be removed; the ledger keeps it"


def test_every_object_that_says_something_else_is_named_with_the_field(
    cluster: Plane, mind: Controller, team: Team
) -> None:
    hand, where = as_controller(cluster), team.namespace
    real = team.leases()["goes-on-1-0"]
    forged = {name: real[name] for name in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "forged"}}
    assert hand.post(path("Lease", where), forged).ok
    assert hand.patch(path("Run", where, "over", "status"), {"status": {"endedAt": "2020-01-01T00:00:00Z"}}).ok
    assert hand.patch(path("Run", where, "goes-on", "status"), {"status": {"attempt": 7}}).ok
    assert team.api.delete(path("Lease", where, "goes-on-1-1")).ok
    money = team.api.get(path("Budget", where, "money")).body["status"]["usage"]
    spent = {"status": {"usage": [{**money[0], "ownedGPUs": 99}]}}
    assert hand.patch(path("Budget", where, "money", "status"), spent).ok
    turned = {"status": {"state": "Released"}}
    assert hand.patch(path("Reservation", where, held(team), "status"), turned).ok
    outcome = yaml.safe_load((CONFIG / "samples" / "resolveroutcome.yaml").read_text())
    assert hand.post(path("ResolverOutcome"), outcome).ok
    code, report, _ = audit(cluster)
    assert code == 1
    assert report["checks"] == dict.fromkeys(report["checks"], True) | {"objects": False}
    told = "\n".join(messages(report))
    for each in (
        f"Lease {where}/forged is in no entry of the ledger",
        f"Run {where}/over: status.endedAt is ",
        f"Run {where}/goes-on: status.attempt is 7, and by the ledger 1",
        f"Lease {where}/goes-on-1-1 is open in the ledger and has no object",
        f"Budget {where}/money: status.usage",
        f'Reservation {where}/{held(team)}: status.state is "Released", and by the ledger "Pending"',
        "ResolverOutcome outcome-1 is in no entry of the ledger",
    ):
        assert each in told, told
    assert len(messages(report)) == 7, told
    assert team.api.delete(path("Lease", where, "forged")).ok
    assert team.api.delete(path("ResolverOutcome", name="outcome-1")).ok
    mind.start()
    long_over = [each for each in messages(report) if "/over: " in each]
    eventually(lambda: messages(audit(cluster)[1]) == long_over)  # a controller mends what it can still tell the end of


def test_an_entry_that_was_rewritten_breaks_the_chain(cluster: Plane, team: Team) -> None:
    entries = sorted(team.listed(ENTRIES), key=lambda each: int(each["spec"]["seq"]))
    first = next(each for each in entries if each["spec"]["role"] == "Entry" and team.owner in each["spec"]["body"])
    hand = as_controller(cluster)
    assert hand.delete(f"{ENTRIES}/{first['metadata']['name']}").ok
    forged = {name: first[name] for name in ("apiVersion", "kind")} | {
        "metadata": {"name": first["metadata"]["name"]},
        "spec": {**first["spec"], "body": first["spec"]["body"].replace(team.owner, "org:other")},
    }
    assert hand.post(ENTRIES, forged).ok
    code, report, _ = audit(cluster)
    assert (code, report["checks"]["chain"]) == (1, False)


def snapshot(cluster: Plane, archive: Path) -> Tidied:
    """What a controller does every 8,000 entries: keep a snapshot, and archive what lies before the older of two."""

    async def work() -> Tidied:
        kubeconfig = cluster.kubeconfig(CONTROLLER, CONTROLLER_GROUPS)
        async with Api(find_access(str(kubeconfig))) as api:
            journal = await Journal.open(api, archive=Archive(archive))
            due = Decider(journal).due_snapshot(force=True)
            if due is not None:
                await journal.save_snapshot(due)
            return await journal.tidy()

    return asyncio.run(work())


def test_entries_that_were_archived_are_asked_for_and_found(cluster: Plane, mind: Controller, team: Team) -> None:
    folder = cluster.folder / "archive"
    snapshot(cluster, folder)
    mind.start()
    team.submit("second", 1, runtime={"maxDuration": "1m"})
    team.reaches("second", "Running")
    mind.stop()
    assert snapshot(cluster, folder).archived > 0
    code, _, said = audit(cluster)
    assert code == 2
    assert "--archive" in said
    code, report, _ = audit(cluster, "--archive", str(folder))
    assert (code, report["ok"]) == (0, True)
    admin = Person(cluster, "admin", team.namespace)
    place = ("-n", team.namespace)
    assert (
        admin.asks("plan", "-f", admin.file(team, "third", runtime={"maxDuration": "1m"}), *place)["plans"][0]["starts"]
        is True
    )
    assert admin.asks("explain", "goes-on", *place)["status"]["phase"] == "Running"
    told = admin.asks("explain", "over", "--archive", str(folder), *place)["story"]
    assert [each["reason"] for each in told][:2] == ["Submitted", "Start"]
