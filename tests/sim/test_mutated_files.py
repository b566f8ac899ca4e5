"""Fuzz: good files with anything done to them are read or refused, never anything else, and never slowly."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlease.model.document import Invalid, Problem, load
from fairlease.model.objects import read_objects
from fairlease.sim.scenario_file import read_scenario

HERE = Path(__file__).parent.parent
SHARED = Path(os.environ.get("FAIRLEASE_SHARED", HERE.parent.parent / "shared")) / "scenarios"
TEXTS = [path.read_text() for path in sorted([*(HERE / "scenarios").glob("*.yaml"), *SHARED.glob("*.yaml")])]
TREES = [load(text, "f.yaml")[0].value for text in TEXTS]
SNIPPETS = st.sampled_from(
    [
        "\n",
        "\t",
        "  ",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "<<: ",
        "!!",
        "---\n",
        "'",
        '"',
        "|\n",
        "\0",
        "\ud800",
        "﷽",
    ]
) | st.text(max_size=4)
ODD: list[Any] = [
    *(None, True, 0, -1, 2**53, 10**400, -(10**20), 0.5, float("nan"), float("inf"), 1e308),
    *(
        "",
        "0",
        "-5m",
        "1h",
        "9" * 60 + "d",
        "9999-12-31T23:59:59-23:59",
        "0000-01-01T00:00:00Z",
        "*",
        "a/b/c",
        "x" * 10_000,
    ),
    *(
        "\0",
        "²",
        "1e5h",
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"apiVersion": "v1", "kind": "Node"},
        {"kind": "List", "items": [5]},
    ),
]
JUNK = st.sampled_from(ODD) | st.text(max_size=5)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - any plain value
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, each in pairs for place in places(each, (*path, key)))]


PLACES = [places(tree)[1:] for tree in TREES]


def mutate(tree: Any, path: tuple[Any, ...], how: str, junk: Any) -> None:  # noqa: ANN401 - any plain value
    """Do something to the value at a path, if it is still there after what was done before."""
    *outer, last = path
    try:
        for step in outer:
            tree = tree[step]
        before = tree[last]
    except (KeyError, IndexError, TypeError):
        return
    if isinstance(tree, dict) and how in ("rename", "remove"):
        del tree[last]
        if how == "rename":
            tree[f"{last}x"] = before
    elif isinstance(tree, dict | list):
        tree[last] = [before, junk] if how == "wrap" else junk


def refused_or_read(text: str) -> None:
    """Read it every way; all that may come of it is `Invalid`, with problems that can be told."""
    told: list[Problem] = []
    for read in (read_scenario, read_objects):
        try:
            read(text, "f.yaml")
        except Invalid as invalid:
            told += invalid.problems or [Problem("f.yaml", None, "", None, "")]
    assert all(problem.message and str(problem).startswith("f.yaml") for problem in told)
    assert all(problem.line is None or problem.line >= 1 for problem in told)


@settings(max_examples=300)
@given(st.data())
def test_a_file_with_mangled_text_is_read_or_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 0, 1, 3, 40]))
        text = text[:begin] + data.draw(SNIPPETS) + text[begin + length :]
    refused_or_read(text)


@settings(max_examples=400)
@given(st.data())
def test_a_file_with_mangled_values_is_read_or_refused(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(TREES) - 1))
    tree = copy.deepcopy(TREES[number])
    for _ in range(data.draw(st.integers(1, 3))):
        how = data.draw(st.sampled_from(["replace", "replace", "rename", "remove", "wrap"]))
        mutate(tree, data.draw(st.sampled_from(PLACES[number])), how, data.draw(JUNK))
    refused_or_read(json.dumps(tree))


@settings(max_examples=200)
@given(st.binary(max_size=60).map(lambda body: body.decode("utf-8", "replace")) | st.text(max_size=60))
def test_any_text_at_all_is_read_or_refused(text: str) -> None:
    refused_or_read(text)
