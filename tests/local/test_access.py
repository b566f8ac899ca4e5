"""Who may do what: two users of one machine, a daemon that is root, and the kernel's word on who calls."""

from __future__ import annotations

import array
import asyncio
import codecs
import os
import pwd
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.local.stage import Stage, budget_object, daemon, run_object, until

from fairlease.local.daemon.config import load_settings
from fairlease.local.daemon.launch import up
from fairlease.local.socket.access import Access, covers
from fairlease.local.socket.protocol import EXIT_FORBIDDEN, CallFailed

PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
"""One that every user can start; all it runs is the supervisor, which needs no package."""

ALICE, BOB = "nobody", "daemon"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0 and "CI" not in os.environ, reason="only root can become two users")

CONFIG = f"""
gpus: 8
flavor: H100
metricsPort: 0
grace: 1s
users:
  {ALICE}: [org:ai]
  {BOB}: [org:aix]
"""


@pytest.fixture
def stage() -> Iterator[Stage]:
    place = Path(tempfile.mkdtemp(prefix="fairlease-test-"))
    place.chmod(0o711)
    config = place / "config.yaml"
    config.write_text(CONFIG)
    try:
        with daemon(place / "home", config=str(config)) as stage:
            stage.call("budgets.apply", objects=[budget_object("aix", "org:aix")])
            yield stage
    finally:
        shutil.rmtree(place)


def as_user(name: str, act: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """What a function gives, or the refusal that it meets, when another user calls it."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            entry = pwd.getpwnam(name)
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            answer: Any
            try:
                answer = {"result": act()}
            except CallFailed as failed:
                why = failed.error
                answer = {"reason": why.reason, "message": why.message, "remedy": why.remedy, "exit": why.exit}
            except OSError as error:
                answer = {"errno": error.errno}
            os.write(send, msgspec.json.encode(answer))
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as pipe:  # noqa: PTH123 - a descriptor
        told = pipe.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(told)


@AS_ROOT
def test_work_runs_as_the_user_who_submitted_it(stage: Stage) -> None:
    run = run_object("mine", 2, "id -un; echo $HOME $USER", owner="org:ai:rai")
    answer = as_user(ALICE, lambda: stage.call("submit", objects=[run]))
    assert answer["result"]["runs"][0]["name"] == "mine"
    assert stage.ends("mine")["phase"] == "Completed"
    until(lambda: stage.call("logs", run="mine")["ended"])
    path = Path(stage.call("logs", run="mine")["files"][0]["path"])
    assert path.read_text().split() == [ALICE, pwd.getpwnam(ALICE).pw_dir, ALICE]
    assert path.stat().st_uid == pwd.getpwnam(ALICE).pw_uid
    assert as_user(ALICE, path.read_text)["result"].startswith(ALICE)
    assert as_user(BOB, path.read_text) == {"errno": 13}
    assert stage.call("show", run="mine")["by"] == ALICE


@AS_ROOT
def test_nobody_spends_cancels_or_reads_what_is_anothers(stage: Stage) -> None:
    secret = run_object("secret", 2, "sleep 60", owner="org:ai:rai", env={"TOKEN": "hunter2"})
    as_user(ALICE, lambda: stage.call("submit", objects=[secret]))
    theft = run_object("theft", 2, "true", owner="org:ai:rai")
    spent = as_user(BOB, lambda: stage.call("submit", objects=[theft]))
    assert (spent["reason"], spent["exit"]) == ("Forbidden", EXIT_FORBIDDEN)
    assert as_user(BOB, lambda: stage.call("plan", object=theft))["reason"] == "Forbidden"
    assert as_user(BOB, lambda: stage.call("cancel", runs=["secret"]))["reason"] == "Forbidden"
    assert as_user(BOB, lambda: stage.call("logs", run="secret"))["reason"] == "Forbidden"
    assert as_user(BOB, lambda: stage.call("logs.read", run="secret", attempt=1, rank=0))["reason"] == "Forbidden"
    stage.runs("secret")
    shown = as_user(BOB, lambda: stage.call("show", run="secret"))["result"]
    assert shown["status"]["phase"] == "Running"
    assert not {"command", "env", "workdir"} & set(shown["spec"])
    for verb in ("list", "explain", "leases", "budgets.list", "nodes", "status", "who-pays"):
        args = {"run": "secret"} if verb == "explain" else {}
        told = as_user(BOB, lambda verb=verb, args=args: stage.call(verb, **args))  # type: ignore[misc]  # a lambda's default
        assert "hunter2" not in str(told), verb
        assert "result" in told, verb
    assert as_user(ALICE, lambda: stage.call("show", run="secret"))["result"]["spec"]["env"] == {"TOKEN": "hunter2"}
    assert as_user(ALICE, lambda: stage.call("cancel", runs=["secret"]))["result"] == {"canceled": ["secret"]}
    for name in ("ledger.db", "ledger.db-wal", "pods/x"):
        path = stage.home / name
        assert as_user(BOB, path.read_bytes) == {"errno": 13}


@AS_ROOT
def test_whom_a_run_borrows_from_is_for_its_owners_side_to_say(stage: Stage) -> None:
    lender = budget_object("lab", "lab", lending={"allow": True})
    stage.call("budgets.apply", objects=[lender, budget_object("rai", concurrency=2)])
    as_user(ALICE, lambda: stage.call("submit", objects=[run_object("mine", 4, "sleep 60", owner="org:ai:rai")]))
    assert stage.phase("mine") == "Pending"
    refused = as_user(BOB, lambda: stage.call("sponsors.add", run="mine", owner="lab"))
    assert (refused["reason"], refused["exit"]) == ("Forbidden", EXIT_FORBIDDEN)
    assert as_user(BOB, lambda: stage.call("sponsors.list", run="mine"))["result"]["sponsors"] == []
    assert as_user(ALICE, lambda: stage.call("budgets.stop-lending", budget="lab"))["reason"] == "Forbidden"
    added = as_user(ALICE, lambda: stage.call("sponsors.add", run="mine", owner="lab"))["result"]
    assert added["sponsorNames"] == ["lab"]
    stage.runs("mine")
    assert as_user(BOB, lambda: stage.call("sponsors.remove", run="mine", owner="lab"))["reason"] == "Forbidden"
    lent = as_user(BOB, lambda: stage.call("budgets.lent", budget="lab"))["result"]["budgets"][0]
    assert lent["envelopes"][0]["loans"][0]["gpus"] == 4, "loans are for everybody to see"


@AS_ROOT
def test_only_administrators_write_budgets_and_stop_the_daemon(stage: Stage) -> None:
    rich = [budget_object("rich", "org:aix", concurrency=1000)]
    assert as_user(BOB, lambda: stage.call("budgets.apply", objects=rich))["reason"] == "Forbidden"
    assert as_user(BOB, lambda: stage.call("budgets.remove", budget="rai"))["reason"] == "Forbidden"
    assert as_user(BOB, lambda: stage.call("resolve", flavor="H100", gpus=8))["reason"] == "Forbidden"
    assert as_user(BOB, lambda: stage.call("resolve", flavor="H100", gpus=8, dryRun=True))["reason"] == "Forbidden"
    assert as_user(BOB, lambda: stage.call("outcomes"))["result"] == {"outcomes": []}
    stopped = as_user(BOB, lambda: stage.call("stop"))
    assert (stopped["reason"], stopped["remedy"]) == ("Forbidden", "ask an administrator of this machine to do it")
    assert as_user(BOB, lambda: stage.call("export", what="leases"))["result"]["rows"] == 0, "reading is for everybody"
    assert as_user(BOB, lambda: stage.call("status"))["result"]["you"] == {
        "user": BOB,
        "admin": False,
        "owners": ["org:aix"],
    }


@AS_ROOT
def test_what_a_caller_says_of_themselves_counts_for_nothing(stage: Stage) -> None:
    theft = run_object("theft", 2, "true", owner="org:ai:rai")

    def lie() -> Any:  # noqa: ANN401 - whatever JSON can hold
        with socket.socket(socket.AF_UNIX) as conn:
            conn.connect(str(stage.client.path))
            line = msgspec.json.encode(
                {"verb": "submit", "args": {"objects": [theft]}, "uid": 0, "user": "root", "caller": {"admin": True}}
            )
            conn.sendall(line + b"\n")
            return msgspec.json.decode(conn.recv(1 << 16))

    def forge() -> None:
        with socket.socket(socket.AF_UNIX) as conn:
            conn.connect(str(stage.client.path))
            root = array.array("B", struct.pack("3i", 1, 0, 0))
            conn.sendmsg([b'{"verb": "stop"}\n'], [(socket.SOL_SOCKET, 2, root)])  # SCM_CREDENTIALS

    assert as_user(BOB, lie)["result"]["error"]["reason"] == "Forbidden"
    assert as_user(BOB, forge) == {"errno": 1}
    refused = as_user(BOB, lambda: stage.call("submit", objects=[theft], by="root"))
    assert refused["reason"] == "InvalidRequest"
    claimed = run_object("claimed", 2, "true", owner="org:aix", by="root", user="root")
    assert as_user(BOB, lambda: stage.call("submit", objects=[claimed]))["reason"] == "InvalidRequest"
    assert stage.call("status")["runs"] == {"Pending": 0, "Running": 0}


@AS_ROOT
def test_a_uid_without_an_account_may_only_look(stage: Stage) -> None:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
            you = stage.call("status")["you"]
            try:
                stage.call("submit", objects=[run_object("ghost", 1, "true", owner="org:ai")])
            except CallFailed as failed:
                os.write(send, msgspec.json.encode([you, failed.error.reason]))
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as pipe:  # noqa: PTH123 - a descriptor
        you, reason = msgspec.json.decode(pipe.read())
    os.waitpid(child, 0)
    assert you == {"user": "uid:54321", "admin": False, "owners": []}
    assert reason == "Forbidden"


@AS_ROOT
def test_an_ordinary_users_own_daemon_serves_its_user_alone() -> None:
    place = Path(tempfile.mkdtemp(prefix="fairlease-test-"))
    entry = pwd.getpwnam(ALICE)
    os.chown(place, entry.pw_uid, entry.pw_gid)
    stage = Stage(place / "home")
    # Not by a command: the Python of these tests may lie in a home that is closed to others. So all of it is loaded first.
    codecs.lookup("ascii")
    asyncio.run(asyncio.to_thread(int))
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            sys.executable = PYTHON
            up(load_settings(home=stage.home, gpus=8, flavor="H100", metrics_port=0), foreground=True)
        finally:
            os._exit(0)
    try:
        until(lambda: as_user(ALICE, lambda: stage.call("status")).get("result"))
        you = as_user(ALICE, lambda: stage.call("status"))["result"]["you"]
        assert you == {"user": ALICE, "admin": True, "owners": ["*"]}
        as_user(ALICE, lambda: stage.call("budgets.apply", objects=[budget_object("own", "me")]))
        run = run_object("own", 2, "id -un", owner="me")
        as_user(ALICE, lambda: stage.call("submit", objects=[run]))
        assert stage.ends("own")["phase"] == "Completed"
        assert stage.output("own") == f"{ALICE}\n"
        assert as_user(BOB, lambda: stage.call("status"))["reason"] == "NotAllowed"
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        stage.clear()
        shutil.rmtree(place)


def test_a_binding_reaches_down_by_whole_segments_only() -> None:
    assert covers("org:ai", "org:ai")
    assert covers("org:ai", "org:ai:rai")
    assert not covers("org:ai", "org:aix")
    assert not covers("org:ai:rai", "org:ai")


def test_a_daemon_that_is_not_root_takes_work_from_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = pwd.getpwnam(ALICE), pwd.getpwnam(BOB)
    monkeypatch.setattr("os.geteuid", lambda: own.pw_uid)
    access = Access({BOB: ("org:ai",)}, ())
    me, you = access.caller(own.pw_uid, own.pw_gid), access.caller(other.pw_uid, other.pw_gid)
    assert me.admin
    assert access.may_spend(me, "org:any") is None
    refusal = access.may_spend(you, "org:ai")
    assert refusal is not None
    assert "as its own user" in refusal.message


def test_members_of_a_group_spend_what_it_is_bound_to() -> None:
    group = f"@{pwd.getpwnam(ALICE).pw_name}"
    entry = pwd.getpwnam(BOB)
    access = Access({"@daemon": ("org:ops",), group: ("org:else",)}, ("@nobodies",))
    caller = access.caller(entry.pw_uid, entry.pw_gid)
    assert (caller.admin, caller.owners) == (False, ("org:ops",))
    assert access.may_spend(caller, "org:else") is not None


@AS_ROOT
def test_width_and_drills_are_the_owners_and_nodes_the_administrators(stage: Stage) -> None:
    widths = {"minTotalGPUs": 2, "maxTotalGPUs": 4, "stepGPUs": 2}
    shape: dict[str, object] = {"gpusPerPod": 2, "sparesPerGroup": 2, "malleable": widths, "owner": "org:ai"}
    as_user(ALICE, lambda: stage.call("submit", objects=[run_object("mine", 2, "sleep 60", **shape)]))
    asked: dict[str, dict[str, object]] = {"drill": {"run": "mine"}, "resize": {"run": "mine", "to": 4}}
    for verb, args in asked.items():
        assert as_user(BOB, lambda verb=verb, args=args: stage.call(verb, **args))["exit"] == EXIT_FORBIDDEN  # type: ignore[misc]  # bound at once
        assert "result" in as_user(ALICE, lambda verb=verb, args=args: stage.call(verb, **args))  # type: ignore[misc]  # the same
    for wish in ("fail", "return", "cordon", "uncordon"):
        refused = as_user(ALICE, lambda wish=wish: stage.call("nodes.set", nodes=["local"], wish=wish))  # type: ignore[misc]  # the same
        assert refused["exit"] == EXIT_FORBIDDEN


@AS_ROOT
def test_a_rank_can_read_who_is_in_its_gang_though_the_daemon_is_root(stage: Stage) -> None:
    script = 'id -un; cat "$FAIRLEASE_MEMBERS"'
    as_user(ALICE, lambda: stage.call("submit", objects=[run_object("mine", 2, script, owner="org:ai")]))
    assert stage.ends("mine")["phase"] == "Completed"
    user, members = stage.output("mine").split("\n", 1)
    assert (user, msgspec.json.decode(members)["worldSize"]) == (ALICE, 1)
