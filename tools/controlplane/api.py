"""A plain client of an API server, as one user: just enough HTTP for tests to make and look at objects.

What is under test has a client of its own; this one shares no code with it, so that one cannot hide a defect of the other.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from pathlib import Path
from typing import Any, NamedTuple

_CONTENT = {
    "PATCH": "application/merge-patch+json",
    "APPLY": "application/apply-patch+yaml",
}


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
    """Speaks as one user. Each thread has a connection of its own, which is kept open."""

    def __init__(self, port: int, authority: Path, certificate: Path, key: Path, timeout_s: float = 30.0) -> None:
        self._port = port
        self._timeout = timeout_s
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(certificate, key)
        self._local = threading.local()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: object) -> Answer:
        return self.ask("POST", path, body)

    def put(self, path: str, body: object) -> Answer:
        return self.ask("PUT", path, body)

    def patch(self, path: str, body: object) -> Answer:
        """A merge patch."""
        return self.ask("PATCH", path, body)

    def delete(self, path: str) -> Answer:
        return self.ask("DELETE", path)

    def ask(self, method: str, path: str, body: object = None, content: str | None = None) -> Answer:
        """One request; tried once more where a kept connection proves dead."""
        headers = {"Accept": "application/json", "Content-Type": content or _CONTENT.get(method, "application/json")}
        data = None if body is None else json.dumps(body).encode()
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            try:
                return self._send(kept, method, path, data, headers)
            except (OSError, http.client.HTTPException):
                kept.close()
        fresh = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=self._timeout, context=self._context)
        self._local.connection = None
        answer = self._send(fresh, method, path, data, headers)
        self._local.connection = fresh
        return answer

    def close(self) -> None:
        """Close this thread's connection."""
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()
            self._local.connection = None

    @staticmethod
    def _send(
        connection: http.client.HTTPSConnection, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> Answer:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        text = response.read()
        try:
            return Answer(response.status, json.loads(text))
        except ValueError:
            return Answer(response.status, text.decode(errors="replace"))
