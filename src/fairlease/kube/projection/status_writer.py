"""How an object is made, and how its status is kept as it should be: once if possible, and again if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlease.kube.api.cache import ClusterCache, made_key
from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.names import FINALIZER
from fairlease.kube.api.resource import LEASES, RUNS, Resource, Seen
from fairlease.kube.projection import statuses
from fairlease.kube.projection.gangs import TERMINATING
from fairlease.kube.projection.write_queue import Target, WriteLane, WritePart
from fairlease.model.record import Key, key
from fairlease.report.views import View

if TYPE_CHECKING:
    from fairlease.kube.api.connection import Api
    from fairlease.kube.api.wire_types import OwnSeen
    from fairlease.kube.projection.writer import Writer

Body = dict[str, Any]


class _Written(msgspec.Struct):
    status: View = {}


class Told(NamedTuple):
    """The last status that we wrote of an object, and what the server made of it."""

    said: View
    answer: View


class StatusWriter:
    """Writes through a `Writer`, and remembers what it wrote last."""

    def __init__(self, api: Api, writer: Writer, sight: ClusterCache) -> None:
        self._api, self._writer, self._sight, self._made = api, writer, sight, sight.made
        self._told: dict[Target, Told] = {}

    def forget(self, target: Target) -> None:
        """The object is gone."""
        self._told.pop(target, None)

    def has_told(self, target: Target) -> bool:
        """Whether its status was written, or found to be right."""
        return target in self._told

    def note(self, target: Target, status: View) -> None:
        """Its status was written by other means."""
        self._told[target] = Told(status, status)

    def last(self, what: Resource, seen: OwnSeen) -> View:
        """An object's status as we left it, as far as is known: it may not be seen yet, or somebody wrote over it."""
        told = self._told.get(Target(what.plural, seen.metadata.key))
        return told.said if told is not None and seen.status else seen.status

    def report(self, what: Resource, part: WritePart, seen: OwnSeen, wanted: View) -> None:
        """Replace a status that says something else, or that is not as we left it.

        What the server made of our last word (it drops what it does not know) is compared with what it has, and our last word with
        what we have to say now: so nothing is said twice.
        """
        target = Target(what.plural, seen.metadata.key)
        told = self._told.get(target)
        if told is None and statuses.alike(wanted, seen.status):
            told = self._told[target] = Told(wanted, seen.status)
        if told is not None and told.answer == seen.status:
            self._made.seen(str(target))
        left = told is not None and (told.answer == seen.status or self._made.get(str(target)) is not None)
        if left and told is not None and statuses.alike(wanted, told.said):
            return  # it is as we left it, or we left it just now, and have not seen it yet
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": seen.metadata.uid},
            {"op": "add", "path": "/status", "value": wanted},
        ]

        async def act() -> None:
            try:
                body = await self._api.patch(
                    what, seen.metadata.name, operations, seen.metadata.namespace, sub="status"
                )
            except ApiError as error:
                if not error.not_found:
                    raise
                return
            self._told[target] = Told(wanted, msgspec.json.decode(body, type=_Written).status)
            self._made.add(str(target))

        self._writer.write(WriteLane.STATUS, part, target, act)

    def finalize(self, part: WritePart, seen: OwnSeen, *, stays: bool) -> None:
        """Put our finalizer on a Run, or take it off. It is an operation on that list alone.

        So a status that is written at the same time is no reason to begin anew. What was written is not written again before the
        server has told of it: of an object whose last finalizer went, it tells that it is gone.
        """
        meta, name = seen.metadata, Key(seen.metadata.key)
        if stays == (FINALIZER in meta.finalizers) or self._sight.finalized.get(name) is not None:
            return
        if stays:
            place, before = "/metadata/finalizers", list(meta.finalizers)
            change: list[Body] = [
                {"op": "test", "path": place, "value": before or None},
                {"op": "add", "path": place, "value": [*before, FINALIZER]},
            ]
        else:
            place = f"/metadata/finalizers/{meta.finalizers.index(FINALIZER)}"
            change = [{"op": "test", "path": place, "value": FINALIZER}, {"op": "remove", "path": place}]
        operations = [{"op": "test", "path": "/metadata/uid", "value": meta.uid}, *change]

        async def act() -> None:
            try:
                answer = await self._api.patch(RUNS, meta.name, operations, meta.namespace)
            except ApiError as error:
                if not error.not_found:
                    raise
                return
            version = msgspec.json.decode(answer, type=Seen).metadata.resource_version
            self._sight.finalized.add(name, version=version if stays else "")

        self._writer.write(WriteLane.STATUS, part, Target("finalizers", name), act)

    def create(self, lane: WriteLane, part: WritePart, what: Resource, namespace: str, name: str, body: Body) -> None:
        """Have an object made."""
        full = key(name, namespace)

        async def act() -> None:
            await self.created(what, namespace, body)
            if what is LEASES and full not in self._sight.leases.objects:
                self._made.add(made_key(what, full))

        self._writer.write(lane, part, Target(what.plural, full), act)

    async def created(self, what: Resource, namespace: str | None, body: Body) -> None:
        """Make an object; one that is there already by that name is ours: names are never used twice.

        In a namespace that is being deleted nothing can be made, and nobody will look for it.
        """
        try:
            await self._api.create(what, body, namespace)
        except ApiError as error:
            if not (error.already_exists or TERMINATING in error.causes):
                raise
