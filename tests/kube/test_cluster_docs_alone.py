"""Every command in the guides about Kubernetes is run, in the order in which it stands there, on a control plane of its own."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.kube.conftest import MakePlane
from tests.kube.plugin import environment
from tests.kube.stage import Controller
from tests.test_docs import BLOCK, CLUSTER_GUIDES
from tools.controlplane import Plane, Rack, add_nodes

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENTS = "/apis/apps/v1/namespaces/fairlease-system/deployments/fairlease-controller"
GUIDE_S = 420


class Kubelet(threading.Thread):
    """Runs the controller's Deployment: as many real processes as it has replicas, with its arguments and its ConfigMaps."""

    def __init__(self, plane: Plane) -> None:
        super().__init__(daemon=True)
        self._plane, self._api = plane, plane.api()
        self._pods: list[Controller] = []
        self._template: Any = None
        self._over = threading.Event()
        self._number = 0

    def run(self) -> None:
        while not self._over.wait(0.3):
            found = self._api.get(DEPLOYMENTS)
            spec: dict[str, Any] = found.body["spec"] if found.ok else {"replicas": 0, "template": None}
            if spec["template"] != self._template and spec["template"] is not None:
                self._scale(0)
                self._template = spec["template"]
            self._scale(spec["replicas"])
        self._scale(0)

    def end(self) -> None:
        self._over.set()
        self.join(60)

    def _scale(self, replicas: int) -> None:
        while len(self._pods) > replicas:
            self._pods.pop().stop()
        while len(self._pods) < replicas:
            self._number += 1
            self._pods.append(Controller(self._plane, f"pod-{self._number}", *self._flags()).start())

    def _flags(self) -> list[str]:
        """The container's arguments, with files of ConfigMaps where they are mounted, under this plane's own root."""
        pod = self._template["spec"]
        container = pod["containers"][0]
        places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        for volume in pod["volumes"]:
            if "configMap" in volume:
                name = volume["configMap"]["name"]
                data = self._api.get(f"/api/v1/namespaces/fairlease-system/configmaps/{name}").body["data"]
                folder = self._root / places[volume["name"]].lstrip("/")
                folder.mkdir(parents=True, exist_ok=True)
                for file, text in data.items():
                    (folder / file).write_text(text)
        return [each.replace("=/", f"={self._root}/") for each in container["args"][1:]]

    @property
    def _root(self) -> Path:
        return self._plane.folder / "root"


@pytest.mark.parametrize("guide", CLUSTER_GUIDES)
def test_every_command_of_a_guide_on_kubernetes_does_what_it_says(
    guide: str, tmp_path: Path, make_plane: MakePlane
) -> None:
    plane = make_plane(kwok=True, controllers=True)
    if "quickstart" in guide:
        add_nodes(plane.api(), Rack(nodes=4))
    for each in ("config", "deploy"):
        shutil.copytree(ROOT / each, tmp_path / each)
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copy(plane.kubeconfig(), kubeconfig)
    script = "\n".join(BLOCK.findall((ROOT / guide).read_text()))
    kubelet = Kubelet(plane)
    kubelet.start()
    try:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment(kubeconfig),
            capture_output=True,
            text=True,
            timeout=GUIDE_S,
            check=False,
        )
    finally:
        kubelet.end()
        plane.stop()
    assert done.returncode == 0, f"{guide}:\n{done.stdout[-3_000:]}\n{done.stderr[-4_000:]}"
