"""What tests of notices share: a daemon whose notice is short, and an HTTP server that keeps what it is sent."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.local.stage import Stage, daemon

SHORT = "minRuntime: 0s\ngrace: 1s\n"
SLEEP = "while :; do sleep 0.05; done"


class Mailbox:
    """An HTTP server on loopback that keeps what it is sent, and answers as it was told to, in turn."""

    def __init__(self, port: int = 0) -> None:
        self.got: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = outer.answers.pop(0) if outer.answers else 200
                if code == 200:
                    outer.got.append(body)
                    outer.keys.append(self.headers["Idempotency-Key"])
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def kinds(self) -> Counter[str]:
        return Counter(each["kind"] for each in self.got)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def told(tmp_path: Path, config: str, *, notice: str = "2s", **more: object) -> Iterator[Stage]:
    """A daemon whose notice is short."""
    path = tmp_path / "fairlease.yaml"
    path.write_text(f"notice: {notice}\n{SHORT}{config}")
    with daemon(tmp_path / "home", config=str(path), **more) as stage:
        yield stage


def metric(url: str, name: str) -> float:
    text = urllib.request.urlopen(url).read().decode()  # noqa: S310 - our own address
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"fairlease_{name} ")]
    return float(found[0]) if found else 0.0
