"""Cover and pack against brute force on small worlds: what can start does start, and what starts could."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.build import World, budget, cap, envelope, node, run
from tests.engine.exact import Money, feasible

from fairlease.model.node import Node

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
    return Case(nodes, size, groups, group_pods, last, spares, draw(st.booleans()), purses, caps)


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


def could(case: Case, pods: int) -> bool:
    full, rest = divmod(pods, case.group_pods)
    groups = [case.group_pods + case.spares] * full + [rest + case.spares] * bool(rest)
    purses = [Money(dict(selector), count) for selector, count in case.purses]
    caps = [(frozenset(members), bound) for members, bound in case.caps]
    return feasible(case.nodes, case.size, groups, purses, caps, together=case.together)


@settings(max_examples=400, deadline=None)
@given(cases())
def test_a_run_starts_exactly_when_some_placement_with_payers_exists(case: Case) -> None:
    pods = case.groups * case.group_pods + case.last_pods
    spec = run(
        "org", pods * case.size, case.size, group_gpus=case.group_pods * case.size, spares=case.spares * case.size,
        allow_cross_group_spread=not case.together,
    )  # fmt: skip
    how = world_of(case).submit("r", spec)
    assert (how == "Running") is could(case, pods)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_an_elastic_run_starts_at_the_widest_width_that_brute_force_finds(case: Case) -> None:
    pods = case.groups * case.group_pods + case.last_pods
    spec = run(
        "org", pods * case.size, case.size, group_gpus=case.group_pods * case.size, spares=case.spares * case.size,
        allow_cross_group_spread=not case.together, elastic=(case.size, pods * case.size, case.size),
    )  # fmt: skip
    world = world_of(case)
    world.submit("r", spec)
    widest = max((width for width in range(1, pods + 1) if could(case, width)), default=0)
    assert world.run("r").width == widest * case.size
