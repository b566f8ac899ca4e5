"""Certificates for one control plane: its own authority, the server's, and one for whomever a test wants to be.

Made by openssl, which stands on every machine that has certificates at all; a library would be one more dependency.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.controlplane.build import Missing

_CONFIG = """
[req]
distinguished_name = dn
[dn]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, digitalSignature
[server]
subjectAltName = IP:127.0.0.1, DNS:localhost
extendedKeyUsage = serverAuth
[client]
extendedKeyUsage = clientAuth
"""


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        self._config = folder / "openssl.cnf"
        if not self.certificate.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._config.write_text(_CONFIG)
            self._make("ca", "/CN=fairlease-controlplane", "authority")

    def server(self) -> tuple[Path, Path]:
        """Certificate and key for serving on loopback."""
        return self._issue("server", "/CN=kube-apiserver", "server")

    def client(self, name: str, user: str, groups: tuple[str, ...]) -> tuple[Path, Path]:
        """Certificate and key that make their bearer a user in groups; `name` is that of the files."""
        subject = "".join(f"/O={_escaped(group)}" for group in groups) + f"/CN={_escaped(user)}"
        return self._issue(name, subject, "client")

    def signing_keys(self) -> tuple[Path, Path]:
        """The keys with which tokens of service accounts are checked and signed: public and private."""
        public, private = self.folder / "tokens.pub", self.folder / "tokens.key"
        if not public.exists():
            _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(private))
            _openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
        return public, private

    def _issue(self, name: str, subject: str, extensions: str) -> tuple[Path, Path]:
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if not certificate.exists():
            self._make(name, subject, extensions, "-CA", str(self.certificate), "-CAkey", str(self._key))
        return certificate, key

    def _make(self, name: str, subject: str, extensions: str, *signed: str) -> None:
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "365", "-utf8")
        made = ("-keyout", str(key), "-out", str(certificate))
        _openssl(
            "req", *kind, "-config", str(self._config), "-extensions", extensions, "-subj", subject, *signed, *made
        )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("/", "\\/").replace("+", "\\+")


def _openssl(*arguments: str) -> None:
    if shutil.which("openssl") is None:
        raise Missing("the control plane's certificates are made by `openssl`, which is not on the path")
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"openssl {arguments[0]} failed (version 3 or newer is needed): {done.stderr.strip()}")
