"""The append is the commit: what the store did not take never happened."""

from __future__ import annotations

import time

import pytest
from tests.engine.build import T0, World, budget, cap, envelope, node, run

from fairlease.engine.command import Submit
from fairlease.ledger.state.events import AnyEvent
from fairlease.ledger.store import snapshot
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Conflict, Entry
from fairlease.model.record import key
from fairlease.model.run import Malleable
from fairlease.scheduler import Scheduler


class Refusing(MemoryStore):
    """A store that another writer came before."""

    refuses = False

    def append(self, expected_seq: int, at: int, events: tuple[AnyEvent, ...]) -> Entry:
        if self.refuses:
            raise Conflict
        return super().append(expected_seq, at, events)


def test_a_tick_that_could_not_be_appended_leaves_the_state_as_it_was() -> None:
    world = World(node("n1"), budget("org"))
    store = Refusing()
    for entry in world.store.entries():
        store.append(entry.seq - 1, entry.at, entry.events)
    scheduler = Scheduler(store)
    before, indexes = snapshot.freeze(scheduler.state), snapshot.derived(scheduler.state)
    store.refuses = True
    with pytest.raises(Conflict):
        scheduler.tick(T0 + 1, Submit(key("r"), run("org", 8)))
    assert snapshot.freeze(scheduler.state) == before
    assert snapshot.derived(scheduler.state) == indexes
    store.refuses = False
    tick = scheduler.tick(T0 + 2, Submit(key("r"), run("org", 8)))
    assert tick.entry is not None
    assert scheduler.state.runs[key("r")].width == 8


@pytest.mark.parametrize(
    "spec",
    [
        run("org", 2**50, 1, malleable=Malleable(min_total_gpus=1, max_total_gpus=2**50, step_gpus=1)),
        run("org", 2**50, 1),
        run("org", 2**50, 1, group_gpus=2**40),
        run("org", 2**40, 1, group_gpus=3, spares=2),
    ],
    ids=["elastic", "rigid", "huge groups", "odd groups with spares"],
)
def test_a_request_beyond_all_measure_is_answered_like_any_other(spec: object) -> None:
    nodes = [node(f"n{index}", 8, domain=f"D{index // 4}") for index in range(64)]
    caps = [cap("one", ("e",), max_concurrency=2**52), cap("two", ("e", "f"), max_concurrency=2**52)]
    rich = budget(
        "org",
        envelope(concurrency=2**52),
        envelope("f", 2**52, selector={"region": "west"}),
        aggregate_caps=tuple(caps),
    )
    world = World(*nodes, rich)
    world.submit("usual", run("org", 8, 8))
    plain = _seconds(world, run("org", 64, 8))
    huge = _seconds(world, spec)
    assert huge < 200 * plain + 0.2, "the cost of a refusal does not follow the number that was asked for"


def _seconds(world: World, spec: object) -> float:
    begin = time.perf_counter()
    with world.scheduler.what_if(world.now, Submit(key("asks"), spec)):  # type: ignore[arg-type]  # a RunSpec of the table above
        pass
    return time.perf_counter() - begin
