"""Match: how `expect` compares what is wanted with what is (SCENARIO.md).

Subset match: what is not mentioned does not matter. `null` matches an absent field. In lists of objects every wanted element must
match some element; lists of scalars are equal; times compare as instants.
"""

from __future__ import annotations

from typing import Any

from fairlease.model.amount import parse_instant

_CLOSE = 5e-8
"""Hours apart that still count as equal: less than one GPU-millisecond."""

SHOWN_MAX = 200
_IDENTITIES = ("name", "type", "owner", "group")


def differences(wanted: Any, actual: Any, path: str = "") -> list[str]:  # noqa: ANN401 - any YAML value
    """What does not match, one line each; empty where all does."""
    here = path or "it"
    if wanted is None:
        return [] if actual is None else [f"{here}: wanted none, is {_show(actual)}"]
    if isinstance(wanted, dict):
        if not isinstance(actual, dict):
            return [f"{here}: wanted {_show(wanted)}, is {_show(actual)}"]
        return [
            line
            for key, value in wanted.items()
            for line in differences(value, actual.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(wanted, list):
        return _list_differences(wanted, actual, here)
    return [] if _equal(wanted, actual) else [f"{here}: wanted {_show(wanted)}, is {_show(actual)}"]


def lookup(thing: Any, path: str, roots: tuple[str, ...]) -> Any:  # noqa: ANN401 - any YAML value
    """The value at a dotted path; a path that does not begin with one of `roots` begins below `spec`."""
    parts = path.split(".")
    if roots and parts[0] not in roots:
        parts = ["spec", *parts]
    for index, part in enumerate(parts):
        if not isinstance(thing, dict):
            return None
        rest = ".".join(parts[index:])
        if rest in thing:
            return thing[rest]
        thing = thing.get(part)
    return thing


def unlike(thing: Any, wanted: dict[str, Any], roots: tuple[str, ...], name: str) -> list[str]:  # noqa: ANN401 - any YAML value
    """What of a thing does not match, path by path."""
    return [
        line
        for path, value in wanted.items()
        for line in differences(value, lookup(thing, path, roots), f"{name}.{path}")
    ]


def select(things: list[dict[str, Any]], wanted: dict[str, Any], roots: tuple[str, ...]) -> list[dict[str, Any]]:
    """The things that match every path of `wanted`."""
    return [
        thing
        for thing in things
        if all(not differences(value, lookup(thing, path, roots)) for path, value in wanted.items())
    ]


def _list_differences(wanted: list[Any], actual: Any, here: str) -> list[str]:  # noqa: ANN401 - any YAML value
    if not isinstance(actual, list):
        return [f"{here}: wanted {_show(wanted)}, is {_show(actual)}"]
    if not any(isinstance(each, dict | list) for each in wanted):
        same = len(wanted) == len(actual) and all(_equal(w, a) for w, a in zip(wanted, actual, strict=True))
        return [] if same else [f"{here}: wanted {_show(wanted)}, is {_show(actual)}"]
    found = []
    for index, each in enumerate(wanted):
        if not any(not differences(each, candidate) for candidate in actual):
            twin, label = _namesake(each, actual)
            lines = differences(each, twin, f"{here}[{label or index}]") if twin is not None else []
            found += lines or [f"{here}: no element matches {_show(each)}"]
    return found


def _namesake(wanted: Any, actual: list[Any]) -> tuple[Any, str]:  # noqa: ANN401 - any YAML value
    """The element that a wanted one means by its name."""
    for identity in _IDENTITIES:
        if isinstance(wanted, dict) and identity in wanted:
            for each in actual:
                if isinstance(each, dict) and each.get(identity) == wanted[identity]:
                    return each, str(wanted[identity])
    return None, ""


def _equal(wanted: Any, actual: Any) -> bool:  # noqa: ANN401 - any YAML value
    if isinstance(wanted, bool) or isinstance(actual, bool):
        return wanted is actual
    if isinstance(wanted, int | float) and isinstance(actual, int | float):
        return abs(wanted - actual) <= _CLOSE
    if isinstance(wanted, str) and isinstance(actual, str) and wanted != actual:
        try:
            return parse_instant(wanted) == parse_instant(actual)
        except ValueError:
            return False
    return bool(wanted == actual)


def _show(value: Any) -> str:  # noqa: ANN401 - any YAML value
    text = "none" if value is None else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
