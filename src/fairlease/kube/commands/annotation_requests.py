"""The verbs `drill` and `resolve`, which people ask of the controller by an annotation (`kube.api.annotation_commands`).

Times are those of who asks: they include the way to the controller and back.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.kube.api.annotation_commands import (
    DONE,
    DRILL,
    FRESH_MS,
    RESOLVE,
    RESOLVE_BY,
    DrillWish,
    ResolveWish,
    reply_name,
)
from fairlease.kube.api.connection import Api, ApiError
from fairlease.kube.api.names import NAMESPACE, RANK
from fairlease.kube.api.refused import Unanswered, name_key, no_run
from fairlease.kube.api.resource import LEASES, NAMESPACES, PODS, RUNS, OwnSeen, Resource
from fairlease.kube.api.wire_types import PodSeen
from fairlease.kube.ledger.archive import read_events
from fairlease.model.lease import Role
from fairlease.model.record import Key, short, split
from fairlease.reason import Reason
from fairlease.runtime import edits
from fairlease.runtime import requests as rq
from fairlease.runtime.requests import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlease.kube.commands.objects import Answer
    from fairlease.scheduler import Scheduler

EVENTS = Resource("", "v1", "events", "Event")
"""The same as those of `events.k8s.io`, under the name that the role `view` lets one read."""
REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
ELSEWHERE = "default"
"""Where the Events of objects without a namespace lie."""

DRILL_S, ANSWER_S, SPARE_S, PAUSE_S = 60.0, 30.0, 3.0, 0.1
"""How long a drill waits for the pod on the spare, and how long anybody waits for the controller."""


class AnnotationRequests:
    """Those verbs. `present` reads the ledger."""

    def __init__(self, api: Api, present: Callable[[], Awaitable[Scheduler]]) -> None:
        self._api, self._present = api, present
        self.verbs: dict[str, tuple[type[rq.Args], Callable[[Any], Awaitable[Answer]]]] = {
            "drill": (rq.DrillArgs, self.drill),
            "resolve": (rq.ResolveArgs, self.resolve),
        }

    # --- drill -----------------------------------------------------------------------------------------------------------

    async def drill(self, args: rq.DrillArgs) -> Answer:
        """Rehearse a swap, and tell how long it took until it was decided and until the rank's pod ran on the spare."""
        name = name_key(args.run)
        namespace, short_name = split(name)
        before = await self._open_leases(name)
        wish = DrillWish(id=uuid.uuid4().hex, at=_now(), rank=args.rank)
        begun = time.perf_counter()
        try:
            await self._api.patch(RUNS, short_name, _annotated({DRILL: _text(wish)}), namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            raise no_run(name) from None
        await self._answer(short_name, namespace, wish.id)
        decided_ms = edits.ms_since(begun)
        lost, new, spare = await self._exchanged(name, before)
        told: Answer = {
            "name": short(name),
            "attempt": new.spec["attempt"],
            "rank": args.rank,
            "from": _place(lost),
            "to": _place(new),
            "spare": spare,
            "decidedMs": decided_ms,
        }
        return told | await self._run_again(namespace, lost.metadata.name, new.metadata.name, begun)

    async def _open_leases(self, run: Key) -> dict[str, OwnSeen]:
        namespace, name = split(run)
        fields = f"spec.runRef.name={name},status.closed!=true"
        found = await self._api.list(LEASES, namespace, into=OwnSeen, fields=fields)
        return {each.metadata.name: each for each in found.items}

    async def _exchanged(self, run: Key, before: dict[str, OwnSeen]) -> tuple[OwnSeen, OwnSeen, str | None]:
        """The lease that was lost, the one that was opened for it, and the node of the new spare, once they are objects."""
        until, found_at = time.monotonic() + ANSWER_S, 0.0
        while time.monotonic() < until:
            after = await self._open_leases(run)
            fresh = [each for name, each in after.items() if name not in before]
            new = next((each for each in fresh if _role(each) is Role.ACTIVE), None)
            gone = [each for name, each in before.items() if name not in after and _role(each) is Role.ACTIVE]
            lost = next(
                (each for each in gone if new is not None and each.spec["compPath"] == new.spec["compPath"]), None
            )
            if new is not None and lost is not None:
                kept = [each.spec["slice"]["nodes"][0] for each in fresh if _role(each) is Role.SPARE]
                found_at = found_at or time.monotonic()
                if kept or time.monotonic() - found_at > SPARE_S:  # the new spare is written beside it, if there is one
                    return lost, new, kept[0] if kept else None
            await asyncio.sleep(PAUSE_S)
        raise Unanswered("the swap was decided, and its leases were not written in time")

    async def _run_again(self, namespace: str, lost: str, new: str, begun: float) -> Answer:
        """When the old pod was gone and the new one ran; None for what has not come about."""
        told: Answer = {"goneMs": None, "runningMs": None}
        while None in (told["goneMs"], told["runningMs"]) and time.perf_counter() - begun < DRILL_S:
            old, pod = await self._pod(namespace, lost), await self._pod(namespace, new)
            if told["goneMs"] is None and (old is None or old.over):
                told["goneMs"] = edits.ms_since(begun)
            if pod is not None and pod.status.phase in ("Running", "Succeeded", "Failed") and told["runningMs"] is None:
                told["runningMs"] = edits.ms_since(begun)
            if pod is not None:
                told["rank"] = int(pod.metadata.labels.get(RANK, "0"))
            await asyncio.sleep(PAUSE_S)
        return told

    async def _pod(self, namespace: str, name: str) -> PodSeen | None:
        try:
            return await self._api.get(PODS, name, namespace, into=PodSeen)
        except ApiError as error:
            if not error.not_found:
                raise
            return None

    # --- resolve ---------------------------------------------------------------------------------------------------------

    async def resolve(self, args: rq.ResolveArgs) -> Answer:
        """Free GPUs by hand, as an administrator; a dry run is the same decision, made here and undone."""
        wish = ResolveWish(
            id=uuid.uuid4().hex, at=_now(), flavor=args.flavor, gpus=args.gpus, location=args.location, pod=args.pod,
            group=args.group, reason=args.reason,
        )  # fmt: skip
        command = edits.resolve(args, await self._who_am_i(), wish.id)
        if args.dry_run:
            return edits.tried(await self._present(), _now(), command)
        marks = {RESOLVE: _text(wish), RESOLVE_BY: command.asked.by}
        await self._api.patch(NAMESPACES, NAMESPACE, _annotated(marks))
        await self._answer(NAMESPACE, ELSEWHERE, wish.id)
        return edits.consequences(await read_events(self._api, wish.at - FRESH_MS), command)

    async def _who_am_i(self) -> str:
        """One's name, as the API server knows it."""
        said = await self._api.create(REVIEWS, {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind})
        return msgspec.json.decode(said, type=_Review).status.user_info.username

    # --- answers ---------------------------------------------------------------------------------------------------------

    async def _answer(self, about: str, namespace: str, request: str) -> None:
        """Wait for the controller's answer; raises what it refuses."""
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            try:
                said = await self._api.get(EVENTS, reply_name(about, request), namespace, into=_Said)
            except ApiError as error:
                if not error.not_found:
                    raise
                await asyncio.sleep(PAUSE_S)
                continue
            if said.reason == DONE:
                return
            raise Refused(Reason.__members__.get(said.reason, Reason.InvalidRequest), said.message)
        raise Unanswered(f"it was asked for, and nothing came of it within {ANSWER_S:.0f} s")


class _Said(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _ReviewStatus(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


def _now() -> int:
    return int(time.time() * 1000)


def _text(wish: DrillWish | ResolveWish) -> str:
    return msgspec.json.encode(wish).decode()


def _annotated(marks: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"annotations": marks}}


def _role(lease: OwnSeen) -> Role:
    return Role(lease.spec["slice"]["role"])


def _place(lease: OwnSeen) -> dict[str, Any]:
    ((node, slots),) = lease.spec["slice"]["gpus"].items()
    return {"node": node, "slots": slots}
