"""Golden messages: what people are told about the mistakes they make, in the words and with the lines they get."""

from __future__ import annotations

import textwrap

import pytest
from tests.model.tables import table

from fairlease.local.daemon.config import read_settings
from fairlease.model.amount import format_instant
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
CAP = "  aggregateCaps: [{name: c, flavor: H100, envelopes: [w], maxConcurrency: 8}]\n"
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
            budget(GOOD.replace("8}", f"{2**63}}}")),
            ["f.yaml:7: spec.envelopes[0].concurrency: 9223372036854775808: integers go up to 9223372036854775807"],
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
                    "expected a number of GPU-hours, such as 8 or 2.5, and at most 2562047788015"
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
        "f.yaml:9: spec.envelopes[0].selector: {}: expected at least one node label, such as region: us-west",
        "f.yaml:10: spec.envelopes[0].concurrency: 0: expected more than 0",
        'f.yaml:12: spec.envelopes[1].flavor: 5: expected text: write "5", with the quotes',
        (
            'f.yaml:16: spec.envelopes[1].end: "2026-01-01T00:00:00Z": '
            "expected a time after start, which is 2026-02-01T00:00:00Z"
        ),
        "f.yaml:25: spec.resources.totalGPUs: 12: expected a multiple of gpusPerPod, which is 8",
        "f.yaml:27: spec.sparesPerGroup: 4: expected a multiple of gpusPerPod, which is 8",
        "f.yaml:28: spec.runtime.retries: -1: expected 0 or more",
    ]


def test_rules_of_a_budget_are_told_beside_simpler_mistakes() -> None:
    spec = """\
spec:
  owner: org:a
  envelopes:
  - {name: w, flavor: H100, selector: {}, concurrency: 0}
  - {name: w, flavor: H100, selector: {region: us}, concurrency: 8, onExhaustion: Kill,
     start: "2026-01-01T00:00:00Z", end: "2026-01-01T02:00:00Z",
     maxGPUHours: 17}
  - {name: old, flavor: A100, selector: {region: us}, concurrency: 8, start: "2026-01-02T00:00:00Z",
     end: "2026-01-01T00:00:00Z"}
  aggregateCaps:
  - {name: c, flavor: H100, maxConcurrency: 8, envelopes: [w,
     x,
     old]}
  - {name: c, flavor: H100, envelopes: [w]}
"""
    assert told(BUDGET + spec) == [
        "f.yaml:7: spec.envelopes[0].concurrency: 0: expected more than 0",
        "f.yaml:7: spec.envelopes[0].selector: {}: expected at least one node label, such as region: us-west",
        'f.yaml:8: spec.envelopes[1].onExhaustion: "Kill": expected one of Hold, Drain',
        'f.yaml:8: spec.envelopes[1].name: "w": an envelope of this name is there twice',
        "f.yaml:10: spec.envelopes[1].maxGPUHours: 17: expected at most concurrency × window = 16",
        (
            'f.yaml:12: spec.envelopes[2].end: "2026-01-01T00:00:00Z": '
            "expected a time after start, which is 2026-01-02T00:00:00Z"
        ),
        'f.yaml:15: spec.aggregateCaps[0].envelopes[1]: "x": expected an envelope of this Budget: w, old',
        (
            'f.yaml:16: spec.aggregateCaps[0].envelopes[2]: "old": '
            "expected an envelope of flavor H100; this one is of A100"
        ),
        "f.yaml:17: spec.aggregateCaps[1]: expected maxConcurrency or maxGPUHours",
        'f.yaml:17: spec.aggregateCaps[1].name: "c": a cap of this name is there twice',
    ]


def test_rules_of_a_run_are_told_beside_simpler_mistakes() -> None:
    spec = """
        owner: org:ai
        resources: {gpuType: H100, totalGPUs: twelve}
        gpusPerPod: 8
        sparesPerGroup: 4
        funding: {sponsors: [x, 5, org:ai, x]}
        env: {"1A": x, 7: y}
        follow: {after: [a, r, B b, a]}
        malleable: {minTotalGPUs: 8, maxTotalGPUs: 16, stepGPUs: x, desiredTotalGPUs: 20}
    """
    assert told(run(spec)) == [
        'f.yaml:6: spec.resources.totalGPUs: "twelve": expected an integer',
        "f.yaml:8: spec.sparesPerGroup: 4: expected a multiple of gpusPerPod, which is 8",
        'f.yaml:9: spec.funding.sponsors[1]: 5: expected text: write "5", with the quotes',
        'f.yaml:10: spec.env["7"]: 7: expected text: write "7", with the quotes',
        (
            'f.yaml:10: spec.env["1A"]: "1A": '
            "expected the name of a variable: letters, digits, '_', '-' and '.', no digit first"
        ),
        (
            'f.yaml:11: spec.follow.after[2]: "B b": expected a name, or namespace/name, '
            "of lowercase letters, digits, '-' and '.', at most 200 long"
        ),
        'f.yaml:11: spec.follow.after[3]: "default/a": this run is there twice',
        'f.yaml:11: spec.follow.after[1]: "r": expected a run other than itself',
        'f.yaml:12: spec.malleable.stepGPUs: "x": expected an integer',
        (
            "f.yaml:12: spec.malleable.desiredTotalGPUs: 20: "
            "expected a width between minTotalGPUs and maxTotalGPUs, 8 to 16"
        ),
        "f.yaml:12: spec.malleable.desiredTotalGPUs: 20: expected a multiple of gpusPerPod, which is 8",
    ]


@table(
    "text expected",
    {
        "an envelope without a readable name may be the one a cap names": (
            budget(GOOD.replace("name: w", "name: 5"), CAP),
            ['f.yaml:7: spec.envelopes[0].name: 5: expected text: write "5", with the quotes'],
        ),
        "a misspelled bound is a bound": (
            budget(GOOD, "  aggregateCaps: [{name: c, flavor: H100, envelopes: [w], maxConcurency: 8}]\n"),
            ["f.yaml:8: spec.aggregateCaps[0].maxConcurency: unknown field; did you mean maxConcurrency?"],
        ),
        "a selector with a wrong key is not empty": (
            budget(GOOD.replace("{region: us}", "{1: us}")),
            ['f.yaml:7: spec.envelopes[0].selector["1"]: 1: expected text: write "1", with the quotes'],
        ),
        "envelopes that are no list are not none": (
            BUDGET + "spec: {owner: a, envelopes: 5, aggregateCaps: [{name: c, flavor: H, envelopes: [w], maxConcurrency: 1}]}",
            ["f.yaml:4: spec.envelopes: 5: expected a list"],
        ),
        "a name that Kubernetes has no field for is missing": (
            HEAD + "kind: Budget\nmetadata: {nam: b}\nspec: {owner: a, envelopes: [" + GOOD + "]}",
            ["f.yaml:3: metadata.name: missing"],
        ),
        "a time that no calendar could go on from": (
            budget(ENVELOPE % 'start: "9999-12-31T00:00:00Z"'),
            [
                (
                    'f.yaml:7: spec.envelopes[0].start: "9999-12-31T00:00:00Z": '
                    "expected a time up to 9000-01-01T00:00:00Z; for no end, leave it out"
                )
            ],
        ),
    },
)  # fmt: skip
def test_what_cannot_be_read_is_told_once_and_nothing_follows(text: str, expected: list[str]) -> None:
    assert told(text) == expected


def test_what_no_calendar_holds_is_shown_as_its_end() -> None:
    assert format_instant(10**18) == "9999-12-31T23:59:59Z"
    assert format_instant(-(10**18)) == "0001-01-01T00:00:00Z"


def test_mistakes_of_a_configuration_do_not_hide_each_other() -> None:
    text = "flavour: H100\nnodez: []\ngpus: eight\nusers: {root: org, 'a b': [x y]}\ngrace: 10 parsecs\nnotice: soon\n"
    with pytest.raises(Invalid) as caught:
        read_settings(text, "c.yaml")
    assert [str(problem) for problem in caught.value.problems] == [
        "c.yaml:1: flavour: unknown field; did you mean flavor?",
        "c.yaml:2: nodez: unknown field; did you mean nodes?",
        'c.yaml:3: gpus: "eight": expected an integer',
        'c.yaml:4: users.root: "org": expected a list',
        'c.yaml:4: users["a b"]: "a b": expected a user\'s name, or @ and a group\'s',
        f'c.yaml:4: users["a b"][0]: "x y": {OWNER}',
        'c.yaml:5: grace: "10 parsecs": expected a duration, such as 90s, 15m or 1h30m',
        'c.yaml:6: notice: "soon": expected a duration, such as 15m, or never',
    ]


def test_an_unknown_setting_is_told_once_with_all_that_are_known() -> None:
    with pytest.raises(Invalid) as caught:
        read_settings("foo: 1", "c.yaml")
    (problem,) = caught.value.problems
    assert str(problem).startswith("c.yaml:1: foo: unknown field; known here: ")
    known = str(problem).rpartition(": ")[2].split(", ")
    assert len(known) == len(set(known))
    assert {"notice", "gpus", "users"} <= set(known)


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
