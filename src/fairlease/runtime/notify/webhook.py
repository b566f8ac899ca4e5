"""Webhook: one notice as JSON to an HTTP address, in the form that Slack and its likes take, with all fields besides.

It runs in a thread that nobody waits for: an address that hangs holds up neither the daemon's loop nor its end. The notice's key is
sent as `Idempotency-Key`, so that a receiver can tell a second delivery, which a crash at the wrong moment makes, from a second
notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from fairlease.model.writing import write

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlease.model.record import Key
    from fairlease.report.notices import Notice

PATIENCE_S = 10.0
PASSING = frozenset({408, 425, 429})
"""Refusals that pass; any other, and a redirection, means that the same request will fare no better again."""
_NO_USE = range(300, 500)
_ERROR_CHARS = 300
RUNS_MAX = 100
"""Runs that one message names: receivers have their limits. `fairlease notices` names them all."""


class DeliveryRefusal(Exception):  # noqa: N818 - it says what happened
    """It was not taken. `for_good`: nor will it be."""

    def __init__(self, message: str, *, for_good: bool) -> None:
        super().__init__(message[:_ERROR_CHARS])
        self.for_good = for_good


def web_address(value: str) -> str | None:
    """What is wrong with an address; None where nothing is."""
    parts = urlsplit(value)
    good = parts.scheme in ("http", "https") and parts.hostname and value.isascii() and value.isprintable()
    return None if good and " " not in value else "expected an address such as https://hooks.example.com/…"


def body_of(notice: Notice, run: Key | None = None) -> dict[str, Any]:
    """What is sent: `text` for people, the rest for programs. Who is told of one `run` learns what threatens that run."""
    runs = notice.runs if run is None else tuple(risk for risk in notice.runs if risk.run == run)
    fields = write(msgspec.structs.replace(notice, runs=runs[:RUNS_MAX]))
    if len(runs) > RUNS_MAX:
        fields["moreRuns"] = len(runs) - RUNS_MAX
    return {"text": fields.pop("text"), **fields}


async def post(url: str, notice: Notice) -> None:
    """Send one notice; raises `Refusal`."""
    await beside(lambda: _post(url, notice))


def _post(url: str, notice: Notice) -> None:
    head = {
        "Content-Type": "application/json",
        "Idempotency-Key": quote(notice.key, safe="/:#, "),
        "User-Agent": "fairlease",
    }
    data = json.dumps(body_of(notice), ensure_ascii=False).encode()
    request = urllib.request.Request(url, data, head, method="POST")  # noqa: S310 - http or https: the configuration's rule
    try:
        with _opener().open(request, timeout=PATIENCE_S):
            return
    except urllib.error.HTTPError as error:
        with error:
            for_good = error.code in _NO_USE and error.code not in PASSING
            raise DeliveryRefusal(f"the webhook answered {error.code} {error.reason}", for_good=for_good) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DeliveryRefusal(f"the webhook could not be reached: {reason}", for_good=False) from None


class _Straight(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET that tells nobody anything."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_Straight)


async def beside(work: Callable[[], None]) -> None:
    """Do something slow in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def done(error: Exception | None) -> None:
        if not future.done():
            future.set_result(None) if error is None else future.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - it is raised where it is waited for
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done, error)

    threading.Thread(target=run, daemon=True, name="webhook").start()
    await future
