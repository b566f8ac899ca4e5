"""What the controller sees: a copy of each kind it follows, and what changed since it last looked.

A change only marks something as worth a look; what it means is found out by comparing the object with the state, when its turn
comes. So nothing is lost when several things change at once, and what does not matter (a heartbeat, the echo of our own write)
costs no decision.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlease.kube.api.annotation_commands import DRILL
from fairlease.kube.api.informer import Change, Informer, What
from fairlease.kube.api.names import HOLD, RUN, run_of
from fairlease.kube.api.resource import (
    BUDGETS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    RESERVATIONS,
    RESERVATIONS_OVER,
    RUNS,
    SERVICES,
    Resource,
)
from fairlease.kube.api.wire_types import NodeSeen, OwnSeen, PodSeen, Seen
from fairlease.model.record import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.kube.api.connection import Api
    from fairlease.kube.api.resource import Meta
    from fairlease.model.lease import Lease

SILENT_S = 3.0
_IN_FORCE = ",".join(f"status.state!={each}" for each in RESERVATIONS_OVER)


class Made:
    """What we wrote and have not seen yet: until then it is there all the same. One that never shows is forgotten.

    `passed` tells whether all that happened up to a version was seen: then what was written with it is forgotten no sooner, however
    long a watch is interrupted. Nobody shall think that it was taken away.
    """

    EXPIRES_S = 30.0

    def __init__(self, passed: Callable[[str], bool] | None = None) -> None:
        self._passed = passed
        self._there: dict[str, tuple[str, float, str]] = {}

    def add(self, key: str, value: str = "", version: str = "") -> None:
        """It was written, the server says."""
        self._there[key] = (value, asyncio.get_running_loop().time() + self.EXPIRES_S, version)

    def get(self, key: str) -> str | None:
        """What is known of it, where it was written and not seen yet."""
        found = self._there.get(key)
        if found is None:
            return None
        value, expires_at, version = found
        if version.isdigit() and self._passed is not None:
            expired = self._passed(version)
        else:
            expired = expires_at < asyncio.get_running_loop().time()
        if expired:
            del self._there[key]
            return None
        return value

    def seen(self, key: str) -> None:
        """The server told of it, or of its end."""
        self._there.pop(key, None)


class DirtySet:
    """What to look at again: what may be news to the engine, and whose objects may not be as they should."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.budgets: set[Key] = set()
        self.runs: set[Key] = set()
        self.reports: set[Key] = set()
        self.written_runs: set[Key] = set()
        self.written_budgets: set[Key] = set()
        self.asked = False
        """Whether an administrator may have asked for something."""

    def news(self) -> bool:
        """Whether there may be something to decide."""
        return bool(self.nodes or self.budgets or self.runs or self.reports or self.asked)


class ClusterCache:
    """The informers, what they found by run and by node, and the marks of what changed."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.namespace = namespace
        self.wake = asyncio.Event()
        self.marks = DirtySet()
        self.ignored = 0
        self.pods_of_run: dict[Key, dict[str, PodSeen]] = {}
        self.pods_of_node: dict[str, dict[str, PodSeen]] = {}
        self.waiting_for_node: dict[str, set[Key]] = {}
        self.made, self.bound_pods = Made(), Made()
        self.nodes = Informer(api, NODES, NodeSeen, self._on_node)
        self.namespaces = Informer(api, NAMESPACES, Seen, self._on_namespace)
        self.budgets = Informer(api, BUDGETS, OwnSeen, self._on_budget)
        self.runs = Informer(api, RUNS, OwnSeen, self._on_run)
        self.pods = Informer(api, PODS, PodSeen, self._on_pod, labels=RUN)
        self.made_pods = Made(self.pods.passed)
        self.finalized = Made(self.runs.passed)
        self.services = Informer(api, SERVICES, Seen, partial(self._on_projected, SERVICES), labels=RUN)
        # Of what is over, nobody needs a copy: a closed lease leaves the watch as if it were deleted.
        self.leases = Informer(api, LEASES, Seen, partial(self._on_projected, LEASES), fields="status.closed!=true")
        on_reservation = partial(self._on_projected, RESERVATIONS)
        self.reservations = Informer(api, RESERVATIONS, OwnSeen, on_reservation, fields=_IN_FORCE)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """All of them."""
        return (
            self.nodes, self.namespaces, self.budgets, self.runs, self.pods, self.services, self.leases, self.reservations,
        )  # fmt: skip

    async def synced(self) -> None:
        """Wait until everything was seen once."""
        for each in self.informers:
            await each.synced.wait()

    def refresh(self) -> None:
        """Look again at every kind of which nothing was heard lately: who begins to lead acts on what is not there, too."""
        for each in self.informers:
            each.refresh(SILENT_S)

    def mark_all(self) -> None:
        """Look at everything: at the start, and now and then."""
        marks = self.marks
        marks.nodes.update(self.nodes.objects)
        marks.budgets.update(map(Key, self.budgets.objects))
        marks.runs.update(map(Key, self.runs.objects))
        marks.reports.update(self.pods_of_run)
        marks.written_budgets.update(map(Key, self.budgets.objects))
        self.wake.set()

    def runs_seen(self) -> set[Key]:
        """Every run of which there is an object of any kind."""
        found = {*map(Key, self.runs.objects), *self.pods_of_run}
        for informer in (self.leases, self.services, self.reservations):
            for each in informer.objects.values():
                run = run_of(each.metadata.annotations, each.metadata.namespace)
                if run is not None:
                    found.add(run)
        return found

    @property
    def held(self) -> bool:
        """Whether the controller's namespace says that nothing new may start."""
        own = self.namespaces.objects.get(self.namespace)
        return own is not None and own.metadata.annotations.get(HOLD, "").lower() == "true"

    # --- what happened -------------------------------------------------------------------------------------------------

    def _on_node(self, change: Change[NodeSeen]) -> None:
        if change.what is What.MODIFIED and change.old is not None and change.object.alike(change.old):
            self.ignored += 1
            return
        name = change.object.metadata.name
        self.marks.nodes.add(name)
        for pod in self.pods_of_node.get(
            name, {}
        ).values():  # ready again, or gone: what its pods mean is another matter
            if pod.run is not None:
                self.marks.reports.add(pod.run)
                self.marks.written_runs.add(pod.run)
        self.marks.written_runs.update(self.waiting_for_node.pop(name, ()))
        self.wake.set()

    def _on_namespace(self, change: Change[Seen]) -> None:
        name = change.object.metadata.name
        old = change.old.metadata.annotations if change.old is not None and change.what is What.MODIFIED else None
        if old == change.object.metadata.annotations:
            return
        if name == self.namespace:
            now = change.object.metadata.annotations
            self.marks.asked = True
            if old is None or old.get(HOLD) != now.get(HOLD):
                self.marks.nodes.update(self.nodes.objects)
        self.marks.runs.update(Key(each) for each in self.runs.objects if each.startswith(f"{name}/"))
        self.marks.budgets.update(Key(each) for each in self.budgets.objects if each.startswith(f"{name}/"))
        self.wake.set()

    def _on_budget(self, change: Change[OwnSeen]) -> None:
        name = Key(change.object.metadata.key)
        if change.what is not What.MODIFIED or change.old is None or change.object.spec != change.old.spec:
            self.marks.budgets.add(name)
        self.marks.written_budgets.add(name)
        self.wake.set()

    def _on_run(self, change: Change[OwnSeen]) -> None:
        name, meta, old = Key(change.object.metadata.key), change.object.metadata, change.old
        news = change.what is not What.MODIFIED or old is None
        if old is not None and not news:
            drills = (each.annotations.get(DRILL) for each in (meta, old.metadata))
            news = (
                meta.generation != old.metadata.generation
                or meta.deletion_timestamp != old.metadata.deletion_timestamp
                or len(set(drills)) > 1
            )
        if news:
            self.marks.runs.add(name)
        if change.what is What.DELETED:
            self.finalized.seen(name)
        self.marks.written_runs.add(name)
        self.wake.set()

    def _on_pod(self, change: Change[PodSeen]) -> None:
        pod, old = change.object, change.old
        name, gone = pod.metadata.name, change.what is What.DELETED
        run, before = pod.run, "" if old is None else old.node
        if run is None:
            return
        self.made_pods.seen(pod.metadata.key)
        if pod.node or gone:
            self.bound_pods.seen(pod.metadata.key)
        place(self.pods_of_run, run, name, None if gone else pod)
        if before and before != pod.node:
            place(self.pods_of_node, before, pod.metadata.key, None)
        if pod.node:
            place(self.pods_of_node, pod.node, pod.metadata.key, None if gone else pod)
        if old is not None and not gone and _equal(pod, old):
            return
        self.marks.written_runs.add(run)
        if gone or pod.over or pod.failure is not None:
            self.marks.reports.add(run)
            self.marks.written_runs.update(self.waiting_for_node.pop(pod.node, ()))
            node = self.nodes.objects.get(pod.node)
            if node is not None and not node.ready:
                self.marks.nodes.add(pod.node)
        self.wake.set()

    def _on_projected(self, what: Resource, change: Change[Any]) -> None:
        """Something we wrote: mostly our own echo, which finds all well."""
        self.made.seen(made_key(what, change.object.metadata.key))
        if change.what is What.DELETED or change.old is not None:
            self._written(change.object.metadata)
            self.wake.set()

    def _written(self, metadata: Meta) -> None:
        run = run_of(metadata.annotations, metadata.namespace)
        if run is not None:
            self.marks.written_runs.add(run)

    def uid_of(self, kind: str, name: str) -> str:
        """The uid of a Run, Budget or Node, where it is there."""
        informers: dict[str, Informer[Any]] = {"Run": self.runs, "Budget": self.budgets, "Node": self.nodes}
        seen = informers[kind].objects.get(name) if kind in informers else None
        return "" if seen is None else str(seen.metadata.uid)

    def runs_on(self, lease: Lease) -> bool:
        """Whether the pod of a lease runs, or ran."""
        pod = self.pods_of_run.get(lease.run, {}).get(lease.name)
        return pod is not None and (pod.over or pod.status.phase == "Running")

    def not_ready(self, node: str) -> bool:
        """Whether a node is gone or silent: what is missing there is the node's failure, not the pod's."""
        seen = self.nodes.objects.get(node)
        return seen is None or not seen.ready


def made_key(what: Resource, name: str) -> str:
    """How an object that was written is remembered until it is seen."""
    return f"{what.plural} {name}"


def place(index: dict[Any, dict[str, PodSeen]], where: Any, name: str, pod: PodSeen | None) -> None:  # noqa: ANN401 - a run's key, or a node's name
    """Put a pod into an index, or take it out."""
    if pod is not None:
        index.setdefault(where, {})[name] = pod
        return
    held = index.get(where)
    if held is not None:
        held.pop(name, None)
        if not held:
            del index[where]


def _equal(pod: PodSeen, old: PodSeen) -> bool:
    """Whether nothing changed that could matter: a pod that begins to run is no news."""
    return (pod.node, pod.over, pod.succeeded, pod.leaving, pod.failure) == (
        old.node, old.over, old.succeeded, old.leaving, old.failure,
    )  # fmt: skip
