"""Control planes of one's own: several at once, sturdy under maltreatment, and the developer's cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.kube.conftest import MakePlane
from tools.controlplane.member import stop_by_pid

ROOT = Path(__file__).resolve().parents[2]


def test_two_planes_live_beside_each_other_and_survive_blows(make_plane: MakePlane) -> None:
    one, two = make_plane(), make_plane()
    assert one.port != two.port
    note = {"metadata": {"name": "note"}, "data": {"here": "one"}}
    assert one.api().post("/api/v1/namespaces/default/configmaps", note).ok
    assert two.api().get("/api/v1/namespaces/default/configmaps/note").status == 404

    one.apiserver.kill()
    assert not one.apiserver.alive
    assert two.api().get("/readyz").ok
    one.apiserver.start()
    one.wait_ready()
    one.etcd.kill()
    one.etcd.start()
    one.wait_ready()
    assert one.api().get("/api/v1/namespaces/default/configmaps/note").body["data"] == {"here": "one"}

    one.apiserver.freeze()
    began = time.monotonic()
    one.stop()
    assert time.monotonic() - began < 10, "even a frozen server is stopped in time"
    assert not one.apiserver.alive
    assert not one.etcd.alive
    two.stop()


def test_a_developer_gets_a_cluster_by_one_command(tmp_path: Path, binaries: dict[str, Path]) -> None:
    code = "import sys; from pathlib import Path; from tools.controlplane import cluster; cluster.up(Path(sys.argv[1]))"
    argv = [sys.executable, "-c", code, str(tmp_path / "c")]
    first = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180)
    try:
        assert first.returncode == 0, first.stderr
        assert f"export KUBECONFIG={tmp_path}/c/kubeconfig" in first.stdout
        again = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        assert "runs already" in again.stdout
        environment = {**os.environ, "KUBECONFIG": f"{tmp_path}/c/kubeconfig"}
        shown = subprocess.run(
            [str(binaries["kubectl"]), "get", "nodes,crds"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert "node/west-1" in shown.stdout
        assert "runs.rq.davidlangworthy.io" in shown.stdout
    finally:
        ran = [stop_by_pid(each, str(tmp_path / "c")) for each in sorted((tmp_path / "c").glob("*.pid"))]
    assert ran == [True] * 4
