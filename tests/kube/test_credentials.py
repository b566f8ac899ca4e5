"""Credentials that change under us: token files, plugins of both versions, certificates that a plugin gives."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kube.wires import CONFIG_MAPS, Thing, way_into
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.credentials import Credentials
from fairlease.kube.api.kubeconfig import BadConfig, ClusterAccess, ExecPlugin, Pem, from_files
from fairlease.kube.api.resource import NAMESPACES


def a_plugin(folder: Path, status: dict[str, str], version: str = "v1") -> ExecPlugin:
    """A plugin that notes each call with what it was told, and gives a status; `COUNT` in it becomes the number of calls."""
    script = folder / "plugin.py"
    calls = folder / "calls"
    script.write_text(
        "import json, os, pathlib\n"
        f"calls = pathlib.Path({str(calls)!r})\n"
        "told = os.environ['KUBERNETES_EXEC_INFO']\n"
        "calls.write_text((calls.read_text() if calls.exists() else '') + told + chr(10))\n"
        "count = str(len(calls.read_text().splitlines()))\n"
        f"status = json.loads({json.dumps(status)!r}.replace('COUNT', count))\n"
        "print(json.dumps({'apiVersion': json.loads(told)['apiVersion'], 'kind': 'ExecCredential', 'status': status}))\n"
    )
    return ExecPlugin(
        command=sys.executable,
        args=(str(script),),
        api_version=f"client.authentication.k8s.io/{version}",
        provide_cluster_info=True,
    )


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_is_told_what_it_is_for_and_asked_once(tmp_path: Path, version: str) -> None:
    access = ClusterAccess(server="https://here:6443", plugin=a_plugin(tmp_path, {"token": "t-COUNT"}, version))

    async def ask() -> list[str]:
        credentials = Credentials(access)
        return [await credentials.headers() for _ in range(3)]

    assert asyncio.run(ask()) == ["Authorization: Bearer t-1\r\n"] * 3
    (told,) = calls(tmp_path)
    assert told["apiVersion"] == f"client.authentication.k8s.io/{version}"
    assert told["spec"] == {"interactive": False, "cluster": {"server": "https://here:6443"}}


def test_a_plugin_is_asked_again_before_its_token_ends(tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=11)).strftime("%Y-%m-%dT%H:%M:%SZ")
    access = ClusterAccess(
        server="https://here", plugin=a_plugin(tmp_path, {"token": "t-COUNT", "expirationTimestamp": soon})
    )

    async def ask() -> list[str]:
        credentials = Credentials(access)
        first = await credentials.headers()
        await asyncio.sleep(1.1)
        return [first, await credentials.headers()]

    assert asyncio.run(ask()) == ["Authorization: Bearer t-1\r\n", "Authorization: Bearer t-2\r\n"]


def test_of_many_requests_that_need_a_token_one_asks_the_plugin(tmp_path: Path) -> None:
    access = ClusterAccess(server="https://here", plugin=a_plugin(tmp_path, {"token": "t-COUNT"}))

    async def ask() -> set[str]:
        credentials = Credentials(access)
        first = set(await asyncio.gather(*(credentials.headers() for _ in range(20))))
        edition = credentials.edition
        assert all(await asyncio.gather(*(credentials.renew(edition) for _ in range(20))))
        return first | {await credentials.headers()}

    assert asyncio.run(ask()) == {"Authorization: Bearer t-1\r\n", "Authorization: Bearer t-2\r\n"}
    assert len(calls(tmp_path)) == 2


def test_a_plugin_that_fails_is_named_with_what_it_said() -> None:
    def failure(*args: str, hint: str = "") -> str:
        command = args[0]
        plugin = ExecPlugin(
            command=command, args=args[1:], api_version="client.authentication.k8s.io/v1", install_hint=hint
        )
        with pytest.raises(BadConfig) as caught:
            asyncio.run(Credentials(ClusterAccess(server="https://here", plugin=plugin)).headers())
        return str(caught.value)

    assert "not logged in" in failure(sys.executable, "-c", "raise SystemExit('not logged in')")
    assert "no ExecCredential" in failure(sys.executable, "-c", "print('hello')")
    assert "neither a token nor a certificate" in failure(sys.executable, "-c", "print('{}')")
    assert failure("/no/such/plugin", hint="install it from there").endswith("install it from there")


def test_a_token_file_that_is_being_replaced_does_not_stop_us(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    async def ask() -> list[str]:
        credentials = Credentials(ClusterAccess(server="https://here", token_file=str(token)))
        said = [await credentials.headers()]
        token.unlink()
        assert not await credentials.renew(credentials.edition)
        said.append(await credentials.headers())
        token.write_text("new\n")
        assert await credentials.renew(credentials.edition)
        return [*said, await credentials.headers()]

    old, new = "Authorization: Bearer old\r\n", "Authorization: Bearer new\r\n"
    assert asyncio.run(ask()) == [old, old, new]


def test_a_token_that_ran_out_is_read_again_when_the_server_says_no(plane: Plane, tmp_path: Path) -> None:
    account = {"metadata": {"name": "tester"}}
    plane.api().post("/api/v1/namespaces/default/serviceaccounts", account)
    good = plane.service_account_token("default", "tester")
    token = tmp_path / "token"
    token.write_text("eyJ.not.one")
    access = msgspec.structs.replace(way_into(plane), certificate=None, key=None, token_file=str(token))

    async def ask() -> int:
        async with Api(access) as api:
            with pytest.raises(ApiError) as refused:
                await api.get(NAMESPACES, "default", into=Thing)
            assert refused.value.code == 401
            token.write_text(good)
            with pytest.raises(ApiError) as forbidden:  # known by now, and without rights: nobody gave it any
                await api.get(NAMESPACES, "default", into=Thing)
            return forbidden.value.code

    assert asyncio.run(ask()) == 403


def test_a_certificate_from_a_plugin_lets_us_in(plane: Plane, tmp_path: Path) -> None:
    mine = way_into(plane)
    assert mine.certificate is not None
    assert mine.key is not None
    status = {"clientCertificateData": mine.certificate.read().decode(), "clientKeyData": mine.key.read().decode()}
    access = msgspec.structs.replace(mine, certificate=None, key=None, plugin=a_plugin(tmp_path, status))

    async def ask() -> str:
        async with Api(access) as api:
            return (await api.get(NAMESPACES, "default", into=Thing)).metadata.name

    assert asyncio.run(ask()) == "default"


def test_certificates_that_were_renewed_are_used_by_new_connections(plane: Plane, tmp_path: Path) -> None:
    mine = way_into(plane)
    certificate, key = tmp_path / "me.crt", tmp_path / "me.key"
    assert mine.certificate is not None
    assert mine.key is not None
    access = msgspec.structs.replace(mine, certificate=Pem(path=str(certificate)), key=Pem(path=str(key)))

    def put(user: ClusterAccess) -> None:
        assert user.certificate is not None
        assert user.key is not None
        certificate.write_bytes(user.certificate.read())
        key.write_bytes(user.key.read())

    async def code(api: Api) -> int:
        try:
            await api.list(CONFIG_MAPS, "default", into=Thing)
        except ApiError as error:
            return error.code
        return 200

    async def ask() -> list[int]:
        put(from_files([plane.kubeconfig("nobody-in-particular")]))
        async with Api(access) as api:
            before = await code(api)
            put(mine)
            for wire in list(api._pool._wires):  # as when the server ends an idle connection
                wire.close()
            await asyncio.sleep(0.05)
            return [before, await code(api)]

    assert asyncio.run(ask()) == [403, 200]


def test_who_has_no_certificate_at_all_is_told_so() -> None:
    access = ClusterAccess(server="https://127.0.0.1:1", certificate=Pem(data=b"no PEM"), key=Pem(data=b"no PEM"))
    begun = time.monotonic()

    async def ask() -> None:
        async with Api(access) as api:
            await api.get(NAMESPACES, "default", into=Thing)

    with pytest.raises(BadConfig, match="cannot be used"):
        asyncio.run(ask())
    assert time.monotonic() - begun < 5.0
