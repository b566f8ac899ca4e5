"""Reading what people hand to `submit`, `plan` and `budgets apply`: files of objects, checked before they are sent.

The daemon checks them again, since it trusts nobody; but only here is the text at hand, so only here can a mistake be
told with its file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from fairlease.cli.failure import Failure
from fairlease.cli.session import working_directory

if TYPE_CHECKING:
    from fairlease.model.document import Document, Findings, Trail

Object = dict[str, Any]


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


def read_objects(paths: Iterable[str], kind: str, namespace: str | None, *, here: bool = True) -> list[Object]:
    """The objects of some files, all of one kind; raises a `Failure` that names every mistake with file and line."""
    from fairlease.model.document import Invalid

    objects: list[Object] = []
    problems: list[str] = []
    for path in paths:
        try:
            objects += [_placed(raw, namespace, here=here) for raw in _of_file(path, kind)]
        except Invalid as error:
            problems += [str(problem) for problem in error.problems]
    if problems:
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        raise Failure(f"{count} in what was given; nothing was sent", problems=problems)
    return objects


def _of_file(path: str, kind: str) -> list[Object]:
    from fairlease.model.document import Findings, load, read_file
    from fairlease.model.objects import read_object

    text, source = read_file(path)
    found = Findings(text, source)
    documents = load(text, source)
    objects = []
    for raw, trail in _listed(documents):
        if _is_of_kind(raw, trail, kind, found) and read_object(raw, trail, found) is not None:
            objects.append(raw)
    if not documents:
        found.add(((), 0), f"nothing in it; expected objects of kind {kind}")
    found.settle()
    return objects


def _listed(documents: Iterable[Document]) -> Iterator[tuple[Any, Trail]]:
    """Objects one by one, those inside a `List` too, as kubectl writes them."""
    for document in documents:
        kind, items = document.value.get("kind"), document.value.get("items")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
            for number, each in enumerate(items):
                yield each, ((document.trail, "items"), number)
        else:
            yield document.value, document.trail


def _is_of_kind(raw: Any, trail: Trail, kind: str, found: Findings) -> bool:  # noqa: ANN401 - whatever a file holds
    """Whether it is what this command takes. What has no kind, or one that nobody knows, is refused by the reader."""
    given = raw.get("kind") if isinstance(raw, dict) else None
    homes = {"Run": "fairlease submit -f", "Budget": "fairlease budgets apply -f"}
    if given != kind and given in (*homes, "Node", "Lease", "Reservation", "ResolverOutcome"):
        hint = f"; use `{homes[given]}` for it" if given in homes else ""
        found.refuse((trail, "kind"), given, f"expected {kind}{hint}")
        return False
    return True


def _placed(raw: Object, namespace: str | None, *, here: bool) -> Object:
    """The object in the namespace of `-n`, and its work in the directory one stands in, unless it names them itself.

    Work that is done elsewhere (`here` is False) has no use for that directory.
    """
    metadata, spec = raw["metadata"], raw["spec"]
    if namespace is not None and not metadata.get("namespace"):
        metadata = {**metadata, "namespace": namespace}
    if here and spec.get("command"):
        spec = {**spec, "workdir": str(working_directory() / (spec.get("workdir") or ""))}
    return {**raw, "metadata": metadata, "spec": spec}
