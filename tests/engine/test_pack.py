"""Where (SEMANTICS §5): best fit, whole pods, groups in domains, spares off the active nodes, and nodes that are passed over."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace
from tests.engine.build import World, budget, envelope, node, run

from fairlease.engine import command as cmd
from fairlease.ledger.state import events as ev
from fairlease.model.config import Config
from fairlease.model.lease import Role
from fairlease.model.node import LabelKeys, Node
from fairlease.model.run import RunSpec

ORG = budget("org", envelope(concurrency=512))


class Case(NamedTuple):
    """Nodes, a run, how it comes out, and the nodes of its active pods and of its spares."""

    nodes: tuple[Node, ...]
    spec: RunSpec
    how: str
    active: list[str] = []
    spares: list[str] = []


def unlabelled(name: str) -> Node:
    return replace(node(name), labels={"region": "west", "gpu.flavor": "H100"})


TABLE = {
    "a run takes the smallest domain that holds it so that large holes survive": Case(
        (node("a0", domain="A"), node("a1", domain="A"), node("b0", domain="B")), run("org", 8, 8), "Running", ["b0"]
    ),
    "a pod takes the smallest hole of its domain": Case(
        (node("a0", 8), node("a1", 4), node("a2", 2)), run("org", 2, 2), "Running", ["a2"]
    ),
    "ties fall to the natural order of names": Case(
        (node("a10"), node("a9")), run("org", 8, 8), "Running", ["a9"]
    ),
    "4 and 4 free GPUs are no room for a pod of 8": Case(
        (node("a0", 4), node("a1", 4)), run("org", 8, 8), "NeverFits"
    ),
    "pods of one group may lie on several nodes of one domain": Case(
        (node("a0", 4), node("a1", 4)), run("org", 8, 4, group_gpus=8), "Running", ["a0", "a1"]
    ),
    "a group never lies across two domains": Case(
        (node("a0", 4, domain="A"), node("b0", 4, domain="B")), run("org", 8, 4, group_gpus=8), "NeverFits"
    ),
    "two groups may lie in two domains": Case(
        (node("a0", 4, domain="A"), node("b0", 4, domain="B")), run("org", 8, 2, group_gpus=4), "Running",
        ["a0", "a0", "b0", "b0"],
    ),
    "groups that must stay together do not spread": Case(
        (node("a0", 4, domain="A"), node("b0", 4, domain="B")),
        run("org", 8, 2, group_gpus=4, allow_cross_group_spread=False), "NeverFits",
    ),
    "groups that must stay together take the domain that holds all": Case(
        (node("a0", 4, domain="A"), node("b0", 4, domain="B"), node("b1", 4, domain="B")),
        run("org", 8, 2, group_gpus=4, allow_cross_group_spread=False), "Running", ["b0", "b0", "b1", "b1"],
    ),
    "two domains of one name in two regions are two domains": Case(
        (node("a0", 4, region="west"), node("a1", 4, region="east")), run("org", 8, 4, group_gpus=8), "NeverFits"
    ),
    "later groups go where the earlier ones are": Case(
        (node("a0", domain="A"), node("a1", domain="A"), node("b0", domain="B")), run("org", 12, 4, group_gpus=4), "Running",
        ["b0", "b0", "a0"],
    ),
    "spares lie off the nodes of their group's active pods": Case(
        (node("a0"), node("a1")), run("org", 4, 4, group_gpus=4, spares=4), "Running", ["a0"], ["a1"]
    ),
    "spares lie beside active pods where there is no other room": Case(
        (node("a0"),), run("org", 4, 4, group_gpus=4, spares=4), "Running", ["a0"], ["a0"]
    ),
    "spares lie in the domain of their group": Case(
        (node("a0", 4, domain="A"), node("b0", 8, domain="B"), node("b1", 4, domain="B")),
        run("org", 4, 4, group_gpus=4, spares=4), "Running", ["b1"], ["b0"],
    ),
    "spares lie off the active nodes whenever some choice of nodes allows it": Case(
        (node("a0", 2), node("a1", 3), node("a2", 4)), run("org", 3, 1, group_gpus=3, spares=6), "Running",
        ["a1"] * 3, ["a0"] * 2 + ["a2"] * 4,
    ),
    "every group has its spares": Case(
        (node("a0"), node("a1"), node("a2")), run("org", 8, 4, group_gpus=4, spares=4), "Running",
        ["a0", "a0"], ["a1", "a1"],
    ),
    "an elastic run starts at the widest width on its grid": Case(
        (node("a0"), node("a1", 4)), run("org", 16, 2, elastic=(4, 16, 6)), "Running", ["a1", "a1", "a0", "a0", "a0"]
    ),
    "an elastic run does not start below its minimum": Case(
        (node("a0", 4),), run("org", 16, 2, elastic=(8, 16, 2)), "NeverFits"
    ),
    "a node without a label is passed over and blocks nobody": Case(
        (unlabelled("a0"), node("a1")), run("org", 8, 8), "Running", ["a1"]
    ),
    "a cordoned node takes no new work": Case(
        (node("a0", cordoned=True), node("a1")), run("org", 8, 8), "Running", ["a1"]
    ),
    "a node that is not ready takes no new work": Case(
        (node("a0", ready=False), node("a1")), run("org", 8, 8), "Running", ["a1"]
    ),
    "a fenced node takes no new work": Case((node("a0", fenced=True), node("a1")), run("org", 8, 8), "Running", ["a1"]),
    "a node that lost a GPU is passed over and blocks nobody": Case(
        (node("a0", healthy_gpus=7), node("a1")), run("org", 8, 8), "Running", ["a1"]
    ),
    "a huge request is told at once that it never fits": Case(
        (node("a0"),), run("org", 2**40, 8), "ConcurrencyCapExceeded"
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", TABLE)
def test_pack_finds_the_place_or_tells_why_not(sentence: str) -> None:
    case = TABLE[sentence]
    world = World(*case.nodes, ORG)
    assert world.submit("r", case.spec) == case.how
    assert world.nodes("r") == case.active
    assert world.nodes("r", Role.SPARE) == case.spares


def test_slots_are_real_and_the_lowest_free_ones_are_taken() -> None:
    world = World(node("a0"), ORG)
    for name in ("r1", "r2", "r3"):
        world.submit(name, run("org", 2, 2))
    world.end("r2")
    world.submit("r4", run("org", 4, 4))
    slots = {name: world.leases(name)[0].lease.slots for name in ("r1", "r3", "r4")}
    assert slots == {"r1": (0, 1), "r3": (4, 5), "r4": (2, 3, 6, 7)}


def test_a_hole_of_4_and_4_is_no_room_until_one_node_is_free() -> None:
    world = World(node("a0"), node("a1"), ORG)
    world.submit("x", run("org", 4, 4, group_gpus=4))
    world.submit("y", run("org", 8, 8))
    world.submit("z", run("org", 4, 4))
    world.end("x")
    world.end("y")
    world.submit("half", run("org", 4, 4))
    assert world.submit("big", run("org", 16, 8)) == "Reserved"
    world.end("z")
    assert world.how("big") == "Reserved"
    world.end("half")
    assert world.how("big") == "Running"


def test_a_full_node_that_lost_a_gpu_keeps_its_work_and_blocks_nobody() -> None:
    world = World(node("a0"), node("a1"), ORG)
    world.submit("old", run("org", 8, 8))
    world.write(node("a0", gpus=7), node("a1", gpus=8))
    assert world.how("old") == "Running"
    assert world.submit("new", run("org", 8, 8)) == "Running"
    assert world.nodes("new") == ["a1"]
    world.end("old")
    assert world.submit("next", run("org", 1)) == "Reserved"
    world.write(node("a0"))
    assert world.how("next") == "Running"


def test_a_node_with_more_healthy_gpus_than_it_has_is_still_short() -> None:
    world = World(node("a0", 4), ORG)
    world.write(node("a0", 2, healthy_gpus=4))
    assert world.submit("r", run("org", 2)) == "NoRoom"


def test_a_run_that_never_fits_starts_when_such_nodes_come() -> None:
    world = World(node("a0", 4), ORG)
    assert world.submit("r", run("org", 8, 8)) == "NeverFits"
    world.write(node("a1"))
    assert world.how("r") == "Running"


def test_a_relabelled_node_moves_to_its_new_domain_with_its_work() -> None:
    world = World(node("a0"), node("b0", domain="B"), ORG)
    world.submit("old", run("org", 4, 4))
    assert world.submit("pair", run("org", 12, 4, group_gpus=12)) == "NeverFits"
    world.write(node("b0", domain="A"))
    assert world.how("pair") == "Running"
    assert world.how("old") == "Running"


def test_nodes_are_filled_in_the_order_of_their_names_however_they_came_and_went() -> None:
    world = World(node("a10"), node("a2"), ORG)
    world.submit("first", run("org", 8, 8))
    world.write(node("a1"), node("a9"))
    world.tick(cmd.RemoveNode("a10"))
    world.write(node("a11"), node("a10"))
    world.submit("all", run("org", 32, 8, group_gpus=32))
    assert world.nodes("first") == ["a2"]
    assert world.nodes("all") == ["a1", "a9", "a10", "a11"]


def test_domains_are_filled_in_their_order_however_they_came_and_went() -> None:
    world = World(node("x", domain="d10"), node("y", domain="d2"), ORG)
    world.submit("first", run("org", 8, 8))
    world.write(node("z", domain="d1"), node("x", domain="d3"))
    world.end("first")
    for number in range(3):
        world.submit(f"r{number}", run("org", 8, 8))
    assert [world.nodes(f"r{number}") for number in range(3)] == [["z"], ["y"], ["x"]]


def test_other_label_keys_place_nodes_anew() -> None:
    racks = [node(f"a{each}", 4, labels={"rack": f"r{each}"}) for each in range(2)]
    world = World(*racks, ORG)
    assert world.submit("r", run("org", 8, 4, group_gpus=8)) == "Running"
    world.tick(cmd.Configure(Config(labels=LabelKeys(domain="rack"))))
    assert world.how("r") == "Running"
    world.end("r")
    assert world.submit("next", run("org", 8, 4, group_gpus=8)) == "NeverFits"


def test_equal_worlds_give_equal_plans() -> None:
    plans = []
    for _ in range(2):
        world = World(node("a0"), node("a1"), ORG)
        world.submit("r", run("org", 12, 4))
        plans.append([event.plan for event in world.told(ev.LeasesOpened)])
    assert plans[0] == plans[1]
    assert len(plans[0][0]) == 32


@pytest.mark.parametrize("names", [("1", "01"), ("01", "1")])
@pytest.mark.parametrize("apart", [False, True], ids=["nodes", "domains"])
def test_names_that_count_alike_are_filled_in_one_order_also_after_a_restart(
    names: tuple[str, ...], *, apart: bool
) -> None:
    """n1 and n01 are two nodes: which is first may not hang on which came first, as a snapshot does not tell that."""
    zone = [node(f"n{name}", domain=f"d{name}" if apart else "d", labels={"zone": "x"}) for name in names]
    rest = [node(f"z{each}", domain=each) for each in ("d1", "d01", "d")]
    world = World(*zone, *rest, budget("org", envelope(selector={"zone": "x"})))
    assert world.submit("before", run("org", 8, 8)) == "Running"
    assert world.nodes("before") == ["n01"]
    world.end("before")
    assert world.scheduler.save_snapshot(force=True)
    world.restart()
    world.submit("after", run("org", 8, 8))
    assert world.nodes("after") == ["n01"]
