"""Reading what people hand to `submit`, `plan` and `budgets apply`: files of one or more objects, checked before they are sent.

The daemon checks them again, since it trusts nobody; but only here is the text at hand, so only here can a mistake be told
with its file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from fairlease.cli.failure import BAD_INPUT, Failure
from fairlease.model.document import Document, Findings, Invalid, Trail, load, read_file

Object = dict[str, Any]
API_VERSION = "rq.davidlangworthy.io/v1"


def files_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`-f`, as often as one likes."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=True,
        metavar="FILE",
        help=f"{what}, YAML or JSON; `-` is standard input. Several files, and several documents in one, are fine.",
    )


def read_objects(paths: Iterable[str], kind: str, namespace: str | None) -> list[Object]:
    """The objects of some files, all of one kind; raises a `Failure` that names every mistake with file and line."""
    objects: list[Object] = []
    problems: list[str] = []
    for path in paths:
        try:
            objects += _of_file(path, kind, namespace)
        except Invalid as error:
            problems += [str(problem) for problem in error.problems]
    if problems:
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        raise Failure(f"{count} in what was given; nothing was sent", code=BAD_INPUT, problems=problems)
    return objects


def _of_file(path: str, kind: str, namespace: str | None) -> list[Object]:
    text, source = read_file(path)
    found = Findings(text, source)
    objects = []
    documents = load(text, source)
    for document in _listed(documents):
        if _is_right(document, kind, found):
            objects.append(_placed(document.value, namespace))
            _check_spec(document, kind, found)
    if not documents:
        found.add(((), 0), f"holds nothing; expected an object of kind {kind}")
    found.settle()
    return objects


def _listed(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents one by one, those inside a `List` too, as kubectl writes them."""
    for document in documents:
        items = document.value.get("items")
        if document.value.get("kind") == "List" and isinstance(items, list):
            trail: Trail = (document.trail, "items")
            yield from (Document(each, (trail, number)) for number, each in enumerate(items))
        else:
            yield document


def _is_right(document: Document, kind: str, found: Findings) -> bool:
    value, before = document.value, len(found)
    if not isinstance(value, dict):
        found.refuse(document.trail, value, f"expected an object of kind {kind}")
        return False
    for field, wanted in (("apiVersion", API_VERSION), ("kind", kind)):
        given = value.get(field)
        if given is None:
            found.add((document.trail, field), f"missing; expected {wanted}")
        elif given != wanted:
            found.refuse((document.trail, field), given, f"expected {wanted}")
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        found.add((((document.trail, "metadata")), "name"), "missing")
    if not isinstance(value.get("spec"), dict):
        found.add((document.trail, "spec"), "missing; expected a mapping")
    return len(found) == before


def _placed(value: Object, namespace: str | None) -> Object:
    """The object in the namespace of `-n`, unless it names one itself."""
    if namespace is None or value["metadata"].get("namespace"):
        return value
    return value | {"metadata": value["metadata"] | {"namespace": namespace}}
