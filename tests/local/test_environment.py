"""What the ranks of a gang find in their environment."""

from __future__ import annotations

import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlease.local.processes.environment import ID_CHARS_MAX, PORTS, pick_port, pod_id, rendezvous
from fairlease.model.lease import Fund, Lease, Payer, Role
from fairlease.model.record import key
from fairlease.reason import Reason
from fairlease.runtime.processes.login import User, base_environment
from fairlease.runtime.processes.rendezvous import OURS, is_ours

PAYER = Payer(budget=key("team"), envelope="west", owner="org:team", fund=Fund.OWNED)


def lease(rank: int, node: str = "n0", slots: tuple[int, ...] = (0,), run: str = "train", **fields: object) -> Lease:
    given: dict[str, object] = {
        "name": f"{run}-{rank}",
        "run": key(run),
        "owner": "org:team",
        "attempt": 1,
        "group": 0,
        "rank": rank,
        "node": node,
        "slots": slots,
        "role": Role.ACTIVE,
        "start": 0,
        "payer": PAYER,
        "reason": Reason.Start,
        "serial": rank,
    }
    return Lease(**{**given, **fields})  # type: ignore[arg-type]  # a builder: each test names what matters to it


def by_rank(leases: list[Lease], **fields: object) -> dict[int, dict[str, str]]:
    given: dict[str, object] = {"port": 20_000, "base": {}, "env": {}, "members": "/m.json"}
    found = rendezvous(leases, **{**given, **fields})  # type: ignore[arg-type]  # the same
    return {int(environment["RANK"]): environment for environment in found.values()}


def test_each_rank_learns_its_place_among_nodes_and_pods() -> None:
    gang = [lease(3, "a", (4, 5)), lease(0, "b", (0, 1)), lease(2, "b", (2, 3)), lease(1, "a", (0, 1))]
    ranks = by_rank(gang, port=23_456)
    names = ("NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NNODES", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    assert {rank: [ranks[rank][name] for name in names] for rank in sorted(ranks)} == {
        0: ["0", "0", "2", "2", "4", "0,1"],  # the node of rank 0 is the first node, whatever its name
        1: ["1", "0", "2", "2", "4", "0,1"],
        2: ["0", "1", "2", "2", "4", "2,3"],
        3: ["1", "1", "2", "2", "4", "4,5"],
    }
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in ranks.values()} == {("127.0.0.1", "23456")}


def test_each_pod_learns_who_it_is_in_the_ledger() -> None:
    mine = lease(2, "n7", run="ml/train", attempt=3, serial=91)
    (name, found), *_ = rendezvous([mine], port=20_000, base={}, env={}, members="/m.json").items()
    assert name == pod_id(mine) == "ml+train+3+2+91"
    assert {variable: value for variable, value in found.items() if variable.startswith("FAIRLEASE_")} == {
        "FAIRLEASE_RUN": "ml/train",
        "FAIRLEASE_ATTEMPT": "3",
        "FAIRLEASE_POD": name,
        "FAIRLEASE_NODE": "n7",
        "FAIRLEASE_HOST": "train-3-2",
        "FAIRLEASE_MEMBERS": "/m.json",
        "FAIRLEASE_OWNER": "org:team",
    }


def test_a_spare_is_no_member_of_the_gang() -> None:
    ranks = by_rank([lease(0), lease(1, slots=(1,)), lease(2, slots=(2,), role=Role.SPARE)])
    assert set(ranks) == {0, 1}
    assert ranks[0]["WORLD_SIZE"] == "2"


def test_a_swap_keeps_rank_and_world_size_but_not_the_pod() -> None:
    before, after = lease(1, "a", serial=5), lease(1, "spare", serial=9, reason=Reason.Swap)
    old, new = by_rank([lease(0, "a", (1,)), before])[1], by_rank([lease(0, "a", (1,)), after])[1]
    assert (new["RANK"], new["WORLD_SIZE"]) == (old["RANK"], old["WORLD_SIZE"])
    assert new["FAIRLEASE_POD"] != old["FAIRLEASE_POD"]


def test_two_copies_of_a_rank_are_refused() -> None:
    with pytest.raises(ValueError, match="each of its ranks"):
        by_rank([lease(0), lease(0, serial=4)])
    with pytest.raises(ValueError, match="one attempt"):
        by_rank([lease(0), lease(1, attempt=2)])


def test_known_devices_are_named_by_uuid_and_never_mixed_with_numbers() -> None:
    devices = {"a": {0: "GPU-aa", 2: "GPU-cc", 3: "GPU-dd"}}
    ranks = by_rank([lease(0, "a", (3, 0)), lease(1, "a", (1, 2)), lease(2, "b", (1,))], devices=devices)
    assert [ranks[rank]["CUDA_VISIBLE_DEVICES"] for rank in range(3)] == ["GPU-dd,GPU-aa", "1,2", "1"]
    assert ranks[1]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_run_sets_its_own_variables_but_none_of_ours() -> None:
    wished = dict.fromkeys(OURS, "mine") | {"FAIRLEASE_OWNER": "org:rich", "LR": "0.1", "PATH": "/opt/bin"}
    found = by_rank([lease(0)], base={"PATH": "/bin", "HOME": "/home/ada"}, env=wished)[0]
    assert (found["LR"], found["PATH"], found["HOME"]) == ("0.1", "/opt/bin", "/home/ada")
    assert "mine" not in found.values()
    assert found["FAIRLEASE_OWNER"] == "org:team"
    assert {name for name in found if is_ours(name)} == {name for name in found if name not in ("LR", "PATH", "HOME")}


def test_another_users_work_sees_nothing_of_the_daemons_environment() -> None:
    daemon = {"PATH": "/root/bin", "HOME": "/root", "SECRET": "s", "LANG": "de_DE.UTF-8", "TMPDIR": "/root/tmp"}
    ada = User(uid=1000, gid=1000, name="ada", home="/home/ada", shell="/bin/zsh")  # noqa: S604 - the name of one, not a call through it
    found = base_environment(ada, daemon)
    assert (found["HOME"], found["USER"], found["LOGNAME"], found["SHELL"]) == ("/home/ada", "ada", "ada", "/bin/zsh")
    assert found["LANG"] == "de_DE.UTF-8"
    assert not {"/root/bin", "/root", "/root/tmp", "s"} & set(found.values())


def test_ones_own_daemon_passes_on_its_places_and_no_secrets() -> None:
    found = base_environment(None, {"PATH": "/venv/bin:/bin", "HOME": "/home/ada", "SECRET": "s"})
    assert found == {"PATH": "/venv/bin:/bin", "HOME": "/home/ada", "LANG": "C.UTF-8"}


@example([("a" * 300, "b"), ("a" * 300, "c")])
@example([("a+b", "c"), ("a", "b+c")])
@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=2, max_size=2, unique=True))
def test_two_runs_never_share_the_name_of_a_pod(runs: list[tuple[str, str]]) -> None:
    (space, name), (other_space, other_name) = ((a.replace("/", "."), b.replace("/", ".")) for a, b in runs)
    one, other = lease(0, run=f"{space}/{name}"), lease(0, run=f"{other_space}/{other_name}")
    assert (pod_id(one) == pod_id(other)) == (one.run == other.run)
    assert "/" not in pod_id(one)
    assert len(pod_id(one)) <= ID_CHARS_MAX


def test_an_attempt_keeps_its_port_until_somebody_takes_it() -> None:
    port = pick_port("default/train 1")
    assert port == pick_port("default/train 1")
    assert port in PORTS
    assert pick_port("default/train 1", taken={port}) != port
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert pick_port("default/train 1") != port


def test_different_attempts_prefer_different_ports() -> None:
    assert len({pick_port(f"default/train {attempt}") for attempt in range(50)}) > 45


def test_no_port_left_is_said_and_not_guessed() -> None:
    with pytest.raises(OSError, match="every port"):
        pick_port("default/train 1", taken=PORTS)
