"""Pods for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.local.podstage import until

from fairlease.local.processes.pods import Pods


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    """Makes the pods of a daemon; afterwards none of their processes is left."""
    made: list[Pods] = []

    def make(folder: str = "state", script: str | None = None) -> Pods:
        interpreter = tmp_path / f"python{len(made)}"
        interpreter.write_text(script or "")
        interpreter.chmod(0o755)
        made.append(Pods(tmp_path / folder, str(interpreter) if script else sys.executable))
        return made[-1]

    yield make
    for pods in made:
        for name in pods.known():
            until(lambda pods=pods, name=name: pods.terminate(name, 0) is None)  # type: ignore[misc]  # mypy: no lambda
            pods.forget(name)


@pytest.fixture
def pods(daemon: Callable[..., Pods]) -> Pods:
    return daemon()
