"""What fields must be together, in CEL: the twin of each rule in `fairlease.model.rules.RULES`, and what only a server can see.

The table is keyed by the names of those rules, and every rule must be in it: one that is added there and not here fails the
generator. Lists whose items are there once need no rule: their schema says `set` or `map` (`fairlease.kube.manifests.crd_schema`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlease.model import rules
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope
from fairlease.model.lease_api import LeaseSpec, LeaseStatus
from fairlease.model.record import Record
from fairlease.model.run import RunSpec

Cel = dict[str, Any]


def cel(rule: str, message: str, field: str = "") -> Cel:
    """One rule of a schema: what must hold, what to say where it does not, and of which field."""
    made = {"rule": " ".join(rule.split()), "message": message}
    return {**made, "fieldPath": field} if field else made


POSITIVE_DURATION = cel("self.matches('[1-9]')", "expected more than 0, such as 90s, 15m or 1h30m")

CONTAINERS_MAX = 10
"""Containers of a template: a sum over a list of unknown length costs more than an API server allows, so it is written out."""


def _container_limit(index: int) -> str:
    limits = f"self.template.spec.containers[{index}].resources.limits"
    there = f"size(self.template.spec.containers) > {index} && has({limits.rpartition('.')[0]}) && has({limits})"
    gpu = f"{limits}.nvidia__dot__com__slash__gpu"
    return f"({there} && has({gpu}) ? int({gpu}) : 0)"


_HAS_CONTAINERS = "has(self.template) && has(self.template.spec) && has(self.template.spec.containers)"
_LIMIT = f"({_HAS_CONTAINERS} ? {' + '.join(map(_container_limit, range(CONTAINERS_MAX)))} : 0)"
"""The GPU limit of the template, summed over its containers."""

_WIDTHS = (
    "resources.totalGPUs",
    "locality.groupGPUs",
    "sparesPerGroup",
    "malleable.minTotalGPUs",
    "malleable.maxTotalGPUs",
    "malleable.stepGPUs",
    "malleable.desiredTotalGPUs",
)


def _whole(path: str, pod: str) -> str:
    """That a width is a multiple of a pod's GPUs, where there is one."""
    parts = path.split(".")
    there = [f"has(self.{'.'.join(parts[: end + 1])})" for end in range(len(parts))]
    return f"(!({' && '.join(there)}) || self.{path} % {pod} == 0)"


_TWINS: Mapping[str, tuple[Cel, ...]] = {
    "_the_selector_says_something": (),  # minProperties, below
    "_the_window_goes_forward": (
        cel("!has(self.start) || !has(self.end) || self.start < self.end", "expected a time after start", ".end"),
    ),
    "_the_hours_fit_in_the_window": (
        cel(
            """!has(self.start) || !has(self.end) || !has(self.maxGPUHours) || self.start >= self.end
            || self.maxGPUHours * 3600000.0 <=
               double(self.concurrency) * double((self.end - self.start).getMilliseconds()) + 0.5""",
            "expected at most concurrency × window",
            ".maxGPUHours",
        ),
    ),
    "_envelopes_are_named_apart": (),  # map
    "_parents_are_named_once": (),  # set
    "_caps_are_named_apart": (),  # map
    "_caps_are_over_envelopes_of_the_budget": (
        cel(
            """!has(self.aggregateCaps) || self.aggregateCaps.all(cap, cap.envelopes.all(name,
            has(self.envelopes) && self.envelopes.exists(envelope, envelope.name == name)))""",
            "expected envelopes of this Budget under each cap",
            ".aggregateCaps",
        ),
    ),
    "_caps_are_over_envelopes_of_their_flavor": (
        cel(
            """!has(self.aggregateCaps) || !has(self.envelopes) || self.aggregateCaps.all(cap, self.envelopes.all(envelope,
            envelope.flavor == cap.flavor || !(envelope.name in cap.envelopes)))""",
            "expected envelopes of the cap's own flavor under each cap",
            ".aggregateCaps",
        ),
    ),
    "_a_cap_is_over_something": (),  # minItems and set
    "_a_cap_bounds_something": (
        cel("has(self.maxConcurrency) || has(self.maxGPUHours)", "expected maxConcurrency or maxGPUHours"),
    ),
    "_the_least_is_not_above_the_most": (
        cel(
            "!has(self.malleable) || self.malleable.minTotalGPUs <= self.malleable.maxTotalGPUs",
            "expected at most maxTotalGPUs",
            ".malleable.minTotalGPUs",
        ),
    ),
    "_widths_are_between_the_least_and_the_most": (
        cel(
            """!has(self.malleable) || self.malleable.minTotalGPUs > self.malleable.maxTotalGPUs
            || (self.malleable.minTotalGPUs <= self.resources.totalGPUs
                && self.resources.totalGPUs <= self.malleable.maxTotalGPUs)""",
            "expected a total between malleable.minTotalGPUs and malleable.maxTotalGPUs",
            ".resources.totalGPUs",
        ),
        cel(
            """!has(self.malleable) || !has(self.malleable.desiredTotalGPUs)
            || self.malleable.minTotalGPUs > self.malleable.maxTotalGPUs
            || (self.malleable.minTotalGPUs <= self.malleable.desiredTotalGPUs
                && self.malleable.desiredTotalGPUs <= self.malleable.maxTotalGPUs)""",
            "expected a width between minTotalGPUs and maxTotalGPUs",
            ".malleable.desiredTotalGPUs",
        ),
    ),
    "_the_template_is_one_of_pods": (),  # its own schema
    "_the_template_agrees": (
        cel(
            f"!has(self.gpusPerPod) || [{_LIMIT}].all(limit, limit == 0 || limit == self.gpusPerPod)",
            "expected the GPU limit of the template",
            ".gpusPerPod",
        ),
    ),
    "_widths_are_whole_pods": (
        *(
            cel(
                f"!has(self.gpusPerPod) || {_whole(path, 'self.gpusPerPod')}",
                "expected a multiple of gpusPerPod",
                f".{path}",
            )
            for path in _WIDTHS
        ),
        cel(
            f"has(self.gpusPerPod) || [{_LIMIT}].all(pod, pod < 2 || ({' && '.join(_whole(each, 'pod') for each in _WIDTHS)}))",
            f"expected multiples of the template's GPU limit in {', '.join(_WIDTHS)}",
            ".resources.totalGPUs",
        ),
    ),
    "_variables_have_names": (
        cel(
            f"!has(self.env) || self.env.all(name, name.matches('^({rules.ENV_NAME.pattern})$') && size(name) <= 253)",
            "expected names of variables: letters, digits, '_', '-' and '.', no digit first",
            ".env",
        ),
    ),
    "_a_closed_lease_says_when_and_why": (
        cel("self.closed == has(self.endTime)", "a lease that is closed, and no other, says when", ".endTime"),
        cel(
            "self.closed == has(self.closureReason)", "a lease that is closed, and no other, says why", ".closureReason"
        ),
    ),
}

_API_RECORDS: tuple[type[Record], ...] = (Envelope, AggregateCap, BudgetSpec, RunSpec, LeaseSpec, LeaseStatus)


def _twins(kind: type[Record]) -> Iterator[Cel]:
    for rule in rules.RULES.get(kind, ()):
        yield from _TWINS[rule.__name__]


RULES_OF: Mapping[type[Record], tuple[Cel, ...]] = {kind: tuple(_twins(kind)) for kind in _API_RECORDS}
"""The rules on each record."""


def immutable(what: str) -> Cel:
    """A spec that is written once."""
    return cel("self == oldSelf", f"the spec of a {what} never changes")


RUN_ROOT = (
    cel(
        f"size(self.metadata.name) <= {rules.RUN_NAME_MAX}",
        f"expected a name of at most {rules.RUN_NAME_MAX} characters: names of leases and pods are made from it",
    ),
    cel(
        "!has(self.spec.follow) || !has(self.spec.follow.after) || !(self.metadata.name in self.spec.follow.after)",
        "expected runs other than itself",
        ".spec.follow.after",
    ),
)
LEASE_ROOT = (
    cel(
        "!has(oldSelf.status) || !oldSelf.status.closed || (has(self.status) && self.status == oldSelf.status)",
        "a closed Lease is never written again",
        ".status",
    ),
)
