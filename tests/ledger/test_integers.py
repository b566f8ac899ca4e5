"""Whatever the ledger holds is counted in integers: two machines agree bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlease.ledger.learning.durations import Durations, kinds
from fairlease.ledger.state.events import AnyEvent, encode
from fairlease.ledger.state.undo import UndoLog
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.snapshot import FrozenState, freeze
from fairlease.scheduler import Scheduler
from fairlease.sim.film import play
from fairlease.sim.scenario_file import load_scenario

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml"))


def floats_in(value: object) -> Iterator[float]:
    """Every float in what was read from bytes."""
    if isinstance(value, float):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from floats_in(each)


def declared(schema: object) -> Iterator[str]:
    """Every type that a JSON schema names."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema["type"]
        for each in schema.values():
            yield from declared(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from declared(each)


def test_no_event_declares_a_number_that_is_no_integer() -> None:
    assert "integer" in set(declared(msgspec.json.schema(AnyEvent)))
    assert "number" not in set(declared(msgspec.json.schema(AnyEvent)))


def test_no_snapshot_declares_one_but_for_what_old_ones_held() -> None:
    schemas: dict[str, Any] = msgspec.json.schema(FrozenState)["$defs"]
    old = schemas["FrozenState"]["properties"].pop("durations")
    assert "number" not in set(declared(schemas))
    assert "number" in set(declared(old)), "then no old format has to be read any more, and this test can go"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_no_scenario_puts_a_float_into_the_ledger_or_a_snapshot(scenario: Path) -> None:
    store = play(load_scenario(scenario)).world.store
    assert isinstance(store, MemoryStore)
    for entry in store.entries():
        assert not list(floats_in(msgspec.json.decode(encode(entry.events)))), entry
    assert not list(floats_in(msgspec.msgpack.decode(freeze(Scheduler(store).state))))


def test_kinds_of_work_that_are_long_gone_are_forgotten() -> None:
    found, undo = Durations(), UndoLog()
    for number in range(12_000):
        found.learn(undo, kinds("org", f"user-{number}", 8), 60_000)
    assert len(found.kinds) <= 8192
    assert ("org", "user-11999") in found.kinds
    assert ("org", "user-0") not in found.kinds
    assert () in found.kinds
    twin = Durations()
    twin.thaw(tuple(found.freeze()))
    assert tuple(twin.freeze()) == tuple(found.freeze())
