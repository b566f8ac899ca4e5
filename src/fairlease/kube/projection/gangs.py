"""Pods: all of a gang are made, and when all are there, all are bound; what has no lease any more is deleted.

A gang is what was opened at once: the whole run at its start, a step of growth, the ranks of a swap. Nothing is bound before all
its pods exist, and none while another's pod still lives on its GPUs: a lease ends at once, a process takes its grace. A gang that
was never whole (a controller died in the middle) is completed. From one that was, nothing may be missing: that is a failure, and
`observe` reports it. A spare's placeholder is no work, and is simply made again.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from fairlease.kube.api.cache import ClusterCache
from fairlease.kube.api.connection import ApiError
from fairlease.kube.api.names import NODE, ROLE, RUN
from fairlease.kube.api.resource import PODS, Meta
from fairlease.kube.projection.pods import pods_of
from fairlease.kube.projection.rendezvous import Rendezvous
from fairlease.kube.projection.write_queue import Target, WriteLane, WritePart
from fairlease.model.lease import Role
from fairlease.model.record import Key, key, split
from fairlease.model.run import Phase
from fairlease.reason import Reason

if TYPE_CHECKING:
    from fairlease.kube.api.connection import Api
    from fairlease.kube.api.wire_types import OwnSeen, PodSeen
    from fairlease.kube.projection.writer import Writer
    from fairlease.kube.settings import ClusterSettings
    from fairlease.ledger.state.runs import RunState
    from fairlease.ledger.state.state import State
    from fairlease.model.lease import Lease

Gang = list["Lease"]
_IN_THE_WAY = "a pod of this name is there that is not ours; delete it"
TERMINATING = "NamespaceTerminating"

NEVER, HARDLY = 2, 6
"""Times that the server refuses a pod as invalid, or as forbidden (it may be just starting), before that is its last word."""


class _Created(msgspec.Struct):
    metadata: Meta


class Gangs:
    """The pods of all runs, as the leases want them."""

    def __init__(self, api: Api, sight: ClusterCache, state: State, settings: ClusterSettings, writer: Writer) -> None:
        self._api, self._sight, self._state, self._settings, self._writer = api, sight, state, settings, writer
        self._made, self._bound = sight.made_pods, sight.bound_pods
        self.rendezvous = Rendezvous(api, sight, settings, writer)
        self.refusals: dict[Key, str] = {}
        """What the API server said of pods that it does not take, by run."""

    # --- what is there ---------------------------------------------------------------------------------------------------

    def on_nodes(self, run: RunState) -> int:
        """How many of a run's active pods were bound."""
        return sum(1 for lease in run.leases.values() if lease.rank >= 0 and self._is_bound(lease))

    def _is_bound(self, lease: Lease) -> bool:
        pod = self._pod(lease)
        return (pod is not None and bool(pod.node)) or self._bound.get(_key(lease)) is not None

    def _pod(self, lease: Lease) -> PodSeen | None:
        return self._sight.pods_of_run.get(lease.run, {}).get(lease.name)

    def alive(self, run: Key) -> bool:
        """Whether any pod of a run still holds its GPUs."""
        return any(not pod.over for pod in self._sight.pods_of_run.get(run, {}).values())

    def taken(self, run: RunState) -> set[str]:
        """The leases whose pods were there once and are not any more, by name."""
        return {
            lease.name
            for gang in _gangs_of(run)
            if (missing := self._missing(gang)) and self._was_whole(run, gang)
            for lease in missing
            if lease.role is not Role.SPARE
        }

    def refused(self, run: RunState) -> Lease | None:
        """A lease whose pod the API server will not take, ever: its template is invalid, or forbidden by a policy or a quota."""
        if not any(failed.of == run.key for failed in self._writer.failed.values()):
            return None
        for lease in run.held:
            failed = self._writer.failed.get(Target(PODS.plural, _key(lease)))
            enough = {HTTPStatus.UNPROCESSABLE_ENTITY: NEVER, HTTPStatus.FORBIDDEN: HARDLY}
            if failed is not None and failed.times >= enough.get(HTTPStatus(failed.code or 500), failed.times + 1):
                self.refusals[run.key] = f"the API server refuses pod {lease.name}: {failed.message}"
                return lease
        return None

    def _missing(self, gang: Gang) -> Gang:
        return [lease for lease in gang if self._pod(lease) is None and self._made.get(_key(lease)) is None]

    def _was_whole(self, run: RunState, gang: Gang) -> bool:
        """Whether all pods of a gang were there once: one was bound, or the status says that it runs."""
        if any(self._is_bound(lease) for lease in gang if lease.role is not Role.SPARE):
            return True
        seen = self._sight.runs.objects.get(run.key)
        status = {} if seen is None else seen.status
        told = status.get("phase") == Phase.RUNNING.value and status.get("attempt") == run.attempt
        return told and gang[0].reason is Reason.Start

    # --- what is to be done ----------------------------------------------------------------------------------------------

    def plan(self, name: Key, run: RunState | None, seen: OwnSeen | None, part: WritePart) -> None:
        """Make, bind and delete, one step at a time: what a step brought is seen when it is over."""
        pods = self._sight.pods_of_run.get(name, {})
        if seen is None:
            self.refusals.pop(name, None)
            self.rendezvous.forget(name)
        for pod in list(pods.values()):
            lease = None if run is None else run.leases.get(pod.metadata.name)
            if lease is None or self._stale(lease, pod) or _forsaken(pod):
                self._delete(pod, part)
        if (
            run is None
            or run.phase is not Phase.RUNNING
            or seen is None
            or seen.metadata.deletion_timestamp is not None
        ):
            self.rendezvous.hush(name, part)
            return
        self.rendezvous.keep(run, seen.metadata.uid, part)
        for gang in _gangs_of(run):
            self._gang(run, gang, seen.metadata.uid, part)

    def _stale(self, lease: Lease, pod: PodSeen) -> bool:
        """Whether a placeholder has ended, or has to make room for a tenant."""
        return lease.role is Role.SPARE and (pod.over or self._lent(lease))

    def _lent(self, lease: Lease) -> bool:
        node = self._state.capacity.nodes.get(lease.node)
        others = () if node is None else node.leases.values()
        return any(each.role is Role.BORROWED and not set(each.slots).isdisjoint(lease.slots) for each in others)

    def _gang(self, run: RunState, gang: Gang, uid: str, part: WritePart) -> None:
        missing = [lease for lease in self._missing(gang) if lease.role is not Role.SPARE or not self._lent(lease)]
        whole = bool(missing) and self._was_whole(run, gang)
        wanted = [lease for lease in missing if lease.role is Role.SPARE or not whole]
        if wanted:
            self._create(run, wanted, uid, part)
        elif not missing:
            self._bind(run, gang, part)

    def _create(self, run: RunState, wanted: Gang, uid: str, part: WritePart) -> None:
        namespace, _ = split(run.key)
        for lease_name, body in pods_of(run, wanted, uid, self._settings).items():
            self._make(key(lease_name, namespace), body, part)

    def _make(self, full: Key, body: dict[str, Any], part: WritePart) -> None:
        async def act() -> None:
            namespace, name = split(full)
            try:
                answer = await self._api.create(PODS, body, namespace)
            except ApiError as error:
                if not error.already_exists:
                    raise
                answer = await self._claim(namespace, name, body, error)
            if full not in self._sight.pods.objects:
                made = msgspec.json.decode(answer, type=_Created).metadata
                self._made.add(full, made.uid, made.resource_version)

        self._writer.write(WriteLane.PODS, part, Target(PODS.plural, full), act)

    async def _claim(self, namespace: str, name: str, body: dict[str, Any], error: ApiError) -> bytes:
        """A pod of the name that is there already: ours, made before an answer was lost, or somebody else's.

        Our annotations can be set by nobody else; an owner can be named by anybody.
        """
        there = await self._api.get(PODS, name, namespace, into=msgspec.Raw)
        told, ours = msgspec.json.decode(there, type=_Created).metadata.annotations, body["metadata"]["annotations"]
        if (told.get(RUN), told.get(NODE)) == (ours[RUN], ours[NODE]):
            return bytes(there)
        error.args = (_IN_THE_WAY,)
        raise error

    # --- bind and delete -------------------------------------------------------------------------------------------------

    def _bind(self, run: RunState, gang: Gang, part: WritePart) -> None:
        unbound = [
            lease
            for lease in gang
            if not self._is_bound(lease) and not (lease.role is Role.SPARE and self._lent(lease))
        ]
        blocked = {lease.node for lease in unbound if not self._vacant(lease)}
        for node in blocked:
            self._sight.waiting_for_node.setdefault(node, set()).add(run.key)
        if blocked:
            return
        for lease in unbound:
            pod = self._pod(lease)
            uid = pod.metadata.uid if pod is not None else self._made.get(_key(lease))
            if uid:
                self._put(lease, uid, part)

    def _vacant(self, lease: Lease) -> bool:
        """Whether no other pod lives on a lease's GPUs."""
        here = self._sight.pods_of_node.get(lease.node, {})
        return not any(
            not pod.over and full != _key(lease) and not pod.slots.isdisjoint(lease.slots) for full, pod in here.items()
        )

    def _put(self, lease: Lease, uid: str, part: WritePart) -> None:
        async def act() -> None:
            full = _key(lease)
            namespace, name = split(full)
            try:
                await self._api.bind(namespace, name, lease.node, uid)
            except ApiError as error:
                if error.not_found:
                    self._made.seen(full)  # it was taken away before it was ever seen, or it is told so soon
                    return
                if error.code == HTTPStatus.CONFLICT and not self._pending(lease):
                    return
                raise
            pod = self._pod(lease)
            if pod is None or not pod.node:
                self._bound.add(full, lease.node)

        self._writer.write(WriteLane.BIND, part, Target("bindings", _key(lease)), act)

    def _pending(self, lease: Lease) -> bool:
        """Whether a pod that could not be bound is still to be: not if it was bound at an earlier try, or is leaving."""
        pod = self._pod(lease)
        return pod is not None and not pod.node and not pod.leaving

    def _delete(self, pod: PodSeen, part: WritePart) -> None:
        """A pod without a lease goes; one that is over may stay, for its log. Where no kubelet will ever end it, nobody waits."""
        node = self._state.capacity.nodes.get(pod.node)
        gone = bool(pod.node) and (pod.node not in self._sight.nodes.objects or (node is not None and node.failed))
        lost = gone or _forsaken(pod)
        if (pod.over and pod.metadata.labels.get(ROLE) != Role.SPARE.value) or (pod.leaving and not lost):
            return

        async def act() -> None:
            meta = pod.metadata
            try:
                await self._api.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_s=0 if lost else None)
            except ApiError as error:
                if not error.conflict:  # another of its name
                    raise

        self._writer.write(WriteLane.PODS, part, Target(PODS.plural, f"{pod.metadata.key} deleted"), act)


def _forsaken(pod: PodSeen) -> bool:
    """Whether a pod was deleted, is on no node, and is there all the same: the API server died in the middle of deleting it."""
    return pod.leaving and not pod.node


def _gangs_of(run: RunState) -> list[Gang]:
    """A run's leases, by what was opened at once."""
    gangs: dict[tuple[int, Reason], Gang] = {}
    for lease in run.held:
        gangs.setdefault((lease.start, lease.reason), []).append(lease)
    return list(gangs.values())


def _key(lease: Lease) -> Key:
    return key(lease.name, split(lease.run)[0])
