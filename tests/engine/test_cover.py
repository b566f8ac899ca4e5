"""Who pays (SEMANTICS §3): the order, the bounds, whole pods, and the cause that is told."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from tests.engine.build import (
    HOUR,
    MINUTE,
    T0,
    LocationPolicy,
    World,
    budget,
    cap,
    envelope,
    lending,
    node,
    run,
)

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.model.budget import BudgetSpec, PreActivation, Sharing
from fairlease.model.config import Config
from fairlease.model.node import Node
from fairlease.model.record import key
from fairlease.model.run import RunSpec

WEST, EAST = {"region": "west"}, {"region": "east"}
NODES = (
    node("w0"),
    node("w1"),
    node("w2"),
    node("e0", domain="B", region="east"),
    node("e1", domain="B", region="east"),
)


class Case(NamedTuple):
    """A world, a run, how it comes out, and who pays how many GPUs."""

    world: tuple[Node | BudgetSpec, ...]
    spec: RunSpec
    how: str
    payers: dict[str, int] = {}


def borrower(total: int = 8, pod: int = 1, **more: object) -> RunSpec:
    return run("lab", total, pod, allow_borrow=True, **{"sponsors": ("rich",)} | more)


ORDER = {
    "own money comes before the family's": Case(
        (budget("org"), budget("org:a")), run("org:a", 8), "Running", {"org:a/e": 8}
    ),
    "parents come before siblings and siblings before children": Case(
        (
            budget("org", envelope(concurrency=2)), budget("org:a", envelope(concurrency=2)),
            budget("org:b", envelope(concurrency=2)), budget("org:a:x", envelope(concurrency=2)),
        ),
        run("org:a", 7), "Running", {"org:a/e": 2, "org/e": 2, "org:b/e": 2, "org:a:x/e": 1},
    ),
    "siblings share nothing where the parent has no Budget": Case(
        (budget("org:b"), budget("org:a", envelope(concurrency=2))), run("org:a", 4), "ConcurrencyCapExceeded"
    ),
    "an envelope that is not shared pays only for its owner": Case(
        (budget("org", envelope(sharing=Sharing.NONE)),), run("org:a", 4), "NoEnvelope"
    ),
    "an owner with only family money can start": Case((budget("org"),), run("org:a", 8), "Running", {"org/e": 8}),
    "a cycle of parents counts for nothing": Case(
        (budget("a", parents=("b",)), budget("b", parents=("a",))), run("b", 128), "ConcurrencyCapExceeded"
    ),
    "within one place the Budget's name decides and then the envelope's": Case(
        (budget("org", envelope("z", 4), envelope("m", 4), envelope("a", 4)),), run("org", 6), "Running",
        {"org/a": 4, "org/m": 2},
    ),
    "sponsors are asked in the order given": Case(
        (budget("rich", envelope(lending=lending())), budget("kind", envelope(lending=lending()))),
        borrower(sponsors=("rich", "kind")), "Running", {"rich/e": 8},
    ),
    "sponsors come before ancestors beyond the parents": Case(
        (budget("org", envelope(lending=lending())), budget("rich", envelope(concurrency=2, lending=lending()))),
        run("org:a:x", 4, allow_borrow=True, sponsors=("rich",)), "Running", {"rich/e": 2, "org/e": 2},
    ),
    "ancestors come before cousins": Case(
        (
            budget("org", envelope(concurrency=2, lending=lending())), budget("org:b", envelope(concurrency=1)),
            budget("org:b:z", envelope(lending=lending())),
        ),
        run("org:a:x", 4, allow_borrow=True, sponsors=("nobody",)), "Running", {"org/e": 2, "org:b:z/e": 2},
    ),
    "nobody beyond the family is asked without a sponsor named": Case(
        (budget("org", envelope(lending=lending())),), run("org:a:x", 4, allow_borrow=True), "NoEnvelope"
    ),
    "a parent who is also a sponsor lends the same GPUs once": Case(
        (budget("org", envelope(concurrency=4, lending=lending())),),
        run("org:a", 8, allow_borrow=True, sponsors=("org",)), "ConcurrencyCapExceeded",
    ),
    "a parent who does not share may still sponsor": Case(
        (budget("org", envelope(sharing=Sharing.NONE, lending=lending())),),
        run("org:a", 4, allow_borrow=True, sponsors=("org",)), "Running", {"org/e": 4},
    ),
}  # fmt: skip

CAUSES = {
    "no envelope of this flavor is NoEnvelope": Case((budget("org", envelope(flavor="A100")),), run("org", 1), "NoEnvelope"),
    "an envelope that is full is not NoEnvelope": Case(
        (budget("org", envelope(concurrency=4)),), run("org", 5), "ConcurrencyCapExceeded"
    ),
    "a selector that matches no node is SelectorMismatch": Case(
        (budget("org", envelope(selector={"region": "north"})),), run("org", 1), "SelectorMismatch"
    ),
    "a selector outside the required location is SelectorMismatch": Case(
        (budget("org", envelope(selector=WEST)),),
        run("org", 1, location=EAST, location_policy=LocationPolicy.REQUIRE), "SelectorMismatch",
    ),
    "a window that is not open yet is WindowClosed": Case(
        (budget("org", envelope(start=T0 + HOUR)),), run("org", 1), "WindowClosed"
    ),
    "a window that has closed is WindowClosed": Case((budget("org", envelope(end=T0)),), run("org", 1), "WindowClosed"),
    "a window that admits before it opens is open": Case(
        (budget("org", envelope(start=T0 + HOUR, pre_activation=PreActivation(allow_admission=True))),), run("org", 1),
        "Running", {"org/e": 1},
    ),
    "a sponsor who does not lend is ACLDenied": Case((budget("rich"),), borrower(), "ACLDenied"),
    "a sponsor who lends to others is ACLDenied": Case(
        (budget("rich", envelope(lending=lending(to=("org:*",)))),), borrower(), "ACLDenied"
    ),
    "a list of globs lets the borrower in": Case(
        (budget("rich", envelope(lending=lending(to=("org:*", "la?")))),), borrower(), "Running", {"rich/e": 8}
    ),
    "more than the run may borrow is BorrowLimit": Case(
        (budget("rich", envelope(lending=lending())),), borrower(max_borrow_gpus=4), "BorrowLimit"
    ),
    "the borrow limit counts over all sponsors": Case(
        (budget("rich", envelope(concurrency=4, lending=lending())), budget("kind", envelope(lending=lending()))),
        borrower(max_borrow_gpus=6, sponsors=("rich", "kind")), "ConcurrencyCapExceeded",
    ),
    "more than the lender lends at once is LendingCapExceeded": Case(
        (budget("rich", envelope(lending=lending(max_concurrency=4))),), borrower(), "LendingCapExceeded"
    ),
    "more hours than the lender lends is LendingCapExceeded": Case(
        (budget("rich", envelope(lending=lending(max_gpu_hours=HOUR))),), borrower(max_duration=HOUR), "LendingCapExceeded"
    ),
    "more hours than are left is IntegralCapExceeded": Case(
        (budget("org", envelope(max_gpu_hours=7 * HOUR)),), run("org", 8, max_duration=HOUR), "IntegralCapExceeded"
    ),
    "a run without a limit needs a quantum of hours": Case(
        (budget("org", envelope(max_gpu_hours=HOUR)),), run("org", 5), "IntegralCapExceeded"
    ),
    "more than the aggregate cap is AggregateCapExceeded": Case(
        (budget("org", envelope(), aggregate_caps=(cap("c", ["e"], max_concurrency=4),)),), run("org", 8),
        "AggregateCapExceeded",
    ),
    "more hours than the aggregate cap has is AggregateCapExceeded": Case(
        (budget("org", envelope(), aggregate_caps=(cap("c", ["e"], max_gpu_hours=HOUR),)),),
        run("org", 8, max_duration=HOUR), "AggregateCapExceeded",
    ),
    "the cause is that of the envelope that passed the most": Case(
        (
            budget("org", envelope("a", flavor="A100"), envelope("b", start=T0 + HOUR), envelope("c", 4),
                   envelope("d", selector={"region": "north"})),
        ),
        run("org", 8), "ConcurrencyCapExceeded",
    ),
    "family use counts against the caps": Case(
        (budget("org", envelope(), aggregate_caps=(cap("c", ["e"], max_concurrency=4),)),), run("org:a", 8),
        "AggregateCapExceeded",
    ),
    "opportunistic work takes no concurrency": Case(
        (budget("org", envelope(concurrency=1)),), run("org", 8, opportunistic=True), "Running", {"org/e": 8}
    ),
    "opportunistic work pays hours": Case(
        (budget("org", envelope(concurrency=1, max_gpu_hours=HOUR)),),
        run("org", 8, opportunistic=True, max_duration=HOUR), "IntegralCapExceeded",
    ),
    "spares are paid for": Case(
        (budget("org", envelope(concurrency=9)),), run("org", 8, group_gpus=4, spares=1), "ConcurrencyCapExceeded"
    ),
}  # fmt: skip

PODS = {
    "12 own and 4 of the parent are not two pods of 8": Case(
        (budget("org", envelope(concurrency=4)), budget("org:a", envelope(concurrency=12))), run("org:a", 16, 8),
        "ConcurrencyCapExceeded",
    ),
    "12 own and 8 of the parent are one pod each": Case(
        (budget("org", envelope(concurrency=8)), budget("org:a", envelope(concurrency=12))), run("org:a", 16, 8),
        "Running", {"org:a/e": 8, "org/e": 8},
    ),
    "one plan takes an aggregate cap of 8 once": Case(
        (budget("org", envelope("a", 8), envelope("b", 8), aggregate_caps=(cap("c", ["a", "b"], max_concurrency=8),)),),
        run("org", 16, 8), "AggregateCapExceeded",
    ),
    "an aggregate cap's rest goes to the next envelope": Case(
        (budget("org", envelope("a", 4), envelope("b", 8), aggregate_caps=(cap("c", ["a", "b"], max_concurrency=8),)),),
        run("org", 8, 4), "Running", {"org/a": 4, "org/b": 4},
    ),
    "money under two caps is shared out so that all is paid": Case(
        (
            budget("org", envelope("a", 2), envelope("b", 3), envelope("c", 1), aggregate_caps=(
                cap("ab", ["a", "b"], max_concurrency=3), cap("ac", ["a", "c"], max_concurrency=1),
            )),
        ),
        run("org", 4), "Running", {"org/b": 3, "org/c": 1},
    ),
}  # fmt: skip

WHERE = {
    "own money in the west and the parent's in the east pay each their part": Case(
        (budget("org", envelope(selector=EAST)), budget("org:a", envelope(concurrency=16, selector=WEST))),
        run("org:a", 24, 8), "Running", {"org:a/e": 16, "org/e": 8},
    ),
    "money is never spent where its selector does not match": Case(
        (budget("org", envelope(selector=EAST)),), run("org", 24, 8), "NeverFits"
    ),
    "a preferred location is tried with all family money first": Case(
        (budget("org", envelope(selector=EAST)), budget("org:a", envelope(selector=WEST))),
        run("org:a", 8, 8, location=EAST), "Running", {"org/e": 8},
    ),
    "a preferred location that is too small spills over": Case(
        (budget("org"),), run("org", 24, 8, location=EAST), "Running", {"org/e": 24}
    ),
    "a required location that is too small never fits": Case(
        (budget("org"),), run("org", 24, 8, location=EAST, location_policy=LocationPolicy.REQUIRE), "NeverFits"
    ),
    "elsewhere with family money comes before borrowing in the location": Case(
        (budget("lab", envelope(selector=WEST)), budget("rich", envelope(lending=lending()))),
        borrower(location=EAST), "Running", {"lab/e": 8},
    ),
}  # fmt: skip

TABLE = ORDER | CAUSES | PODS | WHERE


@pytest.mark.parametrize("sentence", TABLE)
def test_cover_finds_the_payers_or_tells_the_cause(sentence: str) -> None:
    case = TABLE[sentence]
    world = World(*NODES, *case.world)
    assert world.submit("r", case.spec) == case.how
    assert world.payers("r") == case.payers


def test_a_preferred_location_is_where_the_pods_lie() -> None:
    world = World(*NODES, budget("org"))
    world.submit("r", run("org", 24, 8, location=EAST))
    assert sorted(world.nodes("r"))[:2] == ["e0", "e1"]


def test_selectors_limit_where_each_payers_pods_lie() -> None:
    world = World(
        *NODES, budget("org", envelope(selector=EAST)), budget("org:a", envelope(concurrency=8, selector=WEST))
    )
    world.submit("r", run("org:a", 16, 8))
    payers = {row.lease.node[0]: row.lease.payer.owner for row in world.leases("r")}
    assert payers == {"w": "org:a", "e": "org"}


def test_another_tenants_broken_budget_does_not_block_mine() -> None:
    cycle = (budget("x", parents=("y",)), budget("y", parents=("x",)))
    world = World(*NODES, budget("org"), *cycle, budget("z", envelope(selector={"region": "nowhere"})))
    assert world.submit("mine", run("org", 8)) == "Running"


def test_a_shorter_quantum_lets_a_waiting_run_afford_its_start() -> None:
    world = World(*NODES, budget("org", envelope(max_gpu_hours=HOUR)))
    assert world.submit("r", run("org", 8)) == "IntegralCapExceeded"
    world.tick(cmd.Configure(Config(commit_quantum=5 * MINUTE)))
    assert world.how("r") == "Running"


def test_a_look_ahead_at_other_budgets_leaves_no_family_behind() -> None:
    world = World(*NODES, budget("org", envelope("a")))
    with world.scheduler.what_if(world.now, cmd.SetBudget(key("org"), budget("org", envelope("b")))):
        assert world.scheduler.engine.family.asked(("org", False, ())) == {("default/org", "b")}
    world.write(budget("org", envelope("c", 8)))
    assert world.submit("r", run("org", 8)) == "Running"
    assert world.payers("r") == {"org/c": 8}


def test_a_lack_of_money_is_no_reason_to_cut_anybody() -> None:
    """The claim could be wider only with the money of the overdrawn work it would cut: that is no lack of GPUs."""
    world = World(*NODES, budget("org", envelope(concurrency=8)), budget("org:a", envelope(concurrency=16)))
    world.submit("old", run("org:a", 8, 8))
    world.submit("young", run("org:a", 8, 8))
    world.write(budget("org:a", envelope(concurrency=12)))
    assert world.overdrawn() == {"young"}
    assert world.submit("claim", run("org:a", 16, 4, elastic=(8, 16, 4))) == "Running"
    assert world.run("claim").width == 8
    assert world.how("young") == "Running"
    assert world.told(ev.OutcomeRecorded) == []
