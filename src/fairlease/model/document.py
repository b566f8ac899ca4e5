"""Reading text: YAML or JSON into plain values, and what is wrong with it into problems that name the line.

A good file must cost nothing but the parsing, so values come from the fastest parser and carry no lines. Only when
something is wrong is the text walked a second time, event by event and without recursion, to find the line of each
problem. Whatever a file holds (nothing, a program, a thousand brackets), the only exception that leaves this module is
`Invalid`.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import ryaml
import yaml

Step: TypeAlias = str | int
Trail: TypeAlias = "tuple[()] | tuple[Trail, Step]"
"""Where a value stands, as links from the inside out: cheap to extend on the way down, spelled out only for a problem.

The first link is the number of the document in its text.
"""

INTEGER_MAX = 2**63 - 1
"""The largest integer that every store and encoder keeps exactly; what is asked for beyond all means is still told its cause."""

TEXT_MAX = 64 * 2**20
"""Bytes; a larger text is refused before anything is done with it."""

_DEPTH_MAX = 128
_BRACKETS_QUICK = 10_000
_SHOWN_MAX = 60
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_AT_LINE = re.compile(r" at line (\d+) column \d+")
_TOO_BIG = re.compile(r"invalid type: integer `(-?\d+)` as [iu]128")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OPENING = {"[": 1, "{": 1, "]": -1, "}": -1}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ODD_KEY = "a key that is no text"
_EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where it stands, and what would be right."""

    source: str
    line: int | None
    field: str
    value: str | None
    message: str

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return ": ".join(part for part in (place, self.field, self.value, self.message) if part)


class Invalid(Exception):  # noqa: N818 - it reads as what it says: the file is invalid
    """A text that is not what it should be; `problems` holds all that is wrong with it, in the order of the text."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Document:
    """One mapping of a text."""

    value: dict[Any, Any]
    trail: Trail


class Findings:
    """Collects what is wrong with one text; lines are looked up once, at the end, and only if there is a need."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._found: list[tuple[Trail, str | None, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, trail: Trail, message: str) -> None:
        """Note that something is wrong with a place, whatever its value (it is missing, say)."""
        self._found.append((trail, None, message))

    def refuse(self, trail: Trail, value: object, message: str) -> None:
        """Note that a value is wrong."""
        self._found.append((trail, shown(value), message))

    def problems(self) -> list[Problem]:
        """All that was found, each with its line, in the order of the text."""
        paths = [unrolled(trail) for trail, _, _ in self._found]
        lines = _lines(self._text, paths)
        rows = [
            Problem(self._source, lines[path], dotted(path[1:]), value, message)
            for path, (_, value, message) in zip(paths, self._found, strict=True)
        ]
        return sorted(rows, key=lambda row: row.line or 0)

    def settle(self) -> None:
        """Raise `Invalid` if anything was found."""
        if self._found:
            raise Invalid(self.problems())


def unrolled(trail: Trail) -> tuple[Step, ...]:
    """A trail from the outside in."""
    steps: list[Step] = []
    while trail:
        trail, step = trail
        steps.append(step)
    return tuple(reversed(steps))


def dotted(path: Iterable[Step]) -> str:
    """How people write a path: `spec.envelopes[0].selector`; odd keys stand in quotes."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{shown(step)}]"
    return text


def shown(value: object) -> str:
    """A value as it would stand in JSON, cut where it gets long."""
    if isinstance(value, list):
        value = value[:_SHOWN_MAX]  # No more could be seen of it.
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__} that cannot be shown"
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"


def read_file(path: str | Path) -> tuple[str, str]:
    """The text of a file and what to call it in messages; `-` is standard input. Raises `Invalid`."""
    source = "standard input" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            body, size = sys.stdin.buffer.read(TEXT_MAX + 1), 0
        else:
            with Path(path).open("rb") as file:
                body, size = file.read(TEXT_MAX + 1), Path(path).stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Invalid([Problem(source, None, "", None, f"cannot be read: {reason}")]) from None
    if len(body) > TEXT_MAX:
        raise Invalid([_too_large(source, max(size, len(body)))])
    try:
        return body.decode("utf-8-sig"), source
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        message = "not text in UTF-8; expected YAML or JSON"
        raise Invalid([Problem(source, line, "", None, message)]) from None


def load(text: str, source: str) -> list[Document]:
    """The documents of a text that hold anything. Raises `Invalid` where it is no YAML or JSON, or not of mappings."""
    if len(text) > TEXT_MAX:
        raise Invalid([_too_large(source, len(text))])
    found = Findings(text, source)
    documents = []
    for number, value in enumerate(_values(text, source)):
        trail: Trail = ((), number)
        if isinstance(value, dict):
            documents.append(Document(value, trail))
        elif value is not None:
            found.refuse(trail, value, "expected a mapping with apiVersion, kind, metadata and spec")
    found.settle()
    return documents


def _values(text: str, source: str) -> list[Any]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [_json(text)]
        except (ValueError, RecursionError):
            pass  # It may still be YAML in flow style; if not, the error below tells the line.
    if (deep := _line_of_too_deep_brackets(text)) is not None:
        raise Invalid([_too_deep(source, deep)])
    try:
        values = ryaml.load_all(io.StringIO(text)) or []
    except ValueError as error:
        raise Invalid(_syntax_problems(text, source, str(error))) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # The parser's own bug: no Exception, and it cannot be imported.
            raise
        raise Invalid([Problem(source, None, "", None, "not YAML: the parser cannot read it")]) from None
    return [_merged(value) for value in values] if "<<" in text else values


def _json(text: str) -> Any:  # noqa: ANN401 - what a file holds is not known before it is read
    """JSON without what YAML would refuse as well: keys given twice, NaN, halves of characters."""
    value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    if _SURROGATE.search(text):
        json.dumps(
            value, ensure_ascii=False
        ).encode()  # A lone surrogate is a ValueError here, not later in the ledger.
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is given twice")
    return value


def _no_constant(name: str) -> Any:  # noqa: ANN401 - it never returns
    raise ValueError(f"{name} is not JSON")


def _line_of_too_deep_brackets(text: str) -> int | None:
    """Where brackets nest by the thousand: the parser would refuse them too, but takes minutes to say so."""
    if text.count("{") + text.count("[") <= _BRACKETS_QUICK:
        return None
    brackets = re.finditer(r"[][{}]", text)
    depths = accumulate(_OPENING[bracket] for bracket in re.findall(r"[][{}]", text))
    for bracket, depth in zip(brackets, depths, strict=True):
        if depth > _BRACKETS_QUICK // 2:
            return _line_at(text, bracket.start())
    return None


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _merged(value: Any) -> Any:  # noqa: ANN401 - any plain value
    """The same value with merge keys (`<<: *defaults`) carried out, as kubectl does: what stands beside them wins."""
    if isinstance(value, list):
        return [_merged(each) for each in value]
    if not isinstance(value, dict):
        return value
    own = {key: _merged(each) for key, each in value.items() if key != "<<"}
    if "<<" not in value:
        return own
    merged = _merged(value["<<"])
    sources = merged if isinstance(merged, list) else [merged]
    if not all(isinstance(each, dict) for each in sources):
        return own | {"<<": value["<<"]}  # Not a merge: whoever reads the mapping will say that it knows no such field.
    return {key: each for source in reversed(sources) for key, each in source.items()} | own


def _too_large(source: str, size: int) -> Problem:
    message = f"at least {size} bytes; expected at most {TEXT_MAX} (64 MiB): split it into several files"
    return Problem(source, None, "", None, message)


def _too_deep(source: str, line: int | None) -> Problem:
    return Problem(source, line, "", None, f"nested more than {_DEPTH_MAX} deep, or an alias inside its own anchor")


def _syntax_problems(text: str, source: str, error: str) -> list[Problem]:
    """What the parser's complaint means, with the line, which it does not always tell."""
    line = int(told[1]) if (told := _AT_LINE.search(error)) else None
    if "duplicate entry" in error and (twice := list(_keys_given_twice(text, source))):
        return twice
    if too_big := _TOO_BIG.search(error):
        field = error[: too_big.start()].removesuffix(": ")
        return [Problem(source, line, field, shown(int(too_big[1])), f"integers go up to {INTEGER_MAX}")]
    if "recursion limit" in error:
        return [_too_deep(source, line)]
    if "repetition limit" in error:
        line = line or _line_of_last_alias(text)
        return [Problem(source, line, "", None, "its aliases repeat too much; write it out, or use fewer")]
    if "unhashable" in error:
        line = line or next((at for path, at, _ in _places(text) if path[-1] is _ODD_KEY), None)
        return [Problem(source, line, "", None, "a key is a list or a mapping; expected text")]
    if line is None:
        line = _line_of_error(text)
    return [Problem(source, line, "", None, f"not YAML: {_AT_LINE.sub('', error)}")]


def _walk(text: str) -> Iterator[tuple[tuple[Step, ...], int, bool]]:
    """Every document, key and list item of a text: its path, its line and whether the key was there before.

    Events come one at a time and the stack is ours, so that no input can exhaust the interpreter's.
    """
    path: list[Step] = [-1]
    keys: list[set[str] | None] = []  # For each open collection: the keys of a mapping, or None for a list.
    waits: list[bool] = []  # For each: whether a mapping has given its key and owes the value.
    for event in yaml.parse(text, Loader=_EVENTS):
        if isinstance(event, yaml.DocumentStartEvent):
            path, keys, waits = [int(path[0]) + 1], [], []
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            keys.pop()
            waits.pop()
            path.pop()
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        if len(path) > _DEPTH_MAX + 2:
            return
        line = event.start_mark.line + 1 if event.start_mark else 1
        if not keys:
            yield tuple(path), line, False
        elif (known := keys[-1]) is None:
            path[-1] = int(path[-1]) + 1
            yield tuple(path), line, False
        elif waits[-1]:
            waits[-1] = False
        else:
            waits[-1] = True
            path[-1] = key = event.value if isinstance(event, yaml.ScalarEvent) else _ODD_KEY
            yield tuple(path), line, key in known
            known.add(key)
        if isinstance(event, yaml.CollectionStartEvent):
            keys.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            waits.append(False)
            path.append(-1)


def _places(text: str) -> Iterator[tuple[tuple[Step, ...], int, bool]]:
    """As `_walk`, but a text that cannot be walked to its end simply ends there."""
    try:
        yield from _walk(text)
    except (yaml.YAMLError, ValueError):
        return


def _lines(text: str, paths: Iterable[tuple[Step, ...]]) -> dict[tuple[Step, ...], int | None]:
    """The line of each path; one that is not in the text (missing, behind an alias) has that of what is around it."""
    wanted = set(paths)
    around = {path[:length] for path in wanted for length in range(1, len(path) + 1)}
    lines: dict[tuple[Step, ...], int] = {}
    missing = len(around)
    for path, line, _ in _places(text) if around else ():
        if path in around and path not in lines:
            lines[path] = line
            missing -= 1
            if not missing:
                break
    return {
        path: next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None) for path in wanted
    }


def _keys_given_twice(text: str, source: str) -> Iterator[Problem]:
    for path, line, twice in _places(text):
        if twice and path[-1] is not _ODD_KEY:
            yield Problem(source, line, dotted(path[1:]), None, "this key is there twice; keep one of them")


def _line_of_last_alias(text: str) -> int | None:
    line = None
    try:
        for event in yaml.parse(text, Loader=_EVENTS):
            if isinstance(event, yaml.AliasEvent) and event.start_mark:
                line = event.start_mark.line + 1
    except (yaml.YAMLError, ValueError):
        pass
    return line


def _line_of_error(text: str) -> int | None:
    """The line of a character that no text may hold, else that at which the second parser gives up, if it does too."""
    if odd := _UNPRINTABLE.search(text):
        return _line_at(text, odd.start())
    try:
        for _ in _walk(text):
            pass
    except yaml.MarkedYAMLError as error:
        return error.problem_mark.line + 1 if error.problem_mark else None
    except (yaml.YAMLError, ValueError):
        return None
    return None
