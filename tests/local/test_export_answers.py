"""Exports that a daemon answers with: an answer has a bound, and is what the one exporter writes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from tests.builders import EPOCH, History, cell

from fairlease.ledger.store.export import export
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.model.amount import HOUR
from fairlease.reason import Reason
from fairlease.runtime.queries.facts import Facts
from fairlease.runtime.queries.verbs import QUERIES
from fairlease.runtime.requests import Export, Refused
from fairlease.scheduler import Scheduler


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with SqliteStore(path) as store:
        History().world().submits("train").opens("train", cell("n1", 0, 1), cell("n2", 0)).after(0).into(store)
    return path


def answer(ledger: Path, what: str, most: int | None = None) -> dict[str, Any]:
    with SqliteStore(ledger, readonly=True) as store:
        facts = Facts(Scheduler(store), None, EPOCH + HOUR, bytes_max=most)
        later = QUERIES["export"].answer(facts, Export(what))
        assert not isinstance(later, dict), "it goes through the whole past"
        return later(store)


@pytest.mark.parametrize(("what", "lines"), [("leases", 2), ("charges", 1)])
def test_a_daemon_answers_what_the_file_gives(what: str, lines: int, ledger: Path) -> None:
    by_file = io.BytesIO()
    with SqliteStore(ledger, readonly=True) as store:
        assert export(what, store.leases(LeaseQuery()), EPOCH + HOUR, by_file) == lines
    assert answer(ledger, what) == {"csv": by_file.getvalue().decode(), "rows": lines}


def test_an_answer_that_is_too_large_is_refused(ledger: Path) -> None:
    with pytest.raises(Refused, match="too large") as caught:
        answer(ledger, "leases", 300)
    assert caught.value.reason is Reason.InvalidRequest
    assert "--db" in caught.value.remedy
