"""The informer against a server that dies, freezes, forgets and lies: it ends equal to it, and says what happened in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import MakePlane
from tests.kube.wires import CONFIG_MAPS, Thing, cable_to, connected, ready, until
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api
from fairlease.kube.api.http import BUFFERED_MAX
from fairlease.kube.api.informer import Change, Informer, What
from fairlease.kube.api.kubeconfig import ClusterAccess
from fairlease.kube.api.resource import Meta, Resource

pytestmark = pytest.mark.xdist_group("informer")

WIDGETS = Resource("tests.example", "v1", "widgets", "Widget")
WIDGET_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.tests.example"},
    "spec": {
        "group": "tests.example",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
STALL_S = 6.0


@pytest.fixture(scope="module")
def frail(make_plane: MakePlane) -> Iterator[Plane]:
    """A server to be maltreated, with a kind of its own."""
    plane = make_plane()
    made = plane.api().post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", WIDGET_CRD)
    assert made.ok, made.message
    yield plane
    plane.stop()


class Follower:
    """An informer with a diary."""

    def __init__(self, api: Api, kind: Resource, namespace: str, into: type[Any] = Thing) -> None:
        self.diary: list[tuple[What, str]] = []
        self.informer: Informer[Thing] = Informer(api, kind, into, self._note, namespace=namespace, stall_s=STALL_S)

    def _note(self, change: Change[Thing]) -> None:
        self.diary.append((change.what, change.object.metadata.name))

    @property
    def has(self) -> dict[str, str]:
        """Names, and the versions we have."""
        return {each.metadata.name: each.metadata.resource_version for each in self.informer.objects.values()}


@asynccontextmanager
async def following(api: Api, kind: Resource, namespace: str, into: type[Any] = Thing) -> AsyncIterator[Follower]:
    follower = Follower(api, kind, namespace, into)
    task = asyncio.create_task(follower.informer.run())
    try:
        await until(follower.informer.synced.is_set, "the first list")
        yield follower
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def there(api: Api, kind: Resource, namespace: str) -> dict[str, str]:
    """What the server has: names and versions."""
    found = await api.list(kind, namespace, into=Thing)
    return {each.metadata.name: each.metadata.resource_version for each in found.items}


async def equal(follower: Follower, api: Api, kind: Resource, namespace: str) -> None:
    """Wait until the copy is what the server has."""
    truth = await there(api, kind, namespace)
    await until(lambda: follower.has == truth, f"the copy is the server's: {len(truth)} objects")


async def make(api: Api, kind: Resource, namespace: str, *names: str, **data: str) -> None:
    def body(name: str) -> dict[str, object]:
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "data": data}

    await asyncio.gather(*(api.create(kind, body(name), namespace) for name in names))


def a_namespace(plane: Plane, name: str) -> str:
    made = plane.api().post("/api/v1/namespaces", {"metadata": {"name": name}})
    assert made.ok or made.status == 409, made.message
    return name


def test_every_change_is_told_once_and_in_order(frail: Plane) -> None:
    namespace = a_namespace(frail, "orderly")

    async def act() -> list[tuple[What, str]]:
        async with connected(frail) as api:
            await make(api, CONFIG_MAPS, namespace, "a", "b")
            async with following(api, CONFIG_MAPS, namespace) as follower:
                follower.diary.clear()
                await make(api, CONFIG_MAPS, namespace, "c")
                await api.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace)
                await api.delete(CONFIG_MAPS, "b", namespace)
                await make(api, CONFIG_MAPS, namespace, "b")
                await equal(follower, api, CONFIG_MAPS, namespace)
                assert follower.informer.objects[f"{namespace}/a"].data == {"x": "1"}
                return follower.diary

    assert asyncio.run(act()) == [
        (What.ADDED, "c"), (What.MODIFIED, "a"), (What.DELETED, "b"), (What.ADDED, "b"),
    ]  # fmt: skip


def test_a_list_longer_than_a_page_is_read_whole(frail: Plane) -> None:
    namespace = a_namespace(frail, "many")

    async def act() -> None:
        async with connected(frail) as api:
            await make(api, CONFIG_MAPS, namespace, *(f"m-{number}" for number in range(1_203)))
            async with following(api, CONFIG_MAPS, namespace) as follower:
                await equal(follower, api, CONFIG_MAPS, namespace)
                assert len(follower.diary) == 1_203

    asyncio.run(act())


def test_objects_as_long_as_the_server_allows_arrive_whole(frail: Plane) -> None:
    namespace = a_namespace(frail, "long")
    long = "x" * 900_000

    async def act() -> None:
        async with connected(frail) as api, following(api, CONFIG_MAPS, namespace) as follower:
            names = [f"long-{number}" for number in range(BUFFERED_MAX // len(long) + 3)]
            await make(api, CONFIG_MAPS, namespace, *names, text=long)
            await equal(follower, api, CONFIG_MAPS, namespace)
            assert all(len(each.data["text"]) == len(long) for each in follower.informer.objects.values())

    asyncio.run(act())


def test_an_object_that_is_not_as_its_type_says_harms_no_other(frail: Plane) -> None:
    namespace = a_namespace(frail, "odd")

    class Strict(msgspec.Struct, frozen=True):
        metadata: Meta
        data: dict[str, int]

    async def act() -> None:
        async with connected(frail) as api:
            await make(api, WIDGETS, namespace, "odd", text="words")
            async with following(api, WIDGETS, namespace, Strict) as follower:
                assert list(follower.informer.unreadable) == [f"{namespace}/odd"]
                await api.create(WIDGETS, {"metadata": {"name": "good"}, "apiVersion": "tests.example/v1",
                                           "kind": "Widget", "data": {"n": 1}}, namespace)  # fmt: skip
                await until(lambda: list(follower.has) == ["good"], "the good one is seen")
                await api.patch(WIDGETS, "odd", {"data": {"text": 5}}, namespace)
                await until(lambda: set(follower.has) == {"good", "odd"}, "the odd one was mended")
                assert not follower.informer.unreadable

    asyncio.run(act())


def test_a_killed_server_costs_nothing_but_time(frail: Plane) -> None:
    namespace = a_namespace(frail, "killed")

    async def act() -> None:
        async with connected(frail) as api:
            await make(api, WIDGETS, namespace, "stays", "goes")
            async with following(api, WIDGETS, namespace) as follower:
                follower.diary.clear()
                frail.apiserver.kill()
                await until(lambda: follower.informer.problem is not None, "the break is noticed")
                frail.apiserver.start()  # for a while it answers 404, 429 or 503 for our kind
                await ready(frail)
                async with connected(frail) as other:
                    await until_served(other, namespace)
                    await other.delete(WIDGETS, "goes", namespace)
                    await make(other, WIDGETS, namespace, "comes")
                    await equal(follower, other, WIDGETS, namespace)
                assert follower.diary == [(What.DELETED, "goes"), (What.ADDED, "comes")]
                assert follower.informer.problem is None

    asyncio.run(act())


async def until_served(api: Api, namespace: str) -> None:
    """Wait until our kind can be written again."""
    for _ in range(600):
        try:
            await api.list(WIDGETS, namespace, into=Thing)
        except Exception:  # noqa: BLE001 - it is just not up yet
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("the kind is never served again")


def test_a_frozen_server_is_left_and_found_again(frail: Plane) -> None:
    namespace = a_namespace(frail, "frozen")

    async def act() -> None:
        async with connected(frail, timeout_s=3.0) as api:
            await make(api, CONFIG_MAPS, namespace, "a")
            async with following(api, CONFIG_MAPS, namespace) as follower:
                await asyncio.sleep(0.5)  # so that it is a watch under way that falls silent
                frail.apiserver.freeze()
                try:
                    await until(lambda: follower.informer.problem is not None, "the silence is noticed", 3 * STALL_S)
                finally:
                    frail.apiserver.thaw()
                assert list(follower.has) == ["a"]
                async with connected(frail) as other:
                    await make(other, CONFIG_MAPS, namespace, "b")
                    await equal(follower, other, CONFIG_MAPS, namespace)
                assert Counter(follower.diary).most_common(1)[0][1] == 1

    asyncio.run(act())


def test_a_half_open_connection_does_not_hang(frail: Plane) -> None:
    namespace = a_namespace(frail, "muted")

    async def act() -> None:
        async with (
            cable_to(frail.port) as cable,
            connected(frail) as api,
            connected(frail, cable.port, timeout_s=2.0) as far,
            following(far, CONFIG_MAPS, namespace) as follower,
        ):
            cable.mute = True
            await make(api, CONFIG_MAPS, namespace, "unheard")
            await until(lambda: follower.informer.problem is not None, "the silence is noticed", 3 * STALL_S)
            cable.mend()
            await equal(follower, api, CONFIG_MAPS, namespace)

    asyncio.run(act())


def test_who_is_about_to_act_on_what_is_not_there_can_have_all_listed_again(frail: Plane) -> None:
    namespace = a_namespace(frail, "again")

    async def act() -> None:
        async with (
            cable_to(frail.port) as cable,
            connected(frail) as api,
            connected(frail, cable.port) as far,
            following(far, CONFIG_MAPS, namespace) as follower,
        ):
            informer = follower.informer
            informer.refresh(60.0)
            assert informer.synced.is_set(), "it was heard of just now"
            cable.mute = True
            await make(api, CONFIG_MAPS, namespace, "unheard")
            cable.mend()
            assert f"{namespace}/unheard" not in informer.objects
            informer.refresh(0.0)
            await asyncio.wait_for(informer.synced.wait(), 10)
            assert f"{namespace}/unheard" in informer.objects
            await make(api, CONFIG_MAPS, namespace, "later")
            await until(lambda: f"{namespace}/later" in informer.objects, "it goes on following")

    asyncio.run(act())


def test_what_was_deleted_while_we_were_away_is_told(frail: Plane) -> None:
    namespace = a_namespace(frail, "away")

    async def act() -> None:
        async with cable_to(frail.port) as cable, connected(frail) as api:
            await make(api, WIDGETS, namespace, "stays", "goes", "returns")
            async with connected(frail, cable.port) as far, following(far, WIDGETS, namespace) as follower:
                follower.diary.clear()
                cable.cut()
                await until(lambda: follower.informer.problem is not None, "the break is noticed")
                await api.delete(WIDGETS, "goes", namespace)
                await api.delete(WIDGETS, "returns", namespace)
                await make(api, WIDGETS, namespace, "returns")
                cable.mend()
                await equal(follower, api, WIDGETS, namespace)
                assert follower.informer.lists == 1, "it resumed where it was"
                assert follower.diary == [
                    (What.DELETED, "goes"), (What.DELETED, "returns"), (What.ADDED, "returns"),
                ]  # fmt: skip

    asyncio.run(act())


def test_a_compacted_history_is_made_up_for_by_a_list(frail: Plane) -> None:
    namespace = a_namespace(frail, "compacted")

    async def act() -> None:
        async with cable_to(frail.port) as cable, connected(frail) as api:
            await make(api, WIDGETS, namespace, "stays", "goes", "returns")
            async with connected(frail, cable.port) as far, following(far, WIDGETS, namespace) as follower:
                follower.diary.clear()
                cable.cut()
                await until(lambda: follower.informer.problem is not None, "the break is noticed")
                await api.delete(WIDGETS, "goes", namespace)
                await api.delete(WIDGETS, "returns", namespace)
                await make(api, WIDGETS, namespace, "returns")
                await asyncio.to_thread(compact, frail)
                frail.apiserver.kill()  # it would remember what etcd forgot
                frail.apiserver.start()
                await ready(frail)
                cable.mend()
                async with connected(frail) as other:
                    await until_served(other, namespace)
                    await equal(follower, other, WIDGETS, namespace)
                assert follower.informer.lists == 2, "the server no longer knew our place"
                assert Counter(follower.diary) == Counter(
                    [(What.DELETED, "goes"), (What.DELETED, "returns"), (What.ADDED, "returns")]
                )
                assert follower.diary.index((What.DELETED, "returns")) < follower.diary.index((What.ADDED, "returns"))

    asyncio.run(act())


def compact(plane: Plane) -> None:
    """Have etcd forget everything but the present."""
    url = next(each.partition("=")[2] for each in plane.etcd.argv if each.startswith("--listen-client-urls="))

    def ask(path: str, body: dict[str, object]) -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}{path}", json.dumps(body).encode(), timeout=10) as answer:  # noqa: S310 - etcd on this machine
            found: dict[str, Any] = json.load(answer)
            return found

    revision = ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    ask("/v3/kv/compaction", {"revision": revision, "physical": True})


Reply = Callable[[str], bytes]


@asynccontextmanager
async def a_server_that_says(reply: Reply) -> AsyncIterator[tuple[Api, list[str]]]:
    """What no real server can be made to do reliably: the same bad answer again and again. Notes what it is asked."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                asked.append(path)
                body = reply(path)
                status = b"200 OK" if b'"code"' not in body else b"410 Gone"
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with Api(ClusterAccess(server=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as api:
        yield api, asked
    server.close()


def test_a_history_that_is_always_gone_is_not_asked_for_in_a_spin() -> None:
    gone = msgspec.json.encode({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    empty = msgspec.json.encode({"metadata": {"resourceVersion": "7"}, "items": []})

    async def act() -> list[str]:
        async with a_server_that_says(lambda path: gone if "watch=true" in path else empty) as (api, asked):
            async with following(api, CONFIG_MAPS, "any"):
                await asyncio.sleep(2.0)
            return asked

    asked = asyncio.run(act())
    assert 4 <= len(asked) <= 16, f"{len(asked)} requests in two seconds"


def test_a_bookmark_moves_us_on_while_nothing_happens(frail: Plane) -> None:
    namespace = a_namespace(frail, "quiet")

    async def act() -> tuple[str, str, int]:
        async with connected(frail) as api:
            await make(api, CONFIG_MAPS, namespace, "a")
            async with following(api, CONFIG_MAPS, namespace) as follower:
                before = follower.informer.version
                await make(api, CONFIG_MAPS, a_namespace(frail, "elsewhere"), *(f"e-{number}" for number in range(5)))
                await until(lambda: follower.informer.version != before, "a bookmark moves us on", 4 * STALL_S)
                return before, follower.informer.version, follower.informer.lists

    before, after, lists = asyncio.run(act())
    assert int(after) > int(before)
    assert lists == 1


def test_who_is_cancelled_leaves_nothing_behind(frail: Plane) -> None:
    async def act() -> set[str]:
        async with connected(frail) as api, following(api, CONFIG_MAPS, "default"):
            pass
        await asyncio.sleep(0)
        return {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task().get_name()}  # type: ignore[union-attr] # we are one

    assert asyncio.run(act()) == set()
