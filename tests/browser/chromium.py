"""Chromium, driven by its own protocol over a pipe (--remote-debugging-pipe): JSON, a zero byte after each message.

Ours, because the libraries that do it bring a browser's worth of their own: Playwright 161 MB with a Node in it, Selenium a server
between. What a test needs is six commands. Everything that the page asks of the network or says on its console is kept.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 60
"""For one answer: a cold start on a busy machine takes seconds."""

FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # it shows only our own pages, and root or a container has no other way
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)

Told = dict[str, Any]


class Chromium:
    """One browser process with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        null = os.open(os.devnull, os.O_RDWR)
        moves = [
            (os.POSIX_SPAWN_DUP2, mine, place)
            for mine, place in ((null, 1), (null, 2), (theirs_in, 3), (theirs_out, 4))
        ]
        self._pid = os.posix_spawn(program, arguments, {**os.environ}, file_actions=moves, setpgroup=0)
        for mine in (null, theirs_in, theirs_out):
            os.close(mine)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[Told] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End it, and all that it started."""
        os.close(self._out)
        os.close(self._in)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def ask(self, method: str, **parameters: object) -> Told:
        """One command and its answer; what comes in between is kept in `events`."""
        self._number += 1
        message: Told = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        _write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: Told = answer["result"]
        return result

    def open(self, path: Path) -> None:
        """Show a file, until it is loaded; what was seen before is forgotten."""
        self.events.clear()
        answer = self.ask("Page.navigate", url=path.absolute().as_uri())
        assert "errorText" not in answer, answer["errorText"]
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def look(
        self, *, width: int = 1000, height: int = 800, dark: bool = False, paper: bool = False, zoom: float = 1
    ) -> None:
        """As whom to see it: a window's size, a reader's wish for dark, or print."""
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=zoom, mobile=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", media="print" if paper else "", features=scheme)

    def tell(self, expression: str) -> Any:  # noqa: ANN401 - whatever the expression is worth
        """What JavaScript says of the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened, the page itself among them."""
        return [event["params"]["request"]["url"] for event in self._of("Network.requestWillBeSent")]

    def complaints(self) -> list[Told]:
        """What the console shows: errors of scripts, refusals, warnings."""
        return self._of("Runtime.consoleAPICalled") + self._of("Runtime.exceptionThrown") + self._of("Log.entryAdded")

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def paper(self, path: Path) -> None:
        """The page as it is printed."""
        path.write_bytes(base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"]))

    def heard(self) -> list[tuple[str, str, str]]:
        """What a screen reader is told: roles, names and descriptions."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        shown = [node for node in nodes if not node.get("ignored")]
        parts = [[node.get(part, {}).get("value", "") for part in ("role", "name", "description")] for node in shown]
        return [(role, name, more) for role, name, more in parts]

    def _of(self, method: str) -> list[Told]:
        return [event for event in self.events if event.get("method") == method]

    def _next(self) -> Told:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, f"the browser {'is gone' if ready else f'said nothing for {PATIENCE_S} s'}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        told: Told = json.loads(message)
        return told


def _pipe() -> tuple[int, int]:
    """Two ends, both above the numbers at which the browser expects its own."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _write(end: int, data: bytes) -> None:
    while data:
        data = data[os.write(end, data) :]
