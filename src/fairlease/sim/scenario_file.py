"""Reading a Scenario from its file, with every mistake in it at once.

Steps are read in file order, because a node may be declared by an earlier `apply`; what names a run is checked at the
end, because a run may be submitted anywhere in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairlease.model import rules
from fairlease.model.amount import format_duration
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.document import Findings, Invalid, Problem, Trail, dotted, load, read_file, unrolled
from fairlease.model.node import LabelKeys, Node
from fairlease.model.objects import API_VERSION, BudgetObject, NodeObject, RunObject, read_object
from fairlease.model.partial import BAD, Unreadable, as_far, known, whole
from fairlease.model.reading import extended, nearest, some, unknown
from fairlease.model.record import DEFAULT_NAMESPACE, Key, key, short
from fairlease.model.run import RunSpec
from fairlease.sim.scenario import (
    Action,
    Application,
    BudgetChange,
    Cancellation,
    Completion,
    Expectation,
    NodeChange,
    NodeEvent,
    PodFailure,
    ResolveStep,
    Restart,
    Scenario,
    Shrink,
    Step,
    Subject,
    Submission,
)
from fairlease.sim.scenario_form import (
    NAMED,
    READER,
    Expected,
    NamedForm,
    NodeGroup,
    ScenarioHead,
    Submitted,
    Timed,
    Title,
)

N = TypeVar("N", bound=NamedForm)


def load_scenario(path: str | Path) -> Scenario:
    """The scenario in a file; `-` is standard input. Raises `Invalid`."""
    return read_scenario(*read_file(path))


def read_scenario(text: str, source: str) -> Scenario:
    """The scenario that a text holds; raises `Invalid` with all that is wrong with it."""
    documents = load(text, source)
    if not documents:
        raise Invalid([Problem(source, None, "", None, "nothing in it; expected a Scenario")])
    findings = Findings(text, source)
    for extra in documents[1:]:
        findings.add(extra.trail, "expected one document: a file holds one Scenario")
    scenario = _Reading(findings).scenario(documents[0].value, documents[0].trail)
    findings.settle()
    assert scenario is not None, "what cannot be read has left a finding"
    return scenario


class _Reading:
    """One reading of one file: what it has declared so far, and what it has named."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._nodes: set[str] = set()
        self._now, self._retention = 0, Config().name_retention
        self._runs: dict[Key, int] = {}  # when each was submitted
        self._named_runs: list[tuple[Key, Trail]] = []
        self._nodes_known = self._runs_known = True  # False: some could not be read, so an unknown name proves nothing.
        self._read: dict[str, Callable[[object, Trail], Iterator[Action]]] = {
            "submit": self._submit,
            "budget": self._change_budgets,
            "shrink": self._shrink,
            "cancel": self._cancel,
            "complete": self._complete,
            "podFails": self._fail_pod,
            "resolve": self._resolve,
            "apply": self._apply,
            "restart": self._restart,
            **{event.value: self._change_nodes for event in NodeEvent},
        }

    def scenario(self, raw: dict[Any, Any], trail: Trail) -> Scenario | None:
        found, place = self._findings, (trail, "spec")
        self._is_a_scenario(raw, trail)
        metadata = READER.read(Title, raw.get("metadata") or {}, (trail, "metadata"), found)
        spec = raw.get("spec")
        if not isinstance(spec, dict):
            found.add(place, "expected a mapping with nodes, budgets, steps and expect")
            return None
        head = READER.glean(ScenarioHead, spec, place, found, ("budgets", "steps", "expect"))
        self._retention = known(head, "config.name_retention", self._retention)
        nodes = tuple(self._expanded(head, (place, "nodes")))
        budgets = tuple(self._budgets(spec.get("budgets"), (place, "budgets")))
        steps = tuple(self._steps(spec.get("steps"), (place, "steps")))
        given = known(head, "until")
        until = given if given is not None else (steps[-1].at if steps else 0)
        expect = tuple(self._expectations(spec.get("expect"), (place, "expect"), until))
        if given is None:  # A film whose end nobody set goes on until all that is expected of it was seen.
            until = max([until, *(each.at for each in expect)])
        self._check_named_runs()
        if metadata is None or not whole(head):
            return None
        return Scenario(
            name=metadata.name,
            start=head.start,
            config=head.config,
            nodes=nodes,
            budgets=budgets,
            steps=steps,
            until=until,
            expect=expect,
        )

    def _is_a_scenario(self, raw: dict[Any, Any], trail: Trail) -> None:
        for name, expected in (("apiVersion", API_VERSION), ("kind", "Scenario")):
            if raw.get(name) is None:
                self._findings.add((trail, name), f"missing; expected {expected}")
            elif raw[name] != expected:
                self._findings.refuse((trail, name), raw[name], f"expected {expected}")
        known = ("apiVersion", "kind", "metadata", "spec", "status")
        for name in raw:
            if name not in known:
                self._findings.add((trail, str(name)), unknown(name, known))

    def _expanded(self, head: ScenarioHead, trail: Trail) -> Iterator[Node]:
        """The nodes that the shorthand stands for."""
        keys = known(head, "config.labels", LabelKeys())
        groups = known(head, "nodes")
        self._nodes_known = groups is not None
        for index, group in enumerate(groups or ()):
            try:
                names = _names(group)
            except Unreadable:
                self._nodes_known = False
                continue
            labels, gpus = (group.labels(keys), group.gpus) if whole(group) else ({}, 0)
            for name in names:
                if name in self._nodes:
                    self._findings.add((trail, index), f"a node of the name {name} is there already")
                    break
                self._nodes.add(name)
                yield Node(name=name, labels=dict(labels), gpus=gpus)

    def _budgets(self, raw: object, trail: Trail) -> Iterator[tuple[Key, BudgetSpec]]:
        seen = set()
        for each, place in self._listed(raw, trail):
            named, spec = self._budget(each, place)
            if named is None:
                continue
            if named in seen:
                self._findings.add((place, "name"), f"a Budget of the name {short(named)} is there already")
            seen.add(named)
            if spec is not None:
                yield named, spec

    def _budget(self, raw: object, trail: Trail) -> tuple[Key | None, BudgetSpec | None]:
        spec = READER.read(BudgetSpec, raw, trail, self._findings, ("name", "namespace"))
        named = self._named(NamedForm, raw, trail)
        return (None if named is None else _key(named)), spec

    def _named(self, kind: type[N], raw: object, trail: Trail) -> N | None:
        """What stands beside a spec; None where its name was told to be misspelled, or there is no mapping to hold it."""
        if not isinstance(raw, dict):
            return None
        if raw.get("name") is None and any(nearest(each, ("name", "namespace", "work")) == "name" for each in raw):
            return None
        return READER.glean(kind, raw, trail, self._findings)

    # ---------------------------------------------------------------------------------------------------------- steps

    def _steps(self, raw: object, trail: Trail) -> Iterator[Step]:
        now = self._now = 0
        for each, place in self._listed(raw, trail):
            if not isinstance(each, dict):
                self._findings.refuse(place, each, f"expected a step: at, and {some(self._read)}")
                continue
            given = READER.read(Timed, each, place, self._findings)
            at = now if given is None or given.at is None else given.at
            if at < now:
                message = f"expected a time not before the previous step's, {format_duration(now)}"
                self._findings.refuse((place, "at"), each["at"], message)
            now = self._now = max(now, at)
            yield Step(at=at, field=dotted(unrolled(place)[1:]), actions=tuple(self._actions(each, place)))

    def _actions(self, step: dict[Any, Any], trail: Trail) -> Iterator[Action]:
        for name, raw in step.items():
            if name in self._read:
                if raw is not None:
                    yield from self._read[name](raw, (trail, name))
            elif name != "at":
                self._findings.add((trail, str(name)), unknown(name, ("at", *self._read)))

    def _submit(self, raw: object, trail: Trail) -> Iterator[Action]:
        for each, place in _one_or_many(raw, trail):
            spec = READER.glean(RunSpec, each, place, self._findings, ("name", "namespace", "work"))
            named = self._named(Submitted, each, place)
            run = None if named is None else _key(named)
            if named is None or run is None:
                self._runs_known = False
                continue
            if run in self._runs and self._now < self._runs[run] + self._retention:
                self._findings.refuse((place, "name"), named.name, "a run of this name is submitted already")
            self._runs[run] = self._now
            self._judge_follow(run, spec, place)
            if whole(spec) and whole(named):
                yield Submission(run=run, spec=rules.filled(spec), work=named.work)

    def _judge_follow(self, run: Key, spec: RunSpec, trail: Trail) -> None:
        if known(spec, "follow.after"):
            for rule in rules.what_it_follows_is_named_once, rules.what_it_follows_is_another:
                for wrong in as_far(rule(run, spec)):
                    self._findings.refuse(extended(trail, wrong.path), wrong.value, wrong.message)

    def _change_nodes(self, raw: object, trail: Trail) -> Iterator[Action]:
        names = []
        for name, place in self._texts(raw, trail, "a node"):
            names.append(name)
            if self._nodes_known and name not in self._nodes:
                self._refuse_name(place, name, "node", self._nodes)
        yield NodeChange(event=NodeEvent(unrolled(trail)[-1]), nodes=tuple(names))

    def _change_budgets(self, raw: object, trail: Trail) -> Iterator[Action]:
        for each, place in _one_or_many(raw, trail):
            named, spec = self._budget(each, place)
            if named is not None and spec is not None:
                yield BudgetChange(budget=named, spec=spec)

    def _cancel(self, raw: object, trail: Trail) -> Iterator[Action]:
        for name, place in self._texts(raw, trail, "a run"):
            wrong = rules.a_run_reference(name)
            if wrong is not None:
                self._findings.refuse(place, name, wrong)
                continue
            self._named_runs.append((key(name), place))
            yield Cancellation(run=key(name))

    def _shrink(self, raw: object, trail: Trail) -> Iterator[Action]:
        yield from self._to_a_run(Shrink, raw, trail)

    def _complete(self, raw: object, trail: Trail) -> Iterator[Action]:
        yield from self._to_a_run(Completion, raw, trail)

    def _fail_pod(self, raw: object, trail: Trail) -> Iterator[Action]:
        yield from self._to_a_run(PodFailure, raw, trail)

    def _resolve(self, raw: object, trail: Trail) -> Iterator[Action]:
        for each, place in _one_or_many(raw, trail):
            action = READER.read(ResolveStep, each, place, self._findings)
            if action is not None:
                yield action

    def _to_a_run(self, kind: type[Shrink | Completion | PodFailure], raw: object, trail: Trail) -> Iterator[Action]:
        for each, place in _one_or_many(raw, trail):
            action = READER.glean(kind, each, place, self._findings)
            named = known(action, "run")
            if named is not None:
                self._named_runs.append((key(named), (place, "run")))
            if whole(action):
                yield msgspec.structs.replace(action, run=key(named))

    def _apply(self, raw: object, trail: Trail) -> Iterator[Action]:
        for each, place in _one_or_many(raw, trail):
            item = read_object(each, place, self._findings)
            if item is None:
                self._declared(each)
            elif isinstance(item, BudgetObject | RunObject | NodeObject):
                if isinstance(item, NodeObject):
                    self._nodes.add(item.node.name)
                elif isinstance(item, RunObject):
                    self._runs[item.key] = self._now
                yield Application(item=item)
            else:
                self._findings.add((place, "kind"), "expected a Node, a Budget or a Run: the engine makes all others")

    def _declared(self, raw: object) -> None:
        """Learn the name of an object that holds mistakes; where it cannot be known, no name is unknown any more."""
        kind = raw.get("kind") if isinstance(raw, dict) else None
        metadata = raw.get("metadata") if isinstance(raw, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        namespace = (metadata.get("namespace") or DEFAULT_NAMESPACE) if isinstance(metadata, dict) else None
        if kind == "Node" and isinstance(name, str):
            self._nodes.add(name)
        elif kind == "Run" and isinstance(name, str) and isinstance(namespace, str):
            self._runs[key(name, namespace)] = self._now
        elif kind != "Budget":
            self._nodes_known = self._runs_known = False

    def _restart(self, raw: object, trail: Trail) -> Iterator[Action]:
        if raw is True:
            yield Restart()
        elif raw is not False:
            self._findings.refuse(trail, raw, "expected true")

    # --------------------------------------------------------------------------------------------------- expectations

    def _expectations(self, raw: object, trail: Trail, until: int) -> Iterator[Expectation]:
        for each, place in self._listed(raw, trail):
            form = READER.glean(Expected, each, place, self._findings)
            if not isinstance(each, dict):
                continue
            subjects = [subject for subject in Subject if known(form, subject.value, BAD) is not None]
            if len(subjects) != 1:
                choices = ", ".join(subject.value for subject in Subject)
                self._findings.add(place, f"expected exactly one of {choices}")
            elif self._asks_what_it_can(form, each, subjects[0], place) and whole(form):
                yield _expectation(form, subjects[0], until, place)

    def _asks_what_it_can(self, form: Expected, raw: dict[Any, Any], about: Subject, trail: Trail) -> bool:
        """Whether it asks something of its subject, and nothing that makes no sense of it."""
        one, several = ["is"], ["count", "each"]
        able, unable = (one, several) if about in NAMED else (several, one)
        for question in unable:
            if question in raw:
                expected = " or ".join(able)
                self._findings.add((trail, question), f"expected {expected} with {about.value}, not {question}")
                return False
        unreadable = any(known(form, field, BAD) is BAD for field in ("is_", "count", "each"))
        if not unreadable and not any(question in raw for question in able):
            self._findings.add(trail, f"expected {' or '.join(able)}: what must be true of {about.value}?")
            return False
        return True

    # ---------------------------------------------------------------------------------------------------------- names

    def _check_named_runs(self) -> None:
        for run, trail in self._named_runs:
            if self._runs_known and run not in self._runs:
                self._refuse_name(trail, short(run), "run", {short(each) for each in self._runs})

    def _refuse_name(self, trail: Trail, name: str, what: str, names: set[str]) -> None:
        meant = nearest(name, tuple(sorted(names)))
        hint = f"; did you mean {meant}?" if meant else ""
        self._findings.refuse(trail, name, f"no {what} of this name is in the file{hint}")

    def _listed(self, raw: object, trail: Trail) -> Iterator[tuple[object, Trail]]:
        if raw is None:
            return
        if not isinstance(raw, list):
            self._findings.refuse(trail, raw, "expected a list")
            return
        for index, each in enumerate(raw):
            yield each, (trail, index)

    def _texts(self, raw: object, trail: Trail, what: str) -> Iterator[tuple[str, Trail]]:
        for each, place in _one_or_many(raw, trail):
            if isinstance(each, str):
                yield each, place
            else:
                self._findings.refuse(place, each, f"expected the name of {what}, or a list of names")


def _key(named: NamedForm) -> Key | None:
    try:
        return named.key()
    except Unreadable:
        return None


def _names(group: NodeGroup) -> list[str]:
    """The names of the nodes of a group; raises `Unreadable` where there are none to be had."""
    if (group.prefix is None) == (group.name is None):
        raise Unreadable
    return group.names()


def _one_or_many(raw: object, trail: Trail) -> Iterator[tuple[object, Trail]]:
    if not isinstance(raw, list):
        yield raw, trail
        return
    for index, each in enumerate(raw):
        yield each, (trail, index)


def _expectation(form: Expected, about: Subject, until: int, trail: Trail) -> Expectation:
    target = getattr(form, about.value)
    return Expectation(
        at=until if form.at is None else form.at,
        field=dotted(unrolled(trail)[1:]),
        about=about,
        name=key(target) if about in NAMED else None,
        wanted=form.is_,
        where={} if about in NAMED else target,
        count=form.count,
        each=form.each,
    )
