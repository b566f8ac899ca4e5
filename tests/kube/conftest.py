"""A real API server for the tests on Kubernetes. Nothing here is a mock; where it cannot run, that is said, and fails in CI.

All tests of this folder share one control plane, in which Fairlease's objects are installed, and each takes a namespace of its
own. A test that maltreats a server makes one for itself (`make_plane`), and names a group, so that it may run elsewhere.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kube.tenancy import thing
from tests.model.rows import LEASE, RUN
from tools.controlplane import Missing, Plane

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the plane run on one worker: each further one would start, and wait for, a plane of its own."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("kube"))


MakePlane = Callable[..., Plane]


@pytest.fixture(scope="session")
def make_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakePlane]:
    """Starts control planes, with the arguments of `Plane`, and stops them at the end of the session at the latest."""
    started: list[Plane] = []

    def make(*, kwok: bool = False, controllers: bool = False, scheduler: bool = False) -> Plane:
        folder = tmp_path_factory.mktemp("plane")
        try:
            plane = Plane(folder, kwok=kwok, controllers=controllers, scheduler=scheduler)
        except Missing as missing:
            (pytest.fail if "CI" in os.environ else pytest.skip)(str(missing))
        started.append(plane)
        return plane.start()

    yield make
    for plane in started:
        plane.stop()


@pytest.fixture(scope="session")
def plane(make_plane: MakePlane) -> Plane:
    """The shared control plane, with kwok, the controllers, and everything in `config/`."""
    plane = make_plane()
    plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config"))
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
