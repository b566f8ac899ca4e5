"""Habits that no linter knows, each as a test: its name is the rule, its failure says what to do.

They look at every file that git tracks, or would track: what is ignored is nobody's business.
"""

import ast
import io
import re
import subprocess
import tokenize
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlease.kube.settings import Cluster
from fairlease.local.daemon.config import Machine
from fairlease.model.budget import BudgetSpec
from fairlease.model.config import Config
from fairlease.model.record import Record
from fairlease.model.run import RunSpec

ROOT = Path(__file__).resolve().parent.parent
TEST_WORDS_MIN = 4
PROSE = {".py", ".md", ".yaml", ".yml"}
TEXT = PROSE | {".cfg", ".css", ".html", ".ini", ".js", ".json", ".lock", ".sh", ".sql", ".toml", ".txt", ""}

# A letter in brackets keeps these patterns from finding themselves.
UNFINISHED = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b")
REGISTRY = re.compile(
    r"""
    "resolved":\s*"[h]ttp         # a lock file of npm
    | --(extra-)?inde[x]-url      # an argument of pip
    | ^\s*(extra-)?inde[x]-url\b  # a setting of pip or uv
    | \bregistry\s*=\W*[h]ttp     # a setting of npm or cargo
    | //[\w.:-]+(/\w+)*/simpl[e]\b  # the root of an index
    | pythonhoste[d] | npmj[s]\.
    """,
    re.MULTILINE | re.VERBOSE,
)
SILENCER = re.compile(r"#\s*(noqa|type:\s*ignore|pragma:\s*no cover)\b")
SILENCER_WITH_REASON = re.compile(
    r"#\s*(noqa:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|type:\s*ignore\[[\w, -]+\]|pragma:\s*no cover)[\s#:,;–-]+\w+\W+\w+"
)


@cache
def files() -> tuple[Path, ...]:
    """Every file that git tracks or that is new and not ignored, relative to the root."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return tuple(sorted({Path(name) for name in names if name and (ROOT / name).is_file()}))


def under(folder: str) -> Iterator[Path]:
    return (path for path in files() if path.parts[0] == folder and path.suffix == ".py")


def of_kind(suffixes: set[str]) -> Iterator[Path]:
    return (path for path in files() if path.suffix in suffixes)


@cache
def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), filename=str(path))


def lines(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Each line with the place where it stands."""
    return ((f"{path}:{number}", line) for path in paths for number, line in enumerate(text(path).split("\n"), 1))


def comments(path: Path) -> Iterator[tuple[str, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text(path)).readline):
        if token.type == tokenize.COMMENT:
            yield f"{path}:{token.start[0]}", token.string


def calls(path: Path) -> Iterator[tuple[str, str]]:
    """The name of each function or method that a file calls, and where."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield f"{path}:{node.lineno}", node.func.id if isinstance(node.func, ast.Name) else node.func.attr


def named_tests(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{path}:{node.lineno}", node.name


def loaded(paths: Iterable[Path]) -> set[str]:
    """Every name and attribute that is read in these files, and every keyword of a pattern."""
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.MatchClass):
                found.update(node.kwd_attrs)
    return found


def defined(node: ast.stmt) -> list[str]:
    """What a statement of a module gives a name to, imports apart."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def collect(hint: Any, into: set[type[Record]]) -> None:  # noqa: ANN401 - a type hint is of no one type
    """A record, and all records that its fields hold."""
    if isinstance(hint, type) and issubclass(hint, Record):
        if hint not in into:
            into.add(hint)
            for field in msgspec.structs.fields(hint):
                collect(field.type, into)
        return
    for each in typing.get_args(hint):
        collect(each, into)


def nothing(offences: Iterable[str], advice: str) -> None:
    """Fail with the advice and every place it applies to."""
    found = list(offences)
    if found:
        pytest.fail("\n  ".join([advice, *found]), pytrace=False)


def test_there_are_files_to_look_at() -> None:
    looked_at = {str(path) for path in files()}
    assert {"Makefile", "src/fairlease/__init__.py", "tests/test_tidy.py"} <= looked_at, "git ls-files misses our files"


def test_no_line_ends_in_white_space_or_holds_a_tab() -> None:
    nothing(
        (place for place, line in lines(of_kind(PROSE)) if line != line.rstrip() or "\t" in line),
        "Remove white space at the end of these lines, and write tabs as spaces (`make fix` does it in Python):",
    )


def test_every_text_file_ends_with_one_newline() -> None:
    nothing(
        (str(path) for path in of_kind(PROSE) if text(path) and not re.search(r"[^\n]\n\Z", text(path))),
        "End these files with exactly one newline:",
    )


def test_nothing_is_left_for_later_in_a_note() -> None:
    nothing(
        (f"{place}: {line.strip()}" for place, line in lines(of_kind(TEXT)) if UNFINISHED.search(line)),
        "Do it now, or write down in docs/design/ why not; notes in the code are forgotten:",
    )


def test_only_commands_print_to_the_terminal() -> None:
    library = (path for path in under("src") if path.parts[2] != "cli")
    nothing(
        (place for path in library for place, name in calls(path) if name == "print"),
        "Return a value and let fairlease.cli print it; a backend logs with structlog:",
    )


def test_every_source_module_tells_its_purpose() -> None:
    nothing(
        (str(path) for path in under("src") if not ast.get_docstring(tree(path))),
        "Begin these modules with a docstring that says what they are for, and why:",
    )


def test_the_engine_never_asks_for_the_time() -> None:
    pure = (path for path in under("src") if path.parts[2] in {"engine", "model", "reason.py"})
    nothing(
        (f"{place}: {name}()" for path in pure for place, name in calls(path) if name in {"now", "utcnow", "today"}),
        "Take `now` as an argument; a decision that looks at a clock cannot be replayed:",
    )


def module_of(path: Path) -> str:
    """The name under which a file of the source is imported."""
    return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")


def imported(path: Path, modules: set[str]) -> set[str]:
    """The modules of ours that a file imports, wherever in it, for types alone too."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {each for name in node.names if (each := f"{node.module}.{name.name}") in modules} or {node.module}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & modules - {module_of(path)}


def test_no_modules_of_the_source_import_each_other_in_a_circle() -> None:
    paths = {module_of(path): path for path in under("src")}
    graph = {name: imported(path, set(paths)) for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        nothing([" → ".join(error.args[1])], "Hand over what is needed instead of importing back (types count):")


def test_no_two_classes_of_the_source_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in under("src"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    nothing(
        (f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1),
        "One name, one thing; call one of them otherwise:",
    )


def test_everything_in_the_source_is_used_there() -> None:
    used = loaded(under("src"))
    nothing(
        (
            f"{path}:{node.lineno}: {name}"
            for path in under("src")
            for node in tree(path).body
            for name in defined(node)
            if name not in used and not name.startswith("__")
        ),
        "Remove what nobody in src calls or reads; what only a test uses is dead too:",
    )


def test_every_field_that_people_can_write_is_read() -> None:
    reading = (path for path in under("src") if path.name not in {"reading.py", "rules.py"})
    used = loaded(reading)
    written: set[type[Record]] = set()
    for each in (BudgetSpec, RunSpec, Config, Machine, Cluster):
        collect(each, written)
    nothing(
        sorted(
            f"{record.__name__}.{field.name}"
            for record in written
            for field in msgspec.structs.fields(record)
            if field.name not in used
        ),
        "Do what these fields say, or remove them: who sets one expects something to happen:",
    )


def test_every_silenced_warning_gives_its_reason() -> None:
    python = (path for path in files() if path.suffix == ".py")
    nothing(
        (
            f"{place}: {comment}"
            for path in python
            for place, comment in comments(path)
            if SILENCER.search(comment) and not SILENCER_WITH_REASON.search(comment)
        ),
        "Name the rule and say why: `# noqa: S603 - the command is ours`, `# type: ignore[misc]  # untyped there`:",
    )


def test_no_file_names_a_package_registry() -> None:
    nothing(
        (str(path) for path in of_kind(TEXT) if REGISTRY.search(text(path))),
        "Remove the address: where packages come from is the business of the machine that installs them:",
    )


def test_every_test_is_named_by_a_sentence() -> None:
    nothing(
        (
            f"{place}: {name}"
            for path in under("tests")
            for place, name in named_tests(path)
            if len([word for word in name.split("_")[1:] if word]) < TEST_WORDS_MIN
        ),
        f"Name these tests by what they show, in {TEST_WORDS_MIN} words or more (`test_a_gang_starts_whole_or_not`):",
    )


def test_every_file_with_tests_is_found_by_pytest() -> None:
    helpers = (path for path in under("tests") if not path.name.startswith("test_"))
    nothing(
        (place for path in helpers for place, _ in named_tests(path)),
        "Move these tests to a file called `test_….py`; where they are, they never run:",
    )
