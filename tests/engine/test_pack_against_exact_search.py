"""Cover and pack against brute force on small worlds: what can start does start, with the best payers and spares apart."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import FLAVOR, World, budget, cap, envelope, node, run
from tests.engine.exact import Money, Worth, best

from fairlease.engine.place import search
from fairlease.engine.place.packing import Rooms
from fairlease.engine.place.payers import Payers
from fairlease.engine.place.plan import Planner
from fairlease.engine.place.search import Search
from fairlease.ledger.state import events as ev
from fairlease.model.lease import Role
from fairlease.model.node import Node, matches
from fairlease.model.record import key
from fairlease.model.run import RunSpec
from fairlease.report.explain import explain

DOMAINS = ("A", "B", "C")
REGION = {"A": "west", "B": "east", "C": "east"}
SELECTORS = (
    {"region": "*"},
    {"region": "west"},
    {"region": "east"},
    {"fabric.domain": "B"},
    {"rack": "r1"},
    {"rack": "r2"},
)


class Case(NamedTuple):
    nodes: list[Node]
    size: int
    groups: int
    group_pods: int
    last_pods: int
    spares: int
    together: bool
    purses: list[tuple[dict[str, str], int]]
    caps: list[tuple[list[int], int]]
    location: dict[str, str]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Worlds in which room and money are just enough, or just not."""
    size = draw(st.sampled_from((1, 2, 4)))
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        domain = draw(st.sampled_from(DOMAINS))
        rack = draw(st.sampled_from(("r1", "r2")))
        gpus = draw(st.sampled_from((1, size, size, 2 * size, 3 * size + 1)))
        nodes.append(node(f"n{index}", gpus, domain, REGION[domain], labels={"rack": rack}))
    group_pods, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    last, spares = draw(st.integers(0, group_pods - 1)), draw(st.integers(0, 1))
    money = groups * group_pods + last + spares * (groups + bool(last)) + draw(st.integers(0, 2))
    purses: list[tuple[dict[str, str], int]] = []
    while money > 0 and len(purses) < 5:
        purses.append((draw(st.sampled_from(SELECTORS)), draw(st.integers(1, min(money, 4)))))
        money -= purses[-1][1]
    members = st.lists(st.integers(0, len(purses) - 1), min_size=1, max_size=3, unique=True)
    caps = draw(st.lists(st.tuples(members, st.integers(1, 4)), max_size=2))
    location = draw(st.sampled_from(({}, {}, {"region": "east"})))
    return Case(nodes, size, groups, group_pods, last, spares, draw(st.booleans()), purses, caps, location)


def world_of(case: Case) -> World:
    envelopes = [
        envelope(f"e{index}", pods * case.size, selector=dict(selector))
        for index, (selector, pods) in enumerate(case.purses)
    ]
    caps = tuple(
        cap(f"c{index}", [f"e{each}" for each in members], max_concurrency=bound * case.size)
        for index, (members, bound) in enumerate(case.caps)
    )
    return World(*case.nodes, budget("org", *envelopes, aggregate_caps=caps))


def best_of(case: Case, pods: int) -> Worth | None:
    """What brute force finds: by envelope, in the location and then elsewhere."""
    full, rest = divmod(pods, case.group_pods)
    groups = [(case.group_pods, case.spares)] * full + [(rest, case.spares)] * bool(rest)
    caps = [(frozenset(members), bound) for members, bound in case.caps]
    areas = (True, False) if case.location else (True,)
    payers = [
        Money(
            frozenset(
                each.name
                for each in case.nodes
                if matches(each.labels, dict(selector)) and matches(each.labels, case.location) is here
            ),
            count,
        )
        for here in areas
        for selector, count in case.purses
    ]
    if case.location:
        number = len(case.purses)
        caps = [(members | {each + number for each in members}, bound) for members, bound in caps]
        caps += [(frozenset({each, each + number}), count) for each, (_, count) in enumerate(case.purses)]
    return best(case.nodes, case.size, groups, payers, caps, together=case.together)


def worth_of(case: Case, world: World) -> Worth:
    """The worth of what was started, by the same count."""
    nodes, areas = {each.name: each for each in case.nodes}, 1 + bool(case.location)
    worth = [0] * (len(case.purses) * areas + 1)
    leases = [row.lease for row in world.leases("r")]
    active = {(each.group, each.node) for each in leases if each.role is Role.ACTIVE}
    for each in leases:
        elsewhere = 0 if matches(nodes[each.node].labels, case.location) else len(case.purses)
        worth[int(each.payer.envelope[1:]) + elsewhere] += 1
        worth[-1] -= each.role is Role.SPARE and (each.group, each.node) in active
    return tuple(worth)


def spec_of(case: Case, pods: int, **more: object) -> RunSpec:
    return run(
        "org", pods * case.size, case.size, group_gpus=case.group_pods * case.size, spares=case.spares * case.size,
        allow_cross_group_spread=not case.together, location=case.location, **more,
    )  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(cases())
def test_a_run_starts_where_the_first_payers_pay_most_and_spares_keep_apart(case: Case) -> None:
    pods = case.groups * case.group_pods + case.last_pods
    world = world_of(case)
    how = world.submit("r", spec_of(case, pods))
    expected = best_of(case, pods)
    assert (how == "Running") is (expected is not None)
    if expected is not None:
        assert worth_of(case, world) == expected


@settings(max_examples=150, deadline=None)
@given(cases())
def test_an_elastic_run_starts_at_the_widest_width_that_brute_force_finds(case: Case) -> None:
    pods = case.groups * case.group_pods + case.last_pods
    world = world_of(case)
    world.submit("r", spec_of(case, pods, elastic=(case.size, pods * case.size, case.size)))
    widest = max((width for width in range(1, pods + 1) if best_of(case, width) is not None), default=0)
    assert world.run("r").width == widest * case.size
    if widest:
        assert worth_of(case, world) == best_of(case, widest)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_where_all_money_reaches_the_same_nodes_the_first_choice_is_what_the_whole_search_finds(case: Case) -> None:
    alike = case._replace(purses=[(case.purses[0][0], pods) for _, pods in case.purses], caps=[], location={})
    pods = case.groups * case.group_pods + case.last_pods
    world, spec = world_of(alike), spec_of(alike, pods)
    state = world.scheduler.state
    with state.trial():
        state.apply(world.now, ev.RunSubmitted(run=key("r"), spec=spec))
        planner = Planner(state, world.scheduler.engine.family, state.runs[key("r")], world.now)
        quick = planner.widest() if planner.unfunded() is None else None
        rooms, need = Rooms(state.capacity.pools[FLAVOR], planner.reach(), case.size), planner.least
        whole = Search(rooms, need, Payers(planner.spending, planner.usable(), need.pods)).find()
        assert (quick is None) is (whole is None)
        if quick is not None and whole is not None and whole.payment is not None:
            assert (quick.spots, quick.money, quick.beside) == (whole.spots, whole.payment.pods, whole.beside)


def test_a_search_that_gives_up_takes_what_it_finds_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own money pays two pods in each of two domains, the parent's everywhere: the best is found after other choices."""
    monkeypatch.setattr(search, "TRIES_MAX", 1)
    nodes = [node(f"n{each}", 4, each, labels={"rack": "own" if each in "CD" else "other"}) for each in "ABCD"]
    own = budget("org:a", envelope("own", 4, selector={"rack": "own"}))
    world = World(*nodes, budget("org"), own)
    spec = run("org:a", 8, 2, group_gpus=4, allow_cross_group_spread=True)
    with world.scheduler.what_if(world.now):
        state = world.scheduler.state
        state.apply(world.now, ev.RunSubmitted(run=key("r"), spec=spec))
        told = explain(state, world.scheduler.engine.family, state.runs[key("r")], world.now)
    assert told.message == "can start 8 GPUs wide; the search for a better placement gave up"
    assert world.submit("r", spec) == "Running"
