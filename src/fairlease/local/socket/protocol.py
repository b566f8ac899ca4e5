"""The daemon's language: one JSON object per line over a Unix socket, and the client that speaks it.

    {"verb": "cancel", "args": {"runs": ["train"]}}
    {"ok": true, "result": {"canceled": ["train"]}}
    {"ok": false, "error": {"reason": "NotFound", "message": "there is no run train", "remedy": "…", "exit": 1}}

A caller never says who they are: the kernel does. This module is what every command imports, so it is light: no event loop, no
engine, no ledger.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

LINE_MAX = 16 * 1024 * 1024
"""Bytes of one request: some ten thousand runs at once. Answers may be longer."""

TIMEOUT_S = 15.0
"""How long an ordinary question may wait for its answer: a daemon that is stopped or stuck must not hold everybody up."""

TIMEOUT_VARIABLE = "FAIRLEASE_TIMEOUT"
"""Seconds, for all verbs, in the caller's environment."""

SLOW_S = {"audit": 3_600.0, "drill": 120.0, "export": 3_600.0, "stop": 3_600.0}
"""Verbs that may take longer: they go through the whole ledger, or wait for processes."""

BYTES_PER_S = 100_000
"""A request of many objects may take longer by its size: some thousand runs are decided in a second or two."""

EXIT_REFUSED, EXIT_INVALID, EXIT_NO_DAEMON, EXIT_FORBIDDEN, EXIT_INTERNAL = 1, 2, 3, 4, 70

_PATH_MAX = 100
"""A little less than the kernel allows for a socket's path (108 with the NUL)."""


class Fault(enum.Enum):
    """What can go wrong with the conversation itself; what can go wrong with a request is a `Reason`."""

    exit: int
    remedy: str

    def __new__(cls, value: str, code: int, remedy: str) -> Self:
        """Keep the name as the value and hang the other columns on it."""
        member = object.__new__(cls)
        member._value_ = value
        member.exit = code
        member.remedy = remedy
        return member

    NoDaemon = "NoDaemon", EXIT_NO_DAEMON, "start it with: fairlease up"
    NotAllowed = "NotAllowed", EXIT_FORBIDDEN, "ask the daemon's owner, or give the home of your own with --home"
    Malformed = "Malformed", EXIT_INVALID, "send one JSON object with verb and args per line"
    UnknownVerb = "UnknownVerb", EXIT_INVALID, "use a client of the daemon's own version"
    TooLarge = "TooLarge", EXIT_INVALID, "send fewer objects at once"
    TooManyConnections = "TooManyConnections", EXIT_REFUSED, "close some connections, or try again"
    Stopping = "Stopping", EXIT_NO_DAEMON, "start it again with: fairlease up"
    NoAnswer = (
        "NoAnswer",
        EXIT_NO_DAEMON,
        "see whether its process is stopped or the machine overloaded, then try again",
    )
    Unavailable = "Unavailable", EXIT_INTERNAL, "look at the daemon's log; is the disk full?"
    Damaged = (
        "Damaged",
        EXIT_REFUSED,
        "stop the daemon (work goes on), put a backup in the ledger's place, and start with --restored",
    )
    Broken = "Broken", EXIT_INTERNAL, "look at the daemon's log, and report it"


class Request(msgspec.Struct, frozen=True):
    """What a caller wants."""

    verb: str
    args: dict[str, Any] = {}


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why it was not done: a Reason's or a Fault's name, a sentence, what would change it, and the command's exit code."""

    reason: str
    message: str
    remedy: str
    exit: int
    problems: list[dict[str, Any]] = []


class Response(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of it."""

    ok: bool
    result: Any = None
    error: Error | None = None


class CallFailed(Exception):  # noqa: N818 - it says what happened
    """The daemon refused, or could not be asked."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error

    @property
    def exit(self) -> int:
        """The exit code for a command that gives up here."""
        return self.error.exit


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
_decode_response = msgspec.json.Decoder(Response).decode


def fault(kind: Fault, message: str) -> Error:
    """An error of the conversation."""
    return Error(reason=kind.value, message=message, remedy=kind.remedy, exit=kind.exit)


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name by which the kernel takes the path: one that is too long goes by way of its directory's descriptor."""
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Client:
    """Asks the daemon, one connection for each question: nothing is left open, nothing is to be closed."""

    def __init__(self, path: str | Path, timeout_s: float | None = None) -> None:
        self.path = Path(path)
        self.timeout_s = timeout_s

    def call(self, verb: str, **args: Any) -> Any:  # noqa: ANN401 - each verb has its own arguments and result
        """The verb's result; raises `CallFailed`. An argument that is None is left out."""
        given = {name: value for name, value in args.items() if value is not None}
        line = encode(Request(verb, given)) + b"\n"
        if len(line) > LINE_MAX:
            raise CallFailed(fault(Fault.TooLarge, f"the request has {len(line)} bytes; {LINE_MAX} are allowed"))
        wait_s = given.get("timeoutMs", 0) / 1000 if isinstance(given.get("timeoutMs", 0), int) else 0
        with self._connected(self._patience_s(verb) + wait_s + len(line) / BYTES_PER_S) as conn:
            answer = self._asked(conn, line)
        response = _decode_response(answer)
        if response.error is not None:
            raise CallFailed(response.error)
        return response.result

    def _patience_s(self, verb: str) -> float:
        """How long to wait: as this client was told, or its user's environment says, or as long as the verb may take."""
        if self.timeout_s is not None:
            return max(self.timeout_s, SLOW_S.get(verb, 0.0))
        with contextlib.suppress(ValueError):
            if 0 < (told := float(os.environ.get(TIMEOUT_VARIABLE, ""))) < float("inf"):
                return told
        return SLOW_S.get(verb, TIMEOUT_S)

    @contextlib.contextmanager
    def _connected(self, timeout_s: float) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
            conn.settimeout(timeout_s)
            try:
                with reachable(self.path) as name:
                    conn.connect(name)
            except PermissionError:
                told = fault(Fault.NotAllowed, f"you may not reach the daemon at {self.path}")
                raise CallFailed(told) from None
            except TimeoutError:
                raise self._unanswered(conn) from None
            except OSError as error:
                why = error.strerror or str(error)
                message = f"no daemon answers at {self.path} ({why}); `fairlease up` starts one"
                raise CallFailed(fault(Fault.NoDaemon, message)) from None
            yield conn

    def _asked(self, conn: socket.socket, line: bytes) -> bytes:
        """Send and receive. A daemon that refuses to listen may close before all is sent; its reason is still there to be read."""
        parts = []
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                conn.sendall(line)
            while part := conn.recv(1 << 20):
                parts.append(part)
                if part.endswith(b"\n"):
                    return b"".join(parts)
        except TimeoutError:
            raise self._unanswered(conn) from None
        except ConnectionResetError:
            pass
        raise CallFailed(fault(Fault.NoDaemon, f"the daemon at {self.path} went away before it answered"))

    def _unanswered(self, conn: socket.socket) -> CallFailed:
        waited = conn.gettimeout() or 0.0
        return CallFailed(fault(Fault.NoAnswer, f"the daemon at {self.path} gave no answer in {waited:.0f} s"))
