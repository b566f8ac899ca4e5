"""Reading text: whatever a file holds, it becomes documents or problems with a line, and nothing else."""

from __future__ import annotations

import io
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.model.tables import table

from fairlease.model import document
from fairlease.model.document import Findings, Invalid, Problem, Trail, dotted, load, read_file, shown, unrolled

MAPPING = "expected a mapping with apiVersion, kind, metadata and spec"
DEEP = "nested more than 128 deep, or an alias inside its own anchor"


def values(text: str) -> list[dict[Any, Any]]:
    return [document.value for document in load(text, "f.yaml")]


def problems(text: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        load(text, "f.yaml")
    return [str(problem) for problem in caught.value.problems]


@table(
    "text expected",
    {
        "an empty file holds no document": ("", []),
        "comments alone are no document": ("# nothing yet\n", []),
        "documents that are null are passed over": ("---\n---\na: 1\n---\n", [{"a": 1}]),
        "several documents come in order": ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        "JSON is read as JSON": (
            '{"a": [1, 2.5, null, true, "x\\u00e9\\ud83d\\ude00"]}',
            [{"a": [1, 2.5, None, True, "xé😀"]}],
        ),
        "YAML in flow style is not taken for JSON": ("{a: 1, b: [x]}", [{"a": 1, "b": ["x"]}]),
        "yes and no are text as in YAML 1.2": ("a: yes\nb: off\n", [{"a": "yes", "b": "off"}]),
        "a time stays the text it is": ("a: 2026-01-05T00:00:00Z", [{"a": "2026-01-05T00:00:00Z"}]),
        "an alias stands for its anchor": ("a: &x {b: 1}\nc: *x\n", [{"a": {"b": 1}, "c": {"b": 1}}]),
        "a merge key gives what is not given beside it": (
            "a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\n",
            [{"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}],
        ),
        "of several merged mappings the first wins": (
            "a: {<<: [{b: 1}, {b: 2, c: 3}]}",
            [{"a": {"b": 1, "c": 3}}],
        ),
        "a merge key with nothing to merge stays a key": ("a: {<<: 5, b: 1}", [{"a": {"b": 1, "<<": 5}}]),
        "line ends of Windows are line ends": ("a: 1\r\nb: 2\r\n", [{"a": 1, "b": 2}]),
    },
)
def test_a_good_text_becomes_its_documents(text: str, expected: list[Any]) -> None:
    assert values(text) == expected


@table(
    "text expected",
    {
        "a list is no object": ("- 1\n", [f"f.yaml:1: [1]: {MAPPING}"]),
        "a word is no object": ("a: 1\n---\nhello\n", [f'f.yaml:3: "hello": {MAPPING}']),
        "a bracket is not closed": (
            "a: 1\nb: [1, 2\n",
            ["f.yaml:3: not YAML: did not find expected ',' or ']', while parsing a flow sequence"],
        ),
        "a tab is no indentation": (
            "a:\n\tb: 1\n",
            ["f.yaml:2: not YAML: found character that cannot start any token, while scanning for the next token"],
        ),
        "every key that is there twice is told": (
            "a: 1\nb: {c: 1, c: 2}\na: 2\n",
            [
                "f.yaml:2: b.c: this key is there twice; keep one of them",
                "f.yaml:3: a: this key is there twice; keep one of them",
            ],
        ),
        "JSON with a key twice": ('{\n"a": 1,\n"a": 2}', ["f.yaml:3: a: this key is there twice; keep one of them"]),
        "a number without end": (
            f"a:\n  b: {10**30}\n",
            [f"f.yaml:2: a.b: {10**30}: integers go up to 9223372036854775807"],
        ),
        "a key that is a list": ("a: 1\n[1, 2]: x\n", ["f.yaml:2: a key is a list or a mapping; expected text"]),
        "an alias of nothing": ("a: *b\n", ["f.yaml:1: not YAML: unknown anchor"]),
        "an alias inside its own anchor": ("a: &a [*a]\n", [f"f.yaml:1: {DEEP}"]),
        "brackets by the hundred": ("a: " + "[" * 500, [f"f.yaml:1: {DEEP}"]),
        "a program": ("\x7fELF\x02\x01\x00", ["f.yaml:1: not YAML: control characters are not allowed"]),
    },
)
def test_a_bad_text_names_its_line(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


@table(
    "text",
    {
        "a million brackets": "[" * 1_000_000,
        "a million mappings": "{a: " * 300_000,
        "a million mappings in JSON": '{"a":' * 300_000,
        "brackets that close again": "[" * 200_000 + "]" * 200_000,
        "a billion laughs": "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
        "half of a character": '{"a": "\\ud800"}',
        "half of a character as it is": "a: \ud800",
        "a number of ten thousand digits": '{"a": ' + "9" * 10_000 + ', "a": 1}',
        "a key twice before an abyss": "a: 1\na: " + "{a: " * 2_000,
    },
)
def test_a_hostile_text_is_refused_quickly(text: str) -> None:
    begun = time.perf_counter()
    assert problems(text)
    assert time.perf_counter() - begun < 5


def test_a_line_is_found_for_keys_items_and_what_is_missing() -> None:
    text = "# a comment\na:\n  b:\n  - c: 1\n\n  - {c: 2,\n     d: 3}\n---\na: 1\n"
    lines: dict[Trail, int] = {
        ((), 0): 2,
        (((), 0), "a"): 2,
        ((((), 0), "a"), "b"): 3,
        (((((), 0), "a"), "b"), 0): 4,
        ((((((), 0), "a"), "b"), 1), "d"): 7,
        ((((((), 0), "a"), "b"), 1), "missing"): 6,
        (((), 1), "a"): 9,
    }
    findings = Findings(text, "f.yaml")
    for trail in lines:
        findings.add(trail, repr(unrolled(trail)))
    found = {problem.message: problem.line for problem in findings.problems()}
    assert found == {repr(unrolled(trail)): line for trail, line in lines.items()}


def test_a_problem_behind_an_alias_has_the_line_of_the_alias() -> None:
    findings = Findings("a: &x\n  b: 1\nc:\n  d: *x\n", "f.yaml")
    findings.add((((((), 0), "c"), "d"), "b"), "wrong")
    assert [problem.line for problem in findings.problems()] == [4]


def test_problems_come_in_the_order_of_the_text() -> None:
    findings = Findings("a: 1\nb: 2\nc: 3\n", "f.yaml")
    for name in "cab":
        findings.refuse((((), 0), name), name, "wrong")
    assert [problem.field for problem in findings.problems()] == ["a", "b", "c"]


def test_nothing_found_means_nothing_is_raised() -> None:
    Findings("a: 1", "f.yaml").settle()


def test_a_problem_reads_as_place_field_value_and_message() -> None:
    full = Problem("f.yaml", 3, "spec.owner", '"a b"', "expected an owner")
    assert str(full) == 'f.yaml:3: spec.owner: "a b": expected an owner'
    assert str(Problem("f.yaml", None, "", None, "cannot be read")) == "f.yaml: cannot be read"


def test_odd_keys_stand_in_quotes_in_a_path() -> None:
    path = ("spec", "envelopes", 0, "selector", "nvidia.com/gpu")
    assert dotted(path) == 'spec.envelopes[0].selector["nvidia.com/gpu"]'


def test_a_long_value_is_cut_where_it_is_shown() -> None:
    assert shown("x" * 1_000) == '"' + "x" * 58 + "…"
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert "cannot be shown" in shown(nested)


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        read_file(tmp_path / "none.yaml")
    assert str(caught.value) == f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory"


@pytest.mark.parametrize("path", ["/", "a\0b", "x" * 5_000], ids=["a folder", "no path at all", "too long a path"])
def test_a_path_that_cannot_be_read_is_a_problem(path: str) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        read_file(path)


def test_a_file_that_is_not_text_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(Invalid) as caught:
        read_file(path)
    assert [problem.line for problem in caught.value.problems] == [2]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "marked.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert [document.value for document in load(*read_file(path))] == [{"a": 1}]


def test_a_dash_stands_for_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: [1")))
    with pytest.raises(Invalid, match=r"^standard input:\d: not YAML"):
        load(*read_file("-"))


def test_a_nul_byte_is_told_with_its_line() -> None:
    assert problems("a: 1\nb: \0\n") == ["f.yaml:2: not YAML: control characters are not allowed at position 8"]


def test_brackets_by_the_thousand_are_told_with_their_line() -> None:
    assert problems("a:\n- " + "[" * 100_000) == [f"f.yaml:2: {DEEP}"]


def test_aliases_that_repeat_too_much_are_told_with_a_line() -> None:
    names = "abcdefghi"
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise(names)
    )
    assert problems(bomb) == ["f.yaml:9: its aliases repeat too much; write it out, or use fewer"]


def test_a_text_past_the_limit_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "TEXT_MAX", 8)
    expected = "expected at most 8 (64 MiB): split it into several files"
    assert problems("a: 123456") == [f"f.yaml: at least 9 bytes; {expected}"]
    path = tmp_path / "large.yaml"
    path.write_text("a: 123456789")
    with pytest.raises(Invalid) as caught:
        read_file(path)
    assert str(caught.value) == f"{path}: at least 12 bytes; {expected}"


def test_a_list_of_a_million_items_is_refused_without_walking_it() -> None:
    text = "- 1\n" * 1_000_000
    begun = time.process_time()
    (problem,) = problems(text)
    assert problem.startswith("f.yaml:1: [1, 1, 1,")
    assert time.process_time() - begun < 15, "two seconds on an idle machine, all of them the parser's"
