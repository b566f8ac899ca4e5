"""A plain client of an API server, as one user: just enough HTTP for tests to make and look at objects.

What is under test has a client of its own; this one shares no code with it, so that one cannot hide a defect of the other.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What the server said."""

    status: int
    body: Any

    @property
    def ok(self) -> bool:
        """Whether it did as it was told."""
        return self.status < 300

    @property
    def message(self) -> str:
        """Why it did not."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)


class Api:
    """Speaks as one user, from any number of threads; connections are kept open and used again."""

    def __init__(self, port: int, authority: Path, certificate: Path, key: Path, timeout_s: float = 30.0) -> None:
        self._port = port
        self._timeout = timeout_s
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(certificate, key)
        self._idle: deque[http.client.HTTPSConnection] = deque()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: object) -> Answer:
        return self.ask("POST", path, body)

    def put(self, path: str, body: object) -> Answer:
        return self.ask("PUT", path, body)

    def patch(self, path: str, body: object) -> Answer:
        """A merge patch."""
        return self.ask("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str) -> Answer:
        return self.ask("DELETE", path)

    def ask(self, method: str, path: str, body: object = None, content: str = "application/json") -> Answer:
        """One request; tried once more, on a fresh connection, where a kept one proves dead."""
        headers = {"Accept": "application/json", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        with suppress(IndexError, OSError, http.client.HTTPException):
            return self._send(self._idle.pop(), method, path, data, headers)
        fresh = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=self._timeout, context=self._context)
        return self._send(fresh, method, path, data, headers)

    def close(self) -> None:
        """Close what is kept open."""
        while self._idle:
            self._idle.pop().close()

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
    ) -> Answer:
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        try:
            return Answer(response.status, json.loads(text))
        except ValueError:
            return Answer(response.status, text.decode(errors="replace"))
