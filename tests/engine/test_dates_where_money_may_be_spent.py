"""Dates by hard facts against what then happens, where each envelope reaches some nodes only (SEMANTICS §6)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import MINUTE, World, budget, envelope, node, run
from tests.engine.test_pack_against_exact_search import Case, cases, spec_of, world_of

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.model.config import Config
from fairlease.model.record import key
from fairlease.reason import Reason


@settings(max_examples=400, deadline=None)
@given(cases(), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), min_size=4, max_size=10))
def test_a_date_by_hard_facts_is_the_first_time_at_which_the_run_can_start(
    case: Case, holders: list[tuple[int, int]]
) -> None:
    world = world_of(case)
    world.tick(cmd.Configure(Config(notice=None)))
    world.write(budget("other", envelope(concurrency=64)))
    for number, (gpus, minutes) in enumerate(holders):
        world.submit(f"h{number}", run("other", gpus, max_duration=minutes * MINUTE))
        if world.how(f"h{number}") != "Running":
            world.tick(cmd.Cancel(world.run(f"h{number}").key))
    world.submit("r", spec_of(case, case.groups * case.group_pods + case.last_pods))
    if world.how("r") != "Reserved":  # it starts at once, or never
        return
    hold = world.run("r").hold
    assert hold is not None
    assert hold.basis is Reason.HardFacts, "all who are in the way have a deadline"
    world.wait(hold.earliest_start - world.now)
    assert world.how("r") == "Running"
    assert world.run("r").started_at == hold.earliest_start
    assert [each.reason for each in world.told(ev.ReservationMade) if each.run == key("r")] == [Reason.NoRoom]


def test_a_date_names_the_run_whose_deadline_it_rests_on() -> None:
    nodes = [node(name, region=region) for name, region in (("a0", "west"), ("a1", "west"), ("b0", "east"))]
    own = (envelope("in-a", 8, selector={"region": "west"}), envelope("in-b", 8, selector={"region": "east"}))
    world = World(*nodes, budget("claim", *own), budget("other"))
    world.submit("early", run("other", 8, 8, max_duration=10 * MINUTE, location={"region": "west"}))
    world.submit("late", run("other", 8, 8, max_duration=14 * MINUTE, location={"region": "east"}))
    world.submit("r", run("claim", 16, 8))
    (made,) = world.told(ev.ReservationMade)
    assert made.earliest_start == world.now + 14 * MINUTE
    assert made.message.endswith("by deadlines and windows, the last those of late")
    assert made.envelopes == ("claim/in-a", "claim/in-b")
    assert {name[0]: slots for name, slots in made.lien.items()} == {"a": 0xFF, "b": 0xFF}
