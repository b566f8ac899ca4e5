"""Scenario files: the good ones are read as they say, the bad ones are refused with every mistake and its line."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import pytest
from tests.model.tables import table

from fairlease.model.amount import HOUR, MINUTE, parse_instant
from fairlease.model.config import Config
from fairlease.model.document import Invalid
from fairlease.model.node import Node
from fairlease.model.objects import BudgetObject, NodeObject, RunObject
from fairlease.model.record import Key
from fairlease.sim import scenario as sc
from fairlease.sim.scenario_file import load_scenario, read_scenario

HERE = Path(__file__).parent.parent
SHARED = Path(os.environ.get("FAIRLEASE_SHARED", HERE.parent.parent / "shared")) / "scenarios"
FILES = sorted([*(HERE / "scenarios").glob("*.yaml"), *SHARED.glob("*.yaml")])
HEAD = "apiVersion: rq.davidlangworthy.io/v1\nkind: Scenario\nmetadata: {name: s}\n"
NODES = "nodes: [{prefix: a, count: 2, gpus: 8}]\n"
RUN = "{name: j, owner: o, resources: {gpuType: H, totalGPUs: 8}}"
BUDGET = "{name: b, owner: o, envelopes: [{name: w, flavor: H, selector: {r: x}, concurrency: 8}]}"
SUBMIT = f"steps:\n- submit: {RUN}\n"


def scenario(spec: str) -> sc.Scenario:
    return read_scenario(HEAD + "spec:\n" + textwrap.indent(spec, "  "), "s.yaml")


def told(spec: str) -> list[str]:
    """What is said of a spec, its first line being line 5."""
    with pytest.raises(Invalid) as caught:
        scenario(spec)
    return [str(problem) for problem in caught.value.problems]


def actions(*steps: str) -> list[sc.Action]:
    text = NODES + "steps:\n" + f"- submit: {RUN}\n" + "".join(f"- {step}\n" for step in steps)
    return [action for step in scenario(text).steps[1:] for action in step.actions]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scenario_we_know_can_be_read(path: Path) -> None:
    read = load_scenario(path)
    assert read.name == path.stem
    assert read.steps
    assert read.expect


def test_an_empty_spec_has_all_its_defaults() -> None:
    read = read_scenario(HEAD + "spec: {}\n", "s.yaml")
    assert read == sc.Scenario(
        name="s",
        start=parse_instant("2026-01-05T00:00:00Z"),
        config=Config(),
        nodes=(),
        budgets=(),
        steps=(),
        until=0,
        expect=(),
    )


def test_the_head_of_a_scenario_is_read() -> None:
    read = scenario('start: "2027-01-01T00:00:00Z"\nconfig: {notice: never}\nuntil: 3h\n')
    assert (read.start, read.config.notice, read.until) == (parse_instant("2027-01-01T00:00:00Z"), None, 3 * HOUR)


def test_shorthand_stands_for_nodes_named_by_prefix_and_number() -> None:
    read = scenario("nodes:\n- {prefix: a, count: 2, gpus: 8, flavor: H, domain: A, region: us, cluster: c, rack: r}\n")
    labels = {"region": "us", "cluster": "c", "fabric.domain": "A", "rack": "r", "gpu.flavor": "H"}
    assert read.nodes == tuple(Node(name=name, labels=labels, gpus=8) for name in ("a0", "a1"))


def test_a_single_node_may_bear_its_own_name_and_lack_a_label() -> None:
    assert scenario("nodes: [{name: x, gpus: 4, region: us}]").nodes == (
        Node(name="x", labels={"region": "us"}, gpus=4),
    )


def test_shorthand_writes_the_labels_that_the_settings_name() -> None:
    read = scenario("config: {labels: {flavor: nvidia.com/gpu.product}}\nnodes: [{name: x, gpus: 4, flavor: H}]")
    assert read.nodes[0].labels == {"nvidia.com/gpu.product": "H"}


def test_budgets_bring_name_and_namespace_beside_their_spec() -> None:
    read = scenario(f"budgets:\n- {BUDGET}\n- {BUDGET.replace('name: b', 'name: b, namespace: team')}\n")
    assert [name for name, _ in read.budgets] == ["default/b", "team/b"]


def test_a_submission_brings_name_namespace_and_work_beside_its_spec() -> None:
    run = "{name: j, namespace: t, owner: o, resources: {gpuType: H, totalGPUs: 8}, work: {gpuHours: 2.5, exitCode: 3}}"
    (step,) = scenario(f"steps:\n- at: 5m\n  submit: [{run}]\n").steps
    (action,) = step.actions
    assert isinstance(action, sc.Submission)
    assert (step.at, step.field, action.run) == (5 * MINUTE, "spec.steps[0]", "t/j")
    assert action.work == sc.Work(gpu_hours=5 * HOUR // 2, exit_code=3)
    assert action.spec.gpus_per_pod == 1, "reading settles it"


def test_a_name_may_bring_its_namespace_wherever_it_stands() -> None:
    read = scenario(f"steps:\n- submit: {RUN.replace('name: j', 'name: t/j')}\n- cancel: t/j\n")
    assert [action for step in read.steps for action in step.actions][1] == sc.Cancellation(run=Key("t/j"))


@table(
    "step expected",
    {
        "a node fails": ("nodeFails: a0", [sc.NodeChange(event=sc.NodeEvent.FAILS, nodes=("a0",))]),
        "nodes return": ("nodeReturns: [a0, a1]", [sc.NodeChange(event=sc.NodeEvent.RETURNS, nodes=("a0", "a1"))]),
        "a node is cordoned": ("nodeCordoned: a0", [sc.NodeChange(event=sc.NodeEvent.CORDONED, nodes=("a0",))]),
        "a node is uncordoned": ("nodeUncordoned: a0", [sc.NodeChange(event=sc.NodeEvent.UNCORDONED, nodes=("a0",))]),
        "a node is silent": ("nodeNotReady: a0", [sc.NodeChange(event=sc.NodeEvent.NOT_READY, nodes=("a0",))]),
        "a node's pods are dead": ("podsDead: [a0]", [sc.NodeChange(event=sc.NodeEvent.PODS_DEAD, nodes=("a0",))]),
        "a run shrinks": ("shrink: {run: j, to: 16}", [sc.Shrink(run=Key("default/j"), to=16)]),
        "a run is canceled": ("cancel: j", [sc.Cancellation(run=Key("default/j"))]),
        "a run completes": ("complete: {run: j}", [sc.Completion(run=Key("default/j"))]),
        "a run fails": ("complete: {run: j, exitCode: 1}", [sc.Completion(run=Key("default/j"), exit_code=1)]),
        "a pod fails": ("podFails: {run: j, rank: 3}", [sc.PodFailure(run=Key("default/j"), rank=3)]),
        "the engine restarts": ("restart: true", [sc.Restart()]),
        "the engine does not restart": ("restart: false", []),
        "time passes": ("at: 5m", []),
        "several things happen in the order of the file": (
            "{restart: true, cancel: [j], nodeFails: a1}",
            [
                sc.Restart(),
                sc.Cancellation(run=Key("default/j")),
                sc.NodeChange(event=sc.NodeEvent.FAILS, nodes=("a1",)),
            ],
        ),
    },
)
def test_a_step_says_what_happens(step: str, expected: list[sc.Action]) -> None:
    assert actions(step) == expected


def test_a_budget_in_a_step_may_be_one_or_many() -> None:
    one, two = actions(f"budget: {BUDGET}"), actions(f"budget: [{BUDGET}, {BUDGET.replace('name: b', 'name: c')}]")
    assert [each.budget for each in one if isinstance(each, sc.BudgetChange)] == ["default/b"]
    assert [each.budget for each in two if isinstance(each, sc.BudgetChange)] == ["default/b", "default/c"]


def test_whole_objects_are_applied_and_declare_what_they_name() -> None:
    api = "apiVersion: rq.davidlangworthy.io/v1"
    run = f"{{{api}, kind: Run, metadata: {{name: k}}, spec: {{owner: o, resources: {{gpuType: H, totalGPUs: 8}}}}}}"
    spec = "{owner: o, envelopes: [{name: w, flavor: H, selector: {r: x}, concurrency: 8}]}"
    budget = f"{{{api}, kind: Budget, metadata: {{name: b}}, spec: {spec}}}"
    node = "{apiVersion: v1, kind: Node, metadata: {name: z}}"
    found = actions(f"apply: [{node}, {budget}, {run}]", "nodeFails: z", "cancel: k")
    kinds = [type(each.item) for each in found if isinstance(each, sc.Application)]
    assert kinds == [NodeObject, BudgetObject, RunObject]


def test_times_default_to_those_before_and_to_the_last() -> None:
    read = scenario(
        f"steps:\n- {{}}\n- {{at: 5m}}\n- submit: {RUN}\nexpect:\n- {{run: j, is: {{}}}}\n- {{at: 0, run: j, is: {{}}}}\n"
    )
    assert [step.at for step in read.steps] == [0, 5 * MINUTE, 5 * MINUTE]
    assert read.until == 5 * MINUTE
    assert [each.at for each in read.expect] == [5 * MINUTE, 0]


def test_expectations_keep_their_bodies_as_written() -> None:
    read = scenario(
        "expect:\n"
        "- {at: 1m, run: j, is: {width: {allocated: 8}}}\n"
        "- {at: 1m, reservation: t/j, is: null}\n"
        "- {at: 1m, leases: {runRef.name: j}, count: 0, each: {status: {closed: true}}}\n"
        "- {at: 1m, outcomes: {}, count: 1}\n"
    )
    run, reservation, leases, outcomes = read.expect
    assert (run.about, run.name, run.wanted) == (sc.Subject.RUN, "default/j", {"width": {"allocated": 8}})
    assert (reservation.name, reservation.wanted) == ("t/j", None)
    assert (leases.where, leases.count, leases.each) == ({"runRef.name": "j"}, 0, {"status": {"closed": True}})
    assert (outcomes.about, outcomes.name, outcomes.where) == (sc.Subject.OUTCOMES, None, {})
    assert leases.field == "spec.expect[2]"


LEASE = ["owner", "runRef", "attempt", "compPath", "slice", "interval", "paidByBudget", "paidByEnvelope", "reason"]
SUBJECTS = "run, budget, reservation, leases, outcomes, events"


@table(
    "spec expected",
    {
        "a field is misspelled": ("stesp: []", ["s.yaml:5: spec.stesp: unknown field; did you mean steps?"]),
        "a step's key is misspelled": (
            "steps:\n- {at: 1m, sumbit: []}\n",
            ["s.yaml:6: spec.steps[0].sumbit: unknown field; did you mean submit?"],
        ),
        "a run's field is misspelled": (
            "steps:\n- submit:\n  - name: j\n    owner: o\n    resources: {gpuType: H, totalGPUs: 8}\n    wrok: {}\n",
            ["s.yaml:10: spec.steps[0].submit[0].wrok: unknown field; did you mean work?"],
        ),
        "a node that nobody has declared": (
            "nodes: [{prefix: node, count: 3, gpus: 8}]\nsteps:\n- {nodeFails: [node1, node3]}\n",
            [
                (
                    's.yaml:7: spec.steps[0].nodeFails[1]: "node3": '
                    "no node of this name is in the file; did you mean node2?"
                ),
            ],
        ),
        "a node that is applied only later": (
            "steps:\n- nodeFails: z\n- apply: [{apiVersion: v1, kind: Node, metadata: {name: z}}]\n",
            ['s.yaml:6: spec.steps[0].nodeFails: "z": no node of this name is in the file'],
        ),
        "a run that nobody submits": (
            SUBMIT + "- cancel: jj\n- complete: {run: k}\n",
            [
                's.yaml:7: spec.steps[1].cancel: "jj": no run of this name is in the file; did you mean j?',
                's.yaml:8: spec.steps[2].complete.run: "k": no run of this name is in the file',
            ],
        ),
        "a run of another namespace": (
            SUBMIT + "- cancel: team/j\n",
            ['s.yaml:7: spec.steps[1].cancel: "team/j": no run of this name is in the file'],
        ),
        "a run that is submitted twice": (
            SUBMIT + f"- submit: {RUN}\n",
            ['s.yaml:7: spec.steps[1].submit.name: "j": a run of this name is submitted already'],
        ),
        "a Budget that is there twice": (
            f"budgets:\n- {BUDGET}\n- {BUDGET}\n",
            ["s.yaml:7: spec.budgets[1].name: a Budget of the name b is there already"],
        ),
        "a node that is there twice": (
            "nodes:\n- {prefix: a, count: 2, gpus: 8}\n- {name: a1, gpus: 8}\n",
            ["s.yaml:7: spec.nodes[1]: a node of the name a1 is there already"],
        ),
        "nodes with a prefix and a name": (
            "nodes: [{prefix: a, name: b, gpus: 8}]",
            ["s.yaml:5: spec.nodes[0]: expected a prefix (and a count), or a name"],
        ),
        "nodes without end": (
            "nodes: [{prefix: a, count: 1000000000, gpus: 8}]",
            ["s.yaml:5: spec.nodes[0].count: 1000000000: expected at most 100000 nodes"],
        ),
        "a node with GPUs without end": (
            "nodes: [{name: a, gpus: 1000000000}]",
            ["s.yaml:5: spec.nodes[0].gpus: 1000000000: expected at most 65536 GPUs in one node"],
        ),
        "a node with fewer GPUs than none": (
            "nodes: [{name: a, gpus: -1}]",
            ["s.yaml:5: spec.nodes[0].gpus: -1: expected 0 or more"],
        ),
        "time that goes back": (
            "steps:\n- at: 10m\n- at: 5m\n",
            ['s.yaml:7: spec.steps[1].at: "5m": expected a time not before the previous step\'s, 10m'],
        ),
        "work that ends in two ways": (
            (
                "steps:\n- submit:\n  - {name: j, owner: o, resources: {gpuType: H, totalGPUs: 8},\n"
                "     work: {duration: 5m, gpuHours: 2}}\n"
            ),
            ["s.yaml:8: spec.steps[0].submit[0].work: expected either duration or gpuHours"],
        ),
        "a run that follows itself": (
            "steps:\n- submit: {name: j, owner: o, resources: {gpuType: H, totalGPUs: 8}, follow: {after: [j]}}\n",
            ['s.yaml:6: spec.steps[0].submit.follow.after[0]: "j": expected a run other than itself'],
        ),
        "a run in two namespaces": (
            f"steps:\n- submit: {RUN.replace('name: j', 'name: a/j, namespace: b')}\n",
            ['s.yaml:6: spec.steps[0].submit.namespace: "b": expected the namespace of the name, a/j'],
        ),
        "a lease that is applied": (
            "steps:\n- apply: {apiVersion: rq.davidlangworthy.io/v1, kind: Lease, metadata: {name: l}, spec: {}}\n",
            [f"s.yaml:6: spec.steps[0].apply.spec.{name}: missing" for name in LEASE],
        ),
        "an expectation of nothing": (
            "expect: [{at: 1m}]",
            [f"s.yaml:5: spec.expect[0]: expected exactly one of {SUBJECTS}"],
        ),
        "an expectation of two things": (
            "expect: [{run: j, budget: b, is: {}}]",
            [f"s.yaml:5: spec.expect[0]: expected exactly one of {SUBJECTS}"],
        ),
        "an expectation that asks nothing of a run": (
            "expect: [{run: j}]",
            ["s.yaml:5: spec.expect[0]: expected is: what must be true of run?"],
        ),
        "an expectation that counts a run": (
            "expect: [{run: j, is: {}, count: 1}]",
            ["s.yaml:5: spec.expect[0].count: expected is with run, not count"],
        ),
        "an expectation of what all leases are": (
            "expect: [{leases: {}, is: {}}]",
            ["s.yaml:5: spec.expect[0].is: expected count or each with leases, not is"],
        ),
        "an expectation that is misspelled": (
            "expect: [{run: j, iss: {}}]",
            ["s.yaml:5: spec.expect[0].iss: unknown field; did you mean is?"],
        ),
        "a restart that is a word": (
            "steps: [{restart: soon}]",
            ['s.yaml:5: spec.steps[0].restart: "soon": expected true'],
        ),
        "steps that are no list": ("steps: {at: 0s}", ['s.yaml:5: spec.steps: {"at": "0s"}: expected a list']),
        "a rule that a Budget of the file breaks": (
            "budgets:\n- {name: b, owner: o, envelopes: [{name: w, flavor: H, selector: {}, concurrency: 8}]}\n",
            [
                (
                    "s.yaml:6: spec.budgets[0].envelopes[0].selector: {}: "
                    "expected at least one node label, such as region: us-west"
                ),
            ],
        ),
        "several mistakes, each with its line": (
            f"until: soon\nbudgets:\n- name: B\n  owner: o\n  envelopes: 0\nsteps:\n- at: x\n  submit: {RUN}\n- cancel: 5\n",
            [
                's.yaml:5: spec.until: "soon": expected a duration, such as 90s, 15m or 1h30m',
                (
                    's.yaml:7: spec.budgets[0].name: "B": expected a name, or namespace/name, of lowercase letters, '
                    "digits, '-' and '.', at most 253 long"
                ),
                "s.yaml:9: spec.budgets[0].envelopes: 0: expected a list",
                's.yaml:11: spec.steps[0].at: "x": expected a duration, such as 90s, 15m or 1h30m',
                "s.yaml:13: spec.steps[1].cancel: 5: expected the name of a run, or a list of names",
            ],
        ),
    },
)
def test_a_mistake_is_told_with_its_line_and_field(spec: str, expected: list[str]) -> None:
    assert told(spec) == expected


@table(
    "text expected",
    {
        "nothing": ("", ["s.yaml: nothing in it; expected a Scenario"]),
        "another kind": (
            HEAD.replace("Scenario", "Run") + "spec: {}\n",
            ['s.yaml:2: kind: "Run": expected Scenario'],
        ),
        "no kind": ("spec: {}\n", [
            "s.yaml:1: apiVersion: missing; expected rq.davidlangworthy.io/v1",
            "s.yaml:1: kind: missing; expected Scenario",
        ]),
        "no spec": (HEAD, ["s.yaml:1: spec: expected a mapping with nodes, budgets, steps and expect"]),
        "two documents": (
            HEAD + "spec: {}\n---\na: 1\n",
            ["s.yaml:6: expected one document: a file holds one Scenario"],
        ),
        "a list": ("- 1\n", ["s.yaml:1: [1]: expected a mapping with apiVersion, kind, metadata and spec"]),
    },
)  # fmt: skip
def test_a_file_that_is_no_scenario_is_refused(text: str, expected: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        read_scenario(text, "s.yaml")
    assert [str(problem) for problem in caught.value.problems] == expected


def test_a_name_proves_nothing_where_others_could_not_be_read() -> None:
    broken = "nodes: [{prefix: a, count: x, gpus: 8}]\nsteps:\n- nodeFails: a0\n"
    assert told(broken) == ['s.yaml:5: spec.nodes[0].count: "x": expected an integer']


def test_a_run_may_be_named_before_it_is_submitted() -> None:
    read = scenario(f"steps:\n- cancel: j\n- submit: {RUN}\n")
    assert len(read.steps) == 2


def test_a_run_that_was_submitted_may_be_applied_again() -> None:
    spec = "{owner: o, resources: {gpuType: H, totalGPUs: 8}}"
    run = f"{{apiVersion: rq.davidlangworthy.io/v1, kind: Run, metadata: {{name: j}}, spec: {spec}}}"
    assert len(actions(f"apply: [{run}]")) == 1


def test_a_world_of_ten_thousand_runs_is_read_in_no_time() -> None:
    runs = "".join(
        f"  - {{name: r{n}, owner: org:t{n % 50}, resources: {{gpuType: H, totalGPUs: 32}}, gpusPerPod: 8, "
        f"runtime: {{maxDuration: 2h, checkpoint: 10m}}, work: {{duration: {n % 600}m}}}}\n"
        for n in range(10_000)
    )
    text = f"nodes: [{{prefix: a, count: 5000, gpus: 8, flavor: H, domain: A}}]\nsteps:\n- submit:\n{runs}"
    begun = time.process_time()
    read = scenario(text)
    spent = time.process_time() - begun
    assert len(read.nodes) == 5_000
    assert len(read.steps[0].actions) == 10_000
    assert spent < 2, "half a second on an idle machine; the rest is for a busy one"
