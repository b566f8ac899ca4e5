"""What proves who we are, kept fresh: tokens in files that are renewed, plugins that are asked again, certificates that rotate.

lightkube was tried for this (1.0.1) and refuses exec plugins of `client.authentication.k8s.io/v1`, takes no client certificate
from a plugin, gives it no `KUBERNETES_EXEC_INFO`, and asks it again only when the server has said no.
tests/kube/test_credentials.py shows each of these at work here.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
from datetime import datetime
from pathlib import Path

import msgspec

from fairlease.kube.api.kubeconfig import BadConfig, ClusterAccess, ExecPlugin, Pem

TOKEN_READ_EVERY_S = 60.0
"""A pod's token is renewed long before it ends; who reads it each minute never presents an old one."""

PLUGIN_TIMEOUT_S = 60.0
EXPIRY_MARGIN_S = 10.0


class _Given(msgspec.Struct, rename="camel"):
    token: str | None = None
    expiration_timestamp: datetime | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(msgspec.Struct):
    status: _Given = msgspec.field(default_factory=_Given)


class Credentials:
    """The headers and the TLS of one identity. A request asks for both; most of the time that is a comparison."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self.edition = 0
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in access.act_as)
        self._token: str | None = None
        self._fresh_until = 0.0
        self._stamp: object = None
        self._context: ssl.SSLContext | None = None
        self._given = _Given()
        self._asking = asyncio.Lock()

    async def headers(self) -> str:
        """The header lines that say who asks."""
        access = self.access
        if (access.token_file or access.plugin) and time.monotonic() >= self._fresh_until:
            async with self._asking:
                if time.monotonic() >= self._fresh_until:  # else another has asked while we waited
                    await self._get()
        token = self._token or access.token
        if token:
            return f"{self._headers}Authorization: Bearer {token}\r\n"
        if access.basic:
            pair = base64.b64encode(":".join(access.basic).encode()).decode()
            return f"{self._headers}Authorization: Basic {pair}\r\n"
        return self._headers

    async def renew(self, edition: int) -> bool:
        """Get anew what can be had anew, because `edition` will not do; says whether there is another to try.

        Of many who find the same edition too old, one asks, and all get the answer.
        """
        async with self._asking:
            if edition == self.edition:
                await self._get()
            return edition != self.edition

    async def _get(self) -> None:
        before = (self._token, self._given)
        if self.access.token_file:
            self._read_token(self.access.token_file)
        elif self.access.plugin:
            await self._ask(self.access.plugin)
        self.edition += (self._token, self._given) != before

    def _read_token(self, path: str) -> None:
        try:
            token = Path(path).read_text().strip()
        except OSError as error:
            if self._token is None:
                raise BadConfig(f"the token file {path} cannot be read: {error.strerror}") from None
            token = self._token  # it is being replaced; what we have still counts
        self._token = token
        self._fresh_until = time.monotonic() + TOKEN_READ_EVERY_S

    async def _ask(self, plugin: ExecPlugin) -> None:
        given = await _run(plugin, self.access)
        if given.token is None and given.client_certificate_data is None:
            raise BadConfig(f"{plugin.command} gave neither a token nor a certificate")
        self._given, self._token = given, given.token
        left_s = float("inf")
        if given.expiration_timestamp is not None:
            left_s = max(1.0, given.expiration_timestamp.timestamp() - time.time() - EXPIRY_MARGIN_S)
        self._fresh_until = time.monotonic() + left_s

    def tls(self) -> ssl.SSLContext | None:
        """The TLS of a new connection; made again where a certificate's file or the plugin's answer is another by now."""
        access = self.access
        if access.server.startswith("http://"):
            return None
        stamp = (_stamp(access.ca), _stamp(access.certificate), _stamp(access.key), self._given.client_certificate_data)
        if self._context is None or stamp != self._stamp:
            self._context, self._stamp = self._make(), stamp
        return self._context

    def _make(self) -> ssl.SSLContext:
        access, given = self.access, self._given
        try:
            context = ssl.create_default_context(cadata=access.ca.read().decode("ascii") if access.ca else None)
            if access.insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if given.client_certificate_data:
                _present(context, given.client_certificate_data.encode(), (given.client_key_data or "").encode())
            elif access.certificate and access.key:
                _present(context, access.certificate.read(), access.key.read())
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise BadConfig(f"the certificates for {access.server} cannot be used: {error}") from None
        return context


def _stamp(pem: Pem | None) -> object:
    if pem is None or pem.path is None:
        return None
    try:
        found = Path(pem.path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _present(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate from memory: OpenSSL wants a file, and a private key has no business on a disk."""
    secret = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        os.write(secret, certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{secret}")
    finally:
        os.close(secret)


async def _run(plugin: ExecPlugin, access: ClusterAccess) -> _Given:
    """Have a plugin tell our credentials. It gets no terminal: Fairlease asks it in the background."""
    information = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": _asked(plugin, access)}
    environment = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(information).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
        raise BadConfig(f"the credential plugin {plugin.command} cannot be run: {error.strerror}{hint}") from None
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT_S):
            said, complained = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise BadConfig(f"{plugin.command} gave no credentials within {PLUGIN_TIMEOUT_S:.0f} s") from None
        raise
    if process.returncode != 0:
        words = complained.decode(errors="replace").strip()[-500:]
        raise BadConfig(f"{plugin.command} ended with {process.returncode}: {words}")
    try:
        return msgspec.json.decode(said, type=_ExecCredential).status
    except msgspec.DecodeError as error:
        raise BadConfig(f"{plugin.command} gave no ExecCredential: {error}") from None


def _asked(plugin: ExecPlugin, access: ClusterAccess) -> dict[str, object]:
    if not plugin.provide_cluster_info:
        return {"interactive": False}
    cluster: dict[str, object] = {"server": access.server}
    if access.tls_server_name:
        cluster["tls-server-name"] = access.tls_server_name
    if access.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if access.ca:
        cluster["certificate-authority-data"] = base64.b64encode(access.ca.read()).decode()
    if plugin.cluster_config is not None:
        cluster["config"] = plugin.cluster_config
    return {"interactive": False, "cluster": cluster}
