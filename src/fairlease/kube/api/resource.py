"""Which kinds of objects there are, where they live in the API, and the metadata that every one has."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

GROUP, VERSION = "rq.davidlangworthy.io", "v1"
PREFIX = f"{GROUP}/"
"""Group and version are those of `model.objects`, which takes 80 ms to load, and whose reader of files nobody here needs."""


class Resource(NamedTuple):
    """A kind of object: where its paths begin, and whether it lives in namespaces."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As `apiVersion` wants it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", sub: str = "") -> str:
        """The path of one object, or of all in a namespace, or (without one) of all there are."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{inside}/{self.plural}{f'/{name}' if name else ''}{f'/{sub}' if sub else ''}"


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
ELECTION_LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

BUDGETS = Resource(GROUP, VERSION, "budgets", "Budget")
RUNS = Resource(GROUP, VERSION, "runs", "Run")
RESERVATIONS = Resource(GROUP, VERSION, "reservations", "Reservation")
LEASES = Resource(GROUP, VERSION, "leases", "Lease")
OUTCOMES = Resource(GROUP, VERSION, "resolveroutcomes", "ResolverOutcome", namespaced=False)
LEDGER_ENTRIES = Resource(GROUP, VERSION, "ledgerentries", "LedgerEntry", namespaced=False)


RESERVATIONS_OVER = ("Released", "Canceled", "Failed", "Superseded")
"""States of a reservation that nothing follows."""


class Meta(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What is read of an object's metadata. Types that need more, or less, declare their own with the first four fields."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`, or the name of an object without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Seen(msgspec.Struct, frozen=True, gc=False):
    """An object of which only the metadata matters."""

    metadata: Meta


class OwnSeen(msgspec.Struct, frozen=True):
    """One of our kinds, as the server has it."""

    metadata: Meta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
