"""A stand-in for the daemon that only speaks its protocol: for what answers look like, never for what they are.

It listens on a real Unix socket and keeps what it was asked, so that a test sees what a command really sent. Whether the real
daemon answers like this is for `test_cli_tour.py`.
"""

import json
import socketserver
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOUR = 3600.0
NOW = time.time()


def ago(hours: float) -> str:
    """A time so long ago that its age reads the same however slow the test is."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - hours * HOUR - 600))


def ahead(hours: float) -> str:
    """A time so far ahead that its countdown reads the same however slow the test is."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW + (hours + 0.9) * HOUR))


class RefusalError(Exception):
    """An answer that is none."""

    def __init__(
        self, reason: str, message: str, code: int, remedy: str = "", problems: list[Any] | None = None
    ) -> None:
        super().__init__(message)
        self.error = {"reason": reason, "message": message, "remedy": remedy, "exit": code, "problems": problems or []}


class FakeDaemon:
    """Answers each verb with a value, or with what a function makes of the arguments."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = canned()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    self.wfile.write(json.dumps(outer.respond(json.loads(line))).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def respond(self, request: dict[str, Any]) -> dict[str, Any]:
        verb, args = request["verb"], request.get("args", {})
        self.asked.append((verb, args))
        answer: Any | Callable[..., Any] = self.answers[verb]
        try:
            return {"ok": True, "result": answer(args) if callable(answer) else answer}
        except RefusalError as refusal:
            return {"ok": False, "error": refusal.error}

    def sent(self, verb: str) -> list[dict[str, Any]]:
        return [args for asked, args in self.asked if asked == verb]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def status_of(phase: str, reason: str = "Bound", message: str = "", **more: object) -> dict[str, Any]:
    running = phase == "Running"
    live = {
        "conditions": [
            {"type": "Funded", "status": "True", "reason": "Covered"},
            {"type": "Placed", "status": "True" if running else "False", "reason": reason},
            {"type": "Running", "status": "True" if running else "False", "reason": reason},
        ]
    }
    ended = {"reason": reason, "conditions": []}
    own = {"gpus": 8 if running else 0, "gpuHours": 240.5 if phase != "Pending" else 0}
    none = {"gpus": 0, "gpuHours": 0}
    return {
        "phase": phase,
        "attempt": 1,
        **({"message": message} if message else {}),
        **(live if phase in ("Pending", "Running") else ended),
        "width": {"min": 8, "max": 8, "desired": 8, "allocated": 8 if running else 0, "pending": 0},
        "funding": {"owned": own, "shared": none, "borrowed": none, "overdrawn": none, "sponsors": []},
        "leases": ["train-1-0"] if running else [],
        "submittedAt": ago(31),
        **({"startedAt": ago(30)} if phase != "Pending" else {}),
        **({"endedAt": ago(12)} if phase in ("Completed", "Failed") else {}),
        **more,
    }


def run_row(name: str, status: dict[str, Any], owner: str = "org:team-a", namespace: str = "default") -> dict[str, Any]:
    full = name if namespace == "default" else f"{namespace}/{name}"
    row = {"name": full, "namespace": namespace, "owner": owner, "by": "ada", "gpuType": "H100-80GB", "gpus": 8}
    return {**row, "status": status}


ELASTIC = {"min": 8, "max": 64, "desired": 64, "allocated": 32, "pending": 0}
NO_ROOM = "8 GPUs are wanted and 0 are free"
RESERVED: dict[str, Any] = {"pendingReservation": "eval-reservation-2", "earliestStart": ahead(30)}


def reservation(name: str, state: str, reason: str, message: str, *, counting: bool = True) -> dict[str, Any]:
    status = {"state": state, "reason": reason, "message": message}
    return {
        "name": name,
        "spec": {
            "runRef": {"namespace": "default", "name": "eval"},
            "intendedSlice": {"domain": "A", "nodes": ["n0", "n1"]},
            "payingEnvelopes": ["team-a/west"],
            "earliestStart": ahead(30 if counting else 20),
        },
        "status": {**status, "countdownSeconds": 111_240} if counting else status,
    }


DATES = [
    reservation("eval-reservation", "Superseded", "NotServed", "all work was too young", counting=False),
    reservation(
        "eval-reservation-2",
        "Pending",
        "HardFacts",
        "by then enough GPUs are free by deadlines and windows, the last those of train",
    ),
]
CHANGES = [
    {
        "change": "FewerGPUs",
        "field": "resources.totalGPUs",
        "from": 8,
        "to": 3,
        "starts": True,
        "startsAt": ago(0),
        "gpus": 3,
        "worstGPUHours": None,
    },
    {
        "change": "Borrow",
        "field": "funding.sponsors",
        "from": ["org:a"],
        "to": ["org:a", "org:b"],
        "starts": False,
        "startsAt": ahead(10),
        "gpus": 8,
        "worstGPUHours": 16,
    },
]
OUTCOME: dict[str, Any] = {
    "name": "outcome-1",
    "spec": {
        "claim": {"namespace": "default", "name": "claim"},
        "reservation": "default/claim-reservation",
        "at": "2026-01-05T00:16:00Z",
        "scope": {"flavor": "H100-80GB"},
        "deficitGPUs": 8,
        "deficits": [{"group": 0, "gpus": 8}],
        "conflictSet": ["default/one", "default/two"],
        "lottery": {
            "tokens": [
                {"owner": "beta:y", "run": "default/one", "attempt": 1, "gpus": 8},
                {"owner": "gamma:z", "run": "default/two", "attempt": 1, "gpus": 8},
            ],
            "conflictDigest": "b0c96de6ab64537788e4534fde3845733e43b05a0c992de4420dd1148d06e6f5",
            "seed": "de49c0c1b9b548777605ae2ababd53d3655cd5a9e2f876ce83410ac5fe0158d6",
            "draws": [{"owner": "beta:y", "run": "default/one"}],
        },
        "actions": [{"run": "default/one", "leases": ["one-1-0"], "reason": "RandomPreempt", "gpus": 8}],
        "previous": "0" * 64,
    },
}
"""As the simulator wrote it: tests/scenarios/the-lottery-ends-one-rigid-run-where-one-suffices.yaml."""

GAVE_WAY = {
    "outcome": "outcome-1",
    "at": "2026-01-05T00:16:00Z",
    "claim": "claim",
    "claimOwner": "alpha:x",
    "reservation": "default/claim-reservation",
    "byHand": None,
    "deficitGPUs": 8,
    "cuts": [{"reason": "RandomPreempt", "gpus": 8}],
    "conflictSet": ["one", "two"],
    "verify": "fairlease lottery verify outcome-1",
    "seed": OUTCOME["spec"]["lottery"]["seed"],
    "tokens": [
        {"run": "eval", "owner": "beta:y", "gpus": 4, "odds": "1/2"},
        {"run": "two", "owner": "beta:y", "gpus": 4, "odds": "1/2"},
    ],
    "draws": [{"run": "eval", "givenBack": False}, {"run": "two", "givenBack": True}],
}


def _runs() -> list[dict[str, Any]]:
    return [
        run_row("train", status_of("Running")),
        run_row("sweep", status_of("Running", width=ELASTIC)),
        run_row("eval", status_of("Pending", "Reserved", NO_ROOM, **RESERVED)),
        run_row("broken", status_of("Failed", "Fail", "rank 0 ended with exit code 1")),
        run_row("done", status_of("Completed", "Completed"), owner="org:team-b"),
    ]


def _lease(number: int, node: str, slots: list[int], closed: bool) -> dict[str, Any]:
    status: dict[str, Any] = {"closed": closed}
    if closed:
        status |= {"endTime": ago(27), "closureReason": "Completed"}
    return {
        "name": f"train-1-{number}",
        "spec": {
            "owner": "org:team-a",
            "runRef": {"namespace": "default", "name": "train"},
            "attempt": 1,
            "compPath": ["SHARD[0]", "D"],
            "slice": {"nodes": [node], "gpus": {node: slots}, "role": "Active"},
            "interval": {"start": ago(30)},
            "paidByBudget": "default/team-a",
            "paidByEnvelope": "west",
            "reason": "Start",
        },
        "status": status,
    }


COVER = [
    {
        "place": "own",
        "budget": "default/team-a",
        "envelope": "west",
        "owner": "org:team-a",
        "inLocation": True,
        "paysGPUs": 8,
        "roomGPUs": 8,
        "reason": "ConcurrencyCapExceeded",
        "remedy": "wait for runs on this money to end, or have the concurrency raised",
    },
    {
        "place": "parent",
        "budget": "money/org",
        "envelope": "all",
        "owner": "org",
        "inLocation": False,
        "paysGPUs": 0,
        "roomGPUs": None,
        "reason": "NotNeeded",
        "remedy": "nothing to change",
    },
]
DOMAINS = [
    {"domain": "A", "cluster": "gpu-a", "region": "us-west", "freeGPUs": 3, "groupsFit": 0, "reason": "NoRoom"},
    {"domain": "B", "cluster": "gpu-a", "region": "us-west", "freeGPUs": 16, "groupsFit": 0, "reason": "Fragmented"},
]
STORY = [
    {
        "at": "2026-01-05T00:00:00Z",
        "type": "Normal",
        "reason": "Submitted",
        "message": "org:team-a asks for 8 × H100-80GB",
    },
    {"at": "2026-01-05T00:00:00Z", "type": "Normal", "reason": "Reserved", "message": NO_ROOM},
]


def quote(args: dict[str, Any]) -> dict[str, Any]:
    starts = args["object"]["spec"]["resources"]["totalGPUs"] <= 8
    payer = {"budget": "default/team-a", "envelope": "west", "owner": "org:team-a", "class": "owned", "gpus": 8}
    bounded = args["object"]["spec"].get("runtime", {}).get("maxDuration") is not None
    return {
        "name": args["object"]["metadata"]["name"],
        "verdict": "Start" if starts else "ConcurrencyCapExceeded",
        "starts": starts,
        "message": "can start 8 GPUs wide" if starts else "team-a/west has room for 8 of 16 GPUs",
        "width": 8,
        "payers": [payer] if starts else [],
        "worstCase": {"gpus": 8, "hours": 2, "gpuHours": 16, "perAttempt": True}
        if bounded
        else {"gpus": 8, "hours": None, "gpuHours": None, "perAttempt": True},
        "nodes": ["n0", "n1"] if starts else [],
        "reservation": None if starts else DATES[-1],
        "changes": [] if starts else CHANGES,
        "cover": COVER,
        "domains": DOMAINS,
    }


def _budgets() -> list[dict[str, Any]]:
    west = {
        "name": "west",
        "flavor": "H100-80GB",
        "selector": {"region": "us-west"},
        "concurrency": 48,
        "maxGPUHours": 500,
    }
    free = {"name": "any", "flavor": "H100-80GB", "selector": {"region": "*"}, "concurrency": 8, "sharing": "none"}
    lending = {"allow": True, "to": ["org:team-b"]}
    gpus = {"sharedGPUs": 0, "borrowedGPUs": 8, "spareGPUs": 0, "opportunisticGPUs": 0}
    used = [
        {
            "name": "west",
            **gpus,
            "ownedGPUs": 40,
            "overdrawnGPUs": 0,
            "consumedGPUHours": 100.5,
            "committedGPUHours": 24,
        },
        {"name": "any", **gpus, "ownedGPUs": 0, "overdrawnGPUs": 8, "consumedGPUHours": 3, "committedGPUHours": 0},
    ]
    room = [{"name": "west", "concurrency": 0, "gpuHours": 375.5}, {"name": "any", "concurrency": 0, "gpuHours": None}]
    spec = {"owner": "org:team-a", "envelopes": [{**west, "lending": lending, "end": "2026-02-01T00:00:00Z"}, free]}
    status = {"usage": used, "headroom": room, "conditions": []}
    return [{"name": "default/team-a", "owner": "org:team-a", "spec": spec, "status": status}]


def _nodes() -> dict[str, Any]:
    place = {"flavor": "H100-80GB", "region": "us-west", "cluster": "gpu-a", "domain": "A", "gpus": 8}
    return {
        "nodes": [
            {"name": "n0", **place, "free": [0, 1, 2, 7], "skipped": None, "runs": ["default/train"]},
            {"name": "n1", **place, "free": [], "skipped": "NotReady", "runs": []},
        ],
        "domains": [{**place, "nodes": 2, "gpus": 16, "free": 4, "groups": {"8": 0, "16": 0, "32": 0, "64": 0}}],
    }


def _notices() -> list[dict[str, Any]]:
    sent = [{"channel": "webhook", "state": "pending"}, {"channel": "signal", "run": "train", "state": "delivered"}]
    coming = {"kind": "CutComing", "key": "CutComing/default/eval-reservation/notice", "text": "eval lacks 4 GPUs; …"}
    low = {"kind": "HoursLow", "key": "HoursLow/default/team-a/west/80", "text": "Budget team-a: 80 % are used"}
    return [
        {**coming, "at": ago(29), "due": ago(1), "run": "default/eval", "claim": "default/eval", "deliveries": sent},
        {**low, "at": ago(30), "budget": "default/team-a", "envelope": "west"},
    ]


def shown(args: dict[str, Any]) -> dict[str, Any]:
    name = args["run"].removeprefix("default/")
    for run in _runs():
        if run["name"] == name:
            spec = {
                "owner": run["owner"],
                "resources": {"gpuType": "H100-80GB", "totalGPUs": 8},
                "command": ["./train"],
            }
            return {"name": name, "namespace": "default", "by": "ada", "spec": spec, "status": run["status"]}
    raise RefusalError("NotFound", f"there is no run {name}", 1, "look at the list for the right name")


def canned() -> dict[str, Any]:
    payer = {"budget": "default/team-a", "envelope": "west", "owner": "org:team-a", "class": "owned"}
    return {
        "status": {
            "pid": 4242,
            "version": "0.1.0",
            "startedAt": ago(40),
            "now": ago(0),
            "home": "/var/lib/fairlease",
            "socket": "/var/lib/fairlease/fairlease.sock",
            "metrics": "http://127.0.0.1:9464/metrics",
            "head": {"seq": 7, "hash": "ab" * 32},
            "nodes": 2,
            "gpus": 16,
            "freeGPUs": 4,
            "runs": {"Pending": 1, "Running": 2},
            "notifications": {"pending": 2, "failed": 1, "error": "the webhook answered 503 Service Unavailable"},
            "reservations": {"Pending": 1, "next": ahead(30)},
            "you": {"user": "ada", "admin": False, "owners": ["org:team-a"]},
        },
        "list": {"runs": _runs()},
        "show": shown,
        "leases": {"leases": [_lease(0, "n0", [0, 1, 2, 3], False), _lease(1, "n1", [0, 1, 2, 3], True)]},
        "nodes": _nodes(),
        "notices": {"notices": _notices()},
        "explain": lambda args: {
            "name": args["run"],
            "status": status_of("Pending", "Reserved", NO_ROOM, **RESERVED),
            "verdict": "Reserved",
            "message": NO_ROOM,
            "reservation": DATES[-1],
            "reservations": DATES,
            "preemptions": [GAVE_WAY],
            "changes": CHANGES,
            "cover": COVER,
            "domains": DOMAINS,
            "story": STORY,
        },
        "reservations": lambda args: {"reservations": DATES if args["all"] else DATES[-1:]},
        "outcomes": {"outcomes": [OUTCOME]},
        "resolve": lambda args: {
            "dryRun": args["dryRun"],
            "outcome": OUTCOME,
            "cuts": [{"run": "one", "gpus": 8, "leases": ["one-1-0"], "reason": "RandomPreempt", "then": "asks again"}],
            "started": [{"run": "eval", "gpus": 8, "nodes": ["n0"]}],
        },
        "cover": {"cover": COVER},
        "plan": quote,
        "submit": lambda args: {
            "runs": [
                {"name": each["metadata"]["name"], "status": status_of("Pending", "Reserved", NO_ROOM, **RESERVED)}
                for each in args["objects"]
            ]
        },
        "cancel": lambda args: {"canceled": [run.removeprefix("default/") for run in args["runs"]]},
        "budgets.list": {"budgets": _budgets()},
        "budgets.apply": lambda args: {
            "budgets": [{"name": each["metadata"]["name"], "change": "created"} for each in args["objects"]]
        },
        "budgets.remove": {},
        "who-pays": {
            "runs": [
                {
                    "name": "train",
                    "owner": "org:team-a",
                    "payers": [{**payer, "gpus": 8, "gpuHours": 240.5}],
                    "gpuHours": 240.5,
                }
            ],
            "owners": [{"owner": "org:team-a", "class": "owned", "gpus": 8, "gpuHours": 240.5}],
        },
        "audit": {
            "ok": False,
            "checks": {"chain": True, "noSlotDoubled": False},
            "findings": [
                {"seq": 3, "claim": "noSlotDoubled", "objects": ["n0"], "message": "slot 3 of n0 is held twice"}
            ],
            "entries": 7,
            "leases": 2,
            "head": {"seq": 7, "hash": "ab" * 32, "at": 0},
        },
        "export": {"csv": "name,run\ntrain-1-0,train\n"},
        "logs": {"files": [], "ended": True},
        "wait": {"head": {"seq": 7, "hash": "ab" * 32}},
    }
