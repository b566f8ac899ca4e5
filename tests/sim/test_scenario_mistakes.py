"""Mistakes in a scenario file that stand beside each other: all are told, and none is made up."""

from __future__ import annotations

from tests.sim.test_scenario_files import told


def test_a_wrong_field_hides_no_mistake_in_another() -> None:
    spec = "{name: j, owner: 5, resources: {gpuType: H, totalGPUs: 8}, follow: {after: [j]}, work: {}}"
    applied = "{apiVersion: v1, kind: Node, metadata: {name: z}, status: 5}"
    nodes = "nodes: [{prefix: a, gpus: x}, {prefix: a, rack: 5, gpus: 8}]\nuntil: soon\n"
    steps = f"- submit: {spec}\n- apply: {applied}\n- nodeFails: [a0, z, b]\n- shrink: {{run: k, to: x}}\n"
    assert [problem.split(": ", 2)[1] for problem in told(f"{nodes}steps:\n{steps}expect: [{{run: j, at: x}}]")] == [
        "spec.nodes[0].gpus",
        "spec.nodes[1].rack",
        "spec.nodes[1]",
        "spec.until",
        "spec.steps[0].submit.owner",
        "spec.steps[0].submit.work",
        "spec.steps[0].submit.follow.after[0]",
        "spec.steps[1].apply.status",
        "spec.steps[2].nodeFails[2]",
        "spec.steps[3].shrink.to",
        "spec.steps[3].shrink.run",
        "spec.expect[0].at",
        "spec.expect[0]",
    ]


def test_a_misspelled_name_is_told_once_and_not_missed() -> None:
    spec = "{nam: j, owner: o, resources: {gpuType: H, totalGPUs: 8}}"
    assert told(f"steps:\n- submit: {spec}\n- cancel: j\n") == [
        "s.yaml:6: spec.steps[0].submit.nam: unknown field; did you mean name?"
    ]


def test_nodes_without_end_are_not_counted_for_names() -> None:
    assert told("nodes: [{prefix: a, count: 1000000000, gpus: x}]\nsteps: [{nodeFails: b}]\n") == [
        's.yaml:5: spec.nodes[0].gpus: "x": expected an integer',
        "s.yaml:5: spec.nodes[0].count: 1000000000: expected at most 100000 nodes",
    ]
