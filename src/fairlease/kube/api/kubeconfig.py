"""Where the API server is and who we are there: kubeconfig files, or the service account of a pod.

Read as kubectl reads them: `KUBECONFIG` may list several files, of which the first to name a thing wins, and a path inside a
file is relative to that file. What cannot be used is refused with the file's and the field's name, never passed over.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class BadConfig(Exception):  # noqa: N818 - it says what is wrong
    """No connection can be made from what the files say; the message names the file and what to do."""


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that knows our credentials."""

    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    install_hint: str = ""
    provide_cluster_info: bool = False
    cluster_config: object = None


class Pem(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate or a key: in a file, which may be renewed under us, or given outright."""

    path: str | None = None
    data: bytes | None = None

    def read(self) -> bytes:
        """The bytes as they are now."""
        return self.data if self.data is not None else Path(self.path or "").read_bytes()


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """One way into one cluster: server, trust, identity and the namespace that is meant where none is named."""

    server: str
    namespace: str = "default"
    context: str = ""
    ca: Pem | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    token: str | None = None
    token_file: str | None = None
    basic: tuple[str, str] | None = None
    plugin: ExecPlugin | None = None
    act_as: tuple[tuple[str, str], ...] = ()


def find_access(
    kubeconfig: str | None = None, context: str | None = None, environment: Mapping[str, str] = os.environ
) -> ClusterAccess:
    """The way in: the files named, else `KUBECONFIG`, else `~/.kube/config`, else the pod we run in."""
    named = kubeconfig or environment.get("KUBECONFIG")
    if named:
        return from_files([Path(each) for each in named.split(os.pathsep) if each], context)
    usual = Path(environment.get("HOME", "/")) / ".kube" / "config"
    if usual.is_file():
        return from_files([usual], context)
    if "KUBERNETES_SERVICE_HOST" in environment and context is None:
        return in_cluster(environment)
    raise BadConfig(f"there is no {usual}, and this is no pod: give --kubeconfig, or set KUBECONFIG")


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """The service account of the pod we run in; its token is renewed under us, so its file is what we keep."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    token, namespace = folder / "token", folder / "namespace"
    if not host or not token.is_file():
        raise BadConfig(f"this is no pod with a service account: no KUBERNETES_SERVICE_HOST, or no {token}")
    return ClusterAccess(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        ca=Pem(path=str(folder / "ca.crt")),
        token_file=str(token),
    )


def from_files(paths: Sequence[Path], context: str | None = None) -> ClusterAccess:
    """The way in that a context of the files describes; without a name it is the current one."""
    merged = _Merged(paths)
    name = context or merged.current
    if not name:
        raise BadConfig(f"{merged.names} sets no current-context: name one with --context")
    chosen = merged.need("contexts", name)
    cluster = merged.need("clusters", chosen.text("cluster"))
    user = merged.need("users", chosen.text("user")) if chosen.text("user") else _Section({}, Path(), "no user")
    for section, field in ((cluster, "proxy-url"), (user, "auth-provider")):
        if section.fields.get(field):
            raise BadConfig(f"{section.where} has {field}, which Fairlease does not speak")
    server = cluster.text("server")
    if not server.startswith(("https://", "http://")):
        raise BadConfig(f"{cluster.where} has server {server!r}: it needs https://host:port")
    return ClusterAccess(
        server=server.rstrip("/"),
        namespace=chosen.text("namespace") or "default",
        context=name,
        ca=cluster.pem("certificate-authority"),
        insecure=bool(cluster.fields.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.text("tls-server-name") or None,
        certificate=user.pem("client-certificate"),
        key=user.pem("client-key"),
        token=user.text("token") or None,
        token_file=user.path("tokenFile"),
        basic=(user.text("username"), user.text("password")) if user.text("username") else None,
        plugin=_plugin(user, cluster),
        act_as=_act_as(user),
    )


class _Section:
    """A cluster, user or context, with the file it came from."""

    def __init__(self, fields: Mapping[str, Any], file: Path, where: str) -> None:
        self.fields = fields
        self.file = file
        self.where = where

    def text(self, field: str) -> str:
        value = self.fields.get(field) or ""
        if not isinstance(value, str):
            raise BadConfig(f"{self.where} has {field} {value!r}: it must be text")
        return value

    def path(self, field: str) -> str | None:
        value = self.text(field)
        return str(self.file.parent / value) if value else None

    def pem(self, field: str) -> Pem | None:
        data, path = self.text(f"{field}-data"), self.path(field)
        if not data:
            return Pem(path=path) if path else None
        try:
            return Pem(data=base64.b64decode(data, validate=True))
        except binascii.Error:
            raise BadConfig(f"{self.where} has a {field}-data that is no base64") from None


class _Merged:
    """Several files as one; of two things of one name the first counts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.names = os.pathsep.join(map(str, paths))
        self.current = ""
        self._sections: dict[tuple[str, str], _Section] = {}
        found = [path for path in paths if path.is_file()]
        if not found:
            raise BadConfig(f"there is no file {self.names}")
        for path in found:
            self._take(path)

    def _take(self, path: Path) -> None:
        document = _load(path)
        self.current = self.current or str(document.get("current-context") or "")
        for kind, inner in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            for each in document.get(kind) or ():
                if not isinstance(each, dict) or not isinstance(each.get(inner) or {}, dict):
                    raise BadConfig(f"{path}: {kind} must be a list of names, each with a {inner}")
                name = str(each.get("name", ""))
                section = _Section(each.get(inner) or {}, path, f"{path}: {inner} {name!r}")
                self._sections.setdefault((kind, name), section)

    def need(self, kind: str, name: str) -> _Section:
        section = self._sections.get((kind, name))
        if section is None:
            known = ", ".join(sorted(each for what, each in self._sections if what == kind)) or "none"
            raise BadConfig(f"{self.names} has no {kind[:-1]} {name!r}; it has {known}")
        return section


def _load(path: Path) -> dict[str, Any]:
    import ryaml  # noqa: PLC0415 - in a pod there is no such file to read

    try:
        document = ryaml.load(io.StringIO(path.read_text()))
    except (OSError, ValueError) as error:
        raise BadConfig(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise BadConfig(f"{path} is no kubeconfig")
    return document


def _plugin(user: _Section, cluster: _Section) -> ExecPlugin | None:
    fields = user.fields.get("exec")
    if not fields:
        return None
    asked = _Section(fields, user.file, f"{user.where}, exec")
    version = asked.text("apiVersion")
    if version not in EXEC_VERSIONS:
        raise BadConfig(f"{asked.where} has apiVersion {version!r}; known are {' and '.join(EXEC_VERSIONS)}")
    command = asked.text("command")
    if not command:
        raise BadConfig(f"{asked.where} names no command")
    extensions = cluster.fields.get("extensions") or ()
    given = [each.get("extension") for each in extensions if each.get("name") == "client.authentication.k8s.io/exec"]
    return ExecPlugin(
        command=str(user.file.parent / command) if "/" in command else command,
        api_version=version,
        args=tuple(map(str, fields.get("args") or ())),
        env={str(each["name"]): str(each["value"]) for each in fields.get("env") or ()},
        install_hint=asked.text("installHint"),
        provide_cluster_info=bool(fields.get("provideClusterInfo")),
        cluster_config=given[0] if given else None,
    )


def _act_as(user: _Section) -> tuple[tuple[str, str], ...]:
    """Impersonation, as headers."""
    if not user.text("as"):
        return ()
    groups = tuple(("Impersonate-Group", str(each)) for each in user.fields.get("as-groups") or ())
    return (("Impersonate-User", user.text("as")), *groups)
