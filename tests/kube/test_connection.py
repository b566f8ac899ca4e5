"""What the connection does to a real server, and what it makes of answers that are no."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from tests.kube.wires import CONFIG_MAPS, Thing, cable_to, connected
from tools.controlplane import Plane

from fairlease.kube.api.connection import POOL_SIZE, Api, ApiError
from fairlease.kube.api.http import Unreachable
from fairlease.kube.api.kubeconfig import ClusterAccess
from fairlease.kube.api.resource import NODES, PODS, RUNS, Meta
from fairlease.model.objects import API_VERSION


class Pod(msgspec.Struct, frozen=True):
    class Spec(msgspec.Struct, rename="camel", frozen=True):
        node_name: str = ""

    class Status(msgspec.Struct, frozen=True):
        phase: str = ""

    metadata: Meta
    spec: Spec
    status: Status


def a_thing(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def a_pod(name: str) -> dict[str, object]:
    spec = {"schedulerName": "fairlease", "containers": [{"name": "main", "image": "work"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def run(plane: Plane, act: Any) -> Any:  # noqa: ANN401 - each test's own
    async def with_connection() -> object:
        async with connected(plane) as api:
            return await act(api)

    return asyncio.run(with_connection())


def test_our_kinds_are_those_that_files_name() -> None:
    assert RUNS.api_version == API_VERSION


def test_an_object_lives_from_create_to_delete(plane: Plane, namespace: str) -> None:
    async def act(api: Api) -> None:
        await api.create(CONFIG_MAPS, a_thing("it", a="1"), namespace)
        with pytest.raises(ApiError) as twice:
            await api.create(CONFIG_MAPS, a_thing("it"), namespace)
        assert (twice.value.already_exists, twice.value.conflict) == (True, False)
        await api.patch(CONFIG_MAPS, "it", {"data": {"b": "2"}}, namespace)
        await api.patch(CONFIG_MAPS, "it", [{"op": "remove", "path": "/data/a"}], namespace)
        thing = await api.get(CONFIG_MAPS, "it", namespace, into=Thing)
        assert thing.data == {"b": "2"}
        assert thing.metadata.key == f"{namespace}/it"
        with pytest.raises(ApiError) as other:
            await api.delete(CONFIG_MAPS, "it", namespace, uid="00000000-0000-0000-0000-000000000000")
        assert other.value.conflict
        assert await api.delete(CONFIG_MAPS, "it", namespace, uid=thing.metadata.uid)
        assert not await api.delete(CONFIG_MAPS, "it", namespace)
        with pytest.raises(ApiError) as gone:
            await api.get(CONFIG_MAPS, "it", namespace, into=Thing)
        assert (gone.value.not_found, gone.value.reason) == (True, "NotFound")

    run(plane, act)


def test_a_dry_run_writes_nothing(plane: Plane, namespace: str) -> None:
    async def act(api: Api) -> int:
        await api.create(CONFIG_MAPS, a_thing("it"), namespace, dry_run=True)
        return len((await api.list(CONFIG_MAPS, namespace, into=Thing, fields="metadata.name=it")).items)

    assert run(plane, act) == 0


def test_a_pod_is_bound_once_and_only_by_its_uid(plane: Plane, namespace: str) -> None:
    async def act(api: Api) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{namespace}"}}
        await api.create(NODES, node)
        await api.create(PODS, a_pod("rank-0"), namespace)
        pod = await api.get(PODS, "rank-0", namespace, into=Pod)
        with pytest.raises(ApiError):
            await api.bind(namespace, "rank-0", f"node-{namespace}", uid="00000000-0000-0000-0000-000000000000")
        await api.bind(namespace, "rank-0", f"node-{namespace}", uid=pod.metadata.uid)
        assert (await api.get(PODS, "rank-0", namespace, into=Pod)).spec.node_name == f"node-{namespace}"
        with pytest.raises(ApiError) as twice:
            await api.bind(namespace, "rank-0", "elsewhere", uid=pod.metadata.uid)
        assert twice.value.conflict
        await api.patch(PODS, "rank-0", {"status": {"phase": "Running"}}, namespace, sub="status")
        assert (await api.get(PODS, "rank-0", namespace, into=Pod)).status.phase == "Running"
        await api.delete(PODS, "rank-0", namespace, grace_s=0)
        await api.delete(NODES, f"node-{namespace}")

    run(plane, act)


def test_more_writes_than_connections_all_get_through(plane: Plane, namespace: str) -> None:
    async def act(api: Api) -> int:
        async with cable_to(plane.port) as cable, connected(plane, cable.port) as far:
            await asyncio.gather(*(far.create(CONFIG_MAPS, a_thing(f"m-{n}"), namespace) for n in range(5 * POOL_SIZE)))
            assert cable.connections <= POOL_SIZE
        return len((await api.list(CONFIG_MAPS, namespace, into=Thing)).items)

    assert run(plane, act) >= 5 * POOL_SIZE


def test_an_invalid_object_is_refused_with_the_field_that_is_wrong(plane: Plane, namespace: str) -> None:
    async def act(api: Api) -> ApiError:
        with pytest.raises(ApiError) as refused:
            await api.create(PODS, a_pod("Not A Name"), namespace)
        return refused.value

    error = run(plane, act)
    assert (error.code, error.reason) == (422, "Invalid")
    assert "metadata.name" in error.message


def test_a_create_without_an_answer_says_that_it_may_have_happened(plane: Plane, namespace: str) -> None:
    async def act(api: Api) -> tuple[bool, int]:
        async with cable_to(plane.port) as cable, connected(plane, cable.port, timeout_s=1.0) as far:
            await far.list(CONFIG_MAPS, namespace, into=Thing)
            cable.deaf = True
            with pytest.raises(Unreachable) as lost:
                await far.create(CONFIG_MAPS, a_thing("it"), namespace)
            return lost.value.sent, len(
                (await api.list(CONFIG_MAPS, namespace, into=Thing, fields="metadata.name=it")).items
            )

    assert run(plane, act) == (True, 1)


async def told(answers: list[bytes], patience_s: float = 30.0) -> tuple[Any, int, float]:
    """Ask for an object of a server that gives these answers: what came, after how many requests, and seconds."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answers[min(count, len(answers) - 1)])
                count += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    begun = time.monotonic()
    async with Api(
        ClusterAccess(server=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), patience_s=patience_s
    ) as api:
        try:
            found: Any = await api.get(CONFIG_MAPS, "it", "default", into=Thing)
        except ApiError as error:
            found = error
    server.close()
    return found, count, time.monotonic() - begun


def an_answer(status: str, body: object, *headers: str) -> bytes:
    data = msgspec.json.encode(body)
    lines = "".join(f"{each}\r\n" for each in headers)
    return f"HTTP/1.1 {status}\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data


BUSY = an_answer("429 Too Many Requests", {"code": 429, "reason": "TooManyRequests"}, "Retry-After: 1")
IT = an_answer("200 OK", {"metadata": {"name": "it"}})


def test_a_busy_server_is_asked_again_when_it_said() -> None:
    found, count, seconds = asyncio.run(told([BUSY, BUSY, IT]))
    assert (found.metadata.name, count) == ("it", 3)
    assert seconds >= 2.0


def test_patience_ends_with_the_last_answer() -> None:
    found, count, seconds = asyncio.run(told([BUSY], patience_s=1.5))
    assert (found.code, found.retry_after_s, count) == (429, 1.0, 2)
    assert seconds < 5.0


def test_a_no_that_means_no_is_not_asked_again() -> None:
    forbidden = an_answer("403 Forbidden", {"code": 403, "reason": "Forbidden", "message": "you may not"})
    found, count, _ = asyncio.run(told([forbidden]))
    assert (found.code, found.message, count) == (403, "you may not", 1)


def test_an_answer_that_is_no_status_is_told_as_it_is() -> None:
    found, _, _ = asyncio.run(told([b"HTTP/1.1 400 Bad Request\r\nContent-Length: 11\r\n\r\nno idea how"]))
    assert (found.code, found.message) == (400, "no idea how")
