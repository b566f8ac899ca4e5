"""`State.check` finds an index that says something else than a scan: each of these states was tampered with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.build import HOUR, MINUTE, World, budget, node, run

from fairlease.ledger.state.state import State
from fairlease.ledger.state.timers import Due
from fairlease.model.record import key


def busy() -> State:
    """Work of every kind: elastic, opportunistic, with spares, waiting with a lien, following."""
    world = World(node("a0"), node("a1"), node("b0", domain="B"), budget("org"), budget("lab"))
    world.submit("rigid", run("org", 8, 4, max_duration=HOUR, spares=4, group_gpus=8))
    world.submit("elastic", run("lab", 4, 4, elastic=(4, 8, 4)))
    world.submit("filler", run("lab", 4, 4, opportunistic=True))
    world.submit("claim", run("org", 24, 8))
    world.submit("after", run("org", 8, 8, after=("claim",)))
    world.wait(MINUTE)
    return world.scheduler.state


def _width(state: State) -> None:
    state.runs[key("elastic")].width += 4


def _slot(state: State) -> None:
    state.capacity.nodes["a0"].free ^= 1


def _lien(state: State) -> None:
    found = next(each for each in state.capacity.nodes.values() if each.liens)
    found.liens.clear()


def _pool(state: State) -> None:
    state.capacity.pools["H100"].free += 1


def _money(state: State) -> None:
    state.account(key("org"), "e").used -= 4


def _promise(state: State) -> None:
    state.account(key("org"), "e").promise.deadline_gpus += 1


def _class(state: State) -> None:
    state.account(key("lab"), "e").gpus["owned"] += 1


def _timer(state: State) -> None:
    state.timers.set((Due.DEADLINE, (key("rigid"),)), None)


def _queue(state: State) -> None:
    state.queue.remove(state.runs[key("claim")], state.runs[key("claim")].order)


def _followers(state: State) -> None:
    state.queue.following.clear()


def _running(state: State) -> None:
    state.opportunistic.clear()


def _count(state: State) -> None:
    state.open_leases += 1


@pytest.mark.parametrize(
    "tamper", [_width, _slot, _lien, _pool, _money, _promise, _class, _timer, _queue, _followers, _running, _count]
)
def test_an_index_that_went_astray_is_found_by_the_check(tamper: Callable[[State], None]) -> None:
    state = busy()
    state.check()
    tamper(state)
    with pytest.raises(AssertionError, match="the index of"):
        state.check()
