"""What people and programs send that is no request: it harms whoever sent it, and nobody else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.stage import Stage, daemon, run_object

from fairlease.local.socket.protocol import LINE_MAX, CallFailed
from fairlease.local.socket.server import CONNECTIONS_OF_ONE_MAX


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with daemon(tmp_path_factory.mktemp("hostile") / "home") as stage:
        yield stage


def connected(stage: Stage) -> socket.socket:
    conn = socket.socket(socket.AF_UNIX)
    conn.settimeout(20)
    conn.connect(str(stage.client.path))
    return conn


def said(conn: socket.socket) -> dict[str, Any]:
    """The next answer."""
    data = b""
    while not data.endswith(b"\n"):
        part = conn.recv(1 << 16)
        assert part, f"it closed after {data!r}"
        data += part
    answer: dict[str, Any] = json.loads(data)
    return answer


def unharmed(stage: Stage) -> None:
    """The daemon answers, quickly."""
    begun = time.monotonic()
    assert stage.call("status")["gpus"] == 8
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff\xfe garbage",
        b"",
        b"[]",
        b"{}",
        b"null",
        b'"verb"',
        b'{"verb": 7}',
        b'{"verb": "status", "args": []}',
        b'{"verb": "status", "args": {"extra": 1}}',
        b'{"verb": "no-such-verb"}',
        b'{"verb": "__init__"}',
        b'{"verb": "list", "args": {"limit": "all"}}',
        b'{"verb": "list", "args": {"limit": -1}}',
        b'{"verb": "list", "args": {"phase": "Flying"}}',
        b'{"verb": "show", "args": {}}',
        b'{"verb": "show", "args": {"run": ""}}',
        b'{"verb": "show", "args": {"run": "a/b/c"}}',
        b'{"verb": "show", "args": {"run": "../../etc/passwd"}}',
        b'{"verb": "submit", "args": {"objects": []}}',
        b'{"verb": "submit", "args": {"objects": [null, 1, "x", [], {}]}}',
        b'{"verb": "submit", "args": {"objects": [{"kind": "Node"}]}}',
        b'{"verb": "leases", "args": {"since": "yesterday"}}',
        b'{"verb": "export", "args": {"what": "secrets"}}',
        b'{"verb": "logs.read", "args": {"run": "x", "attempt": 1, "rank": 99999999999999999999}}',
        b'{"verb": "plan", "args": {"object": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}}",
        b"[" * 100_000,
    ],
)
def test_a_malformed_request_is_told_what_is_wrong(stage: Stage, line: bytes) -> None:
    with connected(stage) as conn:
        conn.sendall(line + b"\n")
        answer = said(conn)
        assert answer["ok"] is False
        error = answer["error"]
        assert error["reason"] in {"Malformed", "UnknownVerb", "InvalidRequest", "NotFound"}, error
        assert error["message"]
        assert error["remedy"]
        assert error["exit"] in {1, 2}
        conn.sendall(b'{"verb": "status"}\n')
        assert said(conn)["ok"], "the connection is as good as before"


def test_a_line_that_never_ends_is_cut_off(stage: Stage) -> None:
    with connected(stage) as conn:
        with pytest.raises(OSError):  # noqa: PT011 - a broken pipe or a reset, as the kernel sees fit
            conn.sendall(b"x" * (4 * LINE_MAX))
        assert said(conn)["error"]["reason"] == "TooLarge"
    unharmed(stage)


def test_half_a_line_and_a_sudden_end_harm_nobody(stage: Stage) -> None:
    for part in (b"", b'{"verb": "sta', b'{"verb": "status"}', b'{"verb": "submit", "args": {"objects": ['):
        with connected(stage) as conn:
            conn.sendall(part)
    with connected(stage) as conn:
        conn.sendall(b'{"verb": "status"}')
        conn.shutdown(socket.SHUT_WR)
        assert said(conn)["error"]["reason"] == "Malformed"
    unharmed(stage)


def test_one_who_does_not_read_the_answers_blocks_nobody(stage: Stage) -> None:
    with connected(stage) as conn:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        conn.settimeout(1)
        with pytest.raises(TimeoutError):
            conn.sendall(b'{"verb": "status"}\n' * 3_000_000)
        unharmed(stage)


def test_one_who_opens_too_many_connections_is_refused(stage: Stage) -> None:
    idle = [connected(stage) for _ in range(CONNECTIONS_OF_ONE_MAX)]
    try:
        idle[-1].sendall(b'{"verb": "status"}\n')
        assert said(idle[-1])["ok"]
        with connected(stage) as one_more:
            assert said(one_more)["error"]["reason"] == "TooManyConnections"
    finally:
        for conn in idle:
            conn.close()
    time.sleep(0.1)
    unharmed(stage)


def test_many_small_requests_at_once_are_all_answered(stage: Stage) -> None:
    conns = [connected(stage) for _ in range(20)]
    for number, conn in enumerate(conns):
        request = {"verb": "submit", "args": {"objects": [run_object(f"many-{number}", 1, "true")]}}
        conn.sendall(json.dumps(request).encode() + b"\n")
    assert all(said(conn)["ok"] for conn in conns)
    for conn in conns:
        conn.close()
    for number in range(20):
        assert stage.ends(f"many-{number}")["phase"] == "Completed"


def test_a_run_may_not_set_what_fairlease_sets(stage: Stage) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "FAIRLEASE_POD", "RANK"):
        request = {"verb": "submit", "args": {"objects": [run_object("sly", 1, "true", env={name: "0"})]}}
        with connected(stage) as conn:
            conn.sendall(json.dumps(request).encode() + b"\n")
            assert said(conn)["error"]["problems"][0]["field"] == f"spec.env.{name}"


def test_names_that_look_like_paths_stay_names(stage: Stage, tmp_path: Path) -> None:
    for name in ("../../escape", "a/../../b", "x\x00y", "-rf", "a b"):
        request = {"verb": "submit", "args": {"objects": [run_object(name, 1, "true")]}}
        with connected(stage) as conn:
            conn.sendall(json.dumps(request).encode() + b"\n")
            assert said(conn)["error"]["reason"] == "InvalidRequest"
    assert not list(tmp_path.parent.rglob("escape*"))


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("sponsors.add", {"owner": "org:rich", "maxGpus": 1 << 63}),
        ("sponsors.add", {"owner": "org:rich", "maxGpus": -(1 << 70)}),
        ("resize", {"to": 10**30}),
        ("drill", {"rank": 10**30}),
    ],
)
def test_a_number_too_large_to_be_kept_is_refused(stage: Stage, verb: str, args: dict[str, object]) -> None:
    name = f"modest-{verb.partition('.')[0]}-{len(str(args))}"
    stage.call("submit", objects=[run_object(name, 1, "sleep 60")])
    with pytest.raises(CallFailed, match="integers go up to 9223372036854775807"):
        stage.call(verb, run=name, **args)
    assert stage.call("show", run=name)["spec"].get("funding") in (None, {})
    stage.call("cancel", runs=[name])


def test_asking_the_daemon_needs_neither_an_event_loop_nor_the_engine() -> None:
    script = (
        "import sys, fairlease.local.socket.protocol; "
        "print([name for name in ('asyncio', 'sqlite3', 'fairlease.engine', 'fairlease.ledger', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "spec",
    [
        {"resources": {"gpuType": "H100", "totalGPUs": 1 << 62}},
        {"resources": {"gpuType": "H100", "totalGPUs": 1 << 62}, "locality": {"groupGPUs": 1 << 62}},
        {
            "resources": {"gpuType": "H100", "totalGPUs": 1 << 62},
            "malleable": {"minTotalGPUs": 1 << 61, "maxTotalGPUs": 1 << 62, "stepGPUs": 1},
        },
        {"sparesPerGroup": 1 << 62},
    ],
    ids=["gang", "group", "least width", "spares"],
)
def test_a_plan_for_more_gpus_than_there_could_be_costs_no_more_than_another(
    stage: Stage, spec: dict[str, Any]
) -> None:
    wish = run_object("vast", 8, "true", gpusPerPod=1)
    wish["spec"] |= spec
    plan = stage.call("plan", object=wish)
    assert not plan["starts"]
    assert any(change["starts"] for change in plan["changes"]), "something smaller would"
    unharmed(stage)


def test_a_number_that_no_file_may_hold_is_no_argument_either(stage: Stage) -> None:
    stage.call("submit", objects=[run_object("borrower", 8, "sleep 60", owner="org:nobody")])
    request = {"verb": "sponsors.add", "args": {"run": "borrower", "owner": "lab", "maxGpus": 1 << 63}}
    with connected(stage) as conn:
        conn.sendall(json.dumps(request).encode() + b"\n")
        error = said(conn)["error"]
    assert (error["reason"], error["exit"]) == ("InvalidRequest", 2)
    assert str(1 << 63) in error["message"]
    assert "sponsors" not in stage.call("show", run="borrower")["spec"].get("funding", {})
