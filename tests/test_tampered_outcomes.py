"""Every field of real records, changed in every way that comes to mind: found out by the record itself, or by the next one."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairlease.engine.preempt.lottery_proof import digest, prove
from fairlease.sim.film import play
from fairlease.sim.scenario_file import load_scenario

ROOT = Path(__file__).parent.parent
Record = dict[str, Any]
Change = tuple[str, Callable[[Record], None]]

FILMS = (
    "the-lottery-is-drawn-again-and-again",
    "an-administrator-frees-a-rack-by-the-same-rules",
    "spares-go-before-width-and-width-before-the-lottery",
    "a-victim-that-proves-unneeded-is-given-back",
    "width-is-given-back-when-the-draw-suffices",
    "opportunistic-work-gives-way-before-overdrawn-work",
)

UNSEEN = re.compile(
    r"""
    scope/.*:changed | scope/location.*:gone # where it might cut, as nobody else in the record says
  | byHand/.*:(changed|gone)                # what was asked for, in an administrator's words and numbers
  | deficits/\d+/group:changed              # which group it was
  | conflictSet(/\d+)?:(changed|more|less|reversed)      # who stood there and neither gave nor had a token
  | actions/\d+/leases(/\d+)?:(changed|more|less|reversed)   # the names of leases
  | actions/\d+/gpus:changed                # what came free with leases, where no token says how many they had
  | actions:(less|reversed)                 # an order; and who else was cut without a draw
  | claim/.*:changed                        # who asked, where no reservation was due
  | at:changed                              # when it was, where no seed was made of it
  | previous:changed                        # what came before the first of a list
    """,
    re.VERBOSE,
)
"""What one record alone cannot show, if nothing stands behind it; the digest that the next one holds shows it."""


def _stranger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_lottery", ROOT / "docs" / "verify_lottery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STRANGER = _stranger()


def by_stranger(spec: Record) -> bool:
    """Whether the script for strangers finds a record at fault."""
    try:
        return bool(STRANGER.looked_at("outcome", spec)[0])
    except STRANGER.UnreadableError:
        return True


def by_us(spec: Record) -> bool:
    """Whether `lottery verify` does."""
    try:
        return bool(prove(spec).wrong)
    except (KeyError, TypeError, ValueError, AttributeError):
        return True


@pytest.fixture(scope="module", params=FILMS)
def records(request: pytest.FixtureRequest) -> list[Record]:
    film = play(load_scenario(str(ROOT / "tests" / "scenarios" / f"{request.param}.yaml")))
    return [json.loads(json.dumps(each["spec"])) for each in film.result()["resolverOutcomes"]]


def changes_of(spec: Record) -> Iterator[Change]:
    """Every change of every field, with its place."""
    for path, value in _places(spec, ()):
        name = "/".join(map(str, path))
        for what, changed in _otherwise(value):
            yield f"{name}:{what}", _setting(path, changed)
        if isinstance(path[-1], str):
            yield f"{name}:gone", _dropping(path)


def _places(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], object]]:
    if path:
        yield path, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in pairs:
        yield from _places(each, (*path, name))


def _otherwise(value: object) -> Iterator[tuple[str, object]]:
    yield "another kind", {"list": []} if isinstance(value, str | int) else 7
    if isinstance(value, bool):
        yield "changed", not value
    elif isinstance(value, int):
        yield "changed", value + 1
        yield "a fraction", value + 0.5
        yield "negative", -value - 1
    elif isinstance(value, str):
        yield "changed", _another(value)
    elif isinstance(value, list):
        yield "empty", []
        if len(value) > 1:
            yield "reversed", value[::-1]
            yield "less", value[1:]
        if value:
            yield "twice", [*value, copy.deepcopy(value[0])]
            if isinstance(value[0], str):
                yield "more", [*value, "default/somebody-else"]


def _another(text: str) -> str:
    """Another value that looks like one of its kind."""
    if re.fullmatch("[0-9a-f]{64}", text):
        return ("0" if text[0] != "0" else "1") + text[1:]
    if text.endswith("Z"):
        return text[:-3] + ("31Z" if text[-3:-1] != "31" else "32Z")
    return text + "x"


def _setting(path: tuple[str | int, ...], value: object) -> Callable[[Record], None]:
    def change(spec: Record) -> None:
        _inside(spec, path)[path[-1]] = value

    return change


def _dropping(path: tuple[str | int, ...]) -> Callable[[Record], None]:
    def change(spec: Record) -> None:
        del _inside(spec, path)[path[-1]]

    return change


def _inside(spec: Record, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401 - whatever stands there
    found: Any = spec
    for name in path[:-1]:
        found = found[name]
    return found


@pytest.mark.parametrize("finds", [by_stranger, by_us], ids=["script", "verify"])
def test_every_change_of_a_record_is_found_out(records: list[Record], finds: Callable[[Record], bool]) -> None:
    missed = []
    for number, record in enumerate(records):
        assert not finds(record)
        for name, change in changes_of(record):
            forged = copy.deepcopy(record)
            change(forged)
            if forged == record or finds(forged):
                continue
            assert digest(forged) != digest(record), f"{name} of {number}: not even the next outcome could tell"
            if not UNSEEN.fullmatch(name):
                missed.append(f"{number} {name}")
    assert not missed


@pytest.mark.parametrize("finds", [by_stranger, by_us], ids=["script", "verify"])
def test_a_claim_with_a_name_that_no_run_can_have_is_found_out(
    records: list[Record], finds: Callable[[Record], bool]
) -> None:
    """One of the two once took the last part of it for the name."""
    for record in [copy.deepcopy(each) for each in records if each.get("claim")]:
        record["claim"]["name"] = f"default/{record['claim']['name']}"
        assert finds(record)
