"""Golden messages: what people are told about the mistakes they make, in the words and with the lines they get."""

from __future__ import annotations

import textwrap

import pytest
from tests.model.tables import table

from fairlease.model.document import Invalid
from fairlease.model.objects import read_config, read_objects

HEAD = "apiVersion: rq.davidlangworthy.io/v1\n"
BUDGET = HEAD + "kind: Budget\nmetadata: {name: b}\n"
RUN = HEAD + "kind: Run\nmetadata: {name: r}\n"
OWNER = "expected an owner: names of letters, digits, '.', '_' and '-', joined by ':', such as org:ai:rai"


def told(text: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        read_objects(text, "f.yaml")
    return [str(problem) for problem in caught.value.problems]


def budget(envelope: str, more: str = "") -> str:
    return f"{BUDGET}spec:\n  owner: org:a\n  envelopes:\n  - {envelope}\n{more}"


def run(spec: str) -> str:
    return f"{RUN}spec:\n{textwrap.indent(textwrap.dedent(spec).strip(), '  ')}\n"


GOOD = "{name: w, flavor: H100, selector: {region: us}, concurrency: 8}"
ENVELOPE = "{name: w, flavor: H100, selector: {region: us}, concurrency: 8, %s}"


@table(
    "text expected",
    {
        "a field is misspelled, and what it means is not missed as well": (
            run("owner: a\nresources: {gpuType: H100, totalGPU: 8}"),
            ["f.yaml:6: spec.resources.totalGPU: unknown field; did you mean totalGPUs?"],
        ),
        "a field is like no other": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: 8, zzz: 1}"),
            ["f.yaml:6: spec.resources.zzz: unknown field; known here: gpuType, totalGPUs"],
        ),
        "GPUs are negative": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: -8}"),
            ["f.yaml:6: spec.resources.totalGPUs: -8: expected more than 0"],
        ),
        "a number stands in quotes": (
            budget(GOOD.replace("8}", '"8"}')),
            ['f.yaml:7: spec.envelopes[0].concurrency: "8": expected an integer: write 8, without quotes'],
        ),
        "a number has a point": (
            budget(GOOD.replace("8}", "8.0}")),
            ["f.yaml:7: spec.envelopes[0].concurrency: 8.0: expected an integer: write 8"],
        ),
        "true is no number": (
            budget(GOOD.replace("8}", "true}")),
            ["f.yaml:7: spec.envelopes[0].concurrency: true: expected an integer"],
        ),
        "a number is past all bounds": (
            budget(GOOD.replace("8}", f"{2**53}}}")),
            ["f.yaml:7: spec.envelopes[0].concurrency: 9007199254740992: integers go up to 9007199254740991"],
        ),
        "a label's value is a number": (
            budget(GOOD.replace("us}", "1}")),
            ['f.yaml:7: spec.envelopes[0].selector.region: 1: expected text: write "1", with the quotes'],
        ),
        "a selector is empty": (
            budget(GOOD.replace("{region: us}", "{}")),
            ["f.yaml:7: spec.envelopes[0].selector: {}: expected at least one node label, such as region: us-west"],
        ),
        "an envelope is there twice": (
            budget(GOOD, f"  - {GOOD}\n"),
            ['f.yaml:8: spec.envelopes[1].name: "w": an envelope of this name is there twice'],
        ),
        "a choice is misspelled": (
            budget(ENVELOPE % "sharing: famly"),
            ['f.yaml:7: spec.envelopes[0].sharing: "famly": expected one of family, none; did you mean family?'],
        ),
        "a duration is none": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: 8}\nruntime:\n  maxDuration: 2 hours"),
            ['f.yaml:8: spec.runtime.maxDuration: "2 hours": expected a duration, such as 90s, 15m or 1h30m'],
        ),
        "a duration lacks its unit": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: 8}\nruntime: {maxDuration: 90}"),
            [
                (
                    "f.yaml:7: spec.runtime.maxDuration: 90: "
                    "expected a duration, such as 90s, 15m or 1h30m: write 90s if you mean seconds"
                )
            ],
        ),
        "a duration is finer than our clock": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: 8}\nruntime: {maxDuration: 0.5ms}"),
            [
                (
                    'f.yaml:7: spec.runtime.maxDuration: "0.5ms": '
                    "expected a duration, such as 90s, 15m or 1h30m; this is finer than a millisecond"
                )
            ],
        ),
        "a time is only a date": (
            budget(ENVELOPE % "start: 2026-01-05"),
            [
                (
                    'f.yaml:7: spec.envelopes[0].start: "2026-01-05": '
                    "expected an RFC 3339 time, such as 2026-01-05T00:00:00Z"
                )
            ],
        ),
        "hours are no number": (
            budget(ENVELOPE % "maxGPUHours: .nan"),
            [
                (
                    "f.yaml:7: spec.envelopes[0].maxGPUHours: NaN: "
                    "expected a number of GPU-hours, such as 8 or 2.5, and at most 2501999792"
                )
            ],
        ),
        "an owner has a space in it": (
            run("owner: org ai\nresources: {gpuType: H100, totalGPUs: 8}"),
            [f'f.yaml:5: spec.owner: "org ai": {OWNER}'],
        ),
        "a command is one word": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: 8}\ncommand: python train.py"),
            ['f.yaml:7: spec.command: "python train.py": expected a list'],
        ),
        "a key is a number": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: 8}\nenv: {1: x}"),
            ['f.yaml:7: spec.env["1"]: 1: expected text: write "1", with the quotes'],
        ),
        "the spec is missing": (RUN, ["f.yaml:1: spec: missing"]),
        "the name is missing": (
            HEAD + "kind: Budget\nmetadata: {}\nspec: {owner: a, envelopes: [" + GOOD + "]}",
            ["f.yaml:3: metadata.name: missing"],
        ),
        "the kind is misspelled": (
            HEAD + "kind: Bugdet\n",
            ['f.yaml:2: kind: "Bugdet": unknown kind; did you mean Budget?'],
        ),
        "the version is another's": (
            run("owner: a\nresources: {gpuType: H100, totalGPUs: 8}").replace("rq.davidlangworthy.io/v1", "v1"),
            ['f.yaml:1: apiVersion: "v1": expected rq.davidlangworthy.io/v1 for a Run'],
        ),
        "a scenario is not to be applied": (
            HEAD + "kind: Scenario\n",
            ['f.yaml:2: kind: "Scenario": a Scenario is not applied but played: fairlease simulate FILE'],
        ),
        "an empty file": ("", ["f.yaml: nothing in it; expected objects, such as a Run or a Budget"]),
    },
)
def test_a_mistake_is_told_with_its_line_and_what_is_right(text: str, expected: list[str]) -> None:
    assert told(text) == expected


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    text = textwrap.dedent("""\
        apiVersion: rq.davidlangworthy.io/v1
        kind: Budget
        metadata: {name: Team_A}
        spec:
          owner: "org::ai"
          envelopes:
          - name: west
            flavor: H100
            selector: {}
            concurrency: 0
          - name: east
            flavor: 5
            selector: {region: east}
            concurrency: 8
            start: "2026-02-01T00:00:00Z"
            end: "2026-01-01T00:00:00Z"
        ---
        apiVersion: rq.davidlangworthy.io/v1
        kind: Run
        metadata: {name: r}
        spec:
          owner: org:ai
          resources:
            gpuType: H100
            totalGPUs: 12
          gpusPerPod: 8
          sparesPerGroup: 4
          runtime: {retries: -1}
        """)
    assert told(text) == [
        (
            "f.yaml:3: metadata.name: \"Team_A\": expected a name of lowercase letters, digits, '-' and '.', "
            "which begins and ends with a letter or digit"
        ),
        f'f.yaml:5: spec.owner: "org::ai": {OWNER}',
        "f.yaml:10: spec.envelopes[0].concurrency: 0: expected more than 0",
        'f.yaml:12: spec.envelopes[1].flavor: 5: expected text: write "5", with the quotes',
        "f.yaml:28: spec.runtime.retries: -1: expected 0 or more",
    ]


def test_what_fields_must_be_together_is_told_once_each_is_right() -> None:
    spec = """
        owner: org:ai
        resources: {gpuType: H100, totalGPUs: 12}
        gpusPerPod: 8
        sparesPerGroup: 4
        funding: {sponsors: [x, org:ai, x]}
    """
    assert told(run(spec)) == [
        "f.yaml:6: spec.resources.totalGPUs: 12: expected a multiple of gpusPerPod, which is 8",
        "f.yaml:8: spec.sparesPerGroup: 4: expected a multiple of gpusPerPod, which is 8",
        'f.yaml:9: spec.funding.sponsors[2]: "x": this sponsor is there twice',
        'f.yaml:9: spec.funding.sponsors[1]: "org:ai": expected an owner other than the run\'s own',
    ]


def test_a_mistake_in_json_has_its_line_too() -> None:
    text = '{\n "apiVersion": "rq.davidlangworthy.io/v1",\n "kind": "Run",\n "metadata": {"name": "r"},\n "spec": {\n'
    text += '  "owner": "a",\n  "resources": {"gpuType": "H100",\n\t"totalGPUs": "8"}}}'
    assert told(text) == ['f.yaml:8: spec.resources.totalGPUs: "8": expected an integer: write 8, without quotes']


def test_a_mistake_inside_a_list_names_the_item() -> None:
    item = "{apiVersion: rq.davidlangworthy.io/v1, kind: Run, metadata: {name: r}, spec: 5}"
    text = f"apiVersion: v1\nkind: List\nitems:\n- {item}\n"
    (problem,) = told(text)
    assert problem.startswith("f.yaml:4: items[0].spec: 5: expected a mapping with owner, resources,")


@table(
    "text expected",
    {
        "a setting is misspelled": ("notise: 5m", ["c.yaml:1: notise: unknown field; did you mean notice?"]),
        "a notice is no duration": (
            "notice: sometimes",
            ['c.yaml:1: notice: "sometimes": expected a duration, such as 15m, or never'],
        ),
        "labels have no names": (
            "labels: {region: '', cluster: '', domain: '', rack: '', flavor: ''}",
            [
                f'c.yaml:1: labels.{name}: "": expected some text'
                for name in ("region", "cluster", "domain", "rack", "flavor")
            ],
        ),
        "a quantum of nothing, which would be committed for ever": (
            "commitQuantum: 0s",
            ['c.yaml:1: commitQuantum: "0s": expected more than 0'],
        ),
        "two documents": ("notice: 5m\n---\nnotice: 6m\n", ["c.yaml:3: expected one document"]),
    },
)
def test_a_mistake_in_the_settings_is_told(text: str, expected: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        read_config(text, "c.yaml")
    assert [str(problem) for problem in caught.value.problems] == expected
