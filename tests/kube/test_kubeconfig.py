"""Kubeconfig files, as kubectl reads them, and what is wrong with those that cannot be used."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from fairlease.kube.api.kubeconfig import BadConfig, find_access, from_files, in_cluster

Fields = Mapping[str, object]


def written(path: Path, **parts: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **parts}))
    return path


def a_config(path: Path, name: str = "here", user: Fields | None = None, cluster: Fields | None = None) -> Path:
    return written(
        path,
        contexts=[{"name": name, "context": {"cluster": name, "user": name, "namespace": f"{name}-ns"}}],
        clusters=[{"name": name, "cluster": {"server": f"https://{name}:6443", **(cluster or {})}}],
        users=[{"name": name, "user": user or {"token": f"token-of-{name}"}}],
        **{"current-context": name},
    )


def test_the_current_context_is_used_unless_another_is_named(tmp_path: Path) -> None:
    first, second = a_config(tmp_path / "a", "one"), a_config(tmp_path / "b", "two")
    both = f"{first}{os.pathsep}{second}"
    assert find_access(environment={"KUBECONFIG": both}).server == "https://one:6443"
    named = find_access(context="two", environment={"KUBECONFIG": both})
    assert (named.server, named.namespace, named.token) == ("https://two:6443", "two-ns", "token-of-two")
    assert find_access(str(second), environment={"KUBECONFIG": str(first)}).context == "two"


def test_of_two_files_the_first_to_name_a_thing_wins(tmp_path: Path) -> None:
    first, second = a_config(tmp_path / "a"), a_config(tmp_path / "b", cluster={"server": "https://other"})
    assert from_files([tmp_path / "missing", first, second]).server == "https://here:6443"


def test_paths_in_a_file_are_relative_to_that_file(tmp_path: Path) -> None:
    user = {"client-certificate": "me.crt", "client-key": "/abs/me.key", "tokenFile": "t/token"}
    access = from_files(
        [a_config(tmp_path / "deep" / "config", user=user, cluster={"certificate-authority": "ca.crt"})]
    )
    assert access.ca is not None
    assert access.certificate is not None
    assert access.key is not None
    assert access.ca.path == str(tmp_path / "deep" / "ca.crt")
    assert access.certificate.path == str(tmp_path / "deep" / "me.crt")
    assert access.key.path == "/abs/me.key"
    assert access.token_file == str(tmp_path / "deep" / "t" / "token")


def test_data_inside_a_file_comes_before_a_path(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    access = from_files(
        [a_config(tmp_path / "c", cluster={"certificate-authority": "x", "certificate-authority-data": data})]
    )
    assert access.ca is not None
    assert access.ca.read() == b"PEM"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_exec_plugins_of_both_versions_are_read(tmp_path: Path, version: str) -> None:
    plugin = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": "./get-token",
        "args": ["--for", "me"],
        "env": [{"name": "A", "value": "b"}],
        "provideClusterInfo": True,
    }
    access = from_files([a_config(tmp_path / "c", user={"exec": plugin})])
    assert access.plugin is not None
    assert access.plugin.command == str(tmp_path / "get-token")
    assert (access.plugin.args, access.plugin.env) == (("--for", "me"), {"A": "b"})


def test_the_service_account_of_a_pod_is_a_way_in(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("fairlease-system\n")
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:6443", "fairlease-system")
    assert access.token_file == str(tmp_path / "token")


def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    def refusal(path: Path, context: str | None = None) -> str:
        with pytest.raises(BadConfig) as caught:
            from_files([path], context)
        return str(caught.value)

    old = {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}
    assert "v1alpha1" in refusal(a_config(tmp_path / "a", user=old))
    assert "auth-provider" in refusal(a_config(tmp_path / "b", user={"auth-provider": {"name": "gcp"}}))
    assert "proxy-url" in refusal(a_config(tmp_path / "c", cluster={"proxy-url": "http://x"}))
    assert "no base64" in refusal(a_config(tmp_path / "d", cluster={"certificate-authority-data": "%%%"}))
    assert "no context 'there'; it has here" in refusal(a_config(tmp_path / "e"), "there")
    assert "--context" in refusal(written(tmp_path / "f"))
    assert "there is no file" in refusal(tmp_path / "nowhere")
    assert "https://host:port" in refusal(a_config(tmp_path / "g", cluster={"server": "here:6443"}))
    (tmp_path / "h").write_text("a: [")
    assert "cannot be read" in refusal(tmp_path / "h")
    with pytest.raises(BadConfig, match="--kubeconfig"):
        find_access(environment={"HOME": str(tmp_path)})
