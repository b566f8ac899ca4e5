"""Runs that are deleted, in whatever phase, however many at once and whatever dies meanwhile, are gone when all is quiet again."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.kube.conftest import told
from tests.kube.stage import EXIT, SILENT, Controller, Team, eventually
from tests.kube.tenancy import path
from tools.controlplane import Plane

from fairlease.kube.api.names import FINALIZER

ELASTIC = {"minTotalGPUs": 2, "maxTotalGPUs": 6, "stepGPUs": 2}
TAKEN_OVER_S = 15.0
"""Until another leads, where the one that led was killed."""
QUIET_S = 5.0


@pytest.fixture(scope="module")
def minds(cluster: Plane) -> Iterator[list[Controller]]:
    """Two controllers at once, which fold their ledger away as they go."""
    settings = "snapshotEvery: 20\nnodeDebounce: 2s\nretryBackoff: 30s\ngrowCooldown: 1s\n"
    archive = str(cluster.folder / "archive")
    both = [told(cluster, name, settings, "--archive", archive).start() for name in ("one", "two")]
    yield both
    for each in both:
        each.kill()


def submit_all(team: Team) -> list[str]:
    """Some runs of every phase there is; those that would take GPUs come first, and leave some free."""
    team.submit("elastic", 2, malleable=ELASTIC)
    for number in range(6):
        team.submit(f"runs-{number}", 2)
        team.submit(f"safe-{number}", 1, sparesPerGroup=1)
        team.submit(f"done-{number}", 1, marks={EXIT: "0"})
        team.submit(f"weak-{number}", 1, marks={EXIT: "3"})
        team.submit(f"again-{number}", 1, marks={EXIT: "3"}, runtime={"retries": 5})
        team.submit(f"idle-{number}", 1, opportunistic=True)
        team.submit(f"after-{number}", 1, follow={"after": [f"runs-{number}"]})
        team.submit(f"never-{number}", 1_000)
        team.submit(f"poor-{number}", 1, owner=f"{team.owner}:poor", resources={"gpuType": "other", "totalGPUs": 1})
        team.submit(
            f"wrong-{number}", 1, template={"spec": {"containers": [{"name": "NO", "image": "example.invalid/x:1"}]}}
        )
    running = [f"{kind}-{number}" for kind in ("runs", "safe") for number in range(6)]
    eventually(lambda: all(team.phase(each) == "Running" for each in running), within_s=120)
    for number in range(3):
        team.submit(f"large-{number}", 40, runtime={"maxDuration": "1h"})
    return sorted(each["metadata"]["name"] for each in team.listed(path("Run", team.namespace)))


@contextmanager
def load(processes: int, at_most_s: int) -> Iterator[None]:
    """Others who want the processors too, for a while."""
    code = f"import time\nuntil = time.monotonic() + {at_most_s}\nwhile time.monotonic() < until: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def left(team: Team) -> list[tuple[str, object]]:
    """What is still there, and what it says."""
    return [
        (each["metadata"]["name"], each["metadata"].get("deletionTimestamp"))
        for each in team.listed(path("Run", team.namespace))
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_dozens_of_runs_in_all_phases_go_at_once_whoever_is_killed_meanwhile(
    cluster: Plane, minds: list[Controller], seed: int
) -> None:
    chance = random.Random(seed)
    team = Team(cluster, nodes=6)
    names = submit_all(team)
    chance.shuffle(names)
    with load(6, 60):
        for number, name in enumerate(names):
            assert team.api.delete(path("Run", team.namespace, name)).ok
            if number in (5, 25, 45):
                mind = chance.choice(minds)
                mind.kill()
                mind.start()
    eventually(lambda: not left(team), within_s=TAKEN_OVER_S + QUIET_S)
    eventually(lambda: not team.pods())
    assert all(mind.alive for mind in minds)


def test_a_namespace_goes_with_all_its_runs(cluster: Plane, minds: list[Controller]) -> None:
    team = Team(cluster, nodes=6)
    submit_all(team)
    assert team.api.delete(f"/api/v1/namespaces/{team.namespace}").ok
    mind = minds[0]
    mind.kill()
    mind.start()
    eventually(lambda: team.api.get(f"/api/v1/namespaces/{team.namespace}").status == 404, within_s=TAKEN_OVER_S + 30)
    assert all(mind.alive for mind in minds)


# --- the API server dies in the middle of deleting a pod -------------------------------------------------------------------


def half_deleted(team: Team, name: str) -> None:
    """Mark a pod as deleted in etcd, and do no more: so does an API server that is killed in the middle of a deletion."""
    pod = team.pods()[name]
    assert not pod["spec"].get("nodeName")
    pod["metadata"] |= {"deletionTimestamp": pod["metadata"]["creationTimestamp"], "deletionGracePeriodSeconds": 0}
    pod["metadata"].pop("resourceVersion")
    body = {"apiVersion": "v1", "kind": "Pod", **pod}
    team.plane.put_into_etcd(f"/registry/pods/{team.namespace}/{name}", json.dumps(body).encode())


def in_line(team: Team, name: str) -> list[str]:
    """The pods of a run that were made and wait for GPUs on which others' pods still live."""
    team.submit("slow", 16, pod=8, marks={SILENT: ""})
    eventually(lambda: len(team.bound()) == 2)
    team.submit(name, 16, pod=8)
    team.api.delete(path("Run", team.namespace, "slow"))
    eventually(lambda: len([each for each in team.pods() if each.startswith(name)]) == 2)
    return [each for each in team.pods() if each.startswith(name)]


@pytest.mark.usefixtures("minds")
def test_a_run_whose_pods_were_deleted_by_halves_goes_all_the_same(cluster: Plane) -> None:
    team = Team(cluster)
    for each in in_line(team, "halved"):
        half_deleted(team, each)
    team.api.delete(path("Run", team.namespace, "halved"))
    eventually(lambda: not team.run("halved"), within_s=QUIET_S)
    assert {name for name, _ in left(team)} <= {"slow"}, "whose pods live until their grace is over"


@pytest.mark.usefixtures("minds")
def test_pods_that_were_deleted_by_halves_are_made_again_for_a_run_that_lives(cluster: Plane) -> None:
    team = Team(cluster)
    uids = {each: team.pods()[each]["metadata"]["uid"] for each in in_line(team, "halved")}
    for each in uids:
        half_deleted(team, each)

    def made_again() -> bool:
        pods = team.pods()
        return all(name in pods and pods[name]["metadata"]["uid"] != uid for name, uid in uids.items())

    eventually(made_again)
    for name in [name for name in team.pods() if name.startswith("slow")]:
        team.api.ask("DELETE", f"/api/v1/namespaces/{team.namespace}/pods/{name}", {"gracePeriodSeconds": 0})
    team.reaches("halved", "Running")


# --- what a deletion costs -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("minds")
def test_a_finalizer_is_written_once_and_taken_off_once_whatever_else_is_written_meanwhile(cluster: Plane) -> None:
    team = Team(cluster)
    before = patches(cluster)
    for number in range(16):
        team.submit(f"brief-{number}", 1)
    eventually(lambda: len(team.bound()) == 16)
    eventually(lambda: all(FINALIZER in each["metadata"].get("finalizers", ()) for each in runs(team)))
    cluster.kubectl("delete", "--wait=false", "--all", "runs.rq.davidlangworthy.io", "-n", team.namespace)
    eventually(lambda: not left(team))
    made = {code: count - before.get(code, 0) for code, count in patches(cluster).items()}
    assert made.pop("200") == 32
    assert sum(made.values()) <= 4, made


def runs(team: Team) -> list[dict[str, Any]]:
    return team.listed(path("Run", team.namespace))


def patches(cluster: Plane) -> dict[str, int]:
    """How many patches of Runs (not of their statuses) the API server has answered, by code."""
    page = cluster.kubectl("get", "--raw", "/metrics").stdout
    lines = [line for line in page.splitlines() if line.startswith("apiserver_request_total{")]
    wanted = [
        line for line in lines if 'resource="runs"' in line and 'subresource=""' in line and 'verb="PATCH"' in line
    ]
    return {line.partition('code="')[2][:3]: int(float(line.split()[-1])) for line in wanted}
