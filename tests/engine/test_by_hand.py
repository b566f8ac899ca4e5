"""Freeing GPUs by hand: what was asked is free afterwards, nobody goes in vain, and where it cannot be done nobody is touched."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import FLAVOR, MINUTE, World, budget, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.state import State
from fairlease.model.lease import Lease
from fairlease.model.record import key
from fairlease.model.reservation import ByHand
from fairlease.reason import Reason
from fairlease.sim.random.play import RandomFilm

ORDER = (
    Reason.ReclaimOpportunistic,
    Reason.ReclaimOverdrawn,
    Reason.DropSpare,
    Reason.Shrink,
    Reason.RandomPreempt,
)


def asked(gpus: int, pod: int = 1, group: int | None = None) -> ByHand:
    return ByHand(by="ada", gpus=gpus, gpus_per_pod=pod, group_gpus=group)


def world() -> World:
    return World(node("a0"), node("a1"), node("b0", domain="B"), budget("org:x"), budget("org:y"))


def resolve(there: World, wanted: ByHand, **location: str) -> tuple[Reason | None, list[tuple[str, Reason]]]:
    """The refusal, if there is one, and who was cut why."""
    done = there.tick(cmd.Resolve(FLAVOR, location, wanted))
    told = [event for event in done.decision.events if isinstance(event, ev.OutcomeRecorded)]
    refusal = done.decision.answers[0]
    cuts = [(cut.run.partition("/")[2], cut.reason) for each in told for cut in each.outcome.actions]
    return None if refusal is None else refusal.reason, cuts


def test_spares_go_before_width_and_width_before_the_lottery() -> None:
    there = world()
    for name, spec in (
        ("spared", run("org:x", 4, 4, group_gpus=4, spares=4)),
        ("elastic", run("org:x", 8, 4, elastic=(4, 8, 4))),
        ("rigid", run("org:y", 8, 8)),
    ):
        assert there.submit(name, spec) == "Running"
    there.wait(20 * MINUTE)
    assert resolve(there, asked(4, 4)) == (None, [("spared", Reason.DropSpare)])
    assert resolve(there, asked(8, 4)) == (None, [("elastic", Reason.Shrink)])
    refused, cuts = resolve(there, asked(24, 8))
    assert refused is None
    assert {reason for _, reason in cuts} == {Reason.RandomPreempt}


def test_only_nodes_of_the_scope_are_emptied() -> None:
    there = world()
    for number in range(3):
        assert there.submit(f"r{number}", run("org:x", 8, 8)) == "Running"
    there.wait(20 * MINUTE)
    _, cuts = resolve(there, asked(8, 8), **{"fabric.domain": "B"})
    (victim,) = [name for name, _ in cuts]
    assert there.scheduler.state.capacity.nodes["b0"].leases == {}
    assert victim == next(f"r{number}" for number in range(3) if key(f"r{number}") not in there.scheduler.state.runs)


def test_a_group_is_freed_in_one_domain() -> None:
    there = world()
    for number in range(3):
        assert there.submit(f"r{number}", run("org:x", 8, 8)) == "Running"
    there.wait(20 * MINUTE)
    _, cuts = resolve(there, asked(16, 8, 16))
    assert len(cuts) == 2
    nodes = there.scheduler.state.capacity.nodes
    assert not nodes["a0"].leases
    assert not nodes["a1"].leases


def test_work_that_is_too_young_is_not_drawn_and_nobody_is_touched() -> None:
    there = world()
    assert there.submit("idler", run("org:x", 8, 8, opportunistic=True)) == "Running"
    assert there.submit("rigid", run("org:x", 16, 8)) == "Running"
    assert resolve(there, asked(16, 8)) == (Reason.TooYoung, [])
    assert resolve(there, asked(8, 8)) == (None, [("idler", Reason.ReclaimOpportunistic)])
    assert resolve(there, asked(8, 8)) == (None, []), "so many are free already"
    assert resolve(there, asked(25)) == (Reason.NeverFits, [])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.integers(1, 10), pod=st.sampled_from((1, 2, 4)))
def test_in_random_worlds_what_was_asked_is_free_and_nobody_went_in_vain(seed: int, share: int, pod: int) -> None:
    film = RandomFilm(seed)
    film.open()
    for _ in range(40):
        film.play()
    scheduler, state = film.scheduler, film.scheduler.state
    for flavor, pool in list(state.capacity.pools.items()):
        here = [each for each in state.capacity.nodes.values() if each.domain is not None and each.domain.pool is pool]
        pods = max(1, sum(each.peak for each in here if usable(state, each.node.name)) * share // 10 // pod)
        before = {name: lease for each in state.runs.values() for name, lease in each.leases.items()}
        with scheduler.what_if(film.now, cmd.Resolve(flavor, {}, asked(pods * pod, pod))) as decision:
            told = [each.outcome for each in decision.events if isinstance(each, ev.OutcomeRecorded)]
            by_hand = [each for each in told if each.by_hand is not None]
            if decision.answers[0] is not None or not by_hand:
                assert not by_hand
                assert decision.answers[0] is not None or free(state, flavor, before.values(), pod) >= pods
                continue
            (outcome,) = by_hand
        gone = {name for cut in outcome.actions for name in cut.leases}
        kept = [lease for name, lease in before.items() if name not in gone]
        assert free(state, flavor, kept, pod) >= pods, "what was asked is free"
        places = [ORDER.index(cut.reason) for cut in outcome.actions]
        assert places == sorted(places), "classes in their order"
        for cut in outcome.actions:
            if cut.reason is Reason.RandomPreempt:
                start = state.runs[cut.run].started_at
                assert start is not None
                assert start <= film.now - state.config.min_runtime, "nobody too young was drawn"
            others = [other for other in outcome.actions if other is not cut and other.run == cut.run]
            back = [before[name] for name in cut.leases]
            if not others:
                assert free(state, flavor, [*kept, *back], pod) < pods, "nobody went in vain"


def usable(state: State, name: str) -> bool:
    return state.capacity.nodes[name].barred in (None, Reason.Cordoned)


def free(state: State, flavor: str, leases: Iterable[Lease], pod: int) -> int:
    """Pods of a size that would find room, counted anew from who holds which slot."""
    held: dict[str, set[int]] = {}
    for lease in leases:
        held.setdefault(lease.node, set()).update(lease.slots)
    total = 0
    for name, each in state.capacity.nodes.items():
        if each.domain is not None and each.domain.pool.flavor == flavor and usable(state, name):
            total += (each.peak - len(held.get(name, ()))) // pod
    return total
