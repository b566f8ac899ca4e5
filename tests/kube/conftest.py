"""A real API server for the tests on Kubernetes. Nothing here is a mock; where it cannot run, that is said, and fails in CI.

All tests of this folder share one control plane, in which Fairlease's objects are installed, and each takes a namespace of its
own. A test that maltreats a server makes one for itself (`make_plane`), in a file called `…_alone.py`: those run on any worker.

Tests of the controller have a cluster for each file (`cluster`), a controller in it (`mind`), told what the file's own SETTINGS
and FLAGS say, and each a team of its own (`team`).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kube.stage import Controller, Team, eventually
from tests.kube.tenancy import RBAC, bound_namespace, everything, grant, path, thing
from tests.model.rows import LEASE, RUN
from tools.controlplane import Api, Missing, Plane, ensure

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"


MakePlane = Callable[..., Plane]


@pytest.fixture(scope="session")
def binaries() -> dict[str, Path]:
    """What a control plane is made of, built where it is not there yet."""
    try:
        return ensure()
    except Missing as missing:
        (pytest.fail if "CI" in os.environ else pytest.skip)(str(missing))


@pytest.fixture(scope="session")
def make_plane(tmp_path_factory: pytest.TempPathFactory, binaries: dict[str, Path]) -> Iterator[MakePlane]:
    """Starts control planes, with the arguments of `Plane`, and stops them at the end of the session at the latest."""
    started: list[Plane] = []

    def make(*, kwok: bool = False, controllers: bool = False, scheduler: bool = False) -> Plane:
        assert binaries
        plane = Plane(tmp_path_factory.mktemp("plane"), kwok=kwok, controllers=controllers, scheduler=scheduler)
        started.append(plane)
        return plane.start()

    yield make
    for plane in started:
        plane.stop()


@pytest.fixture(scope="session")
def plane(make_plane: MakePlane) -> Plane:
    """The shared control plane, with kwok, the controllers, and everything in `config/`."""
    plane = make_plane(kwok=True, controllers=True)
    plane.kubectl("apply", "--server-side", "-k", str(CONFIG))
    _wait_for_rules(plane)
    return plane


def _wait_for_rules(plane: Plane) -> None:
    """A server takes a moment until new kinds are served and new policies are in force."""
    place = "/apis/rq.davidlangworthy.io/v1/namespaces/default/{}?dryRun=All"
    probes = {"leases": thing("Lease", LEASE), "runs": thing("Run", RUN)}
    deadline = time.monotonic() + 60
    for each, body in probes.items():
        while plane.api().post(place.format(each), body).status != 403:
            assert time.monotonic() < deadline, f"no policy refuses {each}"
            time.sleep(0.05)


@pytest.fixture
def namespace(plane: Plane) -> Iterator[str]:
    """A namespace of the test's own, bound to no owner."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    made = plane.api().post("/api/v1/namespaces", {"metadata": {"name": name}})
    assert made.ok, made.message
    yield name
    plane.api().delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def home(plane: Plane) -> str:
    """Mallory's namespace, bound to org:ai."""
    name = bound_namespace(plane, "org:ai")
    everything(plane, "mallory", name)
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "namespaces/status", "namespaces/finalize"], "verbs": ["*"]},
    ]
    said = plane.api().post(f"{RBAC}/clusterroles", {"metadata": {"name": "keeps-namespaces"}, "rules": rules})
    assert said.ok or said.status == 409, said.message
    grant(plane, "mallory", "keeps-namespaces")
    return name


@pytest.fixture(scope="module")
def elsewhere(plane: Plane) -> str:
    """Mallory's other namespace, which is bound to nobody."""
    name = bound_namespace(plane, None)
    everything(plane, "mallory", name)
    return name


@pytest.fixture
def mallory(plane: Plane, home: str, elsewhere: str) -> Api:
    assert home != elsewhere
    return plane.api("mallory")


# --- a ledger alone --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def ledgers(make_plane: MakePlane) -> Plane:
    """A control plane for tests of the ledger itself: there is one in a cluster."""
    plane = make_plane()
    plane.kubectl("apply", "--server-side", "-k", str(CONFIG / "crd"))
    plane.kubectl("wait", "--for=condition=Established", "crd/ledgerentries.rq.davidlangworthy.io", "--timeout=30s")
    return plane


@pytest.fixture
def server(ledgers: Plane) -> Plane:
    """The same with an empty ledger."""
    emptied = ledgers.api().delete(path("LedgerEntry"))
    assert emptied.ok, emptied.message
    return ledgers


# --- a cluster with a controller in it -------------------------------------------------------------------------------------


def installed(make_plane: MakePlane, *, scheduler: bool = False) -> Plane:
    """A control plane with everything in `config/`, for a controller to live in."""
    plane = make_plane(kwok=True, controllers=True, scheduler=scheduler)
    plane.kubectl("apply", "--server-side", "-k", str(CONFIG))
    return plane


@pytest.fixture(scope="module")
def cluster(make_plane: MakePlane) -> Iterator[Plane]:
    """A control plane of a file's own."""
    plane = installed(make_plane)
    yield plane
    plane.stop()


@pytest.fixture
def fresh(make_plane: MakePlane) -> Iterator[Plane]:
    """A control plane of a test's own."""
    plane = installed(make_plane)
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def archive(cluster: Plane) -> Path:
    """Where the controllers of a file put old entries, if they are told to."""
    return cluster.folder / "archive"


@pytest.fixture(scope="module")
def settings(request: pytest.FixtureRequest) -> str:
    """What the controllers of a file are configured with: its SETTINGS, or nothing."""
    return str(getattr(request.module, "SETTINGS", ""))


@pytest.fixture(scope="module")
def flags(request: pytest.FixtureRequest, archive: Path) -> tuple[str, ...]:
    """What else they are told: its FLAGS, in which {archive} is where old entries go."""
    return tuple(each.format(archive=archive) for each in getattr(request.module, "FLAGS", ()))


@pytest.fixture(scope="module")
def mind(cluster: Plane, settings: str, flags: tuple[str, ...]) -> Iterator[Controller]:
    """The controller."""
    controller = told(cluster, "one", settings, *flags).start()
    yield controller
    controller.kill()


def told(cluster: Plane, name: str, settings: str, *flags: str) -> Controller:
    """A controller with its configuration, not started yet."""
    file = cluster.folder / "settings.yaml"
    file.write_text(settings)
    return Controller(cluster, name, "--config", str(file), *flags)


@pytest.fixture
def team(cluster: Plane, mind: Controller) -> Team:
    """A team whose money is known to the controller."""
    assert mind.alive, mind.log.read_text()[-2_000:]
    team = Team(cluster)
    eventually(lambda: team.api.get(path("Budget", team.namespace, "money")).body.get("status"))
    return team
