"""The developer's cluster: a control plane with fake GPU nodes and Fairlease's objects, in the background, in `.cluster/`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tools.controlplane.member import stop_by_pid
from tools.controlplane.nodes import Rack, add_nodes
from tools.controlplane.plane import Plane

from fairlease.kube.manifests.policy import CONTROLLER

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cluster"
RACKS = (
    Rack(nodes=8, prefix="west", region="us-west", cluster="west-1", domain="west-fabric"),
    Rack(nodes=4, prefix="east", region="us-east", cluster="east-1", domain="east-fabric", flavor="A100-80GB"),
)


def up(folder: Path = FOLDER) -> None:
    """Start it, fresh; where one runs already, only say how to reach it."""
    if not _runs(folder):
        began = time.monotonic()
        down(folder)
        plane = Plane(folder, kwok=True, controllers=True, tied=False)
        plane.start()
        names = add_nodes(plane.api(), *RACKS)
        if (ROOT / "config" / "kustomization.yaml").exists():
            plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config"))
        shutil.copy(plane.kubeconfig(CONTROLLER, namespace="fairlease-system"), folder / "controller.kubeconfig")
        (folder / "kubectl.path").write_text(str(plane.binaries["kubectl"]))
        print(f"A control plane with {len(names)} GPU nodes runs since {time.monotonic() - began:.1f} s.")
    else:
        print("The cluster runs already.")
    print(f"Use it:   export KUBECONFIG={folder / 'kubeconfig'}")
    print(f"kubectl:  {(folder / 'kubectl.path').read_text()}")
    print(f"Decide:   fairlease controller --kubeconfig {folder / 'controller.kubeconfig'}")
    print(f"Logs:     {folder}/*.log")
    print("Stop it:  make cluster-down")


def down(folder: Path = FOLDER) -> bool:
    """Stop it and forget all that was in it; whether one ran."""
    ran = [stop_by_pid(each, str(folder)) for each in sorted(folder.glob("*.pid"))]
    shutil.rmtree(folder, ignore_errors=True)
    return any(ran)


def _runs(folder: Path) -> bool:
    try:
        pid = int((folder / "kube-apiserver.pid").read_text())
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
