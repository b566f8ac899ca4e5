"""The CustomResourceDefinitions of our kinds (SEMANTICS §2), generated from the records: `config/crd/`.

The plural `leases` belongs to `coordination.k8s.io` too, and kubectl takes that one first: people write
`leases.rq.davidlangworthy.io`, or `glease`, its short name here.

Selectable fields are simple paths to scalars. A Lease names its node in a list, and lists cannot be selected on: who asks for the
leases of a node uses the label `rq.davidlangworthy.io/node`, or `fairlease leases --node`, which asks the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fairlease.kube.api.status_types import BudgetStatus, ReservationStatus, RunStatus
from fairlease.kube.manifests.crd_rules import LEASE_ROOT, RUN_ROOT, Cel, immutable
from fairlease.kube.manifests.crd_schema import Schema, record_schema
from fairlease.model.budget import BudgetSpec
from fairlease.model.lease_api import LeaseSpec, LeaseStatus
from fairlease.model.ledger_entry import LedgerEntrySpec
from fairlease.model.objects import API_VERSION
from fairlease.model.record import Record
from fairlease.model.reservation import OutcomeSpec, ReservationSpec
from fairlease.model.run import RunSpec

GROUP, VERSION = API_VERSION.split("/")


class Column(NamedTuple):
    """A column of `kubectl get`; a wide one shows with `-o wide`. Of a path with several values kubectl shows the first."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


class CustomKind(NamedTuple):
    """One kind of the API."""

    name: str
    plural: str
    short: tuple[str, ...]
    words: str
    spec: type[Record]
    columns: tuple[Column, ...]
    selectable: tuple[str, ...]
    status: type[Record] | None = None
    namespaced: bool = True
    frozen: bool = False
    rules: tuple[Cel, ...] = ()
    scale: bool = False
    exact: bool = False
    """Whether objects stay to the letter as they were written, with no default filled in: digests are taken over them."""


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

KINDS = (
    CustomKind(
        name="Budget",
        plural="budgets",
        short=("bud",),
        words="What an owner may spend: envelopes of GPUs over windows of time.",
        spec=BudgetSpec,
        status=BudgetStatus,
        columns=(
            Column("Owner", ".spec.owner"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Covered", '.status.conditions[?(@.type=="Covered")].status'),
            Column("Updated", ".status.updatedAt", "date"),
            Column("Headroom", ".status.headroom", wide=True),
            _AGE,
        ),
        selectable=(".spec.owner",),
    ),
    CustomKind(
        name="Run",
        plural="runs",
        short=("grun",),
        words="A gang of GPUs that starts whole or not at all: who pays, how many, how they lie, and the work.",
        spec=RunSpec,
        status=RunStatus,
        columns=(
            Column("Owner", ".spec.owner"),
            Column("Phase", ".status.phase"),
            Column("Reason", '.status.conditions[?(@.status!="True")].reason', wide=True),
            Column("Min", ".status.width.min", "integer"),
            Column("Now", ".status.width.allocated", "integer"),
            Column("Max", ".status.width.max", "integer"),
            Column("Started", ".status.startedAt", "date"),
            Column("ETA", ".status.earliestStart"),
            Column("Flavor", ".spec.resources.gpuType", wide=True),
            Column("Owned", ".status.funding.owned.gpus", "integer", wide=True),
            Column("Shared", ".status.funding.shared.gpus", "integer", wide=True),
            Column("Borrowed", ".status.funding.borrowed.gpus", "integer", wide=True),
            Column("Overdrawn", ".status.funding.overdrawn.gpus", "integer", wide=True),
            Column("Message", ".status.message", wide=True),
            _AGE,
        ),
        selectable=(".spec.owner", ".spec.resources.gpuType", ".status.phase"),
        rules=RUN_ROOT,
        scale=True,
    ),
    CustomKind(
        name="Reservation",
        plural="reservations",
        short=("resv",),
        words="A run's place in time: where and when it is going to start, and who is going to pay. Written by the controller.",
        spec=ReservationSpec,
        status=ReservationStatus,
        columns=(
            Column("Run", ".spec.runRef.name"),
            Column("State", ".status.state"),
            Column("Start", ".spec.earliestStart"),
            Column("P50", ".status.forecast.p50"),
            Column("Payers", ".spec.payingEnvelopes"),
            Column("Domain", ".spec.intendedSlice.domain", wide=True),
            Column("Reason", ".status.reason", wide=True),
            _AGE,
        ),
        selectable=(".spec.runRef.name", ".status.state"),
        frozen=True,
    ),
    CustomKind(
        name="Lease",
        plural="leases",
        short=("glease",),
        words="One pod's worth of GPUs on one node, one payer, one role; opened once, closed once. Written by the controller.",
        spec=LeaseSpec,
        status=LeaseStatus,
        columns=(
            Column("Run", ".spec.runRef.name"),
            Column("Owner", ".spec.owner"),
            Column("Role", ".spec.slice.role"),
            Column("Node", ".spec.slice.nodes[0]"),
            Column("Payer", ".spec.paidByEnvelope"),
            Column("Opened", ".spec.interval.start", "date"),
            Column("Closed", ".status.closureReason"),
            Column("Budget", ".spec.paidByBudget", wide=True),
            Column("Slots", ".spec.slice.gpus", wide=True),
            Column("Ended", ".status.endTime", "date", wide=True),
            _AGE,
        ),
        selectable=(
            ".spec.runRef.name",
            ".spec.owner",
            ".spec.slice.role",
            ".spec.paidByBudget",
            ".spec.paidByEnvelope",
            ".status.closed",
        ),
        frozen=True,
        rules=LEASE_ROOT,
    ),
    CustomKind(
        name="ResolverOutcome",
        plural="resolveroutcomes",
        short=("outcome",),
        words="Why others' work was cut, for whom, and out of which candidates: the record of one resolution.",
        spec=OutcomeSpec,
        columns=(
            Column("Claim", ".spec.claim.name"),
            Column("Flavor", ".spec.scope.flavor"),
            Column("Deficit", ".spec.deficitGPUs", "integer"),
            Column("At", ".spec.at", "date"),
        ),
        selectable=(".spec.claim.name",),
        namespaced=False,
        frozen=True,
        exact=True,
    ),
    CustomKind(
        name="LedgerEntry",
        plural="ledgerentries",
        short=("ledger",),
        words="One entry of the ledger: everything that one decision made true, chained to all entries before it.",
        spec=LedgerEntrySpec,
        columns=(
            Column("Seq", ".spec.seq", "integer"),
            Column("Role", ".spec.role"),
            Column("Hash", ".spec.hash"),
            Column("Parts", ".spec.parts", "integer", wide=True),
            Column("Writer", ".spec.writer", wide=True),
            _AGE,
        ),
        selectable=(".spec.role",),
        namespaced=False,
        frozen=True,
    ),
)


def definition(kind: CustomKind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    version: dict[str, Any] = {"name": VERSION, "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": _schema(kind)}
    subresources: dict[str, Any] = {"status": {}} if kind.status else {}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.malleable.desiredTotalGPUs",
            "statusReplicasPath": ".status.width.allocated",
        }
    if subresources:
        version["subresources"] = subresources
    version["additionalPrinterColumns"] = [_column(each) for each in kind.columns]
    version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    names = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": list(kind.short),
        "categories": ["fairlease"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def _schema(kind: CustomKind) -> Schema:
    spec = record_schema(kind.spec)
    if kind.exact:
        spec = _without_defaults(spec)
    if kind.frozen:
        spec["x-kubernetes-validations"] = [*spec.get("x-kubernetes-validations", ()), immutable(kind.name)]
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
    }
    if kind.status:
        # Whether a Lease is over is a fact and not an opinion: there, nothing may stand as null.
        properties["status"] = record_schema(kind.status, status=kind.status is not LeaseStatus)
    schema: Schema = {"description": kind.words, "type": "object", "properties": properties, "required": ["spec"]}
    return {**schema, "x-kubernetes-validations": list(kind.rules)} if kind.rules else schema


def _without_defaults(schema: Schema) -> Schema:
    return {
        name: _without_defaults(value) if isinstance(value, dict) else value
        for name, value in schema.items()
        if name != "default"
    }


def _column(column: Column) -> dict[str, Any]:
    made: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**made, "priority": 1} if column.wide else made


def definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every definition, with the name of its file."""
    for kind in KINDS:
        yield f"{kind.plural}.yaml", definition(kind)
