"""A control plane of one's own: etcd and kube-apiserver, and where asked for kwok, controller-manager and scheduler.

All on loopback, on free ports, with an authority of its own; any number run beside each other. Its folder holds the
certificates, a kubeconfig for each user, the logs and the data, and stays behind for those who look for the cause of a failure.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import socket
import subprocess
import time
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from tools.controlplane.api import Api
from tools.controlplane.build import RECIPES, ensure
from tools.controlplane.certificates import Authority
from tools.controlplane.member import Member

READY_SECONDS = 120.0
STAGES = Path(__file__).resolve().parent / "stages.yaml"

# Of the controllers, those without which objects would not behave: defaults, deletion, aggregation, types of policies.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "validatingadmissionpolicy-status-controller",
)


class Plane:
    """A control plane in a folder. `start` and `stop` it, or use it as a context; its members are there to be maltreated."""

    def __init__(
        self,
        folder: Path,
        *,
        kwok: bool = False,
        controllers: bool = False,
        scheduler: bool = False,
        fsync: bool = False,
        tied: bool = True,
    ) -> None:
        wanted = {"etcd", "kube-apiserver", "kubectl"}
        wanted |= {"kwok"} if kwok else set()
        wanted |= {"kube-controller-manager"} if controllers else set()
        wanted |= {"kube-scheduler"} if scheduler else set()
        self.binaries = ensure(*(each for each in RECIPES if each in wanted))
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(self.folder / "pki")
        self._tied = tied
        self._apis: dict[tuple[str, tuple[str, ...]], Api] = {}
        ports = _free_ports(5)
        self.port = ports[0]
        self._etcd_port = ports[1]
        self.etcd = self._etcd(ports[1], ports[2], fsync=fsync)
        self.apiserver = self._apiserver(ports[1])
        self.others: dict[str, Member] = {}
        if kwok:
            self.others["kwok"] = self._kwok()
        if controllers:
            self.others["kube-controller-manager"] = self._controllers(ports[3])
        if scheduler:
            self.others["kube-scheduler"] = self._scheduler(ports[4])

    # ------------------------------------------------------------------------------------------------- life and death

    def start(self) -> Self:
        """Start everything, and come back when the API server is ready; raises with the end of a log where one dies."""
        try:
            self.etcd.start()
            self.apiserver.start()
            self.wait_ready()
            for member in self.others.values():
                member.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything, within seconds, whatever state it is in."""
        for api in self._apis.values():
            api.close()
        for member in (*self.others.values(), self.apiserver, self.etcd):
            # Whatever is worth keeping is in etcd, and nothing there outlives a test: no need to wait for goodbyes.
            member.stop(bound_s=2.0)

    def put_into_etcd(self, key: str, value: bytes) -> None:
        """Write behind the API server's back, as one that was killed halfway may have left it; it reads JSON as well as its own."""
        body = json.dumps(
            {name: base64.b64encode(text).decode() for name, text in (("key", key.encode()), ("value", value))}
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{self._etcd_port}/v3/kv/put", body.encode()) as answer:
            assert answer.status == HTTPStatus.OK

    def wait_ready(self, bound_s: float = READY_SECONDS) -> None:
        """Wait until the API server answers that it is ready."""
        deadline = time.monotonic() + bound_s
        while True:
            for member in (self.etcd, self.apiserver):
                if not member.alive:
                    raise RuntimeError(f"{member.name} ended while starting; {member.log}:\n{member.tail()}")
            try:
                if self.api().get("/readyz").ok and self.api().get("/api/v1/namespaces/default").ok:
                    return
            except (OSError, HTTPException):
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(f"the API server is not ready after {bound_s:g} s:\n{self.apiserver.tail()}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------------- as whom

    def api(self, user: str = "admin", groups: tuple[str, ...] = ()) -> Api:
        """A plain client as a user; without one, as the administrator who may do everything."""
        who = (user, _groups(user, groups))
        if who not in self._apis:
            self._apis[who] = Api(self.port, self.authority.certificate, *self._certificate(*who))
        return self._apis[who]

    def kubeconfig(self, user: str = "admin", groups: tuple[str, ...] = (), namespace: str = "default") -> Path:
        """A kubeconfig with a client certificate for a user."""
        certificate, key = self._certificate(user, _groups(user, groups))
        credentials = {"client-certificate": str(certificate), "client-key": str(key)}
        suffix = "" if user == "admin" else f"-{certificate.stem}-{namespace}"
        return self._written(self.folder / f"kubeconfig{suffix}", credentials, namespace)

    def token_kubeconfig(self, token: str | Path, name: str, namespace: str = "default") -> Path:
        """A kubeconfig with a bearer token, or with a file that holds one."""
        credentials = {"tokenFile": str(token)} if isinstance(token, Path) else {"token": token}
        return self._written(self.folder / f"kubeconfig-token-{name}", credentials, namespace)

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """A token of a service account, which must exist."""
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.api().post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", asked)
        assert answer.ok, answer.message
        return str(answer.body["status"]["token"])

    def kubectl(
        self,
        *arguments: str,
        user: str = "admin",
        groups: tuple[str, ...] = (),
        stdin: str | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user, with a cache of its own."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig(user, groups)), "HOME": str(self.folder)}
        environment["KUBECACHEDIR"] = str(self.folder / "kubectl-cache")
        done = subprocess.run(
            [str(self.binaries["kubectl"]), *arguments],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done

    def _certificate(self, user: str, groups: tuple[str, ...]) -> tuple[Path, Path]:
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(("user", user, *sorted(groups))))
        return self.authority.client(plain, user, groups)

    def _written(self, path: Path, credentials: dict[str, str], namespace: str) -> Path:
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.authority.certificate)}
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fairlease", "cluster": cluster}],
            "users": [{"name": "user", "user": credentials}],
            "contexts": [
                {"name": "fairlease", "context": {"cluster": "fairlease", "user": "user", "namespace": namespace}}
            ],
            "current-context": "fairlease",
        }
        text = yaml.safe_dump(config, sort_keys=False)
        if not path.exists() or path.read_text() != text:
            fresh = path.with_name(f"{path.name}.new")
            fresh.write_text(text)
            fresh.chmod(0o600)
            fresh.replace(path)  # a member that starts at this moment reads all of it, or what was there before
        return path

    # --------------------------------------------------------------------------------------------------- the members

    def _member(self, name: str, *flags: str) -> Member:
        return Member(name, [self.binaries[name], *flags], self.folder, tied=self._tied)

    def _etcd(self, client: int, peer: int, *, fsync: bool) -> Member:
        """Without fsync unless asked: a killed process loses nothing by it, only a machine without power would."""
        return self._member(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--heartbeat-interval=50",
            "--election-timeout=250",
            "--log-level=warn",
            *(() if fsync else ("--unsafe-no-fsync",)),
        )

    def _apiserver(self, etcd: int) -> Member:
        certificate, key = self.authority.server()
        public, private = self.authority.signing_keys()
        return self._member(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.authority.certificate}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",  # without its controller no pod could be made
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none",
            "--shutdown-delay-duration=0s",
            "--profiling=false",
        )

    def _kwok(self) -> Member:
        return self._member(
            "kwok",
            f"--kubeconfig={self.kubeconfig()}",
            f"--config={STAGES}",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=0",
        )

    def _controllers(self, port: int) -> Member:
        return self._member(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig()}",
            f"--controllers={','.join(CONTROLLERS)}",
            f"--service-account-private-key-file={self.authority.signing_keys()[1]}",
            f"--root-ca-file={self.authority.certificate}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'pki'}",
        )

    def _scheduler(self, port: int) -> Member:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig()), "qps": 1000, "burst": 1000},
        }
        path = self.folder / "scheduler.json"
        path.write_text(json.dumps(config))
        return self._member(
            "kube-scheduler",
            f"--config={path}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'pki'}",
        )


def _groups(user: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    return ("system:masters",) if user == "admin" and not groups else groups


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that outgoing connections get: a server may come back to its own."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
