"""What is remembered of the future, and who is not even tried, is what a look at everything would say."""

from __future__ import annotations

from random import Random

import pytest
from tests.engine.build import HOUR, MINUTE, World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.engine.context import Engine
from fairlease.engine.place.packing import need_of
from fairlease.engine.place.plan import Planner, least_width
from fairlease.engine.reserve.availability import Availability, Terms, first_fit
from fairlease.engine.tick.scheduling_pass import room_for
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.runs import RunState
from fairlease.model.config import Config
from fairlease.model.run import Phase
from fairlease.reason import Reason


def crowded(seed: int, steps: int) -> World:
    """Work of all widths, with limits and without, that comes, waits, ends and is canceled on six nodes; nobody is cut."""
    chance = Random(seed)
    nodes = [node(f"n{number}", domain="AB"[number % 2]) for number in range(6)]
    world = World(*nodes, budget("org", envelope(concurrency=1_000)))
    world.tick(cmd.Configure(Config(notice=None)))
    for number in range(steps):
        pod = chance.choice((1, 1, 2, 4, 8))
        limit = chance.choice((*([None, None] if seed % 2 else []), 10 * MINUTE, HOUR, 5 * HOUR))
        group = chance.choice((None, 2 * pod))
        spec = run("org", pod * chance.choice((2, 2, 4)) if group else pod, pod, group_gpus=group, max_duration=limit)
        world.submit(f"r{number}", spec)
        running = [each for each in world.scheduler.state.runs.values() if each.phase is Phase.RUNNING]
        if len(running) > chance.randint(4, 12):
            world.tick(cmd.WorkEnded(chance.choice(running).key, 1, 0))
        if chance.random() < 0.1:
            world.write(
                node(f"n{chance.randrange(6)}", cordoned=chance.random() < 0.3, domain="AB"[chance.randrange(2)])
            )
        world.wait(chance.randrange(20 * MINUTE))
        agrees(world)
    return world


def agrees(world: World) -> None:
    engine = world.scheduler.engine
    engine.now = world.now
    for waiting in [each for each in engine.state.runs.values() if each.phase is Phase.PENDING]:
        for guess in (False, True):
            assert fit(engine, waiting, guess=guess, fresh=False) == fit(engine, waiting, guess=guess, fresh=True)
        shape = engine.state.queue.shapes[waiting.shape]
        if not room_for(engine, shape, waiting.order):  # what is not tried leaves no trace
            planner = Planner(engine.state, engine.family, waiting, world.now)
            assert planner.widest() is None, f"{waiting.key} was not tried, and would have started"


def fit(engine: Engine, waiting: RunState, *, guess: bool, fresh: bool) -> object:
    state, spec = engine.state, waiting.spec
    pool = state.capacity.pools[spec.resources.gpu_type]
    outlook = Availability(state, waiting, engine.now, pool.mask, Terms(None, guess), None if fresh else engine.horizon)
    return first_fit(pool, need_of(spec, least_width(spec)), outlook)


@pytest.mark.parametrize("seed", range(6))
def test_dates_from_what_is_remembered_are_those_that_would_be_counted_anew(seed: int) -> None:
    world = crowded(seed, 60)
    made = world.told(ev.ReservationMade)
    liens = {event.run for event in made if event.lien}
    assert len(liens) > (0 if seed % 2 else 10), "there was something to remember"
    assert {event.basis for event in made} >= ({Reason.Predicted} if seed % 2 else {Reason.HardFacts})
