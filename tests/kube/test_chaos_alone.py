"""Everything dies in the middle of everything, in an order that a seed draws; in the end nothing is half-made or doubled."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator

import pytest
from tests.kube.conftest import told
from tests.kube.plugin import Person
from tests.kube.stage import EXIT, RUN_FOR, Controller, Team, eventually
from tests.kube.tenancy import path, thing
from tools.controlplane import Plane

STEPS = 24
DONE = ("Running", "Completed", "Failed")


@pytest.fixture
def cluster(fresh: Plane) -> Plane:
    return fresh


@pytest.fixture
def minds(cluster: Plane) -> Iterator[list[Controller]]:
    """Two controllers at once, which fold their ledger away as they go."""
    settings, archive = "snapshotEvery: 20\nnodeDebounce: 2s\n", str(cluster.folder / "archive")
    both = [told(cluster, name, settings, "--archive", archive).start() for name in ("one", "two")]
    yield both
    for each in both:
        each.kill()


class Chaos:
    """What can happen, each at any moment."""

    def __init__(self, plane: Plane, team: Team, minds: list[Controller], chance: random.Random) -> None:
        self.plane, self.team, self.minds, self.chance = plane, team, minds, chance
        self.runs: list[str] = []

    def submits(self) -> None:
        name = f"run-{len(self.runs)}"
        self.runs.append(name)
        ends = {EXIT: "0", RUN_FOR: f"{self.chance.randint(1, 8)}s"} if self.chance.random() < 0.5 else {}
        self.team.submit(
            name, self.chance.choice([1, 4, 16, 24]), marks=ends, runtime={"retries": 2, "checkpoint": "1s"}
        )

    def cancels(self) -> None:
        if self.runs:
            self.team.api.delete(path("Run", self.team.namespace, self.chance.choice(self.runs)))

    def a_controller_dies(self) -> None:
        mind = self.chance.choice(self.minds)
        mind.kill()
        mind.start()

    def a_controller_freezes(self) -> None:
        mind = self.chance.choice(self.minds)
        mind.freeze()
        time.sleep(self.chance.choice([0.5, 14.0]))
        mind.thaw()

    def the_server_dies(self) -> None:
        self.plane.apiserver.kill()
        self.plane.apiserver.start()
        self._back()

    def etcd_dies(self) -> None:
        self.plane.etcd.kill()
        self.plane.etcd.start()
        self._back()

    def _back(self) -> None:
        """Until objects of ours are taken, or refused by the rules, again."""
        self.plane.wait_ready()
        probe = thing("Run", {"owner": "nobody", "resources": {"gpuType": "x", "totalGPUs": 1}})
        eventually(lambda: self.team.api.post(path("Run", self.team.namespace), probe).status == 403)

    def a_lease_is_deleted(self) -> None:
        names = sorted(set(self.team.leases()) - set(self.team.closures()))
        if names:
            self.team.api.delete(path("Lease", self.team.namespace, self.chance.choice(names)))

    def a_pod_is_deleted(self) -> None:
        names = sorted(self.team.bound())
        if names:
            self.team.api.delete(f"/api/v1/namespaces/{self.team.namespace}/pods/{self.chance.choice(names)}")

    def a_node_goes_and_comes_back(self) -> None:
        where = f"/api/v1/nodes/{self.chance.choice(self.team.nodes)}"
        body = self.team.api.get(where).body
        self.team.api.delete(where)
        time.sleep(self.chance.choice([0.0, 2.0]))
        kept = {key: body["metadata"][key] for key in ("name", "labels", "annotations")}
        assert self.team.api.post("/api/v1/nodes", {**body, "metadata": kept}).ok

    def step(self) -> None:
        kinds: list[Callable[[], None]] = [
            self.submits, self.submits, self.submits, self.submits, self.cancels, self.a_controller_dies,
            self.a_controller_freezes, self.the_server_dies, self.etcd_dies, self.a_lease_is_deleted, self.a_pod_is_deleted,
            self.a_node_goes_and_comes_back,
        ]  # fmt: skip
        self.chance.choice(kinds)()
        time.sleep(self.chance.choice([0.0, 0.1, 0.5, 1.5]))


def settled(team: Team, runs: list[str]) -> bool:
    """Whether each run waits, runs whole, or is over, and there is a pod where there is an open lease and nowhere else."""
    closed, leases, pods = team.closures(), team.leases(), team.pods()
    alive = {name for name, pod in pods.items() if pod["status"]["phase"] not in ("Succeeded", "Failed")}
    if {name for name in leases if name not in closed} != alive:
        return False
    if not all(pods[name]["spec"].get("nodeName") == leases[name]["spec"]["slice"]["nodes"][0] for name in alive):
        return False
    states = {name: team.status(name) for name in runs if team.run(name)}
    return all(each.get("phase") in DONE or each.get("conditions") for each in states.values())


def doubled(team: Team) -> list[tuple[str, int]]:
    """Slots that two open leases hold."""
    closed, seen, twice = team.closures(), set(), []
    for name, lease in team.leases().items():
        for node, slots in lease["spec"]["slice"]["gpus"].items() if name not in closed else ():
            twice += [(node, slot) for slot in slots if (node, slot) in seen]
            seen |= {(node, slot) for slot in slots}
    return twice


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_dies_the_objects_follow_and_the_audit_finds_nothing(
    cluster: Plane, minds: list[Controller], seed: int
) -> None:
    team = Team(cluster, nodes=6)
    chaos = Chaos(cluster, team, minds, random.Random(seed))
    chaos.submits()
    for _ in range(STEPS):
        chaos.step()
    eventually(lambda: settled(team, chaos.runs), within_s=120)
    assert doubled(team) == []
    team.submit("last", 1)
    eventually(lambda: team.status("last").get("conditions"))
    assert all(mind.alive for mind in minds)
    folder = cluster.folder / "archive"
    told = ("--archive", str(folder)) if folder.is_dir() else ()
    admin = Person(cluster, "admin", "default")

    def findings() -> list[str]:
        done = admin.types("fairlease", "audit", "--kubeconfig", str(cluster.kubeconfig()), "-o", "json", *told)
        return [] if done.returncode == 0 else [done.stderr, *map(json.dumps, json.loads(done.stdout)["findings"])]

    until = time.monotonic() + 60
    while (found := findings()) and time.monotonic() < until:
        time.sleep(1)
    assert found == []
