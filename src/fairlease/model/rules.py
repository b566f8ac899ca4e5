"""Every rule of SEMANTICS §2 on one object, as tables: what each field must be, and what fields must be together.

A rule that is not written there is not invented here: a valid file must never be refused. Whether the world has room or
money is not a question of validity either; that is for the engine to answer, with a `Reason`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fairlease.model.amount import HOUR, format_instant, gpu_hours
from fairlease.model.budget import AggregateCap, BudgetSpec, Envelope, Lending
from fairlease.model.config import Config
from fairlease.model.document import INTEGER_MAX, Step
from fairlease.model.lease_api import LeaseSpec, LeaseStatus
from fairlease.model.node import GPU_RESOURCE, LabelKeys
from fairlease.model.partial import as_far, column, known, readable
from fairlease.model.reading import Check, Reader, Rule, Wrong
from fairlease.model.record import Key, Reason, Record, key, split
from fairlease.model.run import Follow, Funding, Locality, Malleable, Resources, RunSpec, Runtime, template_gpus

NAME_MAX = 253
RUN_NAME_MAX = 200  # Names of leases, reservations and pods are a run's name and a little more.
NAMESPACE_MAX = 63
ENV_NAME_MAX = 253
GRACE_MAX = HOUR

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
NAMESPACE = re.compile(_LABEL)
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
OWNER = re.compile(r"[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+)*")
OWNER_GLOB = re.compile(r"[A-Za-z0-9._*?-]+(:[A-Za-z0-9._*?-]+)*")
ENV_NAME = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
_QUANTITY = re.compile(r"[0-9]{1,19}")
OPENING = (Reason.Start, Reason.Grow, Reason.Swap)
CLOSING = (
    Reason.Completed,
    Reason.Fail,
    Reason.NodeFailure,
    Reason.Swap,
    Reason.Shrink,
    Reason.DropSpare,
    Reason.ReclaimedBySpare,
    Reason.ReclaimOpportunistic,
    Reason.ReclaimOverdrawn,
    Reason.BudgetExhausted,
    Reason.Canceled,
    Reason.TimeLimit,
)
CLOSURE = re.compile(rf"{'|'.join(each.value for each in CLOSING)}|RandomPreempt\([^()]{{1,128}}\)")


# -------------------------------------------------------------------------------------- what a single value must be


def a_grace(value: int) -> str | None:
    """The time that work gets to leave: whoever waits for its GPUs does not wait for ever."""
    return None if value <= GRACE_MAX else "expected at most 1h: nobody gets the GPUs before it is over"


def more_than_nothing(value: int) -> str | None:
    """An amount that is there."""
    return None if value > 0 else "expected more than 0"


def not_empty(value: str) -> str | None:
    """Text that says something."""
    return None if value else "expected some text"


def an_owner(value: str) -> str | None:
    """A colon path of names."""
    if OWNER.fullmatch(value):
        return None
    return "expected an owner: names of letters, digits, '.', '_' and '-', joined by ':', such as org:ai:rai"


def an_owner_glob(value: str) -> str | None:
    """A pattern over owners."""
    if OWNER_GLOB.fullmatch(value):
        return None
    return "expected an owner, in which * and ? may stand for any text and any character, such as org:ai:*"


def a_name(value: str, longest: int = NAME_MAX) -> str | None:
    """A name that Kubernetes takes for an object (DNS-1123)."""
    if len(value) > longest:
        return f"expected a name of at most {longest} characters"
    if NAME.fullmatch(value):
        return None
    return "expected a name of lowercase letters, digits, '-' and '.', which begins and ends with a letter or digit"


def a_run_name(value: str) -> str | None:
    """A name that leaves room for the names made from it."""
    return a_name(value, RUN_NAME_MAX)


def a_namespace(value: str) -> str | None:
    """A namespace as Kubernetes takes it."""
    if len(value) <= NAMESPACE_MAX and NAMESPACE.fullmatch(value):
        return None
    return f"expected a namespace: at most {NAMESPACE_MAX} lowercase letters, digits and '-'"


def a_node_name(value: str) -> str | None:
    """Wider than for our own kinds: machines bear the names they were given."""
    if len(value) <= NAME_MAX and _NODE.fullmatch(value):
        return None
    return "expected the name of a machine: letters, digits, '-', '.' and '_'"


def a_reference(value: str, longest: int = NAME_MAX) -> str | None:
    """The name of an object, with or without its namespace."""
    namespace, slash, name = value.rpartition("/")
    if a_name(name, longest) is None and (not slash or a_namespace(namespace) is None):
        return None
    return f"expected a name, or namespace/name, of lowercase letters, digits, '-' and '.', at most {longest} long"


def a_run_reference(value: str) -> str | None:
    """The name of a run, with or without its namespace."""
    return a_reference(value, RUN_NAME_MAX)


def an_opening_reason(value: Reason) -> str | None:
    """A reason for which leases open."""
    return None if value in OPENING else f"expected one of {', '.join(each.value for each in OPENING)}"


def a_closure_reason(value: str) -> str | None:
    """A reason for which leases close, as people see it."""
    if CLOSURE.fullmatch(value):
        return None
    return f"expected one of {', '.join(each.value for each in CLOSING)}, RandomPreempt(<seed>)"


def gpu_quantity(value: object) -> int | None:
    """GPUs as Kubernetes writes them, 8 or "8"; None where it is neither."""
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= INTEGER_MAX else None


CHECKS: Mapping[type[Record], Mapping[str, Check]] = {
    Config: {"commit_quantum": more_than_nothing, "max_grace": a_grace, "opportunistic_grace": a_grace},
    LabelKeys: dict.fromkeys(("region", "cluster", "domain", "rack", "flavor"), not_empty),
    Lending: {"to": an_owner_glob},
    Envelope: {
        "name": not_empty,
        "flavor": not_empty,
        "concurrency": more_than_nothing,
    },
    AggregateCap: {"name": not_empty, "flavor": not_empty},
    BudgetSpec: {"owner": an_owner, "parents": an_owner},
    Resources: {"gpu_type": not_empty, "total_gpus": more_than_nothing},
    Locality: {"group_gpus": more_than_nothing},
    Runtime: {
        "max_duration": more_than_nothing,
        "expected_duration": more_than_nothing,
        "checkpoint": more_than_nothing,
    },
    Malleable: {
        "min_total_gpus": more_than_nothing,
        "max_total_gpus": more_than_nothing,
        "step_gpus": more_than_nothing,
    },
    Funding: {"sponsors": an_owner},
    Follow: {"after": a_run_reference},
    RunSpec: {"owner": an_owner, "gpus_per_pod": more_than_nothing},
    LeaseSpec: {"owner": an_owner, "attempt": more_than_nothing, "reason": an_opening_reason},
    LeaseStatus: {"closure_reason": a_closure_reason},
}
"""What single fields must be; where a field is a list, each of its items. No other integer may be negative, either."""


# -------------------------------------------------------------------- what the fields of a record must be together
#
# A rule ends where it looks at a field that could not be read. So each rule looks only at what it must, and goes over
# many things with `readable`, `column`, `known` and `as_far`.


def _each_once(numbered: Iterable[tuple[int, str]], *path: Step, what: str) -> Iterator[Wrong]:
    seen: set[str] = set()
    for index, value in numbered:
        if value in seen:
            yield Wrong((*path, index), value, f"{what} is there twice")
        seen.add(value)


def _named_apart(records: Iterable[Record], *path: Step, what: str) -> Iterator[Wrong]:
    for wrong in _each_once(column(records, "name"), *path, what=what):
        yield wrong._replace(path=(*wrong.path, "name"))


def _the_selector_says_something(envelope: Envelope) -> Iterator[Wrong]:
    if not envelope.selector:
        yield Wrong(("selector",), {}, "expected at least one node label, such as region: us-west")


def _the_window_goes_forward(envelope: Envelope) -> Iterator[Wrong]:
    start, end = envelope.start, envelope.end
    if start is not None and end is not None and start >= end:
        yield Wrong(("end",), format_instant(end), f"expected a time after start, which is {format_instant(start)}")


def _the_hours_fit_in_the_window(envelope: Envelope) -> Iterator[Wrong]:
    start, end, hours = envelope.start, envelope.end, envelope.max_gpu_hours
    if start is None or end is None or hours is None or start >= end:
        return
    most = envelope.concurrency * (end - start)
    if hours > most:
        yield Wrong(("maxGPUHours",), gpu_hours(hours), f"expected at most concurrency × window = {gpu_hours(most)}")


def _envelopes_are_named_apart(budget: BudgetSpec) -> Iterator[Wrong]:
    yield from _named_apart(budget.envelopes, "envelopes", what="an envelope of this name")


def _parents_are_named_once(budget: BudgetSpec) -> Iterator[Wrong]:
    yield from _each_once(readable(budget.parents or ()), "parents", what="this parent")


def _caps_are_named_apart(budget: BudgetSpec) -> Iterator[Wrong]:
    yield from _named_apart(budget.aggregate_caps, "aggregateCaps", what="a cap of this name")


def _covered(budget: BudgetSpec) -> Iterator[tuple[AggregateCap, tuple[Step, ...], str]]:
    """What caps are over: the cap, where it says so, and the name of the envelope."""
    for number, cap in enumerate(budget.aggregate_caps):
        for index, name in readable(known(cap, "envelopes", ())):
            yield cap, ("aggregateCaps", number, "envelopes", index), name


def _caps_are_over_envelopes_of_the_budget(budget: BudgetSpec) -> Iterator[Wrong]:
    names = dict.fromkeys(each.name for each in budget.envelopes)
    for _, path, name in _covered(budget):
        if name not in names:
            yield Wrong(path, name, f"expected an envelope of this Budget: {', '.join(names) or 'it has none'}")


def _caps_are_over_envelopes_of_their_flavor(budget: BudgetSpec) -> Iterator[Wrong]:
    flavors: dict[str, list[str | None]] = {}
    for _, envelope in readable(budget.envelopes):
        flavors.setdefault(known(envelope, "name", ""), []).append(known(envelope, "flavor"))
    for cap, path, name in _covered(budget):
        wanted, given = known(cap, "flavor"), flavors.get(name, [None])
        if wanted is not None and wanted not in given and None not in given:
            yield Wrong(path, name, f"expected an envelope of flavor {wanted}; this one is of {given[0]}")


def _a_cap_is_over_something(cap: AggregateCap) -> Iterator[Wrong]:
    if not cap.envelopes:
        yield Wrong(("envelopes",), [], "expected at least one envelope")
    yield from _each_once(readable(cap.envelopes), "envelopes", what="this envelope")


def _a_cap_bounds_something(cap: AggregateCap) -> Iterator[Wrong]:
    if cap.max_concurrency is None and cap.max_gpu_hours is None:
        yield Wrong((), None, "expected maxConcurrency or maxGPUHours")


def _the_least_is_not_above_the_most(spec: RunSpec) -> Iterator[Wrong]:
    if spec.malleable is None:
        return
    low, high = spec.malleable.min_total_gpus, spec.malleable.max_total_gpus
    if low > high:
        yield Wrong(("malleable", "minTotalGPUs"), low, f"expected at most maxTotalGPUs, which is {high}")


def _widths_are_between_the_least_and_the_most(spec: RunSpec) -> Iterator[Wrong]:
    if spec.malleable is None:
        return
    low, high = spec.malleable.min_total_gpus, spec.malleable.max_total_gpus
    if low > high:
        return
    total, desired = known(spec, "resources.total_gpus"), known(spec, "malleable.desired_total_gpus")
    if total is not None and not low <= total <= high:
        message = f"expected a total between minTotalGPUs and maxTotalGPUs, {low} to {high}"
        yield Wrong(("resources", "totalGPUs"), total, message)
    if desired is not None and not low <= desired <= high:
        message = f"expected a width between minTotalGPUs and maxTotalGPUs, {low} to {high}"
        yield Wrong(("malleable", "desiredTotalGPUs"), desired, message)


def _the_template_is_one_of_pods(spec: RunSpec) -> Iterator[Wrong]:
    if spec.template:
        yield from _unreadable_limits(spec.template)


def _limit(spec: RunSpec) -> int | None:
    """The GPU limit of the template; None where there is none, or none that can be read."""
    if not spec.template or any(_unreadable_limits(spec.template)):
        return None
    return template_gpus(spec.template)


def _the_template_agrees(spec: RunSpec) -> Iterator[Wrong]:
    limit = _limit(spec) if spec.gpus_per_pod else None
    if limit and limit != spec.gpus_per_pod:
        yield Wrong(("gpusPerPod",), spec.gpus_per_pod, f"expected the GPU limit of the template, which is {limit}")


def _widths_are_whole_pods(spec: RunSpec) -> Iterator[Wrong]:
    if spec.gpus_per_pod is None:
        pod = _limit(spec) or 1
    elif not known(spec, "template") or next(as_far(_the_template_agrees(spec)), None) is None:
        pod = spec.gpus_per_pod
    else:
        return
    if pod > 1:
        for path, field in _WIDTHS if spec.malleable is None else _WIDTHS + _ELASTIC_WIDTHS:
            width = known(spec, field)
            if width is not None and width % pod:
                yield Wrong(path, width, f"expected a multiple of gpusPerPod, which is {pod}")


_WIDTHS: tuple[tuple[tuple[Step, ...], str], ...] = (
    (("resources", "totalGPUs"), "resources.total_gpus"),
    (("locality", "groupGPUs"), "locality.group_gpus"),
    (("sparesPerGroup",), "spares_per_group"),
)
_ELASTIC_WIDTHS: tuple[tuple[tuple[Step, ...], str], ...] = (
    (("malleable", "minTotalGPUs"), "malleable.min_total_gpus"),
    (("malleable", "maxTotalGPUs"), "malleable.max_total_gpus"),
    (("malleable", "stepGPUs"), "malleable.step_gpus"),
    (("malleable", "desiredTotalGPUs"), "malleable.desired_total_gpus"),
)


def _unreadable_limits(template: dict[str, Any]) -> Iterator[Wrong]:
    """What keeps us from finding the GPU limits of a template; the rest of it is for Kubernetes to judge."""
    path: tuple[Step, ...] = ("template", "spec")
    pod = template.get("spec") or {}
    if not isinstance(pod, dict):
        yield Wrong(path, pod, "expected the spec of a pod: a mapping")
        return
    path = (*path, "containers")
    containers = pod.get("containers") or []
    if not isinstance(containers, list):
        yield Wrong(path, containers, "expected a list of containers")
        return
    for index, container in enumerate(containers):
        yield from _unreadable_limit(container, (*path, index))


def _unreadable_limit(container: object, path: tuple[Step, ...]) -> Iterator[Wrong]:
    value = container
    for step in ("resources", "limits"):
        if not isinstance(value, dict):
            yield Wrong(path, value, "expected a mapping")
            return
        value, path = value.get(step) or {}, (*path, step)
    if not isinstance(value, dict):
        yield Wrong(path, value, "expected a mapping")
    elif value.get(GPU_RESOURCE) is not None and gpu_quantity(value[GPU_RESOURCE]) is None:
        yield Wrong((*path, GPU_RESOURCE), value[GPU_RESOURCE], "expected a whole number of GPUs")


def _variables_have_names(spec: RunSpec) -> Iterator[Wrong]:
    for _, name in readable(spec.env) if spec.env else ():
        if len(name) > ENV_NAME_MAX or not ENV_NAME.fullmatch(name):
            message = "expected the name of a variable: letters, digits, '_', '-' and '.', no digit first"
            yield Wrong(("env", name), name, message)


def _a_closed_lease_says_when_and_why(status: LeaseStatus) -> Iterator[Wrong]:
    for field, given in (("endTime", status.end_time), ("closureReason", status.closure_reason)):
        if status.closed and given is None:
            yield Wrong((field,), None, "missing; a lease that is closed says when and why")
        elif not status.closed and given is not None:
            yield Wrong((field,), None, "expected a lease that is open to have none")


def what_it_follows_is_named_once(run: Key, spec: RunSpec) -> Iterator[Wrong]:
    """Apart from the tables, because a spec does not know its own namespace."""
    namespace, _ = split(run)
    after = ((index, key(name, namespace)) for index, name in readable(spec.follow.after))
    yield from _each_once(after, "follow", "after", what="this run")


def what_it_follows_is_another(run: Key, spec: RunSpec) -> Iterator[Wrong]:
    """Apart from the tables, because a spec does not know its own name."""
    namespace, _ = split(run)
    for index, name in readable(spec.follow.after):
        if key(name, namespace) == run:
            yield Wrong(("follow", "after", index), name, "expected a run other than itself")


RULES: Mapping[type[Record], tuple[Rule, ...]] = {
    Envelope: (_the_selector_says_something, _the_window_goes_forward, _the_hours_fit_in_the_window),
    AggregateCap: (_a_cap_is_over_something, _a_cap_bounds_something),
    BudgetSpec: (
        _envelopes_are_named_apart,
        _parents_are_named_once,
        _caps_are_named_apart,
        _caps_are_over_envelopes_of_the_budget,
        _caps_are_over_envelopes_of_their_flavor,
    ),
    RunSpec: (
        _the_least_is_not_above_the_most,
        _widths_are_between_the_least_and_the_most,
        _the_template_is_one_of_pods,
        _the_template_agrees,
        _widths_are_whole_pods,
        _variables_have_names,
    ),
    LeaseStatus: (_a_closed_lease_says_when_and_why,),
}
"""What the fields of a record must be together."""

CHECKED = Reader(CHECKS, RULES)
"""Reads what people wrote."""


def filled(spec: RunSpec) -> RunSpec:
    """A valid spec with `gpusPerPod` settled: as given, else the GPU limit of the template, else 1."""
    if spec.gpus_per_pod is not None:
        return spec
    return msgspec.structs.replace(spec, gpus_per_pod=template_gpus(spec.template) or 1)
