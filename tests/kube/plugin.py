"""`kubectl runs` as people type it: the real kubectl finds the plugin on the PATH, and asks a real API server as somebody."""

from __future__ import annotations

import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.kube.stage import Team, eventually
from tools.controlplane import Plane, ensure

RBAC = "/apis/rbac.authorization.k8s.io/v1"
Done = subprocess.CompletedProcess[str]


def environment(kubeconfig: Path) -> dict[str, str]:
    """An environment in which kubectl, its plugin and the cluster are found."""
    folders = (Path(sys.executable).parent, ensure()["kubectl"].parent)
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}


class Person:
    """Somebody with a kubeconfig, whose context means one namespace."""

    def __init__(self, plane: Plane, name: str, namespace: str) -> None:
        self.plane, self.name, self.namespace = plane, name, namespace
        self.kubeconfig = plane.kubeconfig(name, (), namespace)

    def types(self, *words: str, timeout_s: float = 90) -> Done:
        """Type a command; whatever its exit code."""
        return subprocess.run(
            words,
            env=environment(self.kubeconfig),
            cwd=self.plane.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def runs(self, *words: str) -> Done:
        """`kubectl runs …`."""
        return self.types("kubectl", "runs", *words)

    def sees(self, *words: str, code: int = 0) -> str:
        """What `kubectl runs …` prints, where it ends with that code."""
        done = self.runs(*words)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stdout + done.stderr

    def asks(self, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - any answer
        """The same as JSON."""
        done = self.runs(*words, "-o", "json")
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def file(self, team: Team, *names: str, **spec: Any) -> str:  # noqa: ANN401 - any field of a spec
        """A file of Runs of a team; without `gpus` they are one GPU wide."""
        gpus, marks = spec.pop("gpus", 1), spec.pop("marks", {})
        pod = spec.pop("pod", {"containers": [{"name": "work", "image": "example.invalid/work:1"}]})
        base = {
            "owner": team.owner,
            "resources": {"gpuType": team.flavor, "totalGPUs": gpus},
            "template": {"metadata": {"annotations": marks}, "spec": pod},
        }
        objects = [
            {
                "apiVersion": "rq.davidlangworthy.io/v1",
                "kind": "Run",
                "metadata": {"name": name},
                "spec": {**base, **spec},
            }
            for name in names
        ]
        path = self.plane.folder / f"{'-'.join(names)[:60]}.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        return str(path)


def bind(plane: Plane, name: str, role: str, namespace: str | None = None) -> None:
    """Give somebody a ClusterRole, in one namespace or everywhere, and wait until it counts."""
    place, kind = (f"namespaces/{namespace}/rolebindings", "RoleBinding") if namespace else ("clusterrolebindings", "")
    body = {
        "metadata": {"name": f"{name}-{role}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }
    made = plane.api().post(f"{RBAC}/{place}", body)
    assert made.ok, (kind, made.message)
    where = f"/namespaces/{namespace}" if namespace else ""
    verb = "create" if role == "fairlease-editor" else "list"
    asked = {"spec": {"resourceAttributes": {"verb": verb, "group": "rq.davidlangworthy.io", "resource": "runs"}}}
    if where:
        asked["spec"]["resourceAttributes"]["namespace"] = str(namespace)
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    eventually(lambda: plane.api(name).post(review, asked).body["status"]["allowed"])


@contextmanager
def kubelet(plane: Plane, team: Team, *, slow_s: float = 0.0) -> Iterator[None]:
    """What no kwok plays: a kubelet that hands out logs. It says which container was asked for, in two lines."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked, _, _ = self.path.partition("?")
            *_, pod, container = asked.split("/")
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in (f"hello from {pod}\n", f"container {container} ends"):
                self.wfile.write(f"{len(line):x}\r\n{line}\r\n".encode())
                self.wfile.flush()
                time.sleep(slow_s)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    user = yaml.safe_load(plane.kubeconfig().read_text())["users"][0]["user"]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(user["client-certificate"], user["client-key"])
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}},
    }
    try:
        for node in team.nodes:
            assert team.api.patch(f"/api/v1/nodes/{node}/status", {"status": status}).ok
        yield
    finally:
        server.shutdown()
        server.server_close()
